// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of real time is in force and why, at one moment.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Policy, Realtime, Schedule, Standing};

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct RealtimeView {
    pub rules: Vec<RuleView>,
    pub held: Vec<HeldView>,
    pub counters: Counters,
    /// The latest changes and refusals, oldest first.
    pub changes: Vec<Change>,
    /// Why nothing can be granted here, or what is lost; filled in by the daemon.
    #[serde(default)]
    pub degraded: Vec<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RuleView {
    pub name: String,
    pub matches: String,
    pub schedule: String,
    pub budget_percent: u32,
    pub max_tasks: u32,
    /// None for one of the configuration.
    pub added_by: Option<u32>,
}

/// A process that a rule means.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct HeldView {
    pub pid: u32,
    pub exe: String,
    pub rule: String,
    pub schedule: String,
    /// False where it is ordinary all the same; `changes` says why.
    pub granted: bool,
    pub tasks: u32,
    /// Of one CPU, lately.
    pub cpu_percent: f64,
}

/// Since the start.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Counters {
    pub granted: u64,
    pub revoked: u64,
    /// By a budget or a canary.
    pub demoted: u64,
    /// By a limit, before anything was given.
    pub refused: u64,
    /// By the kernel.
    pub failed: u64,
    pub stepped_back: u64,
    /// How often a canary starved, by what was given here ...
    pub starved: u64,
    /// ... and by something else: what was given had used too little, and stayed.
    #[serde(default)]
    pub starved_by_others: u64,
}

/// A change of a process's scheduling, or one that was not made, with its reason.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Change {
    /// CLOCK_MONOTONIC.
    pub t_ns: u64,
    pub pid: u32,
    pub exe: String,
    pub rule: String,
    pub old: String,
    pub new: String,
    pub why: String,
    /// False where only `--dry-run` would have made it.
    pub made: bool,
}

impl Realtime {
    pub fn view(&self, now: Duration) -> RealtimeView {
        let rules = self.rules.iter().map(|rule| RuleView {
            name: rule.name.clone(),
            matches: rule.matcher.shown(),
            schedule: rule.schedule.shown(),
            budget_percent: rule.budget_percent,
            max_tasks: rule.max_tasks,
            added_by: rule.added_by,
        });
        let window = self.limits.window;
        let held = self.held.iter().map(|(id, held)| HeldView {
            pid: id.pid,
            exe: held.process.exe.clone(),
            rule: held.rule.clone(),
            schedule: held.schedule.shown(),
            granted: held.standing == Standing::Granted,
            tasks: held.tasks,
            cpu_percent: 100.0 * held.spent.within(now, window).as_secs_f64() / window.as_secs_f64(),
        });
        let mut changes: Vec<Change> = self.changes.iter().chain(&self.refusals).cloned().collect();
        changes.sort_by_key(|change| change.t_ns);
        RealtimeView {
            rules: rules.collect(),
            held: held.collect(),
            counters: self.counters,
            changes,
            degraded: Vec::new(),
        }
    }
}

impl Schedule {
    /// In a few words.
    pub fn shown(&self) -> String {
        let policy = match self.policy {
            Policy::Fifo { priority } => format!("FIFO {priority}"),
            Policy::RoundRobin { priority } => format!("RR {priority}"),
            Policy::Deadline {
                runtime,
                deadline,
                period,
            } => format!(
                "DEADLINE {}/{}/{} us",
                runtime.as_micros(),
                deadline.as_micros(),
                period.as_micros()
            ),
        };
        if self.cpus.is_empty() {
            return policy;
        }
        let cpus: Vec<String> = self.cpus.iter().map(u32::to_string).collect();
        format!("{policy} on CPU {}", cpus.join(","))
    }
}
