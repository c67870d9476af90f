// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of the thread: waits for whatever comes first, reads what it is about, tells the engine, carries out what
//! follows.
//!
//! A process is held by the watch before it is read: were it held after, it could become something else between, and
//! nobody would tell.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::matcher::ProcessId;
use giveway_engine::realtime::{Action, Input, Realtime, RealtimeView, Schedule, Started, Usage};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::canary::PERIOD;
use super::{Inbox, Request, Tools};
use crate::kernel::now;
use crate::kernel::process::{self, Executables, Found, Handle};
use crate::kernel::task_watch::{Event, What};

/// How often rules' executables are looked for anew, and what others may have changed.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// So many processes are looked at, and so many events worked off, without a pause for those below.
const WITHOUT_PAUSE: usize = 256;
const PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Keeper {
    realtime: Realtime,
    tools: Tools,
    inbox: Inbox,
    canary: Duration,
    executables: Executables,
    /// Held by the watch, by number.
    held: BTreeMap<u32, ProcessId>,
    lost_events: u64,
    next_account: Option<Duration>,
    next_housekeeping: Option<Duration>,
    checked: Duration,
    /// What cannot be done at present.
    failing: Option<String>,
}

impl Keeper {
    /// Gives what rules mean of what runs already.
    pub fn start(realtime: Realtime, tools: Tools, inbox: Inbox, canary: Duration) -> Result<Self> {
        let mut keeper = Self {
            realtime,
            tools,
            inbox,
            canary,
            executables: Executables::default(),
            held: BTreeMap::new(),
            lost_events: 0,
            next_account: None,
            next_housekeeping: None,
            checked: Duration::ZERO,
            failing: None,
        };
        keeper.follow_rules()?;
        keeper.look()?;
        Ok(keeper)
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
                    self.answer(request)?;
                }
            }
            if happened {
                self.take_events()?;
            }
            if self.next_account.is_some_and(|at| at <= now()) {
                self.account()?;
            }
            if self.next_housekeeping.is_some_and(|at| at <= now()) {
                self.keep_house()?;
            }
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
            self.next_account.get_or_insert_with(|| now() + PERIOD);
        } else {
            self.tools.canaries.rest();
            self.next_account = None;
        }
        let has_rules = !self.realtime.watched().0.is_empty();
        if has_rules || !self.held.is_empty() {
            self.next_housekeeping.get_or_insert_with(|| now() + HOUSEKEEPING);
        } else {
            self.next_housekeeping = None;
        }
    }

    /// Watches for what rules name now. True where that is other files than before.
    fn follow_rules(&mut self) -> Result<bool> {
        let (paths, uids) = self.realtime.watched();
        let executables = Executables::look(paths);
        let are_others = executables != self.executables;
        self.tools.watch.watch(executables.inodes().collect(), uids)?;
        self.executables = executables;
        Ok(are_others)
    }

    /// Looks at all processes for those that rules mean.
    fn look(&mut self) -> Result<()> {
        let (paths, uids) = self.realtime.watched();
        if paths.is_empty() && uids.is_empty() {
            return Ok(());
        }
        for (looked, pid) in process::all().context("cannot read /proc")?.enumerate() {
            if looked % WITHOUT_PAUSE == WITHOUT_PAUSE - 1 {
                std::thread::sleep(PAUSE);
            }
            let Ok(handle) = Handle::open(pid) else { continue };
            let is_ours = || handle.netns() == Some(self.tools.netns_inum);
            if self.held.contains_key(&pid) || is_ours() {
                self.judge(handle, None)?;
            }
        }
        Ok(())
    }

    fn take_events(&mut self) -> Result<()> {
        let events = self.tools.watch.events()?;
        let is_flood = events.len() >= WITHOUT_PAUSE;
        for event in events {
            self.take(event)?;
        }
        let lost = self.tools.watch.lost_events()?;
        if lost > self.lost_events {
            self.lost_events = lost;
            self.forget_ended()?;
            self.look()?;
        }
        if is_flood {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<()> {
        let Event { id, what, .. } = event;
        match what {
            What::Exec => match Handle::open(id.pid) {
                Ok(handle) => self.judge(handle, Some(id)),
                // Its end has been told, where it was held.
                Err(_) => Ok(()),
            },
            What::Thread { tid } => self.tell(Input::TaskAdded { id, tid }, None),
            What::Exit { cpu } => self.forget(id, cpu),
        }
    }

    /// Reads a process and tells the engine what it is. `told`: the one that the event is about.
    fn judge(&mut self, handle: Handle, told: Option<ProcessId>) -> Result<()> {
        let pid = handle.pid;
        let was_held = self.held.contains_key(&pid);
        self.tools.watch.hold(pid)?;
        let found = handle.read(&self.executables);
        let is_meant = |found: &Found| told.is_none_or(|told| told == found.started.id) && !is_own(found);
        let Some(found) = found.ok().filter(is_meant) else {
            // Gone, a thread of the kernel, or another one by now. What was held is told of when it ends.
            if !was_held {
                self.tools.watch.release(pid);
            }
            return Ok(());
        };
        let id = found.started.id;
        if let Some(before) = self.held.insert(pid, id).filter(|before| *before != id) {
            let cpu = Duration::ZERO;
            self.tell(Input::Exited { id: before, cpu }, None)?;
        }
        self.tell(Input::Started(found.started), Some(handle))?;
        self.release_unless_held(id);
        Ok(())
    }

    fn forget(&mut self, id: ProcessId, cpu: Duration) -> Result<()> {
        self.tools.actuator.forget(id);
        self.tell(Input::Exited { id, cpu }, None)?;
        self.release_unless_held(id);
        Ok(())
    }

    fn release_unless_held(&mut self, id: ProcessId) {
        if !self.realtime.holds(id) && self.held.get(&id.pid) == Some(&id) {
            self.held.remove(&id.pid);
            self.tools.watch.release(id.pid);
        }
    }

    /// Ends that nobody told of.
    fn forget_ended(&mut self) -> Result<()> {
        let is_gone = |pid: u32| kill(Pid::from_raw(pid.cast_signed()), None) == Err(Errno::ESRCH);
        let gone: Vec<ProcessId> = self.held.values().copied().filter(|id| is_gone(id.pid)).collect();
        gone.into_iter().try_for_each(|id| self.forget(id, Duration::ZERO))
    }

    /// Tells the engine, and carries out what follows until nothing follows any more. `handle`: of the process that
    /// this is about.
    fn tell(&mut self, input: Input, handle: Option<Handle>) -> Result<()> {
        let actions = self.realtime.step(now(), input);
        self.carry_out(actions, handle).map(drop)
    }

    /// Returns why a grant among these was refused.
    fn carry_out(&mut self, actions: Vec<Action>, mut handle: Option<Handle>) -> Result<Option<String>> {
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
                    self.failing = self.tools.actuator.apply_task(id, tid).err();
                }
                Action::Revoke { id } => {
                    self.tools.actuator.revert(id);
                }
                Action::Look => {
                    self.follow_rules()?;
                    self.look()?;
                }
            }
        }
        Ok(refused)
    }

    /// What the granted have used, and whether anything ordinary still runs.
    fn account(&mut self) -> Result<()> {
        let at = now();
        self.next_account = Some(at + PERIOD);
        if let Some((cpu, waited)) = self.tools.canaries.look(at, self.canary) {
            self.tell(Input::Starved { cpu, waited }, None)?;
        }
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
                None => self.forget(id, Duration::ZERO)?,
            }
        }
        self.tell(Input::Usage(usage), None)
    }

    fn keep_house(&mut self) -> Result<()> {
        self.next_housekeeping = None;
        self.forget_ended()?;
        if self.follow_rules()? {
            self.look()?;
        }
        self.tools.actuator.tidy()
    }

    fn answer(&mut self, request: Request) -> Result<()> {
        // Who asked may have gone meanwhile, here and below.
        match request {
            Request::View(back) => drop(back.send(self.view())),
            Request::Add(rule, uid, gids, back) => {
                let outcome = self.realtime.add_rule(*rule, uid, &gids);
                drop(back.send(self.follow(outcome)?));
            }
            Request::Remove(name, uid, back) => {
                let outcome = self.realtime.remove_rule(now(), &name, uid);
                let outcome = self.follow(outcome)?;
                let held: Vec<ProcessId> = self.held.values().copied().collect();
                held.into_iter().for_each(|id| self.release_unless_held(id));
                self.follow_rules()?;
                drop(back.send(outcome));
            }
            Request::Launch(pid, schedule, uid, gids, back) => {
                drop(back.send(self.launch(pid, schedule, uid, &gids)?));
            }
            Request::Stop => {}
        }
        Ok(())
    }

    fn follow(&mut self, outcome: Result<Vec<Action>, String>) -> Result<Result<(), String>> {
        Ok(match outcome {
            Ok(actions) => self.carry_out(actions, None)?.map_or(Ok(()), Err),
            Err(why) => Err(why),
        })
    }

    /// Holds the process that asks, and gives it what it asks for.
    fn launch(&mut self, pid: u32, schedule: Schedule, uid: u32, gids: &[u32]) -> Result<Result<(), String>> {
        let was_held = self.held.contains_key(&pid);
        self.tools.watch.hold(pid)?;
        let outcome = match self.read_asking(pid, uid) {
            Ok((handle, started)) => self.give_asking(handle, started, schedule, gids)?,
            Err(why) => Err(why),
        };
        if !was_held && !self.held.contains_key(&pid) {
            self.tools.watch.release(pid);
        }
        Ok(outcome)
    }

    fn read_asking(&self, pid: u32, uid: u32) -> Result<(Handle, Started), String> {
        let unread = |why: String| format!("process {pid} asks and cannot be read: {why}");
        let handle = Handle::open(pid).map_err(|error| unread(error.to_string()))?;
        let found = handle
            .read(&self.executables)
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
    ) -> Result<Result<(), String>> {
        let id = started.id;
        let actions = match self.realtime.launch(now(), started, schedule, gids) {
            Ok(actions) => actions,
            Err(why) => return Ok(Err(why)),
        };
        self.held.insert(id.pid, id);
        let refused = self.carry_out(actions, Some(handle))?;
        self.release_unless_held(id);
        Ok(match refused {
            Some(why) => Err(why),
            None if self.realtime.is_dry_run() => Err("--dry-run changes nothing".to_owned()),
            None => Ok(()),
        })
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
