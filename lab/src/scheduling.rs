// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scheduling policies of threads, and memory that is never paged out, for what measures and for what has deadlines.

use anyhow::{Context, Result};
use nix::sys::mman::{MlockAllFlags, mlockall};

use crate::calls::{self, SCHED_DEADLINE, SCHED_FIFO, SCHED_RESET_ON_FORK, SCHED_RR};

/// 0 is the calling thread.
pub fn set(thread: i32, policy: i32, priority: i32) -> Result<()> {
    calls::set_policy(thread, policy, priority)
        .with_context(|| format!("no scheduling policy {policy} with priority {priority}"))
}

/// SCHED_FIFO for the calling thread, or why not.
pub fn take_fifo(priority: i32) -> Result<()> {
    set(0, SCHED_FIFO, priority)
}

/// Whether a thread has real-time priority; 0 is the calling one. One that is gone has none.
pub fn is_realtime(thread: i32) -> bool {
    let policy = calls::policy(thread).map(|policy| policy & !SCHED_RESET_ON_FORK);
    policy.is_ok_and(|policy| [SCHED_FIFO, SCHED_RR, SCHED_DEADLINE].contains(&policy))
}

/// Whether a process is at nice 19, or in the idle I/O class. One that is gone is an error.
pub fn is_nice(process: i32) -> Result<bool> {
    niceness(process).map(|(nice, is_idle)| nice == 19 || is_idle)
}

/// Whether it is both.
pub fn is_fully_nice(process: i32) -> Result<bool> {
    niceness(process).map(|(nice, is_idle)| nice == 19 && is_idle)
}

/// The nice value, and whether the I/O class is the idle one.
fn niceness(process: i32) -> Result<(i32, bool)> {
    const CLASS_SHIFT: i64 = 13;
    const CLASS_IDLE: i64 = 3;
    let nice = calls::nice(process.cast_unsigned()).context("cannot read how nice a process is")?;
    let priority = calls::io_priority(process).context("cannot read the I/O class of a process")?;
    Ok((nice, priority >> CLASS_SHIFT == CLASS_IDLE))
}

/// All of the process, now and later: a page fault may wait for any other one.
pub fn keep_in_memory() -> Result<()> {
    mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE).context("cannot keep the process in memory")
}
