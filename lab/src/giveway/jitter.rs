// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway jitter` and its loads. Input: the timers' period. Output: the parts of its answer that the lab uses; loads
//! that end when they are dropped.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::binary;
use crate::histogram::Histogram;
use crate::namespace::Namespace;
use crate::process::{Process, run};

/// The beginning of `jitter`'s command line, which `jitter-load`'s does not share.
pub const COMMAND_LINE: &str = "*jitter --period *";
/// Ends a load that nobody ended.
const LOAD_LIMIT_S: u32 = 600;

pub struct Timers {
    pub period_us: u64,
    /// Evenly spread over the period.
    pub threads: u64,
    /// Of all threads together.
    pub wakeups: u64,
    pub loads: &'static [&'static str],
    /// Find the causes of the latest wake-ups; that costs a little itself.
    pub causes: bool,
    /// The measuring threads take this priority themselves.
    pub fifo: Option<u64>,
}

/// The fields of `giveway jitter --json` that the lab uses.
#[derive(Deserialize)]
pub struct JitterReport {
    pub policy_at_end: Vec<String>,
    pub missed: u64,
    wakeup_max_us: f64,
    histogram: Vec<(f64, u64)>,
}

impl JitterReport {
    /// How many threads had real-time priority in the end.
    pub fn with_priority(&self) -> usize {
        let has = |policy: &&String| ["fifo", "rr", "deadline"].contains(&policy.as_str());
        self.policy_at_end.iter().filter(has).count()
    }

    pub fn histogram(&self) -> Histogram {
        Histogram::new(self.histogram.iter().copied(), self.wakeup_max_us)
    }
}

/// Measures with the loads beside it, and keeps the whole answer in `kept`.
pub fn measure(place: &Namespace, timers: &Timers, kept: &Path) -> Result<JitterReport> {
    let mut command = place.command(binary()?)?;
    let number = |name: &str, value: u64| [name.to_owned(), value.to_string()];
    command
        .arg("jitter")
        .args(["--period".to_owned(), format!("{}us", timers.period_us)])
        .args(number("--threads", timers.threads))
        .args(number("--wakeups", timers.wakeups))
        .arg("--json");
    match timers.fifo {
        Some(priority) => command.args(["--policy", "fifo"]).args(number("--priority", priority)),
        None => command.args(["--policy", "other"]),
    };
    if !timers.loads.is_empty() {
        command.args(["--load", &timers.loads.join(",")]);
    }
    if !timers.causes {
        command.arg("--no-causes");
    }
    let said = run(command)?.stdout;
    std::fs::write(kept, &said).with_context(|| format!("cannot write {}", kept.display()))?;
    serde_json::from_slice(&said).context("the answer of `giveway jitter --json` is not readable")
}

/// A load for another measurement.
pub fn start_load(place: &Namespace, kind: &str) -> Result<Process> {
    let mut command: Command = place.command(binary()?)?;
    command.args(["jitter-load", kind, "--seconds", &LOAD_LIMIT_S.to_string()]);
    // It ends with its input.
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    Process::spawn(command)
}
