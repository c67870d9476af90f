// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs with real-time priority that would freeze the machine, each bounded by itself: whether they lose it in
//! time, whether a shell answers meanwhile, and whether `why` says who was to blame.

mod experiment;
pub mod received;
mod shell;

use anyhow::Result;

use crate::experiment::Run;
use crate::outcome::{Metrics, Outcome};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use experiment::RunawayKind;
use received::ReceivePath;

pub const SCENARIO: Scenario = Scenario {
    name: "runaway",
    about: "Programs with real-time priority that never stop: how soon they lose it, and how long a shell waits meanwhile (P4)",
    seconds: 5,
    warmup_s: 0,
    parameters: &[
        Parameter::range("seconds", 5, 1, 6, "that they live, unless the kernel ends them before"),
        Parameter::range("processes", 500, 2, 500, "of the fork bomb"),
        Parameter::range(
            "times",
            5,
            1,
            100,
            "that each is tried, with a daemon of its own; a metric is the worst of them",
        ),
    ],
    plan: &plan,
};

/// From the first moment of priority.
const DEMOTED_MS: f64 = 1_000.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let [processes, seconds, times] = ["processes", "seconds", "times"].map(|name| parameters.count(name));
    let variant = |name: &str, kind, has_rule| {
        let one_time = move |run: &Run, label: &str| experiment::one_time(kind, seconds, has_rule, run.raw, label);
        worst_of(name, times, seconds + 2, one_time)
    };
    let bomb = RunawayKind::ForkBomb { processes };
    let received = |name: &str, part| {
        let one_time = move |run: &Run, label: &str| received::one_time(part, seconds, run.raw, label);
        worst_of(name, times, seconds + 3, one_time)
    };
    Ok(Plan {
        variants: vec![
            variant("spinner/one", RunawayKind::SpinnerOne, true),
            variant("spinner/all", RunawayKind::SpinnerAll, true),
            variant("fork-bomb/plain", bomb, false),
            variant("fork-bomb/rule", bomb, true),
            variant("together", RunawayKind::Together { programs: 3 }, true),
            received("chain", ReceivePath::Chain),
            received("napi", ReceivePath::Napi),
        ],
        checks: checks(processes),
        plots: vec![],
        columns: "demoted_ms shell_p50_ms shell_max_ms priority_tasks_max priority_cpu_percent parts_lowered",
    })
}

fn checks(processes: u64) -> Vec<Check> {
    let zero = |name: &str, metric| Check::metric(name, metric, Relation::Exactly(0.0)).always();
    let at_most = |name: &str, metric, most| Check::metric(name, metric, Relation::AtMost(most)).always();
    let mut checks = Vec::new();
    // A stranger's packets must not demote an innocent rule.
    for name in ["chain", "napi"] {
        checks.extend([
            zero(name, "innocent_demoted"),
            zero(name, "demoted"),
            at_most(name, "shell_max_ms", DEMOTED_MS),
        ]);
    }
    checks.extend([
        zero("chain", "never_raised"),
        at_most("chain", "demoted_ms", DEMOTED_MS),
    ]);
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
    // So many processes keep a shell waiting by themselves.
    let (name, metric) = ("fork-bomb/rule less plain, shell_max_ms", "shell_max_ms");
    let at_most_longer = Relation::AtMost(DEMOTED_MS);
    let beside_plain =
        Check::difference(name.into(), "fork-bomb/rule", "fork-bomb/plain", metric, at_most_longer).always();
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
    checks
}

/// Tried so often, so many seconds each; of each metric the worst.
fn worst_of(
    name: &str,
    times: u64,
    seconds: u64,
    one_time: impl Fn(&Run, &str) -> Result<Metrics> + 'static,
) -> Variant {
    Variant::new(name, None, (times * seconds) as f64, move |run| {
        let mut worst = Metrics::new();
        for time in 1..=times {
            run.progress.tick(&format!("{time} of {times} times"));
            for (metric, value) in one_time(run, &format!("{}-{time}", run.label()))? {
                let known = worst.entry(metric).or_insert(value);
                *known = known.max(value);
            }
        }
        let mut outcome = Outcome::default();
        outcome.points.insert(run.name.into(), worst);
        Ok(outcome)
    })
}
