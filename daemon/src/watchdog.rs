// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The watchdog: a process that waits for the daemon's end, brings it about where the daemon hangs, and undoes what is
//! left behind.
//!
//! It holds the reading end of a pipe whose writing end only a thread of the daemon has that never waits in the kernel
//! ([`guarded`]), so that the kernel itself reports the daemon's death, however it came about and whatever its other
//! threads are stuck in. It watches the thread that gave real time as well, since that may end before the rest, and the
//! signs of life of all threads that something depends on. It holds the saved state of sockets and of reniced tasks too, should their pins be removed.
//! What it undoes in the kernel comes first, files come last, and it waits for nothing without a limit.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use libbpf_rs::MapHandle;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd;

use crate::actuate::nice;
use crate::actuate::sockets::cap::saved;
use crate::actuate::thread::{leave_priority, take_priority};
use crate::holder::Holder;
use crate::journal::UndoReport;
use crate::kernel::calls::pidfd_of_thread;
use crate::kernel::process::Handle;
use crate::kernel::process::end::ProcessIdentity;
use crate::kernel::tasks::Threads;
use crate::kernel::{give_back_memory, signals};
use crate::life::{DAEMON, Heartbeat, LONG_WORK, Life, Observation, Watch, WatchedTask};
use crate::place::Place;
use crate::presence::{Role, announce};
use crate::say;
use crate::undo::{self, OpenJournals, UndoRun};

pub mod guarded;

/// A killed process closes its files within this time, or never.
const MOMENT: Duration = Duration::from_millis(200);
/// What could not be undone is tried again once, and for so long: it may have been short of something for a moment only.
const TRIED_FOR: Duration = Duration::from_secs(1);
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// What the watchdog watches, all of it open before anything has happened. What cannot be opened is tried again at each look.
struct Watchdog {
    place: Place,
    life: Life,
    named: ProcessIdentity,
    lock: File,
    /// None where it was dead before, too.
    daemon: Option<Handle>,
    threads: Option<Threads>,
    /// Of the journals, should they be removed.
    journals: OpenJournals,
    /// Held until everything is undone. None where caps are undone by value.
    saved_sockets: Option<MapHandle>,
    /// The same. None until a process is reniced.
    saved_tasks: Option<MapHandle>,
    pipe: OwnedFd,
    /// The thread that gives real time. None on kernels that cannot tell of a thread's end: the process's has to do.
    thread: Option<(u32, OwnedFd)>,
    /// The one whose end has been told.
    ended: Option<u32>,
    set_back: UndoReport,
}

/// What became of the daemon.
enum DaemonEnd {
    /// It has undone everything by itself.
    Over,
    Died,
    Hung(WatchedTask),
}

/// The watchdog's whole life.
pub fn run() -> Result<()> {
    // A Ctrl-C, a Ctrl-Z or a service manager's SIGTERM reaches the whole group; the watchdog must outlive the daemon.
    for ignored in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGTSTP] {
        signals::ignore(ignored as i32).context("cannot ignore signals")?;
    }
    let life = Life::of(std::io::stdout()).context("the watchdog is started by `giveway run` itself")?;
    let named = life.daemon().context("the page of signs of life names no daemon")?;
    let heartbeat = life.heartbeat(WatchedTask::Watchdog);
    // One that replaces another is started after the daemon has bounded its own thread by this.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_RTTIME) {
        let _ = setrlimit(Resource::RLIMIT_RTTIME, hard, hard);
    }
    // What it must set back may be computing without end. Where this is refused, nothing was granted either.
    let _ = take_priority();
    let place = Place::here()?;
    // As long as this process lives nobody with another /run starts here, either.
    let _announced = place
        .folder()
        .and_then(|folder| announce(Role::Watchdog, folder))
        .inspect_err(|error| say::note(format_args!("watchdog: {error:#}")));
    crate::kernel::libbpf_files::keep();
    give_back_memory();
    let pipe = std::io::stdin().as_fd().try_clone_to_owned();
    let pipe = pipe.context("cannot wait for the daemon")?;
    let mut watchdog = Watchdog {
        lock: place.open_lock()?,
        named,
        daemon: None,
        threads: None,
        journals: OpenJournals::default(),
        saved_sockets: None,
        saved_tasks: None,
        pipe,
        thread: None,
        ended: None,
        set_back: UndoReport::default(),
        place,
        life,
    };
    let end = watchdog.wait(&heartbeat)?;
    if let DaemonEnd::Over = end {
        return Ok(());
    }
    // First of all: what has died is left alone by this, and what has not does nothing more.
    if let Err(error) = watchdog.kill_daemon() {
        watchdog.set_back.failed.push(format!("{error:#}"));
    }
    let how = match end {
        DaemonEnd::Hung(who) => format!("{who} of the daemon gave no sign of life, so it was killed"),
        _ => "the daemon died".to_owned(),
    };
    watchdog.undo(&how);
    // Not by returning: threads that are stuck in reading a file are left behind.
    std::process::exit(0)
}

impl Watchdog {
    fn wait(&mut self, heartbeat: &Heartbeat) -> Result<DaemonEnd> {
        let mut watch = Watch::default();
        loop {
            heartbeat.beat();
            self.follow();
            let mut sources = vec![PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)];
            let thread = self.thread.iter().map(|(_, thread)| thread);
            sources.extend(thread.map(|thread| PollFd::new(thread.as_fd(), PollFlags::POLLIN)));
            match poll(&mut sources, timeout(watch.pause())) {
                Err(errno) if errno != Errno::EINTR => return Err(errno).context("cannot wait for the daemon"),
                _ => {}
            }
            let happened = |source: usize| sources.get(source).and_then(PollFd::any).unwrap_or_default();
            let (is_dead, is_thread_dead) = (happened(0), happened(1));
            if is_dead {
                return Ok(if self.life.is_over() {
                    DaemonEnd::Over
                } else {
                    DaemonEnd::Died
                });
            }
            if is_thread_dead {
                // A daemon that took this for a hang would start another one beside it.
                heartbeat.beat_before(LONG_WORK);
                // Whatever fails here is tried again when the rest has died.
                let undoing = UndoRun::begin(&self.place, false).with(&self.journals);
                self.set_back.extend(undoing.realtime());
                self.ended = self.thread.take().map(|(tid, _)| tid);
            }
            if let Some(who) = watch.find_overdue(self.life, &DAEMON, self.sight()) {
                return Ok(DaemonEnd::Hung(who));
            }
        }
    }

    /// Opens what is not open yet.
    fn follow(&mut self) {
        if self.daemon.is_none() {
            // A pidfd, by which it can be ended without its folder in /proc: who may list that can hold its lock. Where the
            // daemon lives still, its number was its own.
            self.daemon = Handle::open(self.named.pid).ok().filter(|_| self.is_alive());
        }
        self.journals.follow(&self.place);
        if self.threads.is_none() {
            self.threads = self
                .life
                .threads()
                .ok()
                .or_else(|| Threads::pinned(&self.place.pins()).ok()?);
        }
        if self.saved_sockets.is_none() {
            self.saved_sockets = self
                .life
                .saved_sockets()
                .and_then(|id| saved::of_number(&self.place, id).ok()?);
        }
        if self.saved_tasks.is_none() {
            self.saved_tasks = self
                .life
                .saved_tasks()
                .and_then(|id| nice::saved_of(&self.place.pins(), id).ok()?);
        }
        let tid = self.life.tid(WatchedTask::Rules).filter(|tid| self.ended != Some(*tid));
        if tid != self.thread.as_ref().map(|(tid, _)| *tid) {
            self.thread = tid.and_then(|tid| Some((tid, pidfd_of_thread(tid).ok()?)));
        }
    }

    fn sight(&self) -> Observation<'_> {
        let process_cpu = || self.daemon.as_ref().map(Handle::cpu).unwrap_or_default();
        self.threads
            .as_ref()
            .map_or_else(|| Observation::Process(process_cpu()), Observation::Threads)
    }

    fn is_alive(&self) -> bool {
        let mut ended = [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)];
        poll(&mut ended, PollTimeout::ZERO) == Ok(0)
    }

    fn kill_daemon(&self) -> Result<()> {
        match &self.daemon {
            Some(daemon) => daemon.kill(),
            None if self.is_alive() => {
                let number = unistd::Pid::from_raw(self.named.pid.cast_signed());
                kill(number, Signal::SIGKILL).context("cannot kill the daemon")
            }
            None => Ok(()),
        }
    }

    /// Nothing where somebody else has taken the namespace over, and has undone everything.
    fn undo(self, how: &str) {
        let mut begun = Instant::now();
        // Who ended the daemon cannot have read its journals then.
        let is_removed = !self.place.has_lock(&self.lock);
        let mut report = Vec::new();
        let Some(_lock) = claim(self.lock, self.named) else {
            return;
        };
        let mut undoing = UndoRun::begin(&self.place, false).with(&self.journals);
        undoing.undone.extend(self.set_back);
        undoing.threads();
        // What computed without end does so no more; the rest needs no priority.
        leave_priority();
        undoing.queue();
        let is_left = match &self.daemon {
            Some(daemon) => !daemon.is_gone_within(MOMENT),
            None => self.named.is_there().unwrap_or_default(),
        };
        if is_left {
            undoing.undone.extend(undo::links(self.named.pid));
        }
        undoing.rest();
        // Files that do not let themselves be cleared up change nothing: the next start does that.
        let mut is_again = !undoing.undone.failed.is_empty();
        let mut undone = undoing.files();
        loop {
            // Beside what has not come to its end nothing is tried again: both would change the same.
            while is_again && !undone.goes_on {
                thread::sleep(BETWEEN_TRIES);
                undone.failed.clear();
                undone.extend(undo::undo(&self.place, false));
                is_again = !undone.failed.is_empty() && begun.elapsed() < TRIED_FOR;
            }
            if is_removed && (report.is_empty() || !undone.is_nothing()) {
                report.push(undone.to_string());
                leave_report(self.place.clone(), report.join("; "));
            }
            // Where nobody listens, nothing depends on it.
            say::note(format_args!("watchdog: {how}; undone: {undone}"));
            if !undone.goes_on && !undo::goes_on() {
                return;
            }
            // What waits in the kernel (for the lock of network devices, or of a socket) would go with this process, and with it all
            // that it still has to undo. Without a limit: whoever takes the namespace over ends this process first.
            while undo::goes_on() {
                thread::sleep(BETWEEN_TRIES);
            }
            (begun, undone, is_again) = (Instant::now(), UndoReport::default(), true);
        }
    }
}

/// Not among what is still to be undone, should writing a file get stuck.
fn leave_report(place: Place, report: String) {
    let (sender, receiver) = mpsc::channel();
    let write = move || drop(sender.send(place.write_report(&report)));
    if thread::Builder::new().spawn(write).is_ok() {
        let _ = receiver.recv_timeout(MOMENT);
    }
}

/// Whether this watchdog is the one to undo: it has the lock, or the daemon that it guarded, which is dead, has it still.
/// Whoever takes over next ends the watchdog first ([`crate::holder`]), so no lock is needed against that.
fn claim(lock: File, daemon: ProcessIdentity) -> Option<Option<Flock<File>>> {
    match Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Some(Some(lock)),
        Err((lock, _)) => (Holder::read(&lock).daemon == Some(daemon)).then_some(None),
    }
}

fn timeout(pause: Duration) -> PollTimeout {
    PollTimeout::try_from(pause.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::ZERO)
}
