// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What rules ask about a process, as it is now, or why that cannot be told. It changes nothing, and opens no file.
//!
//! The process's owner may make it end, exec or lie at any moment. So it is opened by a pidfd first, which no
//! other process can take over, and what was read counts only if the pidfd's process still lives afterwards. Nothing
//! waits for it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use giveway_engine::model::{Process, ProcessId};
use giveway_engine::priority::StartedProcess;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::sys::statfs::{FsType, fstatfs};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub mod end;
mod executed;

use super::calls::{pidfd_of_process, pidfd_of_thread};
use super::ids::{FileId, TICK_NS};
use super::tasks::{ProcessEntry, ProcessFacts, Tasks, shown};
pub use executed::{ExecHistory, forget_most};

/// As much of a command line as is matched.
pub const CMDLINE_BYTES: u64 = 4096;
/// Of a process's clock: all its threads, in user and kernel mode (CPUCLOCK_SCHED).
const CPU_CLOCK: libc::clockid_t = 2;
/// include/uapi/linux/magic.h
const PID_FS_MAGIC: FsType = FsType(0x5049_4446);

/// A file that a rule names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Executable {
    /// As the rule writes it.
    pub path: String,
    pub target: Target,
}

/// What a path leads to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Target {
    pub file: FileId,
    /// None where that cannot be told.
    pub place: Option<FileLocation>,
    /// Nobody but root may write to the file, or decides to which one the path leads.
    pub is_roots: bool,
}

/// The name that a file has in a directory of its own file system, links followed, and whose it is.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FileLocation {
    /// By its inode.
    pub directory: u64,
    pub name: String,
    pub owner: u32,
}

impl Target {
    /// Whether it is what this process executes, or stands where that stood, with the same owner. So a new version of a
    /// program is told from whatever else has such a path in a mount namespace or a folder of somebody's own.
    fn is_executed_by(&self, facts: &ProcessFacts) -> bool {
        let has_owner = |place: &FileLocation| facts.file_owner == place.owner;
        self.file == facts.file
            || (facts.file_name.is_gone && self.is_at(facts) && self.place.as_ref().is_some_and(has_owner))
    }

    /// Whether what this process executes stands, or stood, in the same directory under the same name.
    fn is_at(&self, facts: &ProcessFacts) -> bool {
        let is_it =
            |place: &FileLocation| (place.directory, &place.name) == (facts.file_name.directory, &facts.file_name.name);
        facts.file.device == self.file.device && self.place.as_ref().is_some_and(is_it)
    }
}

/// What rules look for: executables, and users.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ProcessCriteria {
    pub executables: Vec<Executable>,
    pub uids: BTreeSet<u32>,
}

impl ProcessCriteria {
    pub fn is_nothing(&self) -> bool {
        self.executables.is_empty() && self.uids.is_empty()
    }

    pub fn inodes(&self) -> BTreeSet<u64> {
        self.executables.iter().map(|known| known.target.file.inode).collect()
    }

    /// Those among these that may execute one of the executables, or what stood in its place before, and the users'.
    pub fn candidates(&self, listed: impl Iterator<Item = ProcessEntry>) -> BTreeSet<u32> {
        let inodes = self.inodes();
        let places = self.executables.iter().filter_map(|known| known.target.place.as_ref());
        let directories: BTreeSet<u64> = places.map(|place| place.directory).collect();
        let is_gone_from = |directory: u64| directories.contains(&directory);
        let is_one = |listed: &ProcessEntry| {
            inodes.contains(&listed.inode)
                || listed.gone_from.is_some_and(is_gone_from)
                || self.uids.contains(&listed.uid)
        };
        listed.filter(is_one).map(|listed| listed.pid).collect()
    }

    /// Whether a rule may match it.
    pub fn has(&self, process: &Process) -> bool {
        !process.executables.is_empty() || self.uids.contains(&process.uid)
    }

    fn executed_by(&self, facts: &ProcessFacts) -> impl Iterator<Item = &Executable> {
        self.executables
            .iter()
            .filter(|known| known.target.is_executed_by(facts))
    }
}

/// A process that cannot be mistaken for another.
#[derive(Debug)]
pub struct Handle {
    pub pid: u32,
    pidfd: OwnedFd,
}

/// What was found. The arguments are the caller's to add.
#[derive(Debug)]
pub struct ReadProcess {
    pub started: StartedProcess,
    pub parent: u32,
    /// Another one after each exec, but for one that is long gone.
    pub image: u64,
    /// So often it has executed something.
    execs: u64,
    /// Those of its executables whose very name its file has, or had: no other file that the kernel has given the same
    /// number since.
    at_its_place: Vec<String>,
    file_is_roots: bool,
}

impl Handle {
    pub fn open(pid: u32) -> io::Result<Self> {
        let pidfd = pidfd_of_process(pid)?;
        Ok(Self { pid, pidfd })
    }

    /// The very process that has this number and start.
    pub fn of(id: ProcessId, tasks: &Tasks) -> Result<Self> {
        let handle = Self::open(id.pid)?;
        let main = tasks.threads.thread(id.pid)?;
        ensure!(main.is_some_and(|main| main.start_ns == id.start_ns), "it has ended");
        Ok(handle)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
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

    /// Everything that rules ask about but its arguments.
    ///
    /// # Errors
    /// Where it has ended, is a thread of the kernel, or cannot be read now.
    pub fn read(&self, tasks: &Tasks, wanted: &ProcessCriteria) -> Result<ReadProcess> {
        self.found_alive(tasks.process(self.pid)?, wanted)
    }

    /// The same, even where its main thread has ended: no user hides a process by that.
    pub fn read_any_thread(&self, tasks: &Tasks, wanted: &ProcessCriteria) -> Result<ReadProcess> {
        let facts = match tasks.process(self.pid)? {
            None => tasks.process_without_main_thread(self.pid)?,
            facts => facts,
        };
        self.found_alive(facts, wanted)
    }

    fn found_alive(&self, facts: Option<ProcessFacts>, wanted: &ProcessCriteria) -> Result<ReadProcess> {
        let facts = facts.context("it has ended, or has no executable")?;
        ensure!(self.is_alive(), "it has ended");
        Ok(self.found(facts, wanted))
    }

    fn found(&self, facts: ProcessFacts, wanted: &ProcessCriteria) -> ReadProcess {
        let paths = |is_it: &dyn Fn(&&Executable) -> bool| {
            let known = wanted.executed_by(&facts).filter(is_it);
            known.map(|known| known.path.clone()).collect::<Vec<_>>()
        };
        let at_its_place = paths(&|known| known.target.is_at(&facts));
        ReadProcess {
            started: StartedProcess {
                id: facts.id,
                process: Process {
                    executables: paths(&|_| true),
                    trusted: if facts.file_is_roots {
                        paths(&|known| known.target.is_roots)
                    } else {
                        Vec::new()
                    },
                    exe: facts.exe,
                    cmdline: String::new(),
                    uid: facts.uid,
                    euid: facts.euid,
                    cgroup: facts.cgroup,
                    idleness: facts.idleness,
                    chosen: facts.chosen,
                    by_hand: facts.by_hand,
                    inherited: facts.inherited,
                },
                tasks: facts.tasks,
                cpu: self.cpu(),
            },
            parent: facts.parent,
            image: facts.image,
            execs: facts.execs,
            at_its_place,
            file_is_roots: facts.file_is_roots,
        }
    }
}

/// What tells a thread from a later one of the same number.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadMark {
    /// Of its pidfd, which no other thread has before the next boot (Linux 6.9).
    Inode(u64),
    /// As /proc shows it. Its owner may keep this from being read.
    StartNs(u64),
}

impl ThreadMark {
    /// None where there is no such thread, or none any more.
    ///
    /// # Errors
    /// Where that cannot be told now.
    pub fn of(pid: u32, tid: u32) -> io::Result<Option<Self>> {
        match pidfd_of_thread(tid) {
            Ok(thread) if fstatfs(&thread)?.filesystem_type() == PID_FS_MAGIC => {
                Ok(Some(Self::Inode(fstat(&thread)?.st_ino)))
            }
            Err(Errno::ESRCH) => Ok(None),
            Err(error) if error != Errno::EINVAL => Err(error.into()),
            _ => Ok(thread_start(pid, tid)?.map(Self::StartNs)),
        }
    }
}

/// When this thread of this process was started; None where it is none, or none any more. By a file of /proc, which a user
/// can keep from ever being opened: not for a thread above others.
///
/// # Errors
/// Where that cannot be told now.
pub fn thread_start(pid: u32, tid: u32) -> io::Result<Option<u64>> {
    let stat = unless_ended(text(&format!("/proc/{pid}/task/{tid}/stat")))?;
    Ok(stat.and_then(|stat| start_in(&stat)))
}

/// None for what a file of /proc says of one that has ended, while it was being read too.
pub fn unless_ended<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32) => {
            Ok(None)
        }
        read => read.map(Some),
    }
}

/// proc(5): the second field is the name, in parentheses, and may itself hold blanks and parentheses.
fn start_in(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(')')?.1;
    let ticks: u64 = after_name.split_ascii_whitespace().nth(22 - 3)?.parse().ok()?;
    ticks.checked_mul(TICK_NS)
}

/// A file of /proc, in one read: the kernel does not tell its length. A name in it need not be UTF-8.
fn text(path: &str) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(4096);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Arguments as they are matched.
pub fn cmdline(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    shown(&text.trim_end_matches('\0').replace('\0', " "))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::linux::fs::MetadataExt as _;

    use giveway_engine::model::Idleness;

    use super::*;

    fn tasks() -> Tasks {
        Tasks::load(crate::kernel::own_netns().unwrap()).unwrap()
    }

    /// What /proc says of a process, by the names of its files' lines.
    fn line(file: &str, name: &str) -> String {
        let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    }

    #[test]
    fn this_process_is_read_as_proc_shows_it() {
        let (own, tasks) = (std::env::current_exe().unwrap(), tasks());
        let path = own.to_str().unwrap().to_owned();
        let handle = Handle::open(std::process::id()).unwrap();
        let file = tasks.process(handle.pid).unwrap().unwrap().file;
        assert_eq!(file.inode, fs::metadata(&own).unwrap().st_ino());
        let wanted = ProcessCriteria {
            executables: vec![Executable {
                path: path.clone(),
                target: Target {
                    file,
                    place: None,
                    is_roots: true,
                },
            }],
            uids: BTreeSet::new(),
        };
        let found = handle.read(&tasks, &wanted).unwrap();
        let process = &found.started.process;
        assert_eq!((&process.executables, &process.exe), (&vec![path.clone()], &path));
        assert_eq!(process.uid, nix::unistd::getuid().as_raw());
        assert_eq!(process.cgroup, line("cgroup", "0::"));
        assert_eq!(found.parent, std::os::unix::process::parent_id());
        assert_eq!(
            Some(found.started.id.start_ns),
            thread_start(handle.pid, handle.pid).unwrap()
        );
        let listed = tasks.processes().unwrap();
        let own = listed.iter().find(|listed| listed.pid == handle.pid).unwrap();
        assert_eq!((own.inode, own.uid), (file.inode, process.uid));
        assert!(
            tasks.threads.of(handle.pid).unwrap().len() >= 2,
            "the test runs beside the main thread"
        );
        assert!(tasks.process(2).unwrap().is_none(), "a thread of the kernel");
    }

    /// What is found of a program that is started so.
    fn idleness_of(words: &[&str]) -> Idleness {
        let mut command = std::process::Command::new(words[0]);
        let mut child = command.args(&words[1..]).arg("sleep").arg("60").spawn().unwrap();
        let handle = Handle::open(child.id()).unwrap();
        let tasks = tasks();
        let read = || {
            handle
                .read(&tasks, &ProcessCriteria::default())
                .unwrap()
                .started
                .process
        };
        let found = (0..500).map(|_| read()).find(|process| {
            std::thread::sleep(Duration::from_millis(10));
            process.exe.ends_with("/sleep")
        });
        child.kill().unwrap();
        child.wait().unwrap();
        found.expect("it becomes the command").idleness
    }

    #[test]
    fn ways_to_say_that_nobody_waits_are_told_apart() {
        // nice(1) counts from where it is, and only root's goes down.
        let own = crate::kernel::calls::nice(0).unwrap();
        let none = Idleness {
            nice_19: own == 19,
            ..Idleness::default()
        };
        let [eighteen, nineteen] = [18, 19].map(|nice| (nice - own).to_string());
        if own < 19 {
            assert_eq!(idleness_of(&["nice", "-n", &eighteen]), none);
        }
        assert_eq!(idleness_of(&["ionice", "-c", "2"]), none);
        for (words, found) in [
            (["nice", "-n", &nineteen].as_slice(), Idleness { nice_19: true, ..none }),
            (
                &["chrt", "-i", "0"],
                Idleness {
                    sched_idle: true,
                    ..none
                },
            ),
            (&["ionice", "-c", "3"], Idleness { io_idle: true, ..none }),
        ] {
            assert_eq!(idleness_of(words), found, "{words:?}");
        }
    }

    #[test]
    fn threads_are_told_apart_and_read() {
        let (pid, own) = (std::process::id(), nix::unistd::gettid().as_raw().cast_unsigned());
        let mark = ThreadMark::of(pid, own).unwrap();
        assert!(mark.is_some());
        assert_eq!(ThreadMark::of(pid, own).unwrap(), mark);
        let other = std::thread::spawn(move || ThreadMark::of(pid, nix::unistd::gettid().as_raw().cast_unsigned()));
        assert_ne!(other.join().unwrap().unwrap(), mark);
        assert_eq!(ThreadMark::of(pid, u32::MAX).unwrap(), None);
        let tasks = tasks();
        let thread = tasks.threads.thread(own).unwrap().unwrap();
        assert!(thread.is_awake && thread.cpu > Duration::ZERO);
        assert!(tasks.threads.thread(i32::MAX.cast_unsigned()).unwrap().is_none());
    }

    #[test]
    fn a_process_that_has_ended_is_not_taken_for_another() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let handle = Handle::open(child.id()).unwrap();
        assert!(handle.is_alive());
        assert_eq!(tasks().threads.of(child.id()).unwrap().len(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!handle.is_alive());
        assert!(handle.read(&tasks(), &ProcessCriteria::default()).is_err());
    }
}
