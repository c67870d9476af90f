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

/// Whether a process is at nice 19, or in the idle I/O class. One that is gone is an error.
pub fn is_nice(process: i32) -> Result<bool> {
    niceness(process).map(|(nice, is_idle)| nice == 19 || is_idle)
}

/// Whether it is both.
pub fn is_fully_nice(process: i32) -> Result<bool> {
    niceness(process).map(|(nice, is_idle)| nice == 19 && is_idle)
}

/// The nice value, and whether the I/O class is the idle one.
fn niceness(process: i32) -> Result<(libc::c_int, bool)> {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_SHIFT: libc::c_long = 13;
    const CLASS_IDLE: libc::c_long = 3;
    Errno::clear();
    // SAFETY: takes no pointers.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, process.cast_unsigned()) };
    // A nice of -1 is no failure.
    if nice == -1 && Errno::last_raw() != 0 {
        return Err(Errno::last()).context("cannot read how nice a process is");
    }
    // SAFETY: takes no pointers.
    let priority = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, process) };
    let priority = Errno::result(priority).context("cannot read the I/O class of a process")?;
    Ok((nice, priority >> CLASS_SHIFT == CLASS_IDLE))
}

/// All of the process, now and later: a page fault may wait for any other one.
pub fn keep_in_memory() -> Result<()> {
    // SAFETY: takes no pointers.
    let kept = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    Errno::result(kept)
        .context("cannot keep the process in memory")
        .map(drop)
}
