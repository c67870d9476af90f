// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processes are reniced to 19 and the idle I/O class, because they are background. Input: verdicts on processes,
//! choices just made, and the outcome of each request. Output: which to renice, and which to restore; a bounded number
//! a second, users in turns.
//!
//! Only verdicts on the process itself count: a rule with process conditions alone, its own or inherited, or a choice.
//! Implicit classification means that it is reniced already, and a verdict on a socket says nothing of the CPU. The
//! kernel passes niceness on at a fork; a child that is not background, since another rule applies or its parent's rule
//! is for the parent alone, is restored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::back_off::BackOff;
use crate::change::{Change, Reason, Setting, Subject, Value};
use crate::class::{By, Rules, Verdict};
use crate::model::{Class, Fingerprint, Nice, Process, ProcessId};
use crate::turns::Turns;

/// Each takes two scans over its threads, and two system calls a thread.
const AT_ONCE: usize = 64;
/// By a choice, which is active as long as a daemon runs.
const CHOICE: u32 = 1;
/// By a setting by hand.
const HAND: u32 = u32::MAX;
const NICE: &str = "nice 19, idle I/O class";

#[derive(Debug)]
pub enum Input {
    /// The outcome of [`Action::Renice`].
    Outcome { process: ProcessId, outcome: Outcome },
    /// Reniced threads of these processes were changed to this by another tool.
    Taken(Vec<(ProcessId, u32, String)>),
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Renice all threads of this process and its children to 19 and the idle I/O class as long as this cause is
    /// active; None: restore it. Answered by an [`Outcome`].
    Renice {
        process: ProcessId,
        cause: Option<u32>,
        reason: Reason,
    },
    /// The active causes; processes reniced by other ones are restored.
    Causes(BTreeSet<u32>),
}

pub type Outcome = Result<Reniced, String>;

/// The outcome of [`Action::Renice`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reniced {
    /// Threads that were changed.
    pub threads: u32,
    /// The setting of the main thread before, or restored.
    pub before: String,
    /// Why no thread was changed.
    pub left: Option<String>,
}

#[derive(Debug)]
pub struct Niceness {
    is_on: bool,
    pub dry_run: bool,
    /// Renicing is paused.
    is_paused: bool,
    /// Numbers of the active rules, by their conditions: lines move when a file is changed.
    causes: BTreeMap<String, NiceCause>,
    numbered: u32,
    /// Processes that were reniced themselves, with the cause.
    held: BTreeMap<ProcessId, u32>,
    pending: BTreeMap<ProcessId, Ask>,
    /// Not yet answered.
    asked: BTreeMap<ProcessId, Ask>,
    turns: Turns,
    back_off: BackOff,
}

#[derive(Clone, Debug)]
struct NiceCause {
    number: u32,
    place: String,
}

#[derive(Clone, Debug)]
struct Ask {
    uid: u32,
    name: String,
    /// None: it is restored.
    cause: Option<u32>,
    reason: Reason,
}

impl Niceness {
    pub fn new(is_on: bool, dry_run: bool) -> Self {
        Self {
            is_on,
            dry_run,
            is_paused: false,
            causes: BTreeMap::new(),
            numbered: CHOICE,
            held: BTreeMap::new(),
            pending: BTreeMap::new(),
            asked: BTreeMap::new(),
            turns: Turns::default(),
            back_off: BackOff::default(),
        }
    }

    /// The active rules. Processes reniced by others are restored, whoever started them.
    pub fn set_rules(&mut self, rules: &Rules) -> Option<Action> {
        let mut before = std::mem::take(&mut self.causes);
        for (place, reason) in rules.background_processes() {
            let number = before.remove(reason).map(|cause| cause.number);
            let number = number.unwrap_or_else(|| {
                self.numbered += 1;
                self.numbered
            });
            let place = place.to_owned();
            self.causes
                .entry(reason.to_owned())
                .or_insert(NiceCause { number, place });
        }
        self.active_causes()
    }

    fn active_causes(&self) -> Option<Action> {
        let numbers = self.causes.values().map(|cause| cause.number);
        let installed = numbers.chain([CHOICE, HAND]).filter(|_| !self.is_paused).collect();
        (self.is_on && !self.dry_run).then_some(Action::Causes(installed))
    }

    /// Restores all processes, as if no rule applied, until it `is_paused` no longer; then all have to be judged again.
    /// Returns also the changes, with this reason.
    pub fn pause(&mut self, is_paused: bool, reason: &str) -> (Option<Action>, Vec<Change>) {
        self.is_paused = is_paused;
        self.pending.clear();
        let held = std::mem::take(&mut self.held).into_keys();
        let changes = held.map(|id| {
            let values = (NICE.into(), Value::default());
            change(id, "", values, Reason::of_pause(reason), !self.dry_run)
        });
        (self.active_causes(), changes.collect())
    }

    /// The verdict of a rule or a choice on this process itself. `is`: how giveway has reniced it.
    pub fn judged(&mut self, id: ProcessId, process: &Process, verdict: Option<&Verdict>, is: Option<Nice>) {
        if !self.is_on || self.is_paused {
            return;
        }
        let cause = verdict.and_then(|verdict| self.cause_of(verdict));
        let held = self.held.get(&id).copied();
        let is_inherited = verdict.is_some_and(|verdict| verdict.by == By::Inheritance);
        let has = |wanted| is.is_some_and(|is| is.cause == wanted);
        let is_news = match (cause, held) {
            // Inherited from its parent.
            (Some(cause), None) if is_inherited && has(cause) => false,
            (Some(cause), held) => held != Some(cause),
            (None, Some(_)) => true,
            // Inherited from its parent. If the cause is not active any more, it is restored anyway.
            (None, None) => is.is_some_and(|is| verdict.is_some() || self.is_installed(is.cause)),
        };
        if is_news {
            self.pending.insert(id, ask(process, cause, verdict));
        } else {
            self.pending.remove(&id);
        }
    }

    /// A class was just chosen for it, and its program is about to start: at once.
    pub fn chosen(&mut self, id: ProcessId, process: &Process, verdict: &Verdict) -> Option<Action> {
        self.judged(id, process, Some(verdict), Some(Nice { by: id.pid, cause: 0 }));
        self.ask(id)
    }

    fn is_installed(&self, cause: u32) -> bool {
        [CHOICE, HAND].contains(&cause) || self.causes.values().any(|known| known.number == cause)
    }

    fn cause_of(&self, verdict: &Verdict) -> Option<u32> {
        match verdict.by {
            _ if verdict.class != Class::Background => None,
            By::Choice => Some(CHOICE),
            By::Hand => Some(HAND),
            _ => {
                let of = self.causes.values().find(|cause| cause.place == verdict.rule);
                of.map(|cause| cause.number)
            }
        }
    }

    /// Takes in all present processes.
    pub fn keep(&mut self, listed: &[Fingerprint]) {
        let present: BTreeSet<ProcessId> = listed.iter().map(|listed| listed.id).collect();
        self.held.retain(|id, _| present.contains(id));
        self.pending.retain(|id, _| present.contains(id));
    }

    /// The processes whose turn it is.
    pub fn due(&mut self, now: Duration) -> Vec<Action> {
        if self.back_off.next().is_some() && !self.back_off.is_due(now) {
            return Vec::new();
        }
        let pending = self.pending.iter().map(|(id, ask)| (ask.uid, *id));
        let mut due = self.turns.order(pending);
        due.truncate(AT_ONCE);
        let mut actions = Vec::new();
        for (uid, id) in due {
            self.turns.had(uid);
            actions.extend(self.ask(id));
        }
        actions
    }

    fn ask(&mut self, process: ProcessId) -> Option<Action> {
        let ask = self.pending.remove(&process)?;
        let (cause, reason) = (ask.cause, ask.reason.clone());
        self.asked.insert(process, ask);
        Some(Action::Renice { process, cause, reason })
    }

    /// Returns the change to report, if any.
    pub fn conclude(&mut self, now: Duration, id: ProcessId, outcome: Outcome) -> Option<Change> {
        let ask = self.asked.remove(&id)?;
        let niced = match outcome {
            Ok(niced) => niced,
            Err(reason) => {
                let was_waiting = self.back_off.next().is_some();
                if !was_waiting {
                    self.back_off.failed(now);
                }
                let change = (!was_waiting).then(|| ask.change(id, &Reniced::default(), false, &reason));
                self.pending.entry(id).or_insert(ask);
                return change;
            }
        };
        if self.back_off.next().is_none() {
            self.back_off.reset();
        }
        match ask.cause {
            Some(cause) => drop(self.held.insert(id, cause)),
            None => drop(self.held.remove(&id)),
        }
        let made = niced.threads > 0 && !self.dry_run;
        let reason = match &niced.left {
            Some(left) => format!("{}; not changed: {left}", ask.reason.reason),
            None => ask.reason.reason.clone(),
        };
        (made || self.dry_run || niced.left.is_some()).then(|| ask.change(id, &niced, made, &reason))
    }

    /// A process that inherited it.
    pub fn inherited(&self, id: ProcessId, is: Nice) -> Option<Change> {
        if self.held.contains_key(&id) || is.by == id.pid {
            return None;
        }
        let place = match is.cause {
            CHOICE => Some("giveway exec".to_owned()),
            HAND => Some("giveway class set".to_owned()),
            cause => {
                let of = self.causes.values().find(|of| of.number == cause);
                of.map(|of| of.place.clone())
            }
        };
        let reason = Reason {
            rule: place?,
            reason: format!("inherited from process {}, which is background", is.by),
        };
        Some(change(id, "", (Value::default(), NICE.into()), reason, true))
    }
}

fn ask(process: &Process, cause: Option<u32>, own: Option<&Verdict>) -> Ask {
    let (rule, reason) = match own {
        Some(own) if cause.is_some() => (own.rule.clone(), own.reason.clone()),
        Some(own) => (
            own.rule.clone(),
            format!("it is {} now: {}", own.class.name(), own.reason),
        ),
        None => ("default".to_owned(), "no rule makes it background any more".to_owned()),
    };
    Ask {
        uid: process.uid,
        name: process.exe.clone(),
        cause,
        reason: Reason { rule, reason },
    }
}

impl Ask {
    fn change(&self, id: ProcessId, niced: &Reniced, made: bool, reason: &str) -> Change {
        let before = match niced.before.is_empty() {
            true => Value::default(),
            false => Value::from(niced.before.as_str()),
        };
        let values = match self.cause {
            Some(_) => (before, NICE.into()),
            None => (NICE.into(), before),
        };
        let reason = Reason {
            rule: self.reason.rule.clone(),
            reason: reason.to_owned(),
        };
        change(id, &self.name, values, reason, made)
    }
}

/// Another tool has changed a thread since.
pub fn taken(id: ProcessId, tid: u32, now: &str) -> Change {
    let reason = format!("thread {tid}: conflict: set by another tool, and not overridden");
    let rule = "another tool".to_owned();
    change(id, "", (NICE.into(), now.into()), Reason { rule, reason }, true)
}

fn change(
    id: ProcessId,
    name: &str,
    (old, new): (Value, Value),
    Reason { rule, reason }: Reason,
    made: bool,
) -> Change {
    Change {
        subject: Subject::Process { id },
        name: name.to_owned(),
        setting: Setting::Niceness,
        old,
        new,
        rule,
        reason,
        made,
    }
}

#[cfg(test)]
mod tests;
