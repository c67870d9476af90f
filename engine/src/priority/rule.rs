// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A rule: its processes, its schedule, its budget. Decides nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::matcher::Matcher;
use crate::model::Process;

/// A scheduling policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Policy {
    Fifo {
        priority: u32,
    },
    RoundRobin {
        priority: u32,
    },
    /// This much CPU time within `deadline` of each start of a `period` (sched(7)).
    Deadline {
        runtime: Duration,
        deadline: Duration,
        period: Duration,
    },
}

/// A policy and the allowed CPUs; empty: all.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Schedule {
    pub policy: Policy,
    pub cpus: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PriorityRule {
    pub name: String,
    pub matcher: Matcher,
    pub schedule: Schedule,
    /// Of one CPU, over all processes of this rule.
    pub budget_percent: u32,
    pub max_tasks: u32,
    /// The user who added it at run time; None: from the configuration.
    pub added_by: Option<u32>,
}

/// All rules, in order; shared, so that matching needs no lock.
pub type PriorityRules = Arc<Vec<Arc<PriorityRule>>>;

/// The first rule that matches a process and may be trusted with it.
pub fn first_match(rules: &PriorityRules, process: &Process) -> Option<Arc<PriorityRule>> {
    let matches = |rule: &&Arc<PriorityRule>| rule.matcher.matches(process) && rule.matcher.is_trusted(process);
    rules.iter().find(matches).cloned()
}

/// The executables whose starts have to be reported, with the user who asks for it (root for those of the
/// configuration), and the users all of whose starts have to be.
pub fn watched(rules: &PriorityRules) -> (BTreeSet<(u32, String)>, BTreeSet<u32>) {
    let executables = rules
        .iter()
        .filter_map(|rule| Some((rule.added_by.unwrap_or(0), rule.matcher.exe.clone()?)));
    let by_user = rules.iter().filter(|rule| rule.matcher.exe.is_none());
    (
        executables.collect(),
        by_user.filter_map(|rule| rule.matcher.uid).collect(),
    )
}

impl PriorityRule {
    /// The account of its processes' CPU time and tasks: one for each rule of root's, one for all rules of a user.
    pub(super) fn account(&self) -> String {
        self.user()
            .map_or_else(|| self.name.clone(), |uid| format!("uid {uid}"))
    }

    /// The user whose grant bounds it; None for root.
    pub(super) fn user(&self) -> Option<u32> {
        self.added_by.filter(|uid| *uid != 0)
    }
}

impl Schedule {
    /// Short form.
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
