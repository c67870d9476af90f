// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long until the processes that match a rule have their priority, whether one is missed, and what that costs.

use anyhow::Result;

use super::from_exec::{StartedPrograms, keeps_pace, starts};
use crate::applicant::Starts;
use crate::experiment::Run;
use crate::giveway::answers;
use crate::giveway::jitter::start_load;
use crate::giveway::realtime::{rule, start_daemon};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::scenario::{Check, Relation, Variant};

/// What each is allowed, of one processor, in all its threads and BPF programs.
const CPU_PERCENT: f64 = 3.0;
const PER_S: u64 = 500;
const LIMIT_MS: u64 = 50;
const NAMES: [(&str, bool); 2] = [("idle", false), ("busy", true)];

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let starts = starts(parameters, PER_S, LIMIT_MS);
    let variant = |(name, is_busy): (&str, bool)| {
        let exactly = |metric, value: u64| Check::metric(name, metric, Relation::Exactly(value as f64)).always();
        let estimated_s = parameters.seconds("seconds") + 1.0;
        Variant::new(name, None, estimated_s, move |run| observe(starts, is_busy, run)).expect([
            Check::metric(name, "priority_p99_ms", Relation::AtMost(10.0)),
            exactly("started", starts.count),
            exactly("matched", starts.matching()),
            keeps_pace(name, starts),
            exactly("missed", 0),
            exactly("miscounted", 0),
            exactly("raised_wrongly", 0),
            Check::metric(name, "cpu_percent", Relation::AtMost(CPU_PERCENT)).goal(),
        ])
    };
    Ok(NAMES.map(variant).into())
}

/// How long each that matches waited for its priority, how many never had it, by their own word and by the daemon's count,
/// and what the daemon spent. `is_busy`: processes without priority compute meanwhile, one for each CPU.
fn observe(starts: Starts, is_busy: bool, run: &Run) -> Result<Outcome> {
    let name = run.name;
    let place = Namespace::create("starts")?;
    let programs = StartedPrograms::install(run)?;
    let mut daemon = start_daemon(&place, &[rule(&programs.matched.exe)], run.raw, &run.label())?;
    let load = is_busy.then(|| start_load(&place, "cpu")).transpose()?;
    let (said, mut outcome) = programs.start(starts, &["await"], (&place, &daemon), "priority_*_ms", run)?;
    drop(load);

    let counters = answers::realtime(&place)?.counters;
    outcome.set(name, "started", said.ended_well as f64);
    outcome.set(name, "missed", said.missed as f64);
    outcome.set(name, "raised_wrongly", said.raised_wrongly as f64);
    outcome.set(name, "granted", counters.granted as f64);
    // Who ends when it sees that it has it may end before the daemon has looked whether it was the right one.
    outcome.set(name, "ended_before", counters.ended_before as f64);
    let counted = counters.granted + counters.ended_before;
    outcome.set(name, "miscounted", counted.abs_diff(starts.matching()) as f64);
    daemon.stop()?;
    Ok(outcome)
}
