// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The counters as one JSON line.
//!
//! Input: the medium, the lateness of its frames and the number that no TAP took. Output: text; every duration is model
//! time in seconds, except lateness, which is real microseconds. Counts from the start and never resets: for a window
//! the caller subtracts two lines.

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::dcf::{ChannelCounters, Medium};
use super::sender::Sender;
pub use super::sender::SenderCounters;

#[derive(Default, Deserialize, Serialize)]
pub struct MediumReport {
    #[serde(rename = "elapsed_s", with = "seconds")]
    pub elapsed_ns: u64,
    pub refused: u64,
    #[serde(flatten)]
    pub channel: ChannelCounters,
    pub stations: Vec<SenderReport>,
    pub ap: SenderReport,
    pub lateness_us: LatenessReport,
}

#[derive(Default, Deserialize, Serialize)]
pub struct SenderReport {
    #[serde(flatten)]
    pub counters: SenderCounters,
    pub queue: usize,
    pub queue_mean: f64,
    pub rate_mbit: f64,
    pub present: bool,
}

#[derive(Default, Deserialize, Serialize)]
pub struct LatenessReport {
    pub releases: u64,
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

/// How long after its model time a frame was handed to the kernel, in microseconds.
pub struct Lateness(Histogram<u64>);

/// The quantiles are exact below ten milliseconds and off by at most a ten-thousandth above.
const LATENESS_DIGITS: u8 = 4;
/// An hour; longer lateness counts as that.
const LONGEST_US: u64 = 3_600_000_000;

impl Lateness {
    pub fn new() -> Result<Self> {
        Ok(Self(Histogram::new_with_max(LONGEST_US, LATENESS_DIGITS)?))
    }

    pub fn record(&mut self, late_ns: u64) {
        self.0.saturating_record(late_ns / 1_000);
    }

    fn report(&self) -> LatenessReport {
        LatenessReport {
            releases: self.0.len(),
            p50: self.0.value_at_quantile(0.50),
            p99: self.0.value_at_quantile(0.99),
            max: self.0.max(),
        }
    }
}

pub fn line(medium: &Medium, lateness: &Lateness, refused: u64) -> Result<String> {
    let stations = medium.stations().iter().enumerate();
    let report = MediumReport {
        elapsed_ns: medium.now_ns(),
        refused,
        channel: medium.counters.clone(),
        stations: stations
            .map(|(index, sender)| of_sender(sender, medium.now_ns(), medium.is_present(index)))
            .collect(),
        ap: of_sender(medium.access_point(), medium.now_ns(), true),
        lateness_us: lateness.report(),
    };
    Ok(serde_json::to_string(&report)?)
}

fn of_sender(sender: &Sender, now_ns: u64, present: bool) -> SenderReport {
    SenderReport {
        counters: sender.counters.clone(),
        queue: sender.queue_len(),
        queue_mean: sender.queue_mean(now_ns),
        rate_mbit: sender.rate_mbit(),
        present,
    }
}

/// Nanoseconds that are written, and read, as seconds.
pub mod seconds {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(ns: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(*ns as f64 / 1e9)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        Ok((f64::deserialize(from)? * 1e9).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_recorded() {
        let mut lateness = Lateness::new().unwrap();
        (1..=100).for_each(|us| lateness.record(us * 1_000));
        let report = lateness.report();
        assert_eq!(
            (report.p50, report.p99, report.max, report.releases),
            (50, 99, 100, 100)
        );
    }

    #[test]
    fn extreme_lateness_is_precise_to_a_ten_thousandth() {
        let mut lateness = Lateness::new().unwrap();
        (0..10).for_each(|_| lateness.record(33_000_000));
        let report = lateness.report();
        assert!((33_000..33_004).contains(&report.p99) && (33_000..33_004).contains(&report.max));
    }

    #[test]
    fn nothing_recorded_is_zero() {
        assert_eq!(Lateness::new().unwrap().report().p99, 0);
    }
}
