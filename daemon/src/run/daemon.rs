// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's loop: waits for whatever comes first, tells the engine, carries out what follows.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use giveway_engine::Engine;
use giveway_engine::action::{Action, CapOutcome, Input, Link};
use giveway_engine::config::Config;
use giveway_engine::model::Cookie;
use giveway_engine::queue::Uplink;
use giveway_engine::record::{Header, Record, SCHEMA, VERSION, What};
use giveway_engine::wire::Outgoing;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, sleep_until};

use crate::actuate::cap::{CapActuator, CapResult, Outcome, rtt_floors_us};
use crate::actuate::queue::{QueueActuator, undo};
use crate::actuate::receive::Receiver;
use crate::control::server::{self, Asked, Desks};
use crate::control::{Cost, Status};
use crate::guardian::Guarded;
use crate::interface::{Choice, Interface};
use crate::kernel::cgroup::CgroupNames;
use crate::kernel::flow_monitor::{Event, FlowMonitor};
use crate::kernel::{cpu_time, now};
use crate::key::KeyFile;
use crate::neighbours::Neighbours;
use crate::place::{Journal, Place};
use crate::run::realtime::RealtimeThread;

mod queue;

/// How often the managed interface and the guardian are looked at.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Record lines kept for a reader that lags: some seconds at full rate.
const RECORDS_KEPT: usize = 4096;
/// The goodbye is said more than once: broadcasts get lost.
const FAREWELLS: usize = 3;

/// Everything that a start has made ready.
pub struct Daemon {
    pub config: Config,
    pub choice: Choice,
    pub place: Place,
    pub engine: Engine,
    pub monitor: FlowMonitor,
    /// None where caps are impossible or not wanted.
    pub caps: Option<CapActuator>,
    pub queue: QueueActuator,
    pub receiver: Receiver,
    pub guarded: Option<Guarded>,
    pub realtime: Option<RealtimeThread>,
    /// None works alone.
    pub keys: Option<KeyFile>,
    pub degraded: Vec<String>,
}

/// The daemon while it runs.
struct Running {
    daemon: Daemon,
    journal: Option<Journal>,
    interface: Option<Interface>,
    uplink: Option<Uplink>,
    neighbours: Option<Neighbours>,
    /// Why there are none, though there is a key.
    alone_because: Option<String>,
    records: broadcast::Sender<Rc<str>>,
    /// None where cgroup v2 is not mounted.
    cgroups: Option<CgroupNames>,
    started: Duration,
    last_walk: Option<Duration>,
    passes: Cost,
    walks: Cost,
}

impl Daemon {
    /// Runs until a signal or a client ends it, then undoes everything.
    pub async fn run(self) -> Result<()> {
        let journal = self.caps.is_some().then(|| self.place.open_journal()).transpose()?;
        let (requests, asked) = mpsc::channel(16);
        let realtime = self.realtime.as_ref().context("the thread for real time is gone")?;
        let desks = Desks {
            daemon: requests,
            realtime: realtime.asker(),
            limits: Rc::new(self.config.realtime_limits.clone()),
        };
        server::serve(&self.place, &self.config.control.group, desks)?;
        let mut running = Running {
            journal,
            interface: None,
            uplink: None,
            neighbours: None,
            alone_because: None,
            records: broadcast::channel(RECORDS_KEPT).0,
            cgroups: CgroupNames::open().ok(),
            started: now(),
            last_walk: None,
            passes: Cost::default(),
            walks: Cost::default(),
            daemon: self,
        };
        let outcome = running.serve(asked).await;
        let (undone, client) = (running.undo(), outcome?);
        drop(client);
        undone
    }
}

impl Running {
    /// Returns with the connection of the client that asked for the end, if one did.
    async fn serve(&mut self, mut asked: mpsc::Receiver<Asked>) -> Result<Option<mpsc::Sender<()>>> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let period = Duration::from_secs(1) / self.daemon.config.monitor.passes_per_second;
        // SAFETY: an owned descriptor, which AsyncFd keeps open for as long as it is registered.
        let passes = unsafe { AsyncFd::register(every(period)?) }.context("cannot wait for the time of a pass")?;
        let mut kept_house: Option<Duration> = None;
        let events = self.daemon.monitor.events_fd().try_clone_to_owned()?;
        // SAFETY: an owned descriptor, which AsyncFd keeps open for as long as it is registered.
        let events = unsafe { AsyncFd::register(events) }.context("cannot wait for kernel events")?;
        loop {
            let deadline = self.daemon.engine.next_deadline().map(instant_of);
            tokio::select! {
                _ = terminate.recv() => return Ok(None),
                _ = interrupt.recv() => return Ok(None),
                ready = passes.readable() => {
                    ready?.clear_ready();
                    passes.get_ref().read_exact(&mut [0; 8]).context("cannot read the timer of the passes")?;
                    if kept_house.is_none_or(|at| now().saturating_sub(at) >= HOUSEKEEPING) {
                        kept_house = Some(now());
                        self.keep_house()?;
                    }
                    self.pass()?;
                    self.drain_refusals()?;
                }
                ready = events.readable() => {
                    ready?.clear_ready();
                    self.drain_events()?;
                }
                heard = receive(self.neighbours.as_ref()) => match heard {
                    Ok((from, bytes)) => self.tell(Input::Datagram { from, bytes: &bytes })?,
                    Err(error) => {
                        tracing::warn!("cannot hear the neighbours: {error}; trying again in a second");
                        self.neighbours = None;
                    }
                },
                Some(asked) = asked.recv() => {
                    if let Some(client) = self.answer(asked) {
                        return Ok(Some(client));
                    }
                }
                () = sleep(deadline) => self.tell(Input::Tick)?,
            }
        }
    }

    /// One pass over the active sockets, or over all of them when it is time for that.
    fn pass(&mut self) -> Result<()> {
        let every = Duration::from_secs(self.daemon.config.monitor.full_walk_s.into());
        let complete = self.last_walk.is_none_or(|at| now().saturating_sub(at) >= every);
        let begun = cpu_time();
        let flows = if complete {
            self.last_walk = Some(now());
            self.daemon.monitor.walk()?
        } else {
            self.daemon.monitor.pass()?
        };
        // What happened before this pass must be known before it is judged.
        self.drain_events()?;
        if self.records.receiver_count() > 0 {
            for flow in &flows {
                self.write(now(), What::Flow(Box::new(flow.clone())));
            }
        }
        self.tell(Input::Pass { flows, complete })?;
        let cost = if complete { &mut self.walks } else { &mut self.passes };
        cost.add(cpu_time().saturating_sub(begun));
        Ok(())
    }

    fn drain_events(&mut self) -> Result<()> {
        let mut capped = Vec::new();
        if let Some(caps) = &mut self.daemon.caps {
            caps.poll_events(&mut |new| capped.push((new.cookie, new.cap)))?;
        }
        if !capped.is_empty() {
            self.tell(Input::CappedAtConnect(capped))?;
        }
        // What comes meanwhile waits for the next time: a flood of events must not keep the passes waiting.
        let mut arrived = Vec::new();
        self.daemon.monitor.poll_events(&mut |event| arrived.push(event))?;
        let mut events = Vec::new();
        for Event { t_ns, cookie, what, .. } in arrived {
            self.write(Duration::from_nanos(t_ns), What::Event { cookie, event: what });
            events.push((cookie, what));
        }
        if events.is_empty() {
            return Ok(());
        }
        self.tell(Input::Events(events))
    }

    fn keep_house(&mut self) -> Result<()> {
        let found = self.daemon.choice.find();
        if found != self.interface {
            match &found {
                Some(i) => tracing::info!("managing {} (index {})", i.name, i.index),
                None => tracing::warn!("no interface to manage now; watching goes on, nothing is capped"),
            }
            self.neighbours = None;
            self.interface = found;
            self.daemon.receiver.manage(self.interface.as_ref());
            let link = self.interface.as_ref().map(|i| Link {
                ifindex: i.index,
                ip_header_bytes: if i.ipv4.is_some() { 20 } else { 40 },
            });
            self.tell(Input::Interface(link))?;
        }
        self.look_at_uplink()?;
        if let (Some(interface), None, true) = (&self.interface, &self.neighbours, self.daemon.keys.is_some()) {
            match Neighbours::open(interface, self.daemon.config.group.port) {
                Ok(neighbours) => {
                    self.neighbours = Some(neighbours);
                    self.alone_because = None;
                }
                Err(error) => {
                    let line = format!(
                        "cannot reach the neighbours on {}: {error}; working alone",
                        interface.name
                    );
                    if self.alone_because.as_ref() != Some(&line) {
                        tracing::warn!("{line}");
                    }
                    self.alone_because = Some(line);
                }
            }
        }
        self.reread_keys()?;
        if let Some(failed) = self.daemon.realtime.take_if(|thread| thread.has_failed())
            && let Err(error) = failed.stop()
        {
            let line = format!("{error:#}; nothing gets real time until giveway is started anew");
            tracing::warn!("{line}");
            self.daemon.degraded.push(line);
        }
        if let Some(guarded) = &mut self.daemon.guarded
            && guarded.child.try_wait().is_ok_and(|ended| ended.is_some())
        {
            tracing::warn!("the guardian has died; starting another");
            *guarded = Guarded::start()?;
            if let Some(realtime) = &self.daemon.realtime {
                guarded.watch_thread(realtime.tid);
            }
        }
        Ok(())
    }

    /// The key file may change while the daemon runs: a group changes its key without a restart.
    fn reread_keys(&mut self) -> Result<()> {
        let Some(file) = &mut self.daemon.keys else {
            return Ok(());
        };
        match file.changed() {
            Some(Ok(keys)) => {
                tracing::info!(
                    "the group's key file has changed; {} keys are valid",
                    keys.ids().count()
                );
                self.tell(Input::Keys(Some(keys)))
            }
            Some(Err(error)) => {
                tracing::warn!("{error:#}; the keys read before stay valid");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Tells the engine, and carries out what follows until nothing follows any more.
    fn tell(&mut self, input: Input<'_>) -> Result<()> {
        let mut actions: VecDeque<Action> = self.daemon.engine.step(now(), input).into();
        loop {
            let mut caps = Vec::new();
            while let Some(action) = actions.pop_front() {
                match action {
                    Action::Cap { cookie, cap } => caps.push((cookie, cap)),
                    Action::CapNew { ifindex, caps } => self.cap_new(ifindex, &caps)?,
                    Action::Queue(plan) => {
                        let outcome = self.set_queue(plan.as_ref());
                        actions.extend(self.daemon.engine.step(now(), Input::QueueOutcome(outcome)));
                    }
                    Action::Report(report) => self.report(&report),
                    Action::Record(what) => self.record(what),
                }
            }
            if caps.is_empty() {
                return Ok(());
            }
            let outcomes = self.cap(&caps)?;
            actions.extend(self.daemon.engine.step(now(), Input::CapOutcomes(outcomes)));
        }
    }

    fn cap(&mut self, wanted: &[(Cookie, Option<u32>)]) -> Result<Vec<(Cookie, CapOutcome)>> {
        let (Some(actuator), Some(journal)) = (&mut self.daemon.caps, &mut self.journal) else {
            return Ok(Vec::new());
        };
        journal.add(wanted.iter().filter_map(|(_, cap)| *cap))?;
        for (cookie, cap) in wanted {
            actuator.set(*cookie, *cap);
        }
        Ok(actuator.apply()?.iter().map(answer_of).collect())
    }

    fn cap_new(&mut self, ifindex: u32, caps: &[u32]) -> Result<()> {
        let (Some(actuator), Some(journal)) = (&mut self.daemon.caps, &mut self.journal) else {
            return Ok(());
        };
        journal.add(caps.iter().copied().filter(|cap| *cap > 0))?;
        let steps: Vec<(u32, u32)> = rtt_floors_us()
            .into_iter()
            .zip(caps.iter().copied())
            .filter(|(_, cap)| *cap > 0)
            .collect();
        actuator.publish_new(ifindex, &steps)?;
        Ok(())
    }

    fn report(&self, report: &Outgoing) {
        if let Some(Err(error)) = self.neighbours.as_ref().map(|n| n.send(report)) {
            tracing::debug!("a report was not sent: {error}");
        }
    }

    fn record(&self, what: What) {
        if let What::Cap(change) = &what {
            let verb = if change.made { "" } else { "would change " };
            tracing::info!(
                "{verb}cap of socket {}: {} -> {}: {}",
                change.cookie.0,
                shown(change.old),
                shown(change.new),
                change.why
            );
        }
        if let What::Queue(change) = &what {
            queue::tell_log(change);
        }
        self.write(now(), what);
    }

    /// A line for those who read the record, if anybody does.
    fn write(&self, at: Duration, what: What) {
        if self.records.receiver_count() > 0
            && let Ok(mut line) = serde_json::to_string(&Record::at(at, what))
        {
            line.push('\n');
            // Nobody listening any more is no error.
            let _ = self.records.send(line.into());
        }
    }

    /// Answers a client; returns its connection where it asked for the end.
    fn answer(&mut self, asked: Asked) -> Option<mpsc::Sender<()>> {
        match asked {
            Asked::Status(back) => {
                let _ = back.send(self.status());
            }
            Asked::Record(back) => {
                let _ = back.send((self.header(), self.records.subscribe()));
            }
            Asked::Lbe(request, back) => {
                let _ = back.send(self.background(request));
            }
            Asked::Stop(client) => return Some(client),
        }
        None
    }

    fn status(&mut self) -> Status {
        let mut snapshot = self.daemon.engine.snapshot(now());
        for view in &mut snapshot.flows {
            let path = self.cgroups.as_mut().and_then(|names| names.path(view.flow.cgroup_id));
            view.cgroup = path.map(|path| path.display().to_string());
        }
        snapshot.queue.counters = self.queue_counters();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: now().saturating_sub(self.started).as_secs_f64(),
            interface: self.interface.clone(),
            snapshot,
            lost_events: self.daemon.monitor.lost_events().unwrap_or_default(),
            passes: self.passes,
            walks: self.walks,
            realtime: None,
            receive: self.daemon.receiver.view(),
            degraded: self
                .daemon
                .degraded
                .iter()
                .chain(&self.alone_because)
                .cloned()
                .chain(self.daemon.queue.missing())
                .chain(self.daemon.receiver.missing())
                .collect(),
        }
    }

    fn header(&self) -> Header {
        let uname = nix::sys::utsname::uname().ok();
        let text = |f: fn(&nix::sys::utsname::UtsName) -> &std::ffi::OsStr| {
            uname
                .as_ref()
                .map(|u| f(u).to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        Header {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            kernel: text(nix::sys::utsname::UtsName::release),
            host: text(nix::sys::utsname::UtsName::nodename),
            interface: self.interface.as_ref().map(|i| i.name.clone()),
            started_t_ns: now().as_nanos() as u64,
            started_unix_ns: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_nanos() as u64,
        }
    }

    /// Puts the queue back and takes every cap away. Whatever fails here is left to the guardian, which has not been dismissed.
    fn undo(&mut self) -> Result<()> {
        for _ in 0..FAREWELLS {
            if let Some(datagram) = self.daemon.engine.farewell(now()) {
                self.report(&Outgoing { to: None, datagram });
            }
        }
        // Priorities first: nothing may keep the rest from running.
        let set_back = self.daemon.realtime.take().map_or(Ok(0), RealtimeThread::stop);
        let Some(guarded) = self.daemon.guarded.take() else {
            return Ok(());
        };
        let queues = undo(&self.daemon.place, false);
        let lifted = self.lift_caps();
        let received = self.daemon.receiver.close();
        let (set_back, queues, lifted, received) = (set_back?, queues?, lifted?, received?);
        guarded.dismiss();
        for line in queues.into_iter().chain(received) {
            tracing::info!("{line}");
        }
        tracing::info!(
            "ended; {lifted} caps lifted, {set_back} processes without real time again, nothing of giveway's is left"
        );
        Ok(())
    }

    fn lift_caps(&mut self) -> Result<usize> {
        let Some(mut caps) = self.daemon.caps.take() else {
            return Ok(0);
        };
        let outcomes = caps.revert()?;
        drop(caps);
        if let Some(CapResult::Failed(errno)) = outcomes
            .iter()
            .map(|o| o.result)
            .find(|r| matches!(r, CapResult::Failed(_)))
        {
            bail!("the kernel refused to lift a cap (errno {errno}); the guardian tries again");
        }
        let lifted = outcomes
            .iter()
            .filter(|o| matches!(o.result, CapResult::Applied { .. }))
            .count();
        self.daemon.place.clear_journal()?;
        Ok(lifted)
    }
}

fn answer_of(outcome: &Outcome) -> (Cookie, CapOutcome) {
    let answer = match outcome.result {
        CapResult::Applied { .. } | CapResult::Unchanged => CapOutcome::Applied,
        CapResult::Deferred(_) => CapOutcome::Deferred,
        CapResult::Foreign => CapOutcome::Foreign { clamp: outcome.old },
        CapResult::Gone | CapResult::Loopback => CapOutcome::Gone,
        CapResult::Failed(errno) => CapOutcome::Failed { errno },
    };
    (outcome.cookie, answer)
}

fn shown(cap: Option<u32>) -> String {
    cap.map_or("none".to_owned(), |segments| segments.to_string())
}

/// The kernel's own timer: a process that does little else should be woken up once a period, and tokio's timers wake
/// it up twice. Periods that were missed count as one.
fn every(period: Duration) -> Result<File> {
    let timer = TimerFd::new(
        timerfd::ClockId::CLOCK_MONOTONIC,
        TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
    )
    .context("cannot make a timer")?;
    let at_once = TimeSpec::from_duration(Duration::from_nanos(1));
    let expiration = Expiration::IntervalDelayed(at_once, TimeSpec::from_duration(period));
    timer
        .set(expiration, TimerSetTimeFlags::empty())
        .context("cannot set the timer of the passes")?;
    Ok(OwnedFd::from(timer).into())
}

fn instant_of(deadline: Duration) -> Instant {
    Instant::now() + deadline.saturating_sub(now())
}

/// Sleeps for ever where there is no deadline: passes come at least once a second.
async fn sleep(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Waits for a datagram, for ever where there is nobody to hear.
async fn receive(neighbours: Option<&Neighbours>) -> std::io::Result<(std::net::IpAddr, Vec<u8>)> {
    match neighbours {
        Some(neighbours) => neighbours.receive().await,
        None => std::future::pending().await,
    }
}
