// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a link of unknown rate needs a queue. Input: packets that need an order (background, streams, deadlines), as
//! admission counts them, and the backlog. Output: whether the queue is needed. Installing or removing it costs the
//! packets in the backlog, so it stays for a while, longer each time, and goes when it is empty.

use std::time::Duration;

use super::traffic::{Band, QueueCounters};
use crate::config::Config;

/// After the last such packet, the first time, and at most.
const STAYS: Duration = Duration::from_secs(60);
const STAYS_AT_MOST: Duration = Duration::from_secs(3600);
/// How long the installation waits for the present qdisc to be empty.
const PUT_OFF: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Demand {
    /// The configuration asks for a feature that needs the queue.
    is_lasting: bool,
    /// The time of the latest such packet.
    latest: Option<Duration>,
    stays: Duration,
    /// The counter at that time.
    packets: u64,
    /// Since when the present qdisc has had a backlog.
    put_off: Option<Duration>,
}

impl Demand {
    pub fn new(config: &Config) -> Self {
        Self {
            is_lasting: !config.deadline.is_empty() || !config.chain.is_empty(),
            latest: None,
            stays: Duration::ZERO,
            packets: 0,
            put_off: None,
        }
    }

    pub fn is_over(&self) -> bool {
        !self.is_lasting && self.latest.is_none()
    }

    /// Whether the installation waits although a packet was seen: the backlog of the present qdisc would be lost, so an
    /// empty moment is awaited for a while.
    pub fn is_put_off(&mut self, now: Duration, backlog_packets: u32) -> bool {
        let since = *self.put_off.get_or_insert(now);
        let is_put_off = backlog_packets > 0 && now.saturating_sub(since) < PUT_OFF;
        if !is_put_off {
            self.put_off = None;
        }
        is_put_off
    }

    /// A packet that needs the queue was seen.
    pub fn begins(&mut self, now: Duration) {
        if self.latest.replace(now).is_none() {
            self.stays = (self.stays * 2).clamp(STAYS, STAYS_AT_MOST);
        }
    }

    /// While the queue is installed, for whatever reason: whether the last such packet was long enough ago, and the
    /// backlog is empty.
    pub fn observe(&mut self, now: Duration, counters: &QueueCounters) -> bool {
        let bands = &counters.bands;
        let ordered = [&bands.realtime, &bands.stream, &bands.background];
        let packets = ordered.iter().map(|band| band.classified).sum::<u64>() + counters.only_ordered;
        let waiting = |band: &Band| band.served.map_or(0, |served| served.backlog_packets);
        let waits = ordered.iter().any(|band| waiting(band) > 0);
        if std::mem::replace(&mut self.packets, packets) != packets || waits {
            self.stays_on(now);
            return false;
        }
        let is_over = |latest: Duration| now.saturating_sub(latest) >= self.stays && waiting(&bands.best_effort) == 0;
        let is_over = self.latest.is_some_and(is_over);
        if is_over {
            self.latest = None;
        }
        is_over
    }

    /// A queue installed for another reason stays as long as one that became necessary now.
    pub fn stays_on(&mut self, now: Duration) {
        self.latest = Some(now);
        self.stays = self.stays.max(STAYS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::traffic::Served;

    fn counters(background: u64, waiting: u64) -> QueueCounters {
        let mut counters = QueueCounters::default();
        counters.bands.best_effort.classified = 1_000 * background;
        counters.bands.background.classified = background;
        counters.bands.background.served = Some(Served {
            backlog_packets: waiting,
            ..Served::default()
        });
        counters
    }

    #[test]
    fn the_queue_stays_a_minute_after_the_last_packet_and_longer_each_time() {
        let mut demand = Demand::new(&Config::default());
        let mut now = Duration::from_secs(100);
        for stays_s in [60, 120, 240, 480, 960, 1920, 3600, 3600] {
            assert!(demand.is_over());
            demand.begins(now);
            assert!(!demand.observe(now, &counters(1, 0)) && !demand.is_over());
            now += Duration::from_secs(10);
            assert!(!demand.observe(now, &counters(2, 0)), "one more");
            now += Duration::from_secs(stays_s);
            assert!(!demand.observe(now - Duration::from_millis(1), &counters(2, 0)));
            assert!(demand.observe(now, &counters(2, 0)));
        }
    }

    #[test]
    fn a_queue_installed_for_another_reason_stays_while_packets_need_an_order() {
        let mut demand = Demand::new(&Config::default());
        let at = Duration::from_secs;
        assert!(!demand.observe(at(10), &counters(1, 0)));
        assert!(!demand.is_over(), "a packet came");
        assert!(!demand.observe(at(69), &counters(1, 0)));
        assert!(demand.observe(at(70), &counters(1, 0)));
        let mut only_ordered = counters(1, 0);
        only_ordered.only_ordered = 1;
        assert!(!demand.observe(at(150), &only_ordered) && !demand.is_over());
    }

    #[test]
    fn installation_waits_for_the_backlog() {
        let mut demand = Demand::new(&Config::default());
        demand.begins(Duration::ZERO);
        demand.observe(Duration::ZERO, &counters(5, 1));
        let later = Duration::from_secs(1_000);
        assert!(!demand.observe(later, &counters(5, 1)));
        assert!(!demand.observe(later + Duration::from_secs(59), &counters(5, 0)));
        assert!(demand.observe(later + Duration::from_secs(60), &counters(5, 0)));
    }

    #[test]
    fn the_queue_is_removed_once_it_is_empty() {
        let mut demand = Demand::new(&Config::default());
        demand.begins(Duration::ZERO);
        let mut full = counters(0, 0);
        full.bands.best_effort.served = counters(0, 1).bands.background.served;
        let later = Duration::from_secs(60);
        assert!(!demand.observe(later, &full));
        assert!(demand.observe(later, &counters(0, 0)));
    }

    #[test]
    fn the_queue_is_installed_without_a_backlog_or_after_a_second() {
        let mut demand = Demand::new(&Config::default());
        let at = Duration::from_millis;
        assert!(!demand.is_put_off(at(0), 0));
        assert!(demand.is_put_off(at(10), 3) && demand.is_put_off(at(500), 1));
        assert!(!demand.is_put_off(at(600), 0));
        assert!(demand.is_put_off(at(700), 1), "a new second");
        assert!(demand.is_put_off(at(1699), 1) && !demand.is_put_off(at(1700), 1));
    }

    #[test]
    fn a_deadline_rule_needs_the_queue() {
        let text = "[[deadline]]\nport = 5005\ndeadline_ms = 10.0";
        assert!(!Demand::new(&Config::parse(text).unwrap()).is_over());
    }
}
