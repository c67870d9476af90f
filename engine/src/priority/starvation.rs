// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The response to starvation: the starvation detector, an ordinary thread on each CPU that should run regularly, has
//! to wait.
//!
//! NAPI threads and chains are lowered first, at half of its patience, if they have used any of that time; then the
//! detector has the other half to run. If it does not, everything is revoked. So the bound for a spinning process of a
//! rule is the same as without them: the patience (but no less than [`SOONEST`] + one poll) and one poll, 500 ms by
//! default. If others ran with inherited priority, its donors are demoted first, and the detector has one poll more. If
//! users ran within their grants, they are demoted before root's rules, and the detector has at most two polls more.

use std::collections::BTreeMap;
use std::time::Duration;

use super::budget::USAGE_EVERY;
use super::{HOLD, Priority};
use crate::model::ProcessId;

/// A detector thread moves each 100 ms and is polled as often: one that has not moved for two polls waits.
const SOONEST: Duration = Duration::from_millis(200);

impl Priority {
    pub(super) fn watch_starvation(&mut self, now: Duration, cpu: u32, waited: Duration) {
        let patience = self.limits.longest_wait;
        if waited < (patience / 2).max(SOONEST).min(patience) {
            self.lowered_for_starvation = None;
            self.users_paid_for_starvation = false;
            return;
        }
        // If all real-time threads used too little to be the reason, revoking would not help.
        let while_it_waited = waited.min(self.limits.window);
        if self.used_by_all(now, while_it_waited) * 2 < while_it_waited {
            self.counters.starved_by_others += u64::from(waited >= patience);
            return;
        }
        if self.lower_parts(now, while_it_waited) {
            self.lowered_for_starvation = Some(now);
            return;
        }
        let has_had_its_look = self.lowered_for_starvation.is_none_or(|at| now >= at + USAGE_EVERY);
        if waited < patience || !has_had_its_look {
            return;
        }
        if self.demote_donors(now, cpu, waited) || self.demote_users(now, cpu, waited) {
            self.counters.starved += 1;
            self.lowered_for_starvation = Some(now);
        } else {
            self.take_everything_back(now, cpu, waited);
        }
    }

    /// Lowers the NAPI threads and chains that used a tenth of that time or more.
    fn lower_parts(&mut self, now: Duration, waited: Duration) -> bool {
        let (least, window) = (waited / 10, waited);
        let reason = "other work could not run for too long";
        let mut lowered = u64::from(self.napi.lower_if_used(now, least, window, reason, &mut self.actions));
        while self.chains.lower_busiest(now, least, window, reason, &mut self.actions) {
            lowered += 1;
        }
        self.counters.parts_lowered += lowered;
        lowered > 0
    }

    /// Processes of users other than root pay before root's: one user's load must not demote everybody. Users lose all
    /// grants, those that used most first, until the rest is not the reason; and if that does not help, all of them.
    /// False if none used a tenth of that time.
    fn demote_users(&mut self, now: Duration, cpu: u32, waited: Duration) -> bool {
        let time = waited.min(self.limits.window);
        let is_again = self.users_paid_for_starvation;
        let mut users: BTreeMap<String, Vec<ProcessId>> = BTreeMap::new();
        for (id, held) in self.granted_of(None).filter(|(_, held)| held.user.is_some()) {
            users.entry(held.account.clone()).or_default().push(id);
        }
        let used_by = |user: &String| self.accounts.get(user).map(|account| account.spent.within(now, time));
        let by_use = users
            .into_iter()
            .map(|(user, ids)| (used_by(&user).unwrap_or_default(), user, ids));
        let mut by_use: Vec<_> = by_use.filter(|(used, ..)| is_again || *used * 10 >= time).collect();
        by_use.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = self.used_by_all(now, time);
        for (used, user, ids) in &by_use {
            if !is_again && left * 2 < time {
                break;
            }
            left = left.saturating_sub(*used);
            let reason = format!(
                "starvation on CPU {cpu}: an ordinary thread could not run for {} ms, and {user} used {} ms of that; no real-time priority \
                 until it is restarted",
                waited.as_millis(),
                used.as_millis(),
            );
            ids.iter().for_each(|id| self.demote(now, *id, &reason));
        }
        self.users_paid_for_starvation |= !by_use.is_empty();
        !by_use.is_empty()
    }

    /// The process that used most is named, but not waited for.
    fn take_everything_back(&mut self, now: Duration, cpu: u32, waited: Duration) {
        let window = self.limits.window;
        let having = self.having.iter().filter_map(|id| Some((self.held.get(id)?, *id)));
        let mut by_use: Vec<(Duration, ProcessId)> =
            having.map(|(held, id)| (held.spent.within(now, window), id)).collect();
        by_use.sort_unstable_by(|a, b| b.cmp(a));
        let blamed = by_use.first().and_then(|(used, id)| {
            let held = self.held.get(id)?;
            let (exe, rule, used_ms) = (&held.process.exe, &held.rule, used.as_millis());
            Some(format!("{exe} (pid {}, rule `{rule}`) used {used_ms} ms", id.pid))
        });
        let Some(blamed) = blamed else { return };
        self.held_off_until = Some(now + HOLD);
        self.counters.starved += 1;
        let reason = format!(
            "starvation on CPU {cpu}: an ordinary thread could not run for {} ms; most of the last {} ms of real time: {blamed}",
            waited.as_millis(),
            window.as_millis(),
        );
        for (_, id) in by_use {
            self.demote(now, id, &reason);
        }
        let reason = "other work could not run for too long; nothing is raised for 10 s";
        self.napi.lower(now, HOLD, reason, &mut self.actions);
        self.chains.bar_all(now, HOLD, reason, &mut self.actions);
    }
}
