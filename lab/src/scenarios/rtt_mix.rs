// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Eight stations whose servers are 20, 60, 150 and 300 ms away, two each (P1, open point 1): each connection is to have the
//! same bandwidth, which the same cwnd would not give it.

use anyhow::Result;

use crate::access_point::{AccessPoint, Cap, FIXED54};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Trace};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::Protocol;

pub const SCENARIO: Scenario = Scenario {
    name: "rtt-mix",
    about: "stations whose round trips take 20, 60, 150 and 300 ms",
    stations: None,
    seconds: 40,
    warmup_s: 15,
    parameters: &[
        Parameter::range("stations", 8, 1, 16, "on the access point"),
        Parameter::range("rtt_ms", 20, 20, 20, "the shortest of them"),
        Parameter::range("repeats", 3, 1, 100, "rounds; a metric is the mean over them"),
    ],
    plan,
};

const RTTS_MS: &[u64] = &[20, 60, 150, 300];
/// What the fixed cap takes for the round trip of all: the mean.
const MEAN_MS: u64 = 132;
const POLICIES: [(&str, Option<Cap>); 5] = [
    ("plain", None),
    ("fixed-cap", Some(Cap::Formula { rtt_ms: MEAN_MS })),
    ("balanced", Some(Cap::Found("balanced"))),
    ("delay", Some(Cap::Found("delay"))),
    ("throughput", Some(Cap::Found("throughput"))),
];

fn plan(parameters: &Parameters) -> Result<Plan> {
    let variant = |(name, cap): (&str, _)| {
        let access_point = AccessPoint {
            different_rtts_ms: RTTS_MS,
            ..AccessPoint::new(parameters, FIXED54, cap)
        };
        let mut transfers = Transfers::steady(parameters, Protocol::Tcp, access_point.stations);
        transfers.per_station = true;
        transfers.on(access_point, name.into())
    };
    let names = POLICIES.map(|(name, _)| name.to_owned());
    let beside_plain =
        |name: &str, metric, holds| Check::ratio(format!("{name} over plain, {metric}"), name, "plain", metric, holds);
    Ok(Plan {
        variants: POLICIES.into_iter().map(variant).collect(),
        checks: vec![
            Check::metric("balanced", "jain", Relation::AtLeast(0.99)),
            Check::metric("delay", "jain", Relation::AtLeast(0.99)),
            beside_plain("balanced", "retransmits", Relation::AtMost(0.1)),
            beside_plain("balanced", "rtt_p50_ms", Relation::AtMost(1.0)),
            beside_plain("throughput", "goodput_mbit", Relation::AtLeast(0.97)),
        ],
        plots: vec![
            Plot::Stations {
                file: "goodput-stations".into(),
                title: "Goodput of each station".into(),
                variants: names.to_vec(),
            },
            Plot::timeline(Trace::Goodput, &names),
        ],
        columns: "goodput_mbit spread:goodput_mbit jain retransmits rtt_p50_ms rtt_p99_ms lateness_p99_us daemon_waited_percent",
    })
}
