// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread of rules, budgets and canaries: waits for whatever comes first, reads what it is about, feeds the engine,
//! carries out what follows. What fails for one process is reported and does not keep the others waiting.
//!
//! A process is held by the watch before it is read: were it held after, it could become something else between, and
//! no event would say so. Its arguments come with the event of its exec. Those of one that was there before are asked for,
//! and it is judged when they come.
//!
//!   executables   those that rules name, and who waits for one to be looked up
//!   processes     from the event that tells of a process to what the engine is told of it
//!   granting      what the engine wants is carried out, and what was used of it counted
//!   requests      what the main loop asks for

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::back_off::BackOff;
use giveway_engine::change::Changes;
use giveway_engine::model::ProcessId;
use giveway_engine::priority::{self, PriorityRules};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{ChainThread, Client, Engine, Inbox, ReplySender, ThreadRequest, Tools};
use crate::kernel::process::{ExecHistory, ProcessCriteria};
use crate::kernel::task_watch::Arguments;
use crate::kernel::{cpu_time, is_shortage, now};
use crate::life::{Heartbeat, LONG_WORK, LONGEST_SLEEP};
use crate::lookup::PathTarget;

mod executables;
mod granting;
mod processes;
mod requests;

/// How often is looked for what others may have changed.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// This thread comes before all that it grants. A storm of starting processes must not make it take a CPU: in
/// each period of this length ...
const PACE: Duration = Duration::from_millis(100);
/// ... it computes for no longer than about this.
const OWN_SHARE: Duration = Duration::from_millis(30);
/// So often is tried to read the arguments of a process that does not let them be read.
const TRIES: u32 = 5;

pub(super) struct RulesLoop {
    // Ends before what is set back by its end.
    chains: Option<ChainThread>,
    engine: Engine,
    /// Those of the engine, to be matched without it.
    rules: PriorityRules,
    tools: Tools,
    inbox: Inbox,
    /// Its own.
    client: Client,
    /// The latest change of each process and NAPI thread.
    changes: Changes,
    wanted: ProcessCriteria,
    executed: ExecHistory,
    /// What is known of the executables that rules name, by the user who asks.
    files: BTreeMap<(u32, String), PathTarget>,
    waiting: Vec<PendingRule>,
    is_starting: bool,
    /// Held by the watch, by number.
    held: BTreeMap<u32, ProcessId>,
    /// Of those held.
    arguments: BTreeMap<u32, Arguments>,
    /// Their arguments are not known.
    unread: BTreeMap<u32, Unread>,
    /// Why something was missed that can be made up for: all processes are looked at again.
    short_of: Option<String>,
    again: BackOff,
    /// New threads of granted processes that were missed so.
    missed: BTreeSet<(ProcessId, u32)>,
    lost_events: u64,
    next_account: Option<Duration>,
    next_housekeeping: Option<Duration>,
    checked: Duration,
    pace: Pace,
    /// What could not be done, the last time that something could not.
    failing: Option<String>,
    /// The same of chains.
    chains_failing: Option<String>,
    heartbeat: Heartbeat,
}

/// A rule that was added and waits for its executable to be looked up.
struct PendingRule {
    name: String,
    key: (u32, String),
    back: ReplySender,
    until: Duration,
}

struct Unread {
    uid: u32,
    tries: u32,
    is_asked: bool,
}

/// When the present period began, and this thread's CPU time then.
#[derive(Default)]
struct Pace {
    at: Duration,
    cpu: Duration,
}

impl Pace {
    /// Until when to pause.
    fn pause(&mut self) -> Option<Duration> {
        let at = now();
        let spent = cpu_time().saturating_sub(self.cpu);
        let left = PACE.saturating_sub(at.saturating_sub(self.at));
        if spent > OWN_SHARE {
            return Some(at + left.max(PACE - OWN_SHARE));
        }
        if left.is_zero() {
            self.begin();
        }
        None
    }

    fn begin(&mut self) {
        *self = Self {
            at: now(),
            cpu: cpu_time(),
        };
    }
}

impl RulesLoop {
    /// Grants what rules match of what runs already.
    pub fn start(
        engine: Engine,
        tools: Tools,
        inbox: Inbox,
        client: Client,
        chains: Option<Result<ChainThread>>,
        heartbeat: Heartbeat,
    ) -> Self {
        let (chains, chains_failing) = match chains.transpose() {
            Ok(chains) => (chains, None),
            Err(error) => (None, Some(format!("requests of [[chain]] get no priority: {error:#}"))),
        };
        let rules = engine.lock().rules();
        let mut this = Self {
            chains,
            rules,
            engine,
            tools,
            inbox,
            client,
            changes: Changes::default(),
            wanted: ProcessCriteria::default(),
            executed: ExecHistory::default(),
            files: BTreeMap::new(),
            waiting: Vec::new(),
            is_starting: false,
            held: BTreeMap::new(),
            arguments: BTreeMap::new(),
            unread: BTreeMap::new(),
            short_of: None,
            again: BackOff::default(),
            missed: BTreeSet::new(),
            lost_events: 0,
            next_account: None,
            next_housekeeping: None,
            checked: Duration::ZERO,
            pace: Pace::default(),
            failing: None,
            chains_failing,
            heartbeat,
        };
        this.follow_rules();
        this.await_executables();
        this.scan_processes();
        this
    }

    /// Until it is asked to stop; then returns how many processes were set back.
    pub fn run(mut self) -> Result<usize> {
        loop {
            self.heartbeat.beat();
            self.arrange();
            let [is_asked, has_happened, is_looked_up] = self.wait()?;
            for request in self.inbox.take(is_asked) {
                if matches!(request, ThreadRequest::Stop) {
                    self.heartbeat.beat_before(LONG_WORK);
                    self.chains = None;
                    let lowered = self.tools.napi.lower();
                    let set_back = self.tools.actuator.revert_all();
                    return lowered.and(set_back);
                }
                self.answer(request);
            }
            if has_happened {
                self.take_events()?;
            }
            if is_looked_up {
                self.take_looked_up();
            }
            let at = now();
            self.answer_waiting(|waiting| waiting.until <= at, false);
            self.account_in_time();
            if self.next_housekeeping.is_some_and(|at| at <= now()) {
                self.keep_house();
            }
            self.keep_pace();
        }
    }

    /// Between any two pieces of work: who decides how many there are must not put off what bounds them.
    fn keep_pace(&mut self) {
        self.arrange();
        self.account_in_time();
        let Some(end) = self.pace.pause() else { return };
        while now() < end {
            let next = self.next_account.map_or(end, |at| at.min(end));
            std::thread::sleep(next.saturating_sub(now()));
            self.account_in_time();
        }
        self.pace.begin();
    }

    fn account_in_time(&mut self) {
        if self.next_account.is_some_and(|at| at <= now()) {
            self.account();
        }
    }

    /// Sleeps until something is to be done: whether requests, events and answers wait.
    fn wait(&mut self) -> Result<[bool; 3]> {
        let clocks = [self.next_account, self.next_housekeeping].into_iter().flatten();
        let next = clocks.chain(self.waiting.iter().map(|waiting| waiting.until)).min();
        let left = next.map_or(LONGEST_SLEEP, |at| at.saturating_sub(now()).min(LONGEST_SLEEP));
        let timeout = PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::ZERO);
        let mut sources = vec![
            PollFd::new(self.inbox.bell.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.tools.watch.events_fd(), PollFlags::POLLIN),
        ];
        let look_ups = self.tools.look_ups.as_ref();
        sources.extend(look_ups.map(|look_ups| PollFd::new(look_ups.fd(), PollFlags::POLLIN)));
        match poll(&mut sources, timeout) {
            Err(errno) if errno != Errno::EINTR => return Err(errno).context("cannot wait for events"),
            _ => {}
        }
        let is_ready = |at: usize| sources.get(at).and_then(PollFd::any).unwrap_or_default();
        Ok([0, 1, 2].map(is_ready))
    }

    /// Sets the clocks: nothing ticks for nothing.
    fn arrange(&mut self) {
        let next = {
            let engine = self.engine.lock();
            let is_active = engine.is_active();
            self.engine.is_watched.store(is_active, Ordering::Release);
            is_active.then(|| engine.next_usage(now()))
        };
        if let Some(next) = next {
            self.tools.canaries.wake();
            self.next_account = Some(self.next_account.map_or(next, |at| at.min(next)));
        } else {
            self.tools.canaries.rest();
            self.next_account = None;
        }
        let has_rules = self.rules.iter().any(|rule| rule.matcher.exe.is_some());
        if has_rules || self.short_of.is_some() || !self.held.is_empty() || !self.unread.is_empty() {
            self.next_housekeeping.get_or_insert_with(|| now() + HOUSEKEEPING);
        } else {
            self.next_housekeeping = None;
        }
    }

    /// Remembers a failure; None if it was one.
    fn tolerate<T>(&mut self, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(done) => Some(done),
            Err(error) => {
                self.note_failure(&error);
                None
            }
        }
    }

    fn note_failure(&mut self, error: &anyhow::Error) {
        let reason = format!("{error:#}");
        if is_shortage(error) {
            self.retry_later(reason);
        } else {
            self.failing = Some(reason);
        }
    }

    fn retry_later(&mut self, reason: String) {
        self.short_of = Some(reason);
        if self.again.next().is_none() {
            self.again.failed(now());
        }
    }

    fn keep_house(&mut self) {
        self.next_housekeeping = None;
        self.forget_ended();
        self.unread.retain(|_, unread| unread.is_asked || unread.tries < TRIES);
        let again = self.unread.iter().filter(|(_, unread)| !unread.is_asked);
        for pid in again.map(|(pid, _)| *pid).collect::<Vec<_>>() {
            self.heartbeat.beat();
            self.keep_pace();
            match self.open(pid) {
                Some(handle) => self.judge(handle, None),
                None => drop(self.unread.remove(&pid)),
            }
        }
        for (id, tid) in std::mem::take(&mut self.missed) {
            self.heartbeat.beat();
            self.carry_out(vec![priority::Action::GrantTask { id, tid }], None);
        }
        if self.follow_rules() | self.again.is_due(now()) {
            self.short_of = None;
            self.scan_processes();
            if self.short_of.is_none() {
                self.again.reset();
            }
        }
        crate::journal::restore_removed();
        let tidied = self.tools.actuator.tidy();
        let Tools { donation, actuator, .. } = &mut self.tools;
        donation.tidy(|id, tid| actuator.has(id, tid));
        self.tolerate(tidied);
    }
}
