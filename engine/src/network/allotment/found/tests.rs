// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What follows from what everybody knows, and what no neighbour's word can do.

use proptest::prelude::*;

use super::*;

fn policy() -> FoundCapacity {
    FoundCapacity::from_config(&Cap::default())
}

/// One that gets so many Mbit/s over 256 ms, with this much queueing.
fn getting(mbit: f64, queue_ms: f64) -> Known {
    let srtt_s = 0.256 + queue_ms / 1e3;
    Known {
        rate: mbit * 125_000.0,
        cwnd_bytes: mbit * 125_000.0 * srtt_s,
        min_rtt_s: 0.256,
        srtt_s,
        weight: 1.0,
    }
}

fn share_mbit(known: Vec<Known>) -> f64 {
    policy().find(known).expect("a rate is known").share / 125_000.0
}

#[test]
fn what_all_get_is_divided_equally() {
    assert!((share_mbit(vec![getting(1.0, 30.0), getting(2.0, 30.0), getting(3.0, 30.0)]) - 2.5).abs() < 0.01);
    assert!((share_mbit(vec![getting(2.0, 30.0); 8]) - 2.0).abs() < 0.01);
}

#[test]
fn what_one_cannot_use_is_the_others() {
    let far_away = getting(1.0, 0.0);
    assert!((share_mbit(vec![far_away, getting(9.0, 30.0), getting(9.0, 30.0)]) - 9.0).abs() < 0.01);
}

#[test]
fn all_grow_while_there_is_no_queue_and_hold_where_it_is_as_wanted() {
    let cwnd = |queue_ms: f64| {
        let policy = policy();
        let found = policy.find(vec![getting(2.0, queue_ms); 8]).expect("known");
        policy.limits(&found, 1.0, 0.256).cwnd.expect("limited")
    };
    let now = 2.0 * 125_000.0 * 0.256 / 1448.0;
    assert!(f64::from(cwnd(0.0)) > 1.4 * now);
    let aim_ms = 1e3 * AIM * allowed_s(Prefer::Balanced, 0.256);
    let held = 2.0 * 125_000.0 * (0.256 + aim_ms / 1e3) / 1448.0 + HELD_BACK_SEGMENTS;
    assert!((f64::from(cwnd(aim_ms)) - held).abs() <= 1.0);
}

#[test]
fn a_neighbour_that_claims_much_counts_for_little_and_one_that_claims_nothing_for_nothing() {
    let honest = share_mbit(vec![getting(2.0, 30.0); 8]);
    let with = |liar: Known| share_mbit([vec![getting(2.0, 30.0); 7], vec![liar]].concat());
    let boasting = with(getting(30_000.0, 0.0));
    assert!((honest..1.3 * honest).contains(&boasting), "{boasting}");
    assert!((with(getting(0.0, 0.0)) - honest).abs() < 0.01);
}

proptest! {
    #[test]
    fn limits_are_never_below_the_floor_whatever_is_told(
        told in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>()), 0..70), own_mbit in 0.0..100.0f64,
    ) {
        let policy = policy();
        let mut known: Vec<Known> = told.into_iter().map(|(rate, cwnd, min, srtt)| Known {
            rate: f64::from(rate) * 125.0,
            cwnd_bytes: f64::from(cwnd) * 1448.0,
            min_rtt_s: f64::from(min) / 1e6,
            srtt_s: f64::from(srtt) / 1e6,
            weight: 1.0,
        }).collect();
        known.push(getting(own_mbit, 10.0));
        if let Some(found) = policy.find(known) {
            let limits = policy.limits(&found, 1.0, 0.256);
            prop_assert!(limits.cwnd >= Some(FLOOR_SEGMENTS));
            prop_assert!(limits.pacing_rate_bytes_per_s >= Some((0.1 * 125_000.0) as u64));
        }
    }
}
