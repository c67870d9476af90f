// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loads of P4, each a process of its own: `giveway jitter-load KIND`. The measuring side starts them, waits until
//! they really load, and checks at the end that they still did. A load has no real-time priority, ends with its parent in
//! whatever way that ends, at the latest after the seconds it was given, and leaves nothing behind: its namespace is
//! held by no other process, its file has no name.

mod disk;
mod icmp;
mod link;
mod net;

use std::ffi::CString;
use std::hint::black_box;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::Signal;
use nix::unistd::alarm;

use super::args::{LoadArgs, LoadKind};
use crate::actuate::thread::leave_priority;

/// What a load says when it loads.
const READY: &str = "ready\n";
/// How long after the measurement a load ends by itself.
const MARGIN: Duration = Duration::from_secs(60);

/// The running loads; dropping it ends them.
#[derive(Debug)]
pub struct Loads(Vec<(LoadKind, Child)>);

impl Loads {
    /// Starts them and waits until they load.
    pub fn start(kinds: &[LoadKind], expected: Duration) -> Result<Self> {
        let mut loads = Self(Vec::new());
        let seconds = (expected + MARGIN).as_secs().min(1_000_000);
        for kind in kinds {
            let processes = if *kind == LoadKind::Cpu { cpus() } else { 1 };
            for _ in 0..processes {
                let child = start(*kind, seconds).with_context(|| format!("cannot start the load {kind}"))?;
                loads.0.push((*kind, child));
            }
        }
        for (kind, child) in &mut loads.0 {
            await_ready(child).with_context(|| format!("there is no load {kind}"))?;
        }
        Ok(loads)
    }

    /// Says whether all of them still load: what was measured without one would be no answer.
    pub fn check(&mut self) -> Result<()> {
        for (kind, child) in &mut self.0 {
            if child.try_wait().context("cannot check on a load")?.is_some() {
                bail!("the load {kind} ended early: {}", last_words(child));
            }
        }
        Ok(())
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            // One that has ended already needs no kill.
            let _ = child.kill();
        }
        for (_, child) in &mut self.0 {
            let _ = child.wait();
        }
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn start(kind: LoadKind, seconds: u64) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0("giveway")
        .args(["jitter-load", &kind.to_string(), "--seconds", &seconds.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A Ctrl-C is for the measurement, which then tells what it has.
        .process_group(0)
        .spawn()
}

fn await_ready(child: &mut Child) -> Result<()> {
    let stdout = child.stdout.take().context("a load has no output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    if line == READY {
        return Ok(());
    }
    Err(anyhow!("{}", last_words(child)))
}

fn last_words(child: &mut Child) -> String {
    let mut words = String::new();
    if let Some(stderr) = child.stderr.as_mut() {
        // What cannot be read is left out.
        let _ = stderr.take(4096).read_to_string(&mut words);
    }
    match words.trim().trim_start_matches("giveway: ") {
        "" => "it was ended by something else".to_owned(),
        words => words.to_owned(),
    }
}

/// A load's whole life.
pub fn run(args: &LoadArgs) -> Result<()> {
    end_with_parent()?;
    // Among the culprits it is found by this name.
    let name = CString::new(format!("jitter-{}", args.kind))?;
    set_name(&name).context("cannot take a name")?;
    alarm::set(args.seconds);
    leave_priority();
    match args.kind {
        LoadKind::Cpu => compute(),
        LoadKind::Icmp => icmp::flood(),
        LoadKind::Disk => disk::write(),
        LoadKind::Net => net::stream(),
    }
}

/// Tells the parent that the load is there.
fn ready() -> Result<()> {
    io::stdout()
        .write_all(READY.as_bytes())
        .context("the program that started this load is gone")
}

/// The signal comes at once; the pipe tells of a parent that was gone before the signal was asked for.
fn end_with_parent() -> Result<()> {
    set_pdeathsig(Signal::SIGKILL).context("cannot ask to end with the parent")?;
    std::thread::Builder::new()
        .spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            std::process::exit(0)
        })
        .context("cannot watch the parent")?;
    Ok(())
}

fn compute() -> Result<()> {
    ready()?;
    let mut number = 1.0f64;
    loop {
        number = black_box(number.sqrt() + 1.0);
    }
}
