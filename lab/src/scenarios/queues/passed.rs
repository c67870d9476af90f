// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a device has passed on, looked at now and then.
//! Input: its counters. Output: Mbit/s in every window, and of a limit.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::experiment::pause;
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::scenario::{Check, Relation};

const WINDOW_S: f64 = 10.0;
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// `counter`: of its statistics, `tx/bytes` and the like.
pub fn counted(at: &Namespace, device: &str, counter: &str) -> Result<f64> {
    let shown = at.run("ip", &format!("-json -statistics link show dev {device}"))?;
    let shown: Value = serde_json::from_slice(&shown.stdout)?;
    let count = shown.pointer(&format!("/0/stats64/{counter}")).and_then(Value::as_f64);
    count.with_context(|| format!("{device} counts nothing"))
}

/// Seconds and bytes since the first look, of each that is looked at.
pub type Samples = Vec<(f64, f64)>;

pub fn sample(seconds: f64, look: impl Fn() -> Result<Vec<f64>>) -> Result<Vec<Samples>> {
    let (began, first) = (Instant::now(), look()?);
    let mut samples = vec![vec![(0.0, 0.0)]; first.len()];
    while began.elapsed().as_secs_f64() < seconds {
        pause(LOOK_EVERY.as_secs_f64())?;
        let at = began.elapsed().as_secs_f64();
        for ((samples, bytes), first) in samples.iter_mut().zip(look()?).zip(&first) {
            samples.push((at, bytes - first));
        }
    }
    Ok(samples)
}

/// A limit that was looked at for so long.
pub struct Limit {
    pub mbit: f64,
    pub seconds: f64,
}

impl Limit {
    /// The least and the most that any window has of it, and as `of_all` what all has.
    pub fn set_metrics(&self, outcome: &mut Outcome, point: &str, of_all: &str, samples: &Samples) -> Result<()> {
        let (seconds, bytes) = *samples.last().context("nothing was counted")?;
        let rates = windows(samples, WINDOW_S.min(self.seconds - 0.5));
        let of_limit = |mbit: f64| mbit / self.mbit;
        let extreme = |pick: fn(f64, f64) -> f64| rates.iter().copied().reduce(pick).map(of_limit);
        outcome.set(point, "window_min_of_limit", extreme(f64::min));
        outcome.set(point, "window_max_of_limit", extreme(f64::max));
        outcome.set(point, of_all, of_limit(bytes * 8e-6 / seconds));
        Ok(())
    }
}

/// Above or below the limit, in any window.
pub fn stays_near(point: &str) -> [Check; 2] {
    let near = Relation::Between(0.95, 1.05);
    ["window_min_of_limit", "window_max_of_limit"].map(|metric| Check::metric(point, metric, near).always())
}

/// Mbit/s of every window of at least this length between two samples.
fn windows(samples: &[(f64, f64)], length_s: f64) -> Vec<f64> {
    let rate = |(begin, before): &(f64, f64)| {
        let (end, after) = samples.iter().find(|(at, _)| at - begin >= length_s)?;
        Some((after - before) * 8e-6 / (end - begin))
    };
    samples.iter().filter_map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_is_measured() {
        // A megabyte in the first second, then nothing.
        let samples = [(0.0, 0.0), (1.0, 1e6), (2.0, 1e6), (3.0, 1e6)];
        assert_eq!(windows(&samples, 2.0), [4.0, 0.0]);
    }
}
