// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The formula as in its paper, and its bounds.

use proptest::prelude::*;

use super::*;

/// The setting of Hirai et al.: 802.11g, 256 ms.
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
fn table_2_of_the_paper_is_reproduced() {
    let caps = [5, 6, 7, 8].map(|n| paper().cap(devices(n), Duration::ZERO));
    assert_eq!(caps, [69, 57, 49, 43]);
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
fn without_a_fixed_rtt_each_connection_uses_its_own() {
    let own = EqualShare {
        fixed_rtt: None,
        margin_bytes: 0,
        ..paper()
    };
    // 20 Mbit/s x 60 ms = 150 kB = 100 segments.
    assert_eq!(own.cap(devices(1), Duration::from_millis(60)), 100);
}

#[test]
fn the_margin_takes_at_most_a_fifth() {
    let own = EqualShare {
        fixed_rtt: None,
        ..paper()
    };
    assert_eq!(own.cap(devices(1), Duration::from_millis(60)), 80);
}

#[test]
fn without_a_capacity_nothing_is_capped() {
    let policy = Fixed::from_config(&Cap::default());
    assert_eq!(policy.limits(devices(8), Duration::from_millis(256)), Limits::default());
}

proptest! {
    #[test]
    fn a_cap_is_never_below_the_floor_and_never_grows_with_more_devices(
        capacity_mbit in 0.001..1e6f64, margin_bytes: u64, segment_bytes in 64u32..65_535,
        rtt_us in 0u64..60_000_000, n in 1u32..10_000, connections in 1u32..10_000,
    ) {
        let policy = EqualShare { capacity_mbit, margin_bytes, segment_bytes, fixed_rtt: None };
        let rtt = Duration::from_micros(rtt_us);
        let cap = |devices| policy.cap(Sharing { devices, connections }, rtt);
        prop_assert!(cap(n) >= FLOOR_SEGMENTS);
        prop_assert!(cap(n + 1) <= cap(n));
    }
}
