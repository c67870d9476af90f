// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P4 watches for chosen applications to start: here so many start at once that nothing could poll for them. How long
//! until those that match a rule have their priority, whether one is missed, and what that costs.

use anyhow::Result;

use crate::applicant::{self, Starts};
use crate::experiment::Run;
use crate::giveway::answers;
use crate::giveway::jitter::start_load;
use crate::giveway::realtime::{rule, start_daemon};
use crate::meter::Meter;
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Variant};

pub const SCENARIO: Scenario = Scenario {
    name: "starts",
    about: "from exec to priority, while many short-lived processes start",
    stations: None,
    seconds: 48,
    warmup_s: 0,
    parameters: &[
        Parameter::range("per_s", 500, 1, 5_000, "processes that start each second"),
        Parameter::range("one_in", 10, 1, 1_000, "of so many is one that a rule means"),
        Parameter::range("limit_ms", 50, 5, 1_000, "after which such a one has lived long enough"),
    ],
    plan: &plan,
};

/// What each is allowed, of one processor, in all its threads and BPF programs.
const CPU_PERCENT: f64 = 3.0;
const NAMES: [(&str, bool); 2] = [("idle", false), ("busy", true)];

fn plan(parameters: &Parameters) -> Result<Plan> {
    let per_s = parameters.count("per_s");
    let wanted = per_s * parameters.count("seconds");
    let matched = wanted.div_ceil(parameters.count("one_in"));
    let variant = |(name, is_busy): (&str, bool)| {
        let starts = Starts {
            per_s,
            count: wanted,
            one_in: parameters.count("one_in"),
            limit_ms: parameters.count("limit_ms"),
        };
        let estimated_s = wanted as f64 / per_s as f64 + 1.0;
        Variant::new(name, None, estimated_s, move |run| observe(starts, is_busy, run))
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
        plots: vec![Plot::distribution(
            "priority",
            "From exec to priority",
            ("time, ms", "processes that have it, %"),
            NAMES.map(|(name, _)| name),
        )],
        columns: "starts_per_s priority_p50_ms priority_p99_ms priority_max_ms missed cpu_percent",
    })
}

/// How long each that matches waited for its priority, how many never had it, by their own word and by the daemon's count,
/// and what the daemon spent. `is_busy`: processes without priority compute meanwhile, one for each CPU.
fn observe(starts: Starts, is_busy: bool, run: &Run) -> Result<Outcome> {
    let (name, raw, label) = (run.name, run.raw, run.label());
    let place = Namespace::create("starts")?;
    let matched = applicant::install(raw, &format!("{label}-matched"))?;
    let other = applicant::install(raw, &format!("{label}-other"))?;
    let mut daemon = start_daemon(&place, &[rule(&matched.exe)], raw, &label)?;
    let load = is_busy.then(|| start_load(&place, "cpu")).transpose()?;
    let meter = Meter::of(&daemon)?;
    run.progress.tick("starting processes");
    let before = meter.read()?;
    let said = starts.run(&place, &matched, &["await"], &other)?;
    let spent = meter.read()? - before;
    drop(load);

    let counters = answers::realtime(&place)?.counters;
    let mut outcome = Outcome::default();
    outcome.set(name, "started", said.ended_well as f64);
    outcome.set(name, "matched", (said.waited_ms.len() as u64 + said.missed) as f64);
    outcome.set(name, "starts_per_s", starts.count as f64 / said.elapsed_s);
    outcome.percentiles(name, "priority_*_ms", &said.waited_ms, &[50, 99, 100]);
    outcome.set(name, "missed", said.missed as f64);
    outcome.set(name, "raised_wrongly", said.raised_wrongly as f64);
    outcome.set(name, "granted", counters.granted as f64);
    // Who ends when it sees that it has it may end before the daemon has looked whether it was the right one.
    outcome.set(name, "ended_before", counters.ended_before as f64);
    let counted = counters.granted + counters.ended_before;
    outcome.set(name, "miscounted", counted.abs_diff(starts.matching()) as f64);
    let percent = |ns: f64| 100.0 * ns / spent.elapsed_ns;
    outcome.set(name, "cpu_percent", percent(spent.daemon_ns + spent.programs_ns));
    outcome.set(name, "cpu_percent_bpf", percent(spent.programs_ns));
    outcome.samples.insert(name.into(), said.waited_ms);
    daemon.stop()?;
    Ok(outcome)
}
