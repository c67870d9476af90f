// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Caps that depend only on the number of senders and the RTT. Limits cwnd alone.

use std::time::Duration;

use super::Limits;
use super::{FLOOR_SEGMENTS, Link, Member, SharePolicy, Sharing};
use crate::config::{Cap, CapPolicyName};

/// The largest part of capacity × RTT that the margin may take. The paper's margin of 120 kB belongs to an RTT of 256
/// ms, where it is 19%; on a 20 ms path it would exceed the product.
const MARGIN_LIMIT: f64 = 0.2;

/// One of three rules.
pub enum Fixed {
    /// Caps nothing.
    Watch,
    /// One cap for every sender, in segments: the sweep of Hirai et al., figure 6.
    Constant(u32),
    EqualShare(EqualShare),
}

impl Fixed {
    pub fn from_config(cap: &Cap) -> Self {
        match (cap.policy, cap.fixed_segments, cap.capacity_mbit) {
            (CapPolicyName::None, ..) => Self::Watch,
            (_, Some(segments), _) => Self::Constant(segments),
            (_, None, Some(capacity_mbit)) => Self::EqualShare(EqualShare {
                capacity_mbit,
                margin_bytes: cap.margin_bytes,
                segment_bytes: cap.segment_bytes,
                fixed_rtt: cap.rtt_ms.map(|ms| Duration::from_millis(ms.into())),
            }),
            (_, None, None) => Self::Watch,
        }
    }

    fn limits(&self, sharing: Sharing, rtt: Duration) -> Limits {
        let cwnd = match self {
            Self::Watch => None,
            Self::Constant(segments) => Some(*segments),
            Self::EqualShare(share) => Some(share.cap(sharing, rtt)),
        };
        Limits {
            cwnd,
            ..Limits::default()
        }
    }
}

impl SharePolicy for Fixed {
    fn name(&self) -> &'static str {
        match self {
            Self::Watch => "none",
            Self::Constant(_) => "constant",
            Self::EqualShare(_) => "fixed",
        }
    }

    fn allot(&mut self, _: Duration, link: &Link<'_>, members: &[Member]) -> Vec<Limits> {
        let limits = |member: &Member| self.limits(link.sharing, member.min_rtt);
        members.iter().map(limits).collect()
    }

    fn newcomer<'a>(&'a self, link: &Link<'_>) -> Box<dyn Fn(Duration) -> Limits + 'a> {
        let sharing = link.sharing.with_one_more();
        Box::new(move |rtt| self.limits(sharing, rtt))
    }

    fn reason(&self, link: &Link<'_>, rtt: Duration) -> String {
        match self {
            Self::Watch => {
                "policy is \"none\", or neither a capacity nor a group's key is configured, so nothing is capped"
                    .to_owned()
            }
            Self::Constant(segments) => format!("fixed_segments = {segments}"),
            Self::EqualShare(share) => share.reason(link.sharing, rtt),
        }
    }
}

/// Every sending device gets the same share of a configured capacity (Hirai, Yamaguchi and Oguchi, section 2.3), and
/// divides it equally among its sending connections:
///
/// ```text
/// cap = floor((capacity x RTT - margin) / (segment x devices x connections))
/// ```
pub struct EqualShare {
    pub capacity_mbit: f64,
    pub margin_bytes: u64,
    pub segment_bytes: u32,
    /// In place of each connection's RTT.
    pub fixed_rtt: Option<Duration>,
}

impl EqualShare {
    fn cap(&self, sharing: Sharing, rtt: Duration) -> u32 {
        let rtt_s = self.fixed_rtt.unwrap_or(rtt).as_secs_f64();
        let bdp_bytes = self.capacity_mbit * 1e6 / 8.0 * rtt_s;
        let margin_bytes = (self.margin_bytes as f64).min(MARGIN_LIMIT * bdp_bytes);
        let senders = f64::from(sharing.devices.max(1)) * f64::from(sharing.connections.max(1));
        let segments = (bdp_bytes - margin_bytes) / (f64::from(self.segment_bytes) * senders);
        // `as` saturates, and turns a NaN into 0, which the floor catches.
        (segments as u32).clamp(FLOOR_SEGMENTS, i32::MAX as u32 - 1)
    }

    fn reason(&self, sharing: Sharing, rtt: Duration) -> String {
        format!(
            "{} Mbit/s x {}, shared by {} sending device{} and {} connection{} of this one",
            self.capacity_mbit,
            shown(self.fixed_rtt.unwrap_or(rtt)),
            sharing.devices,
            plural(sharing.devices),
            sharing.connections,
            plural(sharing.connections),
        )
    }
}

/// The RTT of a wired peer is microseconds; a new connection may have none yet.
fn shown(rtt: Duration) -> String {
    let ms = rtt.as_secs_f64() * 1e3;
    match rtt {
        Duration::ZERO => "an RTT not measured yet".to_owned(),
        _ if ms < 10.0 => format!("{ms:.3} ms"),
        _ => format!("{ms:.0} ms"),
    }
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests;
