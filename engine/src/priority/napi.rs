// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's receive threads (NAPI). A flood keeps them busy without end, and would so stop the machine: when they
//! have used more than their share of a CPU, they are lowered for a second. A thread that cannot be raised does not
//! affect the others.

use std::time::Duration;

use super::share::Share;
use super::spent::Spent;
use super::{Action, WINDOW};
use crate::change::{Change, Setting, Subject};
use crate::model::ProcessId;

/// Of one CPU, over all threads.
pub(super) const SHARE_PERCENT: u32 = 80;
/// The scheduling policy that the kernel starts these threads with.
const NOT_RAISED: &str = "OTHER";

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) enum NapiState {
    /// There are none, or they are not to be raised.
    #[default]
    NotWanted,
    Asked,
    Raised,
    Lowered {
        until: Duration,
    },
    /// All of them.
    Refused,
}

/// A thread that could not be raised.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RefusedThread {
    pub tid: u32,
    pub reason: String,
}

#[derive(Debug, Default)]
pub(super) struct Napi {
    pub threads: Vec<ProcessId>,
    pub priority: u32,
    pub state: NapiState,
    /// Those of them that could not be raised.
    pub refused: Vec<RefusedThread>,
    share: Option<Share>,
    spent: Spent,
    /// Their CPU time at the latest poll.
    counted: Duration,
}

impl Napi {
    /// The present threads. If they are the same nothing changes, except that they are retried if all were refused.
    /// Their share continues.
    pub fn found(&mut self, now: Duration, threads: Vec<ProcessId>, priority: u32, actions: &mut Vec<Action>) {
        let is_same = (&self.threads, self.priority) == (&threads, priority);
        if is_same && self.state != NapiState::Refused {
            return;
        }
        self.refused.clear();
        if !is_same && self.has_raised() {
            actions.push(Action::LowerNapi);
        }
        (self.threads, self.priority) = (threads, priority);
        if self.priority == 0 || self.threads.is_empty() {
            *self = Self {
                threads: std::mem::take(&mut self.threads),
                priority,
                ..Self::default()
            };
        } else if !matches!(self.state, NapiState::Lowered { .. }) {
            self.raise(now, actions);
        }
    }

    /// Whether any of them has real-time priority, or will when the last request is carried out.
    fn has_raised(&self) -> bool {
        matches!(self.state, NapiState::Asked | NapiState::Raised)
    }

    fn raise(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.share.get_or_insert_with(|| Share::new(now, SHARE_PERCENT));
        self.state = NapiState::Asked;
        actions.push(Action::RaiseNapi {
            threads: self.threads.clone(),
            priority: self.priority,
        });
    }

    pub fn conclude(&mut self, cpu: Duration, refused: Vec<RefusedThread>, actions: &mut Vec<Action>) {
        if self.state != NapiState::Asked {
            return;
        }
        (self.counted, self.refused) = (cpu, refused);
        self.state = match self.tasks() {
            0 => NapiState::Refused,
            _ => NapiState::Raised,
        };
        self.record((NOT_RAISED, &self.shown()), "napi_priority", actions);
        for RefusedThread { tid, reason } in &self.refused {
            let change = self.change(*tid, (NOT_RAISED, &self.shown()), reason, false);
            actions.push(Action::Record(Box::new(change)));
        }
    }

    pub fn is_wanted(&self) -> bool {
        matches!(
            self.state,
            NapiState::Asked | NapiState::Raised | NapiState::Lowered { .. }
        )
    }

    /// The raised ones.
    pub fn tasks(&self) -> u32 {
        if self.has_raised() {
            self.raised().count() as u32
        } else {
            0
        }
    }

    fn raised(&self) -> impl Iterator<Item = u32> {
        let tids = self.threads.iter().map(|thread| thread.pid);
        tids.filter(|tid| self.refused.iter().all(|refused| refused.tid != *tid))
    }

    pub fn used(&self, now: Duration, window: Duration) -> Duration {
        self.spent.within(now, window)
    }

    /// `cpu`: of all of them, so far. True if they are lowered for it.
    pub fn account(
        &mut self,
        now: Duration,
        cpu: Duration,
        window: Duration,
        is_held_off: bool,
        actions: &mut Vec<Action>,
    ) -> bool {
        match self.state {
            NapiState::Raised => {
                let used = cpu.saturating_sub(self.counted);
                self.counted = cpu;
                self.spent.add(now, used, window);
                let is_over = self.share.as_mut().is_some_and(|share| !share.spend(now, used));
                if is_over {
                    self.lower(now, WINDOW, "NAPI threads have used 80% of a CPU", actions);
                }
                is_over
            }
            NapiState::Lowered { until } if now >= until && !is_held_off => {
                self.raise(now, actions);
                false
            }
            _ => false,
        }
    }

    /// Lowers them if they used this much in the window. Their use is paid with that.
    pub fn lower_if_used(
        &mut self,
        now: Duration,
        least: Duration,
        window: Duration,
        reason: &str,
        actions: &mut Vec<Action>,
    ) -> bool {
        let has_used = self.spent.within(now, window) >= least;
        if has_used {
            self.lower(now, WINDOW, reason, actions);
        }
        has_used
    }

    pub fn lower(&mut self, now: Duration, time: Duration, reason: &str, actions: &mut Vec<Action>) {
        self.spent.clear();
        // A pending raise is carried out before this.
        if self.has_raised() {
            actions.push(Action::LowerNapi);
            self.record((&self.shown(), NOT_RAISED), reason, actions);
        }
        if self.is_wanted() {
            self.state = NapiState::Lowered { until: now + time };
        }
    }

    /// The reason for lowering them is over: the next poll raises them.
    pub fn end_wait(&mut self, now: Duration) {
        if let NapiState::Lowered { until } = &mut self.state {
            *until = now;
        }
    }

    fn shown(&self) -> String {
        format!("FIFO {}", self.priority)
    }

    fn record(&self, values: (&str, &str), reason: &str, actions: &mut Vec<Action>) {
        let changes = self.raised().map(|tid| self.change(tid, values, reason, true));
        actions.extend(changes.map(|change| Action::Record(Box::new(change))));
    }

    fn change(&self, tid: u32, (old, new): (&str, &str), reason: &str, made: bool) -> Change {
        Change {
            subject: Subject::Thread { tid },
            name: "NAPI".to_owned(),
            setting: Setting::Scheduling,
            old: old.into(),
            new: new.into(),
            rule: "[receive]".to_owned(),
            reason: reason.to_owned(),
            made,
        }
    }
}
