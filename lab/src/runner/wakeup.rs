// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How late timers wake up beside loads.
//! In: the timers, the loads, and who gives priority. Out: a histogram of the wake-ups, which is added up over the
//! rounds, with the time that the machine was not there meanwhile (steal). The whole answer of each round is kept.

mod cyclictest;

use std::path::Path;

use anyhow::{Context, Result};

use super::Run;
use crate::giveway::jitter::{self, COMMAND_LINE};
use crate::giveway::realtime::{self, Rule, start_daemon};
use crate::giveway::{Daemon, binary};
use crate::namespace::{Namespace, ip};
use crate::outcome::Outcome;
use crate::process;
use crate::scenario::response::{Wakeup, Who};

/// Of the kernel's accounts (USER_HZ).
const TICK_MS: f64 = 10.0;

pub fn run(wakeup: &Wakeup, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let label = format!("{}-{}", name.replace('/', "-"), run.seed);
    let place = Namespace::create("wakeup")?;
    process::run(ip(&["-n", place.name(), "link", "set", "lo", "up"]))?;
    let mut daemon = start_rule(wakeup.who, &place, raw, &label)?;
    run.progress.tick("waking up");
    let kept = raw.join(format!("{label}.json"));
    let stolen_before_ms = stolen_ms()?;
    let mut outcome = Outcome::default();
    let histogram = match wakeup.who {
        Who::Reference => cyclictest::measure(&place, &wakeup.timers, &kept)?,
        Who::Normal | Who::Rule => {
            let answer = jitter::measure(&place, &wakeup.timers, &kept)?;
            let (has, all) = (answer.with_priority(), answer.policy_at_end.len());
            outcome.set(name, "priority_at_end_percent", 100.0 * has as f64 / all as f64);
            outcome.set(name, "missed", answer.missed as f64);
            answer.histogram()
        }
    };
    outcome.set(name, "steal_ms", stolen_ms()? - stolen_before_ms);
    outcome.wakeups.insert(name.clone(), histogram);
    if let Some(guest) = &run.variant.guest {
        outcome.set(name, "kernel_as_asked", f64::from(u8::from(guest.is_this()?)));
    }
    if let Some(daemon) = &mut daemon {
        for change in realtime::why(&place, None)?
            .iter()
            .filter(|change| change.new == "ordinary")
        {
            eprintln!("{label}: giveway made it ordinary: {}", change.why);
        }
        daemon.stop()?;
    }
    Ok(outcome)
}

/// A daemon that raises the measuring program, and not its loads, which are the same executable.
fn start_rule(who: Who, place: &Namespace, raw: &Path, label: &str) -> Result<Option<Daemon>> {
    if who != Who::Rule {
        return Ok(None);
    }
    let rule = Rule {
        exe: binary()?.canonicalize()?,
        cmdline: Some(COMMAND_LINE.into()),
    };
    start_daemon(place, &[rule], raw, label).map(Some)
}

/// Since the machine's start, of all processors together: what whoever runs this virtual machine took from it.
fn stolen_ms() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    // `cpu`, then user nice system idle iowait irq softirq steal.
    let ticks = text.split_whitespace().nth(8).and_then(|word| word.parse::<f64>().ok());
    Ok(ticks.context("/proc/stat has no steal time")? * TICK_MS)
}
