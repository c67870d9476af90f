// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's loop: waits for whatever comes first, passes it to the network engine as an input, and carries out the
//! actions that follow. Decides nothing.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::config::Config;
use giveway_engine::network::Network;
use giveway_engine::network::action::{Action, Input};
use giveway_engine::queue::Uplink;
use giveway_engine::share::limiter::CapTable;
use giveway_engine::status::Cost;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::actuate::download::DownloadActuator;
use crate::actuate::nice::NiceActuator;
use crate::actuate::queue::QueueActuator;
use crate::actuate::sockets::SocketActuators;
use crate::actuate::upload::UploadActuator;
use crate::control::server::{self, Call, Handlers};
use crate::interface::{Choice, Interface, ManagedLinks};
use crate::journal;
use crate::kernel::descriptors::awaited;
use crate::kernel::flow_monitor::FlowMonitor;
use crate::kernel::netlink::LinkEvents;
use crate::kernel::owner::OwnerReader;
use crate::kernel::scanner::ScanError;
use crate::kernel::{now, random, slept};
use crate::key::KeyFile;
use crate::life::{Heartbeat, Life, WatchedTask};
use crate::notify::Notifier;
use crate::peers::Peers;
use crate::place::{Lock, Place};
use crate::run::asked::StartMoment;
use crate::run::priority::PriorityThread;
use crate::run::priority::receive::Receiver;
use crate::watchdog::guarded::GuardedDaemon;
use actions::LogQuota;
use by_hand::ByHand;
use focus::FocusClaims;
use pause::Pause;
use records::Records;
use rules::ClassRules;

mod actions;
mod by_hand;
mod end;
mod focus;
mod pause;
mod records;
mod requests;
pub mod rules;
mod sources;
mod supervision;

/// How often the managed interface and the other processes and threads of giveway are looked at.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// Everything that a start has made ready.
pub struct Daemon {
    pub config: Config,
    pub choice: Choice,
    pub place: Place,
    pub lock: Lock,
    pub life: Life,
    pub engine: Network,
    pub monitor: FlowMonitor,
    pub sockets: SocketActuators,
    pub queue: QueueActuator,
    pub download: DownloadActuator,
    pub upload: UploadActuator,
    /// None in a dry run.
    pub nice: Option<NiceActuator>,
    pub receiver: Receiver,
    pub owners: OwnerReader,
    pub rules: ClassRules,
    pub guarded: Option<GuardedDaemon>,
    pub realtime: Option<PriorityThread>,
    /// None works alone.
    pub keys: Option<KeyFile>,
    pub warnings: Vec<String>,
}

/// The daemon while it runs.
struct Running {
    daemon: Daemon,
    heartbeat: Heartbeat,
    notifier: Notifier,
    /// The managed ones; the first of them, as far as it is up.
    found: ManagedLinks,
    interface: Option<Interface>,
    links: Option<LinkEvents>,
    /// Devices may have come or gone since they were looked for.
    links_changed: bool,
    /// What containers receive may be limited otherwise than it is.
    containers_changed: bool,
    /// What the engine was told of its links last, and whether it is to be told anew.
    sent_uplinks: Vec<Uplink>,
    resend_uplinks: bool,
    /// Not yet in the kernel.
    caps_of_new: Option<CapTable>,
    /// Why something could not be done in the last moments.
    short_of: Option<String>,
    /// What kept sockets from being looked at in the last second.
    hindrances: Vec<ScanError>,
    peers: Option<Peers>,
    /// Why there are none, though there is a key.
    alone_because: Option<String>,
    /// Whether the log has a line about a peer of an older version.
    told_of_older: bool,
    /// Why there is no watchdog, or none that is known to live.
    unguarded: Option<String>,
    active: FocusClaims,
    by_hand: ByHand,
    pause: Option<Pause>,
    records: Records,
    lines: LogQuota,
    started: Duration,
    last_scan: Option<Duration>,
    last_housekeeping: Option<Duration>,
    polls: Cost,
    scans: Cost,
}

impl Daemon {
    /// Runs until a signal or a client ends it, then undoes everything.
    pub async fn run(self, begun: &StartMoment) -> Result<()> {
        let (calls, requests) = mpsc::channel(16);
        let realtime = self.realtime.as_ref().context("the real-time thread has ended")?;
        let handlers = Handlers {
            daemon: calls,
            realtime: realtime.client(),
            limits: Rc::new(self.config.priority_limits.clone()),
            users_may_choose: self.config.classes.users_may_choose.clone().into(),
        };
        server::serve(&self.place, &self.config.control.group, handlers)?;
        let mut running = Running {
            heartbeat: self.life.heartbeat(WatchedTask::MainLoop),
            notifier: Notifier::of_environment(),
            found: ManagedLinks::default(),
            interface: None,
            links_changed: true,
            containers_changed: false,
            links: LinkEvents::open()
                .inspect_err(|error| tracing::debug!("{error:#}"))
                .ok(),
            sent_uplinks: Vec::new(),
            resend_uplinks: true,
            caps_of_new: None,
            short_of: None,
            hindrances: Vec::new(),
            peers: None,
            alone_because: None,
            told_of_older: false,
            unguarded: None,
            active: FocusClaims::default(),
            by_hand: ByHand::default(),
            pause: None,
            records: Records::default(),
            lines: LogQuota::default(),
            started: now(),
            last_scan: None,
            last_housekeeping: None,
            polls: Cost::default(),
            scans: Cost::default(),
            daemon: self,
        };
        // Who asks from now on has a socket for it.
        let asked = begun.check(&running.daemon.place);
        let ready = asked
            .and_then(|()| running.apply_rules())
            .and_then(|()| running.restore_by_hand())
            .and_then(|()| running.restore_limits());
        let outcome = match ready {
            Ok(()) => running.serve(requests).await,
            Err(error) => Err(error),
        };
        // Only `giveway revert` asks for the end.
        let is_revert = matches!(outcome, Ok(Some(_)));
        let (undone, client) = (running.end(is_revert), outcome?);
        drop(client);
        undone
    }
}

impl Running {
    /// Returns with the connection of the client that asked for the end, if one did.
    async fn serve(&mut self, mut requests: mpsc::Receiver<Call>) -> Result<Option<mpsc::Sender<()>>> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let period = Duration::from_secs(1) / self.daemon.config.monitor.polls_per_second;
        let passes = awaited(every(period)?).context("cannot wait for the time of a poll")?;
        let events = self.daemon.monitor.events_fd().try_clone_to_owned()?;
        let events = awaited(events).context("cannot wait for kernel events")?;
        loop {
            self.heartbeat.beat();
            let deadline = self.daemon.engine.next_deadline().map(instant_of);
            let arrived = self.daemon.engine.next_look_at_arrived().map(instant_of);
            tokio::select! {
                _ = terminate.recv() => return Ok(None),
                _ = interrupt.recv() => return Ok(None),
                _ = hangup.recv() => self.begin_reload(None),
                read = self.daemon.rules.read() => {
                    if self.end_reload(read) {
                        // Who asked is answered first: with a thousand limits it takes long.
                        tokio::task::yield_now().await;
                        self.apply_rules()?;
                    }
                }
                ready = passes.readable() => {
                    ready?.clear_ready();
                    passes.get_ref().read_exact(&mut [0; 8]).context("cannot read the timer of the polls")?;
                    self.on_timer()?;
                }
                ready = events.readable() => {
                    ready?.clear_ready();
                    self.drain_events()?;
                }
                ready = readable(self.peers.as_ref()) => {
                    ready?;
                    self.hear_peers()?;
                }
                Some(call) = requests.recv() => {
                    if let Some(client) = self.answer(call)? {
                        return Ok(Some(client));
                    }
                }
                () = pause::is_over(self.pause.as_mut()) => self.resume()?,
                () = sleep(deadline) => self.step(Input::Tick)?,
                () = sleep(arrived) => self.poll_arrived()?,
            }
        }
    }

    fn on_timer(&mut self) -> Result<()> {
        let changed = self.links.as_ref().is_some_and(LinkEvents::any);
        self.links_changed |= changed || self.links.is_none();
        if self
            .last_housekeeping
            .is_none_or(|at| now().saturating_sub(at) >= HOUSEKEEPING)
        {
            self.last_housekeeping = Some(now());
            self.poll_managed_links()?;
            self.note_filtered()?;
            self.reread_keys()?;
            self.supervise();
            journal::restore_removed();
            self.report_hindrances();
            self.refresh_rules()?;
            self.forget_limits()?;
            self.expire_active()?;
            self.expire_by_hand()?;
            self.poll_datagrams()?;
            self.poll_processes()?;
            self.poll_other_namespaces()?;
            self.poll_forwarded()?;
            self.settle_nice()?;
            self.cap_new()?;
        } else if changed {
            self.poll_managed_links()?;
        }
        self.take_looked_up()?;
        self.follow_sessions()?;
        self.pass()?;
        self.poll_ordered_links()?;
        self.drain_refusals()?;
        self.notifier.ready();
        Ok(())
    }

    /// Polls the input to the engine, and carries out what follows until nothing follows any more.
    fn step(&mut self, input: Input<'_>) -> Result<()> {
        self.step_alone(input)?;
        match self.daemon.engine.misses_arrivals() {
            true => self.check_detours(),
            false => Ok(()),
        }
    }

    fn step_alone(&mut self, input: Input<'_>) -> Result<()> {
        let mut actions = self.decide(input)?;
        while !actions.is_empty() {
            self.heartbeat.beat();
            let outcomes = self.carry_out(std::mem::take(&mut actions))?;
            for outcome in outcomes {
                actions.extend(self.decide(outcome)?);
            }
        }
        if std::mem::take(&mut self.containers_changed) {
            self.limit_containers();
        }
        Ok(())
    }

    /// The machine may be another copy of the one that it was a moment ago.
    fn decide(&mut self, input: Input<'_>) -> Result<Vec<Action>> {
        self.daemon.engine.refresh(random()?, slept());
        Ok(self.daemon.engine.step(now(), input))
    }
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
        .context("cannot set the timer of the polls")?;
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

/// Waits for datagrams, for ever where there is no socket to hear them on.
async fn readable(peers: Option<&Peers>) -> Result<()> {
    match peers {
        Some(peers) => Ok(peers.readable().await?),
        None => std::future::pending().await,
    }
}
