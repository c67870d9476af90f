// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's side of its watchdog: starts it, is watched by it, and replaces it when it has died or gives no sign of
//! life.

use std::io::{self, PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::thread::{self, Thread};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::actuate::thread::take_priority;
use crate::kernel::descriptors::keep_only;
use crate::kernel::process::Handle;
use crate::kernel::program::{self, Child};
use crate::kernel::tasks::Threads;
use crate::life::{Life, Observation, Watch, WatchedTask};

/// A watchdog that is let go ends within this time, or is killed.
const PATIENCE: Duration = Duration::from_secs(2);
/// Watchdogs that were killed and cannot end, because something keeps them in the kernel. Beyond that none is replaced.
const STUCK_AT_MOST: usize = 8;
const STACK_BYTES: usize = 64 * 1024;

pub struct GuardedDaemon {
    life: Life,
    page: OwnedFd,
    /// Its writing end is the witness's alone.
    pipe: PipeReader,
    witness: Thread,
    child: Child,
    watch: Watch,
    /// Killed, and not yet collected.
    killed: Vec<Child>,
}

impl GuardedDaemon {
    /// Starts a watchdog for this process.
    pub fn start(life: Life, page: OwnedFd) -> Result<Self> {
        let (pipe, writer) = pipe().context("cannot make the watchdog's pipe")?;
        let witness = start_witness(life, writer).context("cannot start the thread that the watchdog watches")?;
        Ok(Self {
            child: spawn(life, &pipe, &page)?,
            watch: Watch::default(),
            killed: Vec::new(),
            life,
            page,
            pipe,
            witness,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// It ends when this process has died, whatever its other threads wait for: nothing is ever written to it.
    pub fn death(&self) -> io::Result<PipeReader> {
        self.pipe.try_clone()
    }

    /// Call once a second. True where another watchdog has been started.
    pub fn check_watchdog(&mut self, threads: &Threads) -> Result<bool> {
        self.killed.retain_mut(|child| !child.has_ended());
        let has_died = self.child.has_ended();
        let is_silent = self
            .watch
            .find_overdue(self.life, &[WatchedTask::Watchdog], Observation::Threads(threads))
            .is_some();
        if !has_died && !is_silent {
            return Ok(false);
        }
        ensure!(
            self.killed.len() < STUCK_AT_MOST,
            "{STUCK_AT_MOST} were killed and do not end"
        );
        // First, so that never two of them act.
        self.child.kill();
        let new = spawn(self.life, &self.pipe, &self.page)?;
        self.killed.push(std::mem::replace(&mut self.child, new));
        tracing::warn!(
            "the watchdog {}; started another",
            if has_died { "has died" } else { "no heartbeat" }
        );
        Ok(true)
    }

    /// Lets the watchdog go: there is nothing left to undo.
    pub fn dismiss(mut self) {
        self.life.end();
        self.witness.unpark();
        if Handle::open(self.pid()).is_ok_and(|watchdog| watchdog.is_gone_within(PATIENCE)) {
            self.child.wait();
        } else {
            self.child.kill();
        }
    }
}

fn spawn(life: Life, pipe: &PipeReader, page: &OwnedFd) -> Result<Child> {
    let what = "cannot start the watchdog, which undoes everything should the daemon die";
    let stderr = io::stderr();
    let files = [pipe.as_fd(), page.as_fd(), stderr.as_fd()];
    let child = program::again(c"watchdog", Some(crate::notify::SOCKET), files).context(what)?;
    life.expect(WatchedTask::Watchdog, child.id());
    Ok(child)
}

/// A process is not seen to die while one of its threads waits in the kernel for good, and neither is its main thread; its
/// files stay open too. So a thread that waits for nothing there has a file table of its own, with nothing in it but the
/// pipe: when it dies, which it does with the process, the pipe is closed.
fn start_witness(life: Life, writer: PipeWriter) -> Result<Thread> {
    let (ready, readied) = std::sync::mpsc::channel();
    let own = writer.as_raw_fd();
    let witness = thread::Builder::new()
        .name("gw-witness".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let _ = ready.send(keep_only(own));
            // It must get to die even where real time computes. Where this is refused, nothing is granted either.
            let _ = take_priority();
            while !life.is_over() {
                thread::park();
            }
        })?;
    let done = readied.recv().context("it has ended")?;
    done.context("cannot have a file table of its own")?;
    Ok(witness.thread().clone())
}
