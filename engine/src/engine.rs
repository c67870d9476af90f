// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device: what it knows, and [`Engine::step`], the only way to tell it more.
//!
//! In: one [`Input`] and the time (since any fixed origin; CLOCK_MONOTONIC in the daemon). Out: the
//! [`Action`]s that follow. The caller carries them out and reports back; nothing is retried behind its back.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use crate::action::{Action, CapOutcome, Input};
use crate::caps;
use crate::config::{Config, Group};
use crate::flows::{Flows, Tracked};
use crate::model::{Cookie, Flow};
use crate::policy::{self, CapPolicy, Sharing};
use crate::queue::traffic::Refusal;
use crate::queue::{Backends, Plan, Queue, QueueChange};
use crate::record::{CapChange, What};
use crate::snapshot::{ChangeView, FlowView, NeighbourView, PolicyView, QueueChangeView, ReportView, Snapshot};
use crate::wire::{Class, Direction, Heard, Keyring, Neighbourhood, PaceConfig, Sender, UNLIMITED_KBIT};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

/// So many changes are kept for `why`.
const CHANGES_KEPT: usize = 256;
/// The latest refusals, for the same.
const REFUSALS_KEPT: usize = 64;

/// Why a cap was lifted that a policy would have kept.
const ELSEWHERE: &str = "the connection no longer leaves by the managed interface";

/// What an engine is made with, besides the configuration.
pub struct Setup {
    /// Entropy for the session's id, challenge and nonces; never the same twice.
    pub seed: [u8; 32],
    /// The group's keys; None works alone.
    pub keys: Option<Keyring>,
    /// The RTTs at which the kernel distinguishes new connections, ascending.
    pub rtt_resolution: Vec<Duration>,
    /// Decide and explain, but ask for no change of a socket.
    pub dry_run: bool,
    /// What can put packets in order here.
    pub backends: Backends,
}

pub struct Engine {
    policy: Box<dyn CapPolicy>,
    neighbourhood: Neighbourhood,
    /// Whether there is a key.
    cooperates: bool,
    flows: Flows,
    ifindex: Option<u32>,
    sharing: Sharing,
    /// The last table asked for.
    cap_new: (u32, Vec<u32>),
    rtt_resolution: Vec<Duration>,
    dry_run: bool,
    changes: VecDeque<ChangeView>,
    queue: Queue,
    queue_changes: VecDeque<QueueChangeView>,
    refusals: VecDeque<Refusal>,
}

impl Engine {
    pub fn new(now: Duration, config: &Config, setup: Setup) -> Self {
        let mut rng = ChaCha20Rng::from_seed(setup.seed);
        Self {
            policy: policy::from_config(&config.cap),
            cooperates: setup.keys.is_some(),
            neighbourhood: Neighbourhood::new(now, &mut rng, setup.keys, pace(&config.group)),
            flows: Flows::default(),
            ifindex: None,
            sharing: Sharing {
                devices: 0,
                connections: 0,
            },
            cap_new: (0, vec![0; setup.rtt_resolution.len()]),
            rtt_resolution: setup.rtt_resolution,
            dry_run: setup.dry_run,
            changes: VecDeque::new(),
            queue: Queue::new(config.link.clone(), config.queue.clone(), setup.backends),
            queue_changes: VecDeque::new(),
            refusals: VecDeque::new(),
        }
    }

    /// Takes in one observation and says what follows from it.
    pub fn step(&mut self, now: Duration, input: Input<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut pass = false;
        match input {
            Input::Interface(link) => {
                self.ifindex = link.map(|link| link.ifindex);
                if let Some(link) = link {
                    self.neighbourhood.set_ip_header(link.ip_header_bytes);
                }
                self.tend_idle(now, &mut actions);
            }
            Input::Pass { flows, complete } => {
                pass = true;
                self.observe(now, flows, complete, &mut actions);
                if complete {
                    self.tend_idle(now, &mut actions);
                }
            }
            Input::Events(events) => events
                .into_iter()
                .for_each(|(cookie, event)| self.flows.event(cookie, event)),
            Input::CappedAtConnect(new) => {
                for (cookie, cap) in new {
                    self.flows.capped_at_connect(cookie, cap);
                    let why = format!("a new connection; {}", self.evidence(None));
                    self.note(now, self.change(cookie, None, Some(cap), why), &mut actions);
                }
            }
            Input::CapOutcomes(outcomes) => {
                for (cookie, outcome) in outcomes {
                    self.conclude(now, cookie, outcome, &mut actions);
                }
            }
            Input::Uplink(uplink) => {
                let wanted = self.queue.observe(uplink);
                self.ask_queue(now, wanted, &mut actions);
            }
            Input::QueueOutcome(outcome) => self.conclude_queue(now, outcome, &mut actions),
            Input::Refusals(refusals) => self.note_refusals(refusals, &mut actions),
            Input::Keys(keys) => {
                self.cooperates = keys.is_some();
                self.neighbourhood.set_keyring(keys);
            }
            Input::Datagram { from, bytes } => self.hear(now, from, bytes, &mut actions),
            Input::Tick => self.flows.expire(now),
        }
        self.decide(now, pass, &mut actions);
        actions
    }

    /// When [`Input::Tick`] is next worth sending; None while only inputs matter.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.neighbourhood.next_deadline()
    }

    fn observe(&mut self, now: Duration, flows: Vec<Flow>, complete: bool, actions: &mut Vec<Action>) {
        let doubtful = self.flows.observe(now, flows, complete);
        if self.dry_run {
            // None of the caps is really there.
            return;
        }
        for cookie in doubtful {
            let Some(tracked) = self.flows.get_mut(cookie) else {
                continue;
            };
            if tracked.flow.clamp.is_none() {
                tracked.stepped_back = true;
                self.step_back(now, cookie, None, actions);
            } else if !tracked.deferred {
                // Only the kernel remembers whose this clamp is: it refuses if it is not ours.
                let wish = tracked.wanted.map_or(tracked.cap, |(_, wanted)| wanted);
                tracked.asked = Some(wish);
                self.ask(now, vec![(cookie, wish)], actions);
            }
        }
    }

    fn conclude(&mut self, now: Duration, cookie: Cookie, outcome: CapOutcome, actions: &mut Vec<Action>) {
        let why = self.evidence(self.flows.get(cookie));
        let Some(tracked) = self.flows.get_mut(cookie) else {
            return;
        };
        let Some(asked) = tracked.asked.take() else { return };
        let old = tracked.cap;
        match outcome {
            CapOutcome::Applied => {
                tracked.cap = asked;
                let stray = Some(tracked.flow.ifindex) != self.ifindex;
                let why = if stray { ELSEWHERE.to_owned() } else { why };
                self.note(now, self.change(cookie, old, asked, why), actions);
            }
            CapOutcome::Deferred => tracked.deferred = true,
            CapOutcome::Gone => self.flows.forget(cookie),
            CapOutcome::Foreign { clamp } => {
                tracked.stepped_back = true;
                self.step_back(now, cookie, clamp, actions);
            }
            CapOutcome::Failed { errno } => {
                tracked.stepped_back = true;
                let why = format!("the kernel refused the cap (errno {errno}); this socket is left alone");
                self.note(now, self.change(cookie, old, old, why), actions);
            }
        }
    }

    fn hear(&mut self, now: Duration, from: IpAddr, bytes: &[u8], actions: &mut Vec<Action>) {
        // Refusals are counted where they are found; nothing follows from them.
        let present = match self.neighbourhood.receive(now, from, bytes) {
            Ok(Heard::Joined) => true,
            Ok(Heard::Left) => false,
            Ok(Heard::Started | Heard::Stopped | Heard::Updated) | Err(_) => return,
        };
        actions.push(Action::Record(What::Neighbour {
            address: from,
            present,
            expired: false,
        }));
    }

    /// Brings everything that depends on who shares the air up to date.
    fn decide(&mut self, now: Duration, pass: bool, actions: &mut Vec<Action>) {
        for gone in self.neighbourhood.expire(now) {
            actions.push(Action::Record(What::Neighbour {
                address: gone.address,
                present: false,
                expired: true,
            }));
        }
        self.count_senders(now, actions);
        self.cap_senders(now, pass, actions);
        self.cap_new_connections(actions);
        let senders: Vec<Sender> = self.own_senders().map(|t| describe(&t.flow)).collect();
        while let Some(report) = self.neighbourhood.poll_report(now, &senders) {
            actions.push(Action::Report(report));
        }
    }

    fn own_senders(&self) -> impl Iterator<Item = &Tracked> {
        self.flows
            .senders(self.ifindex.unwrap_or(0))
            .filter(|_| self.ifindex.is_some())
    }

    fn count_senders(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let connections = self.own_senders().count() as u32;
        let before = self.sharing;
        let devices = self.neighbourhood.sending_devices() as u32 + u32::from(connections > 0);
        self.sharing = Sharing { devices, connections };
        if connections > before.connections {
            self.neighbourhood.sender_started(now);
        } else if connections == 0 && before.connections > 0 {
            self.neighbourhood.sender_stopped(now);
        }
        if self.sharing != before {
            actions.push(Action::Record(What::Senders { devices, connections }));
        }
    }

    fn cap_senders(&mut self, now: Duration, pass: bool, actions: &mut Vec<Action>) {
        let Some(ifindex) = self.ifindex else { return };
        let senders: Vec<Cookie> = self.flows.senders(ifindex).map(|t| t.flow.cookie).collect();
        let mut decided = Vec::new();
        for cookie in senders {
            let Some(tracked) = self.flows.get_mut(cookie) else {
                continue;
            };
            let Some(rtt) = tracked.rtt() else { continue };
            let waits = tracked.asked.is_some() || tracked.deferred || !tracked.flow.ca_state.tolerates_clamp_write();
            if tracked.stepped_back || waits {
                continue;
            }
            let wanted = caps::settle(tracked.wanted, self.sharing, self.policy.cap(self.sharing, rtt));
            tracked.wanted = Some((self.sharing, wanted));
            if let Some(cap) = caps::next(tracked.cap, wanted, pass, tracked.flow.cwnd) {
                tracked.asked = Some(cap);
                decided.push((cookie, cap));
            }
        }
        self.ask(now, decided, actions);
    }

    /// Caps that are left over from busier times: of connections that no longer leave by the managed interface they
    /// are lifted, of those that have nothing to send now they are raised to what a new one would get.
    fn tend_idle(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let one_more = self.one_more();
        let mut decided = Vec::new();
        for tracked in self.flows.iter_mut() {
            let (Some(cap), Some(rtt)) = (tracked.cap, tracked.rtt()) else {
                continue;
            };
            if tracked.stepped_back || tracked.asked.is_some() || tracked.deferred {
                continue;
            }
            // 0: no route is chosen at the moment, which says nothing.
            let is_elsewhere = ![Some(0), self.ifindex].contains(&Some(tracked.flow.ifindex));
            let wish = if is_elsewhere {
                None
            } else {
                self.policy.cap(one_more, rtt)
            };
            if is_elsewhere || (!tracked.sending && wish.is_none_or(|wish| wish > cap)) {
                tracked.asked = Some(wish);
                decided.push((tracked.flow.cookie, wish));
            }
        }
        self.ask(now, decided, actions);
    }

    /// What the shares would be with one more connection of this device that sends.
    fn one_more(&self) -> Sharing {
        let others = self.sharing.devices - u32::from(self.sharing.connections > 0);
        Sharing {
            devices: others + 1,
            connections: self.sharing.connections + 1,
        }
    }

    fn ask(&mut self, now: Duration, caps: Vec<(Cookie, Option<u32>)>, actions: &mut Vec<Action>) {
        for (cookie, cap) in caps {
            if self.dry_run {
                self.conclude(now, cookie, CapOutcome::Applied, actions);
            } else {
                actions.push(Action::Cap { cookie, cap });
            }
        }
    }

    /// The table for connections yet to come.
    fn cap_new_connections(&mut self, actions: &mut Vec<Action>) {
        let one_more = self.one_more();
        let cap = |rtt: &Duration| self.ifindex.and_then(|_| self.policy.cap(one_more, *rtt)).unwrap_or(0);
        let caps: Vec<u32> = self.rtt_resolution.iter().map(cap).collect();
        let ifindex = self.ifindex.filter(|_| caps.iter().any(|cap| *cap > 0)).unwrap_or(0);
        let table = (ifindex, caps);
        if table != self.cap_new && !self.dry_run {
            self.cap_new.clone_from(&table);
            let (ifindex, caps) = table;
            actions.push(Action::CapNew { ifindex, caps });
        }
    }

    fn step_back(&mut self, now: Duration, cookie: Cookie, clamp: Option<u32>, actions: &mut Vec<Action>) {
        let old = self.flows.get(cookie).and_then(|t| t.cap);
        let found = clamp.map_or("no clamp".to_owned(), |c| format!("a clamp of {c} segments"));
        let why = format!("another tool has set {found} on this socket; giveway leaves it alone from now on");
        self.note(now, self.change(cookie, old, clamp, why), actions);
    }

    fn evidence(&self, tracked: Option<&Tracked>) -> String {
        let rtt = tracked.and_then(Tracked::rtt).unwrap_or_default();
        self.policy.reason(self.sharing, rtt)
    }

    fn change(&self, cookie: Cookie, old: Option<u32>, new: Option<u32>, why: String) -> CapChange {
        CapChange {
            cookie,
            old,
            new,
            rule: self.policy.name().to_owned(),
            why,
            made: !self.dry_run,
        }
    }

    fn note(&mut self, now: Duration, change: CapChange, actions: &mut Vec<Action>) {
        if self.changes.len() == CHANGES_KEPT {
            self.changes.pop_front();
        }
        self.changes.push_back(ChangeView {
            t_ns: now.as_nanos() as u64,
            change: change.clone(),
        });
        actions.push(Action::Record(What::Cap(change)));
    }

    fn ask_queue(&mut self, now: Duration, wanted: Option<Option<Plan>>, actions: &mut Vec<Action>) {
        match wanted {
            Some(_) if self.queue.dry_run() => self.conclude_queue(now, Ok(()), actions),
            Some(plan) => actions.push(Action::Queue(plan)),
            None => {}
        }
    }

    fn conclude_queue(&mut self, now: Duration, outcome: Result<(), String>, actions: &mut Vec<Action>) {
        let (change, wanted) = self.queue.conclude(outcome);
        if let Some(change) = change {
            self.note_queue(now, change, actions);
        }
        self.ask_queue(now, wanted, actions);
    }

    fn note_queue(&mut self, now: Duration, change: QueueChange, actions: &mut Vec<Action>) {
        if self.queue_changes.len() == CHANGES_KEPT {
            self.queue_changes.pop_front();
        }
        self.queue_changes.push_back(QueueChangeView {
            t_ns: now.as_nanos() as u64,
            change: change.clone(),
        });
        actions.push(Action::Record(What::Queue(change)));
    }

    fn note_refusals(&mut self, refusals: Vec<Refusal>, actions: &mut Vec<Action>) {
        let kept = refusals.len().saturating_sub(REFUSALS_KEPT);
        self.refusals.extend(refusals[kept..].iter().cloned());
        let surplus = self.refusals.len().saturating_sub(REFUSALS_KEPT);
        self.refusals.drain(..surplus);
        actions.extend(
            refusals
                .into_iter()
                .map(|refusal| Action::Record(What::Refusal(refusal))),
        );
    }

    /// The last words to the neighbours: this device leaves. Worth sending more than once.
    pub fn farewell(&mut self, now: Duration) -> Option<Vec<u8>> {
        self.neighbourhood.farewell(now)
    }

    pub fn snapshot(&self, now: Duration) -> Snapshot {
        let neighbours: Vec<NeighbourView> = self.neighbourhood.peers().map(NeighbourView::from).collect();
        Snapshot {
            policy: PolicyView {
                name: self.policy.name().to_owned(),
                senders: self.sharing.devices,
                connections: self.sharing.connections,
                cooperates: self.cooperates,
                dry_run: self.dry_run,
            },
            taken_t_ns: now.as_nanos() as u64,
            flows: self.flows.iter().map(view).collect(),
            neighbours,
            reports: ReportView {
                interval_ms: self.neighbourhood.interval().as_millis() as u64,
                airtime_percent: self.neighbourhood.airtime_percent(),
                counters: self.neighbourhood.counters(),
            },
            changes: self.changes.iter().cloned().collect(),
            queue: self.queue.view(),
            queue_changes: self.queue_changes.iter().cloned().collect(),
            refusals: self.refusals.iter().cloned().collect(),
        }
    }
}

fn pace(group: &Group) -> PaceConfig {
    PaceConfig {
        base_interval: Duration::from_millis(group.report_interval_ms.into()),
        airtime_percent: group.airtime_percent,
        basic_rate_mbit: group.basic_rate_mbit,
        ..PaceConfig::default()
    }
}

/// A sender as the neighbours are told of it.
fn describe(flow: &Flow) -> Sender {
    let small = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    Sender {
        cwnd_segments: flow.cwnd,
        min_rtt_us: flow.min_rtt_us.unwrap_or(flow.srtt_us),
        srtt_us: flow.srtt_us,
        queue_bytes: small(flow.unsent_bytes + flow.unacked_bytes),
        ca_state: flow.ca_state,
        delivery_rate_kbit: small(flow.delivery_rate_bytes_per_s / 125),
        retransmits: flow.retransmits,
        direction: Direction::Up,
        class: Class::Standard,
        // Its queue was never empty while it was watched, so it takes whatever it gets.
        demand_kbit: UNLIMITED_KBIT,
    }
}

fn view(tracked: &Tracked) -> FlowView {
    FlowView {
        flow: tracked.flow.clone(),
        cap: tracked.cap,
        sender: tracked.sending,
        stepped_back: tracked.stepped_back,
        cgroup: None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::action::Link;
    use crate::model::{CaState, FlowEvent, TcpState};

    const LINK: Link = Link {
        ifindex: 2,
        ip_header_bytes: 20,
    };
    const COOKIE: Cookie = Cookie(7);

    fn upload() -> Flow {
        let address: SocketAddr = (Ipv4Addr::LOCALHOST, 5201).into();
        Flow {
            cookie: COOKIE,
            local: address,
            remote: address,
            state: TcpState::Established,
            owner: None,
            cgroup_id: 1,
            ifindex: LINK.ifindex,
            cwnd: 100,
            clamp: None,
            ssthresh: None,
            mss_bytes: 1448,
            srtt_us: 100_000,
            min_rtt_us: Some(100_000),
            rttvar_us: 0,
            in_flight_bytes: 144_800,
            unsent_bytes: 100_000,
            unacked_bytes: 144_800,
            delivery_rate_bytes_per_s: 125_000,
            pacing_rate_bytes_per_s: None,
            retransmits: 0,
            ca_state: CaState::Open,
            congestion_control: "cubic".to_owned(),
        }
    }

    const CONSTANT: &str = "[cap]\nfixed_segments = 20";

    fn engine(config: &str, dry_run: bool) -> Engine {
        let config = Config::parse(config).expect("a configuration");
        let setup = Setup {
            seed: [1; 32],
            keys: None,
            rtt_resolution: vec![Duration::from_millis(1)],
            dry_run,
            backends: Backends::none(),
        };
        let mut engine = Engine::new(Duration::ZERO, &config, setup);
        engine.step(Duration::ZERO, Input::Interface(Some(LINK)));
        engine
    }

    /// An engine at the moment when it first asks for a cap.
    fn asking() -> Engine {
        let mut engine = engine(CONSTANT, false);
        assert!(caps(&pass(&mut engine, 100)).is_empty());
        assert_eq!(caps(&pass(&mut engine, 200)), [(COOKIE, Some(20))]);
        engine
    }

    fn pass(engine: &mut Engine, ms: u64) -> Vec<Action> {
        let flows = vec![upload()];
        engine.step(Duration::from_millis(ms), Input::Pass { flows, complete: false })
    }

    fn answer(engine: &mut Engine, outcome: CapOutcome) -> Vec<Action> {
        engine.step(Duration::from_millis(200), Input::CapOutcomes(vec![(COOKIE, outcome)]))
    }

    fn caps(actions: &[Action]) -> Vec<(Cookie, Option<u32>)> {
        let cap = |action: &Action| match action {
            Action::Cap { cookie, cap } => Some((*cookie, *cap)),
            _ => None,
        };
        actions.iter().filter_map(cap).collect()
    }

    #[test]
    fn a_cap_that_the_kernel_put_off_is_asked_for_again_in_the_next_pass_and_not_before() {
        let mut engine = asking();
        assert!(caps(&answer(&mut engine, CapOutcome::Deferred)).is_empty());
        let event = FlowEvent::CaState { to: CaState::Open };
        let input = Input::Events(vec![(COOKIE, event)]);
        assert!(caps(&engine.step(Duration::from_millis(250), input)).is_empty());
        assert_eq!(caps(&pass(&mut engine, 300)), [(COOKIE, Some(20))]);
    }

    #[test]
    fn a_connection_that_leaves_by_another_interface_is_set_free() {
        let mut engine = asking();
        answer(&mut engine, CapOutcome::Applied);
        let moved = engine.step(
            Duration::from_millis(250),
            Input::Interface(Some(Link { ifindex: 3, ..LINK })),
        );
        assert_eq!(caps(&moved), [(COOKIE, None)]);
        answer(&mut engine, CapOutcome::Applied);
        let changes = engine.snapshot(Duration::from_secs(1)).changes;
        assert_eq!(changes.last().map(|c| c.change.why.as_str()), Some(ELSEWHERE));
        assert!(caps(&pass(&mut engine, 300)).is_empty());
    }

    #[test]
    fn a_dry_run_decides_once_and_suspects_nobody_of_the_cap_that_it_did_not_set() {
        let mut engine = engine(CONSTANT, true);
        for ms in [100, 200, 300, 400, 500] {
            assert!(caps(&pass(&mut engine, ms)).is_empty());
        }
        let snapshot = engine.snapshot(Duration::from_secs(1));
        let changes: Vec<_> = snapshot.changes.iter().map(|c| (c.change.new, c.change.made)).collect();
        assert_eq!(changes, [(Some(20), false)]);
        assert!(!snapshot.flows[0].stepped_back);
    }

    #[test]
    fn the_kernel_is_asked_whose_a_clamp_is_that_nobody_here_knows_of() {
        let mut engine = asking();
        answer(&mut engine, CapOutcome::Applied);
        let held = |clamp| Flow { clamp, ..upload() };
        let mut pass = |ms, clamp| {
            let flows = vec![held(clamp)];
            caps(&engine.step(Duration::from_millis(ms), Input::Pass { flows, complete: false }))
        };
        assert!(pass(300, Some(20)).is_empty());
        assert!(pass(400, Some(33)).is_empty());
        assert_eq!(pass(500, Some(33)), [(COOKIE, Some(20))]);
        answer(&mut engine, CapOutcome::Foreign { clamp: Some(33) });
        assert!(engine.snapshot(Duration::from_secs(1)).flows[0].stepped_back);
    }

    #[test]
    fn a_cap_set_while_a_complete_pass_was_read_is_not_forgotten() {
        let mut engine = engine(CONSTANT, false);
        engine.step(Duration::ZERO, Input::CappedAtConnect(vec![(COOKIE, 20)]));
        let nothing = Input::Pass {
            flows: Vec::new(),
            complete: true,
        };
        engine.step(Duration::from_millis(50), nothing);
        for ms in [100, 200, 300] {
            let flows = vec![Flow {
                clamp: Some(20),
                ..upload()
            }];
            let input = Input::Pass { flows, complete: false };
            assert!(caps(&engine.step(Duration::from_millis(ms), input)).is_empty());
        }
        assert_eq!(engine.snapshot(Duration::from_secs(1)).flows[0].cap, Some(20));
    }

    #[test]
    fn new_connections_are_capped_on_the_managed_interface_only() {
        let mut engine = engine(CONSTANT, false);
        let mut table = |link| {
            let actions = engine.step(Duration::ZERO, Input::Interface(link));
            actions.into_iter().find_map(|action| match action {
                Action::CapNew { ifindex, caps } => Some((ifindex, caps)),
                _ => None,
            })
        };
        assert_eq!(table(Some(LINK)), None, "the same as before");
        assert_eq!(table(Some(Link { ifindex: 3, ..LINK })), Some((3, vec![20])));
        assert_eq!(table(None), Some((0, vec![0])));
        assert_eq!(table(None), None);
    }

    #[test]
    fn a_connection_that_is_idle_is_not_left_with_the_cap_of_busier_times() {
        // 1.2 Mbit/s x 100 ms are ten segments.
        let mut engine = engine("[cap]\ncapacity_mbit = 1.2", false);
        engine.step(Duration::ZERO, Input::CappedAtConnect(vec![(COOKIE, 4)]));
        let idle = Flow {
            unsent_bytes: 0,
            clamp: Some(4),
            ..upload()
        };
        let flows = vec![idle];
        let actions = engine.step(Duration::from_millis(100), Input::Pass { flows, complete: true });
        assert_eq!(caps(&actions), [(COOKIE, Some(10))]);
    }

    #[test]
    fn nothing_is_asked_of_a_socket_that_is_gone() {
        let mut engine = asking();
        assert!(caps(&answer(&mut engine, CapOutcome::Gone)).is_empty());
        assert!(engine.snapshot(Duration::from_secs(1)).flows.is_empty());
    }
}
