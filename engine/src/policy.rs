// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of the access point one connection may use.
//!
//! In: who shares the air now, and one connection's round-trip time. Out: a cap on its cwnd, in segments.
//! A policy is asked again whenever either changes; it never touches a socket.

use std::time::Duration;

use crate::config::{Cap, CapPolicyName};

/// No cap is ever below this many segments: enough for fast retransmit to work (three duplicate ACKs,
/// RFC 5681 section 3.2), and the floor that no neighbour's word can push a device below.
pub const FLOOR_SEGMENTS: u32 = 4;

/// No more than this part of capacity x RTT is left unused as margin. The paper's margin of 120 kB was
/// chosen at 256 ms, where it is 19%; on a 20 ms path the same bytes would be more than everything.
const MARGIN_LIMIT: f64 = 0.2;

/// Who shares the air: devices that send, and the connections among which this one divides its share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sharing {
    /// Devices that send, this one included where it does; at least 1.
    pub devices: u32,
    /// This device's connections that send; at least 1.
    pub connections: u32,
}

/// Chooses caps. One implementation is in force at a time.
pub trait CapPolicy: Send {
    /// As `status` and `why` call it.
    fn name(&self) -> &'static str;

    /// The cap of one sending connection, segments; None leaves it alone.
    fn cap(&self, sharing: Sharing, rtt: Duration) -> Option<u32>;

    /// The evidence behind [`Self::cap`], for `why`.
    fn reason(&self, sharing: Sharing, rtt: Duration) -> String;
}

/// The policy that a configuration asks for.
pub fn from_config(cap: &Cap) -> Box<dyn CapPolicy> {
    match (cap.policy, cap.fixed_segments, cap.capacity_mbit) {
        (CapPolicyName::None, ..) => Box::new(Watch),
        (_, Some(segments), _) => Box::new(Constant { segments }),
        (_, None, Some(capacity_mbit)) => Box::new(EqualShare {
            capacity_mbit,
            margin_bytes: cap.margin_bytes,
            segment_bytes: cap.segment_bytes,
            fixed_rtt: cap.rtt_ms.map(|ms| Duration::from_millis(ms.into())),
        }),
        (_, None, None) => Box::new(Watch),
    }
}

/// Caps nothing.
struct Watch;

impl CapPolicy for Watch {
    fn name(&self) -> &'static str {
        "none"
    }

    fn cap(&self, _: Sharing, _: Duration) -> Option<u32> {
        None
    }

    fn reason(&self, _: Sharing, _: Duration) -> String {
        "no capacity_mbit is configured, or policy is \"none\", so nothing is capped".to_owned()
    }
}

/// One cap for every sender: the sweep of Hirai et al., figure 6.
struct Constant {
    segments: u32,
}

impl CapPolicy for Constant {
    fn name(&self) -> &'static str {
        "constant"
    }

    fn cap(&self, _: Sharing, _: Duration) -> Option<u32> {
        Some(self.segments)
    }

    fn reason(&self, _: Sharing, _: Duration) -> String {
        format!("fixed_segments = {}", self.segments)
    }
}

/// Every sending device gets the same share of a capacity known in advance (Hirai, Yamaguchi and Oguchi,
/// section 2.3), and divides it equally among its sending connections:
///
/// ```text
/// cap = floor((capacity x RTT - margin) / (segment x devices x connections))
/// ```
pub struct EqualShare {
    pub capacity_mbit: f64,
    pub margin_bytes: u64,
    pub segment_bytes: u32,
    /// In place of each connection's own round-trip time.
    pub fixed_rtt: Option<Duration>,
}

impl CapPolicy for EqualShare {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn cap(&self, sharing: Sharing, rtt: Duration) -> Option<u32> {
        let rtt_s = self.fixed_rtt.unwrap_or(rtt).as_secs_f64();
        let bdp_bytes = self.capacity_mbit * 1e6 / 8.0 * rtt_s;
        let margin_bytes = (self.margin_bytes as f64).min(MARGIN_LIMIT * bdp_bytes);
        let senders = f64::from(sharing.devices.max(1)) * f64::from(sharing.connections.max(1));
        let segments = (bdp_bytes - margin_bytes) / (f64::from(self.segment_bytes) * senders);
        // `as` saturates, and turns a NaN into 0, which the floor catches.
        Some((segments as u32).clamp(FLOOR_SEGMENTS, i32::MAX as u32 - 1))
    }

    fn reason(&self, sharing: Sharing, rtt: Duration) -> String {
        format!(
            "{} Mbit/s x {:.0} ms, shared by {} sending device{} and {} connection{} of this one",
            self.capacity_mbit,
            self.fixed_rtt.unwrap_or(rtt).as_secs_f64() * 1e3,
            sharing.devices,
            plural(sharing.devices),
            sharing.connections,
            plural(sharing.connections),
        )
    }
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The settings of Hirai et al.: 802.11g, 256 ms.
    fn paper() -> EqualShare {
        EqualShare {
            capacity_mbit: 20.0,
            margin_bytes: 120_000,
            segment_bytes: 1500,
            fixed_rtt: Some(Duration::from_millis(256)),
        }
    }

    fn devices(devices: u32) -> Sharing {
        Sharing {
            devices,
            connections: 1,
        }
    }

    #[test]
    fn table_2_of_the_paper_to_the_number() {
        let caps = [5, 6, 7, 8].map(|n| paper().cap(devices(n), Duration::ZERO));
        assert_eq!(caps, [Some(69), Some(57), Some(49), Some(43)]);
    }

    #[test]
    fn connections_of_one_device_divide_its_share() {
        let two = Sharing {
            devices: 4,
            connections: 2,
        };
        assert_eq!(
            paper().cap(two, Duration::ZERO),
            paper().cap(devices(8), Duration::ZERO)
        );
    }

    #[test]
    fn without_a_fixed_rtt_a_connection_is_given_its_own() {
        let own = EqualShare {
            fixed_rtt: None,
            margin_bytes: 0,
            ..paper()
        };
        // 20 Mbit/s x 60 ms = 150 kB = 100 segments.
        assert_eq!(own.cap(devices(1), Duration::from_millis(60)), Some(100));
    }

    #[test]
    fn the_margin_takes_at_most_a_fifth() {
        let own = EqualShare {
            fixed_rtt: None,
            ..paper()
        };
        assert_eq!(own.cap(devices(1), Duration::from_millis(60)), Some(80));
    }

    #[test]
    fn nothing_is_capped_unless_a_capacity_is_configured() {
        let policy = from_config(&Cap::default());
        assert_eq!(policy.cap(devices(8), Duration::from_millis(256)), None);
    }

    proptest! {
        #[test]
        fn a_cap_is_never_below_the_floor_and_never_grows_with_more_devices(
            capacity_mbit in 0.001..1e6f64, margin_bytes: u64, segment_bytes in 64u32..65_535,
            rtt_us in 0u64..60_000_000, n in 1u32..10_000, connections in 1u32..10_000,
        ) {
            let policy = EqualShare { capacity_mbit, margin_bytes, segment_bytes, fixed_rtt: None };
            let rtt = Duration::from_micros(rtt_us);
            let cap = |devices| policy.cap(Sharing { devices, connections }, rtt).unwrap();
            prop_assert!(cap(n) >= FLOOR_SEGMENTS);
            prop_assert!(cap(n + 1) <= cap(n));
        }
    }
}
