// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The accounts of CPU time, and what follows when one is overdrawn or a canary starves. The formulas are in
//! `docs/realtime.md`.

use std::time::Duration;

use super::budget::{Account, share};
use super::{Action, HOLD, Held, Realtime, Standing, Usage};
use crate::matcher::ProcessId;

/// Looks at CPU times come at least so often while anything is granted ...
const LOOK: Duration = Duration::from_millis(100);
/// ... and no more often than that.
const SOONEST_LOOK: Duration = Duration::from_millis(10);

/// What an account is for, in words.
struct Budget<'a> {
    account: Option<&'a str>,
    percent: u32,
    /// In each window.
    time: Duration,
    of: &'static str,
}

impl Realtime {
    /// When [`Input::Usage`](super::Input::Usage) is next wanted while something is granted: before a budget can be
    /// overrun by more than a little, if all that have real time compute from now on.
    pub fn next_look(&self, now: Duration) -> Duration {
        let until_used_up = |budget: &Budget<'_>, account: &Account| {
            let tasks: u32 = self.granted_of(budget.account).map(|(_, held)| held.tasks).sum();
            let left = budget
                .time
                .saturating_sub(account.spent.within(now, self.limits.window));
            left / tasks.min(self.limits.cpus).max(1) + Duration::from_millis(1)
        };
        let of_all = until_used_up(&self.total_budget(), &self.total);
        let by_rule = self.granted_rules().map(|budget| {
            let none = Account::default();
            let account = budget.account.and_then(|rule| self.accounts.get(rule));
            until_used_up(&budget, account.unwrap_or(&none))
        });
        now + by_rule.chain([of_all]).min().unwrap_or(LOOK).clamp(SOONEST_LOOK, LOOK)
    }

    /// CPU time that was used since the last look counts for the process, for its rule and for all.
    pub(super) fn charge(&mut self, now: Duration, held: &mut Held, cpu: Duration) {
        let used = cpu.saturating_sub(held.cpu);
        let since = now.saturating_sub(held.looked).max(Duration::from_millis(1));
        (held.cpu, held.looked) = (cpu, now);
        held.rate = used.as_secs_f64() / since.as_secs_f64();
        let account = self.accounts.entry(held.account.clone()).or_default();
        for spent in [&mut held.spent, &mut account.spent, &mut self.total.spent] {
            spent.add(now, used, self.limits.window);
        }
    }

    pub(super) fn account(&mut self, now: Duration, usage: Vec<Usage>, actions: &mut Vec<Action>) {
        for sample in usage {
            let Some(mut held) = self.held.remove(&sample.id) else {
                continue;
            };
            if held.standing == Standing::Granted {
                self.charge(now, &mut held, sample.cpu);
                held.tasks = sample.tasks;
            }
            let stepped_back = sample.found.filter(|_| held.standing == Standing::Granted);
            self.held.insert(sample.id, held);
            if let Some(found) = stepped_back {
                self.step_back(now, sample.id, &found, actions);
            }
        }
        let window = self.limits.window;
        self.accounts.retain(|_, account| !account.is_settled(now, window));
        while let Some((id, why)) = self.overrun(now) {
            self.demote(now, id, &why, actions);
        }
    }

    /// The process that used most of a budget that is overrun, and what that budget is.
    fn overrun(&self, now: Duration) -> Option<(ProcessId, String)> {
        let of_all = self.worst(now, &self.total_budget(), &self.total);
        let mut by_rule = self.granted_rules().filter_map(|budget| {
            let account = self.accounts.get(budget.account?)?;
            self.worst(now, &budget, account)
        });
        by_rule.next().or(of_all)
    }

    fn worst(&self, now: Duration, budget: &Budget<'_>, account: &Account) -> Option<(ProcessId, String)> {
        let window = self.limits.window;
        let used = account.spent.within(now, window);
        let has_just_overrun = account.overran_at == Some(now);
        // A crowd of one rule: while the first of them computed, the others could not show yet what they will do.
        let mut new = self
            .granted_of(budget.account)
            .filter(|(_, held)| held.since + window > now);
        if let (true, Some(_), Some((id, _))) = (has_just_overrun, budget.account, new.next()) {
            let why = "another process of its rule overran the budget, and it came less than that time ago, too";
            return Some((
                id,
                format!(
                    "{why} ({} ms). It is ordinary until it is started anew",
                    window.as_millis()
                ),
            ));
        }
        let rate: f64 = self.granted_of(budget.account).map(|(_, held)| held.rate).sum();
        // What the first one used is forgiven. Those that alone would overrun the next window go with it.
        let is_no_better = has_just_overrun && window.mul_f64(rate) > budget.time;
        if used <= budget.time && !is_no_better {
            return None;
        }
        let by_use = |(_, held): &(ProcessId, &Held)| held.spent.within(now, window);
        let (id, held) = self.granted_of(budget.account).max_by_key(by_use)?;
        let own = held.spent.within(now, window);
        // The budget may have been overrun by what has ended: those who use next to nothing do not pay for it.
        if own * 10 < window {
            return None;
        }
        let why = format!(
            "it used {} ms of CPU in the last {} ms, of {} ms that count against the budget of {}% of {}. It is ordinary until it is started anew",
            own.as_millis(),
            window.as_millis(),
            used.as_millis(),
            budget.percent,
            budget.of,
        );
        Some((id, why))
    }

    fn granted_of(&self, account: Option<&str>) -> impl Iterator<Item = (ProcessId, &Held)> {
        let granted = self.held.iter().filter(|(_, held)| held.standing == Standing::Granted);
        granted
            .filter(move |(_, held)| account.is_none_or(|account| held.account == account))
            .map(|(id, held)| (*id, held))
    }

    /// The budget of each rule by which something is granted; once for each process.
    fn granted_rules(&self) -> impl Iterator<Item = Budget<'_>> {
        self.granted_of(None).map(|(_, held)| Budget {
            account: Some(&held.account),
            percent: held.budget_percent,
            time: share(self.limits.window, held.budget_percent),
            of: "one CPU for its rule",
        })
    }

    fn total_budget(&self) -> Budget<'static> {
        Budget {
            account: None,
            percent: self.limits.total_percent,
            time: share(self.limits.window * self.limits.cpus.max(1), self.limits.total_percent),
            of: "all CPUs for all that have real time (total_percent)",
        }
    }

    fn demote(&mut self, now: Duration, id: ProcessId, why: &str, actions: &mut Vec<Action>) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.standing = Standing::Ordinary;
        let old = held.schedule.shown();
        // It has paid: the others are not charged with what it used.
        let of_rule = self.accounts.entry(held.account.clone()).or_default();
        for account in [of_rule, &mut self.total] {
            account.overran_at = Some(now);
            account.spent.take_out(&held.spent);
        }
        self.counters.demoted += 1;
        actions.push(Action::Revoke { id });
        self.note(now, id, &old, "ordinary", why.to_owned());
    }

    /// Everything that was granted goes at once: who is to blame is said, but not waited for. Where all of it together
    /// used too little to be the reason, it stays: taking it away would not help.
    pub(super) fn starve(&mut self, now: Duration, cpu: u32, waited: Duration, actions: &mut Vec<Action>) {
        let window = self.limits.window;
        if self.total.spent.within(now, window) * 2 < waited.min(window) {
            self.counters.starved_by_others += 1;
            return;
        }
        self.held_off_until = Some(now + HOLD);
        let granted = self.held.iter().filter(|(_, held)| held.standing != Standing::Ordinary);
        let by_use = granted.map(|(id, held)| (held.spent.within(now, window), *id));
        let mut by_use: Vec<(Duration, ProcessId)> = by_use.collect();
        by_use.sort_unstable_by(|a, b| b.cmp(a));
        let blamed = by_use.first().and_then(|(used, id)| {
            let held = self.held.get(id)?;
            let (exe, rule, used_ms) = (&held.process.exe, &held.rule, used.as_millis());
            Some(format!("{exe} (pid {}, rule `{rule}`) used {used_ms} ms", id.pid))
        });
        let Some(blamed) = blamed else { return };
        self.counters.starved += 1;
        let why = format!(
            "an ordinary thread on CPU {cpu} could not run for {} ms; most of the last {} ms of real time: {blamed}",
            waited.as_millis(),
            window.as_millis(),
        );
        for (_, id) in by_use {
            self.demote(now, id, &why, actions);
        }
    }
}
