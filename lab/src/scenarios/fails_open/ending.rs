// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ways in which a daemon ends, or in which something around it fails before it is killed. Input: a running daemon.
//! Output: the time from which on everything must be undone. Restores the surroundings.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::experiment::pause;
use crate::giveway::{Daemon, answers};
use crate::interrupt::{wait_for, wait_until};
use crate::meter::threads;
use crate::namespace::Namespace;

/// The watchdog has to notice a stopped daemon's missing heartbeat, and the daemon that of a stopped watchdog.
pub const HANG: Duration = Duration::from_secs(6);
/// The limit after a death.
const DEATH: Duration = Duration::from_secs(1);
/// How long the daemon lives on without descriptors, or without a writable folder.
const FAILING_S: f64 = 2.0;
const OUT_OF_MEMORY: Duration = Duration::from_secs(10);
/// Requests to a daemon that is to run out of memory.
const AT_ONCE: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    Killed,
    /// The watchdog too; `giveway revert` has to undo.
    BothKilled,
    /// The same, with a watchdog that was stopped before.
    WatchdogStoppedBothKilled,
    Stopped,
    Aborted,
    OutOfMemory,
    /// The thread that gives real-time priority sleeps in the kernel, and not even SIGKILL wakes it.
    ThreadStuck,
    OutOfDescriptors,
    StateReadOnly,
    StateFull,
    /// Replaced before the daemon is killed.
    WatchdogStopped,
    WatchdogKilled,
    /// Somebody deletes the ifbs of limits, or sets them down; the daemon is killed meanwhile.
    DetourDeleted,
    DetourDown,
}

/// All but the plain kill, each with the name of its variant.
pub const OTHERS: [(&str, Ending); 13] = [
    ("both", Ending::BothKilled),
    ("watchdog-stopped-both", Ending::WatchdogStoppedBothKilled),
    ("stopped", Ending::Stopped),
    ("aborted", Ending::Aborted),
    ("out-of-memory", Ending::OutOfMemory),
    ("thread-stuck", Ending::ThreadStuck),
    ("out-of-descriptors", Ending::OutOfDescriptors),
    ("state-read-only", Ending::StateReadOnly),
    ("state-full", Ending::StateFull),
    ("watchdog-stopped", Ending::WatchdogStopped),
    ("watchdog-killed", Ending::WatchdogKilled),
    ("detour-deleted", Ending::DetourDeleted),
    ("detour-down", Ending::DetourDown),
];

impl Ending {
    /// The limit of this ending.
    pub fn limit(self) -> Duration {
        match self {
            Ending::Stopped | Ending::ThreadStuck => HANG,
            _ => DEATH,
        }
    }

    pub fn needs_revert(self) -> bool {
        matches!(self, Ending::BothKilled | Ending::WatchdogStoppedBothKilled)
    }

    /// Before the daemon starts.
    pub fn prepare(self, station: &Namespace) -> Result<Option<StateFolder>> {
        matches!(self, Ending::StateReadOnly | Ending::StateFull)
            .then(|| StateFolder::mount(station))
            .transpose()
    }

    /// Returns the time of the death, or of the event that counts as one. `replaced_s`: until the watchdog was
    /// replaced.
    pub fn bring_about(
        self,
        daemon: &mut Daemon,
        station: &Namespace,
        state: Option<&StateFolder>,
    ) -> Result<DaemonEnd> {
        let mut ended = DaemonEnd::default();
        match self {
            Ending::Killed => {}
            Ending::BothKilled => kill_watchdog(daemon)?,
            Ending::WatchdogStoppedBothKilled => {
                signal_watchdog(daemon, Signal::SIGSTOP)?;
                kill_watchdog(daemon)?;
            }
            Ending::Stopped => return ended.now(|| daemon.process.signal(Signal::SIGSTOP)),
            Ending::Aborted => return ended.now(|| daemon.process.signal(Signal::SIGABRT)),
            Ending::OutOfMemory => {
                ended.group = Some(CgroupV1::memory(daemon.process.id())?);
                // An answer needs memory, but may find what the previous one has left.
                wait_for("the kernel to end a daemon without memory", OUT_OF_MEMORY, || {
                    std::thread::scope(|scope| {
                        (0..AT_ONCE).for_each(|_| drop(scope.spawn(|| answers::status(station))));
                    });
                    Ok(daemon.process.exit()?.map(drop))
                })?;
                return ended.now(|| Ok(()));
            }
            Ending::ThreadStuck => {
                let id = daemon.process.id();
                let thread = wait_for("a thread with priority", HANG, || Ok(priority_thread(id).ok()))?;
                ended.stuck = Some(thread);
                ended.group = Some(CgroupV1::freezer(thread)?);
                return ended.now(|| Ok(()));
            }
            Ending::OutOfDescriptors => {
                limit_descriptors(daemon.process.id(), 3)?;
                pause(FAILING_S)?;
            }
            Ending::StateReadOnly | Ending::StateFull => {
                let state = state.context("no folder was mounted")?;
                match self {
                    Ending::StateFull => state.fill()?,
                    _ => state.make_read_only()?,
                }
                pause(FAILING_S)?;
            }
            Ending::WatchdogStopped => ended.replaced_s = replaced(daemon, Signal::SIGSTOP)?,
            Ending::WatchdogKilled => ended.replaced_s = replaced(daemon, Signal::SIGKILL)?,
            Ending::DetourDeleted => for_each_detour(station, "del")?,
            Ending::DetourDown => for_each_detour(station, "set down")?,
        }
        ended.now(|| daemon.process.kill())
    }
}

/// What to judge and to restore after a death.
pub struct DaemonEnd {
    pub at: Instant,
    /// Until a watchdog was replaced; infinite if it was not.
    pub replaced_s: Option<f64>,
    /// Holds its process and everything that it has open, until the group goes.
    pub stuck: Option<i32>,
    pub group: Option<CgroupV1>,
}

impl Default for DaemonEnd {
    fn default() -> Self {
        Self {
            at: Instant::now(),
            replaced_s: None,
            stuck: None,
            group: None,
        }
    }
}

impl DaemonEnd {
    fn now(mut self, end: impl FnOnce() -> Result<()>) -> Result<Self> {
        end()?;
        self.at = Instant::now();
        Ok(self)
    }
}

/// The ifbs that exist by now.
fn for_each_detour(station: &Namespace, what: &str) -> Result<()> {
    let listed = station.run("ip", "-o link show type ifb")?.stdout;
    let listed = String::from_utf8_lossy(&listed);
    for name in listed.lines().filter_map(|line| line.split(": ").nth(1)) {
        // giveway may be faster.
        if let Err(error) = station.run("ip", &format!("link {what} {name}")) {
            eprintln!("({error:#})");
        }
    }
    Ok(())
}

fn signal_watchdog(daemon: &Daemon, signal: Signal) -> Result<()> {
    match daemon.watchdog() {
        Some(watchdog) => Ok(kill(Pid::from_raw(watchdog), signal)?),
        // It has no watchdog yet, and has changed nothing.
        None => Ok(()),
    }
}

/// The daemon is stopped first: it must not replace it.
fn kill_watchdog(daemon: &Daemon) -> Result<()> {
    daemon.process.signal(Signal::SIGSTOP)?;
    signal_watchdog(daemon, Signal::SIGKILL)
}

/// Seconds until another watchdog runs; none if there was none.
fn replaced(daemon: &Daemon, signal: Signal) -> Result<Option<f64>> {
    let Some(before) = daemon.watchdog() else {
        return Ok(None);
    };
    signal_watchdog(daemon, signal)?;
    let since = Instant::now();
    let other = || Ok(daemon.watchdog().filter(|now| *now != before));
    let is_replaced = wait_for("another watchdog", HANG, other).is_ok();
    Ok(Some(if is_replaced {
        since.elapsed().as_secs_f64()
    } else {
        f64::INFINITY
    }))
}

/// The daemon's thread that gives priority.
fn priority_thread(daemon: i32) -> Result<i32> {
    let name = |thread: i32| fs::read_to_string(format!("/proc/{daemon}/task/{thread}/comm")).unwrap_or_default();
    let mut threads = threads(daemon)?.into_iter();
    let found = threads.find(|thread| name(*thread).trim_end() == "giveway-rt");
    found.context("the daemon has no thread that gives priority")
}

fn limit_descriptors(process: i32, most: u64) -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = libc::rlimit {
        rlim_cur: most,
        rlim_max: hard,
    };
    // SAFETY: the call reads the struct, which is valid for it, and writes nothing.
    let done = unsafe { libc::prlimit(process, libc::RLIMIT_NOFILE, &raw const wanted, std::ptr::null_mut()) };
    Errno::result(done).context("cannot limit the daemon's descriptors")?;
    Ok(())
}

/// The state folder of one network namespace, as a small file system of its own. Unmounted when dropped.
pub struct StateFolder {
    folder: PathBuf,
}

impl StateFolder {
    fn mount(station: &Namespace) -> Result<Self> {
        let folder = PathBuf::from(format!("/run/giveway/netns-{}", station.number()?));
        fs::create_dir_all(&folder)?;
        let options = Some("size=256k,mode=0711");
        let mounted = mount(Some("gwlab"), &folder, Some("tmpfs"), MsFlags::empty(), options);
        mounted.with_context(|| format!("cannot mount a small file system at {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// For files opened from now on: the kernel refuses to remount a file system read-only in which a file is open for
    /// writing.
    fn make_read_only(&self) -> Result<()> {
        let none = None::<&str>;
        // Pins are in a file system of their own, in it.
        let whole = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(&self.folder), &self.folder, none, whole, none)?;
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, &self.folder, none, flags, none)?;
        match fs::write(self.folder.join("filler"), "") {
            Err(error) if error.raw_os_error() == Some(Errno::EROFS as i32) => Ok(()),
            other => bail!("{} did not become read-only: {other:?}", self.folder.display()),
        }
    }

    fn fill(&self) -> Result<()> {
        let filler = self.folder.join("filler");
        match fs::write(&filler, vec![0; 1 << 20]) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOSPC as i32) => Ok(()),
            other => bail!("{} did not become full: {other:?}", self.folder.display()),
        }
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        // With whatever is mounted below it.
        let _ = umount2(&self.folder.join("bpf"), MntFlags::MNT_DETACH);
        if let Err(error) = umount2(&self.folder, MntFlags::MNT_DETACH) {
            eprintln!("cannot unmount {}: {error}", self.folder.display());
        }
        // It may be mounted twice.
        let _ = umount2(&self.folder, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.folder);
    }
}

/// A cgroup of v1, which can do what v2 cannot: freeze beyond SIGKILL, and run out of memory without its siblings.
/// Thawed and removed when dropped.
pub struct CgroupV1 {
    root: PathBuf,
    folder: PathBuf,
}

impl CgroupV1 {
    fn freezer(thread: i32) -> Result<Self> {
        let group = Self::make("freezer")?;
        fs::write(group.folder.join("tasks"), thread.to_string())?;
        fs::write(group.folder.join("freezer.state"), "FROZEN")?;
        wait_until("the thread to freeze", DEATH, || {
            let state = fs::read_to_string(group.folder.join("freezer.state"))?;
            Ok(state.trim() == "FROZEN")
        })?;
        Ok(group)
    }

    fn memory(process: i32) -> Result<Self> {
        let group = Self::make("memory")?;
        fs::write(group.folder.join("memory.limit_in_bytes"), "64K")?;
        fs::write(group.folder.join("cgroup.procs"), process.to_string())?;
        Ok(group)
    }

    fn make(controller: &str) -> Result<Self> {
        let root = std::env::temp_dir().join(format!("gwlab-{}-{controller}", std::process::id()));
        fs::create_dir_all(&root)?;
        mount(
            Some("cgroup"),
            &root,
            Some("cgroup"),
            MsFlags::empty(),
            Some(controller),
        )
        .with_context(|| format!("this kernel has no cgroup v1 controller `{controller}` to spare"))?;
        let group = Self {
            folder: root.join("gwlab"),
            root,
        };
        fs::create_dir(&group.folder)?;
        Ok(group)
    }
}

impl Drop for CgroupV1 {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join("freezer.state"), "THAWED");
        let is_empty = || {
            move_out(&self.folder, &self.root);
            Ok(fs::remove_dir(&self.folder).ok())
        };
        if let Err(error) = wait_for("a cgroup to become empty", DEATH, is_empty) {
            eprintln!("{} stays: {error:#}", self.folder.display());
        }
        let _ = umount2(&self.root, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.root);
    }
}

/// Moves the remaining threads back.
fn move_out(from: &Path, to: &Path) {
    for thread in fs::read_to_string(from.join("tasks")).unwrap_or_default().lines() {
        let _ = fs::write(to.join("tasks"), thread);
    }
}
