// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of what arrives by a link bulk and background may have together, where the link's rate downwards is known. Input:
//! that rate, and what has come so far. Output: the rate that they are to be held to, where it is worth a change.
//!
//! They get `PART` of the rate, less what passes untouched. A part of the rate stays free: the queue must stand here, where it
//! has an order, and not at the remote host, where it has none; and what starts gets its first packets through before anything
//! here has seen them. What passes counts as long as it comes, and for some time afterwards: answers come in bursts. What comes
//! between two looks counts at once, and not for long; as of a tenth of a second it counts for longer: a burst now and then is no rate.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Passing;
use crate::rate::mbit;

/// Of the rate of the link. docs/downloads.md has what others gave.
pub const PART: f64 = 0.8;
/// They always have so much of it, whatever polls: connections live on.
const BACKGROUND_MIN: f64 = 0.05;
/// What passed between two looks is forgotten by a factor of e in so long; and what passed in [`SPAN`].
const FORGETS_AT_ONCE: Duration = Duration::from_millis(40);
const FORGETS: Duration = Duration::from_millis(500);
const SPAN: Duration = Duration::from_millis(100);
/// A change by less than that is not made.
const WORTH_IT: f64 = 0.05;
/// Within this time of what was ordered it is looked at often, else once in this time.
const LULL: Duration = Duration::from_secs(1);
/// Between two looks so many packets may have come, within these times: one packet of a call is no rate. What starts is seen, and
/// yielded to, within this time and a round trip.
const PACKETS_BETWEEN: f64 = 16.0;
const BETWEEN: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];
const PACKET_BYTES: f64 = 1500.0;

/// What takes so long stands in a queue; less is one packet of many segments.
pub const WAITS: Duration = Duration::from_millis(25);
/// Where packets of bulk and background wait before the link and none waits here for so much longer than not, more is let through
/// than it carries.
const TOO_HIGH_AFTER: Duration = Duration::from_secs(3);

/// What is said of a link's rate downwards, and where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DownloadRate {
    pub ifindex: u32,
    pub mbit: f64,
    pub configured_in: &'static str,
}

impl DownloadRate {
    fn bytes_per_s(&self) -> f64 {
        self.mbit * 125_000.0
    }

    /// What bulk and background may have while nothing else comes, bytes a second.
    pub fn most(&self) -> u64 {
        ((self.bytes_per_s() * PART) as u64).max(1)
    }

    /// For people.
    pub fn shown(&self) -> String {
        shown(self.mbit, self.configured_in)
    }
}

fn shown(mbit: f64, configured_in: &str) -> String {
    format!("{}% of the {mbit} Mbit/s that {configured_in} says", PART * 100.0)
}

impl OrderView {
    /// For people.
    pub fn rate_shown(&self) -> String {
        shown(self.rate_mbit, &self.configured_in)
    }
}

/// Bytes that have come by a link so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Arrived {
    /// Untouched.
    pub passed_bytes: u64,
    /// Of bulk and background.
    pub ordered_bytes: u64,
}

/// For `status`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct OrderView {
    pub interface: String,
    pub rate_mbit: f64,
    pub configured_in: String,
    /// What bulk and background may have now, together.
    pub available_mbit: f64,
    /// What comes before it.
    pub throughput_mbit: f64,
    pub bulk: Passing,
    pub background: Passing,
}

#[derive(Clone, Debug)]
pub struct Order {
    rate: DownloadRate,
    /// As it was last asked for.
    available: u64,
    /// Bytes a second, since the latest look, and in the latest [`SPAN`]s.
    at_once: f64,
    passing: f64,
    /// Bytes that passed in the present one, and when it began.
    span: (Duration, u64),
    looked: Option<Duration>,
    latest: Option<(Duration, Arrived)>,
    /// When something of bulk or background was last seen.
    busy: Option<Duration>,
    /// What its queues let pass: bulk's and background's.
    pub queues: [Passing; 2],
    /// For how much longer packets have waited before the link than not, since some last waited here.
    waited_before: Duration,
    judged: Option<Duration>,
    is_too_high: bool,
}

impl Order {
    pub fn new(rate: DownloadRate) -> Self {
        Self {
            rate,
            available: rate.most(),
            at_once: 0.0,
            passing: 0.0,
            span: (Duration::ZERO, 0),
            looked: None,
            latest: None,
            busy: None,
            queues: Default::default(),
            waited_before: Duration::ZERO,
            judged: None,
            is_too_high: false,
        }
    }

    /// Takes in whether packets of bulk or background wait in a queue before the link, after its own have been counted.
    pub fn judge(&mut self, now: Duration, waits_before: bool) {
        let waiting: u64 = self.queues.iter().map(|queue| queue.passed.backlog_bytes).sum();
        let waits_here = waiting as f64 > self.available as f64 * WAITS.as_secs_f64();
        let took = now.saturating_sub(self.judged.replace(now).unwrap_or(now)).min(LULL);
        self.waited_before = match (waits_here, waits_before) {
            (true, _) => Duration::ZERO,
            (false, true) => (self.waited_before + took).min(TOO_HIGH_AFTER),
            (false, false) => self.waited_before.saturating_sub(took),
        };
        self.is_too_high &= !waits_here;
        self.is_too_high |= self.waited_before >= TOO_HIGH_AFTER;
    }

    /// More than the link carries is let through: the queue stands before it, and this order does nothing.
    pub fn is_too_high(&self) -> bool {
        self.is_too_high
    }

    /// What bulk and background have, Mbit/s.
    fn ordered_mbit(&self) -> f64 {
        self.queues.iter().map(|queue| queue.throughput_mbit).sum()
    }

    /// For people.
    pub fn too_high_shown(&self, interface: &str) -> Option<String> {
        self.is_too_high.then(|| {
            format!(
                "download_rate_mbit = {} seems more than {interface} carries: packets wait before it, while {:.1} Mbit/s arrive; \
                 nothing is ordered, and background yields by its receive windows alone (`giveway link set {interface} \
                 --down RATE`, a lower one)",
                self.rate.mbit,
                self.ordered_mbit() + mbit(self.rate_passing() as u64)
            )
        })
    }

    pub fn rate(&self) -> &DownloadRate {
        &self.rate
    }

    /// When it is time for a look at what has come.
    pub fn next_look(&self) -> Duration {
        let Some(looked) = self.looked else {
            return Duration::ZERO;
        };
        let is_busy = self.busy.is_some_and(|at| looked.saturating_sub(at) < LULL);
        looked + if is_busy { self.between() } else { LULL }
    }

    fn between(&self) -> Duration {
        let [least, most] = BETWEEN;
        Duration::from_secs_f64((PACKETS_BETWEEN * PACKET_BYTES / self.rate.bytes_per_s()).min(1.0)).clamp(least, most)
    }

    /// Takes in what has come so far; None: nothing tells. Returns what bulk and background may have from now on, bytes a second,
    /// where that is to be changed.
    pub fn observe(&mut self, now: Duration, arrived: Option<Arrived>) -> Option<u64> {
        self.looked = Some(now);
        let arrived = arrived?;
        let (then, before) = *self.latest.get_or_insert((now, arrived));
        let took = now.saturating_sub(then);
        if took < self.between() {
            return None;
        }
        self.latest = Some((now, arrived));
        if arrived.ordered_bytes != before.ordered_bytes {
            self.busy = Some(now);
        }
        let passed = arrived.passed_bytes.saturating_sub(before.passed_bytes);
        self.at_once = latest_or_remembered(self.at_once, took, FORGETS_AT_ONCE, passed as f64);
        self.span.1 += passed;
        let span = now.saturating_sub(self.span.0);
        if span >= SPAN {
            self.passing = latest_or_remembered(self.passing, span.min(took.max(SPAN)), FORGETS, self.span.1 as f64);
            self.span = (now, 0);
        }
        let wanted = self.wanted();
        let is_other = (wanted as f64 - self.available as f64).abs() > WORTH_IT * self.available as f64;
        is_other.then(|| {
            self.available = wanted;
            wanted
        })
    }

    fn rate_passing(&self) -> f64 {
        self.at_once.max(self.passing)
    }

    fn wanted(&self) -> u64 {
        let rate = self.rate.bytes_per_s();
        let left = self.rate.most() as f64 - self.rate_passing();
        (left.max(BACKGROUND_MIN * rate) as u64).max(1)
    }

    pub fn view(&self, interface: &str) -> OrderView {
        OrderView {
            interface: interface.to_owned(),
            rate_mbit: self.rate.mbit,
            configured_in: self.rate.configured_in.to_owned(),
            available_mbit: mbit(self.available),
            throughput_mbit: mbit(self.rate_passing() as u64),
            bulk: self.queues[0],
            background: self.queues[1],
        }
    }
}

/// Bytes a second: of what has just passed, or what is left of the rate before.
fn latest_or_remembered(before: f64, took: Duration, forgets: Duration, passed: f64) -> f64 {
    let remembered = before * (-took.as_secs_f64() / forgets.as_secs_f64()).exp();
    remembered.max(passed / took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: DownloadRate = DownloadRate {
        ifindex: 2,
        mbit: 20.0,
        configured_in: "[link]",
    };
    const PASS: Duration = Duration::from_millis(100);

    /// What is available after each of so many polls, while so much passes untouched, Mbit/s.
    fn follow(order: &mut Order, from: u32, polls: u32, throughput_mbit: f64, arrived: &mut Arrived) -> Vec<f64> {
        let of_poll = |pass: u32| {
            arrived.passed_bytes += (throughput_mbit * 12_500.0) as u64;
            arrived.ordered_bytes += 1;
            order.observe(PASS * pass, Some(*arrived));
            mbit(order.available)
        };
        (from..from + polls).map(of_poll).collect()
    }

    #[test]
    fn bulk_and_background_have_what_is_left_and_at_least_a_trickle() {
        let (mut order, mut arrived) = (Order::new(RATE), Arrived::default());
        assert_eq!(follow(&mut order, 0, 3, 0.0, &mut arrived), [16.0; 3]);
        let available = follow(&mut order, 3, 2, 7.0, &mut arrived);
        assert_eq!(available, [9.0; 2], "at the next look");
        let available = follow(&mut order, 5, 2, 25.0, &mut arrived);
        assert_eq!(available, [1.0; 2]);
        let available = follow(&mut order, 7, 20, 0.0, &mut arrived);
        assert!(available[0] < 1.1, "{available:?}");
        assert!(available.is_sorted() && available[19] > 15.0, "{available:?}");
    }

    /// 50 kB twice a second are 0.8 Mbit/s, and come within one look.
    #[test]
    fn a_burst_now_and_then_takes_little_of_what_bulk_has() {
        let (mut order, mut arrived) = (Order::new(RATE), Arrived::default());
        let (mut sum, looks) = (0.0, 500);
        for look in 0..looks {
            arrived.passed_bytes += if look % 25 == 0 { 50_000 } else { 0 };
            arrived.ordered_bytes += 1;
            order.observe(BETWEEN[0] * look, Some(arrived));
            sum += mbit(order.available);
        }
        let mean = sum / f64::from(looks);
        assert!(mean > 11.0, "{mean} of 16 Mbit/s");
    }

    #[test]
    fn a_change_that_is_not_worth_it_is_not_made() {
        let mut order = Order::new(RATE);
        let mut observe = |ms: u64, passed_bytes| {
            let arrived = Arrived {
                passed_bytes,
                ordered_bytes: 0,
            };
            order.observe(Duration::from_millis(ms), Some(arrived))
        };
        assert_eq!(observe(0, 0), None);
        // 0.4 Mbit/s of 16.
        assert_eq!(observe(100, 5_000), None);
        // As much again; and a look too soon says nothing.
        assert_eq!(observe(119, 500_000), None);
        let wanted = observe(200, 30_000).unwrap();
        assert!((1_745_000..1_755_000).contains(&wanted), "{wanted}");
    }

    #[test]
    fn where_nothing_is_ordered_it_is_looked_at_once_a_second() {
        let (mut order, mut arrived) = (Order::new(RATE), Arrived::default());
        assert!(order.next_look() <= PASS);
        order.observe(PASS, Some(arrived));
        assert_eq!(order.next_look(), PASS * 11);
        arrived.ordered_bytes += 1;
        order.observe(PASS * 11, Some(arrived));
        assert_eq!(order.next_look(), PASS * 11 + BETWEEN[0]);
        order.observe(PASS * 21, Some(arrived));
        assert_eq!(order.next_look(), PASS * 31);
    }

    #[test]
    fn a_slow_link_is_looked_at_less_often() {
        let between = |mbit| Order::new(DownloadRate { mbit, ..RATE }).between().as_millis();
        assert_eq!([0.5, 4.0, 20.0, 1000.0].map(between), [100, 48, 20, 20]);
    }

    #[test]
    fn a_rate_is_too_high_while_packets_wait_before_the_link_and_none_waits_here() {
        let mut order = Order::new(RATE);
        // 25 ms of 16 Mbit/s are 50 kB.
        let mut judge = |s: u64, waits_before, waiting_kb: u64| {
            order.queues[1].passed.backlog_bytes = waiting_kb * 1000;
            order.judge(Duration::from_secs(s), waits_before);
            order.is_too_high()
        };
        assert!((0..3).all(|s| !judge(s, true, 0)), "not at once");
        assert!(judge(3, true, 45), "a packet of many segments");
        assert!(judge(4, false, 0), "its windows hold it now");
        assert!(!judge(5, true, 100), "the order holds it");
        assert!((6..8).all(|s| !judge(s, true, 0)));
        assert!(!judge(8, false, 0) && !judge(9, true, 0), "now and then");
        assert!(judge(10, true, 0), "more often than not");
    }

    proptest! {
        #[test]
        fn whatever_is_counted_they_have_between_a_background_min_and_their_part(
            counted in prop::collection::vec((0u64..2_000, any::<u64>(), any::<u64>()), 1..50),
            mbit in 0.01..10_000.0,
        ) {
            let rate = DownloadRate { mbit, ..RATE };
            let mut order = Order::new(rate);
            let mut now = Duration::ZERO;
            for (ms, passed_bytes, ordered_bytes) in counted {
                now += Duration::from_millis(ms);
                if let Some(wanted) = order.observe(now, Some(Arrived { passed_bytes, ordered_bytes })) {
                    prop_assert!(wanted <= rate.most() && wanted >= (mbit * 125_000.0 * BACKGROUND_MIN) as u64);
                }
            }
        }
    }
}
