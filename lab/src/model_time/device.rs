// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One station's giveway: the real engine, and the kernel around it as far as the engine reads and changes it.
//!
//! Input: the station's connections at each poll, reports from peers, the time. Output: reports to send; clamps and
//! pacing rates are written to the connections.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result};
use giveway_engine::background::Means;
use giveway_engine::change::{Setting, Value};
use giveway_engine::config::Config;
use giveway_engine::model::{Cookie, Flow, Interface, TcpState};
use giveway_engine::network::action::{Action, Input};
use giveway_engine::network::{Network, Setup};
use giveway_engine::peers;
use giveway_engine::peers::{Keyring, Outgoing};
use giveway_engine::queue::Backends;
use giveway_engine::sockets;
use giveway_engine::sockets::setting::segments;
use giveway_engine::sockets::setting::{Outcome, Request, Wish};

use super::packet::MSS_BYTES;
use super::sender::TcpSender;

const KEY: &str = "giveway-key-1:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const IFINDEX: u32 = 2;
/// RTT steps of the kernel's table for new connections: from 128 us in half octaves.
const TABLE: usize = 36;
pub const POLL_NS: u64 = 100_000_000;

pub struct Device {
    engine: Network,
    /// Clamps for new connections, by the resolution below.
    caps: Vec<u32>,
    resolution: Vec<Duration>,
}

/// A connection of the device, as the engine sees it.
pub type Shown<'a> = (u64, &'a mut TcpSender);

impl Device {
    pub fn new(station: usize, config: &str, seed: u64) -> Result<Self> {
        let config = Config::parse(config).context("the configuration of a modelled device")?;
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_be_bytes());
        bytes[8..16].copy_from_slice(&(station as u64).to_be_bytes());
        let step = |n: usize| Duration::from_secs_f64(128e-6 * 2f64.powf(n as f64 / 2.0));
        let resolution: Vec<_> = (0..TABLE).map(step).collect();
        let setup = Setup {
            seed: bytes,
            keys: Some(Keyring::parse(KEY)?),
            rtt_resolution: resolution.clone(),
            background: Means::default(),
            dry_run: false,
            backends: Backends::none(),
        };
        let mut engine = Network::new(Duration::ZERO, &config, setup);
        let interface = Interface {
            name: "wlan0".to_owned(),
            index: IFINDEX,
            ipv4: Some(ipv4(station)),
        };
        engine.step(Duration::ZERO, Input::Interface(Some(interface)));
        Ok(Self {
            engine,
            caps: vec![0; TABLE],
            resolution,
        })
    }

    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.engine.next_deadline().map(|at| at.as_nanos() as u64)
    }

    /// The clamp of a new connection.
    pub fn clamp_of_new(&self, rtt_ns: u64) -> Option<u32> {
        let rtt = Duration::from_nanos(rtt_ns);
        let at = self.resolution.iter().rposition(|step| *step <= rtt)?;
        Some(self.caps[at]).filter(|cap| *cap > 0)
    }

    pub fn hear(&mut self, now_ns: u64, from: usize, datagram: &[u8], sockets: &mut [Shown]) -> Vec<Outgoing> {
        let from = IpAddr::V4(ipv4(from));
        self.step(
            now_ns,
            Input::Peers(peers::Input::Datagram { from, bytes: datagram }),
            sockets,
        )
    }

    pub fn tick(&mut self, now_ns: u64, sockets: &mut [Shown]) -> Vec<Outgoing> {
        self.step(now_ns, Input::Tick, sockets)
    }

    pub fn poll(&mut self, now_ns: u64, sockets: &mut [Shown]) -> Vec<Outgoing> {
        let flows = sockets.iter().map(|(cookie, sender)| shown(*cookie, sender)).collect();
        let pass = Input::Poll {
            flows,
            complete: true,
            queues: BTreeMap::new(),
        };
        self.step(now_ns, pass, sockets)
    }

    fn step(&mut self, now_ns: u64, input: Input<'_>, sockets: &mut [Shown]) -> Vec<Outgoing> {
        let now = Duration::from_nanos(now_ns);
        let mut reports = Vec::new();
        let mut actions = self.engine.step(now, input);
        while let Some(action) = actions.pop() {
            match action {
                Action::Report(report) => reports.push(report),
                Action::CapNew(table) => self.caps = table.caps,
                Action::Set(Request { cookie, settings }) => {
                    let socket = sockets.iter_mut().find(|(known, _)| Cookie(*known) == cookie);
                    let mut socket = socket.map(|(_, sender)| &mut **sender);
                    let outcomes = settings.into_iter().map(|Wish { setting, value, .. }| {
                        let outcome = socket
                            .as_deref_mut()
                            .map_or(Outcome::Gone, |sender| apply(sender, &setting, &value));
                        (cookie, setting, outcome)
                    });
                    let outcomes = Input::Sockets(sockets::Input::Outcomes(outcomes.collect()));
                    actions.extend(self.engine.step(now, outcomes));
                }
                _ => {}
            }
        }
        reports
    }
}

fn apply(sender: &mut TcpSender, setting: &Setting, value: &Value) -> Outcome {
    match setting {
        Setting::Cap if !sender.ca_state.tolerates_clamp_write() => Outcome::Deferred,
        Setting::Cap => {
            sender.set_clamp(segments(value));
            Outcome::Applied
        }
        Setting::PacingRate => {
            sender.max_pacing = match value {
                Value::Number(rate) => Some(*rate),
                _ => None,
            };
            Outcome::Applied
        }
        _ => Outcome::Failed {
            errno: "EOPNOTSUPP, errno 95".to_owned(),
        },
    }
}

fn ipv4(station: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, station as u8 + 1)
}

fn shown(cookie: u64, sender: &TcpSender) -> Flow {
    let us = |ns: u64| (ns / 1_000) as u32;
    let bytes = |segments: u32| u64::from(segments) * MSS_BYTES;
    Flow {
        protocol: giveway_engine::model::Protocol::Tcp,
        cookie: Cookie(cookie),
        local: (Ipv4Addr::new(10, 77, 0, 1), 40_000).into(),
        remote: (Ipv4Addr::new(10, 77, 0, 254), 5201).into(),
        state: TcpState::Established,
        owner: None,
        uid: None,
        priority: 0,
        dscp: 0,
        cgroup_id: 1,
        ifindex: IFINDEX,
        cwnd: sender.cubic.cwnd,
        clamp: Some(sender.cubic.clamp).filter(|clamp| *clamp != u32::MAX),
        ssthresh: Some(sender.cubic.ssthresh).filter(|ssthresh| *ssthresh != u32::MAX),
        mss_bytes: MSS_BYTES as u32,
        srtt_us: us(sender.rtt.smoothed_ns),
        min_rtt_us: Some(us(sender.rtt.least_ns)),
        rttvar_us: 0,
        in_flight_bytes: bytes(sender.in_flight()),
        unsent_bytes: bytes(sender.unsent_segments().min(1_000)),
        unacked_bytes: bytes(sender.unacked_segments()),
        delivery_rate_bytes_per_s: sender.rate.bytes_per_s(),
        pacing_rate_bytes_per_s: sender.max_pacing,
        retransmits: sender.retransmits,
        acked_bytes: sender.rate.delivered() * MSS_BYTES,
        received_bytes: 0,
        delivered_segments: sender.rate.delivered() as u32,
        latest_rtt_us: us(sender.rtt.latest_ns),
        receiver_rtt_us: 0,
        ca_state: sender.ca_state,
        congestion_control: "cubic".to_owned(),
    }
}
