// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One sender on the channel: a station, or the access point.
//!
//! Input: packets to queue, how long the channel has been idle, the outcome of its attempts. Output: the slot at which
//! it may send and the frame it sends. Its queues contend each for itself (`contender`); where two of them reach the
//! same slot, the one of the higher category sends and the other fails as in a collision (IEEE 802.11-2020, 10.23.2.4).
//! Never reads the clock or other senders.

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::access::{Access, CATEGORIES, Category, DCF};
use super::address::{Destination, Port};
use super::airtime::{BASIC_RATE, PhyRate, frame_ns};
use super::contender::{Contender, QueuedFrame};
use super::rate::RateControl;
use super::report::seconds;

/// Events of one sender since the start, in model time.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct SenderCounters {
    pub frames: u64,
    pub attempts: u64,
    pub collisions: u64,
    pub losses: u64,
    /// Between two categories of this sender, not visible to others.
    #[serde(default)]
    pub internal_collisions: u64,
    pub retry_drops: u64,
    pub queue_drops: u64,
    pub absent_drops: u64,
    #[serde(rename = "airtime_s", with = "seconds")]
    pub airtime_ns: u64,
    pub queue_max: usize,
    #[serde(skip)]
    pub queue_packet_ns: u128,
}

pub struct Sender {
    /// One, or one for each category in its order.
    contenders: Vec<Contender>,
    /// The queue that transmits, or transmitted last.
    turn: usize,
    queue_limit: usize,
    queue_changed_ns: u64,
    is_access_point: bool,
    /// Towards each receiver: one for a station, one per station for the access point.
    links: Vec<RateControl>,
    pub counters: SenderCounters,
}

impl Sender {
    /// `has_categories`: EDCA, else DCF. The limit is that of each queue.
    pub fn new(queue_limit: usize, is_access_point: bool, has_categories: bool, links: Vec<RateControl>) -> Self {
        let of_category = |category| Contender::new(Access::edca(category, is_access_point));
        Self {
            contenders: if has_categories {
                CATEGORIES.map(of_category).into()
            } else {
                vec![Contender::new(DCF)]
            },
            turn: 0,
            is_access_point,
            queue_limit,
            queue_changed_ns: 0,
            links,
            counters: SenderCounters::default(),
        }
    }

    /// From now on, towards every receiver.
    pub fn set_rate_control(&mut self, control: &RateControl) {
        self.links.fill(control.clone());
    }

    /// The frame in transmission, or the last one; with one queue, the next as well.
    pub fn head(&self) -> Option<&QueuedFrame> {
        self.contenders[self.turn].head()
    }

    pub fn queue_len(&self) -> usize {
        self.contenders.iter().map(Contender::len).sum()
    }

    /// The slot after SIFS of its next attempt, if it has anything to send.
    pub fn contends_at(&self) -> Option<u64> {
        self.contenders.iter().filter_map(Contender::contends_at).min()
    }

    /// Queues a packet. `idle_ns`: how long the channel has been idle; `None`: it is busy.
    pub fn enqueue(&mut self, packet: QueuedFrame, now_ns: u64, idle_ns: Option<u64>, rng: &mut ChaCha8Rng) {
        let index = match self.contenders.len() {
            1 => 0,
            _ => Category::of(&packet.frame) as usize,
        };
        if self.contenders[index].len() >= self.queue_limit {
            self.counters.queue_drops += 1;
            return;
        }
        self.count_queue_until(now_ns);
        self.contenders[index].push(packet, idle_ns, rng);
        self.counters.queue_max = self.counters.queue_max.max(self.queue_len());
    }

    /// A sender begins in this slot after SIFS. Returns the airtime if this sender does.
    pub fn begin(&mut self, slot: u64, now_ns: u64, rng: &mut ChaCha8Rng) -> Option<u64> {
        let mut first = None;
        for index in 0..self.contenders.len() {
            let sends = self.contenders[index].contends_at() == Some(slot);
            self.contenders[index].freeze(slot);
            if sends && first.is_some() {
                self.counters.internal_collisions += 1;
                self.retry(index, now_ns, rng);
            } else if sends {
                first = Some(index);
            }
        }
        self.turn = first?;
        self.head().map(|packet| self.airtime_ns(packet))
    }

    /// Airtime of the frame that it would send in this slot.
    pub fn airtime_ns_at(&self, slot: u64) -> Option<u64> {
        let mut contenders = self.contenders.iter();
        let first = contenders.find(|contender| contender.contends_at() == Some(slot))?;
        first.head().map(|packet| self.airtime_ns(packet))
    }

    /// Airtime of the frame at the head, at the rate of this attempt; 0 with an empty queue.
    pub fn head_airtime_ns(&self) -> u64 {
        self.head().map_or(0, |packet| self.airtime_ns(packet))
    }

    fn airtime_ns(&self, packet: &QueuedFrame) -> u64 {
        frame_ns(packet.frame.len(), self.rate_of(packet))
    }

    /// The head was sent and, where one is due, acknowledged. It backs off after success too.
    pub fn succeeded(&mut self, now_ns: u64, rng: &mut ChaCha8Rng) -> Option<QueuedFrame> {
        self.tell_rate_control(true);
        self.counters.frames += 1;
        self.finish_head(now_ns, rng)
    }

    /// The head was not acknowledged: retries later, or gives it up.
    pub fn failed(&mut self, now_ns: u64, rng: &mut ChaCha8Rng) {
        self.tell_rate_control(false);
        self.retry(self.turn, now_ns, rng);
    }

    fn retry(&mut self, index: usize, now_ns: u64, rng: &mut ChaCha8Rng) {
        if !self.contenders[index].tries_again(rng) {
            self.counters.retry_drops += 1;
            self.count_queue_until(now_ns);
            self.contenders[index].pop(rng);
        }
    }

    /// The head leaves the queue in any case.
    pub fn finish_head(&mut self, now_ns: u64, rng: &mut ChaCha8Rng) -> Option<QueuedFrame> {
        self.count_queue_until(now_ns);
        self.contenders[self.turn].pop(rng)
    }

    /// Drops the queue, except a frame that is being transmitted.
    pub fn forget_queue(&mut self, head_is_transmitting: bool, now_ns: u64) {
        self.count_queue_until(now_ns);
        for (index, contender) in self.contenders.iter_mut().enumerate() {
            let is_on_air = head_is_transmitting && index == self.turn;
            self.counters.absent_drops += contender.forget(is_on_air) as u64;
        }
    }

    /// Mean packets in the queue from the start until now.
    pub fn queue_mean(&self, now_ns: u64) -> f64 {
        let open = u128::from(now_ns - self.queue_changed_ns) * self.queue_len() as u128;
        (self.counters.queue_packet_ns + open) as f64 / now_ns.max(1) as f64
    }

    /// The rate in use, averaged over the receivers.
    pub fn rate_mbit(&self) -> f64 {
        self.links.iter().map(|link| f64::from(link.rate().mbit)).sum::<f64>() / self.links.len().max(1) as f64
    }

    fn rate_of(&self, packet: &QueuedFrame) -> PhyRate {
        self.link_of(packet).map_or(BASIC_RATE, |link| self.links[link].rate())
    }

    /// A station sends to the access point only, whatever the final destination. The access point has a link per
    /// station, and none for frames to everyone: those are neither acknowledged nor repeated.
    fn link_of(&self, packet: &QueuedFrame) -> Option<usize> {
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

    fn count_queue_until(&mut self, now_ns: u64) {
        self.counters.queue_packet_ns += u128::from(now_ns - self.queue_changed_ns) * self.queue_len() as u128;
        self.queue_changed_ns = now_ns;
    }
}
