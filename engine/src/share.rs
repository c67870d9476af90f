// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of the link each sender of this device may use.
//!
//! Input: the time, what is known of the link and of the others on it, and this device's connections that send.
//! Output: limits for each of them. A policy may keep state; it never touches a socket.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::change::{Setting, Value};
use crate::config::{CapPolicyName, Config};
use crate::model::{Class, Cookie};
use crate::peers::PeerGroup;
use crate::queue::traffic::QueueCounters;

mod estimated;
mod fixed;
pub mod limiter;

/// No cap is ever below this many segments: enough for fast retransmit to work (three duplicate ACKs,
/// RFC 5681 section 3.2), and the floor that no peer's word can push a device below.
pub const FLOOR_SEGMENTS: u32 = 4;

/// IP and TCP headers with timestamps: what a segment on the link has beside its payload.
pub const HEADER_BYTES: u32 = 52;

/// How many share the air: devices that send, and the connections among which this one divides its share.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sharing {
    /// Devices that do, this one included where it does.
    pub devices: u32,
    /// This device's connections that do.
    pub connections: u32,
}

impl Sharing {
    /// With one more connection of this device that sends.
    pub fn with_one_more(self) -> Self {
        let others = self.devices - u32::from(self.connections > 0);
        Self {
            devices: others + 1,
            connections: self.connections + 1,
        }
    }
}

/// The limits of one connection; None leaves a setting as it was found.
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

/// The managed link and the others on it.
pub struct Link<'a> {
    pub sharing: Sharing,
    /// What each of the peers reports of its senders.
    pub peers: &'a PeerGroup,
    /// Of giveway's queue on the link, as of the latest poll; None without one.
    pub queue: Option<&'a QueueCounters>,
}

/// A connection of this device that sends over the managed link.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub cookie: Cookie,
    pub class: Class,
    /// Its share is this many times that of a connection with weight 1.
    pub weight: u32,
    /// Smoothed.
    pub rtt: Duration,
    pub min_rtt: Duration,
    /// Of the packet that was acknowledged last; zero where the kernel does not tell.
    pub latest_rtt: Duration,
    /// Segments.
    pub cwnd: u32,
    pub delivery_rate_bytes_per_s: u64,
    /// Since the connection began, those acknowledged selectively included; wraps.
    pub delivered_segments: u32,
    pub mss_bytes: u32,
    pub unsent_bytes: u64,
    /// It repeats what was lost.
    pub is_repeating: bool,
}

/// A policy. One is active at a time.
pub trait SharePolicy: Send {
    /// As `status` and `why` call it.
    fn name(&self) -> &'static str;

    /// The limits of the members, in their order. Asked at every poll, and between two polls where
    /// this device or the number of others that send changes.
    fn allot(&mut self, now: Duration, link: &Link<'_>, members: &[Member]) -> Vec<Limits>;

    /// The limits that one more connection of this device would get, by its round-trip time. Asked for all round-trip times of a
    /// table whenever a device starts or stops, so what they have in common is computed once.
    fn newcomer<'a>(&'a self, link: &Link<'_>) -> Box<dyn Fn(Duration) -> Limits + 'a>;

    /// The evidence behind the limits of a connection with this round-trip time, for `why`.
    fn reason(&self, link: &Link<'_>, rtt: Duration) -> String;

    /// What it does just now, where that is the same for all connections; for `status`.
    fn doing(&self, _: &Link<'_>) -> Option<String> {
        None
    }

    /// The same in numbers, of a capacity that is found.
    fn estimate(&self, _: &Link<'_>) -> Option<EstimateView> {
        None
    }

    /// Whether those that want less than they may have leave the rest to the others.
    fn shares_by_demand(&self) -> bool {
        false
    }

    /// What a connection of this device could use, in bytes a second, as peers are told; None: whatever it gets.
    fn demand(&self) -> Option<f64> {
        None
    }

    /// The managed interface is another, or on another network: what was learnt is of no air that is there.
    fn forget(&mut self) {}

    /// While the same devices share the air, a limit that differs by less than one part in so many of the last one is
    /// taken as the same.
    fn settled_within(&self) -> u64 {
        16
    }

    /// Who has no limits any more has first grown back to what is theirs: their caps go at once.
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
                // A key goes wherever its device does: among others' devices it is to change nothing.
                _ => Box::new(estimated.only_beside_members()),
            }
        }
        _ => Box::new(fixed::Fixed::from_config(&config.cap)),
    }
}

/// The share of a capacity that is found, and what is done with it (docs/shares.md).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct EstimateView {
    pub phase: SharePhase,
    /// Of a connection that has its device's share to itself; None until something is known of it.
    pub share_bytes_per_s: Option<u64>,
    /// What its packets may wait.
    pub target_queueing_delay_us: u64,
    /// None while limits are active.
    pub limits_return_in_ms: Option<u64>,
    /// What the group moves with limits, of what unlimited TCP would move; None where that is not known.
    pub percent_of_unlimited: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SharePhase {
    /// No packet waits yet.
    Start,
    /// A queue has gone, and the share grows.
    Probe,
    /// The queue is kept at its target.
    Steady,
    /// Half of the share is sent, until a queue has gone.
    Drain,
    /// Nothing is limited for a while, to measure what TCP without limits gets here.
    Baseline,
    /// Limits do not help here, so nothing is limited for a while.
    Suspended,
    /// Of a newer version.
    #[serde(other)]
    Unknown,
}
