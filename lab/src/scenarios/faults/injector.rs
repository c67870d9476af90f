// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The role `injector`: runs a program, and fails one system call of it or of its children, once. Without a fault it
//! records the calls. Input: the program and the fault; then a line for each request: the part of the run that begins,
//! or a word of [`ask`]. Output: for each an [`InjectorState`]; at the end the recorded calls.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, stdin};
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::calls::{NEVER_FAIL, describe, error_of, never_fails};
use super::trap::{Stopped, Trap};

/// How often it checks whether the program has ended.
const LOOK_EVERY_MS: u16 = 20;

#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunPhase {
    Start,
    Work,
    End,
}

/// A system call that is made in one of the two processes, in one part of a run, by threads of this name.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Call {
    pub is_watchdog: bool,
    pub part: RunPhase,
    pub thread: String,
    /// As [`describe`] says it.
    pub call: String,
    pub number: libc::c_long,
}

impl Call {
    pub fn text(&self) -> String {
        format!("{}: {}", self.thread, self.call)
    }
}

#[derive(Deserialize, Serialize)]
pub struct Job {
    pub program: Vec<String>,
    pub log: String,
    pub fault: Option<Call>,
}

#[derive(Default, Deserialize, Serialize)]
pub struct InjectorState {
    pub pid: i32,
    /// How the program has ended.
    pub ended: Option<String>,
    /// It and all its children are gone.
    pub is_over: bool,
    pub has_failed: bool,
    /// The failed call was the dynamic loader's.
    pub is_loaders: bool,
}

/// Of this program, before its exec.
const OWN_NAME: &str = "giveway-lab";

/// Requests besides the parts of a run.
pub mod ask {
    pub const STATE: &str = "\"state\"";
    /// And ends all of it.
    pub const KILL: &str = "\"kill\"";
}

struct Injector {
    trap: Trap,
    fault: Option<Call>,
    part: RunPhase,
    state: InjectorState,
    processes: BTreeSet<i32>,
    seen: BTreeSet<Call>,
}

/// The role.
pub fn run(description: &str) -> Result<()> {
    let Job { program, log, fault } = serde_json::from_str(description)?;
    let log = File::create(&log).with_context(|| format!("cannot write {log}"))?;
    let stopped = match &fault {
        None => Stopped::AllBut(NEVER_FAIL),
        Some(call) => Stopped::Only(call.number),
    };
    let trap = Trap::start(&program, log, &stopped)?;
    let state = InjectorState {
        pid: trap.pid,
        ..InjectorState::default()
    };
    let mut injector = Injector {
        processes: BTreeSet::from([trap.pid]),
        trap,
        fault,
        part: RunPhase::Start,
        state,
        seen: BTreeSet::new(),
    };
    while injector.serve()? {}
    println!("{}", serde_json::to_string(&injector.seen)?);
    Ok(())
}

impl Injector {
    /// One turn; false when the requests have ended.
    fn serve(&mut self) -> Result<bool> {
        let input = stdin();
        let mut sources = [
            PollFd::new(self.trap.as_fd(), PollFlags::POLLIN),
            PollFd::new(input.as_fd(), PollFlags::POLLIN),
        ];
        // Once all is over, its end would be reported continuously.
        let sources = &mut sources[usize::from(self.state.is_over)..];
        poll(sources, PollTimeout::from(LOOK_EVERY_MS))?;
        let has_question = sources.last().and_then(PollFd::any) == Some(true);
        let trap = match sources {
            [trap, _] => trap.revents().unwrap_or(PollFlags::empty()),
            _ => PollFlags::empty(),
        };
        if trap.contains(PollFlags::POLLIN) {
            self.pass_one()?;
        }
        if let Some(how) = self.trap.ended()? {
            self.state.ended = Some(how);
        }
        self.state.is_over |= trap.contains(PollFlags::POLLHUP) && self.state.ended.is_some();
        if !has_question {
            return Ok(true);
        }
        let mut line = String::new();
        if input.lock().read_line(&mut line)? == 0 {
            return Ok(false);
        }
        match line.trim() {
            ask::STATE => {}
            ask::KILL => self.kill_all(),
            part => self.part = serde_json::from_str(part)?,
        }
        println!("{}", serde_json::to_string(&self.state)?);
        Ok(true)
    }

    fn pass_one(&mut self) -> Result<()> {
        let Some(stopped) = self.trap.next()? else {
            return Ok(());
        };
        let thread = stopped.pid as i32;
        let process = process_of(thread).unwrap_or(thread);
        self.processes.insert(process);
        let name = fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
        let call = Call {
            is_watchdog: process != self.trap.pid,
            part: self.part,
            thread: name.trim_end().to_owned(),
            call: describe(thread, &stopped.data),
            number: stopped.data.nr.into(),
        };
        let is_wanted = !self.state.has_failed && self.fault.as_ref() == Some(&call);
        if is_wanted {
            self.state.has_failed = true;
            self.state.is_loaders = is_in_loader(thread, stopped.data.instruction_pointer);
        }
        self.trap.answer(&stopped, is_wanted.then(|| error_of(call.number)))?;
        let is_own = call.thread == OWN_NAME;
        if self.fault.is_none() && !is_own && !never_fails(&stopped.data) {
            self.seen.insert(call);
        }
        Ok(())
    }

    fn kill_all(&self) {
        for process in &self.processes {
            // Most have ended.
            let _ = kill(Pid::from_raw(*process), Signal::SIGKILL);
        }
    }
}

fn process_of(thread: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// Whether the code at this address is the dynamic loader's (ld.so(8)). If unknown, it is not.
fn is_in_loader(thread: i32, address: u64) -> bool {
    let maps = fs::read_to_string(format!("/proc/{thread}/maps")).unwrap_or_default();
    let holds = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16).ok());
        Some((from?..to?).contains(&address))
    };
    let here = maps.lines().find(|line| holds(line) == Some(true));
    here.is_some_and(|line| line.rsplit('/').next().is_some_and(|file| file.starts_with("ld-")))
}
