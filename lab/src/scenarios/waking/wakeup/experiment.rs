// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How late timers wake up beside loads.
//! Input: the timers, the loads, and what gives priority. Output: a histogram of the wake-ups, which is added up over
//! the rounds, with the time that the machine was not there meanwhile (steal). The whole answer of each round is kept.

use anyhow::Result;

use super::cyclictest;
use crate::experiment::Run;
use crate::giveway::answers;
use crate::giveway::jitter::{self, COMMAND_LINE, Timers};
use crate::giveway::realtime::{rule, start_daemon};
use crate::giveway::{Daemon, binary};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::proc::number;

/// Of the kernel's accounts (USER_HZ).
const TICK_MS: f64 = 10.0;

#[derive(Clone, Copy, PartialEq)]
pub enum Priority {
    /// A program without priority, and no daemon.
    Normal,
    /// The same program, to which a daemon gives priority by a rule.
    Rule,
    /// cyclictest at the highest priority.
    Reference,
}

pub fn run(run: &Run, timers: &Timers, priority: Priority) -> Result<Outcome> {
    let name = run.name;
    let label = format!("{}-{}", run.label(), run.seed);
    let place = Namespace::create("wakeup")?;
    place.ip("link set lo up")?;
    let mut daemon = start_rule(priority, &place, run, &label)?;
    run.progress.tick("waking up");
    let kept = run.raw.join(format!("{label}.json"));
    let stolen_before_ms = stolen_ms()?;
    let mut outcome = Outcome::default();
    let histogram = match priority {
        Priority::Reference => cyclictest::measure(&place, timers, &kept)?,
        Priority::Normal | Priority::Rule => {
            let answer = jitter::measure(&place, timers, &kept)?;
            let (has, all) = (answer.with_priority(), answer.policy_at_end.len());
            outcome.set(name, "priority_at_end_percent", 100.0 * has as f64 / all as f64);
            outcome.set(name, "missed", answer.missed as f64);
            answer.histogram()
        }
    };
    outcome.set(name, "steal_ms", stolen_ms()? - stolen_before_ms);
    outcome.wakeups.insert(name.into(), histogram);
    if let Some(guest) = &run.guest {
        outcome.set(name, "kernel_as_asked", f64::from(u8::from(guest.is_this()?)));
    }
    if let Some(daemon) = &mut daemon {
        for change in answers::scheduling_changes(&place, None)?
            .iter()
            .filter(|change| answers::is_demotion(change))
        {
            eprintln!("{label}: giveway took the priority away: {}", change.reason);
        }
        daemon.stop()?;
    }
    Ok(outcome)
}

/// A daemon that raises the measuring program, and not its loads, which are the same executable.
fn start_rule(priority: Priority, place: &Namespace, run: &Run, label: &str) -> Result<Option<Daemon>> {
    if priority != Priority::Rule {
        return Ok(None);
    }
    let mut rule = rule(&binary()?.canonicalize()?);
    rule["cmdline"] = COMMAND_LINE.into();
    start_daemon(place, &[rule], run.raw, label).map(Some)
}

/// Since the machine's start, of all processors together: what the host of this virtual machine took from it.
fn stolen_ms() -> Result<f64> {
    // user nice system idle iowait irq softirq steal
    Ok(number("/proc/stat", "cpu ", 7)? * TICK_MS)
}
