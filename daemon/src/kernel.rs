// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel tells: the programs of `bpf/` are loaded here and their records become the engine's types.
//! Nothing in here changes a socket or decides anything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore as _, MapHandle, MapType};
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, User, sysconf};

pub mod apart;
pub mod arrival;
pub mod boot;
pub mod bpf;
pub mod calls;
pub mod cgroup;
pub mod connection_users;
pub mod descriptors;
pub mod devices;
pub mod donation;
pub mod elsewhere;
pub mod flow_monitor;
pub mod holders;
pub mod ids;
pub mod inherit;
pub mod libbpf_files;
pub mod libbpf_log;
pub mod life_page;
pub mod links;
pub mod local_wait;
pub mod memory;
pub mod namespace;
pub mod napi;
pub mod netlink;
pub mod owner;
pub mod preemption;
pub mod process;
pub mod program;
pub mod qdisc;
pub mod records;
pub mod report_filter;
pub mod response;
pub mod ring;
pub mod routes;
pub mod scanner;
pub mod signals;
pub mod skeletons;
pub mod task_watch;
pub mod tasks;
pub mod tcx;
pub mod types;
pub mod uplink;
pub mod way_in;

use calls::CapabilitySet;
pub use memory::{give_back_memory, hold_little_memory};
pub use namespace::{is_netns_gone, net as own_netns, own_netns_cookie};
use scanner::ScanError;

/// The map of this number; None where nobody holds it any more. Every other failure, as for want of descriptors, may be none
/// the next time.
pub fn map_of(map_id: u32) -> Result<Option<MapHandle>> {
    match MapHandle::from_map_id(map_id) {
        Ok(map) => Ok(Some(map)),
        Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The kernel allows it only to who has more privileges than this process.
pub fn is_refused(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<libbpf_rs::Error>();
    cause.is_some_and(|error| error.kind() == libbpf_rs::ErrorKind::PermissionDenied)
}

/// Says in one line what no program could be loaded without, before the loader says it in thirty.
pub fn check_requirements() -> Result<()> {
    let missing = missing_privileges()?;
    if !missing.is_empty() {
        bail!(
            "no right to load BPF programs ({} missing): nothing can be watched or changed; run as root",
            missing.join(", ")
        );
    }
    types::check_btf()?;
    check_names()
}

/// Names tell our maps apart. libbpf asks once in a process whether the kernel takes them, and where that question fails
/// for want of memory it makes maps without any, pinned ones too, which nothing could use or undo afterwards.
fn check_names() -> Result<()> {
    const NAME: &str = "gw_name";
    static ARE_KNOWN: AtomicBool = AtomicBool::new(false);
    if ARE_KNOWN.load(Ordering::Relaxed) {
        return Ok(());
    }
    let map = array(NAME, 4, 1)?;
    let info = map.info().context("cannot ask about a BPF map")?;
    ensure!(
        info.name().is_ok_and(|name| name == NAME),
        "the kernel gives BPF maps no names: memory may be short, or it is older than 4.15; try again"
    );
    ARE_KNOWN.store(true, Ordering::Relaxed);
    Ok(())
}

/// A new map: an array of so many values of this size.
pub fn array(name: &str, value_bytes: u32, values: u32) -> Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_rs::libbpf_sys::size_t,
        ..bpf_map_create_opts::default()
    };
    MapHandle::create(MapType::Array, Some(name), 4, value_bytes, values, &options)
        .with_context(|| format!("cannot make the BPF map {name}"))
}

/// The number of a user's name, or the number itself.
pub fn uid_of(name: &str) -> Option<u32> {
    let named = || Some(User::from_name(name).ok()??.uid.as_raw());
    name.parse().ok().or_else(named)
}

/// For keys, seeds and seals: the kernel's own, drawn by this call.
pub fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let filled = calls::random(&mut bytes).context("no randomness from the kernel")?;
    ensure!(
        filled == bytes.len(),
        "the kernel gave {filled} random bytes in place of 32"
    );
    Ok(bytes)
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

/// The capabilities that loading and attaching our programs takes and the calling thread lacks.
pub fn missing_privileges() -> Result<Vec<&'static str>> {
    let effective = calls::effective_capabilities().context("cannot read this thread's capabilities")?;
    // CAP_SYS_ADMIN includes the two newer ones.
    let needed = [
        ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
        ("CAP_PERFMON", CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN),
        ("CAP_BPF", CapabilitySet::BPF | CapabilitySet::SYS_ADMIN),
    ];
    let missing = needed.into_iter().filter(|(_, any_of)| !effective.intersects(*any_of));
    Ok(missing.map(|(name, _)| name).collect())
}

/// As `uname -r` says.
pub fn kernel_release() -> String {
    nix::sys::utsname::uname()
        .map(|names| names.release().to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// For what leaves no trace in the kernel's types. A release that reads like none is taken for a new one.
pub fn check_release(least: (u32, u32)) -> Result<()> {
    let release = kernel_release();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let number = |n: Option<Result<u32, _>>| n.and_then(Result::ok).unwrap_or(u32::MAX);
    let found = (number(numbers.next()), number(numbers.next()));
    ensure!(
        found >= least,
        "needs Linux {}.{} (this is {release})",
        least.0,
        least.1
    );
    Ok(())
}

/// What the kernel answered at the bottom of it; None where the error is not the kernel's.
pub fn errno_of(error: &anyhow::Error) -> Option<Errno> {
    error.chain().find_map(|cause| {
        let io = || cause.downcast_ref::<std::io::Error>()?.raw_os_error();
        cause
            .downcast_ref::<Errno>()
            .copied()
            .or_else(|| io().map(Errno::from_raw))
    })
}

/// By its name, where it has one.
pub fn shown_errno(errno: i32) -> String {
    match Errno::from_raw(errno) {
        Errno::UnknownErrno => format!("errno {errno}"),
        known => format!("{known:?}, errno {errno}"),
    }
}

/// Whether it failed for want of what polls: descriptors, memory, processes, a scan over sockets. Then nothing is said of what was
/// asked about.
pub fn is_shortage(error: &anyhow::Error) -> bool {
    const SHORT: [Errno; 5] = [
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::ENOMEM,
        Errno::ENOBUFS,
        Errno::EAGAIN,
    ];
    error.downcast_ref::<ScanError>().is_some() || errno_of(error).is_some_and(|errno| SHORT.contains(&errno))
}

/// Loads something, and tries twice more where that fails: memory or descriptors may be short for a moment, which libbpf's
/// errors do not tell from what stays.
///
/// # Errors
/// The last one.
pub fn load_patiently<T>(mut load: impl FnMut() -> Result<T>) -> Result<T> {
    for pause_ms in [50, 250] {
        match load() {
            Ok(loaded) => return Ok(loaded),
            Err(error) => tracing::debug!("tried again in {pause_ms} ms: {error:#}"),
        }
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    load()
}

/// Since boot, as the kernel's events count it.
pub fn now() -> Duration {
    read(ClockId::CLOCK_MONOTONIC)
}

/// How long the machine has been suspended since it was started.
pub fn slept() -> Duration {
    let monotonic = now();
    read(ClockId::CLOCK_BOOTTIME).saturating_sub(monotonic)
}

/// CPU time of the calling thread, the kernel's part included.
pub fn cpu_time() -> Duration {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: ClockId) -> Duration {
    // Both clocks always exist, so this cannot fail.
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_map_that_the_kernel_does_not_know_is_gone() {
        assert!(map_of(u32::MAX).unwrap().is_none());
        let refused = std::thread::spawn(|| {
            calls::drop_capabilities().unwrap();
            map_of(u32::MAX).is_err_and(|error| is_refused(&error))
        });
        assert!(refused.join().unwrap(), "one that may not be asked for may be there");
    }
}
