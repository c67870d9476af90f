// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bottleneck: what it does with a packet. In come packets and times, out go packets in the order in which they leave.
//! FIFO, CoDel (RFC 8289), fq_codel (RFC 8290), a policer (a token bucket without a queue), and random loss.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

pub const PACKET_BYTES: u64 = 1514;
pub const RATE_MBIT: f64 = 20.0;
pub const PACKET_US: u64 = (PACKET_BYTES as f64 * 8.0 / RATE_MBIT) as u64;
const CODEL_TARGET_US: u64 = 5_000;
const CODEL_INTERVAL_US: u64 = 100_000;
const AQM_PACKETS: usize = 1_000;
const BUCKET_BYTES: f64 = 60_000.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Fifo {
        ms: u64,
    },
    CoDel,
    FqCoDel,
    Policer,
    /// Before a FIFO of 100 ms.
    Loss {
        share: f64,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub flow: usize,
    /// In the order in which its flow has sent them.
    pub number: u64,
    pub is_again: bool,
    queued_us: u64,
}

impl Packet {
    pub fn new(flow: usize, number: u64, is_again: bool) -> Self {
        Self {
            flow,
            number,
            is_again,
            queued_us: 0,
        }
    }
}

#[derive(Default)]
struct CoDel {
    packets: VecDeque<Packet>,
    first_above_us: Option<u64>,
    is_dropping: bool,
    drop_next_us: u64,
    count: u32,
    last_count: u32,
}

pub struct Link {
    kind: Kind,
    fifo: VecDeque<Packet>,
    /// Of each flow.
    queues: Vec<Sub>,
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    tokens: f64,
    filled_us: u64,
}

#[derive(Default)]
struct Sub {
    codel: CoDel,
    credit: i64,
    is_listed: bool,
}

impl Link {
    pub fn new(kind: Kind, flows: usize) -> Self {
        Self {
            kind,
            fifo: VecDeque::new(),
            queues: (0..flows.max(1)).map(|_| Sub::default()).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            tokens: BUCKET_BYTES,
            filled_us: 0,
        }
    }

    /// Whether packets wait here; else they pass at once.
    pub fn queues(&self) -> bool {
        self.kind != Kind::Policer
    }

    /// Packets that whoever comes now waits for.
    pub fn waiting(&self) -> u64 {
        let waiting = match self.kind {
            Kind::CoDel => self.queues[0].codel.packets.len(),
            _ => self.fifo.len(),
        };
        waiting as u64
    }

    /// False: it is lost.
    pub fn take(&mut self, mut packet: Packet, now_us: u64, rng: &mut ChaCha8Rng) -> bool {
        packet.queued_us = now_us;
        match self.kind {
            Kind::Fifo { ms } => self.take_fifo(packet, ms),
            Kind::Loss { share } => {
                let is_lost = f64::from(rng.next_u32()) < share * (f64::from(u32::MAX) + 1.0);
                !is_lost && self.take_fifo(packet, 100)
            }
            Kind::CoDel => {
                let fits = self.queues[0].codel.packets.len() < AQM_PACKETS;
                if fits {
                    self.queues[0].codel.packets.push_back(packet);
                }
                fits
            }
            Kind::FqCoDel => {
                if self.queues.iter().map(|sub| sub.codel.packets.len()).sum::<usize>() >= AQM_PACKETS {
                    return false;
                }
                let sub = &mut self.queues[packet.flow];
                sub.codel.packets.push_back(packet);
                if !sub.is_listed {
                    (sub.is_listed, sub.credit) = (true, PACKET_BYTES as i64);
                    self.new.push_back(packet.flow);
                }
                true
            }
            Kind::Policer => {
                let passed_s = (now_us - self.filled_us) as f64 / 1e6;
                self.filled_us = now_us;
                self.tokens = (self.tokens + passed_s * RATE_MBIT * 125_000.0).min(BUCKET_BYTES);
                let passes = self.tokens >= PACKET_BYTES as f64;
                if passes {
                    self.tokens -= PACKET_BYTES as f64;
                }
                passes
            }
        }
    }

    fn take_fifo(&mut self, packet: Packet, ms: u64) -> bool {
        let fits = (self.fifo.len() as u64) < ms * 1000 / PACKET_US;
        if fits {
            self.fifo.push_back(packet);
        }
        fits
    }

    /// The next one that leaves.
    pub fn give(&mut self, now_us: u64) -> Option<Packet> {
        match self.kind {
            Kind::Fifo { .. } | Kind::Loss { .. } => self.fifo.pop_front(),
            Kind::CoDel => self.queues[0].codel.give(now_us),
            Kind::FqCoDel => self.give_fair(now_us),
            Kind::Policer => None,
        }
    }

    fn give_fair(&mut self, now_us: u64) -> Option<Packet> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let flow = *list.front()?;
            let sub = &mut self.queues[flow];
            if sub.credit <= 0 {
                sub.credit += PACKET_BYTES as i64;
                list.pop_front();
                self.old.push_back(flow);
                continue;
            }
            match sub.codel.give(now_us) {
                Some(packet) => {
                    sub.credit -= PACKET_BYTES as i64;
                    return Some(packet);
                }
                None => {
                    list.pop_front();
                    if is_new && !self.old.is_empty() {
                        self.old.push_back(flow);
                    } else {
                        sub.is_listed = false;
                    }
                }
            }
        }
    }
}

impl CoDel {
    fn first(&mut self, now_us: u64) -> (Option<Packet>, bool) {
        let Some(packet) = self.packets.pop_front() else {
            self.first_above_us = None;
            return (None, false);
        };
        if now_us - packet.queued_us < CODEL_TARGET_US || self.packets.is_empty() {
            self.first_above_us = None;
            return (Some(packet), false);
        }
        let since = *self.first_above_us.get_or_insert(now_us + CODEL_INTERVAL_US);
        (Some(packet), now_us >= since)
    }

    fn law(&self, from_us: u64) -> u64 {
        from_us + (CODEL_INTERVAL_US as f64 / f64::from(self.count).sqrt()) as u64
    }

    fn give(&mut self, now_us: u64) -> Option<Packet> {
        let (mut packet, mut drops) = self.first(now_us);
        if self.is_dropping {
            if !drops {
                self.is_dropping = false;
            }
            while self.is_dropping && now_us >= self.drop_next_us {
                self.count += 1;
                (packet, drops) = self.first(now_us);
                if drops {
                    self.drop_next_us = self.law(self.drop_next_us);
                } else {
                    self.is_dropping = false;
                }
            }
        } else if drops {
            (packet, _) = self.first(now_us);
            self.is_dropping = true;
            let delta = self.count - self.last_count;
            let was_recent = now_us.saturating_sub(self.drop_next_us) < 16 * CODEL_INTERVAL_US;
            self.count = if delta > 1 && was_recent { delta } else { 1 };
            self.drop_next_us = self.law(now_us);
            self.last_count = self.count;
        }
        packet
    }
}
