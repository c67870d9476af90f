// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The access point, its stations and the channel between them, in model time.
//!
//! Input: frames from stations and from the server, and the model time to advance to. Output: frames to deliver, each
//! with the model time of its delivery. One event follows from the one before it, so a caller that is late delays
//! deliveries and never changes what happens on the channel. No clock, no I/O; the same seed and the same input give
//! the same output.
//!
//! The channel is slotted (IEEE 802.11-2020, 10.3.4): when it has been idle for DIFS, or the AIFS of an access
//! category, slots count, and a sender that reaches its slot transmits. Two in the same slot collide and both fail. A
//! frame is delivered when its exchange ends, that is with its acknowledgement.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::address::{Destination, Port, destination};
use super::airtime::{ACK_NS, DIFS_NS, SIFS_NS, SLOT_NS};
use super::contender::QueuedFrame;
use super::rate::RateControl;
use super::report::seconds;
use super::sender::Sender;

#[derive(Debug, Clone)]
pub struct Config {
    pub stations: usize,
    /// The initial rate control of every sender.
    pub rate_control: RateControl,
    /// EDCA, each sender with a queue per access category; else DCF.
    pub has_categories: bool,
    /// Probability that one receiver misses one frame for reasons other than a collision.
    pub loss: f64,
    /// From the access point to the server, and as long again on the way back.
    pub one_way_delay_ns: u64,
    /// Additional delay back to each station; without an entry 0.
    pub longer_ns: Vec<u64>,
    pub queue_packets: usize,
    pub seed: u64,
}

/// A frame that reaches a port at a model time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    pub at_ns: u64,
    pub to: Port,
    pub frame: Rc<[u8]>,
}

/// Events on the channel since the start, beyond each sender's own counters.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct ChannelCounters {
    #[serde(rename = "busy_s", with = "seconds")]
    pub busy_ns: u64,
    pub collisions: u64,
    /// Frames without a port: unknown addresses and truncated ones.
    pub unroutable: u64,
    pub broadcast: BroadcastCounters,
    /// Frames from one station to another, on both legs; airtime as below.
    #[serde(rename = "between_stations_airtime_s", with = "seconds")]
    pub between_stations_airtime_ns: u64,
}

/// Frames to everyone. Airtime includes the DIFS before every attempt, and on the uplink SIFS and the acknowledgement;
/// failed attempts count as well.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct BroadcastCounters {
    pub uplink_frames: u64,
    #[serde(rename = "uplink_airtime_s", with = "seconds")]
    pub uplink_airtime_ns: u64,
    pub repeated_frames: u64,
    #[serde(rename = "repeat_airtime_s", with = "seconds")]
    pub repeat_airtime_ns: u64,
    pub copies_delivered: u64,
    pub copies_lost: u64,
}

pub struct Medium {
    config: Config,
    now_ns: u64,
    /// The stations in order, then the access point.
    senders: Vec<Sender>,
    present: Vec<bool>,
    exchange: Option<Exchange>,
    idle_from_ns: u64,
    to_server: VecDeque<(u64, Rc<[u8]>)>,
    /// By time of arrival, and in the order of sending.
    from_server: BTreeMap<(u64, u64), QueuedFrame>,
    sent_by_server: u64,
    rng: ChaCha8Rng,
    pub counters: ChannelCounters,
}

/// Frames that are transmitted together; more than one is a collision.
struct Exchange {
    transmitting: Vec<usize>,
    longest_ns: u64,
    ends_ns: u64,
}

enum Event {
    FromServer,
    ToServer,
    ExchangeEnds,
    ExchangeStarts { slot: u64 },
}

impl Medium {
    pub fn new(config: Config) -> Self {
        let links = |count| vec![config.rate_control.clone(); count];
        let sender = |is_ap, links| Sender::new(config.queue_packets, is_ap, config.has_categories, links);
        let mut senders: Vec<Sender> = (0..config.stations).map(|_| sender(false, links(1))).collect();
        senders.push(sender(true, links(config.stations)));
        Self {
            now_ns: 0,
            senders,
            present: vec![true; config.stations],
            exchange: None,
            idle_from_ns: 0,
            to_server: VecDeque::new(),
            from_server: BTreeMap::new(),
            sent_by_server: 0,
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            counters: ChannelCounters::default(),
            config,
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub fn stations(&self) -> &[Sender] {
        &self.senders[..self.config.stations]
    }

    pub fn access_point(&self) -> &Sender {
        &self.senders[self.config.stations]
    }

    pub fn is_present(&self, station: usize) -> bool {
        self.present.get(station).copied().unwrap_or(false)
    }

    /// A frame enters at `from`, now.
    pub fn offer(&mut self, from: Port, frame: Rc<[u8]>) {
        let Some(to) = destination(&frame, self.config.stations) else {
            self.counters.unroutable += 1;
            return;
        };
        let packet = QueuedFrame { from, to, frame };
        match from {
            Port::Server => {
                self.sent_by_server += 1;
                let due_ns = self.now_ns + self.config.one_way_delay_ns + self.longer_ns(to);
                self.from_server.insert((due_ns, self.sent_by_server), packet);
            }
            Port::Station(index) if self.is_present(index) => self.enqueue(index, packet),
            Port::Station(index) => {
                if let Some(sender) = self.senders.get_mut(index) {
                    sender.counters.absent_drops += 1;
                }
            }
        }
    }

    fn longer_ns(&self, to: Destination) -> u64 {
        match to {
            Destination::One(Port::Station(index)) => self.config.longer_ns.get(index).copied().unwrap_or(0),
            _ => 0,
        }
    }

    /// Removes a station from the channel, with its queue, or restores it.
    pub fn set_present(&mut self, station: usize, present: bool) {
        self.present[station] = present;
        if !present {
            let exchange = self.exchange.as_ref();
            let transmitting = exchange.is_some_and(|exchange| exchange.transmitting.contains(&station));
            self.senders[station].forget_queue(transmitting, self.now_ns);
        }
    }

    /// From now on, for every sender.
    pub fn set_rate_control(&mut self, control: &RateControl) {
        self.senders
            .iter_mut()
            .for_each(|sender| sender.set_rate_control(control));
    }

    /// Lets time pass until `to_ns` and appends what is delivered meanwhile, in order.
    pub fn advance(&mut self, to_ns: u64, releases: &mut Vec<Release>) {
        while let Some((at_ns, event)) = self.next_event().filter(|(at_ns, _)| *at_ns <= to_ns) {
            self.now_ns = at_ns;
            match event {
                Event::FromServer => self.arrive_from_server(),
                Event::ToServer => self.arrive_at_server(releases),
                Event::ExchangeStarts { slot } => self.start_exchange(slot),
                Event::ExchangeEnds => self.end_exchange(releases),
            }
        }
        self.now_ns = self.now_ns.max(to_ns);
    }

    /// No frame can be delivered before this time unless another one enters first.
    pub fn next_release_ns(&self) -> Option<u64> {
        match self.next_event()? {
            // The shortest exchange that could follow bounds a start.
            (at_ns, Event::ExchangeStarts { slot }) => {
                let airtime_ns = self.senders.iter().filter_map(|sender| sender.airtime_ns_at(slot));
                let longest_ns = airtime_ns.max().unwrap_or(0);
                let others = [
                    self.to_server.front().map(|(due, _)| *due),
                    self.from_server.keys().next().map(|(due, _)| *due),
                ];
                others.into_iter().flatten().chain([at_ns + longest_ns]).min()
            }
            (at_ns, _) => Some(at_ns),
        }
    }

    /// The earliest event; at equal times, one that needs no channel first.
    fn next_event(&self) -> Option<(u64, Event)> {
        let channel = match &self.exchange {
            Some(exchange) => Some((exchange.ends_ns, Event::ExchangeEnds)),
            None => self.senders.iter().filter_map(Sender::contends_at).min().map(|slot| {
                (
                    self.idle_from_ns + SIFS_NS + slot * SLOT_NS,
                    Event::ExchangeStarts { slot },
                )
            }),
        };
        let to_server = self.to_server.front().map(|(due_ns, _)| (*due_ns, Event::ToServer));
        let from_server = self.from_server.keys().next();
        let from_server = from_server.map(|(due_ns, _)| (*due_ns, Event::FromServer));
        [to_server, from_server, channel]
            .into_iter()
            .flatten()
            .min_by_key(|(at_ns, _)| *at_ns)
    }

    fn arrive_from_server(&mut self) {
        if let Some((_, packet)) = self.from_server.pop_first()
            && packet.to != Destination::One(Port::Server)
        {
            self.enqueue(self.config.stations, packet);
        }
    }

    fn arrive_at_server(&mut self, releases: &mut Vec<Release>) {
        if let Some((at_ns, frame)) = self.to_server.pop_front() {
            releases.push(Release {
                at_ns,
                to: Port::Server,
                frame,
            });
        }
    }

    fn enqueue(&mut self, sender: usize, packet: QueuedFrame) {
        let idle_ns = self.exchange.is_none().then(|| self.now_ns - self.idle_from_ns);
        self.senders[sender].enqueue(packet, self.now_ns, idle_ns, &mut self.rng);
    }

    fn start_exchange(&mut self, slot: u64) {
        let mut transmitting = Vec::new();
        let mut longest_ns = 0;
        for (index, sender) in self.senders.iter_mut().enumerate() {
            if let Some(airtime_ns) = sender.begin(slot, self.now_ns, &mut self.rng) {
                transmitting.push(index);
                longest_ns = longest_ns.max(airtime_ns);
            }
        }
        // Nobody waits for an acknowledgement of a frame to everyone. After a failure the senders wait as long for the
        // missing one, and the others, who could not decode the frame, for EIFS.
        let unacknowledged = matches!(transmitting[..], [only] if !self.senders[only].head_is_acknowledged());
        let response_ns = if unacknowledged { 0 } else { SIFS_NS + ACK_NS };
        self.exchange = Some(Exchange {
            transmitting,
            longest_ns,
            ends_ns: self.now_ns + longest_ns + response_ns,
        });
    }

    fn end_exchange(&mut self, releases: &mut Vec<Release>) {
        let Some(exchange) = self.exchange.take() else {
            return;
        };
        self.idle_from_ns = self.now_ns;
        let collided = exchange.transmitting.len() > 1;
        self.counters.collisions += u64::from(collided);
        self.counters.busy_ns += exchange.longest_ns;
        for index in exchange.transmitting {
            let received = !collided && !self.is_missed(index);
            self.count_attempt(index, collided, received);
            if received {
                self.succeed(index, releases);
            } else {
                self.fail(index);
            }
        }
    }

    /// Whether the one receiver of a frame that is transmitted alone fails to acknowledge it. Frames to everyone have
    /// several receivers, each decided when they are delivered.
    fn is_missed(&mut self, sender: usize) -> bool {
        let Some(head) = self.senders[sender].head() else {
            return true;
        };
        let receiver_present = match head.to {
            _ if sender < self.config.stations => self.present[sender],
            Destination::One(Port::Station(index)) => self.present[index],
            Destination::Everyone => return false,
            Destination::One(Port::Server) => true,
        };
        !receiver_present || self.is_lost()
    }

    fn is_lost(&mut self) -> bool {
        f64::from(self.rng.next_u32()) < self.config.loss * (f64::from(u32::MAX) + 1.0)
    }

    fn count_attempt(&mut self, index: usize, collided: bool, received: bool) {
        let sender = &mut self.senders[index];
        let acknowledged = received && sender.head_is_acknowledged();
        let response_ns = if acknowledged { SIFS_NS + ACK_NS } else { 0 };
        let airtime_ns = sender.head_airtime_ns() + response_ns;
        sender.counters.attempts += 1;
        sender.counters.airtime_ns += airtime_ns;
        sender.counters.collisions += u64::from(collided);
        sender.counters.losses += u64::from(!collided && !received);
        self.counters.busy_ns += response_ns;
        let Some(head) = sender.head() else { return };
        if let (Port::Station(_), Destination::One(Port::Station(_))) = (head.from, head.to) {
            self.counters.between_stations_airtime_ns += DIFS_NS + airtime_ns;
        }
        if head.to == Destination::Everyone {
            let broadcast = &mut self.counters.broadcast;
            if index < self.config.stations {
                broadcast.uplink_frames += u64::from(received);
                broadcast.uplink_airtime_ns += DIFS_NS + airtime_ns;
            } else {
                broadcast.repeated_frames += 1;
                broadcast.repeat_airtime_ns += DIFS_NS + airtime_ns;
            }
        }
    }

    fn succeed(&mut self, index: usize, releases: &mut Vec<Release>) {
        let Some(packet) = self.senders[index].succeeded(self.now_ns, &mut self.rng) else {
            return;
        };
        match packet.to {
            Destination::One(Port::Server) => {
                self.to_server
                    .push_back((self.now_ns + self.config.one_way_delay_ns, packet.frame));
            }
            _ if index < self.config.stations => self.enqueue(self.config.stations, packet),
            Destination::One(to) => releases.push(Release {
                at_ns: self.now_ns,
                to,
                frame: packet.frame,
            }),
            Destination::Everyone => self.deliver_to_everyone(&packet, releases),
        }
    }

    fn deliver_to_everyone(&mut self, packet: &QueuedFrame, releases: &mut Vec<Release>) {
        for station in self.hearers_of(packet.from) {
            if self.is_lost() {
                self.counters.broadcast.copies_lost += 1;
            } else {
                self.counters.broadcast.copies_delivered += 1;
                releases.push(Release {
                    at_ns: self.now_ns,
                    to: Port::Station(station),
                    frame: Rc::clone(&packet.frame),
                });
            }
        }
    }

    fn hearers_of(&self, from: Port) -> Vec<usize> {
        (0..self.config.stations)
            .filter(|&index| self.present[index] && Port::Station(index) != from)
            .collect()
    }

    fn fail(&mut self, index: usize) {
        let sender = &self.senders[index];
        let gone = index < self.config.stations && !self.present[index];
        let unacknowledged = sender.head().filter(|_| !sender.head_is_acknowledged());
        if let Some(from) = unacknowledged.map(|packet| packet.from) {
            self.counters.broadcast.copies_lost += self.hearers_of(from).len() as u64;
            self.senders[index].finish_head(self.now_ns, &mut self.rng);
        } else if gone {
            self.senders[index].finish_head(self.now_ns, &mut self.rng);
        } else {
            self.senders[index].failed(self.now_ns, &mut self.rng);
        }
    }
}
