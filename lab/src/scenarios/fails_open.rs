// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon dies or hangs at random times: everything must be undone after a second, or six.

pub mod changes;
mod ending;
pub mod experiment;

use anyhow::Result;

use super::shared_channel::{MEDIUM, rtt_ms, stations};
use crate::access_point::{AccessPoint, Cap, FIXED54, media};
use crate::cell::Cell;
use crate::experiment::Run;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Variant};
use ending::{Ending, OTHERS};
use experiment::end_repeatedly;

pub const SCENARIO: Scenario = Scenario {
    name: "fails-open",
    about: "The daemon and its watchdog are killed, stopped and starved at random moments under traffic: how long until nothing of giveway is left",
    seconds: 60,
    warmup_s: 20,
    parameters: &[
        stations(2, 1, 16, "stations on the access point"),
        rtt_ms(256),
        MEDIUM,
        Parameter::range("kills", 200, 1, 10_000, "kills of the daemon alone"),
        Parameter::range("others", 20, 1, 10_000, "times that it ends in each other way"),
    ],
    plan: &plan,
};

/// A tenth of a station's cwnd without a cap.
const CAP_SEGMENTS: u64 = 20;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let cap = Some(Cap::Segments(CAP_SEGMENTS));
    let access_point = AccessPoint::new(parameters, media(parameters, &[FIXED54])[0], cap);
    let variant = |name: &str, kills, ending: Ending| {
        let kills = parameters.count(kills);
        let act = move |cell: &mut Cell, run: &Run| end_repeatedly(cell, kills, ending, run);
        Variant::on(
            access_point,
            name,
            kills as f64 * (6.0 + ending.limit().as_secs_f64()),
            act,
        )
    };
    let mut variants = vec![variant("daemon", "kills", Ending::Killed)];
    variants.extend(OTHERS.map(|(name, ending)| variant(name, "others", ending)));
    let mut checks = Vec::new();
    for (name, ending) in [("daemon", Ending::Killed)].into_iter().chain(OTHERS) {
        let limit_s = ending.limit().as_secs_f64();
        checks.push(Check::metric(name, "failures", Relation::Exactly(0.0)).always());
        checks.push(Check::metric(name, "revert_max_s", Relation::AtMost(limit_s)).always());
    }
    for name in ["watchdog-stopped", "watchdog-killed"] {
        let limit_s = ending::HANG.as_secs_f64();
        checks.push(Check::metric(name, "replaced_max_s", Relation::AtMost(limit_s)).always());
    }
    // More than half of the kills come late enough to find each kind of change: otherwise nothing was tested.
    for kind in [
        "kills_with_caps",
        "kills_with_queue",
        "kills_with_control",
        "kills_with_rule",
        "kills_with_chain",
        "kills_with_limits",
    ] {
        checks.push(Check::metric("daemon", kind, Relation::AtLeast(100.0)));
    }
    // A process is reniced some three seconds after the daemon's start.
    checks.push(Check::metric("daemon", "kills_with_nice", Relation::AtLeast(60.0)));
    Ok(Plan {
        variants,
        checks,
        plots: vec![Plot::distribution(
            "revert",
            "Time from the kill until nothing of giveway is left",
            ("time, s", "events that are over, %"),
            ["daemon", "both", "stopped"],
        )],
        columns: "kills kills_with_caps kills_with_queue kills_with_control kills_with_rule kills_with_chain kills_with_nice kills_with_limits failures \
                  revert_p50_s revert_max_s replaced_max_s",
    })
}
