// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P3's slack test was a walk over the queue. What giveway's costs instead, however long the queue is, and whether it
//! decides the same.

use anyhow::Result;

use crate::guest::{Clock, Flavour, Guest};
use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::deadline::AdmissionCost;
use crate::scenario::{Check, Experiment, Plan, Relation, Scenario, Variant};

pub const SCENARIO: Scenario = Scenario {
    name: "admission-cost",
    about: "instructions of admitting a packet, and random cases against the exact walk",
    stations: None,
    seconds: 1,
    warmup_s: 0,
    parameters: &[
        count("cases", 1_000_000, "random cases against the exact walk"),
        count("packets", 100, "measured behind each number of queued ones"),
    ],
    plan,
};

const fn count(name: &'static str, default: u64, about: &'static str) -> Parameter {
    let kind = Kind::Count {
        default,
        least: 1,
        most: 100_000_000,
    };
    Parameter { name, kind, about }
}

const QUEUED: [u64; 4] = [10, 100, 1_000, 4_000];
/// Such that 4,000 packets of 1,442 bytes are 192 ms of promised work, within the 268 ms that admission looks ahead.
const RATE_MBIT: u64 = 300;
const INSTRUCTIONS: f64 = 2_500.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let cases = parameters.count("cases");
    let trial = "trial";
    let enqueue = "enqueue";
    let mut checks = vec![
        Check::metric(trial, "cases", Relation::AtLeast(cases as f64)).always(),
        Check::metric(trial, "admitted_wrongly", Relation::Exactly(0.0)).always(),
        Check::metric(trial, "refused_wrongly_percent", Relation::Below(1.0)).always(),
        Check::metric(enqueue, "instructions_max_over_min", Relation::AtMost(1.5)).always(),
    ];
    let points = QUEUED.map(|queued| format!("{enqueue}/{queued}"));
    checks.extend(points.map(|point| Check::metric(&point, "instructions", Relation::AtMost(INSTRUCTIONS)).always()));
    let guest = Guest {
        kernel: Flavour::Stock,
        cpus: 1,
        clock: Clock::Virtual,
        preemption: None,
    };
    let variant = |name: &str, guest, cost| Variant {
        name: name.into(),
        guest,
        experiment: Experiment::AdmissionCost(cost),
    };
    Ok(Plan {
        variants: vec![
            variant(trial, None, AdmissionCost::Trial { cases }),
            variant(
                enqueue,
                Some(guest),
                AdmissionCost::Enqueue {
                    rate_mbit: RATE_MBIT,
                    queued: QUEUED.into(),
                    packets: parameters.count("packets"),
                },
            ),
        ],
        checks,
        plots: Vec::new(),
        columns: &[
            "instructions",
            "tree_instructions",
            "walk_instructions",
            "admitted_wrongly",
            "refused_wrongly_percent",
        ],
    })
}
