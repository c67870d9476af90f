// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where BPF objects are pinned that must outlive the daemon: a folder of this network namespace's, for root alone. Input:
//! what to do in it. Output: its result, or why nothing can be pinned.
//!
//! The folder is in /sys/fs/bpf where a BPF file system is mounted there that nobody else may list (systemd's is so), else
//! in a mount of giveway's own in its state folder: who may list a folder can hold its lock. Either is that of the machine's
//! mount namespace, not of the caller's: `ip netns exec` makes one for each command, hides /sys/fs/bpf in it, and all that
//! is mounted there ends with the command.

use std::fs;
use std::io::{ErrorKind, IoSliceMut};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use libbpf_rs::{MapCore as _, MapHandle};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::kill;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};

use crate::kernel::calls::pidfd_of_process;
use crate::kernel::{is_refused, map_of};

/// All that is ever pinned. Another name in the folder is not giveway's to remove.
pub const SAVED_SOCKETS: &str = "gw_saved_socks";
pub const QDISC: &str = "qdisc";
pub const SAVED_TASKS: &str = "gw_saved_tasks";
pub const NICE_LINKS: [&str; 2] = ["nice", "nice_late"];
pub const UNSAVED_TASKS: &str = "nice_unsaved";
pub const THREADS: &str = "threads";
/// Of what processes have chosen and inherited, for the next daemon: these stay until `giveway revert`.
pub const RECORDS: &str = "gw_records";
const ALL: [&str; 7] = [
    NICE_LINKS[0],
    NICE_LINKS[1],
    SAVED_SOCKETS,
    QDISC,
    SAVED_TASKS,
    UNSAVED_TASKS,
    THREADS,
];

const SHARED: &str = "/sys/fs/bpf";
const INIT: i32 = 1;
/// It lives in the machine's mount namespace, as init does, which may not always be looked at.
const KTHREADD: i32 = 2;

#[derive(Clone, Debug)]
pub struct Pins {
    /// In /sys/fs/bpf.
    shared: PathBuf,
    /// The mount point of our own.
    own: PathBuf,
}

impl Pins {
    pub fn new(name: &str, state: &Path) -> Self {
        Self {
            shared: Path::new(SHARED).join(name),
            own: state.join("bpf"),
        }
    }

    /// Acts in the folder, which is made if need be.
    ///
    /// # Errors
    /// Where no BPF file system can be had that outlives this process.
    pub fn make<T: Send>(&self, act: impl FnOnce(&Path) -> Result<T> + Send) -> Result<T> {
        in_machines_mounts(|is_machines| act(self.made(is_machines)?))
    }

    /// Acts in the folder, if there is one.
    pub fn with_existing<T: Send>(&self, act: impl FnOnce(&Path) -> Result<T> + Send) -> Result<Option<T>> {
        in_machines_mounts(|_| {
            let existing = self.folders().find(|folder| is_ours(folder));
            existing.map(act).transpose()
        })
    }

    /// The map of this number, which was pinned by this name; None where nobody has it any more. By the number, unless that
    /// is refused: it takes CAP_SYS_ADMIN, which the unit does without.
    pub fn map(&self, map_id: u32, name: &str) -> Result<Option<MapHandle>> {
        let by_number = map_of(map_id);
        if !by_number.as_ref().is_err_and(is_refused) {
            return by_number;
        }
        let pinned = self.with_existing(|folder| Ok(MapHandle::from_pinned_path(folder.join(name)).ok()))?;
        Ok(pinned
            .flatten()
            .filter(|map| map.info().is_ok_and(|about| about.info.id == map_id)))
    }

    /// Removes the pins of the programs, which would run on. Maps do nothing by themselves.
    pub fn remove_programs(&self) -> Result<()> {
        in_machines_mounts(|_| {
            let folders = self.folders().filter(|folder| is_ours(folder));
            all(folders.map(|folder| remove(folder, &NICE_LINKS)))
        })
        .context("cannot remove the pinned programs")
    }

    /// Whether what processes have chosen and inherited waits there for the next daemon.
    pub fn have_records(&self) -> bool {
        let found = self.with_existing(|folder| Ok(folder.join(RECORDS).exists()));
        found.ok().flatten().unwrap_or_default()
    }

    /// Removes what processes have chosen and inherited.
    pub fn remove_records(&self) -> Result<()> {
        in_machines_mounts(|_| {
            let folders = self.folders().filter(|folder| is_ours(folder));
            all(folders.map(|folder| remove(folder, &[RECORDS])))
        })
        .context("cannot remove what processes inherit")
    }

    /// Removes every pin but those of records, the folder, and unmounts what giveway mounted, where nothing is left in it.
    pub fn remove(&self) -> Result<()> {
        in_machines_mounts(|_| {
            let folders = self.folders().filter(|folder| is_ours(folder));
            let removed = all(folders.map(|folder| {
                remove(folder, &ALL)?;
                let _ = fs::remove_dir(folder);
                Ok(())
            }));
            if self.own.join(RECORDS).exists() {
                return removed;
            }
            while is_bpffs(&self.own) {
                umount2(&self.own, MntFlags::MNT_DETACH)?;
            }
            let _ = fs::remove_dir(&self.own);
            removed
        })
        .context("cannot remove what is pinned")
    }

    /// Where pins may be.
    fn folders(&self) -> impl Iterator<Item = &Path> {
        let shared = is_closed(Path::new(SHARED)).then_some(&*self.shared);
        shared.into_iter().chain([&*self.own])
    }

    fn made(&self, is_machines: bool) -> Result<&Path> {
        let shared = Path::new(SHARED);
        if is_closed(shared) && is_bpffs(shared) && make_folder(&self.shared).is_ok() {
            return Ok(&self.shared);
        }
        if is_ours(&self.own) {
            return Ok(&self.own);
        }
        if !is_machines {
            bail!(
                "no BPF file system at {SHARED} can be used ({}), and none can be mounted that outlives giveway",
                fault(shared)
            );
        }
        make_folder(&self.own)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("bpf"), &self.own, Some("bpf"), flags, Some("mode=0700"))
            .with_context(|| format!("cannot mount a BPF file system at {}", self.own.display()))?;
        Ok(&self.own)
    }
}

/// All of it, whatever fails; then the first failure.
fn all(outcomes: impl Iterator<Item = Result<()>>) -> Result<()> {
    outcomes.fold(Ok(()), Result::and)
}

/// Those of these pins that there are. One that does not go, twice, keeps no other.
fn remove(folder: &Path, names: &[&str]) -> Result<()> {
    let once = |pin: &Path| {
        fs::remove_file(pin).or_else(|error| match error.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })
    };
    let twice = |pin: PathBuf| once(&pin).or_else(|_| once(&pin)).err();
    let failed = names.iter().filter_map(|name| twice(folder.join(name)));
    failed
        .reduce(|first, _| first)
        .map_or(Ok(()), |error| Err(error.into()))
}

fn make_folder(folder: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && is_roots(folder) => Ok(()),
        made => made.with_context(|| format!("cannot make {}", folder.display())),
    }
}

/// A folder, and no link to one, that only root may look into: nobody else has put anything there.
fn is_roots(folder: &Path) -> bool {
    let about = fs::symlink_metadata(folder);
    about.is_ok_and(|about| about.is_dir() && about.uid() == 0 && about.mode() & 0o077 == 0)
}

/// Nobody but root may list it, or put anything there.
fn is_closed(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|about| about.uid() == 0 && about.mode() & 0o066 == 0)
}

/// Why that cannot be used, and what mends it.
fn fault(shared: &Path) -> String {
    let Ok(about) = fs::metadata(shared) else {
        return "there is none".to_owned();
    };
    if !is_bpffs(shared) {
        return "none is mounted there: `mount -t bpf -o mode=0700 bpf /sys/fs/bpf`".to_owned();
    }
    if !is_closed(shared) {
        let mode = about.mode() & 0o7777;
        return format!("others than root may list it or write to it, by its mode {mode:04o}: `chmod 700 {SHARED}`");
    }
    "no folder can be made there".to_owned()
}

fn is_ours(folder: &Path) -> bool {
    is_roots(folder) && is_bpffs(folder)
}

fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

/// Runs in a thread of its own in the machine's mount namespace, or where that one cannot be entered, in the caller's;
/// is told which.
fn in_machines_mounts<T: Send>(act: impl FnOnce(bool) -> Result<T> + Send) -> Result<T> {
    let enter = || -> Result<()> {
        unshare(CloneFlags::CLONE_FS)?;
        // By their numbers: a look into /proc could be kept waiting.
        if enter_mounts_of(INIT).is_ok() {
            return Ok(());
        }
        ensure!(
            is_kernels(KTHREADD),
            "no process of the machine's mount namespace can be seen"
        );
        enter_mounts_of(KTHREADD)
    };
    std::thread::scope(|scope| {
        // Where the machine has no room for a thread, this must be told like any other failure.
        let acting = std::thread::Builder::new().spawn_scoped(scope, || act(enter().is_ok()));
        let acting = acting.context("no thread can be started to look at the pins")?;
        acting.join().unwrap_or_else(|_| bail!("the thread that pins has died"))
    })
}

/// In a container's pid namespace the number is another process's. A thread of the kernel has no memory to read.
fn is_kernels(pid: i32) -> bool {
    let pid = nix::unistd::Pid::from_raw(pid);
    let (mut byte, nothing) = ([0], [RemoteIoVec { base: 0, len: 1 }]);
    let read = process_vm_readv(pid, &mut [IoSliceMut::new(&mut byte)], &nothing);
    kill(pid, None).is_ok() && read == Err(Errno::ESRCH)
}

/// Of the calling thread, which shares its folder with no other.
fn enter_mounts_of(process: i32) -> Result<()> {
    let process = pidfd_of_process(process.cast_unsigned())?;
    Ok(setns(process, CloneFlags::CLONE_NEWNS)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    #[test]
    fn a_thread_of_the_kernel_is_told_from_any_other_process() {
        let own = std::process::id().cast_signed();
        assert!(is_kernels(KTHREADD) && !is_kernels(own) && !is_kernels(i32::MAX));
    }

    #[test]
    fn a_pin_that_cannot_be_removed_keeps_no_other() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("stays")).unwrap();
        fs::write(scratch.path().join("goes"), "").unwrap();
        assert!(remove(scratch.path(), &["stays", "none", "goes"]).is_err());
        assert!(!scratch.path().join("goes").exists());
        assert!(remove(scratch.path(), &["none", "goes"]).is_ok());
    }

    #[test]
    fn a_folder_that_others_may_list_or_write_to_is_not_closed() {
        assert!(nix::unistd::geteuid().is_root(), "run the tests as root");
        let scratch = tempfile::tempdir().unwrap();
        for (mode, expected) in [
            (0o711, true),
            (0o700, true),
            (0o755, false),
            (0o1733, false),
            (0o720, false),
        ] {
            fs::set_permissions(scratch.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_closed(scratch.path()), expected, "{mode:o}");
        }
    }

    #[test]
    fn only_a_folder_that_nobody_but_root_could_have_filled_is_used() {
        assert!(nix::unistd::geteuid().is_root(), "run the tests as root");
        let scratch = tempfile::tempdir().unwrap();
        let (folder, link) = (scratch.path().join("folder"), scratch.path().join("link"));
        make_folder(&folder).unwrap();
        assert!(is_roots(&folder) && make_folder(&folder).is_ok());
        symlink(&folder, &link).unwrap();
        assert!(!is_roots(&link) && make_folder(&link).is_err());
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!is_roots(&folder) && make_folder(&folder).is_err());
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&folder, Some(65_534), None).unwrap();
        assert!(!is_roots(&folder) && make_folder(&folder).is_err());
    }
}
