// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stations that download from far away, through the queue of their access point: plain TCP, and receivers that find their
//! share and hold their windows to it. The far end has no giveway.

use anyhow::Result;

use crate::access_point::{AccessPoint, Cap, FIXED54, MEDIA, media, name_on};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Trace};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::Protocol;

pub const SCENARIO: Scenario = Scenario {
    name: "downlink",
    about: "stations that all download: plain, and with receivers that share by their windows",
    stations: None,
    seconds: 40,
    warmup_s: 15,
    parameters: &[
        Parameter::range("stations", 8, 1, 16, "on the access point"),
        Parameter::range("rtt_ms", 256, 2, 2_000, "round trip behind the access point"),
        Parameter::range("queue_packets", 500, 1, 10_000, "of the access point"),
        Parameter::choice("medium", MEDIA, "instead of the scenario's own"),
        Parameter::range("repeats", 3, 1, 100, "rounds; a metric is the mean over them"),
    ],
    plan,
};

const POLICIES: [(&str, Option<Cap>); 3] = [
    ("plain", None),
    ("balanced", Some(Cap::FoundBothWays("balanced"))),
    ("delay", Some(Cap::FoundBothWays("delay"))),
];
/// What plain TCP's queue is worth.
const GOODPUT: f64 = 0.9;
const JAIN: f64 = 0.99;
/// A round trip may take so much longer than without a queue.
const LONGER: f64 = 1.25;
const LONGER_MS: f64 = 15.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let rtt_ms = parameters.count("rtt_ms") as f64;
    let short_ms = (LONGER * rtt_ms).max(rtt_ms + LONGER_MS);
    let (mut variants, mut checks, mut drawn) = (Vec::new(), Vec::new(), Vec::new());
    for medium in media(parameters, &[FIXED54]) {
        let name = |what: &str| name_on(parameters, what, medium);
        for (what, cap) in POLICIES {
            let access_point = AccessPoint {
                queue_packets: Some(parameters.count("queue_packets")),
                ..AccessPoint::new(parameters, medium, cap)
            };
            let mut transfers = Transfers::steady(parameters, Protocol::Tcp, access_point.stations);
            transfers.per_station = true;
            transfers.senders.iter_mut().for_each(|span| span.down = true);
            variants.push(transfers.on(access_point, name(what)));
            drawn.push(name(what));
        }
        let (plain, balanced) = (name("plain"), name("balanced"));
        let over = format!("{balanced} over {plain}, goodput_mbit");
        checks.extend([
            Check::ratio(over, &balanced, &plain, "goodput_mbit", Relation::AtLeast(GOODPUT)),
            Check::metric(&balanced, "jain", Relation::AtLeast(JAIN)),
            Check::metric(&balanced, "rtt_p50_ms", Relation::AtMost(short_ms)),
        ]);
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![
            Plot::Stations {
                file: "goodput-stations".into(),
                title: "Goodput of each station".into(),
                variants: drawn.clone(),
            },
            Plot::timeline(Trace::Goodput, &drawn),
        ],
        columns: "goodput_mbit spread:goodput_mbit jain retransmits rtt_p50_ms rtt_p99_ms busy_percent lateness_p99_us",
    })
}
