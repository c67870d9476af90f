// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Children of the lab: none outlives it. Input: a command. Output: a handle that ends the child when dropped. Never
//! signals a process that it did not start.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::calls::end_with_this_thread;

/// A running child, killed when dropped unless it is to stay.
pub struct Process {
    child: Child,
    stays: bool,
}

impl Process {
    /// Must be called from the main thread: the kernel kills the child when the *thread* that
    /// started it ends, which is how children die with a lab that was itself killed.
    pub fn spawn(mut command: Command) -> Result<Self> {
        command.process_group(0); // a Ctrl-C is for the lab, which ends its children in order
        if !keep() {
            end_with_this_thread(&mut command);
        }
        let child = command.spawn().with_context(|| cannot_start(&command))?;
        Ok(Self { child, stays: false })
    }

    /// Without input; its output is appended to this file.
    pub fn spawn_logged(mut command: Command, log: &Path) -> Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Self::spawn(command)
    }

    pub fn id(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn pipes(&mut self) -> &mut Child {
        &mut self.child
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.id()), signal).with_context(|| format!("cannot send {signal} to process {}", self.id()))
    }

    pub fn exit(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Asks with SIGTERM and waits; kills after `patience`. True if it ended by itself, in good order.
    pub fn stop(&mut self, patience: Duration) -> Result<bool> {
        if let Some(status) = self.exit()? {
            return Ok(status.success());
        }
        self.signal(Signal::SIGTERM)?;
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Some(status) = self.exit()? {
                return Ok(status.success() || status.signal() == Some(Signal::SIGTERM as i32));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(false)
    }

    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Leaves the child running when the handle is dropped (KEEP=1).
    pub fn stay(&mut self) -> i32 {
        self.stays = true;
        self.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.stays && matches!(self.child.try_wait(), Ok(None)) {
            // Nothing more can be done about a child that survives SIGKILL.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Whether the user wants to inspect the testbed after the run.
pub fn keep() -> bool {
    std::env::var_os("KEEP").is_some_and(|value| value == "1")
}

/// Runs a command to its end and returns its output; an exit other than 0 is an error.
pub fn run(mut command: Command) -> Result<Output> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| cannot_start(&command))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed: {}", line(&command), said.trim());
    }
    Ok(output)
}

/// Runs a command to its end; returns both outputs, and whether it succeeded.
pub fn say(command: &mut Command) -> Result<(String, bool)> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| cannot_start(command))?;
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    Ok((said.concat(), output.status.success()))
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

fn cannot_start(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    format!("cannot start `{program}`: is it installed? (the lab needs iproute2, ethtool, iperf3)")
}
