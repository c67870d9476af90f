// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P4 watches for chosen applications to start: here so many start at once that nothing could poll for them. How long
//! until those that a rule means have their priority, whether one is missed, and what that costs.

use anyhow::Result;

use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::response::Starts;
use crate::scenario::{Check, Experiment, Plan, Plot, Relation, Scenario, Variant};

pub const SCENARIO: Scenario = Scenario {
    name: "starts",
    about: "from exec to priority, while many short-lived processes start",
    stations: None,
    seconds: 48,
    warmup_s: 0,
    parameters: &[
        count("per_s", 500, 1, 5_000, "processes that start each second"),
        count("one_in", 10, 1, 1_000, "of so many is one that a rule means"),
        count("limit_ms", 50, 5, 1_000, "after which such a one has lived long enough"),
    ],
    plan,
};

const fn count(name: &'static str, default: u64, least: u64, most: u64, about: &'static str) -> Parameter {
    let kind = Kind::Count { default, least, most };
    Parameter { name, kind, about }
}

/// What each is allowed, of one processor, in all its threads and BPF programs.
const CPU_PERCENT: f64 = 3.0;
const NAMES: [(&str, bool); 2] = [("idle", false), ("busy", true)];

fn plan(parameters: &Parameters) -> Result<Plan> {
    let per_s = parameters.count("per_s");
    let wanted = per_s * parameters.count("seconds");
    let matched = wanted.div_ceil(parameters.count("one_in"));
    let variant = |(name, is_busy): (&str, bool)| Variant {
        name: name.into(),
        guest: None,
        experiment: Experiment::Starts(Starts {
            per_s,
            count: wanted,
            one_in: parameters.count("one_in"),
            limit_ms: parameters.count("limit_ms"),
            is_busy,
        }),
    };
    let mut checks = Vec::new();
    for (name, _) in NAMES {
        let zero = |metric| Check::metric(name, metric, Relation::Exactly(0.0)).always();
        checks.extend([
            Check::metric(name, "priority_p99_ms", Relation::AtMost(10.0)),
            Check::metric(name, "started", Relation::Exactly(wanted as f64)).always(),
            Check::metric(name, "matched", Relation::Exactly(matched as f64)).always(),
            // What cannot keep its pace did not show it.
            Check::metric(name, "starts_per_s", Relation::AtLeast(0.98 * per_s as f64)),
            zero("missed"),
            zero("miscounted"),
            zero("raised_wrongly"),
            Check::metric(name, "cpu_percent", Relation::AtMost(CPU_PERCENT)).goal(),
        ]);
    }
    Ok(Plan {
        variants: NAMES.into_iter().map(variant).collect(),
        checks,
        plots: vec![Plot::Distribution {
            file: "priority".into(),
            title: "From exec to priority".into(),
            axes: ("time, ms", "processes that have it, %"),
            points: NAMES.iter().map(|(name, _)| (*name).into()).collect(),
        }],
        columns: &[
            "starts_per_s",
            "priority_p50_ms",
            "priority_p99_ms",
            "priority_max_ms",
            "missed",
            "cpu_percent",
        ],
    })
}
