// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nothing is in force for a while, and then everything is again, so that both can be compared. Input: why, and that it is
//! over. Output: the same requests by which a class, a rule or a link that goes takes back what it gave. What is known of
//! flows, links and processes stays, and is brought up to date meanwhile.

use std::time::Duration;

use super::{Network, WAYS};
use crate::change::Value;
use crate::model::Cookie;
use crate::sockets::limits::Wanted;

/// The rule of what a pause takes back.
pub(super) const PAUSE: &str = "pause";

impl Network {
    /// Why nothing is in force for a while.
    pub fn paused(&self) -> Option<&str> {
        self.paused.as_deref()
    }

    pub(super) fn pause(&mut self, now: Duration, why: Option<String>) {
        let was_paused = std::mem::replace(&mut self.paused, why);
        let wanted = self.links.pause(self.paused.as_ref());
        self.ask_queues(now, wanted);
        for way in WAYS {
            let why = self.paused.clone();
            let wanted = self.detour(way).pause(why.as_ref());
            self.ask_detour(way, wanted);
        }
        let reason = self.paused.clone().or(was_paused).unwrap_or_default();
        let (causes, changes) = self.nice.pause(self.paused.is_some(), &reason);
        self.actions.extend(causes);
        changes.into_iter().for_each(|change| self.note(now, change));
        if self.paused.is_some() {
            self.withdraw(now);
            return;
        }
        self.early.judge_again();
        self.judge_processes();
        let due = self.nice.due(now);
        self.ask_nice(now, due);
        let all: Vec<Cookie> = self.flows.iter().map(|tracked| tracked.flow.cookie).collect();
        self.control(now, &all);
    }

    /// Every setting of every socket goes back to what was found there.
    pub(super) fn withdraw(&mut self, now: Duration) {
        let mut wanted: Vec<Wanted> = Vec::new();
        for tracked in self.flows.iter_mut().filter(|tracked| !tracked.held.is_empty()) {
            let in_force = tracked
                .held
                .iter_mut()
                .filter(|(_, held)| held.in_force != Value::default() && held.may_change());
            let back = in_force.map(|(setting, held)| {
                held.asked = Some(Value::default());
                held.wanted = None;
                (setting.clone(), Value::default())
            });
            wanted.push((tracked.flow.cookie, back.collect()));
        }
        self.ask(now, wanted);
    }
}
