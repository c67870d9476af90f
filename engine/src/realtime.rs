// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processes get real-time priority, and when they lose it. In come the starts, ends and CPU times of processes
//! that rules may mean, wishes of users, and canaries that starve; out go grants and revocations, each with its reason.
//! It never reads a process or sets a priority by itself, and never gives more than the limits allow.
//!
//! Three budgets keep the machine answering (after rtkit): each rule may use so much of one CPU, all of them together so
//! much of all CPUs, and an ordinary thread on each CPU, the canary, must run every so often. Who overruns is ordinary
//! from then on, until it is started anew; when a canary starves, everything is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::matcher::{Matcher, Process, ProcessId};

mod account;
mod budget;
mod configured;
mod grant;
#[cfg(test)]
mod tests;
mod view;

use budget::{Account, Spent};
pub use configured::Names;
pub use grant::{Grant, Grants};
pub use view::{Change, Counters, HeldView, RealtimeView, RuleView};

/// The kernel's interrupt threads are FIFO 50, and giveway's own thread must come between: this is the most for all others.
pub const CEILING: u32 = 48;
/// giveway's own thread, which must run when what it has to demote does.
pub const OWN_PRIORITY: u32 = CEILING + 1;
/// After a canary starved nothing is granted for so long.
const HOLD: Duration = Duration::from_secs(10);
/// Of one CPU, where no rule and no grant says otherwise.
pub const DEFAULT_BUDGET_PERCENT: u32 = 80;
const CHANGES_KEPT: usize = 256;
const REFUSALS_KEPT: usize = 64;
const RULES_OF_A_USER: usize = 32;

/// How a process is to be scheduled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Policy {
    Fifo {
        priority: u32,
    },
    RoundRobin {
        priority: u32,
    },
    /// So much CPU time within `deadline` of each start of a `period` (sched(7)).
    Deadline {
        runtime: Duration,
        deadline: Duration,
        period: Duration,
    },
}

/// A policy and the CPUs on which it may run; no CPUs are all.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Schedule {
    pub policy: Policy,
    pub cpus: Vec<u32>,
}

/// Who gets what.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub name: String,
    pub matcher: Matcher,
    pub schedule: Schedule,
    /// Of one CPU, for all processes of this rule together.
    pub budget_percent: u32,
    pub max_tasks: u32,
    /// Who added it at run time; None for one of the configuration.
    pub added_by: Option<u32>,
}

impl Rule {
    /// What its processes' CPU time and tasks count for: a rule of root's for itself, those of a user all together.
    fn account(&self) -> String {
        match self.added_by {
            Some(uid) if uid != 0 => format!("uid {uid}"),
            _ => self.name.clone(),
        }
    }
}

/// What all rules together may do.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    pub max_priority: u32,
    pub max_tasks: u32,
    /// Of all CPUs.
    pub total_percent: u32,
    pub window: Duration,
    pub cpus: u32,
}

/// CPU time of a held process.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    pub id: ProcessId,
    /// Since its start, of all its threads.
    pub cpu: Duration,
    pub tasks: u32,
    /// Another tool has changed what giveway gave; what was found in its place.
    pub found: Option<String>,
}

/// What a grant has done.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    pub tasks: u32,
    pub old: String,
}

/// A process as it is after an exec, or was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Started {
    pub id: ProcessId,
    pub process: Process,
    pub tasks: u32,
    /// Used so far, by all its threads.
    pub cpu: Duration,
}

/// An observation.
#[derive(Debug)]
pub enum Input {
    /// A process has called exec, or was found at a start or for a new rule.
    Started(Started),
    /// A held process has a new thread, which is ordinary still.
    TaskAdded { id: ProcessId, tid: u32 },
    /// A held process has ended, having used so much CPU time.
    Exited { id: ProcessId, cpu: Duration },
    /// What became of [`Action::Grant`].
    Outcome {
        id: ProcessId,
        outcome: Result<Given, String>,
    },
    /// Of all held processes, some times within a window.
    Usage(Vec<Usage>),
    /// The ordinary thread on this CPU has not run for so long.
    Starved { cpu: u32, waited: Duration },
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Set all threads of the process. Answered by [`Input::Outcome`].
    Grant { id: ProcessId, schedule: Schedule },
    /// Set one more thread of a process that has been granted.
    GrantTask {
        id: ProcessId,
        tid: u32,
        schedule: Schedule,
    },
    /// Set all threads back to what they were, but for those that another tool has changed since.
    Revoke { id: ProcessId },
    /// Look at all processes for those that rules mean now.
    Look,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Standing {
    /// Asked for, not yet answered.
    Asked,
    Granted,
    /// Ordinary, though a rule means it: it overran, it was refused, or another tool has changed it.
    Ordinary,
}

#[derive(Debug)]
struct Held {
    process: Process,
    rule: String,
    /// What its CPU time and its tasks count for.
    account: String,
    schedule: Schedule,
    standing: Standing,
    tasks: u32,
    cpu: Duration,
    spent: Spent,
    since: Duration,
    /// When its CPU time was last looked at, and the share of one CPU that it used since the time before.
    looked: Duration,
    rate: f64,
    budget_percent: u32,
    max_tasks: u32,
    /// Said already that its new threads stay ordinary.
    told_of_tasks: bool,
}

/// What the machine's real-time priorities are by giveway's doing.
#[derive(Debug)]
pub struct Realtime {
    limits: Limits,
    grants: Grants,
    rules: Vec<Rule>,
    held: BTreeMap<ProcessId, Held>,
    /// By rule, its ended processes included.
    accounts: BTreeMap<String, Account>,
    total: Account,
    held_off_until: Option<Duration>,
    dry_run: bool,
    changes: VecDeque<Change>,
    refusals: VecDeque<Change>,
    counters: Counters,
}

impl Realtime {
    /// `rules` of the configuration, in its order: the first that matches counts.
    pub fn new(limits: Limits, grants: Grants, rules: Vec<Rule>, dry_run: bool) -> Self {
        Self {
            limits,
            grants,
            rules,
            held: BTreeMap::new(),
            accounts: BTreeMap::new(),
            total: Account::default(),
            held_off_until: None,
            dry_run,
            changes: VecDeque::new(),
            refusals: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Takes in one observation and says what follows from it.
    pub fn step(&mut self, now: Duration, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Started(started) => self.judge(now, started, &mut actions),
            Input::TaskAdded { id, tid } => self.add_task(now, id, tid, &mut actions),
            Input::Exited { id, cpu } => self.forget(now, id, cpu),
            Input::Outcome { id, outcome } => self.conclude(now, id, outcome),
            Input::Usage(usage) => self.account(now, usage, &mut actions),
            Input::Starved { cpu, waited } => self.starve(now, cpu, waited, &mut actions),
        }
        actions
    }

    /// The executables whose starts are to be seen, and the users all of whose starts are.
    pub fn watched(&self) -> (BTreeSet<&str>, BTreeSet<u32>) {
        let executables = self.rules.iter().filter_map(|rule| rule.matcher.exe.as_deref());
        let by_user = self.rules.iter().filter(|rule| rule.matcher.exe.is_none());
        (
            executables.collect(),
            by_user.filter_map(|rule| rule.matcher.uid).collect(),
        )
    }

    /// The processes to tell of in [`Input::Usage`].
    pub fn granted(&self) -> impl Iterator<Item = (ProcessId, &Schedule)> {
        let granted = self.held.iter().filter(|(_, held)| held.standing == Standing::Granted);
        granted.map(|(id, held)| (*id, &held.schedule))
    }

    /// The processes whose next exec, threads and end are to be told.
    pub fn held(&self) -> impl Iterator<Item = ProcessId> {
        self.held.keys().copied()
    }

    pub fn holds(&self, id: ProcessId) -> bool {
        self.held.contains_key(&id)
    }

    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// A rule more, at run time. `gids`: the groups of the user who asks.
    ///
    /// # Errors
    /// The reason, where the configuration does not grant that user so much, or the name is taken.
    pub fn add_rule(&mut self, mut rule: Rule, uid: u32, gids: &[u32]) -> Result<Vec<Action>, String> {
        if self.rules.iter().any(|known| known.name == rule.name) {
            return Err(format!("there is a rule `{}` already; remove it first", rule.name));
        }
        self.grants.bound(&mut rule, uid, gids, self.limits.max_priority)?;
        if rule.name.starts_with(grant::LAUNCHED) {
            return Err(format!(
                "the names that start with `{}` are giveway's own",
                grant::LAUNCHED
            ));
        }
        let own = self.rules.iter().filter(|rule| rule.added_by == Some(uid)).count();
        if uid != 0 && own >= RULES_OF_A_USER {
            return Err(format!("uid {uid} has {own} rules already, which is the most"));
        }
        rule.added_by = Some(uid);
        self.rules.push(rule);
        Ok(vec![Action::Look])
    }

    /// Takes a rule away, and what it gave.
    ///
    /// # Errors
    /// The reason, where there is none of this name or it is not this user's to remove.
    pub fn remove_rule(&mut self, now: Duration, name: &str, uid: u32) -> Result<Vec<Action>, String> {
        let Some(at) = self.rules.iter().position(|rule| rule.name == name) else {
            return Err(format!("there is no rule `{name}`; `giveway realtime list` shows them"));
        };
        match self.rules[at].added_by {
            None => return Err(format!("rule `{name}` is one of the configuration; remove it there")),
            Some(by) if uid != 0 && by != uid => {
                return Err(format!("rule `{name}` was added by uid {by}, not by you"));
            }
            Some(_) => self.rules.remove(at),
        };
        let of_rule: Vec<ProcessId> = self
            .held
            .iter()
            .filter(|(_, h)| h.rule == name)
            .map(|(id, _)| *id)
            .collect();
        let mut actions = Vec::new();
        for id in of_rule {
            self.revoke(now, id, "its rule was removed", &mut actions);
            self.held.remove(&id);
        }
        Ok(actions)
    }

    /// `giveway exec`: the asking process wants this for the command that it is about to become.
    ///
    /// # Errors
    /// The reason, where the configuration does not grant that user so much or a budget is used up.
    pub fn launch(
        &mut self,
        now: Duration,
        asking: Started,
        schedule: Schedule,
        gids: &[u32],
    ) -> Result<Vec<Action>, String> {
        let process = &asking.process;
        let mut rule = Rule {
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
        self.settle(now, asking.id, asking.cpu);
        self.may_grant(now, &rule, asking.tasks)?;
        let mut actions = Vec::new();
        self.grant(now, asking, &rule, &mut actions);
        Ok(actions)
    }

    fn judge(&mut self, now: Duration, started: Started, actions: &mut Vec<Action>) {
        self.settle(now, started.id, started.cpu);
        let (id, process) = (started.id, &started.process);
        let Some(rule) = self.rule_for(id, process) else {
            let why = format!("it runs {} now, which no rule matches", process.exe);
            self.revoke(now, id, &why, actions);
            self.held.remove(&id);
            return;
        };
        if let Some(held) = self.held.get_mut(&id) {
            if held.rule == rule.name && held.schedule == rule.schedule {
                // What it had it keeps; what it lost by overrunning too, for an exec is no new start.
                held.process = started.process;
                return;
            }
            self.revoke(
                now,
                id,
                &format!("it runs {} now, which rule `{}` matches", process.exe, rule.name),
                actions,
            );
            self.held.remove(&id);
        }
        match self.may_grant(now, &rule, started.tasks) {
            Ok(()) => self.grant(now, started, &rule, actions),
            Err(why) => {
                self.counters.refused += 1;
                self.hold(now, started, &rule, Standing::Ordinary);
                self.note_refusal(now, id, format!("no real time: {why}"));
            }
        }
    }

    /// The rule by which it is held, where that was `giveway exec` and it is still its user's; else the first of all
    /// that means it and may.
    fn rule_for(&self, id: ProcessId, process: &Process) -> Option<Rule> {
        let launched = self.held.get(&id).filter(|held| held.rule.starts_with(grant::LAUNCHED));
        if let Some(held) = launched
            && process.uid == held.process.uid
            && process.euid == held.process.uid
        {
            return Some(Rule {
                name: held.rule.clone(),
                matcher: Matcher::default(),
                schedule: held.schedule.clone(),
                budget_percent: held.budget_percent,
                max_tasks: held.max_tasks,
                added_by: Some(process.uid),
            });
        }
        let means = |rule: &&Rule| rule.matcher.matches(process) && rule.matcher.is_trusted(process);
        self.rules.iter().find(means).cloned()
    }

    fn grant(&mut self, now: Duration, started: Started, rule: &Rule, actions: &mut Vec<Action>) {
        let (id, schedule) = (started.id, rule.schedule.clone());
        self.hold(now, started, rule, Standing::Asked);
        if self.dry_run {
            self.note(
                now,
                id,
                "ordinary",
                &schedule.shown(),
                "--dry-run changes nothing".to_owned(),
            );
        } else {
            actions.push(Action::Grant { id, schedule });
        }
    }

    fn hold(&mut self, now: Duration, started: Started, rule: &Rule, standing: Standing) {
        // Asking again is no way out of a budget.
        let before = self.held.remove(&started.id);
        let same = before.filter(|before| before.account == rule.account());
        let held = Held {
            process: started.process,
            rule: rule.name.clone(),
            account: rule.account(),
            schedule: rule.schedule.clone(),
            standing,
            tasks: started.tasks,
            cpu: started.cpu,
            since: same.as_ref().map_or(now, |same| same.since),
            spent: same.map_or_else(Spent::default, |same| same.spent),
            looked: now,
            rate: 0.0,
            budget_percent: rule.budget_percent,
            max_tasks: rule.max_tasks,
            told_of_tasks: false,
        };
        self.held.insert(started.id, held);
    }

    /// Whether so many tasks more are within all budgets.
    fn may_grant(&self, now: Duration, rule: &Rule, tasks: u32) -> Result<(), String> {
        if let Some(until) = self.held_off_until.filter(|until| now < *until) {
            let left_s = until.saturating_sub(now).as_secs_f64();
            return Err(format!(
                "the machine did not answer a moment ago; nothing is granted for {left_s:.0} s more"
            ));
        }
        let (of_rule, of_all) = self.tasks(&rule.account());
        if of_rule + tasks > rule.max_tasks {
            return Err(format!(
                "rule `{}` has {of_rule} of its {} tasks at most",
                rule.name, rule.max_tasks
            ));
        }
        if of_all + tasks > self.limits.max_tasks {
            return Err(format!(
                "{of_all} of {} tasks at most have it (max_tasks)",
                self.limits.max_tasks
            ));
        }
        let window = self.limits.window;
        let account = self.accounts.get(&rule.account());
        if account.is_some_and(|account| account.is_overdrawn(now, window, budget::share(window, rule.budget_percent)))
        {
            return Err(format!(
                "rule `{}` has overrun its budget ({}% of a CPU) within the last {} ms",
                rule.name,
                rule.budget_percent,
                window.as_millis()
            ));
        }
        Ok(())
    }

    /// Tasks that have real time: of the rule, and of all.
    fn tasks(&self, account: &str) -> (u32, u32) {
        let having = self.held.values().filter(|held| held.standing != Standing::Ordinary);
        having.fold((0, 0), |(of_rule, all), held| {
            (
                of_rule + if held.account == account { held.tasks } else { 0 },
                all + held.tasks,
            )
        })
    }

    fn add_task(&mut self, now: Duration, id: ProcessId, tid: u32, actions: &mut Vec<Action>) {
        let Some(held) = self.held.get(&id).filter(|held| held.standing != Standing::Ordinary) else {
            return;
        };
        let (of_rule, of_all) = self.tasks(&held.account);
        let is_free = of_rule < held.max_tasks && of_all < self.limits.max_tasks;
        let told = held.told_of_tasks;
        if let Some(held) = self.held.get_mut(&id) {
            held.told_of_tasks |= !is_free;
            if is_free {
                held.tasks += 1;
                actions.push(Action::GrantTask {
                    id,
                    tid,
                    schedule: held.schedule.clone(),
                });
                return;
            }
        }
        if !told {
            let why = format!("its new threads stay ordinary: {of_rule} tasks of the rule, {of_all} in all have it");
            self.note_refusal(now, id, why);
        }
    }

    fn forget(&mut self, now: Duration, id: ProcessId, cpu: Duration) {
        self.settle(now, id, cpu);
        self.held.remove(&id);
    }

    /// Charges what a process used until now, before anything becomes of it.
    fn settle(&mut self, now: Duration, id: ProcessId, cpu: Duration) {
        if let Some(mut held) = self.held.remove(&id) {
            if held.standing != Standing::Ordinary {
                self.charge(now, &mut held, cpu);
            }
            self.held.insert(id, held);
        }
    }

    fn conclude(&mut self, now: Duration, id: ProcessId, outcome: Result<Given, String>) {
        let Some(held) = self.held.get_mut(&id).filter(|held| held.standing == Standing::Asked) else {
            return;
        };
        match outcome {
            Ok(given) => {
                held.standing = Standing::Granted;
                held.tasks = given.tasks;
                let (new, rule) = (held.schedule.shown(), format!("rule `{}`", held.rule));
                self.counters.granted += 1;
                self.note(now, id, &given.old, &new, rule);
            }
            Err(why) => {
                held.standing = Standing::Ordinary;
                self.counters.failed += 1;
                self.note(now, id, "ordinary", "ordinary", why);
            }
        }
    }

    /// Another tool has the last word on a process. Threads that it has not touched do not keep what no budget counts.
    fn step_back(&mut self, now: Duration, id: ProcessId, found: &str, actions: &mut Vec<Action>) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.standing = Standing::Ordinary;
        actions.push(Action::Revoke { id });
        let old = held.schedule.shown();
        self.counters.stepped_back += 1;
        self.note(
            now,
            id,
            &old,
            found,
            "another tool has changed it; it is left alone until it is started anew".to_owned(),
        );
    }

    fn revoke(&mut self, now: Duration, id: ProcessId, why: &str, actions: &mut Vec<Action>) {
        let Some(held) = self.held.get(&id).filter(|held| held.standing != Standing::Ordinary) else {
            return;
        };
        let old = held.schedule.shown();
        self.counters.revoked += 1;
        actions.push(Action::Revoke { id });
        self.note(now, id, &old, "ordinary", why.to_owned());
    }

    fn note(&mut self, now: Duration, id: ProcessId, old: &str, new: &str, why: String) {
        if let Some(change) = self.change(now, id, old, new, why) {
            keep(&mut self.changes, change, CHANGES_KEPT);
        }
    }

    /// Apart from the changes, which hundreds of refusals must not push out.
    fn note_refusal(&mut self, now: Duration, id: ProcessId, why: String) {
        if let Some(change) = self.change(now, id, "ordinary", "ordinary", why) {
            keep(&mut self.refusals, change, REFUSALS_KEPT);
        }
    }

    fn change(&self, now: Duration, id: ProcessId, old: &str, new: &str, why: String) -> Option<Change> {
        let held = self.held.get(&id)?;
        Some(Change {
            t_ns: now.as_nanos() as u64,
            pid: id.pid,
            exe: held.process.exe.clone(),
            rule: held.rule.clone(),
            old: old.to_owned(),
            new: new.to_owned(),
            why,
            made: !self.dry_run,
        })
    }
}

fn keep(changes: &mut VecDeque<Change>, change: Change, most: usize) {
    if changes.len() == most {
        changes.pop_front();
    }
    changes.push_back(change);
}
