// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon is killed at random moments: nothing of it may be left after a second.

use anyhow::Result;

use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::{
    AccessPoint, Cap, Check, Crash, FIXED54, OnAir, Plan, Plot, Relation, Scenario, Variant, medium,
};

pub const SCENARIO: Scenario = Scenario {
    name: "fails-open",
    about: "SIGKILL at random moments under traffic: nothing may be left",
    stations: Some(2),
    seconds: 60,
    warmup_s: 20,
    parameters: &[
        Parameter {
            name: "kills",
            kind: Kind::Count {
                default: 200,
                least: 1,
                most: 10_000,
            },
            about: "kills of the daemon alone",
        },
        Parameter {
            name: "kills_both",
            kind: Kind::Count {
                default: 20,
                least: 1,
                most: 10_000,
            },
            about: "kills of daemon and guardian together",
        },
    ],
    plan,
};

/// A tenth of what a station's cwnd grows to without a cap.
const CAP_SEGMENTS: u64 = 20;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let access_point = AccessPoint {
        medium: parameters.choice("medium").map_or(FIXED54, medium),
        rtt_ms: parameters.count("rtt_ms"),
        stations: parameters.count("stations") as usize,
        giveway: Some(Cap::Segments(CAP_SEGMENTS)),
    };
    let variant = |name: &str, kills, guardian_too| {
        let crash = Crash {
            kills: parameters.count(kills),
            cap_segments: CAP_SEGMENTS,
            guardian_too,
        };
        Variant::on_air(name.into(), access_point, OnAir::Crash(crash))
    };
    let mut checks = Vec::new();
    for name in ["daemon", "both"] {
        checks.push(Check::metric(name, "failures", Relation::Exactly(0.0)).always());
        checks.push(Check::metric(name, "revert_max_s", Relation::AtMost(1.0)).always());
    }
    // About half of the kills come late enough to find a cap: without any, nothing was shown.
    checks.push(Check::metric("daemon", "kills_with_caps", Relation::AtLeast(50.0)));
    Ok(Plan {
        variants: vec![variant("daemon", "kills", false), variant("both", "kills_both", true)],
        checks,
        plots: vec![Plot::Distribution {
            file: "revert".into(),
            title: "Time from the kill until nothing of giveway is left".into(),
            axes: ("time, s", "events that are over, %"),
            points: vec!["daemon".into(), "both".into()],
        }],
        columns: &["kills", "failures", "revert_p50_s", "revert_max_s"],
    })
}
