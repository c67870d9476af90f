// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives threads real time and takes it back. In come processes and what they are to have, out goes what they had, or
//! why the kernel refuses. It never decides, and sets back only what still is as it was given.
//!
//! What a thread was is written down before it is changed; [`undo`] sets it back from there, in this process or after
//! its death. A thread is named by its number, its start and its process's pidfd: when a number has gone to somebody
//! else meanwhile, what was set is taken back at once.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use giveway_engine::matcher::ProcessId;
use giveway_engine::realtime::{Given, Policy, Schedule};
use nix::errno::Errno;

use crate::kernel::process::{Handle, thread_start};
use crate::place::Place;

pub mod attributes;
mod journal;
mod refusal;

use attributes::{Attributes, cpus_in_order, cpus_of, set_cpus};
use journal::{Changed, Journal};
use refusal::{Surroundings, explain};

/// A process may make threads as fast as they are set. Those that come later are told of one by one.
const ROUNDS: u32 = 4;
/// Threads that have ended are forgotten when they are this many more than live.
const ENDED_KEPT: usize = 64;

struct Process {
    handle: Handle,
    schedule: Schedule,
    threads: BTreeMap<u32, Changed>,
}

pub struct ScheduleActuator {
    journal: Journal,
    given: BTreeMap<ProcessId, Process>,
    usual_slice_ns: u64,
}

impl ScheduleActuator {
    /// Call from an ordinary thread: the kernel tells what is usual.
    pub fn open(place: &Place) -> Self {
        Self {
            journal: Journal::at(place.realtime_journal()),
            given: BTreeMap::new(),
            usual_slice_ns: Attributes::of(0).map_or(0, |own| own.slice_ns()),
        }
    }

    /// Gives it to all threads of a process, or to none.
    ///
    /// # Errors
    /// Why the kernel refuses, in words.
    pub fn apply(&mut self, handle: Handle, id: ProcessId, schedule: &Schedule) -> Result<Given, String> {
        let old = Attributes::of(id.pid).map_err(|errno| self.refused(errno, id.pid, schedule))?;
        let had = self
            .given
            .remove(&id)
            .map(|process| process.threads)
            .unwrap_or_default();
        let process = Process {
            handle,
            schedule: schedule.clone(),
            threads: BTreeMap::new(),
        };
        self.given.insert(id, process);
        if let Err(why) = self.apply_to_all(id, &had) {
            self.revert(id);
            return Err(why);
        }
        let tasks = self.given.get(&id).map_or(0, |process| process.threads.len());
        Ok(Given {
            tasks: u32::try_from(tasks).unwrap_or(u32::MAX),
            old: old.shown(),
        })
    }

    fn apply_to_all(&mut self, id: ProcessId, had: &BTreeMap<u32, Changed>) -> Result<(), String> {
        for _ in 0..ROUNDS {
            let Some(process) = self.given.get(&id) else { break };
            let mut tids = process.handle.threads().map_err(|_| "it has ended".to_owned())?;
            tids.retain(|tid| !process.threads.contains_key(tid));
            if tids.is_empty() {
                break;
            }
            self.set(id, &tids, had)?;
        }
        Ok(())
    }

    /// Gives one more thread of a process what the others have.
    ///
    /// # Errors
    /// Why the kernel refuses, in words.
    pub fn apply_task(&mut self, id: ProcessId, tid: u32) -> Result<(), String> {
        self.set(id, &[tid], &BTreeMap::new())
    }

    fn set(&mut self, id: ProcessId, tids: &[u32], had: &BTreeMap<u32, Changed>) -> Result<(), String> {
        let Some(process) = self.given.get_mut(&id) else {
            return Ok(());
        };
        let mut changes = Vec::new();
        let main = process.threads.get(&id.pid).map(|main| main.old);
        for tid in tids {
            let known = process.threads.get(tid);
            let Some(mut change) = before(id, *tid, &process.schedule, had, self.usual_slice_ns) else {
                continue;
            };
            // A thread of one that has real time starts with nothing; without it, it would have what its maker had.
            if let Some(main) = main.filter(|_| change.old.is_reset()) {
                change.old = main;
            }
            if known.is_none_or(|known| known.start_ns != change.start_ns) {
                changes.push(change);
            }
        }
        self.journal
            .add(&changes)
            .map_err(|error| format!("what it was cannot be written down ({error}), so it is not changed"))?;
        for change in changes {
            let (tid, schedule) = (change.tid, process.schedule.clone());
            match put(&change, &process.handle) {
                Ok(()) => drop(process.threads.insert(tid, change)),
                // It has ended meanwhile.
                Err(Errno::ESRCH) => {}
                Err(errno) => return Err(self.refused(errno, tid, &schedule)),
            }
        }
        Ok(())
    }

    fn refused(&self, errno: Errno, tid: u32, schedule: &Schedule) -> String {
        let mut around = Surroundings::of(tid);
        // What was tried has been taken back already.
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
        let set_back = process.threads.values().filter(|thread| take_back(thread)).count();
        if let Err(error) = self
            .journal
            .replace(self.given.values().flat_map(|p| p.threads.values()))
        {
            tracing::debug!("the journal of real time keeps more than is in force: {error}");
        }
        set_back > 0
    }

    /// Sets everything back; says how many processes had something.
    pub fn revert_all(&mut self) -> Result<usize> {
        let processes: Vec<ProcessId> = self.given.keys().copied().collect();
        let set_back = processes.into_iter().filter(|id| self.revert(*id)).count();
        self.journal.clear().context("cannot clear the journal of real time")?;
        Ok(set_back)
    }

    /// A process that has ended has nothing to be set back.
    pub fn forget(&mut self, id: ProcessId) {
        self.given.remove(&id);
    }

    pub fn handle(&self, id: ProcessId) -> Option<&Handle> {
        self.given.get(&id).map(|process| &process.handle)
    }

    /// What somebody else has given the process in place of what we gave.
    pub fn check(&self, id: ProcessId) -> Option<String> {
        let process = self.given.get(&id)?;
        let main = process.threads.get(&id.pid)?;
        let found = Attributes::of(id.pid).ok()?;
        (!found.is_still(&main.given)).then(|| found.shown())
    }

    /// Forgets threads that have ended; call it now and then.
    pub fn tidy(&mut self) -> Result<()> {
        for process in self.given.values_mut() {
            if process.threads.len() > process.handle.tasks() as usize + ENDED_KEPT {
                let lives: BTreeSet<u32> = process.handle.threads().unwrap_or_default().into_iter().collect();
                process.threads.retain(|tid, _| lives.contains(tid));
            }
        }
        let threads = || self.given.values().flat_map(|process| process.threads.values());
        if self.journal.is_long(threads().count()) {
            self.journal
                .replace(threads())
                .context("cannot shorten the journal of real time")?;
        }
        Ok(())
    }
}

/// What a thread is before it is changed, and what it is to be; None where it has ended.
fn before(
    id: ProcessId,
    tid: u32,
    schedule: &Schedule,
    had: &BTreeMap<u32, Changed>,
    usual_slice_ns: u64,
) -> Option<Changed> {
    let start_ns = thread_start(id.pid, tid)?;
    let first = had.get(&tid).filter(|had| had.start_ns == start_ns);
    let is = Attributes::of(tid).ok()?.without_slice(usual_slice_ns);
    let cpus = || Some((cpus_of(tid).ok()?, cpus_in_order(schedule)));
    let cpus = if schedule.cpus.is_empty() { None } else { cpus() };
    Some(Changed {
        process: id,
        tid,
        start_ns,
        // What was given to it before is not what it was.
        old: first.map_or(is, |first| first.old),
        given: Attributes::for_policy(schedule.policy),
        cpus: match first.and_then(|first| first.cpus.clone()) {
            Some((was, given)) => Some((was, cpus.map_or(given, |(_, new)| new))),
            None => cpus,
        },
    })
}

fn put(change: &Changed, handle: &Handle) -> Result<(), Errno> {
    if let Some((_, cpus)) = &change.cpus {
        set_cpus(change.tid, cpus)?;
    }
    let done = change.given.set(change.tid);
    // The number may have gone to another process between reading and setting.
    let is_it = thread_start(handle.pid, change.tid) == Some(change.start_ns) && handle.is_alive();
    if done.is_err() || !is_it {
        // Nothing of it is left, whoever has the number now.
        let _ = put_back(change);
    }
    if is_it { done } else { Err(Errno::ESRCH) }
}

/// Whether the thread carried something of ours, which it does not any more.
fn take_back(change: &Changed) -> bool {
    is_there(change) && put_back(change).unwrap_or_default()
}

fn is_there(change: &Changed) -> bool {
    thread_start(change.process.pid, change.tid) == Some(change.start_ns)
}

fn put_back(change: &Changed) -> Result<bool, Errno> {
    let carries = carries(change)?;
    if carries {
        // Not even that may keep its priority: what it was may have become impossible.
        change
            .old
            .set(change.tid)
            .or_else(|_| Attributes::ordinary().set(change.tid))?;
    }
    if let Some((before, given)) = &change.cpus
        && cpus_of(change.tid)?.iter().all(|cpu| given.contains(cpu))
    {
        set_cpus(change.tid, before)?;
    }
    Ok(carries)
}

fn carries(change: &Changed) -> Result<bool, Errno> {
    Ok(Attributes::of(change.tid)?.is_still(&change.given))
}

/// Why the kernel refuses a policy to the calling thread, in words.
pub fn why_refused(errno: Errno, policy: Policy) -> String {
    explain(errno, policy, &Surroundings::of(std::process::id()))
}

/// Sets everything back that the journal knows, or in a dry run only finds it; a line for each process. The caller
/// holds the lock.
pub fn undo(place: &Place, dry_run: bool) -> Result<Vec<String>> {
    let mut journal = Journal::at(place.realtime_journal());
    let changed = journal
        .read()
        .context("cannot read what had real time; try `giveway revert` again")?;
    let mut undone = BTreeMap::new();
    for change in changed.iter().filter(|change| is_there(change)) {
        let did = if dry_run { carries(change) } else { put_back(change) };
        if did.unwrap_or_default() {
            let of_process = undone
                .entry(change.process.pid)
                .or_insert((0, change.given, change.old));
            of_process.0 += 1;
        }
    }
    if !dry_run {
        journal.clear().context("cannot clear the journal of real time")?;
    }
    let line = |(pid, (threads, given, old)): (u32, (u32, Attributes, Attributes))| {
        format!(
            "process {pid}: {} back to {} ({threads} threads)",
            given.shown(),
            old.shown()
        )
    };
    Ok(undone.into_iter().map(line).collect())
}
