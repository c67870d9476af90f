// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processes run at nice 19 and in the idle I/O class, because they are background. Input: verdicts on processes, what
//! was chosen for one just now, and what became of each request. Output: which to renices, and which are to get back
//! what they had; a bounded number a second, users in turns.
//!
//! Only what is said of the process itself counts: a rule that asks for nothing but the process, its own or that of what
//! started it, or a choice. What evidence says it has by itself, and what only a socket is says nothing of the CPU. The
//! kernel hands it on at a fork; what is not background, since another rule says so or its parent's rule is for that one
//! alone, gets back what it had.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::back_off::BackOff;
use crate::change::{Change, Reason, Setting, Subject, Value};
use crate::class::{By, Rules, Verdict};
use crate::model::{Class, Fingerprint, Nice, Process, ProcessId};
use crate::turns::Turns;

/// Each costs two scans over its threads, and two system calls a thread.
const AT_ONCE: usize = 64;
/// Of a choice, which is active for as long as there is a daemon.
const CHOICE: u32 = 1;
/// The same of what was set by hand.
const HAND: u32 = u32::MAX;
const NICE: &str = "nice 19, idle I/O class";

#[derive(Debug)]
pub enum Input {
    /// The outcome of [`Action::Renice`].
    Outcome { process: ProcessId, outcome: Outcome },
    /// Threads of these processes that were reniced have been set to this by somebody else.
    Taken(Vec<(ProcessId, u32, String)>),
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// All threads of this process, and what they start, run at nice 19 and in the idle I/O class for as long as this
    /// cause is active; None: it gets back what it had. Answered by an [`Outcome`].
    Renice {
        process: ProcessId,
        cause: Option<u32>,
        reason: Reason,
    },
    /// The causes that are active from now on; what was reniced by another gets back what it had.
    Causes(BTreeSet<u32>),
}

pub type Outcome = Result<Reniced, String>;

/// What became of [`Action::Renice`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reniced {
    /// Threads for which it is news.
    pub threads: u32,
    /// What the main thread had, or gets back.
    pub before: String,
    /// Why none of its threads is changed, where none is.
    pub left: Option<String>,
}

#[derive(Debug)]
pub struct Niceness {
    is_on: bool,
    pub dry_run: bool,
    /// Nothing is reniced for a while.
    is_paused: bool,
    /// Numbers of the rules active, by their words: lines move when a file is written anew.
    causes: BTreeMap<String, NiceCause>,
    numbered: u32,
    /// Processes that were reniced for their own sake, and by which cause.
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
    /// None: it gets back what it had.
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

    /// These rules are active from now on. What was reniced by others gets back what it had, whoever started it.
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

    /// What was reniced gets back what it had, as if no rule said anything, until it `is_paused` no longer; then all have to
    /// be judged again. Returns also the changes, for this reason.
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

    /// What a rule or a choice says of this process itself now. `is`: what giveway has made of it.
    pub fn judged(&mut self, id: ProcessId, process: &Process, verdict: Option<&Verdict>, is: Option<Nice>) {
        if !self.is_on || self.is_paused {
            return;
        }
        let cause = verdict.and_then(|verdict| self.cause_of(verdict));
        let held = self.held.get(&id).copied();
        let is_inherited = verdict.is_some_and(|verdict| verdict.by == By::Inheritance);
        let has = |wanted| is.is_some_and(|is| is.cause == wanted);
        let is_news = match (cause, held) {
            // The kernel has handed it on.
            (Some(cause), None) if is_inherited && has(cause) => false,
            (Some(cause), held) => held != Some(cause),
            (None, Some(_)) => true,
            // It has it from what started it. Where the cause is no more, it gets back what it had anyway.
            (None, None) => is.is_some_and(|is| verdict.is_some() || self.is_installed(is.cause)),
        };
        if is_news {
            self.pending.insert(id, ask(process, cause, verdict));
        } else {
            self.pending.remove(&id);
        }
    }

    /// This was just chosen for it, and its program is about to start: at once.
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

    /// There are no others.
    pub fn keep(&mut self, listed: &[Fingerprint]) {
        let present: BTreeSet<ProcessId> = listed.iter().map(|listed| listed.id).collect();
        self.held.retain(|id, _| present.contains(id));
        self.pending.retain(|id, _| present.contains(id));
    }

    /// Those whose turn it is.
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

    /// Returns the change, if there is one to tell of.
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

    /// A process that has it from the one that started it.
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

/// Somebody else has set a thread's since.
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
