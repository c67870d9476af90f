// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When every sender's cap was right. Pure.
//! Input: every change of a cap (from the daemons' own logs) and the moments at which the true number
//! of senders changed. Output: for each of those moments, how long it took.

use std::collections::{BTreeMap, BTreeSet};

use crate::giveway::answers::CapChange;

/// From `t_ns` to `until_ns` exactly these sockets send, and each should have this cap.
#[derive(Clone, Debug)]
pub struct Expected {
    pub t_ns: u64,
    pub until_ns: u64,
    pub senders: BTreeSet<u64>,
    pub cap: u64,
}

/// Right for a shorter time than this was chance.
const HOLD_NS: u64 = 500_000_000;

/// For each moment, nanoseconds until every sender's cap was right and stayed so for half a second
/// (or to the end of the period); `None` when that never came. `changes` may be in any order.
pub fn delays_ns(changes: &[CapChange], moments: &[Expected]) -> Vec<Option<u64>> {
    let mut changes = changes.to_vec();
    changes.sort_by_key(|change| change.t_ns);
    moments.iter().map(|expected| delay_ns(&changes, expected)).collect()
}

fn delay_ns(changes: &[CapChange], expected: &Expected) -> Option<u64> {
    let before = changes.partition_point(|change| change.t_ns <= expected.t_ns);
    let after = changes.partition_point(|change| change.t_ns < expected.until_ns);
    let mut caps: BTreeMap<u64, Option<u64>> = changes[..before]
        .iter()
        .map(|change| (change.cookie, change.cap))
        .collect();
    let is_right = |caps: &BTreeMap<u64, Option<u64>>| {
        expected
            .senders
            .iter()
            .all(|cookie| caps.get(cookie) == Some(&Some(expected.cap)))
    };
    let mut right_since = is_right(&caps).then_some(expected.t_ns);
    for change in &changes[before..after.max(before)] {
        if let Some(since) = right_since
            && change.t_ns - since >= HOLD_NS
        {
            break;
        }
        caps.insert(change.cookie, change.cap);
        right_since = is_right(&caps).then(|| right_since.unwrap_or(change.t_ns));
    }
    right_since.map(|since| since - expected.t_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn change(t_ms: u64, cookie: u64, cap: u64) -> CapChange {
        CapChange {
            t_ns: t_ms * MS,
            cookie,
            cap: Some(cap),
        }
    }

    /// Sockets 1 and 2 send from second 1 to 5 and should have 43.
    fn delay_ms(changes: &[CapChange]) -> Option<u64> {
        let expected = Expected {
            t_ns: 1_000 * MS,
            until_ns: 5_000 * MS,
            senders: [1, 2].into(),
            cap: 43,
        };
        delays_ns(changes, &[expected])[0].map(|delay| delay / MS)
    }

    #[test]
    fn the_last_socket_to_be_right_decides() {
        assert_eq!(delay_ms(&[change(1_200, 1, 43), change(1_600, 2, 43)]), Some(600));
    }

    #[test]
    fn the_order_of_the_logs_does_not_matter() {
        assert_eq!(delay_ms(&[change(1_600, 2, 43), change(1_200, 1, 43)]), Some(600));
    }

    #[test]
    fn caps_that_were_right_before_need_no_time() {
        assert_eq!(delay_ms(&[change(500, 1, 43), change(600, 2, 43)]), Some(0));
    }

    #[test]
    fn a_socket_that_never_gets_its_cap_is_never_right() {
        assert_eq!(delay_ms(&[change(1_200, 1, 43)]), None);
        assert_eq!(delay_ms(&[change(1_200, 1, 43), change(1_300, 2, 49)]), None);
        assert_eq!(delay_ms(&[change(1_200, 1, 43), change(5_300, 2, 43)]), None);
    }

    #[test]
    fn a_moment_of_being_right_by_chance_does_not_count() {
        let flicker = [change(1_100, 1, 43), change(1_200, 2, 43), change(1_400, 2, 57)];
        assert_eq!(delay_ms(&flicker), None);
        let recovers = [&flicker[..], &[change(2_000, 2, 43)]].concat();
        assert_eq!(delay_ms(&recovers), Some(1_000));
    }

    #[test]
    fn what_goes_wrong_after_half_a_second_is_another_matter() {
        let changes = [change(1_100, 1, 43), change(1_200, 2, 43), change(1_800, 2, 57)];
        assert_eq!(delay_ms(&changes), Some(200));
    }

    #[test]
    fn other_sockets_may_have_what_they_like() {
        let changes = [change(1_100, 1, 43), change(1_200, 3, 7), change(1_300, 2, 43)];
        assert_eq!(delay_ms(&changes), Some(300));
    }
}
