// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One thread's scheduling: what it is, made real time, and put back. In come thread ids, out go the kernel's answers.
//! Never touches a thread that is real time by somebody else's doing, and puts back only what is still ours.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

const SCHED_RESET_ON_FORK: u64 = 1;

/// Of an ordinary thread.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Ordinary {
    policy: u32,
    flags: u64,
    nice: i32,
}

/// As the kernel tells and takes it.
fn zeroed() -> libc::sched_attr {
    // SAFETY: integers, for which all zero is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    attributes
}

fn read(tid: u32) -> Result<libc::sched_attr, Errno> {
    let mut attributes = zeroed();
    let size = attributes.size;
    // SAFETY: the kernel writes at most the size that it is given.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attributes, size, 0) };
    Errno::result(done).map(|_| attributes)
}

fn write(tid: u32, mut attributes: libc::sched_attr) -> Result<(), Errno> {
    attributes.size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel reads the size that the struct itself tells.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, 0) };
    Errno::result(done).map(drop)
}

fn is_fifo_at(attributes: &libc::sched_attr, priority: u32) -> bool {
    attributes.sched_policy == libc::SCHED_FIFO as u32 && attributes.sched_priority == priority
}

/// Makes a thread SCHED_FIFO at this priority. `before` is asked to keep what it was, before anything is changed.
pub fn raise(tid: u32, priority: u32, before: impl FnOnce(Ordinary) -> Result<()>) -> Result<()> {
    let found = read(tid).context("the thread has ended")?;
    if is_fifo_at(&found, priority) {
        return Ok(());
    }
    let is_ordinary = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].map(|policy| policy as u32);
    if !is_ordinary.contains(&found.sched_policy) {
        bail!("it has a real-time policy of its own, which stays as it is");
    }
    before(Ordinary {
        policy: found.sched_policy,
        flags: found.sched_flags,
        nice: found.sched_nice,
    })?;
    let mut wanted = zeroed();
    wanted.sched_policy = libc::SCHED_FIFO as u32;
    wanted.sched_priority = priority;
    wanted.sched_flags = SCHED_RESET_ON_FORK;
    write(tid, wanted).map_err(refused)
}

/// Puts it back, where it is still what [`raise`] made of it; says whether it was.
pub fn lower(tid: u32, priority: u32, before: Ordinary) -> Result<bool> {
    match read(tid) {
        Ok(found) if is_fifo_at(&found, priority) => {}
        Ok(_) | Err(Errno::ESRCH) => return Ok(false),
        Err(error) => return Err(error).context("cannot see what a thread is"),
    }
    let mut wanted = zeroed();
    wanted.sched_policy = before.policy;
    wanted.sched_nice = before.nice;
    wanted.sched_flags = before.flags & SCHED_RESET_ON_FORK;
    match write(tid, wanted) {
        Ok(()) => Ok(true),
        Err(Errno::ESRCH) => Ok(false),
        Err(error) => Err(error).context("cannot take a thread's priority back"),
    }
}

/// Whether [`lower`] would find something to do.
pub fn is_raised(tid: u32, priority: u32) -> bool {
    read(tid).is_ok_and(|found| is_fifo_at(&found, priority))
}

fn refused(error: Errno) -> anyhow::Error {
    match error {
        Errno::EPERM => anyhow::anyhow!(
            "the kernel refuses real time (EPERM): CAP_SYS_NICE is missing, or the thread's cgroup has no share of it \
             (cpu.rt_runtime_us)"
        ),
        error => anyhow::anyhow!("the kernel refuses real time: {}", error.desc()),
    }
}

/// CPU time of a thread since its start; None once it has ended.
pub fn cpu(tid: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{tid}/schedstat")).ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// Its state's letter, and when it was started, in ticks since boot, which tells it from a later one of its number.
pub fn state(tid: u32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    // The name before may hold anything, brackets and blanks too.
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let letter = fields.next()?.chars().next()?;
    Some((letter, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_tells_its_state_start_and_time() {
        let own = nix::unistd::gettid().as_raw().cast_unsigned();
        let (letter, started) = state(own).unwrap();
        assert_eq!((letter, started > 0), ('R', true));
        assert!(cpu(own).unwrap() > Duration::ZERO);
        assert_eq!(state(u32::MAX), None);
    }

    #[test]
    fn a_raised_thread_is_put_back_to_what_it_was_and_only_by_the_right_priority() {
        if !nix::unistd::geteuid().is_root() {
            return; // the kernel gives real time to root only; CI runs as root
        }
        std::thread::spawn(|| {
            let own = nix::unistd::gettid().as_raw().cast_unsigned();
            let mut kept = None;
            let keep = |before| {
                kept = Some(before);
                Ok(())
            };
            raise(own, 3, keep).unwrap();
            assert!(is_raised(own, 3) && !is_raised(own, 4));
            let refusal = raise(own, 5, |_| Ok(())).unwrap_err();
            assert!(refusal.to_string().contains("of its own"));
            let before = kept.unwrap();
            assert!(!lower(own, 4, before).unwrap());
            assert!(lower(own, 3, before).unwrap());
            assert!(!is_raised(own, 3));
        })
        .join()
        .unwrap();
    }
}
