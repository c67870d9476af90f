// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Eight stations whose daemons are told nothing: with a group's key and nothing else, against the same with the best equal
//! cap of each radio; and without a key, against stations without giveway.

use anyhow::Result;

use super::cooperative::oracle;
use crate::access_point::{ARF, ARF_CLASSIC, ARF_LOSSY, AccessPoint, Cap, FIXED54, MEDIA, media, name_on};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::Protocol;

pub const SCENARIO: Scenario = Scenario {
    name: "no-numbers",
    about: "eight stations with a group's key and nothing else, and without one",
    stations: None,
    seconds: 40,
    warmup_s: 15,
    parameters: &[
        Parameter::range("stations", 8, 1, 16, "on the access point"),
        Parameter::range("rtt_ms", 256, 2, 2_000, "round trip behind the access point"),
        Parameter::choice("medium", MEDIA, "instead of the scenario's own"),
        Parameter::range("repeats", 6, 1, 100, "rounds; a metric is the mean over them"),
    ],
    plan,
};

fn plan(parameters: &Parameters) -> Result<Plan> {
    let (stations, rtt_ms) = (parameters.count("stations") as usize, parameters.count("rtt_ms"));
    let mut variants = Vec::new();
    let mut checks = Vec::new();
    let mut drawn = Vec::new();
    for medium in media(parameters, &[FIXED54, ARF, ARF_LOSSY, ARF_CLASSIC]) {
        let name = |what: &str| name_on(parameters, what, medium);
        // Just below the collapse of `arf-classic` in model time is above it live: no number is true there.
        let told = oracle(medium, stations, rtt_ms).filter(|_| medium != ARF_CLASSIC);
        for (what, cap) in [
            ("plain", None),
            ("told", told),
            ("key", Some(Cap::Default { has_key: true })),
            ("no-key", Some(Cap::Default { has_key: false })),
        ] {
            if what != "told" || told.is_some() {
                let mut transfers = Transfers::steady(parameters, Protocol::Tcp, stations);
                transfers.per_station = true;
                variants.push(transfers.on(AccessPoint::new(parameters, medium, cap), name(what)));
                drawn.push(name(what));
            }
        }
        let mut beside = |ours: &str, theirs: &str, metric, holds| {
            let (ours, theirs) = (name(ours), name(theirs));
            checks.push(Check::ratio(
                format!("{ours} over {theirs}, {metric}"),
                &ours,
                &theirs,
                metric,
                holds,
            ));
        };
        if told.is_some() {
            beside("key", "told", "goodput_mbit", Relation::AtLeast(0.9));
            beside("key", "told", "jain", Relation::AtLeast(0.9));
            beside("key", "told", "rtt_p50_ms", Relation::AtMost(1.1));
        }
        beside("key", "plain", "goodput_mbit", Relation::AtLeast(0.85));
        beside("key", "plain", "rtt_p50_ms", Relation::AtMost(1.0));
        beside("no-key", "plain", "goodput_mbit", Relation::AtLeast(0.97));
        beside("no-key", "plain", "rtt_p50_ms", Relation::AtMost(1.03));
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![Plot::Stations {
            file: "goodput-stations".into(),
            title: "Goodput of each station".into(),
            variants: drawn,
        }],
        columns: "goodput_mbit spread:goodput_mbit jain retransmits rtt_p50_ms rtt_p99_ms lateness_p99_us",
    })
}
