// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Of the thread of rules: processes, from the event that tells of one to what the engine is told of it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::change::Subject;
use giveway_engine::model::{Process, ProcessId};
use giveway_engine::priority::{self, StartedProcess, first_match};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::{RulesLoop, Unread};
use crate::kernel::is_shortage;
use crate::kernel::process::{Handle, ReadProcess};
use crate::kernel::task_watch::{Arguments, TaskChange, TaskEvent};

/// Processes of one user of which that is tried at once.
const UNREAD_OF_A_USER: usize = 64;
/// No user has this number ((uid_t) -1).
const NOBODY: u32 = u32::MAX;

impl RulesLoop {
    pub(super) fn take_arguments(&mut self, id: ProcessId, image: u64, text: Option<String>) {
        let Some(unread) = self.unread.get_mut(&id.pid) else {
            return;
        };
        (unread.is_asked, unread.tries) = (false, unread.tries + 1);
        if text.is_some() {
            self.arguments.insert(id.pid, Arguments { image, text });
            self.judge_by_number(id.pid, Some(id));
            return self.release_if_unknown(id.pid);
        }
        // One that has executed nothing since it was judged stays what it was: other users can hold its folder in /proc.
        if self.arguments.contains_key(&id.pid) {
            let started = unknown(id);
            self.feed(
                priority::Input::Started {
                    started: started.into(),
                    rule: None,
                },
                None,
            );
            self.release_unless_held(id);
        }
        self.release_if_unknown(id.pid);
    }

    /// Looks at all processes for those that rules match.
    pub(super) fn scan_processes(&mut self) {
        if self.wanted.is_nothing() && self.held.is_empty() {
            return;
        }
        let listed = self.tools.tasks.processes();
        let listed = self.tolerate(listed).into_iter().flatten();
        let mut pids = self.wanted.candidates(listed);
        pids.extend(self.held.keys());
        for pid in pids {
            self.heartbeat.beat();
            self.keep_pace();
            self.judge_by_number(pid, None);
        }
    }

    pub(super) fn judge_by_number(&mut self, pid: u32, expected: Option<ProcessId>) {
        // Where it has gone, its end has been told if it was held.
        if let Some(handle) = self.open(pid) {
            self.judge(handle, expected);
        }
    }

    pub(super) fn take_events(&mut self) -> Result<()> {
        for event in self.tools.watch.events()? {
            self.heartbeat.beat();
            self.take(event);
            self.keep_pace();
        }
        let lost = self.tools.watch.lost_events()?;
        if lost > self.lost_events {
            self.lost_events = lost;
            self.forget_ended();
            self.scan_processes();
        }
        Ok(())
    }

    pub(super) fn take(&mut self, event: TaskEvent) {
        let TaskEvent { id, what, .. } = event;
        match what {
            TaskChange::Exec(arguments) => {
                self.arguments.insert(id.pid, arguments);
                self.judge_by_number(id.pid, Some(id));
                self.release_if_unknown(id.pid);
            }
            TaskChange::Thread { tid } => self.feed(priority::Input::TaskAdded { id, tid }, None),
            TaskChange::Exit { cpu } => self.forget(id, cpu),
        }
    }

    /// None where it has ended, or cannot be opened now.
    pub(super) fn open(&mut self, pid: u32) -> Option<Handle> {
        let opened = Handle::open(pid).context("cannot open a process");
        if let Some(error) = opened.as_ref().err().filter(|error| is_shortage(error)) {
            self.note_failure(error);
        }
        opened.ok()
    }

    /// Reads a process and tells the engine what it is. `expected`: the one that the event is about.
    pub(super) fn judge(&mut self, handle: Handle, expected: Option<ProcessId>) {
        let pid = handle.pid;
        let was_held = self.held.get(&pid).copied();
        let held = self.tools.watch.hold(pid);
        if self.tolerate(held).is_none() {
            return;
        }
        let found = handle.read(&self.tools.tasks, &self.wanted);
        if let Some(error) = found.as_ref().err().filter(|error| is_shortage(error)) {
            // It stays what it was until it can be read.
            self.note_failure(error);
            return self.release_if_unknown(pid);
        }
        let is_it = |found: &ReadProcess| expected.is_none_or(|id| id == found.started.id) && !is_own(found);
        match (found.ok().filter(is_it), was_held) {
            (Some(mut found), _) => {
                self.executed.recall(&mut found);
                let Some(cmdline) = self.arguments_of(&found) else {
                    return self.release_if_unknown(pid);
                };
                self.unread.remove(&pid);
                let mut started = found.started;
                started.process.cmdline = cmdline;
                self.begin(started, handle);
            }
            // What cannot be read any more matches no rule. If it has ended, an event says so.
            (None, Some(id)) => {
                self.unread.remove(&pid);
                let started = unknown(id);
                self.feed(
                    priority::Input::Started {
                        started: started.into(),
                        rule: None,
                    },
                    None,
                );
            }
            // Gone, a thread of the kernel, or another one by now.
            (None, None) => {
                self.unread.remove(&pid);
                self.release_if_unknown(pid);
            }
        }
        if let Some(id) = self.held.get(&pid).copied() {
            self.release_unless_held(id);
        }
    }

    /// None where they are being asked for.
    pub(super) fn arguments_of(&mut self, found: &ReadProcess) -> Option<String> {
        let StartedProcess { id, process, .. } = &found.started;
        let is_any_pattern = self.rules.iter().any(|rule| rule.matcher.cmdline.is_some());
        if !is_any_pattern || !self.wanted.has(process) {
            return Some(String::new());
        }
        let known = self.arguments.get(&id.pid).filter(|known| known.image == found.image);
        if let Some(text) = known.and_then(|known| known.text.clone()) {
            return Some(text);
        }
        let of_user = self.unread.values().filter(|unread| unread.uid == process.uid).count();
        if of_user < UNREAD_OF_A_USER || self.unread.contains_key(&id.pid) {
            let new = Unread {
                uid: process.uid,
                tries: 0,
                is_asked: false,
            };
            let unread = self.unread.entry(id.pid).or_insert(new);
            if !unread.is_asked
                && let Some(look_ups) = &self.tools.look_ups
            {
                unread.is_asked = look_ups.arguments(process.uid, *id, found.image);
            }
            if self.tools.look_ups.is_none() {
                self.start_look_ups();
            }
        }
        None
    }

    pub(super) fn begin(&mut self, started: StartedProcess, handle: Handle) {
        let id = started.id;
        self.count_donated_by(id);
        if let Some(before) = self.held.insert(id.pid, id).filter(|before| *before != id) {
            // An end that no event told of.
            self.end(before, Duration::ZERO);
        }
        let rule = first_match(&self.rules, &started.process);
        self.feed(
            priority::Input::Started {
                started: started.into(),
                rule,
            },
            Some(handle),
        );
    }

    pub(super) fn forget(&mut self, id: ProcessId, cpu: Duration) {
        self.end(id, cpu);
        self.unread.remove(&id.pid);
        self.release_unless_held(id);
        self.release_if_unknown(id.pid);
    }

    pub(super) fn end(&mut self, id: ProcessId, cpu: Duration) {
        self.count_donated_by(id);
        self.tools.donation.remove(id);
        self.tools.actuator.forget(id);
        self.feed(priority::Input::Exited { id, cpu }, None);
        self.changes.ended(&Subject::Process { id });
    }

    pub(super) fn release_unless_held(&mut self, id: ProcessId) {
        if !self.engine.lock().holds(id) && self.held.get(&id.pid) == Some(&id) {
            self.held.remove(&id.pid);
            self.release_if_unknown(id.pid);
        }
    }

    pub(super) fn release_if_unknown(&mut self, pid: u32) {
        let is_asked = self.unread.get(&pid).is_some_and(|unread| unread.is_asked);
        if !self.held.contains_key(&pid) && !is_asked {
            self.arguments.remove(&pid);
            self.tools.watch.release(pid);
        }
    }

    /// Ends that no event told of.
    pub(super) fn forget_ended(&mut self) {
        let is_gone = |pid: u32| kill(Pid::from_raw(pid.cast_signed()), None) == Err(Errno::ESRCH);
        let gone: Vec<ProcessId> = self.held.values().copied().filter(|id| is_gone(id.pid)).collect();
        gone.into_iter().for_each(|id| self.forget(id, Duration::ZERO));
    }
}

/// giveway itself and its watchdog are not for rules.
pub(super) fn is_own(found: &ReadProcess) -> bool {
    let own = std::process::id();
    found.started.id.pid == own || found.parent == own
}

/// A process of which nothing is known matches no rule.
pub(super) fn unknown(id: ProcessId) -> StartedProcess {
    StartedProcess {
        id,
        process: Process {
            exe: "something that cannot be read".to_owned(),
            uid: NOBODY,
            euid: NOBODY,
            ..Process::default()
        },
        tasks: 1,
        cpu: Duration::ZERO,
    }
}
