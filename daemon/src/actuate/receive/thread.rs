// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One thread made real time for as long as something waits for it, and put back. In come thread ids, out go the
//! kernel's answers. Never touches a thread that is real time by somebody else's doing, and puts back only what is
//! still ours.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use giveway_engine::realtime::Policy;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::actuate::schedule::{attributes::Attributes, why_refused};
use crate::kernel::process::thread_start;

/// A thread that has a priority of ours, or is about to have it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Raised {
    pub pid: u32,
    pub tid: u32,
    /// By which a later thread of this number is told apart.
    start_ns: u64,
    given: Attributes,
    old: Attributes,
}

/// SCHED_FIFO at this priority.
fn fifo(priority: u32) -> Attributes {
    Attributes::for_policy(Policy::Fifo { priority })
}

/// Raises a thread; `before` is asked to keep what it was, before anything is changed. Nothing where it is so already.
pub fn raise(pid: u32, tid: u32, priority: u32, before: impl FnOnce(Raised) -> Result<()>) -> Result<()> {
    let (old, given) = (Attributes::of(tid).context("it has ended")?, fifo(priority));
    if old.is_same_as(&given) {
        return Ok(());
    }
    if old.is_realtime() {
        bail!("it is {} by somebody else's doing, and stays so", old.shown());
    }
    let start_ns = thread_start(pid, tid).context("it has ended")?;
    // Newer kernels tell an ordinary thread's slice, and would take it for a wish.
    let old = old.without_slice(old.slice_ns());
    before(Raised {
        pid,
        tid,
        start_ns,
        given,
        old,
    })?;
    given
        .set(tid)
        .map_err(|errno| anyhow!(why_refused(errno, Policy::Fifo { priority })))
}

impl Raised {
    /// Whether it has still what it was given.
    pub fn is_still(&self) -> bool {
        thread_start(self.pid, self.tid) == Some(self.start_ns)
            && Attributes::of(self.tid).is_ok_and(|now| now.is_still(&self.given))
    }

    /// Puts it back, where it has still what it was given; says whether it was.
    pub fn lower(&self) -> Result<bool> {
        if !self.is_still() {
            return Ok(false);
        }
        match self.old.set(self.tid).or_else(|_| Attributes::ordinary().set(self.tid)) {
            Ok(()) => Ok(true),
            Err(Errno::ESRCH) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("thread {} keeps its priority", self.tid)),
        }
    }

    pub fn shown(&self) -> String {
        format!(
            "thread {} from {} back to {}",
            self.tid,
            self.given.shown(),
            self.old.shown()
        )
    }
}

/// CPU time of a thread since its start; None once it has ended.
pub fn cpu(tid: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{tid}/schedstat")).ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// Whether it runs or would; false once it has ended.
pub fn is_awake(tid: u32) -> bool {
    let text = fs::read(format!("/proc/{tid}/stat")).unwrap_or_default();
    // The name before may hold anything, brackets and blanks too.
    let state = text
        .iter()
        .rposition(|byte| *byte == b')')
        .and_then(|end| text.get(end + 2));
    state == Some(&b'R')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_tells_its_state_and_time() {
        let own = nix::unistd::gettid().as_raw().cast_unsigned();
        assert!(is_awake(own) && !is_awake(u32::MAX));
        assert!(cpu(own).unwrap() > Duration::ZERO);
        assert_eq!(cpu(u32::MAX), None);
    }

    #[test]
    fn a_raised_thread_is_put_back_unless_somebody_else_has_changed_it() {
        // The kernel gives real time to root only, and everything else of giveway needs root too.
        assert!(nix::unistd::geteuid().is_root(), "run the tests as root");
        let test = || {
            let (pid, own) = (std::process::id(), nix::unistd::gettid().as_raw().cast_unsigned());
            let mut kept = None;
            let keep = |raised| {
                kept = Some(raised);
                Ok(())
            };
            raise(pid, own, 3, keep).unwrap();
            let refusal = raise(pid, own, 5, |_| Ok(())).unwrap_err();
            assert!(refusal.to_string().contains("somebody else's doing"));
            let raised = kept.unwrap();
            fifo(4).set(own).unwrap();
            assert!(!raised.lower().unwrap());
            fifo(3).set(own).unwrap();
            assert!(raised.lower().unwrap() && !raised.lower().unwrap());
            assert!(!Attributes::of(own).unwrap().is_realtime());
        };
        std::thread::spawn(test).join().unwrap();
    }
}
