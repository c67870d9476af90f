// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of this machine decides how soon a task runs that must: read from the kernel as it is now, judged nowhere
//! here. What a kernel does not tell is None.

use std::fs;
use std::path::{Path, PathBuf};

use nix::time::{ClockId, clock_getres};

use super::cgroup::group_v1;
use super::preemption::Preemption;

#[derive(Clone, Debug, PartialEq)]
pub struct LatencyFactors {
    pub preemption: Preemption,
    /// Of CLOCK_MONOTONIC's timers: 1 ns with high-resolution timers, else the tick.
    pub timer_resolution_ns: Option<u64>,
    /// CPUs that need no tick while one task runs.
    pub tickless_cpus: Option<String>,
    /// The governors in use, each once; none where the frequency is not ours to choose.
    pub governors: Vec<String>,
    pub idle: Option<IdleState>,
    pub throttling: Option<Throttling>,
    /// Of this process's group, where real time is shared out by groups (CONFIG_RT_GROUP_SCHED, cgroup v1): us a period.
    pub group_runtime_us: Option<i64>,
    /// Of the time of all CPUs since boot, that the hypervisor gave to others; None on bare metal.
    pub stolen_percent: Option<f64>,
    /// By how much a thread of this process without real-time priority may be woken late to save wake-ups (timer slack).
    pub timer_slack_ns: Option<u64>,
}

/// The deepest idle state that the CPUs may use.
#[derive(Clone, Debug, PartialEq)]
pub struct IdleState {
    pub driver: String,
    pub name: String,
    /// As the driver claims.
    pub exit_latency_us: u64,
}

/// All real-time tasks together get so much of each period on a CPU (sched_rt_runtime_us); -1: all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttling {
    pub runtime_us: i64,
    pub period_us: i64,
}

impl LatencyFactors {
    pub fn here() -> Self {
        let number = |path: &str| read(path)?.parse().ok();
        let resolution = clock_getres(ClockId::CLOCK_MONOTONIC).ok();
        Self {
            preemption: Preemption::here(),
            timer_resolution_ns: resolution.map(|r| r.tv_sec() as u64 * 1_000_000_000 + r.tv_nsec() as u64),
            tickless_cpus: read("/sys/devices/system/cpu/nohz_full")
                .filter(|cpus| !cpus.is_empty() && cpus != "(null)"),
            governors: governors(),
            idle: deepest_idle(),
            throttling: number("/proc/sys/kernel/sched_rt_runtime_us")
                .zip(number("/proc/sys/kernel/sched_rt_period_us"))
                .map(|(runtime_us, period_us)| Throttling { runtime_us, period_us }),
            group_runtime_us: group_v1("self").map(|(_, runtime_us)| runtime_us),
            stolen_percent: stolen(),
            timer_slack_ns: read("/proc/self/timerslack_ns").and_then(|text| text.parse().ok()),
        }
    }
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn entries(directory: &str) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

fn governors() -> Vec<String> {
    let policies = entries("/sys/devices/system/cpu/cpufreq");
    let mut governors: Vec<String> = policies
        .filter_map(|policy| read(policy.join("scaling_governor")))
        .collect();
    governors.sort_unstable();
    governors.dedup();
    governors
}

fn deepest_idle() -> Option<IdleState> {
    let driver = read("/sys/devices/system/cpu/cpuidle/current_driver").filter(|driver| driver != "none")?;
    let enabled = |state: &PathBuf| read(state.join("disable")).is_none_or(|disabled| disabled == "0");
    let states = entries("/sys/devices/system/cpu/cpu0/cpuidle").filter(enabled);
    let states = states.filter_map(|state| {
        Some(IdleState {
            driver: driver.clone(),
            name: read(state.join("name"))?,
            exit_latency_us: read(state.join("latency"))?.parse().ok()?,
        })
    });
    states.max_by_key(|state| state.exit_latency_us)
}

fn stolen() -> Option<f64> {
    let is_guest = read("/proc/cpuinfo")?
        .lines()
        .any(|line| line.starts_with("flags") && line.contains(" hypervisor"));
    let text = read("/proc/stat").filter(|_| is_guest)?;
    let line = text.lines().next()?;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal (proc_stat(5)); what follows is contained in these.
    let all: f64 = ticks.iter().take(8).sum();
    Some(100.0 * ticks.get(7)? / all.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_tells_what_every_linux_tells() {
        let machine = LatencyFactors::here();
        assert!(
            machine.timer_resolution_ns.is_some() && machine.throttling.is_some(),
            "{machine:?}"
        );
        assert!(
            machine
                .stolen_percent
                .is_none_or(|percent| (0.0..=100.0).contains(&percent)),
            "{machine:?}"
        );
    }
}
