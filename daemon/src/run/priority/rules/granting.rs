// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Of the thread of rules: carries out what the engine wants, and counts what was used of it.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Context as _;
use giveway_engine::model::ProcessId;
use giveway_engine::priority::{self, Usage};
use nix::errno::Errno;

use super::{HOUSEKEEPING, RulesLoop};
use crate::kernel::process::Handle;
use crate::kernel::{errno_of, is_shortage, now};

/// More new threads than these are not made up for.
const MISSED_KEPT: usize = 4096;

impl RulesLoop {
    /// Feeds the engine, and carries out what follows until nothing follows any more. `handle`: of the process that
    /// this is about.
    pub(super) fn feed(&mut self, input: priority::Input, handle: Option<Handle>) {
        let actions = self.engine.step(input);
        self.carry_out(actions, handle);
    }

    fn has_ended(&self, id: ProcessId) -> bool {
        let main = self.tools.tasks.threads.thread(id.pid);
        main.is_ok_and(|main| main.is_none_or(|main| main.start_ns != id.start_ns || main.is_ending))
    }

    /// Returns why a grant among these was refused.
    // Long: an arm an action.
    pub(super) fn carry_out(&mut self, actions: Vec<priority::Action>, mut handle: Option<Handle>) -> Option<String> {
        let mut actions = VecDeque::from(actions);
        let mut refused = None;
        while let Some(action) = actions.pop_front() {
            match action {
                priority::Action::Grant { id, schedule } => {
                    self.count_donated_by(id);
                    let reopen = || Handle::of(id, &self.tools.tasks);
                    let outcome = handle.take().map_or_else(reopen, Ok);
                    let outcome = outcome.context("it cannot be opened");
                    // Before they have it: who waits for a lock already donates it at once, and the kernel tells of that once.
                    let threads = self.tools.tasks.threads.of(id.pid).unwrap_or_default();
                    self.may_donate(id, threads.into_iter().map(|thread| thread.tid).collect());
                    let outcome = outcome.and_then(|handle| self.tools.actuator.apply(handle, id, &schedule));
                    refused = outcome.as_ref().err().map(|error| format!("{error:#}"));
                    if outcome.is_ok() {
                        let given = self.tools.actuator.threads(id);
                        let new = given.filter(|tid| !self.tools.donation.has(id, *tid)).collect();
                        self.may_donate(id, new);
                    } else {
                        self.tools.donation.remove(id);
                    }
                    let became = match outcome {
                        Err(_) if self.has_ended(id) => priority::Input::EndedBefore { id },
                        Err(error) if errno_of(&error).is_some_and(|errno| errno != Errno::ESRCH) => {
                            let reason = format!("{error:#}");
                            self.retry_later(reason.clone());
                            priority::Input::NotGiven { id, reason }
                        }
                        outcome => priority::Input::Outcome {
                            id,
                            outcome: outcome.map_err(|error| format!("{error:#}")),
                        },
                    };
                    actions.extend(self.engine.step(became));
                }
                priority::Action::GrantTask { id, tid } => {
                    self.may_donate(id, vec![tid]);
                    if let Err(error) = self.tools.actuator.apply_task(id, tid) {
                        if is_shortage(&error) && self.missed.len() < MISSED_KEPT {
                            self.missed.insert((id, tid));
                        }
                        let pid = id.pid;
                        self.note_failure(&error.context(format!("thread {tid} of process {pid} gets no real time")));
                    }
                }
                priority::Action::Revoke { id } => {
                    self.tools.actuator.revert(id);
                    self.tools.donation.remove(id);
                }
                priority::Action::ScanProcesses => {
                    self.follow_rules();
                    self.scan_processes();
                }
                priority::Action::RaiseNapi { threads, priority } => {
                    let refused = self.tools.napi.raise(&threads, priority);
                    let cpu = self.tools.napi.cpu();
                    actions.extend(self.engine.step(priority::Input::NapiRaised { cpu, refused }));
                }
                priority::Action::LowerNapi => {
                    let lowered = self.tools.napi.lower();
                    self.tolerate(lowered);
                }
                priority::Action::Record(change) => self.changes.note(now(), *change),
                action @ (priority::Action::Raise { .. }
                | priority::Action::Lower { .. }
                | priority::Action::Bar { .. }) => {
                    if let Some(chains) = &self.chains {
                        chains.carry_out(action);
                    }
                }
            }
        }
        refused
    }

    /// What the granted have used, and whether anything without real time still runs.
    pub(super) fn account(&mut self) {
        let at = now();
        let is_time_to_check = at.saturating_sub(self.checked) >= HOUSEKEEPING;
        if is_time_to_check {
            self.checked = at;
        }
        self.count_donated();
        let granted = self.engine.lock().granted();
        let mut processes = Vec::new();
        for id in granted {
            let handle = self.tools.actuator.handle(id);
            match handle.filter(|handle| handle.is_alive()) {
                Some(handle) => processes.push(Usage {
                    id,
                    cpu: handle.cpu(),
                    tasks: self.threads_having(id),
                    found: is_time_to_check.then(|| self.tools.actuator.check(id)).flatten(),
                }),
                None => self.forget(id, Duration::ZERO),
            }
        }
        let napi = self.tools.napi.cpu();
        self.feed(priority::Input::Usage { processes, napi }, None);
        if let Some((cpu, waited)) = self.tools.canaries.longest_still(at) {
            self.feed(priority::Input::Starvation { cpu, waited }, None);
        }
        self.next_account = Some(self.engine.lock().next_usage(now()));
    }

    /// Its threads that have real time. Others take nobody's place, and who has some may make any number of them; of those
    /// that were given it, some have ended.
    pub(super) fn threads_having(&self, id: ProcessId) -> u32 {
        let main = self.tools.tasks.threads.thread(id.pid).ok().flatten();
        let given = u32::try_from(self.tools.actuator.threads(id).count()).unwrap_or(u32::MAX);
        main.map_or(0, |main| main.tasks).min(given)
    }

    /// What these threads of a process donate is counted from now on.
    pub(super) fn may_donate(&mut self, id: ProcessId, tids: Vec<u32>) {
        let added = self.tools.donation.add(id, tids);
        self.tolerate(added);
    }

    /// Before anything is told of a process: what it has donated may be all that is to be told.
    pub(super) fn count_donated_by(&mut self, id: ProcessId) {
        if self.tools.donation.knows(id.pid) {
            self.count_donated();
        }
    }

    pub(super) fn count_donated(&mut self) {
        let donated = self.tools.donation.take();
        for donated in self.tolerate(donated).into_iter().flatten() {
            self.feed(donated, None);
        }
    }
}
