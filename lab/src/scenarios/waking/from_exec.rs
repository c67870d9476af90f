// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that start all the time, of which some match a rule: how long each of those waits for what the rule gives, and what
//! that costs the daemon.

use anyhow::Result;

use crate::applicant::{self, Applicant, StarterReport, Starts};
use crate::experiment::Run;
use crate::giveway::Daemon;
use crate::meter::Meter;
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::scenario::{Check, Relation};

/// For all the time that is measured.
pub fn starts(parameters: &Parameters, per_s: u64, limit_ms: u64) -> Starts {
    Starts {
        per_s,
        count: per_s * parameters.count("seconds"),
        one_in: 10,
        limit_ms,
    }
}

/// What cannot keep its pace did not show it.
pub fn keeps_pace(name: &str, starts: Starts) -> Check {
    Check::metric(name, "starts_per_s", Relation::AtLeast(0.98 * starts.per_s as f64))
}

/// Those that a rule means, and the others.
pub struct StartedPrograms {
    pub matched: Applicant,
    other: Applicant,
}

impl StartedPrograms {
    pub fn install(run: &Run) -> Result<Self> {
        let install = |which| applicant::install(run.raw, &format!("{}-{which}", run.label()));
        Ok(Self {
            matched: install("matched")?,
            other: install("other")?,
        })
    }

    /// `task`: what those that a rule means do. `waits`: what the metrics of their times are called.
    pub fn start(
        &self,
        starts: Starts,
        task: &[&str],
        (at, daemon): (&Namespace, &Daemon),
        waits: &str,
        run: &Run,
    ) -> Result<(StarterReport, Outcome)> {
        let meter = Meter::of(daemon)?;
        run.progress.tick("starting processes");
        let before = meter.read()?;
        let said = starts.run(at, &self.matched, task, &self.other)?;
        let spent = meter.read()? - before;
        let (name, mut outcome) = (run.name, Outcome::default());
        outcome.set(name, "matched", (said.waited_ms.len() as u64 + said.missed) as f64);
        outcome.set(name, "starts_per_s", starts.count as f64 / said.elapsed_s);
        outcome.percentiles(name, waits, &said.waited_ms, &[50, 99, 100]);
        let percent = |ns: f64| 100.0 * ns / spent.elapsed_ns;
        outcome.set(name, "cpu_percent", percent(spent.daemon_ns + spent.programs_ns));
        outcome.set(name, "cpu_percent_bpf", percent(spent.programs_ns));
        outcome.samples.insert(name.into(), said.waited_ms.clone());
        Ok((said, outcome))
    }
}
