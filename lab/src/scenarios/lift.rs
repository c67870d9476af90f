// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What becomes of a connection when its cap is lifted at once (its daemon ends), beside one that never had a
//! cap; and, as a control, the same two places with no cap at all.

use anyhow::Result;

use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::{
    ARF_LOSSY, AccessPoint, Cap, Check, FIXED54, Lift, OnAir, Plan, Plot, Relation, Scenario, Trace, Variant, medium,
};

pub const SCENARIO: Scenario = Scenario {
    name: "lift",
    about: "a cap is lifted at once, beside a connection that never had one",
    stations: Some(2),
    seconds: 5,
    warmup_s: 20,
    parameters: &[Parameter {
        name: "lifts",
        kind: Kind::Count {
            default: 10,
            least: 1,
            most: 1_000,
        },
        about: "how often; each is held for 10 s first",
    }],
    plan,
};

/// P1's cap for eight stations.
const CAP_SEGMENTS: u64 = 43;
const HELD_S: f64 = 10.0;
/// How many more retransmits than beside it, on average over the lifts, are put down to chance. Two connections that
/// never had a cap differed by up to 7.8 in the control (ten windows of 5 s): this is a quarter of that.
const TOLERATED_EXCESS: f64 = 2.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let chosen = parameters.choice("medium").map(medium);
    let media = chosen.map_or(vec![FIXED54, ARF_LOSSY], |chosen| vec![chosen]);
    let stations = parameters.count("stations").max(2) as usize;
    let variant = |name: String, medium, cap_segments: Option<u64>| {
        let access_point = AccessPoint {
            medium,
            rtt_ms: parameters.count("rtt_ms"),
            stations,
            giveway: cap_segments.map(Cap::Segments),
        };
        let lift = Lift {
            repetitions: parameters.count("lifts"),
            cap_segments,
            warmup_s: parameters.count("warmup_s") as f64,
            held_s: HELD_S,
            seconds: parameters.count("seconds") as f64,
        };
        Variant::on_air(name, access_point, OnAir::Lift(lift))
    };
    let mut variants = Vec::new();
    let mut checks = Vec::new();
    for &medium in &media {
        let lifted = format!("lifted/{medium}");
        let holds = Relation::AtMost(TOLERATED_EXCESS);
        checks.push(Check::metric(&lifted, "retransmits_excess", holds).goal());
        variants.push(variant(lifted, medium, Some(CAP_SEGMENTS)));
        variants.push(variant(format!("control/{medium}"), medium, None));
    }
    let names = variants.iter().map(|variant| variant.name.clone()).collect();
    Ok(Plan {
        variants,
        checks,
        plots: vec![Plot::Timeline {
            of: Trace::Cwnd,
            variants: names,
        }],
        columns: &[
            "retransmits",
            "retransmits_p50",
            "retransmits_max",
            "goodput_before_mbit",
            "goodput_mbit",
            "cwnd_segments",
        ],
    })
}
