// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How late the wake-ups were, counted. Input: nanoseconds. Output: mean, percentiles, and steps of the distribution. Pure.

use hdrhistogram::Histogram;

/// 0.1% is exact enough for every figure that is shown; mean and maximum are exact.
const SIGNIFICANT_DIGITS: u8 = 3;
/// Lateness beyond this counts as this much; the maximum is exact all the same.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// What is told of a distribution, besides its maximum.
pub const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
/// Steps for each factor of ten, each about 6% wide.
const STEPS_PER_DECADE: i32 = 40;

#[derive(Debug)]
pub struct Distribution {
    counts: Histogram<u64>,
    sum_ns: u128,
    max_ns: u64,
}

impl Default for Distribution {
    fn default() -> Self {
        Self {
            // Fails for bounds out of order only.
            counts: Histogram::new_with_bounds(1, LONGEST_NS, SIGNIFICANT_DIGITS).expect("fixed bounds"),
            sum_ns: 0,
            max_ns: 0,
        }
    }
}

impl Distribution {
    pub fn add(&mut self, late_ns: u64) {
        self.counts.saturating_record(late_ns);
        self.sum_ns += u128::from(late_ns);
        self.max_ns = self.max_ns.max(late_ns);
    }

    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    pub fn mean_us(&self) -> f64 {
        self.sum_ns as f64 / self.count().max(1) as f64 / 1e3
    }

    pub fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1e3
    }

    /// `quantile` of 0.99 is what 99 of 100 are not later than.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        self.counts.value_at_quantile(quantile).min(self.max_ns) as f64 / 1e3
    }

    /// Upper bound in microseconds, and how many there are up to it and above the step before; without empty steps.
    pub fn steps(&self) -> Vec<(f64, u64)> {
        let mut steps: Vec<(f64, u64)> = Vec::new();
        for recorded in self.counts.iter_recorded() {
            let upper_us = step_above(recorded.value_iterated_to() as f64 / 1e3);
            match steps.last_mut() {
                Some((last_us, count)) if *last_us == upper_us => *count += recorded.count_at_value(),
                _ => steps.push((upper_us, recorded.count_at_value())),
            }
        }
        steps
    }
}

/// The bound of the step to which this belongs, rounded to a nanosecond.
fn step_above(us: f64) -> f64 {
    let step = (us.max(0.001).log10() * f64::from(STEPS_PER_DECADE) - 1e-9).ceil();
    let upper_us = 10f64.powf(step / f64::from(STEPS_PER_DECADE));
    (upper_us * 1e3).round() / 1e3
}

/// Three digits and the unit that suits them.
pub fn duration(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 999.5 => (us, "us"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let digits = match value {
        value if value >= 100.0 || value == value.trunc() => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values_us: &[u64]) -> Distribution {
        let mut distribution = Distribution::default();
        values_us.iter().for_each(|us| distribution.add(us * 1000));
        distribution
    }

    #[test]
    fn percentiles_are_those_of_what_was_counted() {
        let distribution = of(&(1..=1000).collect::<Vec<_>>());
        assert_eq!(
            (distribution.count(), distribution.mean_us(), distribution.max_us()),
            (1000, 500.5, 1000.0)
        );
        for (quantile, us) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1000.0)] {
            let found = distribution.quantile_us(quantile);
            assert!((found / us - 1.0).abs() < 0.002, "{quantile}: {found}");
        }
    }

    #[test]
    fn every_wakeup_is_in_one_step_and_below_its_bound() {
        let distribution = of(&[0, 1, 10, 10, 100, 123_456]);
        let steps = distribution.steps();
        assert_eq!(steps.iter().map(|(_, count)| count).sum::<u64>(), 6);
        assert!(steps.is_sorted_by(|a, b| a.0 < b.0), "{steps:?}");
        assert!(
            steps
                .last()
                .is_some_and(|(upper, _)| (123_456.0..131_000.0).contains(upper))
        );
    }

    #[test]
    fn nothing_counted_is_no_division_by_zero() {
        let empty = Distribution::default();
        assert_eq!(
            (empty.mean_us(), empty.quantile_us(0.99), empty.max_us()),
            (0.0, 0.0, 0.0)
        );
        assert!(empty.steps().is_empty());
    }

    #[test]
    fn a_duration_has_three_digits_and_its_unit() {
        let written = [0.35, 5.0, 52.34, 999.6, 12_345.0, 3_200_000.0].map(duration);
        assert_eq!(written, ["0.35 us", "5 us", "52.3 us", "1.00 ms", "12.3 ms", "3.20 s"]);
    }
}
