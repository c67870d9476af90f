// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the control sees at each step.

/// Nothing is judged before more than this part have said what they got: a median stands as much.
pub const MOST_SAY: f64 = 0.5;
/// Others from which on no single one decides.
pub const APART_FROM: usize = 3;

/// What there is to see at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    pub now_s: f64,
    /// How long packets of ours wait, and their minimum RTT.
    pub queue_s: f64,
    pub min_rtt_s: f64,
    /// The shortest minimum RTT of all senders, and the middle one.
    pub least_rtt_s: f64,
    pub group_rtt_s: f64,
    /// What a connection of ours of weight 1 gets.
    pub rate: f64,
    /// What all together want, in shares of weight 1; and how many there are: connections of ours, and other devices.
    pub weights: f64,
    pub senders: usize,
    /// Of these, those that get something through.
    pub moving: f64,
    /// What all of them get, as far as they are authenticated.
    pub total: f64,
    /// Of ours, since the last look; how many they are, and their weight.
    pub moved_bytes: f64,
    pub own: usize,
    pub own_weight: f64,
    /// Of those with more to send than they may, and what the others get.
    pub full_weights: f64,
    pub light: f64,
    /// What peers would get without limits, as they say.
    pub demands: Vec<DeviceDemand>,
    /// The share that the windows of peers stand for.
    pub theirs: Option<f64>,
    /// How long their packets wait, as they say.
    pub their_queue_s: Option<f64>,
    pub segment_bytes: f64,
}

impl Sample {
    pub fn is_told(&self) -> bool {
        is_told(&self.demands, self.senders.saturating_sub(self.own))
    }
}

/// What a device's connections would get without limits, together, and how many they are.
#[derive(Clone, Copy, Debug)]
pub struct DeviceDemand {
    pub rate: f64,
    pub connections: f64,
}

/// Most of so many other devices say what there is to have here: one alone would keep all others from knowing. That it would
/// have nothing tells nothing.
pub fn is_told(demands: &[DeviceDemand], others: usize) -> bool {
    let say = demands.iter().filter(|demand| demand.rate > 0.0).count() as f64;
    say > MOST_SAY * others as f64
}
