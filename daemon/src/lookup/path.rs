// SPDX-License-Identifier: Apache-2.0 OR MIT
//! To which file a path leads, where that stands, and whether only root decides it. May never return: for a worker alone.
//!
//! Whoever may write to a directory may put another file there, unless it is sticky and what is there is not theirs. So
//! each directory and link on the way is looked at, not only the file. Access lists need no look of their own: the
//! kernel shows their mask, which bounds what they give to other users, as the rights of the group (acl(5)).

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use nix::fcntl::{AT_FDCWD, OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, fstatfs};

use super::PathTarget;
use crate::kernel::calls::{Status, status};
use crate::kernel::ids::FileId;
use crate::kernel::process::{FileLocation, Target};

/// The kernel follows no more.
const LINKS: usize = 40;
const LOOK_ONLY: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

pub(super) fn resolve(path: &str) -> PathTarget {
    identify(path).map_or(PathTarget::Missing, PathTarget::File)
}

fn identify(path: &str) -> io::Result<Target> {
    let file = openat(AT_FDCWD, path, LOOK_ONLY, Mode::empty())?;
    let found = status(&file)?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let device = device_of(&mounts, found.mount).ok_or(io::ErrorKind::NotFound)?;
    let way = follow(Path::new(path)).ok();
    let place = way.as_ref().and_then(|way| way.place_of(&found));
    Ok(Target {
        file: FileId {
            device,
            inode: found.inode,
            owner: found.owner,
        },
        place,
        is_roots: way.is_some_and(|way| way.is_roots),
    })
}

/// As the kernel numbers a mount's file system. What statx tells may be another number (btrfs has one for each subvolume).
fn device_of(mounts: &str, mount: u64) -> Option<u32> {
    let mut rows = mounts.lines().map(|row| row.split(' '));
    rows.find_map(|mut row| {
        let is_it = row.next()?.parse() == Ok(mount);
        let (major, minor) = row.nth(1)?.split_once(':')?;
        let number = || Some(major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?);
        is_it.then(number)?
    })
}

/// Where a path leads, and by which directories. A name goes with each but the root.
struct PathWalk {
    at: Vec<(OwnedFd, OsString)>,
    /// Nobody but root decides it.
    is_roots: bool,
}

impl PathWalk {
    /// Of this file, where it is the end of the way, and has a name in a directory of the same mount.
    fn place_of(&self, found: &Status) -> Option<FileLocation> {
        let [.., (directory, _), (file, name)] = &*self.at else {
            return None;
        };
        let [directory, file] = [status(directory).ok()?, status(file).ok()?];
        let is_it = file.inode == found.inode && [directory.mount, file.mount] == [found.mount; 2];
        is_it.then(|| FileLocation {
            directory: directory.inode,
            name: name.to_string_lossy().into_owned(),
            owner: file.owner,
        })
    }
}

/// Follows the path as the kernel does, a name at a time.
fn follow(path: &Path) -> io::Result<PathWalk> {
    let root = openat(AT_FDCWD, "/", LOOK_ONLY, Mode::empty())?;
    let mut is_roots = is_roots_own(&root)?;
    let mut at = vec![(root, OsString::new())];
    let (mut names, mut links) = (names_of(path), 0);
    while let Some(name) = names.pop_front() {
        if name == ".." {
            at.truncate(at.len().max(2) - 1);
            continue;
        }
        let (above, _) = at.last().ok_or(io::ErrorKind::NotFound)?;
        let here = openat(above, name.as_os_str(), LOOK_ONLY | OFlag::O_NOFOLLOW, Mode::empty())?;
        is_roots &= is_roots_own(&here)?;
        if status(&here)?.kind != SFlag::S_IFLNK {
            at.push((here, name));
            continue;
        }
        links += 1;
        if links > LINKS {
            return Err(io::ErrorKind::NotFound.into());
        }
        let target = readlinkat(&here, "")?;
        let target = Path::new(&target);
        if target.is_absolute() {
            at.truncate(1);
        }
        for name in names_of(target).into_iter().rev() {
            names.push_front(name);
        }
    }
    Ok(PathWalk { at, is_roots })
}

fn names_of(path: &Path) -> VecDeque<OsString> {
    let name = |part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

/// Whether nobody but root may write to it, or, of a directory, replace what is root's in it.
fn is_roots_own(file: &OwnedFd) -> io::Result<bool> {
    let found = status(file)?;
    let is_closed = match found.kind {
        // Its mode means nothing.
        SFlag::S_IFLNK => true,
        SFlag::S_IFDIR if found.mode & STICKY != 0 => true,
        _ => found.mode & WRITABLE_BY_OTHERS == 0,
    };
    let is_served = fstatfs(file)?.filesystem_type() == FUSE_SUPER_MAGIC;
    Ok(found.owner == 0 && is_closed && !is_served)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    const USER: u32 = 12_345;

    /// A folder of root's with a file of root's in it.
    fn place() -> (TempDir, PathBuf, String) {
        assert!(nix::unistd::geteuid().is_root(), "run the tests as root");
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let file = folder.join("file");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let path = file.to_str().unwrap().to_owned();
        (scratch, folder, path)
    }

    #[track_caller]
    fn assert_roots(path: &str, expected: bool) {
        match resolve(path) {
            PathTarget::File(target) => assert_eq!(target.is_roots, expected, "{path}"),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn a_path_is_roots_while_only_root_decides_where_it_leads() {
        let (scratch, folder, path) = place();
        assert_roots(&path, true);
        for (what, mode) in [(&folder, 0o775), (&folder, 0o757), (&PathBuf::from(&path), 0o775)] {
            fs::set_permissions(what, fs::Permissions::from_mode(mode)).unwrap();
            assert_roots(&path, false);
            fs::set_permissions(what, fs::Permissions::from_mode(0o755)).unwrap();
            assert_roots(&path, true);
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
        assert_roots(&path, true);
        chown(&folder, Some(USER), None).unwrap();
        assert_roots(&path, false);
        let link = scratch.path().join("link");
        symlink(&path, &link).unwrap();
        assert_roots(link.to_str().unwrap(), false);
        assert_eq!(resolve("/nonexistent/file"), PathTarget::Missing);
    }

    #[test]
    fn a_file_stands_in_the_directory_that_links_lead_to() {
        let (scratch, folder, path) = place();
        chown(&path, Some(USER), None).unwrap();
        let link = scratch.path().join("link");
        symlink("folder/../folder/file", &link).unwrap();
        let about_folder = status(File::open(folder).unwrap()).unwrap();
        let expected = FileLocation {
            directory: about_folder.inode,
            name: "file".to_owned(),
            owner: USER,
        };
        let PathTarget::File(Target { place, .. }) = resolve(link.to_str().unwrap()) else {
            panic!("it leads to a file");
        };
        assert_eq!(place, Some(expected));
    }

    #[test]
    fn a_link_of_anothers_leads_where_they_like() {
        let (scratch, _, path) = place();
        let link = scratch.path().join("link");
        symlink(&path, &link).unwrap();
        assert_roots(link.to_str().unwrap(), true);
        std::os::unix::fs::lchown(&link, Some(USER), None).unwrap();
        assert_roots(link.to_str().unwrap(), false);
        let ring = scratch.path().join("ring");
        symlink("ring", &ring).unwrap();
        assert_eq!(resolve(ring.to_str().unwrap()), PathTarget::Missing);
    }

    #[test]
    fn the_device_is_that_of_the_mount() {
        let mounts = "21 30 0:20 / /sys rw - sysfs sysfs rw\n30 1 254:3 / / rw - ext4 /dev/vda rw\n";
        assert_eq!(device_of(mounts, 30), Some(254 << 20 | 3));
        assert_eq!(device_of(mounts, 31), None);
    }
}
