// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that rules match: the effect of each start, exec and end. Rules are added and removed at run time, as far
//! as their users may.

use std::sync::Arc;
use std::time::Duration;

use super::budget::{self};
#[cfg(feature = "corpus")]
use super::call::Call;
use super::matched::{MatchedProcess, Standing};
use super::{Action, DEFAULT_BUDGET_PERCENT, GrantedTasks, Priority, PriorityRule, Schedule, StartedProcess, grant};
use crate::change::Value;
use crate::matcher::Matcher;
use crate::model::{Process, ProcessId};

const RULES_OF_A_USER: usize = 32;
/// Of all users but root, and over all, the configuration included: the kernel watches the files of this many.
const RULES_OF_USERS: usize = 512;
const RULES: usize = 1024;
/// Known processes without real-time priority, for `why`: users decide how many there are.
const HELD_WITHOUT: usize = 1024;
/// Patterns in all rules of a user: each may have to be matched against 4 kB whenever a process of this user starts,
/// within 100 us.
const PATTERNS_OF_A_USER: usize = 16;

impl Priority {
    /// Adds a rule at run time. `gids`: the groups of the asking user.
    ///
    /// # Errors
    /// The reason, if the configuration does not grant this, or the name is taken.
    pub fn add_rule(&mut self, mut rule: PriorityRule, uid: u32, gids: &[u32]) -> Result<Vec<Action>, String> {
        #[cfg(feature = "corpus")]
        self.note(Duration::ZERO, &Call::add_rule(&rule, uid, gids));
        rule.added_by = Some(uid);
        // Each user has their own names, so that nobody can take another's.
        if self.rule_at(&rule.name, rule.user()).is_some() {
            return Err(format!("there is a rule `{}` already; remove it first", rule.name));
        }
        self.grants.bound(&mut rule, uid, gids, self.limits.max_priority)?;
        if rule.name.starts_with(grant::LAUNCHED) {
            return Err(format!("names that start with `{}` are reserved", grant::LAUNCHED));
        }
        let of_user = || self.rules.iter().filter(|rule| rule.added_by == Some(uid));
        let (own, patterns) = (
            of_user().count(),
            of_user().map(|rule| rule.matcher.patterns()).sum::<usize>(),
        );
        if uid != 0 && own >= RULES_OF_A_USER {
            return Err(format!("uid {uid} has {own} rules already, the most that are allowed"));
        }
        let of_users = self.rules.iter().filter(|rule| rule.user().is_some());
        if self.rules.len() >= RULES || (uid != 0 && of_users.count() >= RULES_OF_USERS) {
            return Err("there are as many rules as are allowed; remove one first".to_owned());
        }
        if uid != 0 && patterns + rule.matcher.patterns() > PATTERNS_OF_A_USER {
            return Err(format!(
                "the rules of uid {uid} have {patterns} patterns already (cmdline, unit, cgroup); \
                 {PATTERNS_OF_A_USER} are the most"
            ));
        }
        Arc::make_mut(&mut self.rules).push(Arc::new(rule));
        self.actions.push(Action::ScanProcesses);
        Ok(self.take_actions())
    }

    fn rule_at(&self, name: &str, user: Option<u32>) -> Option<usize> {
        let is_it = |rule: &Arc<PriorityRule>| rule.name == name && rule.user() == user;
        self.rules.iter().position(is_it)
    }

    /// Removes a rule, and revokes its grants. Root also removes users' rules, if none of its own has this name.
    ///
    /// # Errors
    /// The reason, if this user has no such rule or it is in the configuration.
    pub fn remove_rule(&mut self, now: Duration, name: &str, uid: u32) -> Result<Vec<Action>, String> {
        #[cfg(feature = "corpus")]
        self.note(now, &Call::remove_rule(name, uid));
        let asking = Some(uid).filter(|uid| *uid != 0);
        let of_anybody = || self.rules.iter().position(|rule| uid == 0 && rule.name == name);
        let Some(at) = self.rule_at(name, asking).or_else(of_anybody) else {
            let whose = if uid == 0 { "" } else { " of yours" };
            return Err(format!(
                "there is no rule `{name}`{whose}; `giveway priority list` shows them"
            ));
        };
        if self.rules[at].added_by.is_none() {
            return Err(format!("rule `{name}` is in the configuration; remove it there"));
        }
        let user = Arc::make_mut(&mut self.rules).remove(at).user();
        let of_rule = self
            .held
            .iter()
            .filter(|(_, held)| held.rule == name && held.user == user);
        let of_rule: Vec<ProcessId> = of_rule.map(|(id, _)| *id).collect();
        for id in of_rule {
            self.revoke(now, id, "its rule was removed");
        }
        Ok(self.take_actions())
    }

    /// `giveway exec`: the asking process requests this for the command that it is about to become.
    ///
    /// # Errors
    /// The reason, if the configuration does not grant this or a budget is used up.
    pub fn launch(
        &mut self,
        now: Duration,
        asking: StartedProcess,
        schedule: Schedule,
        gids: &[u32],
    ) -> Result<Vec<Action>, String> {
        #[cfg(feature = "corpus")]
        self.note(now, &Call::launch(&asking, &schedule, gids));
        let process = &asking.process;
        let mut rule = PriorityRule {
            name: format!("{}{}", grant::LAUNCHED, process.uid),
            matcher: Matcher {
                uid: Some(process.uid),
                ..Matcher::default()
            },
            schedule,
            budget_percent: DEFAULT_BUDGET_PERCENT,
            max_tasks: self.limits.max_tasks,
            added_by: Some(process.uid),
        };
        self.grants
            .bound(&mut rule, process.uid, gids, self.limits.max_priority)?;
        if !rule.matcher.matches(process) {
            return Err("a setuid program cannot ask for it".to_owned());
        }
        self.charge(now, asking.id, asking.cpu);
        self.may_grant(now, &rule, asking.tasks)?;
        self.grant(now, asking, &rule);
        Ok(self.take_actions())
    }

    pub(super) fn judge(&mut self, now: Duration, started: StartedProcess, matching: Option<Arc<PriorityRule>>) {
        self.charge(now, started.id, started.cpu);
        let (id, process) = (started.id, &started.process);
        let Some(rule) = self.launched(id, process).or(matching) else {
            let reason = format!("it runs {} now, which no rule matches", process.exe);
            self.revoke(now, id, &reason);
            return;
        };
        if let Some(held) = self.held.get_mut(&id) {
            if held.rule == rule.name && held.user == rule.user() && held.schedule == rule.schedule {
                // It keeps its grant, and also the loss of one by an overrun, since an exec is no new start.
                held.process = started.process;
                return;
            }
            let reason = format!("it runs {} now, which rule `{}` matches", process.exe, rule.name);
            self.revoke(now, id, &reason);
        }
        match self.may_grant(now, &rule, started.tasks) {
            Ok(()) => self.grant(now, started, &rule),
            Err(reason) => {
                if let Some(pause) = &mut self.paused {
                    pause.had.insert(id);
                }
                self.counters.refused += 1;
                if self.held.len() - self.having.len() >= HELD_WITHOUT {
                    return;
                }
                self.hold(now, started, &rule, Standing::Without);
                self.record_gain(id, format!("no real-time priority: {reason}"), false);
            }
        }
    }

    /// The rule of a process launched by `giveway exec` that still belongs to its user.
    fn launched(&self, id: ProcessId, process: &Process) -> Option<Arc<PriorityRule>> {
        let held = self
            .held
            .get(&id)
            .filter(|held| held.rule.starts_with(grant::LAUNCHED))?;
        let is_theirs = process.uid == held.process.uid && process.euid == held.process.uid;
        is_theirs.then(|| Arc::new(held.as_rule()))
    }

    fn grant(&mut self, now: Duration, started: StartedProcess, rule: &PriorityRule) {
        let (id, schedule) = (started.id, rule.schedule.clone());
        self.hold(now, started, rule, Standing::Asked);
        if self.dry_run {
            self.record_gain(id, "--dry-run changes nothing".to_owned(), false);
        } else {
            self.after_chains(now, Action::Grant { id, schedule });
        }
    }

    fn hold(&mut self, now: Duration, started: StartedProcess, rule: &PriorityRule, standing: Standing) {
        // A repeated request does not escape a budget.
        let before = self.held.remove(&started.id);
        let same = before.filter(|before| before.account == rule.account());
        let since = same.as_ref().map_or(now, |same| same.since);
        let (spent, donation) = same.map(|same| (same.spent, same.donation)).unwrap_or_default();
        let held = MatchedProcess {
            process: started.process,
            rule: rule.name.clone(),
            account: rule.account(),
            schedule: rule.schedule.clone(),
            standing,
            tasks: started.tasks,
            cpu: started.cpu,
            since,
            spent,
            donation,
            looked: now,
            rate: 0.0,
            budget_percent: rule.budget_percent,
            max_tasks: rule.max_tasks,
            user: rule.user(),
            old: Value::Unset(()),
            is_full: false,
        };
        self.held.insert(started.id, held);
        self.set_standing(started.id, standing);
    }

    pub(super) fn set_standing(&mut self, id: ProcessId, standing: Standing) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.standing = standing;
        match standing {
            Standing::Without => self.having.remove(&id),
            Standing::Asked | Standing::Granted => self.having.insert(id),
        };
    }

    fn remove(&mut self, id: ProcessId) {
        self.held.remove(&id);
        self.having.remove(&id);
    }

    /// Whether this many more tasks are within all budgets.
    pub(super) fn may_grant(&self, now: Duration, rule: &PriorityRule, tasks: u32) -> Result<(), String> {
        if let Some(pause) = &self.paused {
            return Err(pause.reason.clone());
        }
        if let Some(until) = self.held_off_until.filter(|until| now < *until) {
            let left_s = until.saturating_sub(now).as_secs_f64();
            return Err(format!(
                "starvation was detected a moment ago; nothing is granted for another {left_s:.0} s"
            ));
        }
        let (of_rule, of_all) = self.tasks(&rule.account());
        if of_rule + tasks > rule.max_tasks {
            return Err(format!(
                "rule `{}` has {of_rule} of at most {} tasks",
                rule.name, rule.max_tasks
            ));
        }
        if of_all + tasks > self.limits.max_tasks {
            return Err(format!(
                "{of_all} of at most {} tasks have real-time priority (max_tasks)",
                self.limits.max_tasks
            ));
        }
        let window = self.limits.window;
        let budget = budget::share(window, rule.budget_percent);
        let account = self.accounts.get(&rule.account());
        let suspended_for = rule.user().and_then(|_| account?.suspended_for(now));
        if let Some(left) = suspended_for {
            return Err(format!(
                "{} has overrun the budget of its grant; nothing is granted to it for another {:.0} s",
                rule.account(),
                left.as_secs_f64().ceil()
            ));
        }
        if account.is_some_and(|account| account.is_overdrawn(now, window, budget)) {
            return Err(format!(
                "rule `{}` has overrun its budget ({}% of a CPU) within the last {} ms",
                rule.name,
                rule.budget_percent,
                window.as_millis()
            ));
        }
        Ok(())
    }

    /// Tasks with real-time priority: of the rule, and of all.
    fn tasks(&self, account: &str) -> (u32, u32) {
        let having = self.having.iter().filter_map(|id| self.held.get(id));
        having.fold((0, 0), |(of_rule, all), held| {
            let own = if held.account == account { held.tasks } else { 0 };
            (of_rule + own, all + held.tasks)
        })
    }

    pub(super) fn add_task(&mut self, now: Duration, id: ProcessId, tid: u32) {
        let Some(held) = self.held.get(&id).filter(|held| held.standing != Standing::Without) else {
            return;
        };
        let (of_rule, of_all) = self.tasks(&held.account);
        let (is_free, was_full) = (of_rule < held.max_tasks && of_all < self.limits.max_tasks, held.is_full);
        if let Some(held) = self.held.get_mut(&id) {
            held.is_full |= !is_free;
            held.tasks += u32::from(is_free);
        }
        if is_free {
            self.after_chains(now, Action::GrantTask { id, tid });
        } else if !was_full {
            let reason = format!(
                "its new threads get no real-time priority: {of_rule} tasks of the rule, {of_all} in all have it"
            );
            self.record_gain(id, reason, false);
        }
    }

    pub(super) fn forget(&mut self, now: Duration, id: ProcessId, cpu: Duration) {
        self.charge(now, id, cpu);
        self.remove(id);
        self.waiting.retain(|action| action.process() != Some(id));
    }

    pub(super) fn conclude(&mut self, id: ProcessId, outcome: Result<GrantedTasks, String>) {
        let Some(held) = self.held.get_mut(&id).filter(|held| held.standing == Standing::Asked) else {
            return;
        };
        match outcome {
            Ok(given) => {
                held.tasks = given.tasks;
                held.old = given.old.into();
                let is_launched = held.rule.starts_with(grant::LAUNCHED);
                let reason = if is_launched {
                    "it asked for it"
                } else {
                    "the rule matches it"
                };
                self.set_standing(id, Standing::Granted);
                self.counters.granted += 1;
                self.record_gain(id, reason.to_owned(), !self.dry_run);
            }
            Err(reason) => {
                self.set_standing(id, Standing::Without);
                self.counters.failed += 1;
                self.record_gain(id, reason, false);
            }
        }
    }

    pub(super) fn put_off(&mut self, id: ProcessId, reason: String) {
        if self.held.get(&id).is_some_and(|held| held.standing == Standing::Asked) {
            self.counters.failed += 1;
            self.record_gain(id, format!("{reason}; tried again soon"), false);
            self.remove(id);
        }
    }

    pub(super) fn ended_before(&mut self, id: ProcessId) {
        if self.held.get(&id).is_some_and(|held| held.standing == Standing::Asked) {
            self.counters.ended_before += 1;
            self.remove(id);
        }
    }

    /// A conflict: another tool's change of a process is not overridden. Its remaining threads must not keep a priority
    /// that no budget counts.
    pub(super) fn report_conflict(&mut self, now: Duration, id: ProcessId, found: &str) {
        self.set_standing(id, Standing::Without);
        self.counters.conflict += 1;
        let reason = "conflict: another tool changed it; not overridden until it is restarted".to_owned();
        self.record_loss(id, found.into(), reason);
        self.after_chains(now, Action::Revoke { id });
    }

    /// Revokes a process's grant, if any, and forgets it.
    fn revoke(&mut self, now: Duration, id: ProcessId, reason: &str) {
        if let Some(held) = self.held.get(&id).filter(|held| held.standing != Standing::Without) {
            self.counters.revoked += 1;
            self.record_loss(id, held.old.clone(), reason.to_owned());
            self.after_chains(now, Action::Revoke { id });
        }
        self.remove(id);
    }

    /// Records a grant by its rule; if not `made`, one that a limit or the kernel refused.
    pub(super) fn record_gain(&mut self, id: ProcessId, reason: String, made: bool) {
        let Some(held) = self.held.get(&id) else { return };
        let change = held.change(id, held.old.clone(), held.schedule.shown().into(), reason, made);
        self.actions.push(change);
    }

    /// Records the end of a grant.
    pub(super) fn record_loss(&mut self, id: ProcessId, new: Value, reason: String) {
        let Some(held) = self.held.get(&id) else { return };
        let change = held.change(id, held.schedule.shown().into(), new, reason, !self.dry_run);
        self.actions.push(change);
    }
}
