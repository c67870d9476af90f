// SPDX-License-Identifier: Apache-2.0 OR MIT
//! cyclictest (rt-tests) at the highest priority, beside the loads of `giveway jitter`: what there is to reach.
//! Input: the timers. Output: its histogram; its whole answer stays in a file.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::giveway::jitter::{Timers, start_load};
use crate::histogram::Histogram;
use crate::interrupt::pause_until;
use crate::namespace::Namespace;
use crate::process;

/// Up to which it counts by the microsecond.
const LONGEST_US: u64 = 200_000;
/// Until the loads are at work.
const HEAD_START: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct Answer {
    thread: BTreeMap<String, Thread>,
}

#[derive(Deserialize)]
struct Thread {
    histogram: BTreeMap<String, u64>,
    cycles: u64,
    max: f64,
}

pub fn measure(place: &Namespace, timers: &Timers, kept: &Path) -> Result<Histogram> {
    let loads = timers.loads.iter().map(|kind| start_load(place, kind));
    let _loads: Vec<_> = loads.collect::<Result<_>>()?;
    pause_until(Instant::now() + HEAD_START)?;
    let mut command = place.command("cyclictest")?;
    command.args("--quiet --mlockall --priority=99".split(' '));
    command.args([
        format!("--threads={}", timers.threads),
        format!("--interval={}", timers.period_us),
        format!("--distance={}", timers.period_us / timers.threads),
        format!("--loops={}", timers.wakeups / timers.threads),
        format!("--histogram={LONGEST_US}"),
        format!("--json={}", kept.display()),
    ]);
    process::run(command).context("the reference needs rt-tests")?;
    let said = std::fs::read(kept).with_context(|| format!("cyclictest left no {}", kept.display()))?;
    let answer: Answer = serde_json::from_slice(&said).context("cyclictest's answer is not readable")?;
    answer.histogram()
}

impl Answer {
    fn histogram(&self) -> Result<Histogram> {
        let mut all = Histogram::default();
        for thread in self.thread.values() {
            let class = |(us, count): (&String, &u64)| Ok((us.parse::<f64>()?, *count));
            let mut classes: Vec<_> = thread.histogram.iter().map(class).collect::<Result<_>>()?;
            // Those beyond its histogram are only counted.
            let counted: u64 = thread.histogram.values().sum();
            classes.push((thread.max, thread.cycles.saturating_sub(counted)));
            all.merge(Histogram::new(classes, thread.max));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_beyond_its_histogram_count_as_its_worst() {
        let said = r#"{"thread": {"0": {"histogram": {"33": 1, "9": 2}, "cycles": 4, "max": 250000}}}"#;
        let answer: Answer = serde_json::from_str(said).unwrap();
        let histogram = answer.histogram().unwrap();
        assert_eq!(histogram.total(), 4);
        assert_eq!(histogram.tail(), [(9.0, 4), (33.0, 2), (250_000.0, 1)]);
    }
}
