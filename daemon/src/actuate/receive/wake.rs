// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that gives handlers their priority: it waits for the kernel's events above everything that it raises, so
//! that it runs at once, and carries out what the engine makes of them. In come events, out go priorities and what
//! `why` shows. It waits for no lock and no other thread; while no handler is raised it does nothing at all.

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use giveway_engine::realtime::OWN_PRIORITY;
use giveway_engine::receive::{self, Action, HandlerView, Input, LOOK_EVERY, Seen, Service, Terms};
use libbpf_rs::RingBuffer;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::journal::{Changed, Journal};
use super::thread::{self, Raised};
use crate::kernel::arrival::{Event, Handlers, Rule, What};
use crate::kernel::now;
use crate::kernel::process::Handle;

/// Threads that are held at once, as many as the kernel's table has.
const MOST_HELD: usize = 1024;

/// Ends with the thread, and the thread with it.
pub struct Waker {
    /// Closed, it ends the thread.
    lasts: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
    shown: Arc<Mutex<Vec<HandlerView>>>,
}

impl Waker {
    pub fn start(handlers: Handlers, rules: &[Rule], journal: Journal) -> Result<Self> {
        let (end, lasts) = pipe().context("cannot make a pipe")?;
        let shown = Arc::default();
        let mut worker = Worker {
            engine: receive::Handlers::new(now(), rules.iter().map(terms_of)),
            rules: rules.iter().map(|rule| (service_of(rule), rule.clone())).collect(),
            held: BTreeMap::new(),
            handlers,
            journal,
            shown: Arc::clone(&shown),
            is_shown: true,
        };
        let (started, starts) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("giveway-wake".to_owned())
            .spawn(move || {
                let (ring, events) = match worker.prepare() {
                    Ok(ready) => ready,
                    Err(error) => {
                        let _ = started.send(Err(error));
                        return;
                    }
                };
                let _ = started.send(Ok(()));
                if let Err(error) = worker.work(&ring, &events, &end) {
                    tracing::warn!("handlers of chains are ordinary from now on: {error:#}");
                }
                worker.lower_all();
            });
        let thread = thread.context("cannot start the thread that wakes handlers")?;
        starts.recv().context("the thread that wakes handlers has died")??;
        Ok(Self {
            lasts: Some(lasts),
            thread: Some(thread),
            shown,
        })
    }

    /// Of each handler, its latest change.
    pub fn view(&self) -> Vec<HandlerView> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.lasts = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn service_of(rule: &Rule) -> Service {
    Service {
        protocol: rule.chain.protocol,
        local_port: rule.chain.local_port,
    }
}

fn terms_of(rule: &Rule) -> (Service, Terms) {
    let terms = Terms {
        priority: rule.chain.priority,
        share_percent: rule.chain.share_percent,
    };
    (service_of(rule), terms)
}

/// A thread that was raised at least once.
struct Held {
    /// While it is open, its number means nobody else.
    process: Handle,
    /// As it was written down last; None: never yet.
    raised: Option<Raised>,
}

struct Worker {
    engine: receive::Handlers,
    rules: BTreeMap<Service, Rule>,
    held: BTreeMap<u32, Held>,
    handlers: Handlers,
    journal: Journal,
    shown: Arc<Mutex<Vec<HandlerView>>>,
    is_shown: bool,
}

impl Worker {
    fn prepare(&mut self) -> Result<(RingBuffer<'static>, Receiver<Event>)> {
        let own = nix::unistd::gettid().as_raw().cast_unsigned();
        thread::raise(std::process::id(), own, OWN_PRIORITY, |_| Ok(()))
            .context("no real-time priority for the thread that wakes handlers")?;
        let (to, events) = mpsc::channel();
        Ok((self.handlers.events(to)?, events))
    }

    fn work(&mut self, ring: &RingBuffer<'_>, events: &Receiver<Event>, end: &PipeReader) -> Result<()> {
        // SAFETY: the ring's descriptor is open for as long as the ring, which outlives this.
        let arrived = unsafe { BorrowedFd::borrow_raw(ring.epoll_fd()) };
        let mut look_at: Option<Duration> = None;
        loop {
            let mut waits = [arrived, end.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut waits, patience(look_at)) {
                Err(Errno::EINTR) => continue,
                outcome => outcome.context("cannot wait for requests")?,
            };
            if waits[1].any().unwrap_or(true) {
                return Ok(());
            }
            ring.consume().context("cannot read the events of handlers")?;
            events.try_iter().for_each(|event| self.take(event));
            if look_at.is_some_and(|at| now() >= at) {
                look_at = None;
                self.look()?;
            }
            self.show();
            let is_needed = self.engine.raised().next().is_some() || !self.is_shown;
            look_at = if is_needed {
                look_at.or_else(|| Some(now() + LOOK_EVERY))
            } else {
                None
            };
        }
    }

    fn take(&mut self, Event { tid, pid, what }: Event) {
        let input = match what {
            What::Request(service) => Input::Request { tid, service },
            What::SomethingElse => Input::SomethingElse { tid },
        };
        self.tell(input, pid);
    }

    /// Tells the engine, and carries out what follows until nothing does. `pid`: of the thread that it is about.
    fn tell(&mut self, input: Input, pid: u32) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for action in self.engine.step(now(), input) {
                self.is_shown = false;
                match action {
                    Action::Raise { tid, priority } => {
                        let outcome = self.raise(tid, pid, priority).map_err(|error| format!("{error:#}"));
                        inputs.push(Input::Raised { tid, outcome });
                    }
                    Action::Lower { tid } => {
                        let cpu = self.lower(tid);
                        inputs.push(Input::Lowered { tid, cpu });
                    }
                    Action::Bar { service, until } => self.bar(service, until),
                }
            }
        }
    }

    /// Gives back the CPU time that the thread has used so far.
    fn raise(&mut self, tid: u32, pid: u32, priority: u32) -> Result<Duration> {
        if !self.held.get(&tid).is_some_and(|held| held.process.is_alive()) {
            let held = self.hold(tid, pid)?;
            self.held.insert(tid, held);
        }
        let held = self.held.get_mut(&tid).context("it is not held")?;
        let journal = &mut self.journal;
        thread::raise(held.process.pid, tid, priority, |raised| {
            if held.raised != Some(raised) {
                journal.add(&Changed::Thread(raised))?;
                held.raised = Some(raised);
            }
            Ok(())
        })?;
        thread::cpu(tid).context("it has ended")
    }

    fn hold(&mut self, tid: u32, pid: u32) -> Result<Held> {
        let handlers = &self.handlers;
        if self.held.len() >= MOST_HELD {
            self.held.retain(|tid, _| matches!(handlers.until(*tid), Ok(Some(_))));
        }
        let process = Handle::open(pid).context("its process has ended")?;
        // The kernel's entry goes with the thread: so the process that is open now is the one that the event meant.
        if handlers.until(tid)?.is_none() {
            bail!("it has ended");
        }
        Ok(Held { process, raised: None })
    }

    /// Gives back the CPU time that the thread has used so far; None if it has ended.
    fn lower(&self, tid: u32) -> Option<Duration> {
        let held = self.held.get(&tid).filter(|held| held.process.is_alive())?;
        if let Some(Err(error)) = held.raised.map(|raised| raised.lower()) {
            tracing::warn!("{error:#}");
        }
        thread::cpu(tid)
    }

    fn lower_all(&self) {
        for tid in self.held.keys() {
            self.lower(*tid);
        }
    }

    fn bar(&self, service: Service, until: Duration) {
        let Service { protocol, local_port } = service;
        tracing::warn!(
            "the handlers of {protocol:?} port {local_port} have used up their share: ordinary for a second"
        );
        let barred = self.rules.get(&service).map(|rule| self.handlers.bar(rule, until));
        if let Some(Err(error)) = barred {
            tracing::warn!("{error:#}");
        }
    }

    fn look(&mut self) -> Result<()> {
        let mut seen = Vec::new();
        for tid in self.engine.raised() {
            let cpu = thread::cpu(tid);
            seen.push(Seen {
                tid,
                until: self.handlers.until(tid)?.filter(|_| cpu.is_some()),
                is_awake: thread::is_awake(tid),
                cpu: cpu.unwrap_or_default(),
            });
        }
        self.tell(Input::Look(seen), 0);
        Ok(())
    }

    /// Waits for nobody: who reads just now gets it with the next look.
    fn show(&mut self) {
        if !self.is_shown
            && let Ok(mut shown) = self.shown.try_lock()
        {
            *shown = self.engine.view();
            self.is_shown = true;
        }
    }
}

fn patience(until: Option<Duration>) -> PollTimeout {
    until.map_or(PollTimeout::NONE, |until| {
        let left = until.saturating_sub(now()) + Duration::from_micros(999);
        PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::ZERO)
    })
}
