// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads one process as it is now. In comes its number, out goes what rules ask about, or why that cannot be told. It
//! changes nothing.
//!
//! Whoever owns the process may make it end, exec or lie at any moment. So it is opened by a pidfd first, which no
//! other process can take over, and what was read counts only if the pidfd's process still lives afterwards. Nothing
//! waits for it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::os::linux::fs::MetadataExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use giveway_engine::matcher::{Process, ProcessId};
use giveway_engine::realtime::Started;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

pub mod wary;

use wary::WaryReader;

/// The kernel shows starts in units of this (USER_HZ, the same on every machine).
const TICK_NS: u64 = 10_000_000;
/// As much of a command line as is matched.
pub const CMDLINE_BYTES: u64 = 4096;
/// Of a process's clock: all its threads, in user and kernel mode (CPUCLOCK_SCHED).
const CPU_CLOCK: libc::clockid_t = 2;

/// A start as /proc shows it, of one in nanoseconds. Events and /proc must name a process alike.
pub fn start_of(start_ns: u64) -> u64 {
    start_ns - start_ns % TICK_NS
}

/// A file, whatever name it goes by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct FileId {
    device: (u32, u32),
    inode: u64,
}

/// What rules look for: users, and executables as the files that they mean in the caller's mount namespace now.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Wanted {
    executables: Vec<(String, FileId)>,
    uids: BTreeSet<u32>,
}

impl Wanted {
    /// Looks the paths up. One that is not there means no file until it is.
    pub fn look<'a>(paths: impl IntoIterator<Item = &'a str>, uids: BTreeSet<u32>) -> Self {
        let file = |path: &'a str| Some((path.to_owned(), look_at(path, AtFlags::empty()).ok()?.0));
        Self {
            executables: paths.into_iter().filter_map(file).collect(),
            uids,
        }
    }

    pub fn is_nothing(&self) -> bool {
        self.executables.is_empty() && self.uids.is_empty()
    }

    pub fn inodes(&self) -> BTreeSet<u64> {
        self.executables.iter().map(|(_, file)| file.inode).collect()
    }

    pub fn uids(&self) -> &BTreeSet<u32> {
        &self.uids
    }

    fn that_are(&self, file: FileId) -> Vec<String> {
        let same = self.executables.iter().filter(|(_, known)| *known == file);
        same.map(|(path, _)| path.clone()).collect()
    }
}

/// Which file it is, and whether only root decides what is in it.
fn look_at(path: &str, flags: AtFlags) -> io::Result<(FileId, bool)> {
    let found = statx(CWD, path, flags, StatxFlags::BASIC_STATS)?;
    let file = FileId {
        device: (found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
    };
    let mode = u32::from(found.stx_mode);
    let others_write = mode & 0o002 != 0 || (mode & 0o020 != 0 && found.stx_gid != 0);
    Ok((file, found.stx_uid == 0 && !others_write))
}

/// A process that cannot be mistaken for another.
#[derive(Debug)]
pub struct Handle {
    pub pid: u32,
    pidfd: OwnedFd,
}

/// What was found.
#[derive(Debug)]
pub struct Found {
    pub started: Started,
    pub parent: u32,
}

impl Handle {
    pub fn open(pid: u32) -> io::Result<Self> {
        let number = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::NotFound)?;
        // SAFETY: takes no pointers.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor (they are ints) that nobody else knows.
        let pidfd = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
        Ok(Self { pid, pidfd })
    }

    pub fn is_alive(&self) -> bool {
        let mut ended = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut ended, PollTimeout::ZERO) == Ok(0)
    }

    /// CPU time used so far by all its threads, those that have ended included.
    pub fn cpu(&self) -> Duration {
        let clock = ClockId::from_raw((!(self.pid as libc::clockid_t) << 3) | CPU_CLOCK);
        clock_gettime(clock).map(Duration::from).unwrap_or_default()
    }

    /// The numbers of its threads, at this moment.
    pub fn threads(&self) -> io::Result<Vec<u32>> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid))?;
        Ok(numbers(entries).collect())
    }

    /// How many.
    pub fn tasks(&self) -> u32 {
        let directory = fs::metadata(format!("/proc/{}/task", self.pid));
        directory.map_or(0, |directory| directory.st_nlink().saturating_sub(2) as u32)
    }

    /// The network namespace that it is in, by number; None where it cannot be told.
    pub fn netns(&self) -> Option<u32> {
        let namespace = fs::metadata(format!("/proc/{}/ns/net", self.pid)).ok()?;
        u32::try_from(namespace.st_ino()).ok()
    }

    /// Everything that rules ask about. The arguments are read only where something else of it is wanted.
    ///
    /// # Errors
    /// Where it has ended, is a thread of the kernel, or does not let itself be read.
    pub fn read(&self, wanted: &Wanted, reader: &mut WaryReader) -> Result<Found> {
        let directory = format!("/proc/{}", self.pid);
        let stat = Stat::of(&directory)?;
        let path = format!("{directory}/exe");
        let exe = fs::read_link(&path).context("it has no executable")?;
        // A file system that a user serves may never answer: what the kernel knows of the file has to do.
        let (file, exe_is_roots) = look_at(&path, AtFlags::STATX_DONT_SYNC).context("it has no executable")?;
        let (uid, euid) = users(&text(&format!("{directory}/status"))?).context("it has no user")?;
        let executables = wanted.that_are(file);
        let cmdline = if executables.is_empty() && !wanted.uids.contains(&uid) {
            String::new()
        } else {
            cmdline(&reader.read(format!("{directory}/cmdline"))?)
        };
        let started = Started {
            id: ProcessId {
                pid: self.pid,
                start_ns: stat.start_ns,
            },
            process: Process {
                exe: shown(&exe.to_string_lossy()),
                executables,
                exe_is_roots,
                cmdline,
                uid,
                euid,
                cgroup: cgroup(&text(&format!("{directory}/cgroup"))?).to_owned(),
            },
            tasks: stat.tasks,
            cpu: self.cpu(),
        };
        ensure!(self.is_alive(), "it has ended");
        Ok(Found {
            started,
            parent: stat.parent,
        })
    }
}

/// The processes that there are now.
pub fn all() -> io::Result<impl Iterator<Item = u32>> {
    fs::read_dir("/proc").map(numbers)
}

fn numbers(entries: fs::ReadDir) -> impl Iterator<Item = u32> {
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// When this thread of this process was started; None where it is none, or none any more.
pub fn thread_start(pid: u32, tid: u32) -> Option<u64> {
    Stat::of(&format!("/proc/{pid}/task/{tid}"))
        .ok()
        .map(|stat| stat.start_ns)
}

/// proc(5), of a process or a thread.
struct Stat {
    parent: u32,
    tasks: u32,
    start_ns: u64,
}

impl Stat {
    fn of(directory: &str) -> Result<Self> {
        Self::parse(&text(&format!("{directory}/stat"))?).context("its state cannot be read")
    }

    /// The second field is the name, in parentheses, and may itself hold blanks and parentheses.
    fn parse(text: &str) -> Option<Self> {
        let after_name = text.rsplit_once(')')?.1;
        let field = |number: usize| after_name.split_ascii_whitespace().nth(number - 3);
        let ticks: u64 = field(22)?.parse().ok()?;
        Some(Self {
            parent: field(4)?.parse().ok()?,
            tasks: field(20)?.parse().ok()?,
            start_ns: ticks.checked_mul(TICK_NS)?,
        })
    }
}

/// A file of /proc, in one read: the kernel does not tell its length. A name in it need not be UTF-8.
fn text(path: &str) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(4096);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The real and the effective one.
fn users(status: &str) -> Option<(u32, u32)> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut numbers = line.split_ascii_whitespace().map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// The path in cgroup v2; empty where there is none.
fn cgroup(text: &str) -> &str {
    text.lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap_or_default()
}

fn cmdline(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    shown(&text.trim_end_matches('\0').replace('\0', " "))
}

/// Any process may choose its names; it must not choose what a terminal does.
fn shown(text: &str) -> String {
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_blanks_does_not_move_the_fields() {
        let line = "77 (a) S 1 (b c) S 5 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 1234 9 9\n";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.parent, stat.tasks, stat.start_ns), (5, 3, 12_340_000_000));
        for cut in ["", "77 (a", "77 (a) S 5", "77 (a) S x 1 1"] {
            assert!(Stat::parse(cut).is_none(), "{cut:?}");
        }
    }

    #[test]
    fn the_users_are_the_real_and_the_effective_one() {
        assert_eq!(users("Name:\tx\nUid:\t1000\t0\t0\t0\n"), Some((1000, 0)));
        assert_eq!(users("Name:\tx\n"), None);
    }

    #[test]
    fn the_cgroup_is_that_of_version_2() {
        let both = "4:memory:/a\n0::/system.slice/camera.service\n";
        assert_eq!(cgroup(both), "/system.slice/camera.service");
        assert_eq!(cgroup("4:memory:/a\n"), "");
    }

    fn reader() -> WaryReader {
        WaryReader::new(CMDLINE_BYTES, || ()).unwrap()
    }

    #[test]
    fn this_process_is_read_as_it_is() {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        let handle = Handle::open(std::process::id()).unwrap();
        let found = handle
            .read(&Wanted::look([own, "/nonexistent"], BTreeSet::new()), &mut reader())
            .unwrap();
        assert_eq!(found.started.process.executables, [own]);
        assert_eq!(found.started.process.uid, nix::unistd::getuid().as_raw());
        assert_eq!(found.parent, std::os::unix::process::parent_id());
        assert!(
            found
                .started
                .process
                .cmdline
                .starts_with(&std::env::args().next().unwrap())
        );
        assert_eq!(handle.tasks(), handle.threads().unwrap().len() as u32);
        assert_eq!(thread_start(handle.pid, handle.pid), Some(found.started.id.start_ns));
    }

    #[test]
    fn a_process_that_has_ended_is_not_taken_for_another() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let handle = Handle::open(child.id()).unwrap();
        assert!(handle.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!handle.is_alive());
        assert!(handle.read(&Wanted::default(), &mut reader()).is_err());
    }
}
