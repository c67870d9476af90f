// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signs of life, in one page of memory that the daemon and its watchdog share. Each thread that others depend on writes
//! there by when it will have spoken again. Who looks tells a thread that is stuck from one that is not let run. Input:
//! what the threads write, and the looker's own clock. Output: who is overdue. Nobody is ended here.
//!
//! Time counts only as far as the looker itself ran in time: neither a machine that was stopped nor a cgroup that
//! was frozen with both of them in it makes anybody overdue.

use std::fmt::{self, Display, Formatter};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::unistd::gettid;

use crate::kernel::life_page::{self, Page, SLOTS, Slot};
use crate::kernel::now;
use crate::kernel::process::end::ProcessIdentity;
use crate::kernel::tasks::{Thread, Threads};

/// Without a heartbeat for so long, a thread is taken for stuck: twice [`LONGEST_SLEEP`]. Who looks does so once a second, and
/// what follows (undoing everything, starting another watchdog) needs a moment too; together they stay below 6 s.
const PATIENCE: Duration = Duration::from_secs(4);
/// Loading programs into the kernel may take this long, and so may undoing everything.
pub const LONG_WORK: Duration = Duration::from_secs(30);
/// A thread that has nothing to do beats so often.
pub const LONGEST_SLEEP: Duration = Duration::from_secs(2);
/// How often to look, at least.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A look that comes later than planned by more than this counts nothing ...
const LATE: Duration = Duration::from_millis(1500);
/// ... and after it, everybody has this long for a heartbeat: the others may not have run again yet.
const RECOVERY: Duration = Duration::from_secs(2);
/// Who is runnable and gets less than this part of a CPU is starved, not stuck.
const STARVED_BELOW: u32 = 10;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WatchedTask {
    MainLoop,
    Rules,
    Chains,
    Watchdog,
}

/// The threads of the daemon.
pub const DAEMON: [WatchedTask; 3] = [WatchedTask::MainLoop, WatchedTask::Rules, WatchedTask::Chains];

impl Display for WatchedTask {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MainLoop => "the main loop",
            Self::Rules => "the real-time thread",
            Self::Chains => "the thread of [[chain]]",
            Self::Watchdog => "the watchdog",
        })
    }
}

/// The page. It stays mapped for as long as the process lives.
#[derive(Clone, Copy)]
pub struct Life(&'static Page);

impl Life {
    /// A new page for this process, the daemon, and the file by which the watchdog maps it too.
    pub fn new() -> Result<(Self, OwnedFd)> {
        let file = life_page::new_file().context("cannot make the page of signs of life")?;
        let life = Self::of(&file)?;
        for (word, own) in life.0.daemon.iter().zip(ProcessIdentity::own()?.to_words()) {
            word.store(own, Ordering::Release);
        }
        Ok((life, file))
    }

    pub fn daemon(self) -> Option<ProcessIdentity> {
        ProcessIdentity::from_words(std::array::from_fn(|word| self.0.daemon[word].load(Ordering::Acquire)))
    }

    /// From now on the watchdog tells by this who is stuck from who is not let run.
    pub fn list_by(self, threads: &Threads) -> Result<()> {
        self.0.threads.store(threads.number()?, Ordering::Release);
        Ok(())
    }

    /// The daemon's program, so that who watches loads none.
    pub fn threads(self) -> Result<Threads> {
        Threads::of_number(self.0.threads.load(Ordering::Acquire))
    }

    /// The page of this file.
    pub fn of(file: impl AsFd) -> Result<Self> {
        life_page::of(file).map(Self)
    }

    /// The watchdog holds this saved state from its next check on, in case its pin is removed.
    pub fn hold_saved_sockets(self, map_id: u32) {
        self.0.saved_sockets.store(map_id, Ordering::Release);
    }

    pub fn saved_sockets(self) -> Option<u32> {
        Some(self.0.saved_sockets.load(Ordering::Acquire)).filter(|map_id| *map_id != 0)
    }

    /// And that of reniced tasks.
    pub fn hold_saved_tasks(self, map_id: u32) {
        self.0.saved_tasks.store(map_id, Ordering::Release);
    }

    pub fn saved_tasks(self) -> Option<u32> {
        Some(self.0.saved_tasks.load(Ordering::Acquire)).filter(|map_id| *map_id != 0)
    }

    /// From now on the calling thread is watched, until the heartbeat is dropped.
    pub fn heartbeat(self, who: WatchedTask) -> Heartbeat {
        self.expect(who, gettid().as_raw().cast_unsigned());
        Heartbeat { slot: self.slot(who) }
    }

    /// The same for another process, which is about to take over.
    pub fn expect(self, who: WatchedTask, tid: u32) {
        let slot = self.slot(who);
        slot.promise(now() + PATIENCE);
        slot.tid.store(tid, Ordering::Release);
    }

    fn slot(self, who: WatchedTask) -> &'static Slot {
        &self.0.slots[who as usize]
    }

    /// None where there is nobody to be watched.
    pub fn tid(self, who: WatchedTask) -> Option<u32> {
        Some(self.slot(who).tid.load(Ordering::Acquire)).filter(|tid| *tid != 0)
    }

    /// Whether all of these have beaten in time.
    pub fn is_well(self, whose: &[WatchedTask]) -> bool {
        let is_in_time = |who: &WatchedTask| self.tid(*who).is_none() || self.slot(*who).due() >= now();
        whose.iter().all(is_in_time)
    }

    /// The daemon has undone everything by itself.
    pub fn end(self) {
        self.0.is_over.store(true, Ordering::Release);
    }

    pub fn is_over(self) -> bool {
        self.0.is_over.load(Ordering::Acquire)
    }
}

impl Slot {
    fn promise(&self, due: Duration) {
        self.due_ns.store(due.as_nanos() as u64, Ordering::Release);
    }

    fn due(&self) -> Duration {
        Duration::from_nanos(self.due_ns.load(Ordering::Acquire))
    }
}

/// Of one thread.
pub struct Heartbeat {
    slot: &'static Slot,
}

impl Heartbeat {
    pub fn beat(&self) {
        self.slot.promise(now() + PATIENCE);
    }

    /// Before work that takes longer: the next beat comes within this time.
    pub fn beat_before(&self, work: Duration) {
        self.slot.promise(now() + work);
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.slot.tid.store(0, Ordering::Release);
    }
}

/// What a looker knows of those it watches, besides their heartbeats.
#[derive(Clone, Copy)]
pub enum Observation<'a> {
    Threads(&'a Threads),
    /// No more than the CPU time of their process: while it gets any, it is not stuck.
    Process(Duration),
}

/// What a looker remembers from look to look.
pub struct Watch {
    looked: Duration,
    planned: Duration,
    seen: [HeartbeatState; SLOTS],
}

/// Of one thread.
#[derive(Clone, Copy, Default)]
struct HeartbeatState {
    due: Duration,
    /// Until it is overdue, as far as time counts.
    left: Duration,
    cpu: Duration,
}

/// What a look finds.
struct HeartbeatReading {
    at: Duration,
    since: Duration,
    is_late: bool,
    due: Duration,
    thread: Option<Thread>,
    /// Where threads cannot be listed.
    process_cpu: Option<Duration>,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            looked: now(),
            planned: LOOK_EVERY,
            seen: Default::default(),
        }
    }
}

impl Watch {
    /// One who is overdue. Call it as often as [`Self::pause`] says.
    pub fn find_overdue(&mut self, life: Life, whose: &[WatchedTask], sight: Observation<'_>) -> Option<WatchedTask> {
        let at = now();
        let since = at.saturating_sub(self.looked);
        let is_late = since > self.planned + LATE;
        (self.looked, self.planned) = (at, LOOK_EVERY);
        let mut overdue = None;
        for who in whose {
            let seen = &mut self.seen[*who as usize];
            let Some(tid) = life.tid(*who) else {
                *seen = HeartbeatState::default();
                continue;
            };
            let (thread, process_cpu) = match sight {
                Observation::Threads(threads) => (threads.thread(tid).ok().flatten(), None),
                Observation::Process(cpu) => (None, Some(cpu)),
            };
            let left = seen.update(&HeartbeatReading {
                at,
                since,
                is_late,
                due: life.slot(*who).due(),
                thread,
                process_cpu,
            });
            self.planned = self.planned.min(left);
            if left.is_zero() {
                overdue = Some(*who);
            }
        }
        overdue
    }

    /// Until the next look.
    pub fn pause(&self) -> Duration {
        self.planned
    }
}

impl HeartbeatState {
    /// Returns how long it has left.
    fn update(&mut self, found: &HeartbeatReading) -> Duration {
        let HeartbeatReading { at, since, .. } = *found;
        let cpu = found.thread.map(|thread| thread.cpu).or(found.process_cpu);
        let cpu = cpu.unwrap_or(self.cpu);
        let ran = cpu.saturating_sub(self.cpu);
        let is_starved = match found.thread {
            Some(thread) => thread.is_awake && ran < since / STARVED_BELOW,
            None => found.process_cpu.is_some() && !ran.is_zero(),
        };
        // What it did before, and whether it was let run, is not known.
        let is_first = self.due.is_zero();
        if found.due != self.due {
            self.left = found.due.saturating_sub(at);
        } else if !found.is_late && !is_starved {
            self.left = self.left.saturating_sub(since);
        }
        if found.thread.is_some_and(|thread| thread.is_held) {
            // Whatever work it announced, it does not do it.
            self.left = self.left.min(PATIENCE - LOOK_EVERY);
        }
        if found.is_late || is_starved || is_first {
            self.left = self.left.max(RECOVERY);
        }
        (self.due, self.cpu) = (found.due, cpu);
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tasks::Tasks;

    const SECOND: Duration = Duration::from_secs(1);

    fn thread(cpu: Duration, is_awake: bool) -> Option<Thread> {
        Some(Thread {
            tid: 1,
            start_ns: 1,
            cpu,
            is_awake,
            is_held: false,
            is_ending: false,
            tasks: 1,
        })
    }

    /// Looks once a second at one that beat only at 0; returns after how many looks it is overdue.
    fn overdue_after(look: impl FnMut(u32) -> (Duration, bool, Option<Thread>)) -> Option<u32> {
        overdue_after_promising(PATIENCE, look)
    }

    fn overdue_after_promising(
        due: Duration,
        mut look: impl FnMut(u32) -> (Duration, bool, Option<Thread>),
    ) -> Option<u32> {
        let (mut seen, mut at) = (HeartbeatState::default(), Duration::ZERO);
        (0..60).find(|number| {
            let (since, is_late, thread) = look(*number);
            at += since;
            let found = HeartbeatReading {
                at,
                since,
                is_late,
                due,
                thread,
                process_cpu: None,
            };
            seen.update(&found).is_zero()
        })
    }

    #[test]
    fn one_that_sleeps_or_computes_without_a_sign_is_overdue_in_time() {
        let asleep = |number| {
            (
                if number == 0 { Duration::ZERO } else { SECOND },
                false,
                thread(SECOND, false),
            )
        };
        assert_eq!(overdue_after(asleep), Some(4));
        let spins = |number| {
            let since = if number == 0 { Duration::ZERO } else { SECOND };
            (since, false, thread(number * SECOND / 2, true))
        };
        assert_eq!(overdue_after(spins), Some(4));
    }

    #[test]
    fn one_that_is_not_let_run_is_not_and_neither_is_anybody_while_the_looker_was_not() {
        let starved = |_| (SECOND, false, thread(SECOND, true));
        assert_eq!(overdue_after(starved), None);
        let stopped = |_| (100 * SECOND, true, thread(SECOND, false));
        assert_eq!(overdue_after(stopped), None);
        // Once, for a minute, and then it is given a moment.
        let once = |number| {
            if number == 3 {
                (60 * SECOND, true, None)
            } else {
                (SECOND, false, None)
            }
        };
        assert_eq!(overdue_after(once), Some(5));
    }

    #[test]
    fn one_that_is_stopped_or_frozen_is_overdue_whatever_work_it_announced() {
        let at_work = |is_held| {
            move |number| {
                let since = if number == 0 { Duration::ZERO } else { SECOND };
                let one = thread(SECOND, false).map(|thread| Thread { is_held, ..thread });
                (since, false, one)
            }
        };
        assert_eq!(overdue_after_promising(LONG_WORK, at_work(false)), Some(30));
        assert_eq!(overdue_after_promising(LONG_WORK, at_work(true)), Some(3));
    }

    #[test]
    fn before_threads_can_be_listed_who_gets_any_cpu_time_is_not_stuck() {
        let overdue_after = |stops_at: u32| {
            let mut seen = HeartbeatState::default();
            (0..60).find(|number| {
                let found = HeartbeatReading {
                    at: *number * SECOND,
                    since: SECOND,
                    is_late: false,
                    due: PATIENCE,
                    thread: None,
                    process_cpu: Some((*number).min(stops_at) * SECOND / 1000 + SECOND),
                };
                seen.update(&found).is_zero()
            })
        };
        assert_eq!(overdue_after(60), None);
        assert_eq!(overdue_after(0), Some(4));
    }

    #[test]
    fn one_that_is_overdue_when_it_is_first_seen_has_a_moment() {
        let at_ten = |number| {
            (
                if number == 0 { 10 * SECOND } else { SECOND },
                false,
                thread(SECOND, false),
            )
        };
        assert_eq!(overdue_after(at_ten), Some(2));
    }

    #[test]
    fn who_does_what_takes_long_says_so_before() {
        let tasks = Tasks::load(0).unwrap();
        let (life, file) = Life::new().unwrap();
        let other = Life::of(&file).unwrap();
        assert!(other.threads().is_err());
        life.list_by(&tasks.threads).unwrap();
        let own = other.threads().unwrap().thread(gettid().as_raw().cast_unsigned());
        assert!(own.unwrap().unwrap().is_awake);
        assert_eq!(other.daemon(), Some(ProcessIdentity::own().unwrap()));
        let heartbeat = life.heartbeat(WatchedTask::MainLoop);
        assert!(other.is_well(&DAEMON) && other.tid(WatchedTask::Rules).is_none());
        let due = |life: Life| life.slot(WatchedTask::MainLoop).due();
        let before = due(other);
        heartbeat.beat_before(LONG_WORK);
        assert!(due(other) > before + LONG_WORK - PATIENCE - SECOND);
        drop(heartbeat);
        assert!(other.tid(WatchedTask::MainLoop).is_none());
    }

    #[test]
    fn a_file_of_another_length_is_no_page() {
        assert!(Life::of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
