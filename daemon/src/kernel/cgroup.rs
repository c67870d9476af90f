// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cgroups by their files: the mount of version 2, and the groups by which the scheduler shares out real time. Reads only.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};

use super::calls::mount_apart;

/// systemd's mount points, which the kernel remembers the names of.
const USUAL: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The root of the cgroup2 hierarchy.
pub struct CgroupRoot {
    pub directory: File,
}

impl CgroupRoot {
    /// Where it is mounted, as the calling thread sees it; else a mount of our own that no other process sees: `ip netns
    /// exec` hides all that is mounted below /sys.
    pub fn open() -> Result<Self> {
        // Where it usually is, it takes no look into /proc, which could be kept waiting.
        let usual = || USUAL.into_iter().find_map(|path| Self::mounted(path.into()));
        let listed = || {
            let mounts = fs::read_to_string("/proc/thread-self/mounts").ok()?;
            mount_of(&mounts, "cgroup2", None).and_then(|path| Self::mounted(path.into()))
        };
        match usual().or_else(listed) {
            Some(root) => Ok(root),
            None => Self::detached().context("no cgroup v2 hierarchy is mounted, and none can be"),
        }
    }

    /// Of the cgroup at this path below, where it does not lead through links.
    pub fn id_of(&self, path: &str) -> std::io::Result<u64> {
        let path = if path.is_empty() { "." } else { path };
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        let directory = openat2(&self.directory, path, how)?;
        Ok(fstat(directory)?.st_ino)
    }

    /// The path of the first cgroup of this name that is in `path`, or in slices there.
    pub fn find_in_slices(&self, path: &str, name: &str) -> Option<String> {
        let folder = PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd())).join(path);
        let entries = fs::read_dir(folder).ok()?.flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let names: Vec<String> = directories
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let below = |child: &str| {
            if path.is_empty() {
                child.to_owned()
            } else {
                format!("{path}/{child}")
            }
        };
        if names.iter().any(|child| child == name) {
            return Some(below(name));
        }
        let mut slices = names.iter().filter(|child| child.ends_with(".slice"));
        slices.find_map(|slice| self.find_in_slices(&below(slice), name))
    }

    /// None where something else was mounted over it.
    fn mounted(path: PathBuf) -> Option<Self> {
        let directory = File::open(&path).ok()?;
        let kind = fstatfs(&directory).ok()?.filesystem_type();
        (kind == CGROUP2_SUPER_MAGIC).then_some(Self { directory })
    }

    fn detached() -> Result<Self> {
        let mount = mount_apart("cgroup2")?;
        // What fsmount gives names the mount, but cannot be read.
        let directory = openat(
            mount,
            ".",
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self {
            directory: directory.into(),
        })
    }
}

/// /proc/mounts writes blanks and the like as a backslash and three octal digits.
fn unescape(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                path.push(char::from(byte));
                path.push_str(&part[3..]);
            }
            None => {
                path.push('\\');
                path.push_str(part);
            }
        }
    }
    path
}

/// The number in a file of the kernel's.
pub fn number(path: impl AsRef<Path>) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The mount of a hierarchy: its kind, and for v1 the controller that it must have.
fn mount_of(mounts: &str, kind: &str, controller: Option<&str>) -> Option<String> {
    let mut rows = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let row = rows.find(|row| {
        row.get(2) == Some(&kind) && controller.is_none_or(|c| row.get(3).is_some_and(|o| o.split(',').any(|o| o == c)))
    })?;
    row.get(1).map(|path| unescape(path))
}

/// The group of a process in cgroup v1's `cpu` controller, and its real-time microseconds a period, where the kernel has
/// such groups.
pub fn group_v1(process: &str) -> Option<(String, i64)> {
    let (cgroups, mounts) = cgroups_and_mounts(process)?;
    let has_cpu = |line: &&str| line.split(':').nth(1).is_some_and(|c| c.split(',').any(|c| c == "cpu"));
    let group = cgroups.lines().find(has_cpu)?.splitn(3, ':').nth(2)?;
    let mount = mount_of(&mounts, "cgroup", Some("cpu"))?;
    let runtime_us = number(format!("{mount}{group}/cpu.rt_runtime_us"))?;
    Some((group.to_owned(), runtime_us))
}

fn cgroups_and_mounts(process: &str) -> Option<(String, String)> {
    let cgroups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    Some((cgroups, fs::read_to_string("/proc/self/mounts").ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_by_type_wherever_it_is() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/uni\\040fied cgroup2 rw 0 0\n";
        assert_eq!(
            mount_of(mounts, "cgroup2", None).as_deref(),
            Some("/sys/fs/cgroup/uni fied")
        );
        assert_eq!(
            mount_of("cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\nshort\n", "cgroup2", None),
            None
        );
    }

    #[test]
    fn broken_escapes_stay_as_they_are() {
        assert_eq!(unescape("/a\\04"), "/a\\04");
        assert_eq!(unescape("/a\\999b\\"), "/a\\999b\\");
    }

    #[test]
    fn mounts_are_found_by_kind_and_controller() {
        let mounts =
            "cgroup /c/cpuacct cgroup rw,cpuacct 0 0\ncgroup /c/cpu cgroup rw,cpu 0 0\ncgroup2 /c/u cgroup2 rw 0 0\n";
        assert_eq!(mount_of(mounts, "cgroup", Some("cpu")).as_deref(), Some("/c/cpu"));
        assert_eq!(mount_of(mounts, "cgroup2", None).as_deref(), Some("/c/u"));
        assert_eq!(mount_of(mounts, "cgroup", Some("memory")), None);
    }
}
