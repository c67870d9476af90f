// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rate of bulk and background downloads on a link whose download rate is known. Input: that rate, and the received
//! traffic so far. Output: their total rate, when it is worth a change.
//!
//! They get `PART` of the link's rate, less the other traffic. A part of the rate stays free: the queue must form here,
//! where it is ordered, and not at the remote side, where it is not; and new traffic gets its first packets through
//! before anything here has seen them. Other traffic counts while it lasts, and for some time afterwards, since
//! responses come in bursts. Traffic between two polls counts at once, but briefly; over a tenth of a second it counts
//! longer: a single burst is no rate.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Passing;
use crate::rate::mbit;

/// Of the link's rate (docs/explanation/downloads.md compares other values).
pub const PART: f64 = 0.8;
/// The part that they always have, whatever else arrives: connections stay alive.
const BACKGROUND_MIN: f64 = 0.05;
/// The decay (by a factor of e) of the traffic between two polls; and of that in [`SPAN`].
const FORGETS_AT_ONCE: Duration = Duration::from_millis(40);
const FORGETS: Duration = Duration::from_millis(500);
const SPAN: Duration = Duration::from_millis(100);
/// A smaller change is not made.
const WORTH_IT: f64 = 0.05;
/// Within this time of ordered traffic polls are frequent, else one in this time.
const LULL: Duration = Duration::from_secs(1);
/// Packets that may arrive between two polls, within these bounds: one packet of a call is no rate. New traffic is
/// seen, and yielded to, within this time and an RTT.
const PACKETS_BETWEEN: f64 = 16.0;
const BETWEEN: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];
const PACKET_BYTES: f64 = 1500.0;

/// A longer delay is a queue; a shorter one is a single packet of many segments.
pub const WAITS: Duration = Duration::from_millis(25);
/// When packets of bulk and background queue before the link rather than here for this much longer than not, the rate
/// is higher than the link's.
const TOO_HIGH_AFTER: Duration = Duration::from_secs(3);

/// A link's download rate, and its source.
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

    /// The rate of bulk and background without other traffic, bytes a second.
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

/// Bytes received on a link so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Arrived {
    /// Not ordered.
    pub passed_bytes: u64,
    /// Of bulk and background.
    pub ordered_bytes: u64,
}

/// For `status`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct OrderView {
    pub interface: String,
    pub rate_mbit: f64,
    pub configured_in: String,
    /// The present total rate of bulk and background.
    pub available_mbit: f64,
    /// The throughput of the other traffic.
    pub throughput_mbit: f64,
    pub bulk: Passing,
    pub background: Passing,
}

#[derive(Clone, Debug)]
pub struct Order {
    rate: DownloadRate,
    /// As last requested.
    available: u64,
    /// Bytes a second, since the latest poll, and over the latest [`SPAN`]s.
    at_once: f64,
    passing: f64,
    /// Bytes of other traffic in the present one, and its beginning.
    span: (Duration, u64),
    looked: Option<Duration>,
    latest: Option<(Duration, Arrived)>,
    /// When bulk or background was last seen.
    busy: Option<Duration>,
    /// The throughput of its queues: bulk's and background's.
    pub queues: [Passing; 2],
    /// How much longer packets have queued before the link than not, since they last queued here.
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

    /// Takes in whether packets of bulk or background queue before the link, after its own counters.
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

    /// The rate is higher than the link's: the queue forms before it, and this order has no effect.
    pub fn is_too_high(&self) -> bool {
        self.is_too_high
    }

    /// The throughput of bulk and background, Mbit/s.
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

    /// When to read the counters next.
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

    /// Takes in the received traffic so far; None: unknown. Returns the new rate of bulk and background, bytes a
    /// second, if it changes.
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

/// Bytes a second: the latest traffic, or the decayed earlier rate.
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

    /// The available rate after each of so many polls, with this other traffic, Mbit/s.
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
    fn bulk_and_background_have_the_rest_and_at_least_their_minimum() {
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

    /// 50 kB twice a second are 0.8 Mbit/s, and arrive within one poll.
    #[test]
    fn rare_bursts_take_little_from_bulk() {
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
    fn small_changes_are_not_made() {
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
        // As much again; and a poll that is too early shows nothing.
        assert_eq!(observe(119, 500_000), None);
        let wanted = observe(200, 30_000).unwrap();
        assert!((1_745_000..1_755_000).contains(&wanted), "{wanted}");
    }

    #[test]
    fn without_ordered_traffic_polls_are_once_a_second() {
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
    fn a_slow_link_is_polled_less_often() {
        let between = |mbit| Order::new(DownloadRate { mbit, ..RATE }).between().as_millis();
        assert_eq!([0.5, 4.0, 20.0, 1000.0].map(between), [100, 48, 20, 20]);
    }

    #[test]
    fn a_rate_is_too_high_while_packets_queue_before_the_link_only() {
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
        fn for_any_counters_the_rate_stays_between_minimum_and_part(
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
