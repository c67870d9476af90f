// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the managed device's packets come in: by threads or softirqs, at which priority, on which CPUs, asked for or
//! waited for. Input: `[receive]`. Output: changes, each journalled before it is made. What does not work is told, and
//! the rest goes on.
//!
//! Devices of a namespace are in the sysfs that was mounted in it, which may be another than what this process has at
//! /sys: so one is mounted nowhere, and seen through its descriptor alone.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context as _, Result, bail};
use giveway_engine::change::{self, Change, Subject};
use giveway_engine::config::ReceiveSection;
use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use serde::{Deserialize, Serialize};

use crate::interface::Interface;
use crate::journal::register::{JournalFile, UndoHandler};
use crate::journal::{Entry, Journal};
use crate::kernel::calls::mount_apart;
use crate::kernel::elsewhere::{self, Identity, InterfaceLocation};
use crate::kernel::netlink::Netlink;

/// A file of the kernel's that was written to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Setting {
    path: PathBuf,
    /// Whose it is, where it is a device's. Another may have the name by now, and this one another name.
    #[serde(default)]
    ifindex: Option<u32>,
    /// By which it is found in another namespace.
    #[serde(default)]
    identity: Option<Identity>,
    before: String,
    ours: String,
}

pub const UNDO: UndoHandler = UndoHandler::of::<Setting>(JournalFile::Settings);

const SYSFS: &str = "/sys";
const BUSY_POLL: [&str; 2] = ["/proc/sys/net/core/busy_read", "/proc/sys/net/core/busy_poll"];

/// Makes the changes that the section asks for, and leaves in it what could not be made; says what was done, and what
/// could not be.
pub fn apply(
    section: &mut ReceiveSection,
    interface: &Interface,
    journal: &mut Journal<Setting>,
) -> (Vec<Change>, Vec<String>) {
    let (mut done, mut missing) = (Vec::new(), Vec::new());
    let mut is_done = |what: &str, outcome: Result<Vec<Change>>| {
        let failed = outcome.map(|changes| done.extend(changes)).err();
        missing.extend(
            failed
                .iter()
                .map(|error| format!("{what} of {}: {error:#}", interface.name)),
        );
        failed.is_none()
    };
    if section.threaded_napi && is_done("threaded NAPI", make_threaded(interface, journal)) {
        section.threaded_napi = false;
    }
    if !section.irq_cpus.is_empty() && is_done("the interrupts", move_interrupts(interface, &section.irq_cpus, journal))
    {
        section.irq_cpus.clear();
    }
    if section.busy_poll_us > 0 && is_done("busy polling", poll_busily(section.busy_poll_us, journal)) {
        section.busy_poll_us = 0;
    }
    (done, missing)
}

fn poll_busily(us: u32, journal: &mut Journal<Setting>) -> Result<Vec<Change>> {
    let set = |path| set(Path::new(path), None, &us.to_string(), "busy_poll_us", journal);
    let changes: Result<Vec<_>> = BUSY_POLL.into_iter().map(set).collect();
    changes.map(|changes| changes.concat())
}

fn make_threaded(interface: &Interface, journal: &mut Journal<Setting>) -> Result<Vec<Change>> {
    let file = device_file(&interface.name, "threaded");
    set(&file, Some(interface.index), "1", "threaded_napi", journal)
}

fn device_file(name: &str, file: &str) -> PathBuf {
    Path::new(SYSFS).join("class/net").join(name).join(file)
}

/// Message-signalled ones, or else the only one.
fn move_interrupts(interface: &Interface, cpus: &[u32], journal: &mut Journal<Setting>) -> Result<Vec<Change>> {
    let names = |entries: fs::ReadDir| {
        let names = entries.flatten().map(|entry| entry.file_name().into_string());
        names.filter_map(Result::ok).collect()
    };
    let listed = device_file(&interface.name, "device/msi_irqs");
    let listed = reach(&listed, |listed| unless_missing(fs::read_dir(listed)))?;
    let mut irqs: Vec<String> = listed.map(names).unwrap_or_default();
    if irqs.is_empty() {
        let only = reach(&device_file(&interface.name, "device/irq"), |only| {
            unless_missing(fs::read_to_string(only))
        })?;
        let only = only.unwrap_or_default();
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
    let mut changes = Vec::new();
    for irq in irqs {
        let path = Path::new("/proc/irq").join(&irq).join("smp_affinity_list");
        changes.extend(set(&path, None, &wanted, "irq_cpus", journal)?);
    }
    Ok(changes)
}

/// Nothing where it is so already. `ifindex`: of the device whose it is. `key`: of the configuration.
fn set(
    path: &Path,
    ifindex: Option<u32>,
    wanted: &str,
    key: &str,
    journal: &mut Journal<Setting>,
) -> Result<Vec<Change>> {
    let before = read(path)?.with_context(|| format!("there is no {}", path.display()))?;
    if before == wanted || cpus_in(&before).is_some_and(|cpus| cpus_in(wanted) == Some(cpus)) {
        return Ok(Vec::new());
    }
    journal.add(&[Setting {
        path: path.to_owned(),
        ifindex,
        identity: ifindex
            .map(|ifindex| Identity::of(&mut Netlink::open()?, ifindex))
            .transpose()?,
        before: before.clone(),
        ours: wanted.to_owned(),
    }])?;
    write(path, wanted)?;
    Ok(vec![Change {
        subject: Subject::Kernel,
        name: String::new(),
        setting: change::Setting::File(path.display().to_string()),
        old: before.into(),
        new: wanted.into(),
        rule: "[receive]".to_owned(),
        reason: key.to_owned(),
        made: true,
    }])
}

/// None where there is no such file.
fn read(path: &Path) -> Result<Option<String>> {
    let text = reach(path, |path| unless_missing(fs::read_to_string(path)));
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.map(|text| text.trim().to_owned()))
}

fn write(path: &Path, value: &str) -> Result<()> {
    reach(path, |path| {
        fs::File::options().write(true).open(path)?.write_all(value.as_bytes())
    })
    .with_context(|| format!("cannot write {value} to {}", path.display()))
}

/// Acts on this file as it is in this namespace.
fn reach<T>(path: &Path, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let Ok(below) = path.strip_prefix(SYSFS) else {
        return act(path);
    };
    let mount = mount_apart("sysfs")?;
    let folder = Path::new("/proc/self/fd").join(mount.as_raw_fd().to_string());
    act(&folder.join(below))
}

fn unless_missing<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ENODEV as i32) => {
            Ok(None)
        }
        found => found.map(Some),
    }
}

impl Setting {
    /// None where its device is gone.
    fn path_now(&self, ifindex: Option<u32>) -> Result<Option<PathBuf>> {
        let (Some(ifindex), Some(file)) = (ifindex, self.path.file_name().and_then(OsStr::to_str)) else {
            return Ok(Some(self.path.clone()));
        };
        match if_indextoname(ifindex) {
            Ok(name) => Ok(Some(device_file(&name.to_string_lossy(), file))),
            Err(Errno::ENXIO) => Ok(None),
            Err(errno) => Err(errno).with_context(|| format!("cannot find the device of {}", self.path.display())),
        }
    }

    /// In the calling thread's namespace.
    fn restore_here(&self, ifindex: Option<u32>, dry_run: bool) -> Result<Vec<String>> {
        let Self { before, ours, .. } = self;
        let Some(path) = self.path_now(ifindex)? else {
            return Ok(Vec::new());
        };
        let Some(found) = read(&path)? else {
            return Ok(Vec::new());
        };
        if found != *ours && cpus_in(&found).is_none_or(|cpus| cpus_in(ours) != Some(cpus)) {
            return Ok(Vec::new());
        }
        if !dry_run {
            write(&path, before)?;
        }
        Ok(vec![format!("{} back to {before}", path.display())])
    }
}

impl Entry for Setting {
    /// A device that is gone has taken it along.
    fn restore(&self, dry_run: bool) -> Result<Vec<String>> {
        let found = match (self.ifindex, &self.identity) {
            (Some(ifindex), Some(identity)) => identity.find(&mut Netlink::open()?, ifindex)?,
            (Some(ifindex), None) => InterfaceLocation::Here(ifindex),
            (None, _) => return self.restore_here(None, dry_run),
        };
        match found {
            InterfaceLocation::Here(ifindex) => self.restore_here(Some(ifindex), dry_run),
            InterfaceLocation::There {
                namespace,
                ifindex,
                name,
            } => {
                let moved = self.clone();
                let restore = elsewhere::within(namespace, move || moved.restore_here(Some(ifindex), dry_run));
                restore.with_context(|| {
                    format!(
                        "{} may still be {}: its device has moved to another network namespace, as {name}",
                        self.path.display(),
                        self.ours
                    )
                })
            }
            InterfaceLocation::Gone => Ok(Vec::new()),
        }
    }
}

/// The CPUs of a list, which the kernel may show otherwise than it was written: `0,1` as `0-1`.
fn cpus_in(list: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_is_the_same_however_it_is_written() {
        assert_eq!(cpus_in("0,1,3"), cpus_in("0-1,3"));
        assert_ne!(cpus_in("0-2"), cpus_in("0-1"));
        assert_eq!(cpus_in("many"), None);
    }
}
