// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guardian: a process that waits for the daemon's end and undoes what is left behind.
//!
//! It holds the reading end of a pipe whose writing end only the daemon has, so that the kernel itself
//! reports the daemon's death, however it came about. It decides nothing and reads nothing else.

use std::io::{PipeWriter, Read as _, Write as _, pipe};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::place::Place;
use crate::revert;
use crate::run::realtime::take_priority;

/// What the daemon writes when it has undone everything by itself.
const FAREWELL: u8 = b'.';

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
    let mut last_words = Vec::new();
    std::io::stdin()
        .read_to_end(&mut last_words)
        .context("cannot wait for the daemon")?;
    if last_words.contains(&FAREWELL) {
        return Ok(());
    }
    let undone = revert::undo_after_death(&Place::here()?)?;
    eprintln!("giveway guardian: the daemon died; undone: {undone}");
    Ok(())
}
