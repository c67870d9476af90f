// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guardian: a process that waits for the daemon's end and undoes what is left behind.
//!
//! It holds the reading end of a pipe whose writing end only the daemon has, so that the kernel itself
//! reports the daemon's death, however it came about. But a process is dead when its last thread is, and an ordinary
//! one may not get to die while real time computes on its CPU: so the thread that gave it is watched as well, which
//! comes before all that it gave. The guardian decides nothing and reads nothing else.

use std::fs::File;
use std::io::{PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::actuate::schedule;
use crate::place::Place;
use crate::revert;
use crate::run::realtime::take_priority;

/// What the daemon writes when it has undone everything by itself.
const FAREWELL: u8 = b'.';
/// pidfd_open(2): of one thread, not of its whole process (kernel 6.9 or newer).
const PIDFD_THREAD: i32 = libc::O_EXCL;

/// The daemon's end.
#[derive(Debug)]
pub struct Guarded {
    pipe: PipeWriter,
    /// Watched by the daemon: a guardian that died is replaced.
    pub child: std::process::Child,
}

impl Guarded {
    /// Starts a guardian for this process.
    pub fn start() -> Result<Self> {
        let (reader, writer) = pipe().context("cannot make the guardian's pipe")?;
        let child = Command::new("/proc/self/exe")
            .arg0("giveway")
            .arg("guardian")
            .stdin(Stdio::from(reader))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the guardian, which undoes everything should the daemon die")?;
        Ok(Self { pipe: writer, child })
    }

    /// Names the daemon's thread that gives real time.
    pub fn watch_thread(&mut self, tid: u32) {
        // A guardian that has died meanwhile is found out soon, and replaced.
        let _ = writeln!(self.pipe, "{tid}");
    }

    /// Lets the guardian go: there is nothing left to undo.
    pub fn dismiss(mut self) {
        let _ = self.pipe.write_all(&[FAREWELL]);
        drop(self.pipe);
        let _ = self.child.wait();
    }
}

/// The guardian's whole life.
pub fn run() -> Result<()> {
    // A Ctrl-C or a service manager's SIGTERM reaches the whole group; the guardian must outlive the daemon.
    for ignored in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: ignoring a signal installs no handler, so no code runs in signal context.
        unsafe { signal(ignored, SigHandler::SigIgn) }.context("cannot ignore signals")?;
    }
    // What it must set back may be computing without end. Where this is refused, nothing was granted either.
    let _ = take_priority();
    let place = Place::here()?;
    let Some(realtime) = daemon_dies(&place)? else {
        return Ok(());
    };
    let mut undone = revert::undo_after_death(&place)?;
    undone.realtime.extend(realtime);
    eprintln!("giveway guardian: the daemon died; undone: {undone}");
    Ok(())
}

/// Waits for the daemon's end; None where it left nothing to be undone. Should its thread for real time end before the
/// rest, what that gave is set back at once: a line for each process.
fn daemon_dies(place: &Place) -> Result<Option<Vec<String>>> {
    // Unbuffered: what has been read is what `poll` does not see any more.
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let mut daemon = File::from(stdin.context("cannot wait for the daemon")?);
    let (mut thread, mut set_back) = (None, Vec::new());
    loop {
        let is_thread_dead = wait_for(daemon.as_fd(), thread.as_ref()).context("cannot wait for the daemon")?;
        if is_thread_dead {
            thread = None;
            // Whatever fails here is tried again when the rest has died.
            set_back.extend(schedule::undo(place, false).unwrap_or_default());
            continue;
        }
        let mut words = [0; 64];
        let read = daemon.read(&mut words).context("cannot wait for the daemon")?;
        let words = &words[..read];
        if words.is_empty() || words.contains(&FAREWELL) {
            return Ok(words.is_empty().then_some(set_back));
        }
        let lines = std::str::from_utf8(words).unwrap_or_default();
        let named = lines.lines().last().and_then(|line| line.parse().ok());
        thread = named.and_then(open_thread).or(thread);
    }
}

/// Until the daemon says something, or its thread ends: true for the latter.
fn wait_for(daemon: BorrowedFd<'_>, thread: Option<&OwnedFd>) -> Result<bool, Errno> {
    let mut sources = vec![PollFd::new(daemon, PollFlags::POLLIN)];
    sources.extend(thread.map(|thread| PollFd::new(thread.as_fd(), PollFlags::POLLIN)));
    while let Err(errno) = poll(&mut sources, PollTimeout::NONE) {
        if errno != Errno::EINTR {
            return Err(errno);
        }
    }
    Ok(sources.get(1).and_then(PollFd::any).unwrap_or_default())
}

/// None on kernels that cannot tell of a thread's end: the process's has to do.
fn open_thread(tid: i32) -> Option<OwnedFd> {
    // SAFETY: takes no pointers.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, tid, PIDFD_THREAD) };
    let descriptor = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: a new descriptor that nobody else knows.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
