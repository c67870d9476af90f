// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connections that share the medium: this device's own, as the kernel shows them, and the peers', as reported.
//! Bounds every report before it counts.

use super::super::{HEADER_BYTES, Link, Member};
use super::sample::DeviceDemand;
use crate::model::Class;
use crate::peers::{Peer, Sender, UNLIMITED_KBIT};

/// In flight beyond the share: what a receiver with delayed acknowledgements holds back, and one segment being sent.
pub const HELD_BACK_SEGMENTS: f64 = 3.0;

/// The relative share of a connection with unlimited demand.
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
    /// The maximum; for one with little to send, the present value.
    pub in_flight_bytes: f64,
    pub rate: f64,
    pub min_rtt_s: f64,
    pub srtt_s: f64,
    /// Of the latest packet; unknown of a peer's.
    pub latest_rtt_s: Option<f64>,
    pub weight: f64,
    /// The weight of its limits: for one that lends a part, still the whole.
    pub may_have: f64,
    /// Its part of its device's vote: each device counts once, however many senders it lists.
    pub voice: f64,
    /// Limited by cwnd.
    pub wants_more: bool,
    /// It retransmits, and has no delay samples meanwhile. Not reported by peers.
    pub is_repeating: bool,
}

impl Sending {
    /// In flight over RTT (Little's law): more timely than the delivery rate, and higher by the losses.
    pub fn rate(&self) -> f64 {
        let in_flight = self.in_flight_bytes / self.srtt_s;
        self.rate.clamp(0.5 * in_flight, in_flight)
    }

    /// Its rate if weight 1 may have `share`: one that wants less has what it gets.
    pub fn part(&self, share: f64) -> f64 {
        if self.wants_more || share <= 0.0 {
            self.weight
        } else {
            self.weight.min(self.rate() / share)
        }
    }

    /// The queueing delay of the latest packet.
    pub fn queue_s(&self) -> f64 {
        (self.latest_rtt_s.unwrap_or(self.srtt_s) - self.min_rtt_s).max(0.0)
    }

    /// The share of weight 1 that its window represents at a target queueing delay of `aim_s`.
    pub fn share(&self, aim_s: f64, segment_bytes: f64) -> f64 {
        let window = (self.cwnd_bytes - HELD_BACK_SEGMENTS * segment_bytes).max(segment_bytes);
        window / (self.min_rtt_s + aim_s) / self.weight
    }
}

pub fn payload_bytes(segment_bytes: u32) -> f64 {
    f64::from(segment_bytes.saturating_sub(HEADER_BYTES).max(1))
}

/// A connection that wants less than its part is assumed to want this multiple of its rate.
const SPARE: f64 = 1.25;
/// A divisor for rates.
const LEAST_WEIGHT: f64 = 1e-6;

/// Within one device, connections that want no more leave the rest of their parts to those that do (max-min); its total
/// weight is unchanged, and a connection that wants more has its part back at once.
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

/// The connections of one device divide the share of their classes.
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

/// The report of one device.
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

/// The peers' unlimited rates, of each device that reports one.
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

/// With two in the middle, their geometric mean. Weighted.
pub fn median(values: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    middle(values).map(|(lower, upper)| (lower * upper).sqrt())
}

/// With two in the middle, their mean: times may be 0, which a geometric mean would propagate.
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
    // A sum of parts may miss a half by rounding.
    const ROUNDING: f64 = 1e-9;
    let (lower, at) = reached.find(|(_, below)| *below >= half - ROUNDING)?;
    let upper = if at <= half + ROUNDING {
        reached.next().map_or(lower, |(value, _)| value)
    } else {
        lower
    };
    Some((lower, upper))
}
