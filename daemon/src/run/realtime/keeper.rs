// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of the thread: waits for whatever comes first, reads what it is about, tells the engine, carries out what
//! follows. What fails for one process is said and does not keep the others waiting.
//!
//! A process is held by the watch before it is read: were it held after, it could become something else between, and
//! nobody would tell.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::matcher::{Process, ProcessId};
use giveway_engine::realtime::{Action, Input, Realtime, RealtimeView, Schedule, Started, Usage};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::{Inbox, Request, Tools};
use crate::kernel::process::wary::Hesitant;
use crate::kernel::process::{self, Found, Handle, Wanted};
use crate::kernel::task_watch::{Event, What};
use crate::kernel::{cpu_time, now};

/// How often rules' executables are looked for anew, and what others may have changed.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// This thread comes before all others. Whoever starts processes as fast as they can must not make it take a CPU: in
/// each period of this length ...
const PACE: Duration = Duration::from_millis(100);
/// ... it computes for no longer than about this.
const OWN_SHARE: Duration = Duration::from_millis(30);
/// So often is tried to read a process that does not let itself be read.
const TRIES: u32 = 5;
/// Nobody is this user ((uid_t) -1).
const NOBODY: u32 = u32::MAX;

pub(super) struct Keeper {
    realtime: Realtime,
    tools: Tools,
    inbox: Inbox,
    canary: Duration,
    wanted: Wanted,
    /// Held by the watch, by number.
    held: BTreeMap<u32, ProcessId>,
    /// Could not be read, and how often; they are tried again.
    unread: BTreeMap<u32, u32>,
    lost_events: u64,
    next_account: Option<Duration>,
    next_housekeeping: Option<Duration>,
    checked: Duration,
    pace: Pace,
    /// What could not be done, the last time that something could not.
    failing: Option<String>,
}

/// When the present period began, and this thread's CPU time then.
#[derive(Default)]
struct Pace {
    at: Duration,
    cpu: Duration,
}

impl Pace {
    fn keep(&mut self) {
        let spent = cpu_time().saturating_sub(self.cpu);
        let left = PACE.saturating_sub(now().saturating_sub(self.at));
        if spent > OWN_SHARE {
            std::thread::sleep(left.max(PACE - OWN_SHARE));
        }
        if spent > OWN_SHARE || left.is_zero() {
            *self = Self {
                at: now(),
                cpu: cpu_time(),
            };
        }
    }
}

impl Keeper {
    /// Gives what rules mean of what runs already.
    pub fn start(realtime: Realtime, tools: Tools, inbox: Inbox, canary: Duration) -> Self {
        let mut keeper = Self {
            realtime,
            tools,
            inbox,
            canary,
            wanted: Wanted::default(),
            held: BTreeMap::new(),
            unread: BTreeMap::new(),
            lost_events: 0,
            next_account: None,
            next_housekeeping: None,
            checked: Duration::ZERO,
            pace: Pace::default(),
            failing: None,
        };
        keeper.follow_rules();
        keeper.look();
        keeper
    }

    /// Until it is asked to stop; then says how many processes were set back.
    pub fn keep(mut self) -> Result<usize> {
        loop {
            self.arrange();
            let (asked, happened) = self.wait()?;
            if asked {
                for request in self.inbox.take() {
                    if matches!(request, Request::Stop) {
                        return self.tools.actuator.revert_all();
                    }
                    self.answer(request);
                }
            }
            if happened {
                self.take_events()?;
            }
            if self.next_account.is_some_and(|at| at <= now()) {
                self.account();
            }
            if self.next_housekeeping.is_some_and(|at| at <= now()) {
                self.keep_house();
            }
            self.pace.keep();
        }
    }

    /// Sleeps until something is to be done: whether requests and events wait.
    fn wait(&mut self) -> Result<(bool, bool)> {
        let next = [self.next_account, self.next_housekeeping].into_iter().flatten().min();
        let timeout = next.map_or(PollTimeout::NONE, |at| {
            let left_ms = at.saturating_sub(now()).as_micros().div_ceil(1000);
            PollTimeout::from(u16::try_from(left_ms).unwrap_or(u16::MAX))
        });
        let mut sources = [
            PollFd::new(self.inbox.bell.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.tools.watch.events_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut sources, timeout) {
            Err(errno) if errno != Errno::EINTR => return Err(errno).context("cannot wait for events"),
            _ => {}
        }
        let is_ready = |source: &PollFd| source.any().unwrap_or_default();
        Ok((is_ready(&sources[0]), is_ready(&sources[1])))
    }

    /// Sets the clocks: nothing ticks for nothing.
    fn arrange(&mut self) {
        if self.realtime.granted().next().is_some() {
            self.tools.canaries.wake();
            let next = self.realtime.next_look(now());
            self.next_account = Some(self.next_account.map_or(next, |at| at.min(next)));
        } else {
            self.tools.canaries.rest();
            self.next_account = None;
        }
        let has_rules = !self.realtime.watched().0.is_empty();
        if has_rules || !self.held.is_empty() || !self.unread.is_empty() {
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
                self.failing = Some(format!("{error:#}"));
                None
            }
        }
    }

    /// Watches for what rules want now. True where that is something else than before.
    fn follow_rules(&mut self) -> bool {
        let (paths, uids) = self.realtime.watched();
        let wanted = Wanted::look(paths, uids);
        if wanted == self.wanted {
            return false;
        }
        let watched = self.tools.watch.watch(wanted.inodes(), wanted.uids().clone());
        // Where that failed, the next try sees the difference still.
        if self.tolerate(watched).is_some() {
            self.wanted = wanted;
        }
        true
    }

    /// Looks at all processes for those that rules mean.
    fn look(&mut self) {
        if self.wanted.is_nothing() && self.held.is_empty() {
            return;
        }
        let all = process::all().context("cannot read /proc");
        for pid in self.tolerate(all).into_iter().flatten() {
            self.pace.keep();
            // A look takes as long as there are processes: budgets and canaries do not wait for its end.
            self.arrange();
            if self.next_account.is_some_and(|at| at <= now()) {
                self.account();
            }
            let Ok(handle) = Handle::open(pid) else { continue };
            let is_ours = || handle.netns() == Some(self.tools.netns_inum);
            if self.held.contains_key(&pid) || is_ours() {
                self.judge(handle, None);
            }
        }
    }

    fn take_events(&mut self) -> Result<()> {
        for event in self.tools.watch.events()? {
            self.take(event);
        }
        let lost = self.tools.watch.lost_events()?;
        if lost > self.lost_events {
            self.lost_events = lost;
            self.forget_ended();
            self.look();
        }
        Ok(())
    }

    fn take(&mut self, event: Event) {
        let Event { id, what, .. } = event;
        match what {
            What::Exec => {
                // Where it has gone, its end has been told if it was held.
                if let Ok(handle) = Handle::open(id.pid) {
                    self.judge(handle, Some(id));
                }
            }
            What::Thread { tid } => self.tell(Input::TaskAdded { id, tid }, None),
            What::Exit { cpu } => self.forget(id, cpu),
        }
    }

    /// Reads a process and tells the engine what it is. `told`: the one that the event is about.
    fn judge(&mut self, handle: Handle, told: Option<ProcessId>) {
        let pid = handle.pid;
        let was_held = self.held.get(&pid).copied();
        let held = self.tools.watch.hold(pid);
        if self.tolerate(held).is_none() {
            return;
        }
        let found = handle.read(&self.wanted, &mut self.tools.reader);
        match &found {
            Err(error) if error.is::<Hesitant>() => *self.unread.entry(pid).or_default() += 1,
            _ => drop(self.unread.remove(&pid)),
        }
        let is_meant = |found: &Found| told.is_none_or(|told| told == found.started.id) && !is_own(found);
        match (found.ok().filter(is_meant), was_held) {
            (Some(found), _) => self.begin(found.started, handle),
            // What cannot be read any more is nothing that a rule means. If it has ended, that is told too.
            (None, Some(id)) => self.tell(Input::Started(unknown(id)), None),
            // Gone, a thread of the kernel, or another one by now.
            (None, None) => self.tools.watch.release(pid),
        }
        if let Some(id) = self.held.get(&pid).copied() {
            self.release_unless_held(id);
        }
    }

    fn begin(&mut self, started: Started, handle: Handle) {
        let id = started.id;
        if let Some(before) = self.held.insert(id.pid, id).filter(|before| *before != id) {
            // An end that nobody told of.
            self.tools.actuator.forget(before);
            let cpu = Duration::ZERO;
            self.tell(Input::Exited { id: before, cpu }, None);
        }
        self.tell(Input::Started(started), Some(handle));
    }

    fn forget(&mut self, id: ProcessId, cpu: Duration) {
        self.tools.actuator.forget(id);
        self.tell(Input::Exited { id, cpu }, None);
        self.release_unless_held(id);
    }

    fn release_unless_held(&mut self, id: ProcessId) {
        if !self.realtime.holds(id) && self.held.get(&id.pid) == Some(&id) {
            self.held.remove(&id.pid);
            self.tools.watch.release(id.pid);
        }
    }

    /// Ends that nobody told of.
    fn forget_ended(&mut self) {
        let is_gone = |pid: u32| kill(Pid::from_raw(pid.cast_signed()), None) == Err(Errno::ESRCH);
        let gone: Vec<ProcessId> = self.held.values().copied().filter(|id| is_gone(id.pid)).collect();
        gone.into_iter().for_each(|id| self.forget(id, Duration::ZERO));
    }

    /// Tells the engine, and carries out what follows until nothing follows any more. `handle`: of the process that
    /// this is about.
    fn tell(&mut self, input: Input, handle: Option<Handle>) {
        let actions = self.realtime.step(now(), input);
        self.carry_out(actions, handle);
    }

    /// Returns why a grant among these was refused.
    fn carry_out(&mut self, actions: Vec<Action>, mut handle: Option<Handle>) -> Option<String> {
        let mut actions = VecDeque::from(actions);
        let mut refused = None;
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Grant { id, schedule } => {
                    let handle = handle.take().map_or_else(|| Handle::open(id.pid), Ok);
                    let outcome = handle
                        .map_err(|error| format!("it cannot be opened: {error}"))
                        .and_then(|handle| self.tools.actuator.apply(handle, id, &schedule));
                    refused = outcome.as_ref().err().cloned();
                    actions.extend(self.realtime.step(now(), Input::Outcome { id, outcome }));
                }
                Action::GrantTask { id, tid, .. } => {
                    if let Err(why) = self.tools.actuator.apply_task(id, tid) {
                        self.failing = Some(format!("thread {tid} of process {} stays ordinary: {why}", id.pid));
                    }
                }
                Action::Revoke { id } => {
                    self.tools.actuator.revert(id);
                }
                Action::Look => {
                    self.follow_rules();
                    self.look();
                }
            }
        }
        refused
    }

    /// What the granted have used, and whether anything ordinary still runs.
    fn account(&mut self) {
        let at = now();
        let is_time_to_check = at.saturating_sub(self.checked) >= HOUSEKEEPING;
        if is_time_to_check {
            self.checked = at;
        }
        let granted: Vec<ProcessId> = self.realtime.granted().map(|(id, _)| id).collect();
        let mut usage = Vec::new();
        for id in granted {
            let handle = self.tools.actuator.handle(id);
            match handle.filter(|handle| handle.is_alive()) {
                Some(handle) => usage.push(Usage {
                    id,
                    cpu: handle.cpu(),
                    tasks: handle.tasks(),
                    found: is_time_to_check.then(|| self.tools.actuator.check(id)).flatten(),
                }),
                None => self.forget(id, Duration::ZERO),
            }
        }
        self.tell(Input::Usage(usage), None);
        if let Some((cpu, waited)) = self.tools.canaries.look(at, self.canary) {
            self.tell(Input::Starved { cpu, waited }, None);
        }
        self.next_account = Some(self.realtime.next_look(now()));
    }

    fn keep_house(&mut self) {
        self.next_housekeeping = None;
        self.forget_ended();
        self.unread.retain(|_, tries| *tries < TRIES);
        for pid in self.unread.keys().copied().collect::<Vec<_>>() {
            match Handle::open(pid) {
                Ok(handle) => self.judge(handle, None),
                Err(_) => drop(self.unread.remove(&pid)),
            }
        }
        if self.follow_rules() {
            self.look();
        }
        let tidied = self.tools.actuator.tidy();
        self.tolerate(tidied);
    }

    fn answer(&mut self, request: Request) {
        // Who asked may have gone meanwhile, here and below.
        match request {
            Request::View(back) => drop(back.send(self.view())),
            Request::Add(rule, uid, gids, back) => {
                let added = self.realtime.add_rule(*rule, uid, &gids);
                drop(back.send(added.map(|actions| drop(self.carry_out(actions, None)))));
            }
            Request::Remove(name, uid, back) => {
                let removed = self.realtime.remove_rule(now(), &name, uid);
                drop(back.send(removed.map(|actions| self.follow_removal(actions))));
            }
            Request::Launch(pid, schedule, uid, gids, back) => {
                drop(back.send(self.launch(pid, schedule, uid, &gids)));
            }
            Request::Stop => {}
        }
    }

    fn follow_removal(&mut self, actions: Vec<Action>) {
        self.carry_out(actions, None);
        let held: Vec<ProcessId> = self.held.values().copied().collect();
        held.into_iter().for_each(|id| self.release_unless_held(id));
        self.follow_rules();
        // Another rule may mean what this one meant.
        self.look();
    }

    /// Holds the process that asks, and gives it what it asks for.
    fn launch(&mut self, pid: u32, schedule: Schedule, uid: u32, gids: &[u32]) -> Result<(), String> {
        let was_held = self.held.contains_key(&pid);
        self.tools.watch.hold(pid).map_err(|error| format!("{error:#}"))?;
        let asking = self.read_asking(pid, uid);
        let outcome = asking.and_then(|(handle, started)| self.give_asking(handle, started, schedule, gids));
        if !was_held && !self.held.contains_key(&pid) {
            self.tools.watch.release(pid);
        }
        outcome
    }

    fn read_asking(&mut self, pid: u32, uid: u32) -> Result<(Handle, Started), String> {
        let unread = |why: String| format!("process {pid} asks and cannot be read: {why}");
        let handle = Handle::open(pid).map_err(|error| unread(error.to_string()))?;
        let found = handle
            .read(&self.wanted, &mut self.tools.reader)
            .map_err(|error| unread(format!("{error:#}")))?;
        if found.started.process.uid != uid {
            return Err(unread("its number has gone to another".to_owned()));
        }
        Ok((handle, found.started))
    }

    fn give_asking(
        &mut self,
        handle: Handle,
        started: Started,
        schedule: Schedule,
        gids: &[u32],
    ) -> Result<(), String> {
        let id = started.id;
        let actions = self.realtime.launch(now(), started, schedule, gids)?;
        self.held.insert(id.pid, id);
        let refused = self.carry_out(actions, Some(handle));
        self.release_unless_held(id);
        match refused {
            Some(why) => Err(why),
            None if self.realtime.is_dry_run() => Err("--dry-run changes nothing".to_owned()),
            None => Ok(()),
        }
    }

    fn view(&self) -> RealtimeView {
        let mut view = self.realtime.view(now());
        view.degraded.extend(self.failing.clone());
        if self.lost_events > 0 {
            view.degraded.push(format!(
                "{} events of processes were lost because they came too fast; all processes were looked at anew",
                self.lost_events
            ));
        }
        view
    }
}

/// giveway itself and its guardian are not for rules.
fn is_own(found: &Found) -> bool {
    let own = std::process::id();
    found.started.id.pid == own || found.parent == own
}

/// A process of which nothing is known matches no rule.
fn unknown(id: ProcessId) -> Started {
    Started {
        id,
        process: Process {
            exe: "something that cannot be read".to_owned(),
            uid: NOBODY,
            euid: NOBODY,
            ..Process::default()
        },
        tasks: 1,
        cpu: Duration::ZERO,
    }
}
