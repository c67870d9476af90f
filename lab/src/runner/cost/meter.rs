// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters of the kernel about one daemon: its CPU time to the nanosecond, its programs' run time, its memory.
//! In: a running daemon. Out: readings that can be subtracted. Asks the daemon itself nothing.
//!
//! A program that an iterator runs is on the daemon's own account; all others run in whoever sends, receives or
//! connects, and are counted by the kernel's BPF statistics, which this keeps switched on while it lives. (They
//! cost some tens of nanoseconds a run themselves, which is then in both accounts.)

use std::collections::BTreeSet;
use std::ops::Sub;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Deserialize;

use crate::giveway::Daemon;
use crate::namespace::Namespace;
use crate::process::run;
use crate::program_time::enable_statistics;

/// How the programs' names begin that run in the daemon's own reads.
const ITERATORS: [&str; 5] = ["gw_pass_", "gw_walk_", "gw_find_", "gw_apply_", "gw_lift_"];

pub struct Meter {
    daemon: i32,
    programs: BTreeSet<u64>,
    _statistics: OwnedFd,
}

/// Totals; the difference of two is a period.
#[derive(Clone, Copy)]
pub struct Reading {
    pub elapsed_ns: f64,
    pub daemon_ns: f64,
    /// In other processes' context.
    pub programs_ns: f64,
    pub program_runs: f64,
    /// Of all processors, in ticks.
    busy_ticks: f64,
    all_ticks: f64,
}

#[derive(Deserialize)]
struct Program {
    id: u64,
    #[serde(default)]
    name: String,
    #[serde(default)]
    run_time_ns: f64,
    #[serde(default)]
    run_cnt: f64,
}

impl Meter {
    pub fn of(daemon: &Daemon) -> Result<Self> {
        let statistics = enable_statistics()?;
        let mut meter = Self {
            daemon: daemon.id(),
            programs: held_programs(daemon.id())?,
            _statistics: statistics,
        };
        let known = programs()?;
        let is_elsewhere = |id: &u64| known.iter().any(|p| p.id == *id && !is_iterator(&p.name));
        meter.programs.retain(is_elsewhere);
        if meter.programs.is_empty() {
            bail!("none of the daemon's BPF programs was found: their cost would be missing");
        }
        Ok(meter)
    }

    pub fn read(&self) -> Result<Reading> {
        let ours: Vec<_> = programs()?
            .into_iter()
            .filter(|p| self.programs.contains(&p.id))
            .collect();
        let (busy_ticks, all_ticks) = processors()?;
        Ok(Reading {
            elapsed_ns: crate::traffic::stream::now_ns()? as f64,
            daemon_ns: cpu_ns(self.daemon)?,
            programs_ns: ours.iter().map(|p| p.run_time_ns).sum(),
            program_runs: ours.iter().map(|p| p.run_cnt).sum(),
            busy_ticks,
            all_ticks,
        })
    }
}

impl Reading {
    /// Everything that ran, the lab's own traffic included.
    pub fn machine_busy_percent(&self) -> f64 {
        100.0 * self.busy_ticks / self.all_ticks.max(1.0)
    }
}

impl Sub for Reading {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            elapsed_ns: self.elapsed_ns - earlier.elapsed_ns,
            daemon_ns: self.daemon_ns - earlier.daemon_ns,
            programs_ns: self.programs_ns - earlier.programs_ns,
            program_runs: self.program_runs - earlier.program_runs,
            busy_ticks: self.busy_ticks - earlier.busy_ticks,
            all_ticks: self.all_ticks - earlier.all_ticks,
        }
    }
}

/// Wall time and CPU time of one `ss` over the namespace, its output thrown away.
pub fn run_ss(at: &Namespace, flags: &str) -> Result<(Duration, Duration)> {
    let mut command = at.command("ss")?;
    command.arg(flags).stdin(Stdio::null()).stdout(Stdio::null());
    let (cpu, wall) = (children_cpu()?, Instant::now());
    let status = command.status().context("cannot start `ss`: is iproute2 installed?")?;
    let took = (wall.elapsed(), children_cpu()?.saturating_sub(cpu));
    if !status.success() {
        bail!("`ss {flags}` failed ({status})");
    }
    Ok(took)
}

/// Resident memory, shared pages included.
pub fn resident_mb(pid: i32) -> Result<f64> {
    let file = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.with_context(|| format!("{file} has no VmRSS"))? * 1024.0 / 1e6)
}

/// Of all children that have ended and were waited for.
fn children_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = [usage.user_time(), usage.system_time()].map(|t| t.tv_sec() * 1_000_000 + t.tv_usec());
    Ok(Duration::from_micros(micros.iter().sum::<i64>().unsigned_abs()))
}

/// Time on a processor of every thread.
fn cpu_ns(pid: i32) -> Result<f64> {
    let mut total = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).context("the daemon has gone")? {
        let file = task?.path().join("schedstat");
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let first = text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        total += first.with_context(|| format!("{} is not readable", file.display()))?;
    }
    Ok(total)
}

/// Busy and all ticks of the machine's processors.
fn processors() -> Result<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guest time is in user already.
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|n| n.parse().ok())
        .collect();
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    let all: f64 = ticks.iter().sum();
    Ok((all - idle, all))
}

fn is_iterator(name: &str) -> bool {
    ITERATORS.iter().any(|prefix| name.starts_with(prefix))
}

fn programs() -> Result<Vec<Program>> {
    let mut command = Command::new("bpftool");
    command.args(["-j", "prog", "show"]);
    serde_json::from_slice(&run(command)?.stdout).context("bpftool's list of programs is not readable")
}

/// Programs that the process's links keep.
fn held_programs(pid: i32) -> Result<BTreeSet<u64>> {
    let mut held = BTreeSet::new();
    for descriptor in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).context("the daemon has gone")? {
        let about = std::fs::read_to_string(descriptor?.path()).unwrap_or_default();
        let id = |line: &str| line.strip_prefix("prog_id:")?.trim().parse::<u64>().ok();
        held.extend(about.lines().filter_map(id));
    }
    Ok(held)
}
