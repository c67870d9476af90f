// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the managed device's packets come in: by threads or softirqs, at which priority, on which CPUs, asked for or
//! waited for. In comes `[receive]`, out go changes, each written down before it is made. What does not work is told,
//! and the rest goes on.
//!
//! Devices of a namespace are in the sysfs that was mounted in it, which may be another than what this process sees: so
//! a thread of its own mounts one for itself.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use giveway_engine::config::ReceiveSection;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::journal::{Changed, Journal};
use crate::interface::Interface;

const SYSFS: &str = "/sys";
const BUSY_POLL: [&str; 2] = ["/proc/sys/net/core/busy_read", "/proc/sys/net/core/busy_poll"];

/// Makes the changes that the section asks for; says what was done, and what could not be.
pub fn apply(section: &ReceiveSection, interface: &Interface, journal: &mut Journal) -> (Vec<String>, Vec<String>) {
    let (mut done, mut missing) = (Vec::new(), Vec::new());
    let mut note = |what: &str, outcome: Result<Vec<String>>| match outcome {
        Ok(lines) => done.extend(lines),
        Err(error) => missing.push(format!("{what} of {}: {error:#}", interface.name)),
    };
    if section.threaded_napi {
        note("threaded NAPI", in_own_sysfs(|| make_threaded(interface, journal)));
    }
    if !section.irq_cpus.is_empty() {
        let outcome = in_own_sysfs(|| move_interrupts(interface, &section.irq_cpus, journal));
        note("the interrupts", outcome);
    }
    if section.busy_poll_us > 0 {
        let wanted = section.busy_poll_us.to_string();
        let outcome = BUSY_POLL.iter().map(|path| set(Path::new(path), &wanted, journal));
        note(
            "busy polling",
            outcome.collect::<Result<Vec<_>>>().map(|lines| lines.concat()),
        );
    }
    (done, missing)
}

fn make_threaded(interface: &Interface, journal: &mut Journal) -> Result<Vec<String>> {
    set(&device_file(&interface.name, "threaded"), "1", journal)
}

fn device_file(name: &str, file: &str) -> PathBuf {
    Path::new(SYSFS).join("class/net").join(name).join(file)
}

/// Message-signalled ones, or else the only one.
fn move_interrupts(interface: &Interface, cpus: &[u32], journal: &mut Journal) -> Result<Vec<String>> {
    let listed = fs::read_dir(device_file(&interface.name, "device/msi_irqs"));
    let names = |entries: fs::ReadDir| {
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
    };
    let mut irqs: Vec<String> = listed.map(|entries| names(entries).collect()).unwrap_or_default();
    if irqs.is_empty() {
        let only = fs::read_to_string(device_file(&interface.name, "device/irq")).unwrap_or_default();
        irqs.extend(
            only.trim()
                .parse::<u32>()
                .ok()
                .filter(|irq| *irq > 0)
                .map(|irq| irq.to_string()),
        );
    }
    if irqs.is_empty() {
        bail!("the device has none of its own");
    }
    let wanted: Vec<String> = cpus.iter().map(u32::to_string).collect();
    let wanted = wanted.join(",");
    let mut lines = Vec::new();
    for irq in irqs {
        let path = Path::new("/proc/irq").join(&irq).join("smp_affinity_list");
        lines.extend(set(&path, &wanted, journal)?);
    }
    Ok(lines)
}

/// Nothing where it is so already.
fn set(path: &Path, wanted: &str, journal: &mut Journal) -> Result<Vec<String>> {
    let before = read(path)?;
    if before == wanted {
        return Ok(Vec::new());
    }
    journal.add(&Changed::File {
        path: path.to_owned(),
        before: before.clone(),
        ours: wanted.to_owned(),
    })?;
    write(path, wanted)?;
    Ok(vec![format!("{}: {before} -> {wanted}", path.display())])
}

fn read(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("cannot write {value} to {}", path.display()))
}

/// What [`apply`] has set, where it is still so. A device that is gone has taken it along.
pub fn put_back(path: &Path, before: &str, ours: &str, dry_run: bool) -> Result<Option<String>> {
    in_own_sysfs(|| {
        if read(path).ok().as_deref() != Some(ours) {
            return Ok(None);
        }
        if !dry_run {
            write(path, before)?;
        }
        Ok(Some(format!("{} back to {before}", path.display())))
    })
}

/// With this namespace's devices in /sys, seen by nobody else.
fn in_own_sysfs<T: Send>(act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let own = || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("sysfs"), SYSFS, Some("sysfs"), MsFlags::empty(), none)
    };
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            own().context("cannot see the devices of this network namespace")?;
            act()
        });
        acting
            .join()
            .unwrap_or_else(|_| bail!("the thread that sets up the device has died"))
    })
}
