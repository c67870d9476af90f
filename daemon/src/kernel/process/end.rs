// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of another process of giveway's: whether it has come, and bringing it about. A process may be dead long before
//! its parent could be told: one thread that waits in the kernel for good keeps it.
//!
//! Nothing here opens the process's folder in /proc: whoever may list that can hold its lock (where the kernel is 6.9 or
//! newer; before, a start can be read nowhere else). What cannot be told is an error, and never an end.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Handle, ThreadMark};
use crate::kernel::calls::kill_by_pidfd;
use crate::kernel::tasks::Tasks;
use crate::kernel::{namespace, own_netns};

const POLL_EVERY: Duration = Duration::from_millis(5);

/// A process, for others to find it again, and never a later one of its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProcessIdentity {
    pub pid: u32,
    mark: ThreadMark,
    /// The pid namespace in which this is its number.
    namespace: u64,
}

impl ProcessIdentity {
    /// None where there is none of this number.
    pub fn of(pid: u32) -> Result<Option<Self>> {
        let mark = ThreadMark::of(pid, pid).context("cannot read a process")?;
        let namespace = namespace::pid()?;
        Ok(mark.map(|mark| Self { pid, mark, namespace }))
    }

    pub fn own() -> Result<Self> {
        Self::of(std::process::id())?.context("this process has no number")
    }

    /// For a line, or a page of memory.
    pub fn to_words(self) -> [u64; 4] {
        let (kind, mark) = match self.mark {
            ThreadMark::Inode(inode) => (1, inode),
            ThreadMark::StartNs(start_ns) => (2, start_ns),
        };
        [self.pid.into(), self.namespace, kind, mark]
    }

    pub fn from_words([pid, namespace, kind, mark]: [u64; 4]) -> Option<Self> {
        Some(Self {
            pid: pid.try_into().ok()?,
            mark: match kind {
                1 => ThreadMark::Inode(mark),
                2 => ThreadMark::StartNs(mark),
                _ => return None,
            },
            namespace,
        })
    }

    /// Whether its number means anything here.
    pub fn is_of_this_namespace(self) -> Result<bool> {
        Ok(namespace::pid()? == self.namespace)
    }

    /// Whether both are the same process, in whatever pid namespaces their numbers are.
    pub fn is_marked_as(self, other: Self) -> bool {
        self.mark == other.mark
    }

    /// Whether its number is still its own: it lives, or has not been collected.
    pub fn is_there(self) -> Result<bool> {
        ensure!(
            self.is_of_this_namespace()?,
            "process {} is in another pid namespace",
            self.pid
        );
        Ok(ThreadMark::of(self.pid, self.pid)? == Some(self.mark))
    }
}

/// Whether it runs no code of its own any more, and never will: it is gone, its main thread has ended or is ending, or
/// all of it was sent SIGKILL.
///
/// # Errors
/// Where that cannot be told, here and below.
pub fn is_over(process: ProcessIdentity) -> Result<bool> {
    is_over_within(process, Duration::ZERO)
}

/// Waits for it; false where it did not come to that.
pub fn is_over_within(process: ProcessIdentity, patience: Duration) -> Result<bool> {
    let start = Instant::now();
    if !process.is_there()? {
        return Ok(true);
    }
    let tasks = Tasks::load(0)?;
    while !is_over_by(process, &tasks)? {
        if start.elapsed() >= patience {
            return Ok(false);
        }
        std::thread::sleep(POLL_EVERY);
    }
    Ok(true)
}

fn is_over_by(process: ProcessIdentity, tasks: &Tasks) -> Result<bool> {
    let main = tasks.threads.thread(process.pid)?;
    Ok(main.is_none_or(|main| main.is_ending) || !process.is_there()?)
}

/// Kills it, if it is root's, of this program and in this network namespace. Where it is over already, nothing is done.
///
/// # Errors
/// Where it is something else, or may not be killed.
pub fn kill(process: ProcessIdentity) -> Result<()> {
    let handle = match Handle::open(process.pid) {
        Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => return Ok(()),
        handle => handle.with_context(|| format!("cannot open process {}", process.pid))?,
    };
    let tasks = Tasks::load(0)?;
    if is_over_by(process, &tasks)? {
        return Ok(());
    }
    let [own, other] = [std::process::id(), process.pid].map(|pid| program_of(pid, &tasks));
    let (own, other) = (own?, other?);
    ensure!(own == other, "process {} is {other}, not giveway", process.pid);
    let facts = tasks.process(process.pid)?.context("it has just ended")?;
    ensure!(
        (facts.uid, facts.euid, facts.netns_inum) == (0, 0, own_netns()?),
        "process {} is not root's, or acts in another network namespace",
        process.pid
    );
    handle.kill()
}

/// The name of its executable, which may have been replaced since.
fn program_of(pid: u32, tasks: &Tasks) -> Result<String> {
    let path = tasks.process(pid)?.map(|facts| facts.exe).unwrap_or_default();
    let name = Path::new(&path)
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(name.trim_end_matches(" (deleted)").to_owned())
}

impl Handle {
    /// Waits until nothing of it is left, its files included; false where a thread of it stays.
    pub fn is_gone_within(&self, patience: Duration) -> bool {
        let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO);
        let mut ended = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut ended, patience) != Ok(0)
    }

    /// Kills it, whatever it is. Where it has ended, nothing is done.
    pub fn kill(&self) -> Result<()> {
        match kill_by_pidfd(&self.pidfd) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(io::Error::from(errno)).with_context(|| format!("cannot kill process {}", self.pid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_has_ended_or_has_another_mark_is_over_and_what_lives_is_not() {
        let own = ProcessIdentity::own().unwrap();
        assert!(!is_over(own).unwrap());
        let [pid, namespace, kind, mark] = own.to_words();
        assert_eq!(ProcessIdentity::from_words([pid, namespace, kind, mark]), Some(own));
        let other = ProcessIdentity::from_words([pid, namespace, kind, mark + 1]).unwrap();
        assert!(is_over(other).unwrap());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let named = ProcessIdentity::of(child.id()).unwrap().unwrap();
        assert!(!is_over_within(named, Duration::ZERO).unwrap());
        let refused = kill(named).unwrap_err().to_string();
        assert!(refused.contains("is sleep, not giveway"), "{refused}");
        child.kill().unwrap();
        assert!(
            is_over_within(named, Duration::from_secs(20)).unwrap(),
            "though nobody has collected it"
        );
        child.wait().unwrap();
        assert!(is_over(named).unwrap() && kill(named).is_ok());
        assert_eq!(ProcessIdentity::of(child.id()).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_told_from_here_is_not_over() {
        let [pid, namespace, kind, mark] = ProcessIdentity::own().unwrap().to_words();
        // Of this number there is none here.
        for pid in [pid, i32::MAX as u64] {
            let elsewhere = ProcessIdentity::from_words([pid, namespace + 1, kind, mark]).unwrap();
            let refused = is_over(elsewhere).unwrap_err().to_string();
            assert!(refused.contains("another pid namespace"), "{refused}");
        }
        assert_eq!(ProcessIdentity::from_words([pid, namespace, 0, mark]), None);
    }
}
