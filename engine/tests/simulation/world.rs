// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The environment of the engines: virtual time, a medium that loses and reorders, and sockets with the kernel's
//! behaviour for clamps. Deterministic by seed.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use giveway_engine::background::Means;
use giveway_engine::change::{Setting, Value};
use giveway_engine::config::Config;
use giveway_engine::model::{CaState, Cookie, Flow, FlowEvent, Interface, TcpState};
use giveway_engine::network::action::{Action, Input};
use giveway_engine::network::{Network, Setup};
use giveway_engine::peers;
use giveway_engine::peers::{Keyring, Outgoing};
use giveway_engine::queue::Backends;
use giveway_engine::record::What;
use giveway_engine::sockets;
use giveway_engine::sockets::setting::segments;
use giveway_engine::sockets::setting::{Outcome, Request, Wish};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const PASS: Duration = Duration::from_millis(100);
const IFINDEX: u32 = 2;
const KEY: &str = "giveway-key-1:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// The fate of a copy of a report.
#[derive(Clone, Copy)]
pub struct Air {
    /// The probability that one receiver misses it.
    pub loss: f64,
    /// The probability that the next one overtakes it.
    pub reorder: f64,
    pub delay: Duration,
}

impl Default for Air {
    fn default() -> Self {
        Self {
            loss: 0.0,
            reorder: 0.0,
            delay: Duration::from_millis(5),
        }
    }
}

struct Device {
    engine: Option<Network>,
    /// Its clock is ahead of the world's by this much.
    ahead: Duration,
    next_poll: Duration,
    sockets: BTreeMap<Cookie, Flow>,
    /// The clamps that giveway wrote, as the kernel part stores them.
    written: BTreeMap<Cookie, Option<u32>>,
    has_key: bool,
    expired: u64,
}

pub struct World {
    now: Duration,
    rng: ChaCha20Rng,
    air: Air,
    devices: Vec<Device>,
    /// By time of arrival and a unique number.
    flying: BTreeMap<(Duration, u64), (usize, usize, Vec<u8>)>,
    sent: u64,
    next_cookie: u64,
}

impl World {
    pub fn new(devices: usize, air: Air, seed: u64) -> Self {
        let mut world = Self {
            now: Duration::from_secs(1000),
            rng: ChaCha20Rng::seed_from_u64(seed),
            air,
            devices: Vec::new(),
            flying: BTreeMap::new(),
            sent: 0,
            next_cookie: 1,
        };
        for index in 0..devices {
            world.devices.push(Device {
                engine: None,
                ahead: Duration::from_secs(index as u64 * 17),
                next_poll: world.now + PASS * index as u32 / devices as u32,
                sockets: BTreeMap::new(),
                written: BTreeMap::new(),
                has_key: true,
                expired: 0,
            });
            world.restart(index);
        }
        world
    }

    /// A new daemon on the device, without any state.
    pub fn restart(&mut self, index: usize) {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        self.restart_with(index, seed);
    }

    /// The machines are clones of one, from the moment when its daemon had started.
    pub fn copy_of_one(&mut self, indices: &[usize]) {
        indices.iter().for_each(|index| self.restart_with(*index, [7; 32]));
    }

    fn restart_with(&mut self, index: usize, seed: [u8; 32]) {
        let text = "[cap]\ncapacity_mbit = 20\nmargin_bytes = 120000\nrtt_ms = 256\n";
        let config = Config::parse(text).expect("the paper's settings are valid");
        let keys = self.devices[index].has_key.then(|| Keyring::parse(KEY).expect("a key"));
        let setup = Setup {
            seed,
            keys,
            rtt_resolution: vec![Duration::from_millis(1)],
            background: Means::default(),
            dry_run: false,
            backends: Backends::none(),
        };
        let now = self.now + self.devices[index].ahead;
        self.devices[index].engine = Some(Network::new(now, &config, setup));
        for socket in self.devices[index].sockets.values_mut() {
            socket.clamp = None;
        }
        let interface = Interface {
            name: "wlan0".to_owned(),
            index: IFINDEX,
            ipv4: Some(Ipv4Addr::new(10, 77, 0, index as u8 + 1)),
        };
        self.step(index, Input::Interface(Some(interface)));
    }

    /// The device disappears without a last report, its connections with it.
    pub fn kill(&mut self, index: usize) {
        self.devices[index].engine = None;
        self.devices[index].sockets.clear();
    }

    pub fn take_key(&mut self, index: usize) {
        self.devices[index].has_key = false;
        self.restart(index);
    }

    pub fn jump_clock(&mut self, index: usize, by: Duration) {
        self.devices[index].ahead += by;
    }

    /// Reverts its jump forwards.
    pub fn jump_clock_back(&mut self, index: usize) {
        self.devices[index].ahead = Duration::ZERO;
    }

    pub fn start_sending(&mut self, index: usize) {
        if self.devices[index].engine.is_some() && self.devices[index].sockets.is_empty() {
            self.open_connection(index);
        }
    }

    pub fn open_connection(&mut self, index: usize) {
        let cookie = Cookie(self.next_cookie);
        self.next_cookie += 1;
        self.devices[index].sockets.insert(cookie, bulk_upload(cookie));
    }

    /// The applications close their sockets.
    pub fn stop_sending(&mut self, index: usize) {
        let closed = std::mem::take(&mut self.devices[index].sockets);
        let events = closed.into_keys().map(|cookie| (cookie, FlowEvent::Close)).collect();
        self.step(index, Input::Sockets(sockets::Input::Events(events)));
    }

    pub fn set_clamp_behind_giveways_back(&mut self, index: usize, clamp: u32) {
        for socket in self.devices[index].sockets.values_mut() {
            socket.clamp = Some(clamp);
        }
    }

    pub fn repair_a_loss(&mut self, index: usize, repairing: bool) {
        for socket in self.devices[index].sockets.values_mut() {
            socket.ca_state = if repairing { CaState::Recovery } else { CaState::Open };
        }
    }

    /// From now on the medium is perfect.
    pub fn calm(&mut self) {
        self.air = Air::default();
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some((at, event)) = self.next_event().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            match event {
                Event::Arrival => {
                    if let Some((_, (from, to, bytes))) = self.flying.pop_first() {
                        self.step(
                            to,
                            Input::Peers(peers::Input::Datagram {
                                from: address(from),
                                bytes: &bytes,
                            }),
                        );
                    }
                }
                Event::Poll(index) => {
                    self.devices[index].next_poll += PASS;
                    let sockets = self.devices[index].sockets.values_mut();
                    // A connection without deliveries for long counts as not sending.
                    let moved = sockets.map(|socket| {
                        socket.delivered_segments += 1;
                        socket.clone()
                    });
                    let flows = moved.collect();
                    self.step(
                        index,
                        Input::Poll {
                            flows,
                            complete: false,
                            queues: BTreeMap::new(),
                        },
                    );
                }
                Event::Deadline(index) => self.step(index, Input::Tick),
            }
        }
        self.now = end;
    }

    fn next_event(&self) -> Option<(Duration, Event)> {
        let arrival = self.flying.first_key_value().map(|((at, _), _)| (*at, Event::Arrival));
        let devices = self.devices.iter().enumerate().filter_map(|(index, device)| {
            let engine = device.engine.as_ref()?;
            let deadline = engine
                .next_deadline()
                .map(|at| (at.saturating_sub(device.ahead).max(self.now), Event::Deadline(index)));
            let pass = (device.next_poll.max(self.now), Event::Poll(index));
            Some(
                deadline
                    .into_iter()
                    .chain([pass])
                    .min_by_key(|(at, _)| *at)
                    .unwrap_or(pass),
            )
        });
        arrival.into_iter().chain(devices).min_by_key(|(at, _)| *at)
    }

    fn step(&mut self, index: usize, input: Input<'_>) {
        let now = self.now + self.devices[index].ahead;
        let mut random = [0; 32];
        self.rng.fill_bytes(&mut random);
        let Some(engine) = &mut self.devices[index].engine else {
            return;
        };
        engine.refresh(random, Duration::ZERO);
        let mut actions = engine.step(now, input);
        while let Some(action) = actions.pop() {
            match action {
                Action::Set(Request { cookie, settings }) => {
                    let device = &mut self.devices[index];
                    let outcomes = settings.into_iter().map(|Wish { setting, value, .. }| {
                        assert_eq!(setting, Setting::Cap, "the fixed cap limits nothing else");
                        (cookie, setting, device.cap(cookie, segments(&value)))
                    });
                    let outcomes = Input::Sockets(sockets::Input::Outcomes(outcomes.collect()));
                    if let Some(engine) = &mut self.devices[index].engine {
                        actions.extend(engine.step(now, outcomes));
                    }
                }
                Action::Report(report) => self.send(index, &report),
                Action::Record(What::Peer { expired: true, .. }) => self.devices[index].expired += 1,
                Action::Record(_)
                | Action::CapNew(_)
                | Action::Queue(_)
                | Action::Downlink(_)
                | Action::Identify(_)
                | Action::Class(_)
                | Action::Nice(_) => {}
            }
        }
    }

    /// Unicast is repeated until it is acknowledged, up to seven times.
    fn send(&mut self, from: usize, report: &Outgoing) {
        let attempts = if report.to.is_some() { 7 } else { 1 };
        let meant = |to: &usize| *to != from && report.to.is_none_or(|one| address(*to) == one);
        for to in (0..self.devices.len()).filter(meant) {
            if (0..attempts).all(|_| self.chance() < self.air.loss) {
                continue;
            }
            let behind = if self.chance() < self.air.reorder {
                Duration::from_millis(700)
            } else {
                Duration::ZERO
            };
            self.sent += 1;
            self.flying.insert(
                (self.now + self.air.delay + behind, self.sent),
                (from, to, report.datagram.clone()),
            );
        }
    }

    fn chance(&mut self) -> f64 {
        f64::from(self.rng.next_u32()) / f64::from(u32::MAX)
    }

    /// Devices with a daemon and a connection.
    pub fn sending(&self) -> Vec<usize> {
        (0..self.devices.len())
            .filter(|&i| self.devices[i].engine.is_some() && !self.devices[i].sockets.is_empty())
            .collect()
    }

    pub fn seen_by(&self, index: usize) -> Option<u32> {
        let device = &self.devices[index];
        Some(device.engine.as_ref()?.status(self.now + device.ahead).policy.senders)
    }

    pub fn senders_seen(&self) -> Vec<u32> {
        (0..self.devices.len()).filter_map(|i| self.seen_by(i)).collect()
    }

    /// The clamps active on a device's sockets.
    pub fn caps_of(&self, index: usize) -> Vec<Option<u32>> {
        self.devices[index].sockets.values().map(|s| s.clamp).collect()
    }

    /// The clamp on each device's first socket.
    pub fn caps(&self) -> Vec<Option<u32>> {
        (0..self.devices.len())
            .map(|i| self.caps_of(i).first().copied().flatten())
            .collect()
    }

    pub fn expired(&self) -> u64 {
        self.devices.iter().map(|d| d.expired).sum()
    }

    pub fn reasons(&self, index: usize) -> Vec<String> {
        let engine = self.devices[index].engine.as_ref();
        let changes = engine.into_iter().flat_map(Network::changes);
        changes.map(|latest| latest.change.reason).collect()
    }
}

#[derive(Clone, Copy)]
enum Event {
    Arrival,
    Poll(usize),
    Deadline(usize),
}

impl Device {
    /// The kernel's behaviour: no write during loss recovery, none over another tool's.
    fn cap(&mut self, cookie: Cookie, cap: Option<u32>) -> Outcome {
        match self.sockets.get_mut(&cookie) {
            None => Outcome::Gone,
            Some(socket) if socket.clamp.is_some() && self.written.get(&cookie) != Some(&socket.clamp) => {
                Outcome::Foreign {
                    found: Value::from(socket.clamp),
                }
            }
            Some(socket) if !socket.ca_state.tolerates_clamp_write() => Outcome::Deferred,
            Some(socket) => {
                self.written.insert(cookie, cap);
                socket.clamp = cap;
                socket.cwnd = cap.unwrap_or(1000);
                Outcome::Applied
            }
        }
    }
}

fn address(device: usize) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, device as u8 + 1).into()
}

fn bulk_upload(cookie: Cookie) -> Flow {
    let local: SocketAddr = (address(0), 40_000).into();
    Flow {
        protocol: giveway_engine::model::Protocol::Tcp,
        cookie,
        local,
        remote: (Ipv4Addr::new(10, 77, 0, 254), 5201).into(),
        state: TcpState::Established,
        owner: None,
        uid: None,
        priority: 0,
        dscp: 0,
        cgroup_id: 1,
        ifindex: IFINDEX,
        cwnd: 10,
        clamp: None,
        ssthresh: None,
        mss_bytes: 1448,
        srtt_us: 256_000,
        min_rtt_us: Some(256_000),
        rttvar_us: 0,
        in_flight_bytes: 14_480,
        unsent_bytes: 100_000,
        unacked_bytes: 14_480,
        delivery_rate_bytes_per_s: 125_000,
        pacing_rate_bytes_per_s: None,
        retransmits: 0,
        delivered_segments: 0,
        acked_bytes: 0,
        received_bytes: 0,
        latest_rtt_us: 0,
        receiver_rtt_us: 0,
        ca_state: CaState::Open,
        congestion_control: "cubic".to_owned(),
    }
}
