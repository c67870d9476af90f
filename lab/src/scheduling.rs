// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scheduling policies of threads, and memory that is never paged out, for what measures and for what has deadlines.

use anyhow::{Context, Result};
use nix::errno::Errno;

/// 0 is the calling thread.
pub fn set(thread: i32, policy: libc::c_int, priority: i32) -> Result<()> {
    let wanted = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the call only reads its argument, which is valid for it.
    let done = unsafe { libc::sched_setscheduler(thread, policy, &wanted) };
    Errno::result(done)
        .map(drop)
        .with_context(|| format!("no scheduling policy {policy} with priority {priority}"))
}

/// SCHED_FIFO for the calling thread, or why not.
pub fn take_fifo(priority: i32) -> Result<()> {
    set(0, libc::SCHED_FIFO, priority)
}

/// Whether a thread has real-time priority; 0 is the calling one. One that is gone has none.
pub fn is_realtime(thread: i32) -> bool {
    // SAFETY: takes no pointers.
    let policy = unsafe { libc::sched_getscheduler(thread) };
    policy >= 0
        && [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&(policy & !libc::SCHED_RESET_ON_FORK))
}

/// All of the process, now and later: a page fault may wait for any other one.
pub fn keep_in_memory() -> Result<()> {
    // SAFETY: takes no pointers.
    let kept = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    Errno::result(kept)
        .context("cannot keep the process in memory")
        .map(drop)
}
