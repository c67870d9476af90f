// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread of rules, budgets and canaries: waits for whatever comes first, reads what it is about, feeds the engine,
//! carries out what follows. What fails for one process is reported and does not keep the others waiting.
//!
//! A process is held by the watch before it is read: were it held after, it could become something else between, and
//! no event would say so. Its arguments come with the event of its exec. Those of one that was there before are asked for,
//! and it is judged when they come.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::back_off::BackOff;
use giveway_engine::change::{Changes, Subject};
use giveway_engine::matcher::{Process, ProcessId};
use giveway_engine::priority::{
    Action, Input, PriorityStatus, Rule, Rules, Schedule, Started, Usage, first_match, watched,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::{Answer, ChainThread, Client, Engine, Inbox, Request, Tools};
use crate::kernel::process::{Executable, Found, Handle, Wanted};
use crate::kernel::task_watch::{Arguments, Event, What};
use crate::kernel::{cpu_time, errno_of, is_shortage, now};
use crate::life::{LONG_WORK, LONGEST_SLEEP, Sign};
use crate::lookup::{self, LookUps, Looked};

/// How often is looked for what others may have changed.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// This thread comes before all that it grants. A storm of starting processes must not make it take a CPU: in
/// each period of this length ...
const PACE: Duration = Duration::from_millis(100);
/// ... it computes for no longer than about this.
const OWN_SHARE: Duration = Duration::from_millis(30);
/// So often is tried to read the arguments of a process that does not let them be read.
const TRIES: u32 = 5;
/// More new threads than these are not made up for.
const MISSED_KEPT: usize = 4096;
/// Processes of one user of which that is tried at once.
const UNREAD_OF_A_USER: usize = 64;
/// A start waits so long for the executables of the configuration.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Who adds a rule waits so long for its executable: a client gives up after 2 s.
const RULE_WAITS: Duration = Duration::from_millis(1200);
/// No user has this number ((uid_t) -1).
const NOBODY: u32 = u32::MAX;

pub(super) struct RulesLoop {
    // Ends before what is set back by its end.
    chains: Option<ChainThread>,
    engine: Engine,
    /// Those of the engine, to be matched without it.
    rules: Rules,
    tools: Tools,
    inbox: Inbox,
    /// Its own.
    client: Client,
    /// The latest change of each process and NAPI thread.
    changes: Changes,
    wanted: Wanted,
    /// What is known of the executables that rules name, by the user who asks.
    files: BTreeMap<(u32, String), Looked>,
    waiting: Vec<Waiting>,
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
    sign: Sign,
}

/// A rule that was added and waits for its executable to be looked up.
struct Waiting {
    name: String,
    key: (u32, String),
    back: Answer,
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
        sign: Sign,
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
            wanted: Wanted::default(),
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
            sign,
        };
        this.follow_rules();
        this.await_executables();
        this.look();
        this
    }

    fn await_executables(&mut self) {
        let until = now() + FIRST_LOOK;
        let paths = watched(&self.rules).0;
        while paths.iter().any(|key| !self.files.contains_key(key))
            && let Some(look_ups) = &self.tools.look_ups
            && let Some(left) = until.checked_sub(now()).filter(|left| !left.is_zero())
        {
            self.sign.give();
            let mut source = [PollFd::new(look_ups.fd(), PollFlags::POLLIN)];
            let timeout = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
            let _ = poll(&mut source, PollTimeout::from(timeout));
            self.take_looked_up();
        }
    }

    /// Until it is asked to stop; then returns how many processes were set back.
    pub fn run(mut self) -> Result<usize> {
        loop {
            self.sign.give();
            self.arrange();
            let [is_asked, has_happened, is_looked_up] = self.wait()?;
            for request in self.inbox.take(is_asked) {
                if matches!(request, Request::Stop) {
                    self.sign.give_for(LONG_WORK);
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
            is_active.then(|| engine.next_look(now()))
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
        let why = format!("{error:#}");
        if is_shortage(error) {
            self.look_again_for(why);
        } else {
            self.failing = Some(why);
        }
    }

    fn look_again_for(&mut self, why: String) {
        self.short_of = Some(why);
        if self.again.next().is_none() {
            self.again.failed(now());
        }
    }

    /// Watches for what rules want now. True where that is something else than before.
    fn follow_rules(&mut self) -> bool {
        let (paths, uids) = watched(&self.rules);
        self.files.retain(|key, _| paths.contains(key));
        match &mut self.tools.look_ups {
            Some(look_ups) => look_ups.want(&paths),
            None if !paths.is_empty() => self.start_look_ups(),
            None => {}
        }
        let known = self.files.iter().filter_map(|((_, path), looked)| match looked {
            Looked::File { file, is_roots } => Some(Executable {
                path: path.clone(),
                file: *file,
                path_is_roots: *is_roots,
            }),
            Looked::Missing | Looked::Silent => None,
        });
        let mut executables: Vec<Executable> = known.collect();
        // Two users may name the same.
        executables.sort_by(|a, b| a.path.cmp(&b.path));
        executables.dedup_by(|a, b| a.path == b.path);
        let wanted = Wanted { executables, uids };
        if wanted == self.wanted {
            return false;
        }
        let watched = self.tools.watch.watch(wanted.inodes(), wanted.uids.clone());
        // Where that failed, the next try sees the difference still.
        if self.tolerate(watched).is_some() {
            self.wanted = wanted;
        }
        true
    }

    /// By a thread that waits in place of this one: a process is started by a path. It is back soon, as a request.
    fn start_look_ups(&mut self) {
        if std::mem::replace(&mut self.is_starting, true) {
            return;
        }
        let (client, death) = (self.client.clone(), self.tools.death.clone());
        let start = move || client.send(Request::LookUps(LookUps::start(death.as_deref()).map(Box::new)));
        let started = std::thread::Builder::new().name("gw-starter".to_owned()).spawn(start);
        if self.tolerate(started.context("cannot start a thread")).is_none() {
            self.is_starting = false;
        }
    }

    /// What is known now of executables, and of arguments that were asked for.
    fn take_looked_up(&mut self) {
        let Some(look_ups) = &mut self.tools.look_ups else {
            return;
        };
        let answers = look_ups.answers();
        if answers.is_err() {
            // Another one is started when the rules are looked at next.
            self.tools.look_ups = None;
            self.unread.values_mut().for_each(|unread| unread.is_asked = false);
        }
        for answer in self.tolerate(answers).into_iter().flatten() {
            match answer {
                lookup::Answer::Path { uid, path, found } => self.take_path((uid, path), found),
                lookup::Answer::Arguments { id, image, text } => self.take_arguments(id, image, text),
            }
            self.keep_pace();
        }
    }

    fn take_path(&mut self, key: (u32, String), found: Looked) {
        if !watched(&self.rules).0.contains(&key) {
            return;
        }
        self.files.insert(key.clone(), found);
        if self.follow_rules() {
            self.look();
        }
        let is_known = found != Looked::Silent;
        self.answer_waiting(|waiting| waiting.key == key, is_known);
    }

    /// Those that wait for this; unless it is known, the rule goes again.
    fn answer_waiting(&mut self, is_it: impl Fn(&Waiting) -> bool, is_known: bool) {
        let answered: Vec<Waiting> = self.waiting.extract_if(.., |waiting| is_it(waiting)).collect();
        for Waiting { name, key, back, .. } in answered {
            let outcome = if is_known {
                Ok(())
            } else {
                // What it gave, if anything, goes with it.
                let _ = self.remove(&name, key.0);
                Err(format!(
                    "{} does not say what it is (its file system, or a directory on the way, does not answer), so the rule \
                     was not added",
                    key.1
                ))
            };
            // The client may have gone meanwhile.
            let _ = back.send(outcome);
        }
    }

    fn take_arguments(&mut self, id: ProcessId, image: u64, text: Option<String>) {
        let Some(unread) = self.unread.get_mut(&id.pid) else {
            return;
        };
        (unread.is_asked, unread.tries) = (false, unread.tries + 1);
        if text.is_some() {
            self.arguments.insert(id.pid, Arguments { image, text });
            self.judge_by_number(id.pid, Some(id));
            return self.release_if_unknown(id.pid);
        }
        // One that has executed nothing since it was judged stays what it was: other users can hold its folder in /proc.
        if self.arguments.contains_key(&id.pid) {
            let started = unknown(id);
            self.tell(Input::Started { started, rule: None }, None);
            self.release_unless_held(id);
        }
        self.release_if_unknown(id.pid);
    }

    /// Looks at all processes for those that rules match.
    fn look(&mut self) {
        if self.wanted.is_nothing() && self.held.is_empty() {
            return;
        }
        let inodes = self.wanted.inodes();
        let listed = self.tools.tasks.processes();
        let listed = self.tolerate(listed).into_iter().flatten();
        let matching =
            listed.filter(|process| inodes.contains(&process.inode) || self.wanted.uids.contains(&process.uid));
        let mut pids: BTreeSet<u32> = matching.map(|process| process.pid).collect();
        pids.extend(self.held.keys());
        for pid in pids {
            self.sign.give();
            self.keep_pace();
            self.judge_by_number(pid, None);
        }
    }

    fn judge_by_number(&mut self, pid: u32, expected: Option<ProcessId>) {
        // Where it has gone, its end has been told if it was held.
        if let Some(handle) = self.open(pid) {
            self.judge(handle, expected);
        }
    }

    fn take_events(&mut self) -> Result<()> {
        for event in self.tools.watch.events()? {
            self.sign.give();
            self.take(event);
            self.keep_pace();
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
            What::Exec(arguments) => {
                self.arguments.insert(id.pid, arguments);
                self.judge_by_number(id.pid, Some(id));
                self.release_if_unknown(id.pid);
            }
            What::Thread { tid } => self.tell(Input::TaskAdded { id, tid }, None),
            What::Exit { cpu } => self.forget(id, cpu),
        }
    }

    /// None where it has ended, or cannot be opened now.
    fn open(&mut self, pid: u32) -> Option<Handle> {
        let opened = Handle::open(pid).context("cannot open a process");
        if let Some(error) = opened.as_ref().err().filter(|error| is_shortage(error)) {
            self.note_failure(error);
        }
        opened.ok()
    }

    /// Reads a process and tells the engine what it is. `expected`: the one that the event is about.
    fn judge(&mut self, handle: Handle, expected: Option<ProcessId>) {
        let pid = handle.pid;
        let was_held = self.held.get(&pid).copied();
        let held = self.tools.watch.hold(pid);
        if self.tolerate(held).is_none() {
            return;
        }
        let found = handle.read(&self.tools.tasks, &self.wanted);
        if let Some(error) = found.as_ref().err().filter(|error| is_shortage(error)) {
            // It stays what it was until it can be read.
            self.note_failure(error);
            return self.release_if_unknown(pid);
        }
        let is_it = |found: &Found| expected.is_none_or(|id| id == found.started.id) && !is_own(found);
        match (found.ok().filter(is_it), was_held) {
            (Some(found), _) => match self.arguments_of(&found) {
                Some(cmdline) => {
                    self.unread.remove(&pid);
                    let mut started = found.started;
                    started.process.cmdline = cmdline;
                    self.begin(started, handle);
                }
                None => return self.release_if_unknown(pid),
            },
            // What cannot be read any more matches no rule. If it has ended, an event says so.
            (None, Some(id)) => {
                self.unread.remove(&pid);
                let started = unknown(id);
                self.tell(Input::Started { started, rule: None }, None);
            }
            // Gone, a thread of the kernel, or another one by now.
            (None, None) => {
                self.unread.remove(&pid);
                self.release_if_unknown(pid);
            }
        }
        if let Some(id) = self.held.get(&pid).copied() {
            self.release_unless_held(id);
        }
    }

    /// None where they are being asked for.
    fn arguments_of(&mut self, found: &Found) -> Option<String> {
        let Started { id, process, .. } = &found.started;
        let is_any_pattern = self.rules.iter().any(|rule| rule.matcher.cmdline.is_some());
        if !is_any_pattern || !self.wanted.has(process) {
            return Some(String::new());
        }
        let known = self.arguments.get(&id.pid).filter(|known| known.image == found.image);
        if let Some(text) = known.and_then(|known| known.text.clone()) {
            return Some(text);
        }
        let of_user = self.unread.values().filter(|unread| unread.uid == process.uid).count();
        if of_user < UNREAD_OF_A_USER || self.unread.contains_key(&id.pid) {
            let new = Unread {
                uid: process.uid,
                tries: 0,
                is_asked: false,
            };
            let unread = self.unread.entry(id.pid).or_insert(new);
            if !unread.is_asked
                && let Some(look_ups) = &self.tools.look_ups
            {
                unread.is_asked = look_ups.arguments(process.uid, *id, found.image);
            }
            if self.tools.look_ups.is_none() {
                self.start_look_ups();
            }
        }
        None
    }

    fn begin(&mut self, started: Started, handle: Handle) {
        let id = started.id;
        self.count_lent_by(id);
        if let Some(before) = self.held.insert(id.pid, id).filter(|before| *before != id) {
            // An end that no event told of.
            self.end(before, Duration::ZERO);
        }
        let rule = first_match(&self.rules, &started.process);
        self.tell(Input::Started { started, rule }, Some(handle));
    }

    fn forget(&mut self, id: ProcessId, cpu: Duration) {
        self.end(id, cpu);
        self.unread.remove(&id.pid);
        self.release_unless_held(id);
        self.release_if_unknown(id.pid);
    }

    fn end(&mut self, id: ProcessId, cpu: Duration) {
        self.count_lent_by(id);
        self.tools.lending.remove(id);
        self.tools.actuator.forget(id);
        self.tell(Input::Exited { id, cpu }, None);
        self.changes.ended(&Subject::Process { id });
    }

    fn release_unless_held(&mut self, id: ProcessId) {
        if !self.engine.lock().holds(id) && self.held.get(&id.pid) == Some(&id) {
            self.held.remove(&id.pid);
            self.release_if_unknown(id.pid);
        }
    }

    fn release_if_unknown(&mut self, pid: u32) {
        let is_asked = self.unread.get(&pid).is_some_and(|unread| unread.is_asked);
        if !self.held.contains_key(&pid) && !is_asked {
            self.arguments.remove(&pid);
            self.tools.watch.release(pid);
        }
    }

    /// Ends that no event told of.
    fn forget_ended(&mut self) {
        let is_gone = |pid: u32| kill(Pid::from_raw(pid.cast_signed()), None) == Err(Errno::ESRCH);
        let gone: Vec<ProcessId> = self.held.values().copied().filter(|id| is_gone(id.pid)).collect();
        gone.into_iter().for_each(|id| self.forget(id, Duration::ZERO));
    }

    /// Feeds the engine, and carries out what follows until nothing follows any more. `handle`: of the process that
    /// this is about.
    fn tell(&mut self, input: Input, handle: Option<Handle>) {
        let actions = self.engine.step(input);
        self.carry_out(actions, handle);
    }

    /// Returns why a grant among these was refused.
    fn carry_out(&mut self, actions: Vec<Action>, mut handle: Option<Handle>) -> Option<String> {
        let mut actions = VecDeque::from(actions);
        let mut refused = None;
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Grant { id, schedule } => {
                    self.count_lent_by(id);
                    let reopen = || Handle::of(id, &self.tools.tasks);
                    let outcome = handle.take().map_or_else(reopen, Ok);
                    let outcome = outcome.context("it cannot be opened");
                    // Before they have it: who waits for a lock already lends it at once, and the kernel tells of that once.
                    let threads = self.tools.tasks.threads.of(id.pid).unwrap_or_default();
                    self.may_lend(id, threads.into_iter().map(|thread| thread.tid).collect());
                    let outcome = outcome.and_then(|handle| self.tools.actuator.apply(handle, id, &schedule));
                    refused = outcome.as_ref().err().map(|error| format!("{error:#}"));
                    if outcome.is_ok() {
                        let given = self.tools.actuator.threads(id);
                        let new = given.filter(|tid| !self.tools.lending.has(id, *tid)).collect();
                        self.may_lend(id, new);
                    } else {
                        self.tools.lending.remove(id);
                    }
                    let became = match outcome {
                        Err(error) if errno_of(&error).is_some_and(|errno| errno != Errno::ESRCH) => {
                            let why = format!("{error:#}");
                            self.look_again_for(why.clone());
                            Input::NotGiven { id, why }
                        }
                        outcome => Input::Outcome {
                            id,
                            outcome: outcome.map_err(|error| format!("{error:#}")),
                        },
                    };
                    actions.extend(self.engine.step(became));
                }
                Action::GrantTask { id, tid } => {
                    self.may_lend(id, vec![tid]);
                    if let Err(error) = self.tools.actuator.apply_task(id, tid) {
                        if is_shortage(&error) && self.missed.len() < MISSED_KEPT {
                            self.missed.insert((id, tid));
                        }
                        let pid = id.pid;
                        self.note_failure(&error.context(format!("thread {tid} of process {pid} gets no real time")));
                    }
                }
                Action::Revoke { id } => {
                    self.tools.actuator.revert(id);
                    self.tools.lending.remove(id);
                }
                Action::Look => {
                    self.follow_rules();
                    self.look();
                }
                Action::RaiseNapi { threads, priority } => {
                    let refused = self.tools.napi.raise(&threads, priority);
                    let cpu = self.tools.napi.cpu();
                    actions.extend(self.engine.step(Input::NapiRaised { cpu, refused }));
                }
                Action::LowerNapi => {
                    let lowered = self.tools.napi.lower();
                    self.tolerate(lowered);
                }
                Action::Record(change) => self.changes.note(now(), *change),
                action @ (Action::Raise { .. } | Action::Lower { .. } | Action::Bar { .. }) => {
                    if let Some(chains) = &self.chains {
                        chains.carry_out(action);
                    }
                }
            }
        }
        refused
    }

    /// What the granted have used, and whether anything without real time still runs.
    fn account(&mut self) {
        let at = now();
        let is_time_to_check = at.saturating_sub(self.checked) >= HOUSEKEEPING;
        if is_time_to_check {
            self.checked = at;
        }
        self.count_lent();
        let granted = self.engine.lock().granted();
        let mut processes = Vec::new();
        for id in granted {
            let handle = self.tools.actuator.handle(id);
            match handle.filter(|handle| handle.is_alive()) {
                Some(handle) => processes.push(Usage {
                    id,
                    cpu: handle.cpu(),
                    tasks: self.threads_having(id),
                    found: is_time_to_check.then(|| self.tools.actuator.check(id)).flatten(),
                }),
                None => self.forget(id, Duration::ZERO),
            }
        }
        let napi = self.tools.napi.cpu();
        self.tell(Input::Usage { processes, napi }, None);
        if let Some((cpu, waited)) = self.tools.canaries.look(at) {
            self.tell(Input::Canary { cpu, waited }, None);
        }
        self.next_account = Some(self.engine.lock().next_look(now()));
    }

    /// Its threads that have real time. Others take nobody's place, and who has some may make any number of them; of those
    /// that were given it, some have ended.
    fn threads_having(&self, id: ProcessId) -> u32 {
        let main = self.tools.tasks.threads.thread(id.pid).ok().flatten();
        let given = u32::try_from(self.tools.actuator.threads(id).count()).unwrap_or(u32::MAX);
        main.map_or(0, |main| main.tasks).min(given)
    }

    /// What these threads of a process lend is counted from now on.
    fn may_lend(&mut self, id: ProcessId, tids: Vec<u32>) {
        let added = self.tools.lending.add(id, tids);
        self.tolerate(added);
    }

    /// Before anything is told of a process: what it has lent may be all that is to be told.
    fn count_lent_by(&mut self, id: ProcessId) {
        if self.tools.lending.knows(id.pid) {
            self.count_lent();
        }
    }

    fn count_lent(&mut self) {
        let lent = self.tools.lending.take();
        for lent in self.tolerate(lent).into_iter().flatten() {
            self.tell(lent, None);
        }
    }

    fn keep_house(&mut self) {
        self.next_housekeeping = None;
        self.forget_ended();
        self.unread.retain(|_, unread| unread.is_asked || unread.tries < TRIES);
        let again = self.unread.iter().filter(|(_, unread)| !unread.is_asked);
        for pid in again.map(|(pid, _)| *pid).collect::<Vec<_>>() {
            self.sign.give();
            self.keep_pace();
            match self.open(pid) {
                Some(handle) => self.judge(handle, None),
                None => drop(self.unread.remove(&pid)),
            }
        }
        for (id, tid) in std::mem::take(&mut self.missed) {
            self.sign.give();
            self.carry_out(vec![Action::GrantTask { id, tid }], None);
        }
        if self.follow_rules() | self.again.is_due(now()) {
            self.short_of = None;
            self.look();
            if self.short_of.is_none() {
                self.again.reset();
            }
        }
        let tidied = self.tools.actuator.tidy();
        let Tools { lending, actuator, .. } = &mut self.tools;
        lending.tidy(|id, tid| actuator.has(id, tid));
        self.tolerate(tidied);
    }

    fn answer(&mut self, request: Request) {
        // The client may have gone meanwhile, here and below.
        match request {
            Request::Status(back) => drop(back.send(self.status())),
            Request::Add(rule, uid, gids, back) => {
                let (name, exe) = (rule.name.clone(), rule.matcher.exe.clone());
                let added = self.engine.lock().add_rule(*rule, uid, &gids);
                self.rules = self.engine.lock().rules();
                let outcome = added.map(|actions| drop(self.carry_out(actions, None)));
                let key = exe.map(|exe| (uid, exe)).filter(|key| !self.files.contains_key(key));
                match (key, &outcome) {
                    (Some(key), Ok(())) => self.waiting.push(Waiting {
                        name,
                        key,
                        back,
                        until: now() + RULE_WAITS,
                    }),
                    _ => drop(back.send(outcome)),
                }
            }
            Request::Remove(name, uid, back) => drop(back.send(self.remove(&name, uid))),
            Request::LookUps(started) => {
                self.is_starting = false;
                self.tools.look_ups = self.tolerate(started).map(|look_ups| *look_ups);
                if self.tools.look_ups.is_some() {
                    self.follow_rules();
                } else {
                    self.answer_waiting(|_| true, false);
                }
            }
            Request::Launch(pid, schedule, uid, gids, back) => {
                drop(back.send(self.launch(pid, schedule, uid, &gids)));
            }
            Request::NapiThreads(threads, priority) => self.tell(Input::NapiThreads { threads, priority }, None),
            Request::CarryOut(actions) => drop(self.carry_out(actions, None)),
            Request::Report(line) => self.chains_failing = Some(line),
            Request::Stop => {}
        }
    }

    fn remove(&mut self, name: &str, uid: u32) -> Result<(), String> {
        // What it gave has been used until now: a rule that comes and goes is no way out of a budget.
        self.account();
        let removed = self.engine.lock().remove_rule(now(), name, uid);
        self.rules = self.engine.lock().rules();
        let actions = removed?;
        let has = |waiting: &Waiting| {
            let is_it = |rule: &Arc<Rule>| rule.name == waiting.name && rule.added_by == Some(waiting.key.0);
            self.rules.iter().any(is_it)
        };
        for waiting in self.waiting.extract_if(.., |waiting| !has(waiting)) {
            let _ = waiting.back.send(Err("the rule was removed meanwhile".to_owned()));
        }
        self.follow_removal(actions);
        Ok(())
    }

    fn follow_removal(&mut self, actions: Vec<Action>) {
        self.carry_out(actions, None);
        let held: Vec<ProcessId> = self.held.values().copied().collect();
        held.into_iter().for_each(|id| self.release_unless_held(id));
        self.follow_rules();
        // Another rule may match what this one matched.
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
            .read(&self.tools.tasks, &self.wanted)
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
        let actions = self.engine.lock().launch(now(), started, schedule, gids)?;
        self.held.insert(id.pid, id);
        let refused = self.carry_out(actions, Some(handle));
        self.release_unless_held(id);
        match refused {
            Some(why) => Err(why),
            None if self.engine.lock().is_dry_run() => Err("--dry-run changes nothing".to_owned()),
            None => Ok(()),
        }
    }

    /// Why rules wait, or match nothing.
    fn unusable_executables(&self) -> impl Iterator<Item = String> {
        self.files.iter().filter_map(|((_, path), looked)| match looked {
            Looked::Silent => Some(format!(
                "{path} does not say what it is (its file system, or a directory on the way, does not answer): its rule \
                 waits"
            )),
            Looked::File { is_roots: false, .. } if self.rules.iter().any(|rule| is_for_all(rule, path)) => {
                Some(format!(
                    "others than root may write to {path}, or decide where it leads: a rule for it must name the user"
                ))
            }
            _ => None,
        })
    }

    fn status(&self) -> PriorityStatus {
        let mut status = self.engine.lock().status(now());
        status.changes.extend(self.changes.to_vec());
        status.changes.sort_by_key(|latest| latest.t_ns);
        status.degraded.extend(self.failing.clone());
        status.degraded.extend(self.short_of.clone());
        status.degraded.extend(self.tools.lending.missing());
        status.degraded.extend(self.chains_failing.clone());
        status.degraded.extend(self.unusable_executables());
        if self.lost_events > 0 {
            status.degraded.push(format!(
                "{} events of processes were lost because they came too fast; all processes were looked at anew",
                self.lost_events
            ));
        }
        status
    }
}

/// Whether a rule that names no user asks for this executable.
fn is_for_all(rule: &Rule, path: &str) -> bool {
    rule.matcher.uid.is_none() && rule.matcher.exe.as_deref() == Some(path)
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
