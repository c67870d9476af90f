// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first station's cap is cleared at once, again and again, beside stations that never had one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Case, Conditions};
use crate::access_point::Cap;
use crate::cell::{Cell, connections};
use crate::experiment::Run;
use crate::interrupt::{pause_until, wait_until};
use crate::namespace::Namespace;
use crate::outcome::{Curve, Outcome};
use crate::scenario::Trace;
use crate::statistics::{mean, percentile};

/// P1's cap for eight stations.
pub const CAP_SEGMENTS: u64 = 43;
const HELD_S: f64 = 10.0;
/// Additional retransmits on average over the clears that count as chance. Two connections that never had a cap
/// differed by up to 7.8 in the control (ten windows of 5 s): this is a quarter of that.
pub const TOLERATED_EXCESS: f64 = 2.0;

pub fn case(conditions: &Conditions, name: &str, cap_segments: Option<u64>) -> Case {
    let clear = Clear {
        repetitions: conditions.parameters.count("clears"),
        cap_segments,
        warmup_s: conditions.seconds("warmup_s"),
        seconds: conditions.seconds("seconds"),
    };
    let estimated_s = clear.warmup_s + clear.repetitions as f64 * (HELD_S + clear.seconds + 2.0);
    conditions
        .case((name, cap_segments.map(Cap::Segments)))
        .act(estimated_s, move |cell, run| clear_repeatedly(cell, &clear, run))
}

const CAPPED: usize = 0;
const SAMPLE_EVERY: Duration = Duration::from_millis(250);
const CAP_LIMIT: Duration = Duration::from_secs(15);

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    cwnd: f64,
    retransmits: f64,
    acked_bytes: f64,
}

/// A connection's counts before and after one clear.
struct Cleared {
    retransmits: f64,
    before_mbit: f64,
    after_mbit: f64,
    cwnd: f64,
}

struct Clear {
    repetitions: u64,
    /// The cap of the first station's daemon until it ends; None: the first station never has a cap either.
    cap_segments: Option<u64>,
    warmup_s: f64,
    /// The measured time after the clear, and as long before it.
    seconds: f64,
}

/// Losses, bytes and growth of the first station's connection in the time after each clear, and of the others, which
/// never had a cap, in the same time (point `.../beside`).
fn clear_repeatedly(cell: &mut Cell, clear: &Clear, run: &Run) -> Result<Outcome> {
    let stations = cell.stations();
    for station in (0..stations).filter(|_| clear.cap_segments.is_some()) {
        cell.take_daemon(station)?.stop()?;
    }
    let _traffic = cell.saturate()?;
    let mut watch = Watch::begin(stations);
    watch.until(cell, Instant::now() + Duration::from_secs_f64(clear.warmup_s))?;
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for number in 1..=clear.repetitions {
        run.progress.tick(&format!("clear {number} of {}", clear.repetitions));
        let mut cleared = one_clear(cell, clear, &mut watch)?;
        others.extend(cleared.split_off(CAPPED + 1));
        ours.extend(cleared);
    }
    let mut outcome = Outcome::default();
    summarize(&mut outcome, run.name, &ours, &others);
    outcome.traces = watch.curves;
    Ok(outcome)
}

/// Caps, waits, clears; returns each station's counts around the clear.
fn one_clear(cell: &mut Cell, clear: &Clear, watch: &mut Watch) -> Result<Vec<Cleared>> {
    let span = Duration::from_secs_f64(clear.seconds);
    if let Some(cap) = clear.cap_segments {
        cell.start_daemon(CAPPED)?;
        cell.wait_for_daemon(CAPPED)?;
        wait_until("the cap to hold", CAP_LIMIT, || {
            let cwnd = sample(cell.station(CAPPED))?.cwnd;
            Ok(cwnd <= cap as f64)
        })?;
    }
    let held = Duration::from_secs_f64(HELD_S);
    watch.until(cell, Instant::now() + held.saturating_sub(span))?;
    let before = watch.sample_stations(cell)?;
    watch.until(cell, Instant::now() + span)?;
    let at = watch.sample_stations(cell)?;
    let cleared = Instant::now();
    if clear.cap_segments.is_some() {
        cell.take_daemon(CAPPED)?.stop()?;
    }
    watch.until(cell, cleared + span)?;
    let after = watch.sample_stations(cell)?;
    let mbit = |from: Sample, to: Sample| (to.acked_bytes - from.acked_bytes) * 8.0 / 1e6 / clear.seconds;
    let around = before.into_iter().zip(at).zip(after);
    let cleared = around.map(|((before, at), after)| Cleared {
        retransmits: after.retransmits - at.retransmits,
        before_mbit: mbit(before, at),
        after_mbit: mbit(at, after),
        cwnd: after.cwnd,
    });
    Ok(cleared.collect())
}

/// Polls every station's connection, and remembers cwnd.
struct Watch {
    begun: Instant,
    curves: Vec<Curve>,
}

impl Watch {
    fn begin(stations: usize) -> Self {
        let curve = |station| Curve::new(Trace::Cwnd, station, Vec::new());
        Self {
            begun: Instant::now(),
            curves: (0..stations).map(curve).collect(),
        }
    }

    fn sample_stations(&mut self, cell: &Cell) -> Result<Vec<Sample>> {
        let samples = (0..cell.stations()).map(|station| sample(cell.station(station)));
        let samples: Vec<_> = samples.collect::<Result<_>>()?;
        let at_s = self.begun.elapsed().as_secs_f64();
        for (curve, sample) in self.curves.iter_mut().zip(&samples) {
            curve.points.push((at_s, sample.cwnd));
        }
        Ok(samples)
    }

    fn until(&mut self, cell: &Cell, when: Instant) -> Result<()> {
        while Instant::now() + SAMPLE_EVERY < when {
            pause_until(Instant::now() + SAMPLE_EVERY)?;
            self.sample_stations(cell)?;
        }
        pause_until(when)
    }
}

/// The station's connection to the server, as `ss` shows it.
fn sample(station: &Namespace) -> Result<Sample> {
    parse(&connections(station)?).context("`ss` does not show the connection")
}

fn parse(line: &str) -> Option<Sample> {
    let number = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
    // `retrans:NOW/TOTAL`, which is left out while both are 0.
    let total = number("retrans:")
        .and_then(|word| word.split('/').nth(1))
        .unwrap_or("0");
    Some(Sample {
        cwnd: number("cwnd:")?.parse().ok()?,
        retransmits: total.parse().ok()?,
        acked_bytes: number("bytes_acked:").unwrap_or("0").parse().ok()?,
    })
}

fn summarize(outcome: &mut Outcome, point: &str, ours: &[Cleared], others: &[Cleared]) {
    let beside = format!("{point}/beside");
    let mut means = Vec::new();
    for (point, clears) in [(point, ours), (beside.as_str(), others)] {
        let values = |of: fn(&Cleared) -> f64| clears.iter().map(of).collect::<Vec<f64>>();
        let retransmits = values(|clear| clear.retransmits);
        means.extend(mean(&retransmits));
        outcome.set(point, "retransmits", mean(&retransmits));
        for (metric, values) in [
            ("retransmits", &retransmits),
            ("goodput_before_mbit", &values(|clear| clear.before_mbit)),
            ("goodput_mbit", &values(|clear| clear.after_mbit)),
            ("cwnd_segments", &values(|clear| clear.cwnd)),
        ] {
            outcome.percentiles(point, &format!("{metric}_*"), values, &[0, 50, 100]);
            if metric != "retransmits" {
                outcome.set(point, metric, percentile(values, 50.0));
            }
        }
        outcome.samples.insert(format!("{point}/retransmits"), retransmits);
    }
    if let [ours, others] = means[..] {
        outcome.set(point, "retransmits_excess", ours - others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_retransmit_field_counts_as_zero() {
        let young = "ESTAB 0 0 10.77.0.1:40000 10.77.0.254:5100 cubic wscale:7,7 rto:460 cwnd:10 bytes_acked:1449 pacing_rate 1Mbps";
        let old = "ESTAB 0 1 10.77.0.1:40000 10.77.0.254:5100 cubic cwnd:43 ssthresh:43 bytes_acked:9 retrans:3/112 unacked:43";
        let sample = |line| parse(line).map(|s| (s.cwnd, s.retransmits, s.acked_bytes));
        assert_eq!(sample(young), Some((10.0, 0.0, 1449.0)));
        assert_eq!(sample(old), Some((43.0, 112.0, 9.0)));
        assert_eq!(sample(""), None);
    }
}
