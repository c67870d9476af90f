// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The measurements of a run: numbers by variant and metric, and the traces behind the plots. Input: one outcome per
//! variant and round. Output: the mean over the rounds. Judges nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

use anyhow::Result;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::histogram::Histogram;
use crate::statistics::{mean, percentile};

const GOODPUT: &str = "goodput_mbit";

pub type Metrics = BTreeMap<String, f64>;
/// By point and metric: the least and the most.
pub type Spread = BTreeMap<String, BTreeMap<String, (f64, f64)>>;

/// By point: sentences of a program, each with the place where it was found.
pub type Notes = BTreeMap<String, Vec<String>>;

/// The goodput of each station of a variant, where it was requested.
pub fn shares(points: &BTreeMap<String, Metrics>, variant: &str) -> Vec<f64> {
    let share = |station| {
        points
            .get(&format!("{variant}/{station}"))?
            .get("goodput_mbit")
            .copied()
    };
    (1..).map_while(share).collect()
}

/// The result of one run of one variant.
#[derive(Default)]
pub struct Outcome {
    /// By point: the variant's name, or one below it.
    pub points: BTreeMap<String, Metrics>,
    pub traces: Vec<Curve>,
    /// Single measurements behind a percentile, by point.
    pub samples: BTreeMap<String, Vec<f64>>,
    /// Lateness of wake-ups, by point: added up over the rounds, so that a percentile is one of all of them.
    pub wakeups: BTreeMap<String, Histogram>,
    pub said: Notes,
}

/// What is recorded of a station over time.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum Trace {
    Goodput,
    Cwnd,
    Cap,
}

/// Something of one station over time.
#[derive(Deserialize, Serialize)]
pub struct Curve {
    pub of: Trace,
    pub station: usize,
    /// Seconds since the traffic began, and the value.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    pub fn new(of: Trace, station: usize, points: Vec<(f64, f64)>) -> Self {
        Self { of, station, points }
    }
}

/// All rounds of all variants.
#[derive(Default, Deserialize, Serialize)]
pub struct Results {
    /// On which they ran.
    pub kernels: BTreeSet<String>,
    rounds: BTreeMap<String, Vec<Metrics>>,
    /// Of the last round, by variant.
    pub traces: BTreeMap<String, Vec<Curve>>,
    #[serde(deserialize_with = "read_samples")]
    pub samples: BTreeMap<String, Vec<f64>>,
    #[serde(default)]
    pub wakeups: BTreeMap<String, Histogram>,
    /// Of the last round.
    #[serde(default)]
    pub said: Notes,
    /// The variants that ended with an error, each with the error.
    #[serde(default)]
    pub failed: Vec<String>,
}

/// JSON cannot express infinity, the value of an event that never came; it is written as null.
fn read_samples<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<BTreeMap<String, Vec<f64>>, D::Error> {
    let written = BTreeMap::<String, Vec<Option<f64>>>::deserialize(from)?;
    let read = |samples: Vec<Option<f64>>| samples.into_iter().map(|s| s.unwrap_or(f64::INFINITY)).collect();
    Ok(written
        .into_iter()
        .map(|(point, samples)| (point, read(samples)))
        .collect())
}

impl Outcome {
    pub fn set(&mut self, point: &str, metric: &str, value: impl Into<Option<f64>>) {
        // A value that is not finite was not measured.
        if let Some(value) = value.into().filter(|value: &f64| value.is_finite()) {
            self.points
                .entry(point.into())
                .or_default()
                .insert(metric.into(), value);
        }
    }

    /// Records a sentence and the place where it was found.
    pub fn note(&mut self, point: &str, place: &str, words: &str) {
        let line = format!("{place}: {words}");
        self.said.entry(point.into()).or_default().push(line);
    }

    /// Every number of a record, by the names of its fields.
    pub fn set_fields(&mut self, point: &str, record: &impl Serialize) -> Result<()> {
        if let Value::Object(fields) = serde_json::to_value(record)? {
            fields
                .iter()
                .for_each(|(metric, value)| self.set(point, metric, value.as_f64()));
        }
        Ok(())
    }

    /// Percentiles in place of the `*` of a metric's name, as `min`, `p50`, `p99` or `max`. An infinite one is not set,
    /// so that its check fails.
    pub fn percentiles(&mut self, point: &str, metric: &str, samples: &[f64], percents: &[u8]) {
        for percent in percents {
            let name = match percent {
                0 => "min".into(),
                100 => "max".into(),
                percent => format!("p{percent}"),
            };
            let value = percentile(samples, f64::from(*percent));
            self.set(point, &metric.replace('*', &name), value);
        }
    }
}

impl Results {
    pub fn of_kernel(release: &OsStr) -> Self {
        let kernels = BTreeSet::from([release.to_string_lossy().into_owned()]);
        Self {
            kernels,
            ..Self::default()
        }
    }

    /// Adds results of other variants, or of further rounds.
    pub fn fail(&mut self, variant: &str, error: &anyhow::Error) {
        let line = format!("variant {variant}: {error:#}");
        eprintln!("giveway-lab: {line}");
        self.failed.push(line);
    }

    pub fn merge(&mut self, other: Results) {
        self.kernels.extend(other.kernels);
        for (point, rounds) in other.rounds {
            self.rounds.entry(point).or_default().extend(rounds);
        }
        self.traces.extend(other.traces);
        self.said.extend(other.said);
        self.failed.extend(other.failed);
        for (point, samples) in other.samples {
            self.samples.entry(point).or_default().extend(samples);
        }
        for (point, histogram) in other.wakeups {
            self.wakeups.entry(point).or_default().merge(histogram);
        }
    }

    /// The same in every round.
    pub fn set(&mut self, point: &str, metric: &str, value: f64) {
        let rounds = self.rounds.entry(point.into()).or_insert_with(|| vec![Metrics::new()]);
        for round in rounds {
            round.insert(metric.into(), value);
        }
    }

    pub fn add(&mut self, variant: &str, outcome: Outcome) {
        for (point, metrics) in outcome.points {
            self.rounds.entry(point).or_default().push(metrics);
        }
        for (point, samples) in outcome.samples {
            self.samples.entry(point).or_default().extend(samples);
        }
        for (point, histogram) in outcome.wakeups {
            self.wakeups.entry(point).or_default().merge(histogram);
        }
        self.traces.insert(variant.into(), outcome.traces);
        self.said.extend(outcome.said);
    }

    /// The least and the most of each metric that several rounds measured.
    pub fn spread(&self) -> Spread {
        let of = |rounds: &Vec<Metrics>| {
            let mut spread = BTreeMap::new();
            for (metric, value) in rounds.iter().flatten() {
                let (least, most) = spread.entry(metric.clone()).or_insert((*value, *value));
                (*least, *most) = (least.min(*value), most.max(*value));
            }
            spread
        };
        let several = self.rounds.iter().filter(|(_, rounds)| rounds.len() > 1);
        several.map(|(point, rounds)| (point.clone(), of(rounds))).collect()
    }

    /// The mean over the rounds, and of goodput its standard error; without metrics that a round could not measure.
    /// Wake-ups are of all rounds together.
    pub fn means(&self) -> BTreeMap<String, Metrics> {
        let merge = |rounds: &Vec<Metrics>| {
            let first = rounds.first().into_iter().flat_map(BTreeMap::keys);
            let merged = first.filter_map(|metric| {
                let values: Option<Vec<f64>> = rounds.iter().map(|round| round.get(metric).copied()).collect();
                Some((metric.clone(), mean(&values?)?))
            });
            let mut merged: Metrics = merged.collect();
            if let Some(goodput) = merged.get(GOODPUT) {
                let squares = rounds
                    .iter()
                    .map(|round| (round[GOODPUT] - goodput).powi(2))
                    .sum::<f64>();
                let count = rounds.len() as f64;
                if count > 1.0 {
                    merged.insert(format!("{GOODPUT}_se"), (squares / (count - 1.0) / count).sqrt());
                }
            }
            merged
        };
        let mut points: BTreeMap<String, Metrics> = self
            .rounds
            .iter()
            .map(|(point, rounds)| (point.clone(), merge(rounds)))
            .collect();
        for (point, histogram) in &self.wakeups {
            points.entry(point.clone()).or_default().extend(metrics_of(histogram));
        }
        points
    }
}

fn metrics_of(wakeups: &Histogram) -> Metrics {
    let percentiles = [("p50", 50.0), ("p99", 99.0), ("p999", 99.9), ("max", 100.0)];
    let metric = |(name, percent)| Some((format!("wakeup_{name}_us"), wakeups.percentile_us(percent)?));
    let total = ("wakeups".to_owned(), wakeups.total() as f64);
    percentiles.into_iter().filter_map(metric).chain([total]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinite_sample_survives_json() {
        let mut results = Results::default();
        results.samples.insert("flow".into(), vec![1.0, f64::INFINITY]);
        let written = serde_json::to_string(&results).unwrap();
        let read: Results = serde_json::from_str(&written).unwrap();
        assert_eq!(read.samples["flow"], [1.0, f64::INFINITY]);
    }

    #[test]
    fn wake_ups_are_added_up_over_the_rounds_and_not_averaged() {
        let mut results = Results::default();
        for (upper_us, count) in [(10.0, 999), (900.0, 1)] {
            let mut outcome = Outcome::default();
            let histogram = Histogram::new([(upper_us, count)], upper_us);
            outcome.wakeups.insert("normal".into(), histogram);
            results.add("normal", outcome);
        }
        let means = results.means();
        assert_eq!(means["normal"]["wakeup_p999_us"], 10.0);
        assert_eq!(means["normal"]["wakeup_max_us"], 900.0);
        assert_eq!(means["normal"]["wakeups"], 1_000.0);
    }

    #[test]
    fn rounds_are_averaged_without_incomplete_metrics() {
        let mut results = Results::default();
        for (goodput, cap) in [(10.0, Some(43.0)), (20.0, None)] {
            let mut outcome = Outcome::default();
            outcome.set("plain", "goodput_mbit", goodput);
            outcome.set("plain", "cap_segments", cap);
            results.add("plain", outcome);
        }
        let means = results.means();
        assert_eq!(means["plain"].get("goodput_mbit"), Some(&15.0));
        assert_eq!(means["plain"].get("cap_segments"), None);
    }
}
