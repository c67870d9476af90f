// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The network engine: which subject gets which input, in which order, and whether a decision follows. Decides nothing
//! by itself: that belongs to the subjects.
//!
//! Input: one [`Input`] and the time (since any fixed origin; CLOCK_MONOTONIC in the daemon). Output: the resulting
//! [`Action`]s. The caller carries them out and reports back; nothing is retried without that.
//!
//! The consequences of one subject's result for the others are in [`routes`], queries of the present state in
//! [`queries`] and [`view`].

use std::collections::VecDeque;
use std::time::Duration;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::background::nice::{self, Niceness};
use crate::background::{Background, Means};
use crate::change::Changes;
use crate::class::flows::Classes;
use crate::class::forwarded::Cgroups;
use crate::class::processes::Processes;
use crate::config::Config;
use crate::downlink::{Downlink, Way};
use crate::enforcement::deadlines::PastDeadlines;
use crate::enforcement::elsewhere::AllElsewhere;
use crate::enforcement::shortfalls::Shortfalls;
use crate::model::Interface;
use crate::peers::{Keyring, PaceConfig, PeerGroup};
use crate::queue::Backends;
use crate::queue::links::Links;
use crate::queue::traffic::Refusal;
use crate::share::limiter::Limiter;
use crate::sockets::flows::Flows;
use crate::sockets::owners::Owners;
use crate::{class, downlink, enforcement, peers, queue, sockets};
use action::{Action, Input};

pub mod action;
mod queries;
mod routes;
mod view;

/// Between two decisions caused by peers or socket events: it bounds their cost, however many reports arrive and
/// however many connections a user opens and closes.
const DECISION_GAP: Duration = Duration::from_millis(10);

const WAYS: [Way; 2] = [Way::Sent, Way::Received];

/// The parameters of an engine besides the configuration.
pub struct Setup {
    /// Entropy for the session's id and challenge; never reused ([`Network::refresh`]).
    pub seed: [u8; 32],
    /// The group's keys; None: no group.
    pub keys: Option<Keyring>,
    /// The RTTs at which the kernel distinguishes new connections, ascending.
    pub rtt_resolution: Vec<Duration>,
    pub background: Means,
    /// Decide and explain, but change no socket.
    pub dry_run: bool,
    /// The available queue backends.
    pub backends: Backends,
}

pub struct Network {
    interface: Option<Interface>,
    flows: Flows,
    owners: Owners,
    classes: Classes,
    processes: Processes,
    forwarded: Cgroups,
    limiter: Limiter,
    background: Background,
    nice: Niceness,
    peer_group: PeerGroup,
    /// Whether there is a key.
    cooperates: bool,
    links: Links,
    /// Limits for downloads.
    downloads: Downlink,
    /// And for uploads.
    uploads: Downlink,
    shortfalls: Shortfalls,
    elsewhere: AllElsewhere,
    past_deadlines: PastDeadlines,
    /// The time of the latest full decision, and whether the sending devices have changed since.
    decided: Duration,
    undecided: bool,
    /// Why everything is suspended for a while.
    paused: Option<String>,
    dry_run: bool,
    changes: Changes,
    refusals: VecDeque<Refusal>,
    /// The actions of the present step.
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
            interface: None,
            flows: Flows::default(),
            owners: Owners::default(),
            classes: Classes::new(&config.background),
            processes: Processes::default(),
            forwarded: Cgroups::default(),
            limiter: Limiter::new(crate::share::from_config(config), setup.rtt_resolution),
            background: Background::new(setup.background),
            nice: Niceness::new(config.classes.cpu_and_disk, setup.backends.dry_run),
            cooperates: setup.keys.is_some(),
            peer_group: PeerGroup::new(now, &mut rng, setup.keys, PaceConfig::new(&config.group)),
            downloads: Downlink::new(Way::Received, setup.backends.dry_run),
            uploads: Downlink::new(Way::Sent, setup.backends.dry_run),
            links: Links::new(config, setup.backends),
            shortfalls: Shortfalls::default(),
            elsewhere: AllElsewhere::default(),
            past_deadlines: PastDeadlines::new(config),
            decided: now,
            undecided: false,
            paused: None,
            dry_run: setup.dry_run,
            changes: Changes::default(),
            refusals: VecDeque::new(),
            actions: Vec::new(),
        }
    }

    /// Fresh randomness from the kernel for the next step: sessions, challenges and nonces derive from it, and a copy
    /// of this machine may have the engine's earlier randomness. With the total time that this machine has slept.
    pub fn refresh(&mut self, random: [u8; 32], slept: Duration) {
        #[cfg(feature = "corpus")]
        let random = self
            .recording
            .as_mut()
            .map_or(random, |recording| recording.refreshed(slept));
        self.peer_group.refresh(random, slept);
    }

    /// Takes in one observation and returns the resulting actions.
    pub fn step(&mut self, now: Duration, input: Input<'_>) -> Vec<Action> {
        #[cfg(feature = "corpus")]
        if let Some(recording) = &mut self.recording {
            recording.input(now, &input);
        }
        let is_poll = matches!(input, Input::Poll { .. });
        let decides = decides_at_once(&input);
        self.route(now, input);
        if decides || (self.undecided && now.saturating_sub(self.decided) >= DECISION_GAP) {
            self.decide(now, is_poll);
        }
        #[cfg(feature = "corpus")]
        if let Some(recording) = &mut self.recording {
            recording.actions(&self.actions);
        }
        std::mem::take(&mut self.actions)
    }

    /// The subjects that get it, in this order.
    // Long: an arm an input.
    fn route(&mut self, now: Duration, input: Input<'_>) {
        match input {
            // The shared link, and everything at once.
            Input::Interface(interface) => self.follow_interface(now, interface),
            Input::Pause(reason) => self.pause(now, reason),
            Input::Tick => self.tick(now),

            // Sockets: known, owned, classified, then enforced and limited.
            Input::Poll {
                flows,
                complete,
                queues,
            } => {
                self.count_queues(now, queues, &flows);
                self.observe(now, flows, complete);
            }
            Input::Sockets(sockets::Input::Datagrams(flows)) => self.observe_datagrams(now, flows),
            Input::Sockets(sockets::Input::Events(events)) => self.follow_events(events),
            Input::Sockets(sockets::Input::CappedAtConnect(new)) => self.note_capped(now, new),
            Input::Sockets(sockets::Input::Outcomes(outcomes)) => self.conclude_settings(now, outcomes),
            Input::Sockets(sockets::Input::TakenOver(taken)) => self.note_taken_over(now, taken),

            // Classes: of processes, of forwarded traffic, then of flows.
            Input::Class(class::Input::Processes(listed)) => self.observe_processes(now, listed),
            Input::Class(class::Input::Forwarding(sending)) => self.observe_forwarded(now, &sending),
            Input::Identified { processes, cgroups } => self.identify(now, processes, cgroups),
            Input::Class(class::Input::Active(active)) => self.classes.set_active(active),
            Input::Class(class::Input::Rules(rules)) => self.set_rules(now, rules),
            Input::Class(class::Input::CommandLimits(limits)) => self.set_command_limits(now, limits),
            Input::Class(class::Input::ByHand { all, reason }) => self.set_by_hand(now, all, &reason),
            Input::Class(class::Input::Chosen { process, choice }) => self.follow_choice(now, process, choice),
            Input::Class(class::Input::ReadAgain) => self.processes.read_again(),
            Input::Class(class::Input::Devices(devices)) => self.follow_devices(now, devices),

            // CPU and disk priority of background processes.
            Input::Nice(nice::Input::Outcome { process, outcome }) => self.conclude_nice(now, process, outcome),
            Input::Nice(nice::Input::Taken(taken)) => self.note_nice_taken(now, taken),

            // Queues: links, counters, outcomes.
            Input::Queue(queue::Input::Uplinks(uplinks)) => self.follow_uplinks(now, uplinks),
            Input::Queue(queue::Input::Rates(rates)) => self.set_link_rates(now, rates),
            Input::Queue(queue::Input::Subnets(subnets)) => self.links.follow_subnets(subnets),
            Input::Queue(queue::Input::Ordered(waiting)) => self.demand_queues(now, &waiting),
            Input::Queue(queue::Input::Outcome { ifindex, outcome }) => self.conclude_queue(now, ifindex, outcome),
            Input::Queue(queue::Input::Refusals(refusals)) => self.note_refusals(refusals),

            // Download order and limits, and upload limits.
            Input::Downlink(downlink::Input::Arrivals { way, arrivals, counted }) => {
                self.observe_arrivals(now, way, arrivals, counted)
            }
            Input::Downlink(downlink::Input::Arrived(arrived)) => self.balance(now, &arrived),
            Input::Downlink(downlink::Input::Outcome { way, outcome }) => self.conclude_detour(now, way, outcome),
            Input::Downlink(downlink::Input::Lost { way, reason }) => self.lose_detour(now, way, reason),

            // Shortfalls of enforcement.
            Input::Enforcement(enforcement::Input::Traced(traced)) => self.note_traced(now, &traced),
            Input::Enforcement(enforcement::Input::Elsewhere(elsewhere)) => self.note_elsewhere(now, elsewhere),

            // Peers.
            Input::Peers(peers::Input::Keys(keys)) => self.set_keys(keys),
            Input::Peers(peers::Input::Datagram { from, bytes }) => self.hear(now, from, bytes),
            Input::Peers(peers::Input::Filtered(filtered)) => self.peer_group.filtered(now, filtered),
        }
    }

    /// When [`Input::Tick`] is next due; None: only other inputs matter.
    pub fn next_deadline(&self) -> Option<Duration> {
        let decision = self.undecided.then(|| self.decided + DECISION_GAP);
        let deadlines = [
            decision,
            self.peer_group.next_deadline(),
            self.links.next_try(),
            self.downloads.next_try(),
            self.uploads.next_try(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// The last report to the peers: this device leaves. Worth repeating.
    pub fn farewell(&mut self, now: Duration) -> Option<Vec<u8>> {
        self.peer_group.farewell(now)
    }
}

/// The inputs after which everything is decided at once. Socket events and changes among the peers are followed at most
/// once in [`DECISION_GAP`]. No other input costs a decision, neither the outcome of giveway's own actions, nor a
/// user's request, nor anything sent on the link: its consequences wait for the next poll.
fn decides_at_once(input: &Input<'_>) -> bool {
    matches!(input, Input::Interface(_) | Input::Poll { .. } | Input::Pause(_))
}

#[cfg(test)]
pub(crate) mod tests;
