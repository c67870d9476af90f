// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The nice value and the I/O class of one thread. Input: what it is to have. It is set where the thread still has what
//! that follows from, and nowhere else.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::saved::{IO_CLASS, NICE, Task};
use crate::kernel::calls::{
    self, SCHED_DEADLINE, SCHED_FIFO, SCHED_IDLE, SCHED_RR, pidfd_of_process, pidfd_of_thread, set_io_priority,
};

const NICE_19: i32 = 19;
/// ioprio_set(2)
const CLASS_SHIFT: u32 = 13;
const CLASSES: [&str; 4] = ["none", "realtime", "best effort", "idle"];
const IDLE: u32 = 3 << CLASS_SHIFT;

/// What one thread is to have.
pub struct ThreadSetting {
    pub set: u32,
    pub back: u32,
    pub nice: i32,
    pub ioprio: u32,
}

/// In words.
pub fn shown(nice: i32, ioprio: u32) -> String {
    let class = CLASSES.get((ioprio >> CLASS_SHIFT) as usize).unwrap_or(&"unknown");
    match ioprio & ((1 << CLASS_SHIFT) - 1) {
        0 => format!("nice {nice}, I/O class {class}"),
        level => format!("nice {nice}, I/O class {class}, level {level}"),
    }
}

/// Why a thread of this scheduling policy, that is not lowered, is not.
pub fn why_left(policy: u32) -> String {
    match policy.cast_signed() {
        SCHED_FIFO | SCHED_RR | SCHED_DEADLINE => "it has real-time priority",
        SCHED_IDLE => "it is scheduled as idle (SCHED_IDLE)",
        _ => "it is at nice 19 and in the idle I/O class, or another tool has set it",
    }
    .to_owned()
}

/// Sets a thread, or restores it, unless it has ended or somebody else was faster.
///
/// # Errors
/// Where the kernel refuses, or something is short.
pub fn renice(saved: &MapHandle, task: &Task) -> Result<()> {
    let Some(thread) = SavedThread::open(task.tid, saved)? else {
        return Ok(());
    };
    let wanted = task.wanted();
    let done = nice(&thread, &wanted).and_then(|()| io_class(&thread, &wanted));
    match done {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => {
            Err(errno).with_context(|| format!("cannot set the nice value or I/O class of thread {}", task.tid))
        }
    }
}

fn nice(thread: &SavedThread, wanted: &ThreadSetting) -> Result<(), Errno> {
    let found = thread.nice()?;
    if wanted.set & NICE != 0 && found < NICE_19 {
        thread.set_nice(NICE_19, found)?;
    }
    if wanted.back & NICE != 0 && found == NICE_19 {
        thread.set_nice(wanted.nice, found)?;
    }
    Ok(())
}

fn io_class(thread: &SavedThread, wanted: &ThreadSetting) -> Result<(), Errno> {
    let to = match (wanted.set & IO_CLASS != 0, wanted.back & IO_CLASS != 0) {
        (true, _) => IDLE,
        (_, true) => wanted.ioprio,
        _ => return Ok(()),
    };
    let found = thread.ioprio()?;
    if (to == IDLE) != (found == IDLE) {
        thread.set_ioprio(to, found)?;
    }
    Ok(())
}

/// A thread with saved state.
struct SavedThread {
    tid: u32,
    /// None before Linux 6.9, where only main threads can be held.
    held: Option<OwnedFd>,
}

impl SavedThread {
    /// None where it has ended, or its number is another's.
    fn open(tid: u32, saved: &MapHandle) -> Result<Option<Self>> {
        let held = match pidfd_of_thread(tid) {
            Err(Errno::EINVAL) => pidfd_of_process(tid),
            opened => opened,
        };
        let held = match held {
            Ok(held) => Some(held),
            Err(Errno::ESRCH) => return Ok(None),
            // Not a main thread, and the kernel is too old.
            Err(Errno::EINVAL | Errno::ENOENT) => None,
            Err(error) => return Err(error).context("cannot hold a thread"),
        };
        if let Some(held) = &held {
            let saved = saved.lookup(&held.as_raw_fd().to_ne_bytes(), MapFlags::ANY);
            if saved.ok().flatten().is_none() {
                return Ok(None);
            }
        }
        Ok(Some(Self { tid, held }))
    }

    /// Its number may have gone to another between opening and setting.
    fn has_ended(&self) -> bool {
        let ended =
            |held: &OwnedFd| poll(&mut [PollFd::new(held.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) != Ok(0);
        self.held.as_ref().is_some_and(ended)
    }

    fn nice(&self) -> Result<i32, Errno> {
        calls::nice(self.tid)
    }

    fn set_nice(&self, to: i32, from: i32) -> Result<(), Errno> {
        calls::set_nice(self.tid, to)?;
        if self.has_ended() {
            let _ = calls::set_nice(self.tid, from);
        }
        Ok(())
    }

    fn ioprio(&self) -> Result<u32, Errno> {
        calls::io_priority(self.tid)
    }

    fn set_ioprio(&self, to: u32, from: u32) -> Result<(), Errno> {
        set_io_priority(self.tid, to)?;
        if self.has_ended() {
            let _ = set_io_priority(self.tid, from);
        }
        Ok(())
    }
}
