// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Senders on different devices behind one bottleneck, in virtual time, packet by packet: 20 Mbit/s, 50 ms. Of TCP it has what
//! congestion control sees: delayed acknowledgements, losses known by three later packets, a tail loss probe, a timeout.
//! The same seed gives the same run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::link::{Kind, Link, PACKET_BYTES, PACKET_US, Packet};
use super::sender::{Acked, Control, Cubic};

const ONE_WAY_US: u64 = 25_000;
/// And up to a tick of the receiver's clock more.
const DELAYED_US: u64 = 40_000;
const TICK_US: u64 = 4_000;
const LEAST_TIMEOUT_US: u64 = 200_000;
const REORDERED: u64 = 3;
pub const BIN_US: u64 = 100_000;
/// Each acknowledgement is late by up to so much.
const JITTER_US: u64 = 200;
const ONE_IN: u32 = 60;
const LATE_US: u64 = 6_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    Rule,
    Cubic,
}

/// A transfer without end, between these times.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub by: By,
    pub from_s: f64,
    pub to_s: f64,
    /// Its receiver acknowledges each packet at once.
    pub acks_each: bool,
}

/// From then on packets take longer, and so many times as long on a link with a queue.
#[derive(Clone, Copy, Debug)]
pub struct Detour {
    pub from_s: f64,
    pub by_us: u64,
    pub slower: u64,
    /// Each acknowledgement is late by up to so much more, and one in `ONE_IN` by `LATE_US`: as on a busy machine, or by radio.
    pub jitter_us: u64,
}

pub struct Ran {
    /// Of each transfer, packets that arrived in each bin.
    pub bins: Vec<Vec<u32>>,
}

impl Ran {
    pub fn mbit(&self, transfer: usize, from_s: f64, to_s: f64) -> f64 {
        let [from, to] = [from_s, to_s].map(|s| (s * 1e6 / BIN_US as f64) as usize);
        let bins = &self.bins[transfer];
        let packets: u32 = bins[from.min(bins.len())..to.min(bins.len())].iter().sum();
        f64::from(packets) * PACKET_BYTES as f64 * 8.0 / 1e6 / (to_s - from_s)
    }
}

enum Event {
    Begins(usize),
    /// Its pace allows the next one.
    Sends(usize),
    Leaves(Packet),
    Arrives(Packet),
    Delayed(usize, u64),
    Acknowledged(usize, Vec<u64>),
    Timer(usize, u64),
}

struct Sent {
    number: u64,
    at_us: u64,
    delivered_before: u64,
}

struct Flow {
    transfer: Transfer,
    control: Option<Control>,
    next: u64,
    outstanding: VecDeque<Sent>,
    to_repeat: u64,
    delivered: u64,
    /// The window was reduced for losses before this one.
    recovers_to: u64,
    srtt_us: u64,
    /// Times 4.
    deviation_us: u64,
    latest_rtt_us: u64,
    paced_until_us: u64,
    timer: u64,
    has_probed: bool,
    backs_off: u32,
    acked_until_us: u64,
    /// At the receiver.
    expected: u64,
    missing: u64,
    /// Numbers under way that repeat what was lost.
    repeated: BTreeSet<u64>,
    pending: Vec<u64>,
    delayed: u64,
}

pub struct Simulation {
    now_us: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    /// By their numbers in `events`.
    what: BTreeMap<u64, Event>,
    count: u64,
    link: Link,
    detour: Option<Detour>,
    is_busy: bool,
    flows: Vec<Flow>,
    rng: ChaCha8Rng,
    ran: Ran,
}

pub fn run(kind: Kind, transfers: &[Transfer], seconds: f64, seed: u64) -> Ran {
    let mut simulation = Simulation::new(kind, transfers, seconds, seed);
    simulation.go((seconds * 1e6) as u64);
    simulation.ran
}

pub fn run_with_detour(kind: Kind, transfers: &[Transfer], detour: Detour, seconds: f64, seed: u64) -> Ran {
    let mut simulation = Simulation::new(kind, transfers, seconds, seed);
    simulation.detour = Some(detour);
    simulation.go((seconds * 1e6) as u64);
    simulation.ran
}

impl Simulation {
    fn new(kind: Kind, transfers: &[Transfer], seconds: f64, seed: u64) -> Self {
        let flow = |transfer: &Transfer| Flow {
            transfer: *transfer,
            control: None,
            next: 0,
            outstanding: VecDeque::new(),
            to_repeat: 0,
            delivered: 0,
            recovers_to: 0,
            srtt_us: 0,
            deviation_us: 0,
            latest_rtt_us: 0,
            paced_until_us: 0,
            timer: 0,
            has_probed: false,
            backs_off: 0,
            acked_until_us: 0,
            expected: 0,
            missing: 0,
            repeated: BTreeSet::new(),
            pending: Vec::new(),
            delayed: 0,
        };
        let bins = (seconds * 1e6 / BIN_US as f64) as usize + 1;
        let mut simulation = Self {
            now_us: 0,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            count: 0,
            link: Link::new(kind, transfers.len()),
            detour: None,
            is_busy: false,
            flows: transfers.iter().map(flow).collect(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            ran: Ran {
                bins: vec![vec![0; bins]; transfers.len()],
            },
        };
        for (number, transfer) in transfers.iter().enumerate() {
            // Not at the same moment with each seed.
            let late_us = u64::from(simulation.rng.next_u32()) % 100_000;
            simulation.at((transfer.from_s * 1e6) as u64 + late_us, Event::Begins(number));
        }
        simulation
    }

    fn on_detour(&self) -> Option<Detour> {
        let has_begun = |detour: &Detour| self.now_us as f64 >= detour.from_s * 1e6;
        self.detour.filter(has_begun)
    }

    fn one_way_us(&self) -> u64 {
        ONE_WAY_US + self.on_detour().map_or(0, |detour| detour.by_us)
    }

    fn at(&mut self, at_us: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at_us, self.count)));
        self.what.insert(self.count, event);
    }

    fn go(&mut self, end_us: u64) {
        while let Some(Reverse((at_us, number))) = self.events.pop() {
            if at_us >= end_us {
                return;
            }
            self.now_us = at_us;
            match self.what.remove(&number).expect("each event is once there") {
                Event::Begins(flow) => self.begin(flow),
                Event::Sends(flow) => self.send(flow),
                Event::Leaves(packet) => {
                    self.at(at_us + self.one_way_us(), Event::Arrives(packet));
                    self.is_busy = false;
                    self.serve();
                }
                Event::Arrives(packet) => self.arrive(packet),
                Event::Delayed(flow, number) => {
                    if self.flows[flow].delayed == number {
                        self.acknowledge(flow);
                    }
                }
                Event::Acknowledged(flow, numbers) => self.acknowledged(flow, &numbers),
                Event::Timer(flow, number) => {
                    if self.flows[flow].timer == number {
                        self.time_out(flow);
                    }
                }
            }
        }
    }

    fn begin(&mut self, number: usize) {
        let base_us = 2 * ONE_WAY_US + self.link.waiting() * PACKET_US;
        let now_us = self.now_us;
        let flow = &mut self.flows[number];
        flow.control = Some(match flow.transfer.by {
            By::Rule => Control::background(base_us, now_us),
            By::Cubic => Control::Cubic(Cubic::default()),
        });
        (flow.srtt_us, flow.deviation_us, flow.latest_rtt_us) = (base_us, 2 * base_us, base_us);
        self.send(number);
    }

    /// As Linux does: two packets at once (tcp_tso_autosize), and not a single one where room for two is expected soon
    /// (tcp_tso_should_defer). So what is acknowledged by twos stays together.
    fn send(&mut self, number: usize) {
        loop {
            let now_us = self.now_us;
            let flow = &mut self.flows[number];
            let Some(control) = &flow.control else { return };
            let has_ended = now_us as f64 >= flow.transfer.to_s * 1e6;
            let in_flight = flow.outstanding.len() as u64;
            let window = control.cwnd(in_flight);
            let packets = window.saturating_sub(in_flight).min(2);
            let is_room_soon = flow
                .outstanding
                .front()
                .is_some_and(|first| now_us - first.at_us >= flow.srtt_us / 2);
            if has_ended || packets == 0 || (packets == 1 && window > 3 && is_room_soon) {
                return;
            }
            if let Some(percent) = control.pace_percent() {
                if flow.paced_until_us > now_us {
                    let at_us = flow.paced_until_us;
                    self.at(at_us, Event::Sends(number));
                    return;
                }
                let round_trip_us = flow.srtt_us.min(flow.latest_rtt_us);
                flow.paced_until_us = now_us + (packets * round_trip_us * 100 / percent / window).max(1);
            }
            for _ in 0..packets {
                self.send_one(number);
            }
        }
    }

    fn send_one(&mut self, number: usize) {
        let now_us = self.now_us;
        let flow = &mut self.flows[number];
        let packet = Packet::new(number, flow.next, flow.to_repeat > 0);
        if packet.is_again {
            flow.to_repeat -= 1;
            flow.repeated.insert(packet.number);
        }
        flow.outstanding.push_back(Sent {
            number: flow.next,
            at_us: now_us,
            delivered_before: flow.delivered,
        });
        flow.next += 1;
        if flow.outstanding.len() == 1 {
            self.set_timer(number);
        }
        if !self.link.take(packet, now_us, &mut self.rng) {
            return;
        }
        if self.link.queues() {
            self.serve();
        } else {
            self.at(now_us + PACKET_US + self.one_way_us(), Event::Arrives(packet));
        }
    }

    fn serve(&mut self) {
        if self.is_busy {
            return;
        }
        if let Some(packet) = self.link.give(self.now_us) {
            self.is_busy = true;
            let packet_us = PACKET_US * self.on_detour().map_or(1, |detour| detour.slower);
            self.at(self.now_us + packet_us, Event::Leaves(packet));
        }
    }

    fn arrive(&mut self, packet: Packet) {
        self.ran.bins[packet.flow][(self.now_us / BIN_US) as usize] += 1;
        let flow = &mut self.flows[packet.flow];
        // A repetition that is lost leaves no new hole.
        let repeated = (flow.expected..packet.number)
            .filter(|number| flow.repeated.contains(number))
            .count() as u64;
        flow.missing += packet.number - flow.expected - repeated;
        flow.missing = flow.missing.saturating_sub(u64::from(packet.is_again));
        flow.expected = packet.number + 1;
        flow.repeated = flow.repeated.split_off(&flow.expected);
        flow.pending.push(packet.number);
        if flow.pending.len() >= 2
            || flow.transfer.acks_each
            || flow.missing > 0
            || packet.is_again
            || flow.expected < 16
        {
            self.acknowledge(packet.flow);
        } else {
            let number = flow.delayed;
            let tick_us = u64::from(self.rng.next_u32()) % TICK_US;
            self.at(self.now_us + DELAYED_US + tick_us, Event::Delayed(packet.flow, number));
        }
    }

    fn acknowledge(&mut self, number: usize) {
        let jitter_us = self.detour.map_or(0, |detour| detour.jitter_us);
        let mut late_us = u64::from(self.rng.next_u32()) % (JITTER_US + jitter_us);
        if jitter_us > 0 && self.rng.next_u32().is_multiple_of(ONE_IN) {
            late_us += LATE_US;
        }
        let flow = &mut self.flows[number];
        let numbers = std::mem::take(&mut flow.pending);
        flow.delayed += 1;
        // They do not overtake each other.
        flow.acked_until_us = flow.acked_until_us.max(self.now_us + ONE_WAY_US + late_us);
        let at_us = flow.acked_until_us;
        self.at(at_us, Event::Acknowledged(number, numbers));
    }

    fn acknowledged(&mut self, number: usize, numbers: &[u64]) {
        let now_us = self.now_us;
        let flow = &mut self.flows[number];
        let Some(last) = numbers.last().copied() else { return };
        let in_flight = flow.outstanding.len() as u64;
        let mut latest = None;
        let mut acked = 0;
        flow.outstanding.retain(|sent| {
            let is_acked = numbers.contains(&sent.number);
            if is_acked {
                acked += 1;
                latest = Some((sent.at_us, sent.delivered_before));
            }
            !is_acked
        });
        // What was given up by a timeout arrives after all.
        let Some((at_us, delivered_before)) = latest else {
            return;
        };
        let mut lost = 0;
        let mut is_new_loss = false;
        while let Some(first) = flow.outstanding.front()
            && first.number + REORDERED <= last
        {
            is_new_loss |= first.number >= flow.recovers_to;
            lost += 1;
            flow.outstanding.pop_front();
        }
        if is_new_loss {
            flow.recovers_to = flow.next;
        }
        flow.to_repeat += lost;
        flow.delivered += acked;
        let rtt_us = now_us - at_us;
        flow.measure(rtt_us);
        (flow.has_probed, flow.backs_off) = (false, 0);
        let seen = Acked {
            now_us,
            rtt_us,
            acked,
            lost,
            in_flight,
            jitter_us: flow.deviation_us / 4,
            delivered_before,
            delivered: flow.delivered,
            is_new_loss,
        };
        if let Some(control) = &mut flow.control {
            control.acked(&seen);
        }
        self.set_timer(number);
        self.send(number);
    }

    fn set_timer(&mut self, number: usize) {
        let flow = &mut self.flows[number];
        flow.timer += 1;
        if flow.outstanding.is_empty() {
            return;
        }
        let timeout_us = (flow.srtt_us + flow.deviation_us.max(LEAST_TIMEOUT_US)) << flow.backs_off.min(6);
        let alone_us = if flow.outstanding.len() == 1 {
            LEAST_TIMEOUT_US
        } else {
            2_000
        };
        let after_us = if flow.has_probed {
            timeout_us
        } else {
            timeout_us.min(2 * flow.srtt_us + alone_us)
        };
        let timer = flow.timer;
        self.at(self.now_us + after_us, Event::Timer(number, timer));
    }

    fn time_out(&mut self, number: usize) {
        let now_us = self.now_us;
        let flow = &mut self.flows[number];
        if now_us as f64 >= flow.transfer.to_s * 1e6 {
            return;
        }
        if !flow.has_probed {
            flow.has_probed = true;
            self.send_one(number);
            self.set_timer(number);
            return;
        }
        flow.to_repeat += flow.outstanding.len() as u64;
        flow.outstanding.clear();
        flow.recovers_to = flow.next;
        flow.backs_off += 1;
        flow.paced_until_us = 0;
        if let Some(control) = &mut flow.control {
            control.timeout(now_us);
        }
        self.send(number);
    }
}

impl Flow {
    /// As tcp_rtt_estimator() does.
    fn measure(&mut self, rtt_us: u64) {
        self.latest_rtt_us = rtt_us;
        let off = rtt_us as i64 - self.srtt_us as i64;
        self.srtt_us = (self.srtt_us as i64 + off / 8).max(1) as u64;
        let more = off.abs() - (self.deviation_us / 4) as i64;
        let more = if off < 0 && more > 0 { more / 8 } else { more };
        self.deviation_us = (self.deviation_us as i64 + more).max(0) as u64;
    }
}
