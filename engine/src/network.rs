// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The network engine: this device's flows, what limits them, the neighbours, and the queues on the managed links.
//!
//! Input: one [`Input`] and the time (since any fixed origin; CLOCK_MONOTONIC in the daemon). Output: the
//! [`Action`]s that follow. The caller carries them out and reports back; nothing is retried without it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::change::{Change, Changes, Subject};
use crate::class::of_choice;
use crate::config::Config;
use crate::downlink::{self, Way};
use crate::model::{Choice, Cookie, Fingerprint, Flow, FlowEvent, Interface, Process, ProcessId, Protocol, Treatment};
use crate::peers::codec::MAX_SENDERS;
use crate::peers::{Heard, Keyring, Neighbourhood, PaceConfig, Sender, UNLIMITED_KBIT};
use crate::queue::Backends;
use crate::queue::links::{LinkRequest, Links};
use crate::queue::traffic::Refusal;
use crate::record::What;
use crate::share::{Allotment, Link, Sharing};
use crate::sockets::flows::{Flows, Tracked};
use crate::sockets::owners::{Owners, Unidentified};
use action::{Action, Input, Niced};
use classes::Classes;
use control::Control;
use early::Early;
use enforcement::Shortfalls;
use forwarded::Cgroups;
use nice::Niceness;

pub mod action;
mod arriving;
pub mod by_hand;
mod classes;
mod control;
mod early;
pub mod enforcement;
mod forwarded;
pub mod limit_use;
mod limiting;
pub mod nice;
mod pause;
mod told;
mod view;

pub use early::MOST_PROCESSES;
pub use forwarded::MOST_CGROUPS;
pub use told::MOST_TOLD;

/// The latest refusals, for `why`.
const REFUSALS_KEPT: usize = 64;
/// A change of what is wanted is told at once no more often than that.
const BETWEEN_DEMANDS: Duration = Duration::from_secs(1);
/// Between two decisions that neighbours or events of sockets cause: whatever they report, and however many connections a user
/// opens and closes, this bounds what they cost.
const DECISION_GAP: Duration = Duration::from_millis(10);

const WAYS: [Way; 2] = [Way::Sent, Way::Received];

/// What an engine is made with, besides the configuration.
pub struct Setup {
    /// Entropy for the session's id and challenge; never the same twice ([`Network::refresh`]).
    pub seed: [u8; 32],
    /// The group's keys; None works alone.
    pub keys: Option<Keyring>,
    /// The RTTs at which the kernel distinguishes new connections, ascending.
    pub rtt_resolution: Vec<Duration>,
    pub background: Background,
    /// Decide and explain, but ask for no change of a socket.
    pub dry_run: bool,
    /// What can put packets in order here.
    pub backends: Backends,
}

/// How background connections can be made to give way.
#[derive(Default)]
pub struct Background {
    /// The congestion control for it, as the kernel calls it; None: they keep theirs.
    pub control: Option<String>,
    /// Whether their receive windows can.
    pub receive_window: bool,
}

pub struct Network {
    policy: Box<dyn Allotment>,
    neighbourhood: Neighbourhood,
    /// Whether there is a key.
    cooperates: bool,
    flows: Flows,
    owners: Owners,
    classes: Classes,
    early: Early,
    forwarded: Cgroups,
    nice: Niceness,
    interface: Option<Interface>,
    sharing: Sharing,
    /// Connections of ours that have more to send than they may, as the neighbours were last told.
    wanting_told: usize,
    /// When a change of that was last told at once.
    demand_told: Duration,
    /// When everything was last decided upon, and whether the devices that send have changed since.
    decided: Duration,
    undecided: bool,
    /// The last table asked for.
    cap_new: (u32, Vec<u32>),
    rtt_resolution: Vec<Duration>,
    control: Control,
    dry_run: bool,
    /// Why nothing is in force for a while.
    paused: Option<String>,
    links: Links,
    /// Limits for what arrives.
    downloads: downlink::Downlink,
    /// And for what is sent by links without a queue.
    uploads: downlink::Downlink,
    shortfalls: Shortfalls,
    changes: Changes,
    refusals: VecDeque<Refusal>,
    /// What follows from the present step.
    actions: Vec<Action>,
    #[cfg(feature = "corpus")]
    recording: Option<crate::corpus::recorder::Recording>,
}

impl Network {
    pub fn new(now: Duration, config: &Config, setup: Setup) -> Self {
        let mut rng = ChaCha20Rng::from_seed(setup.seed);
        Self {
            #[cfg(feature = "corpus")]
            recording: crate::corpus::recorder::Recording::of_network(now, config, &setup, setup.seed),
            policy: crate::share::from_config(config),
            cooperates: setup.keys.is_some(),
            neighbourhood: Neighbourhood::new(now, &mut rng, setup.keys, PaceConfig::new(&config.group)),
            flows: Flows::default(),
            owners: Owners::default(),
            classes: Classes::new(&config.background),
            early: Early::default(),
            forwarded: Cgroups::default(),
            nice: Niceness::new(config.classes.cpu_and_disk, setup.backends.dry_run),
            interface: None,
            sharing: Sharing::default(),
            wanting_told: 0,
            demand_told: Duration::ZERO,
            decided: now,
            undecided: false,
            cap_new: (0, vec![0; setup.rtt_resolution.len()]),
            rtt_resolution: setup.rtt_resolution,
            control: Control::new(setup.background),
            dry_run: setup.dry_run,
            paused: None,
            downloads: downlink::Downlink::new(Way::Received, setup.backends.dry_run),
            uploads: downlink::Downlink::new(Way::Sent, setup.backends.dry_run),
            links: Links::new(config, setup.backends),
            shortfalls: Shortfalls::new(config),
            changes: Changes::default(),
            refusals: VecDeque::new(),
            actions: Vec::new(),
        }
    }

    /// Randomness from the kernel, drawn anew for the next step: sessions, challenges and nonces come of it, and what an
    /// engine has drawn before a copy of it may have as well. And how long this machine has slept in all.
    pub fn refresh(&mut self, random: [u8; 32], slept: Duration) {
        #[cfg(feature = "corpus")]
        let random = self
            .recording
            .as_mut()
            .map_or(random, |recording| recording.refreshed(slept));
        self.neighbourhood.refresh(random, slept);
    }

    /// Takes in one observation and returns what follows from it.
    pub fn step(&mut self, now: Duration, input: Input<'_>) -> Vec<Action> {
        #[cfg(feature = "corpus")]
        if let Some(recording) = &mut self.recording {
            recording.input(now, &input);
        }
        let is_pass = matches!(input, Input::Pass { .. });
        let decides = decides_at_once(&input);
        match input {
            Input::Interface(interface) => {
                if let Some(interface) = &interface {
                    self.neighbourhood.set_ip_header(interface.ip_header_bytes());
                }
                if interface != self.interface {
                    self.policy.forget();
                }
                self.interface = interface;
                self.limit_idle(now);
            }
            Input::Pass {
                flows,
                complete,
                queues,
            } => {
                let wanted = self.links.count(now, queues);
                self.ask_queues(now, wanted);
                let wanted = self.links.measure(now, &flows);
                self.ask_queues(now, wanted);
                self.observe(now, flows, complete);
            }
            Input::Datagrams(flows) => self.observe_datagrams(now, flows),
            Input::Events(events) => {
                self.undecided = true;
                for (cookie, event) in events {
                    self.flows.event(cookie, event);
                    if event == FlowEvent::Close {
                        self.end(cookie);
                    }
                }
            }
            Input::CappedAtConnect(new) => self.note_capped(now, new),
            Input::Outcomes(outcomes) => {
                for (cookie, setting, outcome) in outcomes {
                    self.conclude(now, cookie, &setting, outcome);
                }
            }
            Input::TakenOver(taken) => self.note_taken_over(now, taken),
            Input::Processes(listed) => {
                self.note_inherited(now, &listed);
                self.actions.extend(self.early.observe(listed, &mut self.nice));
                self.judge_processes();
                let due = self.nice.due(now);
                self.ask_nice(now, due);
            }
            Input::Forwarding(sending) => {
                let (ended, ask) = self.forwarded.observe(&sending);
                for path in ended {
                    self.changes.ended(&Subject::Cgroup { path: path.to_string() });
                }
                self.actions.extend(ask);
                self.judge_forwarded(now);
            }
            Input::Identified { processes, cgroups } => {
                self.forwarded.identified(&cgroups);
                self.judge_forwarded(now);
                if self.early.identified(&processes) {
                    self.judge_processes();
                }
                if self.owners.identified(processes, cgroups) {
                    self.judge_again(now);
                }
            }
            Input::Active(active) => self.classes.set_active(active),
            Input::Rules(rules) => self.set_rules(now, rules),
            Input::Chosen { process, choice } => self.follow_choice(now, process, choice),
            Input::ReadAgain => self.early.read_again(),
            Input::Niced { process, outcome } => self.conclude_nice(now, process, outcome),
            Input::NiceTaken(taken) => {
                for (process, tid, found) in taken {
                    self.note(now, nice::taken(process, tid, &found));
                }
            }
            Input::CommandLimits(limits) => self.set_command_limits(now, limits),
            Input::Devices(devices) => self.follow_devices(now, devices),
            Input::Subnets(subnets) => self.links.follow_subnets(subnets),
            Input::Traced(traced) => self.note_traced(now, traced),
            Input::Elsewhere(elsewhere) => self.note_elsewhere(now, elsewhere),
            Input::Uplinks(uplinks) => {
                let (changes, wanted) = self.links.observe(now, uplinks, self.ifindex());
                changes.into_iter().for_each(|change| self.note(now, change));
                self.ask_queues(now, wanted);
                self.follow_download_rates(now);
                self.note_past_deadlines(now);
            }
            Input::Arrivals { way, arrivals, counted } => {
                let detour = self.detour(way);
                let is_compared = way == Way::Received && counted.is_some();
                counted.into_iter().for_each(|counted| detour.count(now, counted));
                let wanted = detour.observe(now, arrivals);
                self.ask_detour(way, wanted);
                if is_compared {
                    self.compare_arriving(now);
                }
            }
            Input::Arrived(arrived) => {
                let available = self.downloads.balance(now, &arrived);
                let is_news = !available.is_empty();
                self.actions.extend(is_news.then_some(Action::Available(available)));
            }
            Input::DetourOutcome { way, outcome } => {
                let (changes, wanted) = self.detour(way).conclude(now, outcome);
                changes.into_iter().for_each(|change| self.note(now, change));
                self.ask_detour(way, wanted);
            }
            Input::DetourLost { way, why } => {
                let changes = self.detour(way).lost(now, why);
                changes.into_iter().for_each(|change| self.note(now, change));
            }
            Input::Ordered(on) => {
                let wanted = self.links.demand(now, &on);
                self.ask_queues(now, wanted);
            }
            Input::QueueOutcome { ifindex, outcome } => self.conclude_queue(now, ifindex, outcome),
            Input::Refusals(refusals) => self.note_refusals(refusals),
            Input::LinkRates(rates) => {
                let wanted = self.links.set_rates(now, rates);
                self.ask_queues(now, wanted);
                self.follow_download_rates(now);
            }
            Input::ByHand { all, why } => self.set_by_hand(now, all, &why),
            Input::Keys(keys) => {
                self.cooperates = keys.is_some();
                self.neighbourhood.set_keyring(keys);
            }
            Input::Datagram { from, bytes } => self.hear(now, from, bytes),
            Input::Filtered(filtered) => self.neighbourhood.filtered(now, filtered),
            Input::Pause(why) => self.pause(now, why),
            Input::Tick => {
                let wanted = self.links.try_again(now);
                self.ask_queues(now, wanted);
                for way in WAYS {
                    let wanted = self.detour(way).try_again(now);
                    self.ask_detour(way, wanted);
                }
                self.expire(now);
                self.report(now);
            }
        }
        if decides || (self.undecided && now.saturating_sub(self.decided) >= DECISION_GAP) {
            self.decide(now, is_pass);
        }
        #[cfg(feature = "corpus")]
        if let Some(recording) = &mut self.recording {
            recording.actions(&self.actions);
        }
        std::mem::take(&mut self.actions)
    }

    /// When [`Input::Tick`] is next worth sending; None while only inputs matter.
    pub fn next_deadline(&self) -> Option<Duration> {
        let decision = self.undecided.then(|| self.decided + DECISION_GAP);
        let deadlines = [
            decision,
            self.neighbourhood.next_deadline(),
            self.links.next_try(),
            self.downloads.next_try(),
            self.uploads.next_try(),
        ];
        deadlines.into_iter().flatten().min()
    }

    fn observe(&mut self, now: Duration, flows: Vec<Flow>, complete: bool) {
        // What lives for less than a pass is gone before it could be read: a stranger decides how many such there are.
        let lasting = |flow: &&Flow| complete || self.flows.get(flow.cookie).is_some();
        let lasting: Vec<&Flow> = flows.iter().filter(lasting).collect();
        let lasting_ones: Vec<Cookie> = lasting.iter().map(|flow| flow.cookie).collect();
        let datagrams = self.flows.iter().map(|tracked| &tracked.flow);
        let datagrams = datagrams.filter(|flow| complete && flow.protocol == Protocol::Udp);
        let owned: Vec<&Flow> = lasting.into_iter().chain(datagrams).collect();
        let unknown = self.owners.unknown(now, &owned, complete);
        self.identify(unknown);
        let seen = self.flows.observe(now, flows, complete.then_some(Protocol::Tcp));
        for cookie in seen.ended {
            self.end(cookie);
        }
        self.judge_seen(now, &lasting_ones);
        self.enforce(now, &lasting_ones);
        // In a dry run none of the limits is really there.
        if !self.dry_run {
            self.resolve_doubts(now, seen.doubtful);
        }
        if complete {
            self.limit_idle(now);
        }
    }

    /// Nothing of UDP is limited by its socket: it has a class, which the queue is told.
    fn observe_datagrams(&mut self, now: Duration, flows: Vec<Flow>) {
        let unknown = self.owners.unknown(now, &flows.iter().collect::<Vec<_>>(), false);
        self.identify(unknown);
        let cookies: Vec<Cookie> = flows.iter().map(|flow| flow.cookie).collect();
        let seen = self.flows.observe(now, flows, Some(Protocol::Udp));
        for cookie in seen.ended {
            self.end(cookie);
        }
        self.judge_seen(now, &cookies);
        self.enforce(now, &cookies);
    }

    fn identify(&mut self, unknown: Option<Unidentified>) {
        let asked = unknown.map(|Unidentified { processes, cgroups }| Action::Identify { processes, cgroups });
        self.actions.extend(asked);
    }

    fn end(&mut self, cookie: Cookie) {
        self.changes.ended(&Subject::Socket { cookie });
        self.actions.extend(self.classes.end(cookie));
        self.shortfalls.end(cookie);
    }

    fn hear(&mut self, now: Duration, from: IpAddr, bytes: &[u8]) {
        // Refusals are counted where they are found; nothing follows from them.
        let Ok(heard) = self.neighbourhood.receive(now, from, bytes) else {
            return;
        };
        if let Heard::Joined | Heard::Left = heard {
            self.actions.push(Action::Record(What::Neighbour {
                address: from,
                present: heard == Heard::Joined,
                expired: false,
            }));
        }
        self.undecided |= self.devices(self.sharing.connections) != self.sharing.devices;
    }

    fn expire(&mut self, now: Duration) {
        for address in self.neighbourhood.expire(now) {
            self.undecided = true;
            self.actions.push(Action::Record(What::Neighbour {
                address,
                present: false,
                expired: true,
            }));
        }
    }

    /// Brings everything up to date that depends on the devices that share the air.
    fn decide(&mut self, now: Duration, is_pass: bool) {
        self.expire(now);
        (self.decided, self.undecided) = (now, false);
        self.count_senders(now);
        match is_pass && self.paused.is_some() {
            // What was put off, or came after the pause.
            true => self.withdraw(now),
            false => self.limit_senders(now, is_pass),
        }
        self.limit_new_connections();
        self.report(now);
    }

    /// Reports that are due. What does not fit into one is not even looked at.
    fn report(&mut self, now: Duration) {
        let demand = self.policy.demand();
        let told = self.own_senders().map(|tracked| describe(tracked, demand));
        let senders: Vec<Sender> = told.take(MAX_SENDERS).collect();
        while let Some(report) = self.neighbourhood.poll_report(now, &senders) {
            if report.to.is_none() {
                self.wanting_told = self.wanting();
            }
            self.actions.push(Action::Report(report));
        }
    }

    fn ifindex(&self) -> Option<u32> {
        self.interface.as_ref().map(|interface| interface.index)
    }

    fn own_senders(&self) -> impl Iterator<Item = &Tracked> {
        self.ifindex()
            .into_iter()
            .flat_map(|ifindex| self.flows.senders(ifindex))
    }

    /// Connections of ours that have more to send than they may, of those that a report has room for.
    fn wanting(&self) -> usize {
        let told = self.own_senders().take(MAX_SENDERS);
        told.filter(|tracked| tracked.wants_more).count()
    }

    fn link(&self) -> Link<'_> {
        link(&self.neighbourhood, self.sharing, &self.links, self.ifindex())
    }

    /// Those that send, this one with so many connections.
    fn devices(&self, connections: u32) -> u32 {
        self.neighbourhood.sending_devices() as u32 + u32::from(connections > 0)
    }

    fn count_senders(&mut self, now: Duration) {
        let connections = self.own_senders().count() as u32;
        let before = self.sharing;
        let devices = self.devices(connections);
        self.sharing = Sharing { devices, connections };
        // It takes of what starts may take of the air: seldom, and not where nobody goes by it.
        let is_time = now.saturating_sub(self.demand_told) >= BETWEEN_DEMANDS;
        let is_other = self.policy.shares_by_demand() && is_time && self.wanting() != self.wanting_told;
        if connections == 0 && before.connections > 0 {
            self.neighbourhood.sender_stopped(now);
        } else if connections > before.connections {
            self.neighbourhood.sender_started(now);
        } else if is_other && connections > 0 {
            self.demand_told = now;
            self.neighbourhood.demand_changed(now);
        }
        if self.sharing != before {
            self.actions
                .push(Action::Record(What::Senders { devices, connections }));
        }
    }

    fn note(&mut self, now: Duration, change: Change) {
        self.changes.note(now, change.clone());
        self.actions.push(Action::Record(What::Change(Box::new(change))));
    }

    fn ask_queues(&mut self, now: Duration, wanted: Vec<LinkRequest>) {
        for LinkRequest { ifindex, name, request } in wanted {
            match self.links.dry_run() {
                true => self.conclude_queue(now, ifindex, Ok(())),
                false => self.actions.push(Action::Queue { ifindex, name, request }),
            }
        }
    }

    fn conclude_queue(&mut self, now: Duration, ifindex: u32, outcome: Result<(), String>) {
        let (change, wanted) = self.links.conclude(now, ifindex, outcome);
        if let Some(change) = change {
            self.note(now, change);
        }
        self.ask_queues(now, wanted.into_iter().collect());
    }

    fn judge_processes(&mut self) {
        self.actions.extend(self.early.judge(&self.classes, &mut self.nice));
    }

    fn judge_forwarded(&mut self, now: Duration) {
        let (actions, changes) = self.forwarded.judge(&self.classes);
        self.actions.extend(actions);
        changes.into_iter().for_each(|change| self.note(now, change));
    }

    /// Those that are shown for the first time with what they have from what started them.
    fn note_inherited(&mut self, now: Duration, listed: &[Fingerprint]) {
        for (id, is) in self.early.newly_nice(listed) {
            if let Some(change) = self.nice.inherited(id, is) {
                self.note(now, change);
            }
        }
    }

    /// Whether the managed links' ways are to be looked at: now and then, and at once.
    pub fn wants_arrivals(&self) -> bool {
        self.downloads.is_wanted() || self.uploads.is_wanted()
    }

    pub fn misses_arrivals(&self) -> bool {
        self.downloads.misses_arrivals() || self.uploads.misses_arrivals()
    }

    /// When what has come by links is to be looked at.
    pub fn next_look_at_arrived(&self) -> Option<Duration> {
        self.downloads.next_look()
    }

    fn follow_download_rates(&mut self, now: Duration) {
        let rates = self.links.download_rates();
        self.tell_by_marks(now, !rates.is_empty());
        let wanted = self.downloads.follow_rates(rates);
        self.ask_detour(Way::Received, wanted);
    }

    fn detour(&mut self, way: Way) -> &mut downlink::Downlink {
        match way {
            Way::Sent => &mut self.uploads,
            Way::Received => &mut self.downloads,
        }
    }

    fn ask_detour(&mut self, way: Way, wanted: Option<Option<downlink::Plan>>) {
        self.actions.extend(wanted.map(|plan| Action::Detour { way, plan }));
    }

    fn follow_choice(&mut self, now: Duration, process: ProcessId, choice: Choice) {
        let of = Process {
            uid: choice.uid,
            ..Process::default()
        };
        let limits = choice.limit.map(|limit| limit.rates.numbered(limit.number));
        let treatment = Treatment {
            class: choice.class.unwrap_or_default(),
            limits: limits.unwrap_or_default(),
        };
        // What it connects at once has it, too.
        self.actions.push(self.early.chosen(process, treatment));
        let Some(verdict) = of_choice(choice) else { return };
        let ask = self.nice.chosen(process, &of, &verdict);
        self.ask_nice(now, ask);
    }

    fn ask_nice(&mut self, now: Duration, actions: impl IntoIterator<Item = Action>) {
        for action in actions {
            match action {
                Action::Nice { process, .. } if self.nice.dry_run => {
                    self.conclude_nice(now, process, Ok(Niced::default()));
                }
                action => self.actions.push(action),
            }
        }
    }

    fn conclude_nice(&mut self, now: Duration, process: ProcessId, outcome: Result<Niced, String>) {
        if let Some(change) = self.nice.conclude(now, process, outcome) {
            self.note(now, change);
        }
    }

    fn note_refusals(&mut self, refusals: Vec<Refusal>) {
        for refusal in refusals {
            if self.refusals.len() == REFUSALS_KEPT {
                self.refusals.pop_front();
            }
            self.refusals.push_back(refusal.clone());
            self.actions.push(Action::Record(What::Refusal(refusal)));
        }
    }

    /// The last report to the neighbours: this device leaves. Worth sending more than once.
    pub fn farewell(&mut self, now: Duration) -> Option<Vec<u8>> {
        self.neighbourhood.farewell(now)
    }
}

fn link<'a>(neighbours: &'a Neighbourhood, sharing: Sharing, links: &'a Links, ifindex: Option<u32>) -> Link<'a> {
    Link {
        sharing,
        neighbours,
        queue: ifindex.and_then(|ifindex| links.counters(ifindex)),
    }
}

/// After which of them everything is decided anew at once. What happens to sockets, and what changes among the neighbours, is
/// followed at most once in [`DECISION_GAP`]. No other input costs a decision: neither what becomes of giveway's own actions, nor
/// what a user asks for, nor what anyone on the link sends; what follows from those waits for the next pass.
fn decides_at_once(input: &Input<'_>) -> bool {
    matches!(input, Input::Interface(_) | Input::Pass { .. } | Input::Pause(_))
}

/// A sender as it is reported to the neighbours.
fn describe(tracked: &Tracked, demand: Option<f64>) -> Sender {
    let flow = &tracked.flow;
    let small = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    Sender {
        cwnd_segments: flow.cwnd,
        min_rtt_us: flow.min_rtt_us.unwrap_or(flow.srtt_us),
        srtt_us: flow.srtt_us,
        queue_bytes: small(flow.unsent_bytes + flow.unacked_bytes),
        ca_state: flow.ca_state,
        delivery_rate_kbit: small(flow.delivery_rate_bytes_per_s / 125),
        retransmits: flow.retransmits,
        class: tracked.class,
        demand_kbit: demand.map_or(UNLIMITED_KBIT, |rate| (rate / 125.0) as u32),
    }
}

/// The process and the far end, for people.
fn name_of(flow: &Flow) -> String {
    let remote = flow.shown_remote();
    match &flow.owner {
        Some(owner) => format!("{} ({}) to {remote}", owner.command, owner.pid),
        None => format!("to {remote}"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
