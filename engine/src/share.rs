// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of the link each sender of this device may use.
//!
//! Input: the time, the link and its peers, and this device's connections that send. Output: limits for each of them. A
//! policy may keep state; it never touches a socket.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::change::{Setting, Value};
use crate::config::{CapPolicyName, Config};
use crate::model::{Class, Cookie};
use crate::peers::PeerGroup;
use crate::queue::traffic::QueueCounters;

mod estimated;
mod fixed;
pub mod limiter;

/// The smallest cap in segments: enough for fast retransmit (three duplicate ACKs, RFC 5681 section 3.2), and the floor
/// that no peer's report can push a device below.
pub const FLOOR_SEGMENTS: u32 = 4;

/// IP and TCP headers with timestamps: a segment's bytes on the link beside its payload.
pub const HEADER_BYTES: u32 = 52;

/// How many share the medium: sending devices, and the connections among which this one divides its share.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sharing {
    /// Sending devices, this one included if it sends.
    pub devices: u32,
    /// This device's sending connections.
    pub connections: u32,
}

impl Sharing {
    /// With one more sending connection of this device.
    pub fn with_one_more(self) -> Self {
        let others = self.devices - u32::from(self.connections > 0);
        Self {
            devices: others + 1,
            connections: self.connections + 1,
        }
    }
}

/// The limits of one connection; None leaves a setting unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Segments.
    pub cwnd: Option<u32>,
    pub pacing_rate_bytes_per_s: Option<u64>,
}

impl Limits {
    pub fn of(&self, setting: &Setting) -> Value {
        match setting {
            Setting::Cap => self.cwnd.into(),
            Setting::PacingRate => self.pacing_rate_bytes_per_s.into(),
            _ => Value::default(),
        }
    }
}

/// The managed link and its peers.
pub struct Link<'a> {
    pub sharing: Sharing,
    /// The peers' reports.
    pub peers: &'a PeerGroup,
    /// Giveway's queue on the link at the latest poll; None without one.
    pub queue: Option<&'a QueueCounters>,
}

/// A connection of this device that sends over the managed link.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub cookie: Cookie,
    pub class: Class,
    /// Its share is this multiple of that of a connection with weight 1.
    pub weight: u32,
    /// Smoothed.
    pub rtt: Duration,
    pub min_rtt: Duration,
    /// Of the packet acknowledged last; zero where the kernel does not report it.
    pub latest_rtt: Duration,
    /// Segments.
    pub cwnd: u32,
    pub delivery_rate_bytes_per_s: u64,
    /// Since the connection began, selectively acknowledged ones included; wraps.
    pub delivered_segments: u32,
    pub mss_bytes: u32,
    pub unsent_bytes: u64,
    /// It retransmits.
    pub is_repeating: bool,
}

/// A policy. One is active at a time.
pub trait SharePolicy: Send {
    /// As in `status` and `why`.
    fn name(&self) -> &'static str;

    /// The limits of the members, in their order. Called at every poll, and between polls when the number of this
    /// device's or the peers' senders changes.
    fn allot(&mut self, now: Duration, link: &Link<'_>, members: &[Member]) -> Vec<Limits>;

    /// The limits that one more connection of this device would get, by its RTT. Called for all RTTs of a table
    /// whenever a device starts or stops, so their common part is computed once.
    fn newcomer<'a>(&'a self, link: &Link<'_>) -> Box<dyn Fn(Duration) -> Limits + 'a>;

    /// The evidence behind the limits of a connection with this RTT, for `why`.
    fn reason(&self, link: &Link<'_>, rtt: Duration) -> String;

    /// The present action, if it is the same for all connections; for `status`.
    fn doing(&self, _: &Link<'_>) -> Option<String> {
        None
    }

    /// The same in numbers, for an estimated capacity.
    fn estimate(&self, _: &Link<'_>) -> Option<EstimateView> {
        None
    }

    /// Whether connections with less demand leave the rest to the others.
    fn shares_by_demand(&self) -> bool {
        false
    }

    /// The demand of a connection of this device in bytes a second, as reported to peers; None: its goodput.
    fn demand(&self) -> Option<f64> {
        None
    }

    /// The managed interface is another one, or on another network: what was learnt does not apply.
    fn forget(&mut self) {}

    /// While the same devices share the medium, a limit that differs by less than this fraction is unchanged.
    fn settled_within(&self) -> u64 {
        16
    }

    /// A suspended connection first grows back to the unlimited window: its cap is cleared at once.
    fn clears_at_once(&self) -> bool {
        false
    }
}

/// The policy that a configuration asks for.
pub fn from_config(config: &Config) -> Box<dyn SharePolicy> {
    match config.cap_policy() {
        CapPolicyName::Estimated => {
            let estimated = estimated::EstimatedCapacity::from_config(&config.cap);
            match config.cap.policy {
                CapPolicyName::Estimated => Box::new(estimated),
                // A key moves with its device: among other devices it must not change anything.
                _ => Box::new(estimated.only_beside_members()),
            }
        }
        _ => Box::new(fixed::Fixed::from_config(&config.cap)),
    }
}

/// The estimated share and its state (docs/explanation/shared-capacity.md).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize, JsonSchema)]
pub struct EstimateView {
    pub phase: SharePhase,
    /// For a connection alone on its device; None until it is known.
    pub share_bytes_per_s: Option<u64>,
    /// The target queueing delay.
    pub target_queueing_delay_us: u64,
    /// None while limits are active.
    pub limits_return_in_ms: Option<u64>,
    /// The group's goodput with limits, relative to unlimited TCP; None where unknown.
    pub percent_of_unlimited: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SharePhase {
    /// No queue yet.
    Start,
    /// The queue has drained, and the share grows.
    Probe,
    /// The queue is kept at its target.
    Steady,
    /// Half of the share is sent until the queue has drained.
    Drain,
    /// Not limiting for a while, to measure unlimited TCP.
    Baseline,
    /// Limits do not help here, so nothing is limited for a while.
    Suspended,
    /// Of a newer version.
    #[serde(other)]
    Unknown,
}
