// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A capacity that nobody configured: what all senders get together, as they report it, is what the air carries; each
//! gets its share of that, and a little more, so that what is left over is found. cwnd and pacing rate are limited
//! together. `docs/shares.md` has the reasoning.
//!
//! Keeps no state: devices that heard the same reports decide the same, however long each of them has been there.

use std::time::Duration;

use super::{Allotment, FLOOR_SEGMENTS, Link, Member};
use crate::config::{Cap, Prefer};
use crate::network::limits::Limits;
use crate::wire::{Class, Direction};

/// TCP payload of a segment: what is on the link, less IP and TCP headers with timestamps.
const HEADER_BYTES: u32 = 52;
/// Of the queue that `prefer` allows this part is aimed at; the rest is for bursts and for reports that are late.
const AIM: f64 = 0.6;
/// While there is no queue, all may grow by this more each round trip.
const SEARCH: f64 = 1.25;
/// In flight beside the share: what a receiver that acknowledges every second segment holds back, and one that is sent.
const HELD_BACK_SEGMENTS: f64 = 3.0;
/// A queue below this part of what is aimed at is none.
const NO_QUEUE: f64 = 0.25;
/// Pacing above the share, so that cwnd and not the pacing rate holds a connection in the long run.
const PACING: f64 = 1.1;
/// Who gets less than this part of its share does not want more, or cannot have it: others may.
const CONTENT: f64 = 0.75;
/// A rate that cwnd over RTT puts below this part of the measured one is falling; less is noise, of which the lower one
/// would always win.
const FALLING: f64 = 0.85;
/// What one neighbour says of itself counts up to so many times the median.
const TRUSTED: f64 = 3.0;

/// Queueing that a preference allows: a part of the minimum RTT, or so much where that is more.
fn allowed_s(prefer: Prefer, min_rtt_s: f64) -> f64 {
    let (part, least_s) = match prefer {
        Prefer::Balanced => (0.25, 0.015),
        Prefer::Delay => (0.1, 0.005),
        Prefer::Throughput => (0.5, 0.030),
    };
    (part * min_rtt_s).max(least_s)
}

/// Shares of those who all want more than they get.
fn weight(class: Class) -> f64 {
    match class {
        Class::Realtime | Class::Stream => 4.0,
        Class::Standard => 1.0,
        Class::Bulk => 0.5,
        Class::Background => 0.0625,
    }
}

/// One connection of the group, as everybody knows it.
#[derive(Clone, Copy, Debug)]
struct Known {
    rate: f64,
    cwnd_bytes: f64,
    min_rtt_s: f64,
    srtt_s: f64,
    weight: f64,
}

/// What follows from all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Found {
    /// All together, bytes a second.
    capacity: f64,
    /// Of a connection of weight 1 that wants all it can get.
    share: f64,
    /// The queue that is aimed at.
    aim_s: f64,
    /// The part of it that there is.
    queue: f64,
}

pub struct FoundCapacity {
    prefer: Prefer,
    segment_bytes: f64,
    floor: f64,
}

impl FoundCapacity {
    pub fn from_config(cap: &Cap) -> Self {
        Self {
            prefer: cap.prefer,
            segment_bytes: f64::from(cap.segment_bytes.saturating_sub(HEADER_BYTES).max(1)),
            floor: cap.floor_mbit * 125_000.0,
        }
    }

    fn neighbours(&self, link: &Link<'_>) -> Vec<Known> {
        let mut known = Vec::new();
        for peer in link.neighbours.peers().filter(|peer| peer.believed) {
            let senders = peer.senders.iter().filter(|sender| sender.direction == Direction::Up);
            let count = senders.clone().count() as f64;
            known.extend(senders.map(|sender| Known {
                rate: f64::from(sender.delivery_rate_kbit) * 125.0,
                cwnd_bytes: f64::from(sender.cwnd_segments) * self.segment_bytes,
                min_rtt_s: f64::from(sender.min_rtt_us) / 1e6,
                srtt_s: f64::from(sender.srtt_us) / 1e6,
                weight: weight(sender.class) / count,
            }));
        }
        known
    }

    fn own(&self, members: &[Member]) -> Vec<Known> {
        let of = |member: &Member| Known {
            rate: member.delivery_rate_bytes_per_s as f64,
            cwnd_bytes: f64::from(member.cwnd) * self.segment_bytes,
            min_rtt_s: member.min_rtt.as_secs_f64(),
            srtt_s: member.rtt.as_secs_f64(),
            weight: weight(member.class) * f64::from(member.weight.max(1)) / members.len() as f64,
        };
        members.iter().map(of).collect()
    }

    /// None while nothing is known yet.
    fn find(&self, mut known: Vec<Known>) -> Option<Found> {
        known.retain(|one| one.min_rtt_s > 0.0 && one.srtt_s > 0.0);
        // What is in flight over the time it takes is the rate as well (Little), and shows a fall sooner.
        for one in &mut known {
            let by_flight = one.cwnd_bytes / one.srtt_s;
            if by_flight < FALLING * one.rate {
                one.rate = by_flight;
            }
        }
        let trusted = TRUSTED * median(known.iter().map(|one| one.rate))?;
        for one in &mut known {
            one.rate = one.rate.min(trusted);
        }
        let capacity: f64 = known.iter().map(|one| one.rate).sum();
        let aim_s = known
            .iter()
            .map(|one| AIM * allowed_s(self.prefer, one.min_rtt_s))
            .fold(f64::INFINITY, f64::min);
        let queue_s = median(known.iter().map(|one| (one.srtt_s - one.min_rtt_s).max(0.0)))?;
        (capacity > 0.0).then(|| Found {
            capacity,
            share: level(&known, capacity),
            aim_s,
            queue: queue_s / aim_s,
        })
    }

    fn limits(&self, found: &Found, weight: f64, min_rtt_s: f64) -> Limits {
        let share = (found.share * weight).max(self.floor);
        let search = if found.queue < NO_QUEUE { SEARCH } else { 1.0 };
        let cwnd = search * share * (min_rtt_s + found.aim_s) / self.segment_bytes + HELD_BACK_SEGMENTS;
        let cwnd = (cwnd as u32).clamp(FLOOR_SEGMENTS, i32::MAX as u32 - 1);
        // Never so slow that the floor of cwnd takes longer than the path.
        let least = f64::from(FLOOR_SEGMENTS) * self.segment_bytes / (min_rtt_s + found.aim_s);
        Limits {
            cwnd: Some(cwnd),
            pacing_rate_bytes_per_s: Some((search * PACING * share).max(least) as u64),
        }
    }
}

/// Weighted max-min: the share of weight 1, where those who get less than theirs leave the rest to the others.
fn level(known: &[Known], capacity: f64) -> f64 {
    let mut content: Vec<bool> = vec![false; known.len()];
    loop {
        let with = |is: bool| known.iter().zip(&content).filter(move |(_, content)| **content == is);
        let taken: f64 = with(true).map(|(one, _)| one.rate).sum();
        let weights: f64 = with(false).map(|(one, _)| one.weight).sum();
        let share = (capacity - taken).max(0.0) / weights.max(f64::MIN_POSITIVE);
        let next: Vec<bool> = known
            .iter()
            .zip(&content)
            .map(|(one, was)| *was || one.rate < CONTENT * share * one.weight)
            .collect();
        if next == content || next.iter().all(|content| *content) {
            return share;
        }
        content = next;
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

impl Allotment for FoundCapacity {
    fn name(&self) -> &'static str {
        "found"
    }

    fn allot(&mut self, _: Duration, link: &Link<'_>, members: &[Member]) -> Vec<Limits> {
        let own = self.own(members);
        let mut known = self.neighbours(link);
        known.extend(&own);
        let Some(found) = self.find(known) else {
            return vec![Limits::default(); members.len()];
        };
        own.iter()
            .map(|one| self.limits(&found, one.weight, one.min_rtt_s))
            .collect()
    }

    fn newcomer(&self, link: &Link<'_>, rtt: Duration) -> Limits {
        let connections = f64::from(link.sharing.with_one_more().connections);
        match self.find(self.neighbours(link)) {
            Some(found) => self.limits(&found, weight(Class::Standard) / connections, rtt.as_secs_f64()),
            None => Limits::default(),
        }
    }

    fn reason(&self, link: &Link<'_>, rtt: Duration) -> String {
        let known = self.neighbours(link);
        match self.find(known) {
            Some(found) => format!(
                "the neighbours get {:.2} Mbit/s; a share is {:.2} Mbit/s, for {:.0} ms and a queue of {:.0} ms",
                found.capacity / 125_000.0,
                found.share / 125_000.0,
                rtt.as_secs_f64() * 1e3,
                found.aim_s * 1e3
            ),
            None => "no neighbour sends; what this device gets itself is what there is".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
