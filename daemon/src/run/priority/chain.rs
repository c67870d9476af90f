// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that raises handlers of requests: waits for the kernel's events above everything, so that it runs at once,
//! feeds the engine and carries out what concerns these threads. It waits for the engine's short steps and for nothing
//! else: no look into /proc of another part, no match, no journal of another part, no pause. While no handler is raised it
//! does nothing at all.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::AsFd as _;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use giveway_engine::priority::{self, CHAIN_PRIORITY, HandlerSample, JUDGED_EVERY, Service, THREADS_KEPT};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::receive::{ChainSource, service_of};
use super::{Client, Engine};
use crate::actuate::thread::{self, ThreadChange};
use crate::journal::Journal;
use crate::kernel::arrival::{Events, HandlerMaps, Rule, ThreadEvent, ThreadEventKind};
use crate::kernel::donation::{Donors, MayDonate};
use crate::kernel::process::Handle;
use crate::kernel::tasks::Tasks;
use crate::kernel::{load_patiently, now};
use crate::life::{Heartbeat, LONGEST_SLEEP, Life, WatchedTask};
use crate::place::Place;

/// So many of the raised threads are looked at in each look, in turns: a stranger decides how many there are.
const LOOKED_AT: usize = 32;
/// And so many of those that are not raised: the event of their end may have been lost.
const LOOKED_FOR: usize = 8;

/// Dropping it ends the thread, which lowers what it has raised before.
pub(super) struct ChainThread {
    actions: mpsc::Sender<priority::Action>,
    /// A byte for new actions. Closed, it ends the thread.
    bell: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl ChainThread {
    /// `rest`: carries out what follows for other parts.
    pub fn start(
        source: ChainSource,
        place: &Place,
        engine: Engine,
        rest: Client,
        tasks: Arc<Tasks>,
        donors: Option<Donors>,
        life: Life,
    ) -> Result<Self> {
        let (reader, bell) = pipe().context("cannot make a pipe")?;
        let (actions, commands) = mpsc::channel();
        let rules = source.rules.into_iter().map(|rule| (service_of(&rule.chain), rule));
        let worker = Worker {
            engine,
            rest,
            tasks,
            rules: rules.collect(),
            held: BTreeMap::new(),
            handlers: source.handlers,
            donors,
            journal: Journal::at(place.journal(thread::CHAINS.file)),
            looked_at: RoundRobin::default(),
            looked_for: RoundRobin::default(),
        };
        let (started, starts) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("giveway-chain".to_owned())
            .spawn(move || {
                let mut worker = worker;
                let outcome = match load_patiently(|| worker.prepare()) {
                    Ok(events) => {
                        let heartbeat = life.heartbeat(WatchedTask::Chains);
                        let _ = started.send(Ok(()));
                        worker.work(&events, &reader, &commands, &heartbeat)
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                        Ok(())
                    }
                };
                if let Err(error) = outcome {
                    worker
                        .rest
                        .report(format!("requests of [[chain]] get no priority any more: {error:#}"));
                }
            });
        let this = Self {
            actions,
            bell: Some(bell),
            thread: Some(thread.context("cannot start the thread that raises handlers of requests")?),
        };
        starts
            .recv()
            .context("the thread that raises handlers of requests has died")??;
        Ok(this)
    }

    /// Has it carry this out.
    pub fn carry_out(&self, action: priority::Action) {
        // Where the thread has ended, everything is lowered already.
        if self.actions.send(action).is_ok()
            && let Some(bell) = &self.bell
        {
            let _ = (&*bell).write_all(&[0]);
        }
    }
}

impl Drop for ChainThread {
    fn drop(&mut self) {
        self.bell = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A thread that was raised at least once.
struct RaisedThread {
    /// While it is open, its number means no other process.
    process: Handle,
    /// As it was journalled last; None: never yet.
    raised: Option<ThreadChange>,
    /// While it is lowered it has nothing to donate, so it is named once.
    _may_donate: Option<MayDonate>,
}

struct Worker {
    engine: Engine,
    rest: Client,
    tasks: Arc<Tasks>,
    rules: BTreeMap<Service, Rule>,
    held: BTreeMap<u32, RaisedThread>,
    handlers: HandlerMaps,
    donors: Option<Donors>,
    journal: Journal<ThreadChange>,
    looked_at: RoundRobin,
    looked_for: RoundRobin,
}

/// Where the next look at some of many begins.
#[derive(Default)]
struct RoundRobin(usize);

impl RoundRobin {
    fn take<'a>(&mut self, all: &'a [u32], at_most: usize) -> &'a [u32] {
        let from = if self.0 < all.len() { self.0 } else { 0 };
        let some = &all[from..all.len().min(from + at_most)];
        self.0 = from + some.len();
        some
    }
}

impl Worker {
    fn prepare(&self) -> Result<Events> {
        let own = nix::unistd::gettid().as_raw().cast_unsigned();
        thread::raise(std::process::id(), own, CHAIN_PRIORITY, |_| Ok(()))
            .context("no real-time priority for the thread that raises handlers of requests")?;
        self.handlers.events()
    }

    fn work(
        &mut self,
        events: &Events,
        bell: &PipeReader,
        commands: &mpsc::Receiver<priority::Action>,
        heartbeat: &Heartbeat,
    ) -> Result<()> {
        let mut look_at: Option<Duration> = None;
        loop {
            heartbeat.beat();
            let mut waits = [events.fd(), bell.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut waits, patience(look_at.unwrap_or_else(|| now() + LONGEST_SLEEP))) {
                Err(Errno::EINTR) => continue,
                outcome => outcome.context("cannot wait for requests")?,
            };
            let is_rung = waits[1].any().unwrap_or(true);
            events.take()?.into_iter().for_each(|event| self.take(event));
            if is_rung {
                if (&*bell).read(&mut [0; 64]).unwrap_or_default() == 0 {
                    return Ok(());
                }
                let commands: Vec<priority::Action> = commands.try_iter().collect();
                self.carry_out(commands, 0);
            }
            if look_at.is_some_and(|at| now() >= at) {
                look_at = None;
                self.sample_threads()?;
            }
            let is_any_raised = !self.engine.lock().raised().is_empty();
            look_at = is_any_raised.then(|| look_at.unwrap_or_else(|| now() + JUDGED_EVERY));
        }
    }

    fn take(&mut self, ThreadEvent { tid, pid, what }: ThreadEvent) {
        let input = match what {
            ThreadEventKind::Request(service) => priority::Input::Request { tid, pid, service },
            ThreadEventKind::OtherWork => priority::Input::OtherWork { tid },
            ThreadEventKind::Ended { cpu } => {
                self.held.remove(&tid);
                priority::Input::HandlerEnded { tid, cpu }
            }
        };
        self.feed(input, pid);
        self.rest.wake_if_idle();
    }

    /// Feeds the engine, and carries out what follows until nothing does. `pid`: of the thread that it is about.
    fn feed(&mut self, input: priority::Input, pid: u32) {
        let actions = self.engine.step(input);
        self.carry_out(actions, pid);
    }

    fn carry_out(&mut self, actions: Vec<priority::Action>, pid: u32) {
        let mut of_others = Vec::new();
        for action in actions {
            match action {
                priority::Action::Raise { tid, priority } => {
                    let input = match self.raise(tid, pid, priority) {
                        Ok(cpu) => priority::Input::Raised { tid, outcome: Ok(cpu) },
                        Err(_) if self.has_ended(tid) => priority::Input::HandlerEnded {
                            tid,
                            cpu: Duration::ZERO,
                        },
                        Err(error) => priority::Input::Raised {
                            tid,
                            outcome: Err(format!("{error:#}")),
                        },
                    };
                    self.feed(input, pid);
                }
                priority::Action::Lower { tid } => {
                    let cpu = self.lower(tid);
                    self.feed(priority::Input::Lowered { tid, cpu }, pid);
                }
                priority::Action::Bar { service, until } => self.bar(service, until),
                other => of_others.push(other),
            }
        }
        if !of_others.is_empty() {
            self.rest.carry_out(of_others);
        }
    }

    /// Returns the CPU time that the thread has used so far.
    fn raise(&mut self, tid: u32, pid: u32, priority: u32) -> Result<Duration> {
        if !self.held.get(&tid).is_some_and(|held| held.process.is_alive()) {
            self.held.remove(&tid);
            let held = self.hold(tid, pid)?;
            self.held.insert(tid, held);
            self.forget_unknown();
            self.shorten_journal();
        }
        let held = self.held.get_mut(&tid).context("not granted")?;
        let journal = &mut self.journal;
        thread::raise(held.process.pid, tid, priority, |raised| {
            if held.raised.as_ref() != Some(&raised) {
                journal.add([&raised])?;
                held.raised = Some(raised);
            }
            Ok(())
        })?;
        self.cpu(tid)?.context("it has ended")
    }

    fn cpu(&self, tid: u32) -> Result<Option<Duration>> {
        Ok(self.tasks.threads.thread(tid)?.map(|thread| thread.cpu))
    }

    fn hold(&self, tid: u32, pid: u32) -> Result<RaisedThread> {
        let process = Handle::open(pid).context("its process has ended")?;
        // The kernel's entry goes with the thread: so the process that is open now is the one that the event meant.
        if self.handlers.until(tid)?.is_none() {
            bail!("it has ended");
        }
        Ok(RaisedThread {
            process,
            raised: None,
            _may_donate: self.donors.as_ref().map(|donors| donors.add(tid, None)).transpose()?,
        })
    }

    /// The kernel's entry goes with the thread.
    fn has_ended(&self, tid: u32) -> bool {
        matches!(self.handlers.until(tid), Ok(None))
    }

    /// Returns the CPU time that the thread has used so far; None if it has ended.
    fn lower(&self, tid: u32) -> Option<Duration> {
        let held = self.held.get(&tid).filter(|held| held.process.is_alive())?;
        if let Some(Err(error)) = held.raised.as_ref().map(ThreadChange::revoke) {
            self.rest.report(format!("{error:#}"));
        }
        self.cpu(tid).ok().flatten()
    }

    fn bar(&self, service: Service, until: Duration) {
        let suspended = self.rules.get(&service).map(|rule| self.handlers.bar(rule, until));
        if let Some(Err(error)) = suspended {
            self.rest.report(format!("{error:#}"));
        }
    }

    fn sample_threads(&mut self) -> Result<()> {
        let (raised, others) = {
            let engine = self.engine.lock();
            (engine.raised(), engine.not_raised())
        };
        let mut seen = Vec::new();
        for tid in self.looked_at.take(&raised, LOOKED_AT).iter().copied() {
            let Ok(thread) = self.tasks.threads.thread(tid) else {
                // What cannot be charged is not given.
                let cpu = self.lower(tid);
                self.feed(priority::Input::Lowered { tid, cpu }, 0);
                continue;
            };
            seen.push(HandlerSample {
                tid,
                until: self.handlers.until(tid)?.filter(|_| thread.is_some()),
                is_awake: thread.is_some_and(|thread| thread.is_awake),
                cpu: thread.map_or(Duration::ZERO, |thread| thread.cpu),
            });
        }
        for seen in seen.iter().filter(|seen| seen.until.is_none()) {
            self.held.remove(&seen.tid);
        }
        self.feed(priority::Input::Handlers(seen), 0);
        self.forget_ended(&others)?;
        crate::journal::restore_removed();
        self.shorten_journal();
        Ok(())
    }

    /// Keeps the journal as long as what may be active.
    fn shorten_journal(&mut self) {
        if !self.journal.is_long(self.held.len()) {
            return;
        }
        let installed = self.held.values().filter_map(|held| held.raised.as_ref());
        if let Err(error) = self.journal.replace(installed) {
            self.rest.report(format!("{error:#}"));
        }
    }

    /// Some of those that are not raised, in turns.
    fn forget_ended(&mut self, others: &[u32]) -> Result<()> {
        for tid in self.looked_for.take(others, LOOKED_FOR) {
            if self.handlers.until(*tid)?.is_none() {
                self.held.remove(tid);
                self.feed(priority::Input::Lowered { tid: *tid, cpu: None }, 0);
            }
        }
        Ok(())
    }

    /// The engine forgets the oldest of too many.
    fn forget_unknown(&mut self) {
        if self.held.len() <= 2 * THREADS_KEPT {
            return;
        }
        let engine = self.engine.lock();
        let known: BTreeSet<u32> = engine.raised().into_iter().chain(engine.not_raised()).collect();
        drop(engine);
        self.held.retain(|tid, _| known.contains(tid));
    }
}

/// However the thread ends.
impl Drop for Worker {
    fn drop(&mut self) {
        // The others are as they were, or a rule has given them something since.
        let raised = self.engine.lock().raised();
        for tid in raised {
            self.lower(tid);
        }
        let released = self.engine.step(priority::Input::ChainsEnded);
        self.rest.carry_out(released);
    }
}

fn patience(until: Duration) -> PollTimeout {
    let left = until.saturating_sub(now()) + Duration::from_micros(999);
    PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::ZERO)
}
