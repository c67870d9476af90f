// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs with real-time priority that would freeze the machine, each bounded by itself: whether they lose it in time,
//! whether a shell answers meanwhile, and whether `why` says who was to blame.

use anyhow::Result;

use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::response::{self, Runaway};
use crate::scenario::{Check, Experiment, Plan, Quantity, Relation, Scenario, Variant};

pub const SCENARIO: Scenario = Scenario {
    name: "runaway",
    about: "programs with priority that never stop: are they stopped?",
    stations: None,
    seconds: 5,
    warmup_s: 0,
    parameters: &[
        Parameter {
            name: "seconds",
            kind: Kind::Count {
                default: 5,
                least: 1,
                most: 6,
            },
            about: "that they live, unless the kernel ends them before",
        },
        Parameter {
            name: "processes",
            kind: Kind::Count {
                default: 500,
                least: 2,
                most: 500,
            },
            about: "of the fork bomb",
        },
        Parameter {
            name: "times",
            kind: Kind::Count {
                default: 5,
                least: 1,
                most: 100,
            },
            about: "that each is tried, with a daemon of its own; a metric is the worst of them",
        },
    ],
    plan,
};

/// From the first moment of priority.
const DEMOTED_MS: f64 = 1_000.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let processes = parameters.count("processes");
    let variant = |name: &str, kind, has_rule| Variant {
        name: name.into(),
        guest: None,
        experiment: Experiment::Runaway(Runaway {
            kind,
            seconds: parameters.count("seconds"),
            times: parameters.count("times"),
            has_rule,
        }),
    };
    let bomb = response::Kind::ForkBomb { processes };
    let zero = |name: &str, metric| Check::metric(name, metric, Relation::Exactly(0.0)).always();
    let at_most = |name: &str, metric, most| Check::metric(name, metric, Relation::AtMost(most)).always();
    let mut checks = Vec::new();
    for name in ["spinner/one", "spinner/all", "together"] {
        checks.extend([
            zero(name, "never_raised"),
            at_most(name, "demoted_ms", DEMOTED_MS),
            at_most(name, "shell_max_ms", DEMOTED_MS),
        ]);
    }
    for name in ["spinner/one", "spinner/all", "together", "fork-bomb/rule"] {
        checks.push(zero(name, "not_blamed"));
    }
    // So many ordinary processes keep a shell waiting by themselves.
    let longer = Quantity::Difference {
        variant: "fork-bomb/rule".into(),
        over: "fork-bomb/plain".into(),
        metric: "shell_max_ms",
    };
    let name = "fork-bomb/rule less plain, shell_max_ms";
    let beside_plain = Check::of(name.into(), longer, Relation::AtMost(DEMOTED_MS)).always();
    checks.extend([
        Check::metric("fork-bomb/rule", "priority_tasks_max", Relation::AtLeast(1.0)).always(),
        zero("fork-bomb/rule", "priority_tasks_over"),
        zero("fork-bomb/rule", "priority_cpu_mean_percent_over"),
        // In its busiest half second.
        zero("fork-bomb/rule", "priority_cpu_percent_over").goal(),
        zero("fork-bomb/plain", "priority_tasks_max"),
        beside_plain.goal(),
        Check::metric("fork-bomb/rule", "ended", Relation::Exactly(processes as f64)).always(),
        Check::metric("together", "starved", Relation::AtLeast(1.0)).always(),
    ]);
    Ok(Plan {
        variants: vec![
            variant("spinner/one", response::Kind::SpinnerOne, true),
            variant("spinner/all", response::Kind::SpinnerAll, true),
            variant("fork-bomb/plain", bomb, false),
            variant("fork-bomb/rule", bomb, true),
            variant("together", response::Kind::Together { programs: 3 }, true),
        ],
        checks,
        plots: vec![],
        columns: &[
            "demoted_ms",
            "shell_p50_ms",
            "shell_max_ms",
            "priority_tasks_max",
            "priority_cpu_percent",
        ],
    })
}
