// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The accounts of CPU time within a sliding window, and what follows when one is overdrawn. The formulas are in
//! `docs/explanation/real-time-safety.md`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::matched::{MatchedProcess, Standing};
use super::spent::Spent;
use super::{Action, Priority, Usage};
use crate::back_off::BackOff;
use crate::model::ProcessId;

/// The longest poll interval of CPU times while anything is granted ...
pub(super) const USAGE_EVERY: Duration = Duration::from_millis(100);
/// ... and the shortest.
const SOONEST_USAGE: Duration = Duration::from_millis(10);
/// Each overrun halves the budget, at most this often.
const MOST_HALVED: u32 = 4;
/// After this long without an overrun, counted from the last wait, an account starts over.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// The use of a rule's processes, or of all rules': running with real-time priority, or ended with it.
#[derive(Debug, Default)]
pub struct Account {
    pub spent: Spent,
    /// When one of them was last demoted for it.
    overran_at: Option<Duration>,
    back_off: BackOff,
    /// Since it last started over.
    overruns: u32,
}

impl Account {
    /// Whether nothing more may be granted on it.
    pub fn is_overdrawn(&self, now: Duration, window: Duration, budget: Duration) -> bool {
        self.overran_at.is_some_and(|at| at + window > now) || self.spent.within(now, window) > budget
    }

    /// The wait of a user who has overrun the grant lately: a second, doubled each time.
    pub fn suspended_for(&self, now: Duration) -> Option<Duration> {
        let left = self.back_off.next()?.checked_sub(now)?;
        (!left.is_zero()).then_some(left)
    }

    fn overrun(&mut self, now: Duration) {
        // Processes demoted together overran once.
        if self.overran_at != Some(now) {
            if self.is_forgotten(now) {
                self.back_off.reset();
                self.overruns = 0;
            }
            self.back_off.failed(now);
            self.overruns = self.overruns.saturating_add(1);
        }
        self.overran_at = Some(now);
    }

    /// How often the budget of a user's grant is halved now.
    pub fn halved(&self, now: Duration) -> u32 {
        match self.is_forgotten(now) {
            true => 0,
            false => self.overruns.min(MOST_HALVED),
        }
    }

    fn is_forgotten(&self, now: Duration) -> bool {
        self.back_off.next().is_none_or(|next| next + FORGOTTEN <= now)
    }
}

/// This percentage of a time.
pub fn share(of: Duration, percent: u32) -> Duration {
    of * percent / 100
}

/// An account, for people.
struct Budget<'a> {
    /// None: over all.
    account: Option<&'a str>,
    percent: u32,
    /// In each window.
    time: Duration,
    of: String,
}

impl Priority {
    /// When [`Input::Usage`](super::Input::Usage) is next wanted while something is granted: before a budget can be
    /// overrun by more than a little, if everything with real-time priority runs from now on.
    pub fn next_usage(&self, now: Duration) -> Duration {
        let until_used_up = |time: Duration, used: Duration, tasks: u32| {
            let left = time.saturating_sub(used);
            left / tasks.clamp(1, self.limits.cpus.max(1)) + Duration::from_millis(1)
        };
        let tasks = |account| self.granted_of(account).map(|(_, held)| held.tasks).sum::<u32>();
        let of_parts = self.napi.tasks() + self.chains.threads(true).count() as u32;
        let of_all = until_used_up(
            self.total_budget().time,
            self.used_by_all(now, self.limits.window),
            tasks(None) + of_parts,
        );
        let by_rule = self.budgets(now).map(|budget| {
            let used = self.used(now, &budget);
            until_used_up(budget.time, used, tasks(budget.account))
        });
        now + by_rule
            .chain([of_all])
            .min()
            .unwrap_or(USAGE_EVERY)
            .clamp(SOONEST_USAGE, USAGE_EVERY)
    }

    /// CPU time since the last poll counts for the process, its rule and all.
    pub(super) fn charge(&mut self, now: Duration, id: ProcessId, cpu: Duration) {
        let Some(held) = self.held.get_mut(&id).filter(|held| held.standing != Standing::Without) else {
            return;
        };
        let used = cpu.saturating_sub(held.cpu);
        let since = now.saturating_sub(held.looked).max(Duration::from_millis(1));
        (held.cpu, held.looked) = (cpu, now);
        let with_donated = used + std::mem::take(&mut held.donation.since_look);
        held.rate = with_donated.as_secs_f64() / since.as_secs_f64();
        let account = self.accounts.entry(held.account.clone()).or_default();
        for spent in [&mut held.spent, &mut account.spent, &mut self.of_rules.spent] {
            spent.add(now, used, self.limits.window);
        }
    }

    pub(super) fn account(&mut self, now: Duration, usage: Vec<Usage>, napi: Duration) {
        for sample in usage {
            let held = self.held.get_mut(&sample.id);
            let Some(held) = held.filter(|held| held.standing == Standing::Granted) else {
                continue;
            };
            held.tasks = sample.tasks;
            self.charge(now, sample.id, sample.cpu);
            if let Some(found) = sample.found {
                self.report_conflict(now, sample.id, &found);
            }
        }
        let window = self.limits.window;
        let is_held_off = self.is_held_off(now);
        if self.napi.account(now, napi, window, is_held_off, &mut self.actions) {
            self.counters.parts_lowered += 1;
        }
        // The other accounts have no budget.
        self.accounts
            .retain(|_, account| account.is_overdrawn(now, window, Duration::ZERO) || !account.is_forgotten(now));
        while let Some((id, reason)) = self.overrun_of_a_rule(now) {
            self.demote(now, id, &reason);
        }
        while self.is_over_total(now) {
            if self.lower_a_part(now, "all real-time threads together overran total_percent") {
                continue;
            }
            let budget = self.total_budget();
            let Some((id, reason)) = self.worst(now, &budget, &self.of_rules) else {
                break;
            };
            self.demote(now, id, &reason);
        }
    }

    /// Lowers NAPI threads, or else the chain with the most CPU time, for a while; their use is paid with that. False
    /// if none of them has used any.
    fn lower_a_part(&mut self, now: Duration, reason: &'static str) -> bool {
        let least = Duration::from_nanos(1);
        let is_lowered = self
            .napi
            .lower_if_used(now, least, self.limits.window, reason, &mut self.actions)
            || self
                .chains
                .lower_busiest(now, least, self.limits.window, reason, &mut self.actions);
        self.counters.parts_lowered += u64::from(is_lowered);
        is_lowered
    }

    fn overrun_of_a_rule(&self, now: Duration) -> Option<(ProcessId, String)> {
        let worst = |budget: Budget<'_>| self.worst(now, &budget, self.accounts.get(budget.account?)?);
        self.budgets(now).find_map(worst)
    }

    fn is_over_total(&self, now: Duration) -> bool {
        let budget = self.total_budget();
        self.used_by_all(now, self.limits.window) > budget.time || self.is_no_better(now, &budget, &self.of_rules)
    }

    /// The use of the first that overran is forgiven. Processes that alone would overrun the next window go with it.
    fn is_no_better(&self, now: Duration, budget: &Budget<'_>, account: &Account) -> bool {
        let rate: f64 = self.granted_of(budget.account).map(|(_, held)| held.rate).sum();
        account.overran_at == Some(now) && self.limits.window.mul_f64(rate) > budget.time
    }

    /// The process that used most of an overrun budget, with that budget.
    fn worst(&self, now: Duration, budget: &Budget<'_>, account: &Account) -> Option<(ProcessId, String)> {
        let window = self.limits.window;
        // Many processes of one rule: while the first of them ran, the others could not show yet what they will do.
        let mut new = self
            .granted_of(budget.account)
            .filter(|(_, held)| held.since + window > now);
        if account.overran_at == Some(now)
            && budget.account.is_some()
            && let Some((id, _)) = new.next()
        {
            let reason = format!(
                "another process of its rule overran the budget, and this one was started less than {} ms before; no real-time priority until it is restarted",
                window.as_millis()
            );
            return Some((id, reason));
        }
        let used = self.used(now, budget);
        if used <= budget.time && !self.is_no_better(now, budget, account) {
            return None;
        }
        let by_use = |(_, held): &(ProcessId, &MatchedProcess)| held.spent.within(now, window);
        let (id, held) = self.granted_of(budget.account).max_by_key(by_use)?;
        let own = held.spent.within(now, window);
        // Ended processes may have overrun the budget: those that use next to nothing do not pay for it.
        if own * 10 < window.min(budget.time) {
            return None;
        }
        let donated = held
            .donation
            .shown(now, window)
            .map(|donated| format!("{donated}; with that "));
        let reason = format!(
            "{}it used {} ms of CPU in the last {} ms, of {} ms that count against the budget of {}% of {}; no real-time priority until it is restarted",
            donated.unwrap_or_default(),
            own.as_millis(),
            window.as_millis(),
            used.as_millis(),
            budget.percent,
            budget.of,
        );
        Some((id, reason))
    }

    pub(super) fn granted_of(&self, account: Option<&str>) -> impl Iterator<Item = (ProcessId, &MatchedProcess)> {
        let having = self.having.iter().filter_map(|id| Some((*id, self.held.get(id)?)));
        having.filter(move |(_, held)| {
            held.standing == Standing::Granted && account.is_none_or(|account| held.account == account)
        })
    }

    /// The budget of each rule with grants; the smallest if processes on one account have several.
    fn budgets(&self, now: Duration) -> impl Iterator<Item = Budget<'_>> {
        let mut least: BTreeMap<&str, &MatchedProcess> = BTreeMap::new();
        for (_, held) in self.granted_of(None) {
            let one = least.entry(&held.account).or_insert(held);
            if held.budget_percent < one.budget_percent {
                *one = held;
            }
        }
        least.into_iter().map(move |(account, held)| {
            let of_user = self.accounts.get(account).filter(|_| held.user.is_some());
            let halved = of_user.map_or(0, |account| account.halved(now));
            let of = match halved {
                0 => "one CPU for its rule".to_owned(),
                times => format!("one CPU for its rule, halved {times} times for earlier overruns"),
            };
            Budget {
                account: Some(account),
                percent: held.budget_percent,
                time: share(self.limits.window, held.budget_percent) / 2_u32.pow(halved),
                of,
            }
        })
    }

    fn total_budget(&self) -> Budget<'static> {
        Budget {
            account: None,
            percent: self.limits.total_percent,
            time: share(self.limits.window * self.limits.cpus.max(1), self.limits.total_percent),
            of: "all CPUs for all real-time threads (total_percent)".to_owned(),
        }
    }

    fn used(&self, now: Duration, budget: &Budget<'_>) -> Duration {
        let Some(account) = budget.account else {
            return self.used_by_all(now, self.limits.window);
        };
        let account = self.accounts.get(account);
        account.map_or(Duration::ZERO, |account| account.spent.within(now, self.limits.window))
    }

    /// By rules' processes, chains and NAPI threads, within this time.
    pub(super) fn used_by_all(&self, now: Duration, window: Duration) -> Duration {
        self.of_rules.spent.within(now, window) + self.chains.used(now, window) + self.napi.used(now, window)
    }

    pub(super) fn demote(&mut self, now: Duration, id: ProcessId, reason: &str) {
        let Some(held) = self.held.get(&id) else { return };
        let old = held.old.clone();
        // It has paid: the others are not charged for its use.
        let of_rule = self.accounts.entry(held.account.clone()).or_default();
        for account in [of_rule, &mut self.of_rules] {
            account.overrun(now);
            account.spent.take_out(&held.spent);
        }
        self.counters.demoted += 1;
        self.record_loss(id, old, reason.to_owned());
        self.set_standing(id, Standing::Without);
        self.after_chains(now, Action::Revoke { id });
    }
}
