// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All stations, the server and the channel between them, from event to event.
//!
//! Input: a description. Output: after any time, the connections' state. The channel is the lab's own model; one seed
//! gives one run.

use std::collections::VecDeque;

use anyhow::Result;
use giveway_engine::peers::Outgoing;

use super::connection::{Connection, ConnectionPlan};
use super::device::{Device, POLL_NS, Shown};
use super::packet::Packet;
use crate::medium::address::Port;
use crate::medium::dcf::{Config, Medium, Release};
use crate::medium::rate::RateControl;

const QUEUE_PACKETS: usize = 50;
const SYN_AGAIN_NS: u64 = 1_000_000_000;
/// How often an application that sends at a rate writes.
const WRITE_NS: u64 = 5_000_000;

#[derive(Clone)]
pub struct WorldOptions {
    pub stations: usize,
    pub rate_control: RateControl,
    pub loss: f64,
    pub connections: Vec<ConnectionPlan>,
    /// Of each station's engine; without a text it has none.
    pub engines: Vec<Option<String>>,
    /// At these times, in seconds, every sender's rate control becomes this.
    pub steps: Vec<(f64, RateControl)>,
    pub seed: u64,
}

pub struct World {
    pub medium: Medium,
    pub connections: Vec<Connection>,
    pub devices: Vec<Option<Device>>,
    now_ns: u64,
    next_poll_ns: Vec<u64>,
    next_write_ns: u64,
    steps: VecDeque<(u64, RateControl)>,
    releases: Vec<Release>,
    pub reports: u64,
}

impl World {
    pub fn new(description: &WorldOptions) -> Result<Self> {
        let plans = &description.connections;
        let shortest_ms = plans.iter().map(|plan| plan.rtt_ms).min().unwrap_or(2);
        let longer_ns = |station| {
            let plan = plans.iter().find(|plan| plan.station == station);
            plan.map_or(0, |plan| (plan.rtt_ms - shortest_ms) * 1_000_000)
        };
        let device = |(station, text): (usize, &Option<String>)| {
            let text = text.as_ref()?;
            Some(Device::new(station, text, description.seed))
        };
        let devices: Vec<_> = description.engines.iter().enumerate().map(device).collect();
        let stations = description.stations;
        Ok(Self {
            medium: Medium::new(Config {
                stations,
                rate_control: description.rate_control.clone(),
                has_categories: false,
                loss: description.loss,
                one_way_delay_ns: shortest_ms * 500_000,
                longer_ns: (0..stations).map(longer_ns).collect(),
                queue_packets: QUEUE_PACKETS,
                seed: description.seed,
            }),
            connections: plans.iter().cloned().map(Connection::new).collect(),
            devices: devices.into_iter().map(Option::transpose).collect::<Result<_>>()?,
            now_ns: 0,
            next_poll_ns: (0..stations).map(|i| POLL_NS * i as u64 / stations as u64).collect(),
            next_write_ns: 0,
            steps: description
                .steps
                .iter()
                .map(|(at_s, control)| ((at_s * 1e9) as u64, control.clone()))
                .collect(),
            releases: Vec::new(),
            reports: 0,
        })
    }

    pub fn run_until(&mut self, end_ns: u64) {
        while self.now_ns < end_ns {
            let own = self.next_own_ns();
            let channel = self.medium.next_release_ns().unwrap_or(u64::MAX);
            self.now_ns = own.min(channel).clamp(self.now_ns, end_ns);
            let mut releases = std::mem::take(&mut self.releases);
            self.medium.advance(self.now_ns, &mut releases);
            for release in releases.drain(..) {
                self.arrive(&release);
            }
            self.releases = releases;
            if own <= self.now_ns {
                self.act();
            }
        }
    }

    /// The next event outside the channel.
    fn next_own_ns(&self) -> u64 {
        let connections = self.connections.iter().map(|connection| {
            let plan = &connection.plan;
            let open = match (&connection.sender, connection.syn_sent_ns) {
                (Some(sender), _) if !connection.is_over(self.now_ns) => sender.next_event_ns(),
                (Some(_), _) => None,
                (None, None) => Some((plan.from_s * 1e9) as u64),
                (None, Some(sent_ns)) => Some(sent_ns + SYN_AGAIN_NS),
            };
            open.into_iter().chain(connection.receiver.due_ns).min()
        });
        let engines = self
            .devices
            .iter()
            .zip(&self.next_poll_ns)
            .filter_map(|(device, poll_ns)| {
                let deadline = device.as_ref()?.next_deadline_ns();
                Some(Some(deadline.map_or(*poll_ns, |at_ns| at_ns.min(*poll_ns))))
            });
        let step = self.steps.front().map(|(at_ns, _)| *at_ns);
        let rest = [step, Some(self.next_write_ns)];
        connections
            .chain(engines)
            .chain(rest)
            .flatten()
            .min()
            .unwrap_or(u64::MAX)
    }

    fn act(&mut self) {
        let now_ns = self.now_ns;
        while let Some((_, control)) = self.steps.pop_front_if(|(at_ns, _)| *at_ns <= now_ns) {
            self.medium.set_rate_control(&control);
        }
        if self.next_write_ns <= now_ns {
            self.next_write_ns = now_ns + WRITE_NS;
            self.connections
                .iter_mut()
                .for_each(|connection| connection.write(now_ns));
        }
        for index in 0..self.connections.len() {
            self.act_for(index);
        }
        for station in 0..self.devices.len() {
            self.run_engine(station);
        }
    }

    fn act_for(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let connection = &mut self.connections[index];
        if connection.receiver.due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            let (next, blocks) = connection.receiver.acknowledge();
            self.answer(
                index,
                Packet::Ack {
                    connection: index as u16,
                    next,
                    blocks,
                },
            );
        }
        let connection = &mut self.connections[index];
        let begins = (connection.plan.from_s * 1e9) as u64 <= now_ns;
        let syn_is_due = connection
            .syn_sent_ns
            .is_none_or(|sent_ns| sent_ns + SYN_AGAIN_NS <= now_ns);
        let is_over = connection.is_over(now_ns);
        match &mut connection.sender {
            None if begins && syn_is_due && !is_over => {
                connection.syn_sent_ns = Some(now_ns);
                let station = connection.plan.station;
                let syn = Packet::Syn {
                    connection: index as u16,
                };
                self.medium.offer(Port::Station(station), syn.frame(station));
            }
            Some(sender) => {
                let probe = sender.tick(now_ns);
                self.send(index, probe);
            }
            None => {}
        }
    }

    /// Sends what a connection may send now.
    fn send(&mut self, index: usize, first: Option<u32>) {
        let connection = &mut self.connections[index];
        if connection.is_over(self.now_ns) {
            return;
        }
        let Some(sender) = &mut connection.sender else { return };
        let station = connection.plan.station;
        let mut next = first;
        while let Some(segment) = next.take().or_else(|| sender.poll(self.now_ns)) {
            let data = Packet::Data {
                connection: index as u16,
                segment,
            };
            self.medium.offer(Port::Station(station), data.frame(station));
        }
    }

    fn arrive(&mut self, release: &Release) {
        let now_ns = self.now_ns;
        let Some(packet) = Packet::read(&release.frame) else {
            return;
        };
        match (packet, release.to) {
            (Packet::Syn { connection }, _) => self.answer(connection.into(), Packet::SynAck { connection }),
            (Packet::Data { connection, segment }, _) => {
                let index = usize::from(connection);
                if let Some((next, blocks)) = self.connections[index].receiver.arrive(now_ns, segment) {
                    self.answer(
                        index,
                        Packet::Ack {
                            connection,
                            next,
                            blocks,
                        },
                    );
                }
            }
            (Packet::SynAck { connection }, Port::Station(station)) => {
                let connection = &mut self.connections[usize::from(connection)];
                if connection.sender.is_none() {
                    let rtt_ns = now_ns - connection.syn_sent_ns.unwrap_or(now_ns);
                    let device = self.devices.get(station).and_then(Option::as_ref);
                    connection.open(now_ns, device.and_then(|device| device.clamp_of_new(rtt_ns)));
                    connection.write(now_ns);
                }
            }
            (
                Packet::Ack {
                    connection,
                    next,
                    blocks,
                },
                _,
            ) => {
                let index = usize::from(connection);
                let connection = &mut self.connections[index];
                let is_over = connection.is_over(now_ns);
                if let (false, Some(sender)) = (is_over, &mut connection.sender) {
                    sender.acknowledge(now_ns, next, &blocks);
                    self.send(index, None);
                }
            }
            (Packet::Report { from, datagram }, Port::Station(station)) => {
                self.with_device(station, |device, sockets| {
                    device.hear(now_ns, from.into(), &datagram, sockets)
                });
            }
            (Packet::SynAck { .. } | Packet::Report { .. }, Port::Server) => {}
        }
    }

    /// From the server.
    fn answer(&mut self, index: usize, packet: Packet) {
        let station = self.connections[index].plan.station;
        self.medium.offer(Port::Server, packet.frame(station));
    }

    fn run_engine(&mut self, station: usize) {
        let now_ns = self.now_ns;
        let deadline = self.devices[station].as_ref().and_then(Device::next_deadline_ns);
        if self.devices[station].is_some() && self.next_poll_ns[station] <= now_ns {
            self.next_poll_ns[station] += POLL_NS;
            self.with_device(station, |device, sockets| device.poll(now_ns, sockets));
        } else if deadline.is_some_and(|at_ns| at_ns <= now_ns) {
            self.with_device(station, |device, sockets| device.tick(now_ns, sockets));
        }
    }

    fn with_device(&mut self, station: usize, act: impl FnOnce(&mut Device, &mut [Shown]) -> Vec<Outgoing>) {
        let Some(device) = self.devices.get_mut(station).and_then(Option::as_mut) else {
            return;
        };
        let now_ns = self.now_ns;
        let own = self.connections.iter_mut().enumerate();
        let own = own.filter(|(_, connection)| connection.plan.station == station && !connection.is_over(now_ns));
        let mut sockets: Vec<Shown> = own
            .filter_map(|(index, connection)| Some((index as u64 + 1, connection.sender.as_mut()?)))
            .collect();
        for report in act(device, &mut sockets) {
            let from = station as u16;
            let to = report.to.and_then(|to| match to {
                std::net::IpAddr::V4(v4) => Some(usize::from(v4.octets()[3]) - 1),
                std::net::IpAddr::V6(_) => None,
            });
            let packet = Packet::Report {
                from,
                datagram: report.datagram,
            };
            let frame = match to {
                Some(to) => packet.frame_between(to),
                None => packet.frame(station),
            };
            self.reports += 1;
            self.medium.offer(Port::Station(station), frame);
        }
    }
}
