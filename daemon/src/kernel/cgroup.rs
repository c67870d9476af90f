// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names cgroups (v2). In comes the id that a socket carries, out goes the path below the mount of the hierarchy.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// `FILEID_KERNFS` (include/linux/exportfs.h): the handle is the 64-bit id.
const HANDLE_TYPE_KERNFS: i32 = 0xfe;

/// Enough for a busy machine; beyond it we forget and ask again.
const PATHS_KEPT: usize = 4096;

/// The root of the cgroup2 hierarchy.
pub struct Root {
    pub directory: File,
    /// Before the names of all that is below it.
    path: PathBuf,
}

impl Root {
    /// Where it is mounted, as the calling thread sees it; else a mount of our own that nobody else sees: `ip netns
    /// exec` hides all that is mounted below /sys.
    pub fn open() -> Result<Self> {
        let mounts =
            std::fs::read_to_string("/proc/thread-self/mounts").context("cannot read /proc/thread-self/mounts")?;
        match find_mount(&mounts).and_then(Self::mounted) {
            Some(root) => Ok(root),
            None => Self::detached().context("no cgroup v2 hierarchy is mounted, and none can be"),
        }
    }

    /// None where something else was mounted over it.
    fn mounted(path: PathBuf) -> Option<Self> {
        let directory = File::open(&path).ok()?;
        let kind = fstatfs(&directory).ok()?.filesystem_type();
        (kind == CGROUP2_SUPER_MAGIC).then_some(Self { directory, path })
    }

    fn detached() -> Result<Self> {
        let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        // What fsmount gives names the mount, but cannot be read.
        let directory = openat(
            mount,
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self {
            directory: directory.into(),
            path: "/".into(),
        })
    }
}

fn find_mount(mounts: &str) -> Option<PathBuf> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|f| f.get(2) == Some(&"cgroup2"))
        .find_map(|f| Some(unescape(f.get(1)?).into()))
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

/// Remembers the names that it found.
pub struct CgroupNames {
    root: Root,
    names: HashMap<u64, Option<PathBuf>>,
}

impl CgroupNames {
    pub fn open() -> Result<Self> {
        Ok(Self {
            root: Root::open()?,
            names: HashMap::new(),
        })
    }

    /// The cgroup's path, `/` for the root; None for one that is gone or that this process may not see.
    pub fn path(&mut self, id: u64) -> Option<&Path> {
        if self.names.len() >= PATHS_KEPT && !self.names.contains_key(&id) {
            self.names.clear();
        }
        let root = &self.root;
        self.names.entry(id).or_insert_with(|| path_of(root, id)).as_deref()
    }
}

fn path_of(root: &Root, id: u64) -> Option<PathBuf> {
    let directory = open_by_id(&root.directory, id)?;
    let full = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).ok()?;
    full.strip_prefix(&root.path)
        .ok()
        .map(|below| Path::new("/").join(below))
}

/// A `struct file_handle` with room for the eight bytes that kernfs uses.
#[repr(C)]
struct KernfsHandle {
    handle_bytes: u32,
    handle_type: i32,
    id: [u8; 8],
}

fn open_by_id(mount: &File, id: u64) -> Option<OwnedFd> {
    let mut handle = KernfsHandle {
        handle_bytes: 8,
        handle_type: HANDLE_TYPE_KERNFS,
        id: id.to_ne_bytes(),
    };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the handle is laid out as the call expects, with as many bytes as it says, and outlives the call.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags) };
    // SAFETY: a descriptor that is not negative was just opened for us.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_by_type_wherever_it_is() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/uni\\040fied cgroup2 rw 0 0\n";
        assert_eq!(find_mount(mounts), Some("/sys/fs/cgroup/uni fied".into()));
        assert_eq!(find_mount("cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\nshort\n"), None);
    }

    #[test]
    fn broken_escapes_stay_as_they_are() {
        assert_eq!(unescape("/a\\04"), "/a\\04");
        assert_eq!(unescape("/a\\999b\\"), "/a\\999b\\");
    }
}
