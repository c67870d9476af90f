// SPDX-License-Identifier: Apache-2.0 OR MIT
//! To which file a path leads, and whether only root decides that. May never return: for a worker alone.
//!
//! Whoever may write to a directory may put another file there, unless it is sticky and what is there is not theirs. So
//! each directory and link on the way is looked at, not only the file. Access lists need no look of their own: the
//! kernel shows their mask, which bounds what they give to other users, as the rights of the group (acl(5)).

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, FileType, FsWord, Mode, OFlags, Statx, StatxFlags, fstatfs, openat, readlinkat, statx};

use super::Looked;
use crate::kernel::process::FileId;

/// The kernel follows no more.
const LINKS: usize = 40;
/// include/uapi/linux/magic.h: a program says what is in it.
const FUSE_SUPER_MAGIC: FsWord = 0x6573_5546;
const LOOK_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

pub(super) fn look(path: &str) -> Looked {
    let found = identify(path);
    found.map_or(Looked::Missing, |file| Looked::File {
        file,
        is_roots: is_roots(Path::new(path)).unwrap_or_default(),
    })
}

fn identify(path: &str) -> io::Result<FileId> {
    let file = openat(CWD, path, LOOK_ONLY, Mode::empty())?;
    let found = about(&file)?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let device = device_of(&mounts, found.stx_mnt_id).ok_or(io::ErrorKind::NotFound)?;
    Ok(FileId {
        device,
        inode: found.stx_ino,
    })
}

fn about(file: &impl AsFd) -> io::Result<Statx> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    Ok(statx(file, "", AtFlags::EMPTY_PATH, mask)?)
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

/// Follows the path as the kernel does, a name at a time.
fn is_roots(path: &Path) -> io::Result<bool> {
    let mut way = vec![openat(CWD, "/", LOOK_ONLY, Mode::empty())?];
    let (mut names, mut links) = (names_of(path), 0);
    if !is_roots_own(&way[0])? {
        return Ok(false);
    }
    while let Some(name) = names.pop_front() {
        if name == ".." {
            way.truncate(way.len().max(2) - 1);
            continue;
        }
        let above: &OwnedFd = way.last().ok_or(io::ErrorKind::NotFound)?;
        let here = openat(above, &name, LOOK_ONLY | OFlags::NOFOLLOW, Mode::empty())?;
        if !is_roots_own(&here)? {
            return Ok(false);
        }
        if kind(&about(&here)?) != FileType::Symlink {
            way.push(here);
            continue;
        }
        links += 1;
        if links > LINKS {
            return Ok(false);
        }
        let target = readlinkat(&here, "", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.to_bytes()));
        if target.is_absolute() {
            way.truncate(1);
        }
        for name in names_of(target).into_iter().rev() {
            names.push_front(name);
        }
    }
    Ok(true)
}

fn names_of(path: &Path) -> VecDeque<OsString> {
    let name = |part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

fn kind(about: &Statx) -> FileType {
    FileType::from_raw_mode(about.stx_mode.into())
}

/// Whether nobody but root may write to it, or, of a directory, replace what is root's in it.
fn is_roots_own(file: &OwnedFd) -> io::Result<bool> {
    let about = about(file)?;
    let (mode, kind) = (u32::from(about.stx_mode), kind(&about));
    let is_closed = match kind {
        // Its mode means nothing.
        FileType::Symlink => true,
        FileType::Directory if mode & STICKY != 0 => true,
        _ => mode & WRITABLE_BY_OTHERS == 0,
    };
    let is_served = fstatfs(file)?.f_type == FUSE_SUPER_MAGIC;
    Ok(about.stx_uid == 0 && is_closed && !is_served)
}

#[cfg(test)]
mod tests {
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
        match look(path) {
            Looked::File { is_roots, .. } => assert_eq!(is_roots, expected, "{path}"),
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
        assert_eq!(look("/nonexistent/file"), Looked::Missing);
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
        assert_eq!(look(ring.to_str().unwrap()), Looked::Missing);
    }

    #[test]
    fn the_device_is_that_of_the_mount() {
        let mounts = "21 30 0:20 / /sys rw - sysfs sysfs rw\n30 1 254:3 / / rw - ext4 /dev/vda rw\n";
        assert_eq!(device_of(mounts, 30), Some(254 << 20 | 3));
        assert_eq!(device_of(mounts, 31), None);
    }
}
