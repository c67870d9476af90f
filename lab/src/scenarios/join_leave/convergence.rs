// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When every sender's cap was right. Pure.
//! Input: every change of a cap (from the daemons' own logs) and the moments at which the true number
//! of senders changed. Output: for each of those moments, how long it took.

use std::collections::{BTreeMap, BTreeSet};

use crate::giveway::answers::CapChange;

/// From `t_ns` to `until_ns` exactly these sockets send, and each should have the right cap.
#[derive(Clone, Debug)]
pub struct Expected {
    pub t_ns: u64,
    pub until_ns: u64,
    pub senders: BTreeSet<u64>,
    pub target: Target,
}

/// Which cap is right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// This one, for half a second (or to the end of the period).
    Cap(u64),
    /// Each one's own: what it has in the mean of the period's last second, or within 5% of that or a segment, from then on
    /// to the end of the period. A socket without a cap at its end has not settled.
    Settled,
}

/// Right for a shorter time than this was chance.
const HOLD_NS: u64 = 500_000_000;
const FINAL_NS: u64 = 1_000_000_000;
const SETTLED_WITHIN: f64 = 0.05;

/// For each moment, nanoseconds until every sender's cap was right and stayed so; `None` when that never came.
/// `changes` may be in any order.
pub fn delays_ns(changes: &[CapChange], moments: &[Expected]) -> Vec<Option<u64>> {
    let mut changes = changes.to_vec();
    changes.sort_by_key(|change| change.t_ns);
    let delay_ns = |expected: &Expected| match expected.target {
        Target::Cap(cap) => right_after_ns(&changes, expected, cap),
        Target::Settled => settled_after_ns(&changes, expected),
    };
    moments.iter().map(delay_ns).collect()
}

fn right_after_ns(changes: &[CapChange], expected: &Expected, cap: u64) -> Option<u64> {
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
            .all(|cookie| caps.get(cookie) == Some(&Some(cap)))
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

/// The time of the sender that took longest.
fn settled_after_ns(changes: &[CapChange], expected: &Expected) -> Option<u64> {
    let of_sender = |cookie: &u64| {
        // What was in force from when on, the first of it from the beginning of the period.
        let mut had = vec![(expected.t_ns, None)];
        for change in changes.iter().filter(|change| change.cookie == *cookie) {
            if change.t_ns <= expected.t_ns {
                had[0].1 = change.cap;
            } else if change.t_ns < expected.until_ns {
                had.push((change.t_ns, change.cap));
            }
        }
        let ends = had.iter().skip(1).map(|(t_ns, _)| *t_ns).chain([expected.until_ns]);
        let periods: Vec<_> = had
            .iter()
            .zip(ends)
            .map(|((from, cap), to)| (*from, to, *cap))
            .collect();
        let from_ns = expected.until_ns.saturating_sub(FINAL_NS).max(expected.t_ns);
        let (mut sum, mut over_ns) = (0.0, 0.0);
        for (from, to, cap) in periods.iter().filter(|(_, to, _)| *to > from_ns) {
            let ns = (to - from.max(&from_ns)) as f64;
            sum += (*cap)? as f64 * ns;
            over_ns += ns;
        }
        let last = sum / f64::max(over_ns, 1.0);
        let within = f64::max(last * SETTLED_WITHIN, 1.0);
        let is_right = |cap: &Option<u64>| cap.is_some_and(|cap| (cap as f64 - last).abs() <= within);
        let wrong_until = periods.iter().rfind(|(_, _, cap)| !is_right(cap)).map(|(_, to, _)| *to);
        match wrong_until {
            Some(until_ns) if until_ns >= expected.until_ns => None,
            Some(until_ns) => Some(until_ns - expected.t_ns),
            None => Some(0),
        }
    };
    let each: Option<Vec<u64>> = expected.senders.iter().map(of_sender).collect();
    each?.into_iter().max()
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

    fn lifted(t_ms: u64, cookie: u64) -> CapChange {
        CapChange {
            cap: None,
            ..change(t_ms, cookie, 0)
        }
    }

    /// Sockets 1 and 2 send from second 1 to 5.
    fn delay_ms(changes: &[CapChange], target: Target) -> Option<u64> {
        let expected = Expected {
            t_ns: 1_000 * MS,
            until_ns: 5_000 * MS,
            senders: [1, 2].into(),
            target,
        };
        delays_ns(changes, &[expected])[0].map(|delay| delay / MS)
    }

    /// They should have 43.
    fn right_ms(changes: &[CapChange]) -> Option<u64> {
        delay_ms(changes, Target::Cap(43))
    }

    fn settled_ms(changes: &[CapChange]) -> Option<u64> {
        delay_ms(changes, Target::Settled)
    }

    #[test]
    fn the_last_socket_to_be_right_decides() {
        assert_eq!(right_ms(&[change(1_200, 1, 43), change(1_600, 2, 43)]), Some(600));
    }

    #[test]
    fn the_order_of_the_logs_does_not_matter() {
        assert_eq!(right_ms(&[change(1_600, 2, 43), change(1_200, 1, 43)]), Some(600));
    }

    #[test]
    fn caps_that_were_right_before_need_no_time() {
        assert_eq!(right_ms(&[change(500, 1, 43), change(600, 2, 43)]), Some(0));
    }

    #[test]
    fn a_socket_that_never_gets_its_cap_is_never_right() {
        assert_eq!(right_ms(&[change(1_200, 1, 43)]), None);
        assert_eq!(right_ms(&[change(1_200, 1, 43), change(1_300, 2, 49)]), None);
        assert_eq!(right_ms(&[change(1_200, 1, 43), change(5_300, 2, 43)]), None);
    }

    #[test]
    fn a_moment_of_being_right_by_chance_does_not_count() {
        let flicker = [change(1_100, 1, 43), change(1_200, 2, 43), change(1_400, 2, 57)];
        assert_eq!(right_ms(&flicker), None);
        let recovers = [&flicker[..], &[change(2_000, 2, 43)]].concat();
        assert_eq!(right_ms(&recovers), Some(1_000));
    }

    #[test]
    fn what_goes_wrong_after_half_a_second_is_another_matter() {
        let changes = [change(1_100, 1, 43), change(1_200, 2, 43), change(1_800, 2, 57)];
        assert_eq!(right_ms(&changes), Some(200));
    }

    #[test]
    fn other_sockets_may_have_what_they_like() {
        let changes = [change(1_100, 1, 43), change(1_200, 3, 7), change(1_300, 2, 43)];
        assert_eq!(right_ms(&changes), Some(300));
    }

    #[test]
    fn caps_have_settled_when_they_come_within_a_twentieth_of_the_last() {
        let changes = [
            change(500, 1, 60),
            change(1_300, 1, 41),
            change(1_600, 1, 40),
            change(900, 2, 40),
        ];
        assert_eq!(settled_ms(&changes), Some(300));
    }

    #[test]
    fn a_cap_that_leaves_that_again_has_not_settled_before() {
        let changes = [
            change(900, 1, 40),
            change(3_000, 1, 43),
            change(3_200, 1, 40),
            change(900, 2, 40),
        ];
        assert_eq!(settled_ms(&changes), Some(2_200));
    }

    #[test]
    fn a_cap_of_few_segments_may_be_one_off() {
        let changes = [change(900, 1, 9), change(2_000, 1, 10), change(900, 2, 10)];
        assert_eq!(settled_ms(&changes), Some(0));
    }

    #[test]
    fn a_socket_without_a_cap_in_the_end_has_not_settled() {
        assert_eq!(settled_ms(&[change(900, 1, 40)]), None);
        assert_eq!(
            settled_ms(&[change(900, 1, 40), change(900, 2, 40), lifted(4_500, 2)]),
            None
        );
        let capped_anew = [change(900, 1, 40), lifted(900, 2), change(1_400, 2, 40)];
        assert_eq!(settled_ms(&capped_anew), Some(400));
    }

    #[test]
    fn a_cap_that_grows_to_the_end_settles_late() {
        let grows = (0..40).map(|step| change(1_000 + step * 100, 1, 40 + step));
        let changes: Vec<_> = grows.chain([change(900, 2, 40)]).collect();
        assert!(
            settled_ms(&changes).is_none_or(|ms| ms > 2_500),
            "{:?}",
            settled_ms(&changes)
        );
    }
}
