// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process that a rule matches, and its grant.

use std::time::Duration;

use super::donation::DonatedSpan;
use super::spent::Spent;
use super::{Action, PriorityRule, Schedule};
use crate::change::{Change, Setting, Subject, Value};
use crate::matcher::Matcher;
use crate::model::{Process, ProcessId};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Standing {
    /// Requested, not yet answered.
    Asked,
    Granted,
    /// A rule matches, but it overran, was refused, or another tool has changed it.
    Without,
}

#[derive(Debug)]
pub(super) struct MatchedProcess {
    pub process: Process,
    pub rule: String,
    /// The account of its CPU time and tasks.
    pub account: String,
    pub schedule: Schedule,
    pub standing: Standing,
    pub tasks: u32,
    pub cpu: Duration,
    /// Inherited priority included.
    pub spent: Spent,
    pub donation: DonatedSpan,
    pub since: Duration,
    /// When its CPU time was last polled, and the share of one CPU since the poll before.
    pub looked: Duration,
    pub rate: f64,
    pub budget_percent: u32,
    pub max_tasks: u32,
    /// The user whose grant bounds it; None for root's.
    pub user: Option<u32>,
    /// Before the grant.
    pub old: Value,
    /// Already recorded: its new threads get no real-time priority.
    pub is_full: bool,
}

impl MatchedProcess {
    /// The rule by which it is known, without its conditions.
    pub(super) fn as_rule(&self) -> PriorityRule {
        PriorityRule {
            name: self.rule.clone(),
            matcher: Matcher::default(),
            schedule: self.schedule.clone(),
            budget_percent: self.budget_percent,
            max_tasks: self.max_tasks,
            added_by: self.user,
        }
    }

    pub(super) fn change(&self, id: ProcessId, old: Value, new: Value, reason: String, made: bool) -> Action {
        Action::Record(Box::new(Change {
            subject: Subject::Process { id },
            name: self.process.exe.clone(),
            setting: Setting::Scheduling,
            old,
            new,
            rule: self.rule.clone(),
            reason,
            made,
        }))
    }
}
