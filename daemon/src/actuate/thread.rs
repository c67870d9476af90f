// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How one thread is scheduled: changed, and put back. Input: a thread and what it is to have. Output: what it had, or why
//! the kernel refuses. It never decides, and restores only what a thread still has as it was given.
//!
//! What a thread was is journalled before it is changed ([`ThreadChange`]), and put back from there, in this process or after
//! its death. A thread is named by its number and a mark, since numbers are used again. Nothing here opens a file, where
//! the kernel is 6.9 or newer.

use anyhow::{Context as _, Result, anyhow, bail};
use giveway_engine::priority::{OWN_PRIORITY, Policy};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::journal::Entry;
use crate::journal::register::{JournalFile, UndoHandler};
use crate::kernel::process::{Handle, ThreadMark};

pub mod attributes;
pub mod refusal;

use attributes::{Attributes, cpus_of, set_cpus};
use refusal::{GrantConditions, explain};

/// A thread that has what giveway gave, or is about to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ThreadChange {
    pub pid: u32,
    pub tid: u32,
    pub mark: ThreadMark,
    pub old: Attributes,
    pub given: Attributes,
    /// Where CPUs are given: those that it had, and those that it gets.
    pub cpus: Option<(Vec<u32>, Vec<u32>)>,
}

/// Each of those that change threads does so in a thread of its own.
pub const REALTIME: UndoHandler = UndoHandler::of::<ThreadChange>(JournalFile::Realtime);
pub const CHAINS: UndoHandler = UndoHandler::of::<ThreadChange>(JournalFile::Chains);
pub const NAPI: UndoHandler = UndoHandler::of::<ThreadChange>(JournalFile::Napi);

impl ThreadChange {
    /// Makes the change. `process` is the thread's, opened before the change was journalled.
    pub fn put(&self, process: &Handle) -> Result<(), Errno> {
        if let Some((_, cpus)) = &self.cpus {
            set_cpus(self.tid, cpus)?;
        }
        // The number may have gone to another process between reading and setting.
        let done = self.given.set(self.tid).and_then(|()| self.verify(process));
        if done.is_err() {
            // Nothing of it is left, whichever thread has the number now.
            let _ = self.restore();
        }
        done
    }

    fn verify(&self, process: &Handle) -> Result<(), Errno> {
        match ThreadMark::of(self.pid, self.tid) {
            Ok(mark) if mark == Some(self.mark) && process.is_alive() => Ok(()),
            Ok(_) => Err(Errno::ESRCH),
            Err(error) => Err(Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))),
        }
    }

    /// Puts the thread back where it still has what it was given; whether it had.
    pub fn revoke(&self) -> Result<bool> {
        self.if_there(Self::restore)
    }

    /// Where that cannot be told for want of descriptors, so it is taken to be: what is left to it may compute without
    /// end, and another thread that has this number now has hardly been given the same.
    fn is_there(&self) -> bool {
        ThreadMark::of(self.pid, self.tid).map_or(true, |mark| mark == Some(self.mark))
    }

    fn if_there(&self, act: impl FnOnce(&Self) -> Result<bool, Errno>) -> Result<bool> {
        match self.is_there().then(|| act(self)) {
            None | Some(Err(Errno::ESRCH)) => Ok(false),
            Some(did) => did.with_context(|| format!("thread {} keeps {}", self.tid, self.given.shown())),
        }
    }

    fn is_still(&self) -> Result<bool, Errno> {
        Ok(Attributes::of(self.tid)?.is_still(&self.given))
    }

    fn restore(&self) -> Result<bool, Errno> {
        let is_still = self.is_still()?;
        if is_still {
            // What it was may have become impossible; it must not keep its priority even then.
            let set = self.old.set(self.tid);
            set.or_else(|_| Attributes::default().set(self.tid))?;
        }
        if let Some((before, given)) = &self.cpus
            && self.has_still(given)?
        {
            set_cpus(self.tid, before)?;
        }
        Ok(is_still)
    }

    /// Whether its CPUs are those that it was given, or what is left of them: the kernel takes away what is offline, and
    /// what the thread's cpuset does not have. Another tool may have chosen some of them as well; then asking for all of
    /// them again gives more, and its choice is restored.
    fn has_still(&self, given: &[u32]) -> Result<bool, Errno> {
        let found = cpus_of(self.tid)?;
        if found == given || !found.iter().all(|cpu| given.contains(cpu)) {
            return Ok(found == given);
        }
        set_cpus(self.tid, given)?;
        let is_all = cpus_of(self.tid)? == found;
        if !is_all {
            set_cpus(self.tid, &found)?;
        }
        Ok(is_all)
    }
}

impl Entry for ThreadChange {
    /// The line is the same for all threads of a process.
    fn restore(&self, dry_run: bool) -> Result<Vec<String>> {
        let did = self.if_there(if dry_run { Self::is_still } else { Self::restore })?;
        let (given, old) = (self.given.shown(), self.old.shown());
        let line = did.then(|| format!("process {}: {given} back to {old}", self.pid));
        Ok(line.into_iter().collect())
    }
}

/// Raises a thread to SCHED_FIFO at this priority, unless it has that already; `keep` journals what it was before. A
/// thread that has real time from another tool is left unchanged.
pub fn raise(pid: u32, tid: u32, priority: u32, keep: impl FnOnce(ThreadChange) -> Result<()>) -> Result<()> {
    let policy = Policy::Fifo { priority };
    let (old, given) = (
        Attributes::of(tid).context("it has ended")?,
        Attributes::for_policy(policy),
    );
    if old.is_same_as(&given) {
        return Ok(());
    }
    if old.is_realtime() {
        bail!("already {}, set by another tool; left unchanged", old.shown());
    }
    keep(ThreadChange {
        pid,
        tid,
        mark: ThreadMark::of(pid, tid)?.context("it has ended")?,
        old: old.without_slice(old.slice_ns()),
        given,
        cpus: None,
    })?;
    given.set(tid).map_err(|errno| anyhow!(why_refused(errno, policy)))
}

fn why_refused(errno: Errno, policy: Policy) -> String {
    explain(errno, policy, &GrantConditions::own())
}

/// Puts the calling thread above all that is granted, but not what it starts.
pub fn take_priority() -> Result<()> {
    let own = Policy::Fifo { priority: OWN_PRIORITY };
    Attributes::for_policy(own)
        .set(0)
        .map_err(|errno| anyhow!(why_refused(errno, own)))
        .context("giveway's own thread cannot get a priority above the threads that it may have to demote")
}

/// Takes real-time priority from the calling thread.
pub fn leave_priority() {
    // Lowering oneself is never refused.
    let _ = Attributes::default().set(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_thread_is_restored_unless_another_tool_has_changed_it() {
        // The kernel gives real time to root only, and everything else of giveway needs root too.
        assert!(nix::unistd::geteuid().is_root(), "run the tests as root");
        let test = || {
            let (pid, own) = (std::process::id(), nix::unistd::gettid().as_raw().cast_unsigned());
            let fifo = |priority| Attributes::for_policy(Policy::Fifo { priority });
            let mut kept = None;
            let keep = |raised| {
                kept = Some(raised);
                Ok(())
            };
            raise(pid, own, 3, keep).unwrap();
            let refusal = raise(pid, own, 5, |_| Ok(())).unwrap_err();
            assert!(refusal.to_string().contains("set by another tool"));
            let raised = kept.unwrap();
            fifo(4).set(own).unwrap();
            assert!(!raised.revoke().unwrap());
            fifo(3).set(own).unwrap();
            assert!(raised.revoke().unwrap() && !raised.revoke().unwrap());
            assert!(!Attributes::of(own).unwrap().is_realtime());
        };
        std::thread::spawn(test).join().unwrap();
    }
}
