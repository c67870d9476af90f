// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The counters as the one JSON line that the caller reads.
//!
//! In: the medium, how late its frames were released and how many no TAP took. Out: text; every duration is model time in
//! seconds, except lateness, which is real microseconds. Counts from the start and never resets: a caller
//! that wants a window takes the difference of two lines.

use anyhow::Result;
use serde::Serialize;

use super::dcf::Medium;
use super::sender::Sender;

#[derive(Serialize)]
struct Report {
    elapsed_s: f64,
    busy_s: f64,
    collisions: u64,
    unroutable: u64,
    refused: u64,
    stations: Vec<SenderReport>,
    ap: SenderReport,
    broadcast: BroadcastReport,
    between_stations_airtime_s: f64,
    lateness_us: LatenessReport,
}

#[derive(Serialize)]
struct SenderReport {
    frames: u64,
    attempts: u64,
    collisions: u64,
    losses: u64,
    retry_drops: u64,
    queue_drops: u64,
    absent_drops: u64,
    airtime_s: f64,
    queue: usize,
    queue_max: usize,
    queue_mean: f64,
    rate_mbit: f64,
    present: bool,
}

#[derive(Serialize)]
struct BroadcastReport {
    uplink_frames: u64,
    uplink_airtime_s: f64,
    repeated_frames: u64,
    repeat_airtime_s: f64,
    copies_delivered: u64,
    copies_lost: u64,
}

#[derive(Serialize)]
struct LatenessReport {
    releases: u64,
    p50: u64,
    p99: u64,
    max: u64,
}

/// How long after its model time a frame was handed to the kernel: a count per microsecond, everything at
/// or above the last one together.
pub struct Lateness {
    counts: Vec<u64>,
    max_us: u64,
    releases: u64,
}

const LATENESS_BUCKETS: usize = 10_000;

impl Lateness {
    pub fn new() -> Self {
        Self {
            counts: vec![0; LATENESS_BUCKETS],
            max_us: 0,
            releases: 0,
        }
    }

    pub fn record(&mut self, late_ns: u64) {
        let late_us = late_ns / 1_000;
        let bucket = usize::try_from(late_us).unwrap_or(usize::MAX).min(LATENESS_BUCKETS - 1);
        self.counts[bucket] += 1;
        self.max_us = self.max_us.max(late_us);
        self.releases += 1;
    }

    /// The lateness that `percent` of the releases did not exceed; the maximum where the buckets end.
    fn percentile_us(&self, percent: u64) -> u64 {
        let rank = (self.releases * percent).div_ceil(100);
        let mut seen = 0;
        let reached = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        reached
            .filter(|&bucket| bucket < LATENESS_BUCKETS - 1)
            .map_or(self.max_us, |bucket| bucket as u64)
    }

    fn report(&self) -> LatenessReport {
        LatenessReport {
            releases: self.releases,
            p50: self.percentile_us(50),
            p99: self.percentile_us(99),
            max: self.max_us,
        }
    }
}

pub fn line(medium: &Medium, lateness: &Lateness, refused: u64) -> Result<String> {
    let air = &medium.counters;
    let stations = medium.stations().iter().enumerate();
    let report = Report {
        elapsed_s: seconds(medium.now_ns()),
        busy_s: seconds(air.busy_ns),
        collisions: air.collisions,
        unroutable: air.unroutable,
        refused,
        stations: stations
            .map(|(index, sender)| of_sender(sender, medium.now_ns(), medium.is_present(index)))
            .collect(),
        ap: of_sender(medium.access_point(), medium.now_ns(), true),
        broadcast: BroadcastReport {
            uplink_frames: air.broadcast.uplink_frames,
            uplink_airtime_s: seconds(air.broadcast.uplink_airtime_ns),
            repeated_frames: air.broadcast.repeated_frames,
            repeat_airtime_s: seconds(air.broadcast.repeat_airtime_ns),
            copies_delivered: air.broadcast.copies_delivered,
            copies_lost: air.broadcast.copies_lost,
        },
        between_stations_airtime_s: seconds(air.between_stations_airtime_ns),
        lateness_us: lateness.report(),
    };
    Ok(serde_json::to_string(&report)?)
}

fn of_sender(sender: &Sender, now_ns: u64, present: bool) -> SenderReport {
    let counters = &sender.counters;
    SenderReport {
        frames: counters.frames,
        attempts: counters.attempts,
        collisions: counters.collisions,
        losses: counters.losses,
        retry_drops: counters.retry_drops,
        queue_drops: counters.queue_drops,
        absent_drops: counters.absent_drops,
        airtime_s: seconds(counters.airtime_ns),
        queue: sender.queue_len(),
        queue_max: counters.queue_max,
        queue_mean: sender.queue_mean(now_ns),
        rate_mbit: sender.rate_mbit(),
        present,
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_recorded() {
        let mut lateness = Lateness::new();
        (1..=100).for_each(|us| lateness.record(us * 1_000));
        let report = lateness.report();
        assert_eq!(
            (report.p50, report.p99, report.max, report.releases),
            (50, 99, 100, 100)
        );
    }

    #[test]
    fn beyond_the_buckets_the_maximum_is_told() {
        let mut lateness = Lateness::new();
        (0..10).for_each(|_| lateness.record(33_000_000));
        assert_eq!(lateness.report().p99, 33_000);
    }

    #[test]
    fn nothing_recorded_is_zero() {
        assert_eq!(Lateness::new().report().p99, 0);
    }
}
