// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A shell that is asked for a line every so often, as someone would who tries whether the machine still answers.
//! Input: the CPU on which it runs, and the programs that are tried. Output: how long each answer took, the last one
//! that never came included; and the most of their processes that had real-time priority at once meanwhile. Who asks
//! has a higher priority than whatever is tried, so that only the shell's own delay counts; it asks, and sleeps.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use crate::calls::{SCHED_FIFO, SCHED_RESET_ON_FORK};
use crate::process::Process;
use crate::scheduling;

const EVERY: Duration = Duration::from_millis(50);
/// Above giveway's own thread.
const PRIORITY: i32 = 90;

pub struct Shell {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Answers>>,
    _process: Process,
}

#[derive(Default, Serialize)]
pub struct Answers {
    /// When it was asked, since the shell's start, and how long that answer took.
    pub asked_ms: Vec<(f64, f64)>,
    pub priority_tasks_max: usize,
}

impl Answers {
    pub fn ms(&self) -> Vec<f64> {
        self.asked_ms.iter().map(|(_, took)| *took).collect()
    }
}

impl Shell {
    pub fn start(cpu: usize, programs: &[PathBuf]) -> Result<Self> {
        let mut sh = Command::new("taskset");
        sh.args(["-c", &cpu.to_string(), "sh"]);
        sh.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(sh)?;
        let requests = process.pipes().stdin.take().context("the shell has no input")?;
        let answers = process.pipes().stdout.take().context("the shell has no output")?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (stop, programs) = (Arc::clone(&stop), programs.to_vec());
            std::thread::spawn(move || ask(&stop, &programs, requests, answers))
        };
        Ok(Self {
            stop,
            thread,
            _process: process,
        })
    }

    pub fn finish(self) -> Result<Answers> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow!("the thread that asks the shell has panicked"))?
    }
}

fn ask(stop: &AtomicBool, programs: &[PathBuf], mut requests: ChildStdin, mut from: ChildStdout) -> Result<Answers> {
    scheduling::set(0, SCHED_FIFO | SCHED_RESET_ON_FORK, PRIORITY)?;
    let mut answers = Answers::default();
    let mut asked: Option<Instant> = None;
    let begun = Instant::now();
    let took = |since: Instant| ((since - begun).as_secs_f64() * 1e3, since.elapsed().as_secs_f64() * 1e3);
    while !stop.load(Ordering::Relaxed) {
        let next = Instant::now() + EVERY;
        if asked.is_none() {
            writeln!(requests, "echo here")?;
        }
        let since = *asked.get_or_insert_with(Instant::now);
        if answers_before(next, &mut from)? {
            answers.asked_ms.push(took(since));
            asked = None;
        }
        answers.priority_tasks_max = answers.priority_tasks_max.max(with_priority(programs)?);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    answers.asked_ms.extend(asked.map(took));
    Ok(answers)
}

fn answers_before(when: Instant, from: &mut ChildStdout) -> Result<bool> {
    let left = when.saturating_duration_since(Instant::now());
    let mut waiting = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
    match poll(&mut waiting, PollTimeout::try_from(left)?) {
        Ok(0) | Err(Errno::EINTR) => return Ok(false),
        other => other?,
    };
    ensure!(from.read(&mut [0; 64])? > 0, "the shell ended");
    Ok(true)
}

/// How many processes of the programs have it in their first thread.
fn with_priority(programs: &[PathBuf]) -> Result<usize> {
    let numbers = std::fs::read_dir("/proc")?.flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_of_programs = |pid: &i32| {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
        exe.is_ok_and(|exe| programs.contains(&exe))
    };
    Ok(pids
        .filter(|pid| scheduling::is_realtime(*pid))
        .filter(is_of_programs)
        .count())
}
