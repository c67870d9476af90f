// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernel counters of one daemon: its CPU time to the nanosecond, its programs' run time, its memory. Input: a running
//! daemon. Output: readings that can be subtracted. Asks the daemon itself nothing.
//!
//! A program run by an iterator is in the account of the daemon, or of its process that scans over sockets, which
//! counts as the daemon's here. All others run in the sending, receiving or connecting process, and are counted by the
//! kernel's BPF statistics, which this keeps switched on while it lives. (These cost some tens of nanoseconds a run
//! themselves, which are then in both accounts.)

use std::collections::BTreeSet;
use std::ops::Sub;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use libbpf_rs::query::ProgInfoIter;
use nix::sys::resource::{UsageWho, getrusage};

use crate::bpf_objects::{Object, ObjectKind, all, enable_statistics, held_by};
use crate::giveway::Daemon;
use crate::namespace::Namespace;
use crate::proc::{number, numbers};

/// The prefixes of programs that run in the daemon's own reads.
const ITERATORS: [&str; 4] = ["gw_poll_", "gw_scan_", "gw_find_", "gw_apply_"];

pub struct Meter {
    daemon: i32,
    programs: BTreeSet<u32>,
    _statistics: OwnedFd,
}

/// Totals; the difference of two is a period.
#[derive(Clone, Copy)]
pub struct MeterReading {
    pub elapsed_ns: f64,
    pub daemon_ns: f64,
    /// In other processes' context.
    pub programs_ns: f64,
    pub program_runs: f64,
    /// Of all processors, in ticks.
    busy_ticks: f64,
    all_ticks: f64,
}

impl Meter {
    pub fn of(daemon: &Daemon) -> Result<Self> {
        let statistics = enable_statistics()?;
        // A link's descriptor names its program, too.
        let held = held_by(daemon.process.id(), ObjectKind::Program);
        let is_elsewhere = |object: &Object| object.kind == ObjectKind::Program && !is_iterator(&object.name);
        let programs: BTreeSet<u32> = all()
            .into_iter()
            .filter(|object| is_elsewhere(object) && held.contains(&object.id))
            .map(|object| object.id)
            .collect();
        if programs.is_empty() {
            bail!("none of the daemon's BPF programs was found: their cost would be missing");
        }
        Ok(Self {
            daemon: daemon.process.id(),
            programs,
            _statistics: statistics,
        })
    }

    pub fn read(&self) -> Result<MeterReading> {
        let ours = ProgInfoIter::default().filter(|info| self.programs.contains(&info.id));
        let runs: Vec<_> = ours
            .map(|info| (info.run_time_ns as f64, info.run_cnt as f64))
            .collect();
        let (busy_ticks, all_ticks) = processors()?;
        Ok(MeterReading {
            elapsed_ns: crate::traffic::realtime::monotonic_ns()? as f64,
            daemon_ns: daemon_ns(self.daemon)?,
            programs_ns: runs.iter().map(|(ns, _)| ns).sum(),
            program_runs: runs.iter().map(|(_, count)| count).sum(),
            busy_ticks,
            all_ticks,
        })
    }
}

impl MeterReading {
    /// Everything that ran, including the lab's own traffic.
    pub fn machine_busy_percent(&self) -> f64 {
        100.0 * self.busy_ticks / self.all_ticks.max(1.0)
    }
}

impl Sub for MeterReading {
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
    Ok(number(&format!("/proc/{pid}/status"), "VmRSS:", 0)? * 1024.0 / 1e6)
}

/// Of all children that have ended and were waited for.
fn children_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = [usage.user_time(), usage.system_time()].map(|t| t.tv_sec() * 1_000_000 + t.tv_usec());
    Ok(Duration::from_micros(micros.iter().sum::<i64>().unsigned_abs()))
}

/// CPU time of a daemon and of its process that scans over sockets.
pub fn daemon_ns(pid: i32) -> Result<f64> {
    let scanner = scanner(pid)?.map_or(Ok(0.0), |scanner| cpu_ns(scanner, |_| true))?;
    Ok(cpu_ns(pid, |_| true)? + scanner)
}

/// How long these two waited for a processor.
pub fn daemon_waited_ns(pid: i32) -> Result<f64> {
    let mut total = 0.0;
    for process in [Some(pid), scanner(pid)?].into_iter().flatten() {
        for thread in threads(process)? {
            total += number(&format!("/proc/{process}/task/{thread}/schedstat"), "", 1)?;
        }
    }
    Ok(total)
}

/// Private memory of the process that scans over sockets.
pub fn scanner_mb(daemon: i32) -> Result<f64> {
    let scanner = scanner(daemon)?.context("the daemon has no process that scans over sockets")?;
    let rollup = format!("/proc/{scanner}/smaps_rollup");
    let own = number(&rollup, "Private_Clean:", 0)? + number(&rollup, "Private_Dirty:", 0)?;
    Ok(own * 1024.0 / 1e6)
}

fn scanner(daemon: i32) -> Result<Option<i32>> {
    let children = numbers(&format!("/proc/{daemon}/task/{daemon}/children"), "")?;
    let mut children = children.into_iter().map(|pid| pid as i32);
    let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Ok(children.find(|pid| name(pid).trim_end() == "giveway-scan"))
}

/// CPU time of the counted threads.
pub fn cpu_ns(pid: i32, counts: impl Fn(i32) -> bool) -> Result<f64> {
    let mut total = 0.0;
    for thread in threads(pid)?.into_iter().filter(|thread| counts(*thread)) {
        total += number(&format!("/proc/{pid}/task/{thread}/schedstat"), "", 0)?;
    }
    Ok(total)
}

pub fn threads(pid: i32) -> Result<Vec<i32>> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).context("the daemon has gone")?;
    Ok(tasks
        .flatten()
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect())
}

/// Busy and all ticks of the machine's processors.
fn processors() -> Result<(f64, f64)> {
    // user nice system idle iowait irq softirq steal; guest time is in user already.
    let mut ticks = numbers("/proc/stat", "cpu ")?;
    ticks.truncate(8);
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    let all: f64 = ticks.iter().sum();
    Ok((all - idle, all))
}

pub fn is_iterator(name: &str) -> bool {
    ITERATORS.iter().any(|prefix| name.starts_with(prefix))
}
