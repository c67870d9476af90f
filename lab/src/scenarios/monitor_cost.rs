// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What watching costs: many sockets of which few are active, and a daemon that has nothing to do.
//! Not on the air: two namespaces and a wire.

use anyhow::Result;

use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::{Check, Cost, Experiment, Plan, Plot, Relation, Scenario, Variant};

pub const SCENARIO: Scenario = Scenario {
    name: "monitor-cost",
    about: "CPU and memory of the daemon, busy and idle, beside ss",
    stations: None,
    seconds: 60,
    warmup_s: 20,
    parameters: &[
        Parameter {
            name: "sockets",
            kind: Kind::Count {
                default: 10_000,
                least: 10,
                most: 19_000,
            },
            about: "established connections; and a tenth of them",
        },
        Parameter {
            name: "active",
            kind: Kind::Count {
                default: 100,
                least: 1,
                most: 1_000,
            },
            about: "of these, how many send 20 messages a second",
        },
    ],
    plan,
};

/// What a device has that does nothing.
const IDLE_SOCKETS: u64 = 5;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let sockets = parameters.count("sockets");
    let active = parameters.count("active");
    let variant = |name: String, sockets, active: u64, neighbour| Variant {
        name,
        guest: None,
        experiment: Experiment::Cost(Cost {
            sockets,
            active: active.min(sockets),
            neighbour,
            warmup_s: parameters.count("warmup_s") as f64,
            seconds: parameters.count("seconds") as f64,
        }),
    };
    let goal = |variant: &str, metric, holds| Check::metric(variant, metric, holds).goal();
    let open = [sockets, sockets / 10].map(|sockets| (format!("open/{sockets}"), sockets));
    let idle = [("idle/alone", false), ("idle/neighbour", true)];
    let most = open[0].0.clone();
    let mut checks = vec![
        goal(&most, "cpu_percent", Relation::AtMost(1.0)),
        goal(&most, "ss_over_pass", Relation::AtLeast(100.0)),
    ];
    for (name, _) in idle {
        checks.push(goal(name, "cpu_percent", Relation::AtMost(0.3)));
        checks.push(goal(name, "rss_mb", Relation::AtMost(20.0)));
    }
    let busy = open.map(|(name, sockets)| variant(name, sockets, active, false));
    let idle = idle.map(|(name, neighbour)| variant(name.into(), IDLE_SOCKETS, 0, neighbour));
    Ok(Plan {
        variants: busy.into_iter().chain(idle).collect(),
        checks,
        plots: vec![Plot::Distribution {
            file: "cost".into(),
            title: "CPU time of one look at all sockets".into(),
            axes: ("time, s", "events that are over, %"),
            points: ["pass", "ss -tin", "ss -tinp"]
                .map(|what| format!("{most}/{what}"))
                .into(),
        }],
        columns: &[
            "cpu_percent",
            "cpu_percent_bpf",
            "all_per_pass_us",
            "ss_tinp_ms",
            "ss_over_pass",
            "rss_mb",
        ],
    })
}
