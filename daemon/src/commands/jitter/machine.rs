// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine around the measurement: what it is, what the hypervisor took of it, and what is held still while it is
//! measured. What is held is let go when the process ends, however it ends.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;

use anyhow::Result;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::resource::{Resource, setrlimit};
use tracing::warn;

/// A measuring thread computes for microseconds. One that does so for this long is broken, and the kernel ends it.
const LONGEST_COMPUTING_US: u64 = 2_000_000;

/// Keeps this process's memory where it is, and, if asked, the CPUs out of deep idle states for as long as the file is
/// open: as cyclictest does with --mlockall and by default.
pub fn hold_steady(deep_idle: bool) -> Option<File> {
    if let Err(errno) = mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE) {
        warn!(
            "memory is not locked ({}): a wake-up may wait for the disk",
            errno.desc()
        );
    }
    // With no limit at all a faulty thread of real-time priority would keep its CPU.
    if let Err(errno) = setrlimit(Resource::RLIMIT_RTTIME, LONGEST_COMPUTING_US, LONGEST_COMPUTING_US) {
        warn!("the time of real-time threads is not limited: {}", errno.desc());
    }
    if deep_idle { None } else { forbid_deep_idle() }
}

/// The kernel keeps to this for as long as the file is open (Documentation/power/pm_qos_interface.rst).
fn forbid_deep_idle() -> Option<File> {
    let path = "/dev/cpu_dma_latency";
    let opened = OpenOptions::new().write(true).open(path).and_then(|mut file| {
        file.write_all(&0i32.to_ne_bytes())?;
        Ok(file)
    });
    opened
        .inspect_err(|error| warn!("the CPUs may use deep idle states ({path}: {error})"))
        .ok()
}

/// Who registered for an interrupt, or its number.
pub fn irq_name(number: u32) -> String {
    let actions = fs::read_to_string(format!("/sys/kernel/irq/{number}/actions")).unwrap_or_default();
    match actions.trim() {
        "" => number.to_string(),
        name => name.to_owned(),
    }
}

/// How long, since boot and over all CPUs, the hypervisor ran something else.
pub fn steal_ms() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat")?;
    Ok(steal_ticks(&text).unwrap_or(0) * 1000 / TICKS_PER_S)
}

/// USER_HZ, which every architecture's Linux tells user space.
const TICKS_PER_S: u64 = 100;

/// `cpu user nice system idle iowait irq softirq steal guest guest_nice` (proc_stat(5)).
fn steal_ticks(text: &str) -> Option<u64> {
    let all = text.lines().find(|line| line.starts_with("cpu "))?;
    all.split_whitespace().nth(8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_the_eighth_figure_of_all_cpus() {
        let text = "cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 1 2 3 4 5 6 7 11 9 10\n";
        assert_eq!(steal_ticks(text), Some(88));
        assert_eq!(steal_ticks("cpu  1 2 3\n"), None);
        assert_eq!(steal_ticks(""), None);
    }
}
