// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When every sender's cap was right. Pure. Input: every change of a cap (from the daemons' own logs) and the times at
//! which the true number of senders changed. Output: for each of these, how long it took.

use std::collections::{BTreeMap, BTreeSet};

use crate::giveway::answers::CapChange;

/// From `t_ns` to `until_ns` exactly these sockets send, and each should have the right cap.
#[derive(Clone, Debug)]
pub struct ExpectedCaps {
    pub t_ns: u64,
    pub until_ns: u64,
    pub senders: BTreeSet<u64>,
    pub target: CapTarget,
}

/// Which cap is right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CapTarget {
    /// This one, for half a second (or to the end of the period).
    Cap(u64),
    /// Each one's own: its mean cap in the period's last second, or within 5% of that or a segment, from then on to the
    /// end of the period. A socket without a cap at the end has not settled; nor has any if the earlier ones have not
    /// come half of the way to the cap due: `before` / now of it.
    Settled { before: usize },
}

/// A cap that is right for less time counts as chance.
const HOLD_NS: u64 = 500_000_000;
const FINAL_NS: u64 = 1_000_000_000;
const SETTLED_WITHIN: f64 = 0.05;

/// For each change, nanoseconds until every sender's cap was right and stayed so; `None` if never. `changes` may be in
/// any order.
pub fn delays_ns(changes: &[CapChange], moments: &[ExpectedCaps]) -> Vec<Option<u64>> {
    let mut changes = changes.to_vec();
    changes.sort_by_key(|change| change.t_ns);
    let delay_ns = |expected: &ExpectedCaps| match expected.target {
        CapTarget::Cap(cap) => right_after_ns(&changes, expected, cap),
        CapTarget::Settled { before } => settled_after_ns(&changes, expected, before),
    };
    moments.iter().map(delay_ns).collect()
}

fn right_after_ns(changes: &[CapChange], expected: &ExpectedCaps, cap: u64) -> Option<u64> {
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

/// The time of the slowest sender. `before`: the number of earlier senders.
fn settled_after_ns(changes: &[CapChange], expected: &ExpectedCaps, before: usize) -> Option<u64> {
    let (from_ns, until_ns) = (expected.t_ns, expected.until_ns);
    let (mut longest_ns, mut had, mut have) = (0, 0.0, 0.0);
    for cookie in &expected.senders {
        let periods = periods(changes, *cookie, from_ns, until_ns);
        let last = last_mean(&periods, from_ns, until_ns)?;
        let within = f64::max(last * SETTLED_WITHIN, 1.0);
        let is_wrong = |cap: Option<u64>| cap.is_none_or(|cap| (cap as f64 - last).abs() > within);
        let wrong_until_ns = periods
            .iter()
            .rfind(|period| is_wrong(period.cap))
            .map(|period| period.to_ns);
        if wrong_until_ns.is_some_and(|ns| ns >= until_ns) {
            return None;
        }
        longest_ns = wrong_until_ns.map_or(longest_ns, |ns| longest_ns.max(ns - from_ns));
        if let Some(first) = periods[0].cap {
            had += first as f64;
            have += last;
        }
    }
    let due = before as f64 / expected.senders.len() as f64;
    let has_moved = had > 0.0 && (have / had - 1.0) / (due - 1.0) >= 0.5;
    has_moved.then_some(longest_ns)
}

/// The largest relative deviation of a cap from its mean in the last second, so long after the change; None if one has
/// no cap.
pub fn off_after(changes: &[CapChange], expected: &ExpectedCaps, after_ns: u64) -> Option<f64> {
    let (from_ns, until_ns) = (expected.t_ns, expected.until_ns);
    let mut changes = changes.to_vec();
    changes.sort_by_key(|change| change.t_ns);
    let off = |cookie: &u64| {
        let periods = periods(&changes, *cookie, from_ns, until_ns);
        let last = last_mean(&periods, from_ns, until_ns)?;
        let then = periods.iter().rfind(|period| period.from_ns <= from_ns + after_ns)?;
        Some((then.cap? as f64 / last - 1.0).abs())
    };
    let each: Option<Vec<f64>> = expected.senders.iter().map(off).collect();
    each?.into_iter().max_by(f64::total_cmp)
}

/// A time in which a socket has one cap, or none.
struct Period {
    from_ns: u64,
    to_ns: u64,
    cap: Option<u64>,
}

fn periods(changes: &[CapChange], cookie: u64, from_ns: u64, until_ns: u64) -> Vec<Period> {
    let period = |from_ns, cap| Period {
        from_ns,
        to_ns: until_ns,
        cap,
    };
    let mut periods = vec![period(from_ns, None)];
    for change in changes
        .iter()
        .filter(|change| change.cookie == cookie && change.t_ns < until_ns)
    {
        if change.t_ns <= from_ns {
            periods[0].cap = change.cap;
        } else {
            let last = periods.len() - 1;
            periods[last].to_ns = change.t_ns;
            periods.push(period(change.t_ns, change.cap));
        }
    }
    periods
}

/// None if there is no cap for some of it.
fn last_mean(periods: &[Period], from_ns: u64, until_ns: u64) -> Option<f64> {
    let from_ns = until_ns.saturating_sub(FINAL_NS).max(from_ns);
    let (mut sum, mut over_ns) = (0.0, 0.0);
    for period in periods.iter().filter(|period| period.to_ns > from_ns) {
        let ns = (period.to_ns - period.from_ns.max(from_ns)) as f64;
        sum += period.cap? as f64 * ns;
        over_ns += ns;
    }
    Some(sum / f64::max(over_ns, 1.0))
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

    fn cleared(t_ms: u64, cookie: u64) -> CapChange {
        CapChange {
            cap: None,
            ..change(t_ms, cookie, 0)
        }
    }

    /// Sockets 1 and 2 send from second 1 to 5.
    fn delay_ms(changes: &[CapChange], target: CapTarget) -> Option<u64> {
        let expected = ExpectedCaps {
            t_ns: 1_000 * MS,
            until_ns: 5_000 * MS,
            senders: [1, 2].into(),
            target,
        };
        delays_ns(changes, &[expected])[0].map(|delay| delay / MS)
    }

    /// They should have 43.
    fn right_ms(changes: &[CapChange]) -> Option<u64> {
        delay_ms(changes, CapTarget::Cap(43))
    }

    /// Before, three sent: what two have is half as much again.
    fn settled_ms(changes: &[CapChange]) -> Option<u64> {
        delay_ms(changes, CapTarget::Settled { before: 3 })
    }

    #[test]
    fn slowest_socket_decides() {
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
    fn briefly_right_cap_does_not_count() {
        let flicker = [change(1_100, 1, 43), change(1_200, 2, 43), change(1_400, 2, 57)];
        assert_eq!(right_ms(&flicker), None);
        let recovers = [&flicker[..], &[change(2_000, 2, 43)]].concat();
        assert_eq!(right_ms(&recovers), Some(1_000));
    }

    #[test]
    fn later_change_does_not_count() {
        let changes = [change(1_100, 1, 43), change(1_200, 2, 43), change(1_800, 2, 57)];
        assert_eq!(right_ms(&changes), Some(200));
    }

    #[test]
    fn other_sockets_do_not_count() {
        let changes = [change(1_100, 1, 43), change(1_200, 3, 7), change(1_300, 2, 43)];
        assert_eq!(right_ms(&changes), Some(300));
    }

    /// The second socket comes to 60 within 10 ms.
    fn beside(others: &[CapChange]) -> Vec<CapChange> {
        [others, &[change(500, 2, 40), change(1_010, 2, 60)]].concat()
    }

    #[test]
    fn caps_have_settled_when_they_come_within_a_twentieth_of_the_last() {
        let changes = beside(&[change(500, 1, 40), change(1_300, 1, 61), change(1_600, 1, 60)]);
        assert_eq!(settled_ms(&changes), Some(300));
    }

    #[test]
    fn cap_that_leaves_the_band_has_not_settled() {
        let steps = [
            change(500, 1, 40),
            change(1_100, 1, 60),
            change(3_000, 1, 65),
            change(3_200, 1, 60),
        ];
        assert_eq!(settled_ms(&beside(&steps)), Some(2_200));
    }

    #[test]
    fn caps_that_do_not_change_have_not_settled() {
        let stand = [change(500, 1, 40), change(500, 2, 40)];
        assert_eq!(settled_ms(&stand), None);
        let hardly = [&stand[..], &[change(1_200, 1, 45), change(1_200, 2, 45)]].concat();
        assert_eq!(settled_ms(&hardly), None);
    }

    #[test]
    fn caps_fall_with_one_more_sender() {
        let settled = |changes: &[CapChange]| delay_ms(changes, CapTarget::Settled { before: 1 });
        let newcomer_and_one = [change(500, 1, 60), change(1_200, 1, 30), change(1_400, 2, 30)];
        assert_eq!(settled(&newcomer_and_one), Some(400));
        assert_eq!(settled(&[change(500, 1, 60), change(1_400, 2, 30)]), None);
    }

    #[test]
    fn a_cap_of_few_segments_may_be_one_off() {
        let changes = [change(500, 1, 6), change(1_010, 1, 9), change(2_000, 1, 10)];
        assert_eq!(settled_ms(&beside(&changes)), Some(10));
    }

    #[test]
    fn a_socket_without_a_cap_in_the_end_has_not_settled() {
        let capped = [change(500, 1, 40), change(1_100, 1, 60)];
        assert_eq!(settled_ms(&[&beside(&capped)[..], &[cleared(4_500, 2)]].concat()), None);
        assert_eq!(settled_ms(&capped), None);
    }

    #[test]
    fn the_cap_that_is_furthest_off_counts() {
        let changes = beside(&[change(500, 1, 40), change(1_500, 1, 66), change(2_500, 1, 60)]);
        let expected = ExpectedCaps {
            t_ns: 1_000 * MS,
            until_ns: 5_000 * MS,
            senders: [1, 2].into(),
            target: CapTarget::Settled { before: 3 },
        };
        let off = |after_ms: u64| off_after(&changes, &expected, after_ms * MS).map(|part| (100.0 * part).round());
        assert_eq!([off(100), off(1_000), off(2_000)], [Some(33.0), Some(10.0), Some(0.0)]);
        assert_eq!(off_after(&changes[..2], &expected, MS), None);
    }

    #[test]
    fn a_cap_that_grows_to_the_end_settles_late() {
        let grows = (0..40).map(|step| change(1_000 + step * 100, 1, 40 + step));
        let changes = beside(&grows.collect::<Vec<_>>());
        let ms = settled_ms(&changes);
        assert!(ms.is_none_or(|ms| ms > 2_500), "{ms:?}");
    }
}
