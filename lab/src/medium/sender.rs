// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One contender for the air: a station, or the access point.
//!
//! In: packets to queue, how many idle slots passed, how its attempts went. Out: the slot at which it may
//! send and the frame it sends. Follows the DCF access procedure of IEEE 802.11-2020, 10.3.4. Never looks at
//! the clock or at other senders.

use std::collections::VecDeque;
use std::rc::Rc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use super::address::{Destination, Port};
use super::airtime::{BASIC_RATE, Rate, frame_ns};
use super::rate::RateControl;

const CW_MIN: u64 = 15;
const CW_MAX: u64 = 1_023;
/// `dot11ShortRetryLimit`: attempts before a frame is given up.
pub const RETRY_LIMIT: u32 = 7;

/// A frame waiting for its turn on the air. `from` is the port where it entered.
#[derive(Debug, Clone)]
pub struct Packet {
    pub from: Port,
    pub to: Destination,
    pub frame: Rc<[u8]>,
}

/// What happened to one sender since the start, in model time.
#[derive(Debug, Clone, Default)]
pub struct SenderCounters {
    pub frames: u64,
    pub attempts: u64,
    pub collisions: u64,
    pub losses: u64,
    pub retry_drops: u64,
    pub queue_drops: u64,
    pub absent_drops: u64,
    pub airtime_ns: u64,
    pub queue_max: usize,
    pub queue_packet_ns: u128,
}

pub struct Sender {
    queue: VecDeque<Packet>,
    queue_limit: usize,
    queue_changed_ns: u64,
    contention_window: u64,
    failed_attempts: u32,
    /// The slot of the current idle period at which it may send; while the air is busy, what is left.
    slot: u64,
    is_access_point: bool,
    /// Towards each receiver: one for a station, one per station for the access point.
    links: Vec<RateControl>,
    pub counters: SenderCounters,
}

impl Sender {
    pub fn station(queue_limit: usize, link: RateControl) -> Self {
        Self::new(queue_limit, false, vec![link])
    }

    pub fn access_point(queue_limit: usize, link: RateControl, stations: usize) -> Self {
        Self::new(queue_limit, true, vec![link; stations])
    }

    fn new(queue_limit: usize, is_access_point: bool, links: Vec<RateControl>) -> Self {
        Self {
            is_access_point,
            queue: VecDeque::new(),
            queue_limit,
            queue_changed_ns: 0,
            contention_window: CW_MIN,
            failed_attempts: 0,
            slot: 0,
            links,
            counters: SenderCounters::default(),
        }
    }

    pub fn head(&self) -> Option<&Packet> {
        self.queue.front()
    }

    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// The slot of its next attempt, if it has anything to send.
    pub fn contends_at(&self) -> Option<u64> {
        (!self.queue.is_empty()).then_some(self.slot)
    }

    /// Queues a packet. `idle_slot` is the next slot boundary when the air has been idle for DIFS; `None`
    /// when it has not, and then a sender that was at rest must back off like the others.
    pub fn enqueue(&mut self, packet: Packet, now_ns: u64, idle_slot: Option<u64>, rng: &mut ChaCha8Rng) {
        if self.queue.len() >= self.queue_limit {
            self.counters.queue_drops += 1;
            return;
        }
        if self.queue.is_empty() {
            match idle_slot {
                Some(slot) => self.slot = self.slot.max(slot),
                None if self.slot == 0 => self.back_off(rng),
                None => {}
            }
        }
        self.count_queue_until(now_ns);
        self.queue.push_back(packet);
        self.counters.queue_max = self.counters.queue_max.max(self.queue.len());
    }

    /// The air became busy after `idle_slots`: the counter freezes at what is left.
    pub fn freeze(&mut self, idle_slots: u64) {
        self.slot = self.slot.saturating_sub(idle_slots);
    }

    /// Air time of the frame at the head, at the rate of this attempt; 0 with an empty queue.
    pub fn head_air_ns(&self) -> u64 {
        self.head()
            .map_or(0, |packet| frame_ns(packet.frame.len(), self.rate_of(packet)))
    }

    /// The head was sent and, where one is due, acknowledged. It backs off after success too.
    pub fn succeeded(&mut self, now_ns: u64, rng: &mut ChaCha8Rng) -> Option<Packet> {
        self.tell_rate_control(true);
        self.counters.frames += 1;
        self.finish_head(now_ns, rng)
    }

    /// The head was not acknowledged: try again later, or give it up.
    pub fn failed(&mut self, now_ns: u64, rng: &mut ChaCha8Rng) -> Option<Packet> {
        self.tell_rate_control(false);
        self.failed_attempts += 1;
        if self.failed_attempts >= RETRY_LIMIT {
            self.counters.retry_drops += 1;
            return self.finish_head(now_ns, rng);
        }
        self.contention_window = (self.contention_window * 2 + 1).min(CW_MAX);
        self.back_off(rng);
        None
    }

    /// The head leaves the queue, whatever became of it; the next one starts afresh.
    pub fn finish_head(&mut self, now_ns: u64, rng: &mut ChaCha8Rng) -> Option<Packet> {
        self.contention_window = CW_MIN;
        self.failed_attempts = 0;
        self.back_off(rng);
        self.count_queue_until(now_ns);
        self.queue.pop_front()
    }

    /// Forgets what is queued, but for a frame that is on the air already.
    pub fn forget_queue(&mut self, head_is_on_air: bool, now_ns: u64) {
        let keep = usize::from(head_is_on_air);
        if keep == 0 {
            self.contention_window = CW_MIN;
            self.failed_attempts = 0;
        }
        self.count_queue_until(now_ns);
        self.counters.absent_drops += self.queue.len().saturating_sub(keep) as u64;
        self.queue.truncate(keep);
    }

    /// Mean packets in the queue from the start until now.
    pub fn queue_mean(&self, now_ns: u64) -> f64 {
        let open = u128::from(now_ns - self.queue_changed_ns) * self.queue.len() as u128;
        (self.counters.queue_packet_ns + open) as f64 / now_ns.max(1) as f64
    }

    /// The rate in use, averaged over the receivers.
    pub fn rate_mbit(&self) -> f64 {
        self.links.iter().map(|link| f64::from(link.rate().mbit)).sum::<f64>() / self.links.len().max(1) as f64
    }

    fn rate_of(&self, packet: &Packet) -> Rate {
        self.link_of(packet).map_or(BASIC_RATE, |link| self.links[link].rate())
    }

    /// A station talks to the access point only, whoever the frame is for in the end. The access point has
    /// a link per station, and none for frames to everyone: those are neither acknowledged nor repeated.
    fn link_of(&self, packet: &Packet) -> Option<usize> {
        match packet.to {
            _ if !self.is_access_point => Some(0),
            Destination::One(Port::Station(index)) => Some(index),
            _ => None,
        }
    }

    pub fn head_is_acknowledged(&self) -> bool {
        self.head().is_some_and(|packet| self.link_of(packet).is_some())
    }

    fn tell_rate_control(&mut self, acknowledged: bool) {
        if let Some(link) = self.head().and_then(|packet| self.link_of(packet)) {
            self.links[link].attempted(acknowledged);
        }
    }

    fn back_off(&mut self, rng: &mut ChaCha8Rng) {
        // The window is 2^k - 1, so a mask is uniform.
        self.slot = u64::from(rng.next_u32()) & self.contention_window;
    }

    fn count_queue_until(&mut self, now_ns: u64) {
        self.counters.queue_packet_ns += u128::from(now_ns - self.queue_changed_ns) * self.queue.len() as u128;
        self.queue_changed_ns = now_ns;
    }
}
