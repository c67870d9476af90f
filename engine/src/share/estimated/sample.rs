// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The input of the controller at each poll.

/// Nothing is judged until more than this part of the group has reported: a median withstands as much.
pub const MOST_SAY: f64 = 0.5;
/// With this many peers no single one decides.
pub const APART_FROM: usize = 3;

/// One observation.
#[derive(Clone, Debug)]
pub struct Sample {
    pub now_s: f64,
    /// The queueing delay and minimum RTT of this device's packets.
    pub queue_s: f64,
    pub min_rtt_s: f64,
    /// The shortest and the median minimum RTT of all senders.
    pub least_rtt_s: f64,
    pub group_rtt_s: f64,
    /// The goodput of an own connection of weight 1.
    pub rate: f64,
    /// The total demand in shares of weight 1; and the senders: own connections, and other devices'.
    pub weights: f64,
    pub senders: usize,
    /// Of these, the ones with goodput.
    pub moving: f64,
    /// The total goodput, as far as it is trusted.
    pub total: f64,
    /// Delivered by this device since the last poll; its connections, and their weight.
    pub moved_bytes: f64,
    pub own: usize,
    pub own_weight: f64,
    /// The weight of those with unmet demand, and the goodput of the rest.
    pub full_weights: f64,
    pub light: f64,
    /// The peers' reported unlimited rates.
    pub demands: Vec<DeviceDemand>,
    /// The share that the peers' windows represent.
    pub theirs: Option<f64>,
    /// The peers' reported queueing delay.
    pub their_queue_s: Option<f64>,
    pub segment_bytes: f64,
}

impl Sample {
    pub fn is_told(&self) -> bool {
        is_told(&self.demands, self.senders.saturating_sub(self.own))
    }
}

/// The unlimited rate of a device's connections in total, and their number.
#[derive(Clone, Copy, Debug)]
pub struct DeviceDemand {
    pub rate: f64,
    pub connections: f64,
}

/// Most of so many other devices report a rate: one alone would keep all others from measuring. A demand of nothing
/// does not count.
pub fn is_told(demands: &[DeviceDemand], others: usize) -> bool {
    let say = demands.iter().filter(|demand| demand.rate > 0.0).count() as f64;
    say > MOST_SAY * others as f64
}
