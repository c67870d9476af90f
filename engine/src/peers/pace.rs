// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When this device reports, so that all reports together stay below a share of the airtime.
//!
//! In: the number of reporting devices, the size of their reports, and local events. Out: the time of the next report.
//! The rule is RTCP's (RFC 3550 section 6.2): the interval grows with the group, is never below a base, is jittered,
//! and is computed again on each query, so that a change of the group since the last report counts at once (section
//! 6.3.3). The cost of a report is its airtime ([`report_airtime_us`]). Never: a clock; `now` never runs backwards
//! here.

use std::time::Duration;

use rand_chacha::rand_core::Rng;

use super::codec::INTERVAL_RANGE_MS;
use crate::config;

/// An idle device reports this many times less often.
pub const IDLE_FACTOR: u32 = 10;
/// The part of the airtime for regular reports; the rest is for those that announce a start or a stop.
const REGULAR_SHARE: f64 = 0.8;
/// Two complete announcements may follow each other at once; then they wait for the share to refill.
pub const MAX_ANNOUNCED_REPORTS: usize = 6;
/// A start is announced three times: broadcasts get lost, and the next regular report may be far.
const START_MS: [u64; 3] = [0, 100, 250];
/// So is a stop; close together, since the queue is empty.
const STOP_MS: [u64; 3] = [0, 80, 160];
/// The assumed size of a report before one was seen (one sender, no response).
const TYPICAL_BYTES: f64 = 92.0;

/// 24 MAC header, 4 FCS, 8 CCMP, 8 LLC/SNAP, 8 UDP.
const FRAME_OVERHEAD_BYTES: u32 = 24 + 4 + 8 + 8 + 8;
const ACK_BYTES: u32 = 14;
/// The long slot, as in a network with old devices: the more expensive case.
const DIFS_US: f64 = 50.0;
const SIFS_US: f64 = 16.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaceConfig {
    /// Between two reports of a sending device, while the airtime suffices.
    pub base_interval: Duration,
    /// The most for all devices' reports together, percent.
    pub airtime_percent: f64,
    /// The rate at which the access point repeats broadcasts, Mbit/s.
    pub basic_rate_mbit: f64,
    /// 20 for IPv4, 40 for IPv6.
    pub ip_header_bytes: u32,
}

impl PaceConfig {
    pub fn new(group: &config::Group) -> Self {
        Self {
            base_interval: Duration::from_millis(group.report_interval_ms.into()),
            airtime_percent: group.airtime_percent,
            basic_rate_mbit: group.basic_rate_mbit,
            ip_header_bytes: 20,
        }
    }
}

impl Default for PaceConfig {
    fn default() -> Self {
        Self::new(&config::Group::default())
    }
}

/// The reporting devices, this one included.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Group {
    pub sending: usize,
    pub idle: usize,
}

/// The airtime of one frame. ERP-OFDM (IEEE 802.11-2020 18.4.3): 20 us preamble, symbols of 4 us with 16 service and 6
/// tail bits, 6 us signal extension. Below 6 Mbit/s and at 11: DSSS with the long preamble.
pub fn frame_airtime_us(frame_bytes: u32, rate_mbit: f64) -> f64 {
    let bits = 8.0 * f64::from(frame_bytes);
    if rate_mbit < 6.0 || rate_mbit == 11.0 {
        192.0 + bits / rate_mbit
    } else {
        20.0 + 4.0 * ((16.0 + 6.0 + bits) / (4.0 * rate_mbit)).ceil() + 6.0
    }
}

/// The airtime of one report: the device's frame to the access point with its acknowledgement, and the access point's
/// repetition without one. The first really uses a data rate; the basic rate is an upper bound. Backoff is left out:
/// its slots pass for all waiting devices at once.
pub fn report_airtime_us(report_bytes: f64, config: &PaceConfig) -> f64 {
    let frame_bytes = FRAME_OVERHEAD_BYTES + config.ip_header_bytes + report_bytes.ceil() as u32;
    let frame = frame_airtime_us(frame_bytes, config.basic_rate_mbit);
    let ack = frame_airtime_us(ACK_BYTES, config.basic_rate_mbit);
    (DIFS_US + frame + SIFS_US + ack) + (DIFS_US + frame)
}

/// Between two regular reports of a sending device. Idle ones wait [`IDLE_FACTOR`] times longer and weigh as much less.
pub fn sending_interval(group: Group, report_airtime_us: f64, config: &PaceConfig) -> Duration {
    let weight = group.sending as f64 + group.idle as f64 / f64::from(IDLE_FACTOR);
    stretched(weight, report_airtime_us, config)
}

/// The interval at which every device of the group could report: that of an idle one with an urgent response.
pub fn hurried_interval(group: Group, report_airtime_us: f64, config: &PaceConfig) -> Duration {
    stretched((group.sending + group.idle) as f64, report_airtime_us, config)
}

fn stretched(weight: f64, report_airtime_us: f64, config: &PaceConfig) -> Duration {
    let share = REGULAR_SHARE * config.airtime_percent / 100.0;
    let interval = Duration::try_from_secs_f64(weight * report_airtime_us / 1e6 / share);
    within_range(interval.unwrap_or(Duration::MAX).max(config.base_interval))
}

fn within_range(interval: Duration) -> Duration {
    let [least, most] =
        [INTERVAL_RANGE_MS.start(), INTERVAL_RANGE_MS.end()].map(|ms| Duration::from_millis(u64::from(*ms)));
    interval.clamp(least, most)
}

/// This device's timer.
#[derive(Debug)]
pub struct Pace {
    config: PaceConfig,
    started: Duration,
    last_sent: Option<Duration>,
    /// A peer has been waiting for a response since then.
    hurried: Option<Duration>,
    /// Random in 0..1, drawn once a report, so that the deadline is the same on each query.
    phase: f64,
    sending: bool,
    /// The times of announcements still to send.
    announcements: Vec<Duration>,
    /// Announcements that may be sent now, and when that was computed.
    credit: f64,
    credited: Duration,
    average_bytes: f64,
}

impl Pace {
    pub fn new(now: Duration, config: PaceConfig, rng: &mut impl Rng) -> Self {
        Self {
            config,
            started: now,
            last_sent: None,
            hurried: None,
            phase: unit(rng),
            sending: false,
            announcements: Vec::new(),
            credit: MAX_ANNOUNCED_REPORTS as f64,
            credited: now,
            average_bytes: TYPICAL_BYTES,
        }
    }

    pub fn set_ip_header(&mut self, bytes: u32) {
        self.config.ip_header_bytes = bytes;
    }

    /// A report of the group was received or sent: its size counts in the average (RFC 3550 section 6.3.3).
    pub fn observe(&mut self, report_bytes: usize) {
        self.average_bytes += (report_bytes as f64 - self.average_bytes) / 16.0;
    }

    pub fn sending(&self) -> bool {
        self.sending
    }

    /// The interval that this device announces, from its next report on.
    pub fn interval(&self, group: Group, sending: bool) -> Duration {
        let interval = sending_interval(group, self.report_airtime_us(), &self.config);
        within_range(if sending { interval } else { interval * IDLE_FACTOR })
    }

    /// The group's regular reports, in percent of the airtime.
    pub fn airtime_percent(&self, group: Group) -> f64 {
        let weight = group.sending as f64 + group.idle as f64 / f64::from(IDLE_FACTOR);
        weight * self.report_airtime_us() / 1e4 / self.interval(group, true).as_secs_f64()
    }

    /// The next report without further events.
    pub fn due(&self, group: Group) -> Duration {
        let regular = self.regular_turn(group);
        self.announcements.first().map_or(regular, |at| regular.min(*at))
    }

    fn regular_turn(&self, group: Group) -> Duration {
        let Some(last) = self.last_sent else {
            return self
                .started
                .saturating_add(self.config.base_interval.mul_f64(self.phase));
        };
        let jittered = |interval: Duration| last.saturating_add(interval.mul_f64(0.9 + 0.2 * self.phase));
        let turn = jittered(self.interval(group, self.sending));
        let Some(since) = self.hurried else { return turn };
        // All that heard the same new device respond at the same moment: they spread over one interval.
        let hurried = hurried_interval(group, self.report_airtime_us(), &self.config);
        turn.min(jittered(hurried).max(since.saturating_add(hurried.mul_f64(self.phase))))
    }

    /// A peer waits for this device's next report.
    pub fn hurry(&mut self, now: Duration) {
        self.hurried.get_or_insert(now);
    }

    pub fn started_sending(&mut self, now: Duration, group: Group, rng: &mut impl Rng) {
        self.sending = true;
        self.announce(now, group, START_MS, 0, rng);
    }

    /// A lower demand shows in flight an RTT later: it is announced over the same time as a start, with the credit that
    /// starts and stops leave.
    pub fn changed_demand(&mut self, now: Duration, group: Group, rng: &mut impl Rng) {
        self.announce(now, group, START_MS, START_MS.len(), rng);
    }

    pub fn stopped_sending(&mut self, now: Duration, group: Group, rng: &mut impl Rng) {
        self.announce(now, group, STOP_MS, 0, rng);
    }

    /// Replaces pending announcements, as every report has the latest state. Without credit it waits for the device's
    /// turn.
    fn announce(&mut self, now: Duration, group: Group, offsets_ms: [u64; 3], left: usize, rng: &mut impl Rng) {
        let share = (1.0 - REGULAR_SHARE) * self.config.airtime_percent / 100.0;
        let devices = (group.sending + group.idle).max(1) as f64;
        let per_second = share / (devices * self.report_airtime_us() / 1e6);
        let passed = now.saturating_sub(self.credited).as_secs_f64();
        self.credit = (self.credit + passed * per_second).min(MAX_ANNOUNCED_REPORTS as f64);
        self.credited = now;
        let count = (self.credit as usize).saturating_sub(left);
        if count == 0 {
            return self.hurry(now);
        }
        self.announcements.clear();
        for offset_ms in offsets_ms.into_iter().take(count) {
            let jittered = Duration::from_millis(offset_ms).mul_f64(0.8 + 0.4 * unit(rng));
            self.announcements.push(now.saturating_add(jittered));
        }
    }

    /// A report was sent; `sending` is its content.
    pub fn sent(&mut self, now: Duration, report_bytes: usize, sending: bool, rng: &mut impl Rng) {
        let announced = self.announcements.len();
        self.announcements.retain(|at| *at > now);
        if self.announcements.len() < announced {
            self.credit = (self.credit - 1.0).max(0.0);
        }
        self.last_sent = Some(now);
        self.hurried = None;
        self.phase = unit(rng);
        self.sending = sending;
        self.observe(report_bytes);
    }

    fn report_airtime_us(&self) -> f64 {
        report_airtime_us(self.average_bytes, &self.config)
    }
}

/// Uniform in 0..1.
fn unit(rng: &mut impl Rng) -> f64 {
    f64::from(rng.next_u32()) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};

    const CONFIG: PaceConfig = PaceConfig {
        base_interval: Duration::from_millis(500),
        airtime_percent: 1.0,
        basic_rate_mbit: 6.0,
        ip_header_bytes: 20,
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn devices(sending: usize, idle: usize) -> Group {
        Group { sending, idle }
    }

    #[test]
    fn the_airtime_of_a_frame_at_six_mbit_is_that_of_the_standard() {
        // 164 bytes: 22 + 1312 bits in symbols of 24 bits are 56.
        assert_eq!(frame_airtime_us(164, 6.0), 20.0 + 56.0 * 4.0 + 6.0);
        assert_eq!(frame_airtime_us(14, 6.0), 20.0 + 6.0 * 4.0 + 6.0);
        assert_eq!(frame_airtime_us(164, 1.0), 192.0 + 1312.0);
        assert_eq!(frame_airtime_us(164, 11.0).round(), 311.0);
    }

    #[test]
    fn a_report_costs_airtime_to_and_from_the_access_point() {
        // A report of 92 bytes: frames of 164 bytes, 250 us each; acknowledgement 50 us.
        assert_eq!(
            report_airtime_us(92.0, &CONFIG),
            (50.0 + 250.0 + 16.0 + 50.0) + (50.0 + 250.0)
        );
        let v6 = PaceConfig {
            ip_header_bytes: 40,
            ..CONFIG
        };
        assert!(report_airtime_us(92.0, &v6) > report_airtime_us(92.0, &CONFIG));
    }

    #[test]
    fn a_small_group_has_the_base_interval_and_a_large_one_shares_the_airtime() {
        let cost_us = report_airtime_us(92.0, &CONFIG);
        assert_eq!(sending_interval(devices(6, 0), cost_us, &CONFIG), ms(500));
        // 8 x 666 us / 0.8%
        assert_eq!(sending_interval(devices(8, 0), cost_us, &CONFIG), ms(666));
        assert_eq!(sending_interval(devices(64, 0), cost_us, &CONFIG), ms(5328));
        assert_eq!(sending_interval(devices(4, 40), cost_us, &CONFIG), ms(666));
    }

    #[test]
    fn all_regular_reports_stay_below_their_share() {
        for sending in 0..=64 {
            for idle in [0, 1, 10, 64] {
                for bytes in [72.0, 92.0, 512.0] {
                    let cost_us = report_airtime_us(bytes, &CONFIG);
                    let interval = sending_interval(devices(sending, idle), cost_us, &CONFIG).as_secs_f64();
                    let per_second = sending as f64 / interval + idle as f64 / (interval * f64::from(IDLE_FACTOR));
                    assert!(per_second * cost_us / 1e6 <= 0.008 + 1e-9, "{sending} {idle} {bytes}");
                }
            }
        }
    }

    #[test]
    fn impossible_numbers_give_a_long_interval() {
        for (percent, rate) in [
            (0.0, 6.0),
            (-1.0, 6.0),
            (f64::NAN, 6.0),
            (1.0, 0.0),
            (1e-300, 6.0),
            (1.0, f64::NAN),
        ] {
            let config = PaceConfig {
                airtime_percent: percent,
                basic_rate_mbit: rate,
                ..CONFIG
            };
            let interval = sending_interval(devices(8, 8), report_airtime_us(92.0, &config), &config);
            assert!(
                interval >= ms(500) && interval <= ms(600_000),
                "{percent} {rate} {interval:?}"
            );
        }
    }

    /// Sends every report that is due between `from` and `until`, as `sending`; returns their times.
    fn run(
        pace: &mut Pace,
        group: Group,
        sending: bool,
        [from, until]: [Duration; 2],
        rng: &mut ChaCha20Rng,
    ) -> Vec<Duration> {
        let mut sent = Vec::new();
        while pace.due(group) <= until {
            // A start may make a turn due that is already past.
            let now = pace.due(group).max(from);
            pace.sent(now, 92, sending, rng);
            sent.push(now);
        }
        sent
    }

    #[test]
    fn regular_reports_are_jittered_by_a_tenth() {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let mut pace = Pace::new(ms(0), CONFIG, &mut rng);
        let sent = run(&mut pace, devices(1, 0), true, [0, 600_000].map(ms), &mut rng);
        let gaps: Vec<Duration> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| (ms(450)..=ms(550)).contains(gap)));
        assert!(gaps.iter().any(|gap| *gap < ms(460)) && gaps.iter().any(|gap| *gap > ms(540)));
    }

    #[test]
    fn a_start_is_announced_at_once_after_any_demand_changes() {
        for group in [devices(2, 0), devices(8, 0), devices(32, 0), devices(64, 0)] {
            let mut rng = ChaCha20Rng::seed_from_u64(7);
            let mut pace = Pace::new(ms(0), CONFIG, &mut rng);
            for second in 0..20 {
                pace.changed_demand(ms(second * 1000), group, &mut rng);
                run(
                    &mut pace,
                    group,
                    true,
                    [second * 1000, second * 1000 + 999].map(ms),
                    &mut rng,
                );
            }
            let start = 20_050;
            pace.started_sending(ms(start), group, &mut rng);
            let told = run(&mut pace, group, true, [start, start + 350].map(ms), &mut rng).len();
            assert!(told >= 3, "{} devices: {told}", group.sending);
        }
    }

    #[test]
    fn a_start_is_announced_at_once_and_twice_more() {
        let mut rng = ChaCha20Rng::seed_from_u64(2);
        let mut pace = Pace::new(ms(0), CONFIG, &mut rng);
        run(&mut pace, devices(0, 1), false, [0, 20_000].map(ms), &mut rng);
        pace.started_sending(ms(20_000), devices(1, 0), &mut rng);
        let sent = run(&mut pace, devices(1, 0), true, [20_000, 20_400].map(ms), &mut rng);
        assert_eq!(sent.len(), 3, "{sent:?}");
        assert_eq!(sent[0], ms(20_000));
        assert!((ms(20_080)..=ms(20_120)).contains(&sent[1]) && (ms(20_200)..=ms(20_300)).contains(&sent[2]));
    }

    #[test]
    fn a_stop_is_announced_three_times() {
        let mut rng = ChaCha20Rng::seed_from_u64(3);
        let mut pace = Pace::new(ms(0), CONFIG, &mut rng);
        run(&mut pace, devices(1, 0), true, [0, 20_000].map(ms), &mut rng);
        pace.stopped_sending(ms(20_000), devices(0, 1), &mut rng);
        assert_eq!(
            run(&mut pace, devices(0, 1), false, [20_000, 24_000].map(ms), &mut rng).len(),
            3
        );
    }

    #[test]
    fn a_flapping_device_stays_within_its_share() {
        let mut rng = ChaCha20Rng::seed_from_u64(4);
        let mut pace = Pace::new(ms(0), CONFIG, &mut rng);
        let group = devices(8, 0);
        let mut reports = 0;
        for second in 0..600 {
            pace.started_sending(ms(second * 1000), group, &mut rng);
            reports += run(
                &mut pace,
                group,
                true,
                [second * 1000, second * 1000 + 500].map(ms),
                &mut rng,
            )
            .len();
            pace.stopped_sending(ms(second * 1000 + 500), group, &mut rng);
            reports += run(
                &mut pace,
                group,
                true,
                [second * 1000 + 500, second * 1000 + 999].map(ms),
                &mut rng,
            )
            .len();
        }
        let airtime_us = reports as f64 * report_airtime_us(92.0, &CONFIG);
        let fair_us = 600e6 * 0.01 / 8.0 + MAX_ANNOUNCED_REPORTS as f64 * report_airtime_us(92.0, &CONFIG);
        assert!(
            airtime_us <= fair_us,
            "{reports} reports, {airtime_us} us of {fair_us} us"
        );
    }

    #[test]
    fn a_growth_of_the_group_counts_at_once() {
        let mut rng = ChaCha20Rng::seed_from_u64(5);
        let mut pace = Pace::new(ms(0), CONFIG, &mut rng);
        pace.sent(ms(0), 92, true, &mut rng);
        assert!(pace.due(devices(64, 0)) > 9 * pace.due(devices(1, 0)));
    }

    #[test]
    fn an_idle_device_responds_within_the_interval_of_sending_ones() {
        let mut rng = ChaCha20Rng::seed_from_u64(6);
        let mut pace = Pace::new(ms(0), CONFIG, &mut rng);
        pace.sent(ms(0), 92, false, &mut rng);
        assert!(pace.due(devices(0, 2)) >= ms(4500));
        pace.hurry(ms(1000));
        assert!((ms(1000)..=ms(1500)).contains(&pace.due(devices(0, 2))));
    }
}
