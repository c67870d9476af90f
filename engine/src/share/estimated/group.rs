// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a device knows of the connections that share its air: its own as the kernel shows them, its peers' as they
//! report them. Whatever a peer says is bounded before it counts.

use super::super::{HEADER_BYTES, Link, Member};
use super::sample::DeviceDemand;
use crate::model::Class;
use crate::peers::{Peer, Sender, UNLIMITED_KBIT};

/// In flight beside the share: what a receiver that acknowledges every second segment holds back, and one that is sent.
pub const HELD_BACK_SEGMENTS: f64 = 3.0;

/// Shares of those who all want more than they get.
pub fn weight(class: Class) -> f64 {
    match class {
        Class::Realtime | Class::Stream => 4.0,
        Class::Standard => 1.0,
        Class::Bulk => 0.5,
        Class::Background => 0.0625,
    }
}

/// A connection that sends.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    pub cwnd_bytes: f64,
    /// At most: of one that has little to send, what it has.
    pub in_flight_bytes: f64,
    pub rate: f64,
    pub min_rtt_s: f64,
    pub srtt_s: f64,
    /// Of the latest packet; a peer's is not told.
    pub latest_rtt_s: Option<f64>,
    pub weight: f64,
    /// The weight of its limits: of one that lends a part of it, still all.
    pub may_have: f64,
    /// Of what its device says: each device counts once, however many senders it lists.
    pub voice: f64,
    /// cwnd is what holds it.
    pub wants_more: bool,
    /// It repeats what was lost, and sees no queue meanwhile. A peer does not say so.
    pub is_repeating: bool,
}

impl Sending {
    /// What is in flight over the time it takes (Little). Sooner right than the delivery rate, and above it by what was
    /// lost.
    pub fn rate(&self) -> f64 {
        let in_flight = self.in_flight_bytes / self.srtt_s;
        self.rate.clamp(0.5 * in_flight, in_flight)
    }

    /// Its part of what all may have, where weight 1 may have `share`: who wants less has no more than what it gets.
    pub fn part(&self, share: f64) -> f64 {
        if self.wants_more || share <= 0.0 {
            self.weight
        } else {
            self.weight.min(self.rate() / share)
        }
    }

    /// How long the latest packet waited.
    pub fn queue_s(&self) -> f64 {
        (self.latest_rtt_s.unwrap_or(self.srtt_s) - self.min_rtt_s).max(0.0)
    }

    /// The share of weight 1 that its window stands for, where a queue of `aim_s` is aimed at.
    pub fn share(&self, aim_s: f64, segment_bytes: f64) -> f64 {
        let window = (self.cwnd_bytes - HELD_BACK_SEGMENTS * segment_bytes).max(segment_bytes);
        window / (self.min_rtt_s + aim_s) / self.weight
    }
}

pub fn payload_bytes(segment_bytes: u32) -> f64 {
    f64::from(segment_bytes.saturating_sub(HEADER_BYTES).max(1))
}

/// Who wants less than its part is taken to want so many times what it gets.
const SPARE: f64 = 1.25;
/// By which rates can be divided.
const LEAST_WEIGHT: f64 = 1e-6;

/// Of one device, those that want no more leave the rest of their parts to those that do (max-min): its weight is the same, and
/// who begins to want more has its part back at once.
pub fn lend(these: &mut [Sending], share: f64) {
    let full = |one: &Sending| if one.wants_more { one.weight } else { 0.0 };
    let (all, full): (f64, f64) = (these.iter().map(|one| one.weight).sum(), these.iter().map(full).sum());
    if share <= 0.0 || full <= 0.0 {
        return;
    }
    for one in these.iter_mut().filter(|one| !one.wants_more) {
        one.weight = one.weight.min(SPARE * one.rate() / share).max(LEAST_WEIGHT);
    }
    let light: f64 = these.iter().filter(|one| !one.wants_more).map(|one| one.weight).sum();
    for one in these.iter_mut().filter(|one| one.wants_more) {
        one.weight *= (all - light) / full;
    }
}

/// Connections of one device divide the share of their classes.
pub fn own(members: &[Member], segment_bytes: f64) -> Vec<Sending> {
    let part = |member: &Member| weight(member.class) * f64::from(member.weight.max(1)) / members.len() as f64;
    let of = |member: &Member| Sending {
        cwnd_bytes: f64::from(member.cwnd) * segment_bytes,
        in_flight_bytes: f64::from(member.cwnd) * segment_bytes,
        rate: member.delivery_rate_bytes_per_s as f64,
        min_rtt_s: member.min_rtt.as_secs_f64(),
        srtt_s: member.rtt.max(member.min_rtt).as_secs_f64(),
        latest_rtt_s: Some(member.latest_rtt.as_secs_f64()).filter(|latest_s| *latest_s > 0.0),
        weight: part(member),
        may_have: part(member),
        voice: 1.0 / members.len() as f64,
        is_repeating: member.is_repeating,
        wants_more: member.unsent_bytes > 0,
    };
    members.iter().map(of).collect()
}

pub fn peers(link: &Link<'_>, segment_bytes: f64) -> Vec<Sending> {
    let authenticated = link.peers.peers().filter(|peer| peer.authenticated);
    let of = |peer: Peer<'_>| of_device(peer.senders, segment_bytes);
    authenticated.flat_map(of).collect()
}

fn has_measured(sender: &Sender) -> bool {
    sender.min_rtt_us > 0 && sender.srtt_us >= sender.min_rtt_us
}

/// What one device says.
pub fn of_device(told: &[Sender], segment_bytes: f64) -> Vec<Sending> {
    let senders = told.iter().filter(|sender| has_measured(sender));
    let count = senders.clone().count() as f64;
    let of = |sender: &Sender| {
        let cwnd_bytes = f64::from(sender.cwnd_segments) * segment_bytes;
        Sending {
            cwnd_bytes,
            in_flight_bytes: cwnd_bytes.min(f64::from(sender.queue_bytes)),
            rate: f64::from(sender.delivery_rate_kbit) * 125.0,
            min_rtt_s: f64::from(sender.min_rtt_us) / 1e6,
            srtt_s: f64::from(sender.srtt_us) / 1e6,
            latest_rtt_s: None,
            weight: weight(sender.class) / count,
            may_have: weight(sender.class) / count,
            voice: 1.0 / count,
            wants_more: f64::from(sender.queue_bytes) > cwnd_bytes,
            is_repeating: false,
        }
    };
    senders.map(of).collect()
}

/// Each counts once, however many senders it lists.
pub fn devices(peers: &[Sending]) -> usize {
    peers.iter().map(|one| one.voice).sum::<f64>().round() as usize
}

/// What the peers would get without limits: of each device that says so.
pub fn demands(link: &Link<'_>) -> Vec<DeviceDemand> {
    let of = |peer: Peer<'_>| {
        let told = peer
            .senders
            .iter()
            .filter(|sender| has_measured(sender) && sender.demand_kbit != UNLIMITED_KBIT);
        let (rate, connections) = told.fold((0.0, 0.0), |(rate, count), sender| {
            (rate + f64::from(sender.demand_kbit) * 125.0, count + 1.0)
        });
        (connections > 0.0).then_some(DeviceDemand { rate, connections })
    };
    link.peers
        .peers()
        .filter(|peer| peer.authenticated)
        .filter_map(of)
        .collect()
}

/// Where two are in the middle, their geometric mean. Each value has a voice.
pub fn median(values: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    middle(values).map(|(lower, upper)| (lower * upper).sqrt())
}

/// Where two are in the middle, their mean: of times that may be 0, which one of two must not make of both.
pub fn median_wait(values: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    middle(values).map(|(lower, upper)| f64::midpoint(lower, upper))
}

fn middle(values: impl Iterator<Item = (f64, f64)>) -> Option<(f64, f64)> {
    let mut sorted: Vec<(f64, f64)> = values.collect();
    sorted.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let half = sorted.iter().map(|(_, voice)| voice).sum::<f64>() / 2.0;
    let mut below = 0.0;
    let mut reached = sorted.iter().map(|(value, voice)| {
        below += voice;
        (*value, below)
    });
    // A sum of parts may miss a half by a rounding.
    const ROUNDING: f64 = 1e-9;
    let (lower, at) = reached.find(|(_, below)| *below >= half - ROUNDING)?;
    let upper = if at <= half + ROUNDING {
        reached.next().map_or(lower, |(value, _)| value)
    } else {
        lower
    };
    Some((lower, upper))
}
