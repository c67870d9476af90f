// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A histogram of durations. Pure: counts in, percentiles out; two can be added. Not by hdrhistogram: the classes are
//! those of the measuring program (`giveway jitter`, cyclictest), and results keep them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Histogram {
    /// By the upper end of the class, in ns.
    counts: BTreeMap<u64, u64>,
    /// Exactly, whatever its class.
    pub max_us: f64,
}

impl Histogram {
    /// Of classes with their upper ends in us.
    pub fn new(classes: impl IntoIterator<Item = (f64, u64)>, max_us: f64) -> Self {
        let mut counts = BTreeMap::new();
        for (upper_us, count) in classes {
            *counts.entry((upper_us * 1e3).round() as u64).or_default() += count;
        }
        Self { counts, max_us }
    }

    pub fn merge(&mut self, other: Histogram) {
        for (upper_ns, count) in other.counts {
            *self.counts.entry(upper_ns).or_default() += count;
        }
        self.max_us = self.max_us.max(other.max_us);
    }

    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The value that at least `percent` do not exceed (nearest rank), in us.
    pub fn percentile_us(&self, percent: f64) -> Option<f64> {
        // 99.9% of 1,000 is 999, and a little more in binary.
        let rank = (percent / 100.0 * self.total() as f64 - 1e-6).ceil().max(1.0) as u64;
        let mut reached = 0;
        let class = self.counts.iter().find(|(_, count)| {
            reached += **count;
            reached >= rank
        });
        class.map(|(upper_ns, _)| (*upper_ns as f64 / 1e3).min(self.max_us))
    }

    /// For each class its upper end in us, and how many were not below it.
    pub fn tail(&self) -> Vec<(f64, u64)> {
        let mut left = self.total();
        let of_class = |(upper_ns, count): (&u64, &u64)| {
            let here = left;
            left -= count;
            (*upper_ns as f64 / 1e3, here)
        };
        self.counts
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(of_class)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_histograms_have_the_percentiles_of_all_their_samples() {
        let mut all = Histogram::new([(10.0, 98), (20.0, 1)], 19.5);
        all.merge(Histogram::new([(10.0, 900), (400.0, 1)], 312.0));
        assert_eq!((all.total(), all.max_us), (1_000, 312.0));
        assert_eq!(all.percentile_us(50.0), Some(10.0));
        assert_eq!(all.percentile_us(99.9), Some(20.0));
        assert_eq!(all.percentile_us(100.0), Some(312.0));
        assert_eq!(all.tail(), [(10.0, 1_000), (20.0, 2), (400.0, 1)]);
    }

    #[test]
    fn empty_histogram_has_no_percentile() {
        assert_eq!(Histogram::default().percentile_us(99.9), None);
    }
}
