// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives processes real time and takes it back. Input: processes and what they are to have. Output: what they had, or why
//! the kernel refuses. It never decides.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use giveway_engine::model::ProcessId;
use giveway_engine::priority::{GrantedTasks, Schedule};
use nix::errno::Errno;

use super::thread::attributes::{Attributes, cpus_in_order, cpus_of};
use super::thread::refusal::{GrantConditions, explain, prepare};
use super::thread::{self, ThreadChange};
use crate::journal::Journal;
use crate::kernel::process::{Handle, ThreadMark};
use crate::kernel::tasks::{RealtimeGroup, Tasks};
use crate::place::Place;

/// A process may make threads as fast as they are set. Those that come later are reported one by one.
const ROUNDS: u32 = 4;
/// Threads that have ended are forgotten when so many are new.
const ENDED_KEPT: usize = 64;

struct Process {
    handle: Handle,
    schedule: Schedule,
    threads: BTreeMap<u32, ThreadChange>,
    /// From so many on, those that have ended are forgotten.
    kept: usize,
}

pub struct ScheduleActuator {
    tasks: Arc<Tasks>,
    journal: Journal<ThreadChange>,
    given: BTreeMap<ProcessId, Process>,
    usual_slice_ns: u64,
    /// A thread could not be restored: the journal stays as long as it is, for the next undo.
    has_failed: bool,
}

impl ScheduleActuator {
    /// Call from a thread without real time: its slice is the usual one.
    pub fn open(place: &Place, tasks: Arc<Tasks>) -> Self {
        prepare(|| tasks.process(std::process::id()).ok()??.share);
        Self {
            tasks,
            journal: Journal::at(place.journal(thread::REALTIME.file)),
            given: BTreeMap::new(),
            usual_slice_ns: Attributes::of(0).map_or(0, |own| own.slice_ns()),
            has_failed: false,
        }
    }

    /// Gives it to all threads of a process, or to none.
    ///
    /// # Errors
    /// Why the kernel refuses, in words; or an error of the kernel's where something else fails.
    pub fn apply(&mut self, handle: Handle, id: ProcessId, schedule: &Schedule) -> Result<GrantedTasks> {
        let old = Attributes::of(id.pid).map_err(|errno| anyhow!(self.refused(errno, id.pid, schedule)))?;
        let had = self
            .given
            .remove(&id)
            .map(|process| process.threads)
            .unwrap_or_default();
        let process = Process {
            handle,
            schedule: schedule.clone(),
            threads: BTreeMap::new(),
            kept: ENDED_KEPT,
        };
        self.given.insert(id, process);
        if let Err(error) = self.apply_to_all(id, &had) {
            // What an earlier call gave is nobody's any more.
            if let Some(process) = self.given.get_mut(&id) {
                for (tid, change) in had {
                    process.threads.entry(tid).or_insert(change);
                }
            }
            self.revert(id);
            return Err(error);
        }
        let tasks = self.given.get(&id).map_or(0, |process| process.threads.len());
        Ok(GrantedTasks {
            tasks: u32::try_from(tasks).unwrap_or(u32::MAX),
            old: old.shown(),
        })
    }

    fn apply_to_all(&mut self, id: ProcessId, had: &BTreeMap<u32, ThreadChange>) -> Result<()> {
        for _ in 0..ROUNDS {
            let Some(process) = self.given.get(&id) else { break };
            let threads = self.tasks.threads.of(id.pid).context("its threads cannot be listed")?;
            let tids = threads.into_iter().map(|thread| thread.tid);
            let tids: Vec<u32> = tids.filter(|tid| !process.threads.contains_key(tid)).collect();
            if tids.is_empty() {
                break;
            }
            self.set(id, &tids, had)?;
        }
        let is_any_set = self.given.get(&id).is_some_and(|process| !process.threads.is_empty());
        is_any_set.then_some(()).context("it has ended")
    }

    /// Gives one more thread of a process what the others have.
    ///
    /// # Errors
    /// Why the kernel refuses, in words.
    pub fn apply_task(&mut self, id: ProcessId, tid: u32) -> Result<()> {
        self.set(id, &[tid], &BTreeMap::new())
    }

    fn set(&mut self, id: ProcessId, tids: &[u32], had: &BTreeMap<u32, ThreadChange>) -> Result<()> {
        let Some(process) = self.given.get_mut(&id) else {
            return Ok(());
        };
        let mut changes = Vec::new();
        let main = process.threads.get(&id.pid).map(|main| main.old);
        for tid in tids {
            let known = process.threads.get(tid);
            let Some(mut change) = before(id, *tid, &process.schedule, had, self.usual_slice_ns)? else {
                continue;
            };
            // A thread of one that has real time starts with nothing; without it, it would have what its maker had.
            if let Some(main) = main.filter(|_| change.old.is_reset()) {
                change.old = main;
            }
            if known.is_none_or(|known| known.mark != change.mark) {
                changes.push(change);
            }
        }
        self.journal.add(&changes)?;
        for change in changes {
            let (tid, schedule) = (change.tid, process.schedule.clone());
            match change.put(&process.handle) {
                Ok(()) => drop(process.threads.insert(tid, change)),
                // It has ended meanwhile.
                Err(Errno::ESRCH) => {}
                Err(errno) => bail!(self.refused(errno, tid, &schedule)),
            }
        }
        Ok(())
    }

    fn share_of(&self, tid: u32) -> Option<RealtimeGroup> {
        self.tasks.process(tid).ok()??.share
    }

    fn refused(&self, errno: Errno, tid: u32, schedule: &Schedule) -> String {
        let mut around = GrantConditions::of(tid, self.share_of(tid));
        // What was tried has been revoked already.
        if !schedule.cpus.is_empty() {
            around.cpus.0 = around.cpus.0.min(cpus_in_order(schedule).len());
        }
        explain(errno, schedule.policy, &around)
    }

    /// Sets all threads of a process back to what they were. False where it had nothing of ours any more.
    pub fn revert(&mut self, id: ProcessId) -> bool {
        let Some(process) = self.given.remove(&id) else {
            return false;
        };
        let outcomes: Vec<_> = process.threads.values().map(ThreadChange::revoke).collect();
        let set_back = outcomes.iter().filter(|outcome| matches!(outcome, Ok(true))).count();
        self.has_failed |= outcomes.iter().any(Result::is_err);
        if self.has_failed {
            return set_back > 0;
        }
        if let Err(error) = self
            .journal
            .replace(self.given.values().flat_map(|p| p.threads.values()))
        {
            tracing::debug!("the journal of real time keeps more than is active: {error:#}");
        }
        set_back > 0
    }

    /// Sets everything back; says how many processes had something.
    pub fn revert_all(&mut self) -> Result<usize> {
        let processes: Vec<ProcessId> = self.given.keys().copied().collect();
        let set_back = processes.into_iter().filter(|id| self.revert(*id)).count();
        if !self.has_failed {
            self.journal.clear()?;
        }
        Ok(set_back)
    }

    /// A process that has ended has nothing to be set back.
    pub fn forget(&mut self, id: ProcessId) {
        self.given.remove(&id);
    }

    pub fn handle(&self, id: ProcessId) -> Option<&Handle> {
        self.given.get(&id).map(|process| &process.handle)
    }

    /// Its threads that have it.
    pub fn threads(&self, id: ProcessId) -> impl Iterator<Item = u32> {
        let process = self.given.get(&id);
        process.into_iter().flat_map(|process| process.threads.keys().copied())
    }

    pub fn has(&self, id: ProcessId, tid: u32) -> bool {
        let process = self.given.get(&id);
        process.is_some_and(|process| process.threads.contains_key(&tid))
    }

    /// What another tool has given the process in place of what we gave.
    pub fn check(&self, id: ProcessId) -> Option<String> {
        let process = self.given.get(&id)?;
        let main = process.threads.get(&id.pid)?;
        let found = Attributes::of(id.pid).ok()?;
        (!found.is_still(&main.given)).then(|| found.shown())
    }

    /// Forgets threads that have ended; call it now and then.
    pub fn tidy(&mut self) -> Result<()> {
        for process in self.given.values_mut() {
            if process.threads.len() > process.kept {
                let lives = self.tasks.threads.of(process.handle.pid)?;
                let lives: BTreeSet<u32> = lives.into_iter().map(|thread| thread.tid).collect();
                process.threads.retain(|tid, _| lives.contains(tid));
                process.kept = process.threads.len() + ENDED_KEPT;
            }
        }
        let threads = || self.given.values().flat_map(|process| process.threads.values());
        if !self.has_failed && self.journal.is_long(threads().count()) {
            self.journal.replace(threads())?;
        }
        Ok(())
    }
}

/// What a thread is before it is changed, and what it is to be; None where it has ended.
///
/// # Errors
/// Where that cannot be told now.
fn before(
    id: ProcessId,
    tid: u32,
    schedule: &Schedule,
    had: &BTreeMap<u32, ThreadChange>,
    usual_slice_ns: u64,
) -> io::Result<Option<ThreadChange>> {
    let (Some(mark), Ok(is)) = (ThreadMark::of(id.pid, tid)?, Attributes::of(tid)) else {
        return Ok(None);
    };
    let first = had.get(&tid).filter(|had| had.mark == mark);
    let is = is.without_slice(usual_slice_ns);
    let cpus = || Some((cpus_of(tid).ok()?, cpus_in_order(schedule)));
    let cpus = if schedule.cpus.is_empty() { None } else { cpus() };
    Ok(Some(ThreadChange {
        pid: id.pid,
        tid,
        mark,
        // What was given to it before is not what it was.
        old: first.map_or(is, |first| first.old),
        given: Attributes::for_policy(schedule.policy),
        cpus: match first.and_then(|first| first.cpus.clone()) {
            Some((was, given)) => Some((was, cpus.map_or(given, |(_, new)| new))),
            None => cpus,
        },
    }))
}
