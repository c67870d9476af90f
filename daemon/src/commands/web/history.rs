// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was seen over time, in as much memory as it has at the start: the last minutes as they were seen, and all time since
//! the start in steps that become twice as long whenever there are too many of them. Nothing is said of times when nobody
//! looked.

use std::collections::VecDeque;

use serde::Serialize;

/// What a sample tells, in this order.
pub const COLUMNS: [&str; 17] = [
    "realtime",
    "stream",
    "standard",
    "bulk",
    "background",
    "received_realtime",
    "received_stream",
    "received_standard",
    "received_bulk",
    "received_background",
    "link_rate",
    "allowed",
    "devices",
    "queue_s",
    "path_s",
    "peers",
    "realtime_share",
];
/// Ten minutes at one a second.
const RECENT: usize = 600;
const STEPS: usize = 600;

#[derive(Clone, Debug, PartialEq)]
pub struct HistorySample {
    pub at_ms: u64,
    pub values: [Option<f64>; COLUMNS.len()],
}

#[derive(Debug)]
pub struct History {
    recent: VecDeque<HistorySample>,
    /// Means, oldest first.
    steps: Vec<Step>,
    step_ms: u64,
}

#[derive(Debug)]
struct Step {
    /// Whole steps since 1970.
    number: u64,
    sums: [(f64, u32); COLUMNS.len()],
}

#[derive(Serialize)]
struct HistoryBody {
    columns: [&'static str; COLUMNS.len()],
    step_ms: u64,
    recent: Vec<TimedValues>,
    whole: Vec<TimedValues>,
}

/// A time, and a value for each column.
type TimedValues = (u64, Vec<Option<f64>>);

impl Default for History {
    fn default() -> Self {
        Self {
            recent: VecDeque::new(),
            steps: Vec::new(),
            step_ms: 1000,
        }
    }
}

impl History {
    /// Samples come in the order of their times.
    pub fn add(&mut self, sample: HistorySample) {
        self.add_to_steps(&sample);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(sample);
    }

    fn add_to_steps(&mut self, sample: &HistorySample) {
        let step = Step::of(sample, self.step_ms);
        self.steps.push(step);
        self.fold();
        while self.steps.len() > STEPS {
            self.step_ms *= 2;
            self.steps.iter_mut().for_each(|step| step.number /= 2);
            self.fold();
        }
    }

    /// Makes one of peers with the same number.
    fn fold(&mut self) {
        self.steps.dedup_by(|later, earlier| {
            let is_same = later.number == earlier.number;
            if is_same {
                earlier.take_in(later);
            }
            is_same
        });
    }

    pub fn to_json(&self) -> Vec<u8> {
        let body = HistoryBody {
            columns: COLUMNS,
            step_ms: self.step_ms,
            recent: self.recent.iter().map(HistorySample::row).collect(),
            whole: self.steps.iter().map(|step| step.row(self.step_ms)).collect(),
        };
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

impl HistorySample {
    /// Four digits are as much as a chart shows.
    pub fn row(&self) -> TimedValues {
        (self.at_ms, self.values.map(|value| value.map(short)).to_vec())
    }
}

fn short(value: f64) -> f64 {
    let digits = 3 - value.abs().max(f64::MIN_POSITIVE).log10().floor() as i32;
    let scale = 10f64.powi(digits.clamp(0, 9));
    (value * scale).round() / scale
}

impl Step {
    fn of(sample: &HistorySample, step_ms: u64) -> Self {
        Self {
            number: sample.at_ms / step_ms,
            sums: sample.values.map(|value| value.map_or((0.0, 0), |value| (value, 1))),
        }
    }

    fn take_in(&mut self, other: &Self) {
        for ((sum, count), (more, more_of_them)) in self.sums.iter_mut().zip(other.sums) {
            (*sum, *count) = (*sum + more, *count + more_of_them);
        }
    }

    fn row(&self, step_ms: u64) -> TimedValues {
        let mean = |(sum, count): (f64, u32)| (count > 0).then(|| short(sum / f64::from(count)));
        (self.number * step_ms, self.sums.map(mean).to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: u64, value: Option<f64>) -> HistorySample {
        HistorySample {
            at_ms: second * 1000,
            values: [value; COLUMNS.len()],
        }
    }

    #[test]
    fn a_week_fits_into_the_memory_of_minutes() {
        let mut history = History::default();
        (0..7 * 86_400).for_each(|second| history.add(sample(second, Some(1.0))));
        assert_eq!(history.recent.len(), RECENT);
        assert!((STEPS / 2..=STEPS).contains(&history.steps.len()));
        assert_eq!(history.steps[0].number, 0, "the start is not forgotten");
        assert!(history.to_json().len() < 200_000);
    }

    #[test]
    fn a_step_is_the_mean_of_what_was_seen_in_it() {
        let mut history = History::default();
        (0..1200).for_each(|second| history.add(sample(second, Some((second % 2) as f64))));
        assert_eq!(history.step_ms, 2000);
        assert!(history.steps.iter().all(|step| step.row(2000).1[0] == Some(0.5)));
    }

    #[test]
    fn when_nobody_looked_nothing_is_said() {
        let mut history = History::default();
        for second in [0, 5, 1000] {
            history.add(sample(second, None));
        }
        let times: Vec<u64> = history.steps.iter().map(|step| step.row(1000).0).collect();
        assert_eq!(times, [0, 5000, 1_000_000]);
        assert_eq!(history.steps[0].row(1000).1[0], None);
    }

    #[test]
    fn numbers_are_as_long_as_they_can_be_seen() {
        let (seen, told) = ([123_456.789, 0.123_456, 1e-12, 0.0], [123_457.0, 0.1235, 0.0, 0.0]);
        assert_eq!(seen.map(short), told);
    }
}
