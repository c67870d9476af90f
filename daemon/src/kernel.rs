// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel tells: the programs of `bpf/` are loaded here and their records become the engine's types.
//! Nothing in here changes a socket or decides anything.

use std::fs::File;
use std::io::Read;
use std::os::linux::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

pub mod arrival;
pub mod cgroup;
pub mod flow_monitor;
pub mod libbpf_log;
pub mod napi;
pub mod netlink;
pub mod preemption;
pub mod probe;
pub mod process;
pub mod qdisc;
pub mod records;
pub mod response;
pub mod task_watch;
pub mod tcx;
pub mod uplink;

/// The kernel's own type information, by which the programs find its fields.
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The calling thread's network namespace, by the number that BPF programs see.
pub fn own_netns() -> Result<u32> {
    let path = "/proc/thread-self/ns/net";
    let inode = std::fs::metadata(path)
        .with_context(|| format!("cannot look at {path}"))?
        .st_ino();
    u32::try_from(inode).with_context(|| format!("{path} has the impossible number {inode}"))
}

/// Says in one line what no program could be loaded without, before the loader says it in thirty.
pub fn check_requirements() -> Result<()> {
    let missing = probe::missing_privileges()?;
    if !missing.is_empty() {
        bail!(
            "no right to load BPF programs ({} missing): nothing can be watched or changed; run as root",
            missing.join(", ")
        );
    }
    check_btf(KERNEL_BTF)
}

/// Loading takes several megabytes for the kernel's types, for a moment. Call this when everything is loaded.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// CPUs that run now.
pub fn online_cpus() -> usize {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN);
    online
        .ok()
        .flatten()
        .and_then(|cpus| usize::try_from(cpus).ok())
        .unwrap_or(1)
}

fn check_btf(path: &str) -> Result<()> {
    let advice = "nothing can be watched or changed; use a kernel built with CONFIG_DEBUG_INFO_BTF=y";
    let mut magic = [0; 2];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut magic))
        .with_context(|| format!("this kernel tells no types ({path} cannot be read): {advice}"))?;
    ensure!(
        u16::from_ne_bytes(magic) == 0xeb9f,
        "this kernel tells no types ({path} is not BTF): {advice}"
    );
    Ok(())
}

/// Since boot, as the kernel's events count it.
pub fn now() -> Duration {
    read(ClockId::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread, the kernel's part included.
pub fn cpu_time() -> Duration {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: ClockId) -> Duration {
    // Both clocks always exist, so this cannot fail.
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}
