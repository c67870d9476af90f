// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cap is lifted, all at once, by the end of the daemon that held it; again and again.
//! In: how often, and how long a cap is held. Out: what the first station's connection lost, moved and grew to in the
//! time after each lift, and what the others, which never had a cap, did in the same time (point `.../beside`).

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Run;
use crate::cell::Cell;
use crate::interrupt::{pause_until, wait_for};
use crate::namespace::Namespace;
use crate::outcome::{Curve, Outcome};
use crate::process::run as run_command;
use crate::scenario::{Lift, Trace};
use crate::statistics::{mean, percentile};
use crate::topology::SERVER_ADDRESS;
use crate::traffic::stream::{Source, start_sink};

const CAPPED: usize = 0;
const SAMPLE_EVERY: Duration = Duration::from_millis(250);
const CAP_LIMIT: Duration = Duration::from_secs(15);

/// A connection at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    cwnd: f64,
    retransmits: f64,
    acked_bytes: f64,
}

/// What a connection did before and after one lift.
struct Lifted {
    retransmits: f64,
    before_mbit: f64,
    after_mbit: f64,
    cwnd: f64,
}

pub fn run(cell: &mut Cell, lift: &Lift, run: &Run) -> Result<Outcome> {
    let _sink = start_sink(cell.server())?;
    let stations = cell.stations();
    for station in (0..stations).filter(|_| lift.cap_segments.is_some()) {
        cell.take_daemon(station)?.stop()?;
    }
    let connect = |station| Source::connect(cell.station(station));
    let mut sources: Vec<_> = (0..stations).map(connect).collect::<Result<_>>()?;
    for source in &mut sources {
        source.start()?;
    }
    let mut watch = Watch::begin(stations);
    watch.until(cell, Instant::now() + Duration::from_secs_f64(lift.warmup_s))?;
    let mut lifted: Vec<Vec<Lifted>> = (0..stations).map(|_| Vec::new()).collect();
    for number in 1..=lift.repetitions {
        run.progress.tick(&format!("lift {number} of {}", lift.repetitions));
        for (station, what) in one_lift(cell, lift, &mut watch)?.into_iter().enumerate() {
            lifted[station].push(what);
        }
    }
    let mut outcome = Outcome::default();
    summarize(&mut outcome, &run.variant.name, &lifted);
    outcome.traces = watch.curves;
    Ok(outcome)
}

/// Caps, holds, lifts; gives what each station's connection did around the lift.
fn one_lift(cell: &mut Cell, lift: &Lift, watch: &mut Watch) -> Result<Vec<Lifted>> {
    let span = Duration::from_secs_f64(lift.seconds);
    if let Some(cap) = lift.cap_segments {
        cell.start_daemon(CAPPED)?;
        cell.wait_for_daemon(CAPPED)?;
        wait_for("the cap to hold", CAP_LIMIT, || {
            let cwnd = sample(cell.station(CAPPED))?.cwnd;
            Ok((cwnd <= cap as f64).then_some(()))
        })?;
    }
    let held = Duration::from_secs_f64(lift.held_s);
    watch.until(cell, Instant::now() + held.saturating_sub(span))?;
    let before = watch.look(cell)?;
    watch.until(cell, Instant::now() + span)?;
    let at = watch.look(cell)?;
    let lifted = Instant::now();
    if lift.cap_segments.is_some() {
        cell.take_daemon(CAPPED)?.stop()?;
    }
    watch.until(cell, lifted + span)?;
    let after = watch.look(cell)?;
    let mbit = |from: Sample, to: Sample| (to.acked_bytes - from.acked_bytes) * 8.0 / 1e6 / lift.seconds;
    let around = before.into_iter().zip(at).zip(after);
    Ok(around
        .map(|((before, at), after)| Lifted {
            retransmits: after.retransmits - at.retransmits,
            before_mbit: mbit(before, at),
            after_mbit: mbit(at, after),
            cwnd: after.cwnd,
        })
        .collect())
}

/// Looks at every station's connection now and then, and remembers cwnd.
struct Watch {
    begun: Instant,
    curves: Vec<Curve>,
}

impl Watch {
    fn begin(stations: usize) -> Self {
        let curve = |station| Curve {
            of: Trace::Cwnd,
            station,
            points: Vec::new(),
        };
        Self {
            begun: Instant::now(),
            curves: (0..stations).map(curve).collect(),
        }
    }

    fn look(&mut self, cell: &Cell) -> Result<Vec<Sample>> {
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
            self.look(cell)?;
        }
        pause_until(when)
    }
}

/// The station's connection to the server, as `ss` shows it.
fn sample(station: &Namespace) -> Result<Sample> {
    let mut ss = station.command("ss")?;
    ss.args(["-tinOH", "dst", SERVER_ADDRESS]);
    let said = run_command(ss)?.stdout;
    parse(&String::from_utf8_lossy(&said)).context("`ss` does not show the connection")
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

fn summarize(outcome: &mut Outcome, point: &str, lifted: &[Vec<Lifted>]) {
    let beside = format!("{point}/beside");
    let others: Vec<&Lifted> = lifted.iter().skip(1).flatten().collect();
    let ours: Vec<&Lifted> = lifted[CAPPED].iter().collect();
    for (point, lifts) in [(point, &ours), (beside.as_str(), &others)] {
        let values = |of: fn(&Lifted) -> f64| lifts.iter().map(|lift| of(lift)).collect::<Vec<f64>>();
        let retransmits = values(|lift| lift.retransmits);
        outcome.set(point, "retransmits", mean(&retransmits));
        for (metric, values) in [
            ("retransmits", &retransmits),
            ("goodput_before_mbit", &values(|lift| lift.before_mbit)),
            ("goodput_mbit", &values(|lift| lift.after_mbit)),
            ("cwnd_segments", &values(|lift| lift.cwnd)),
        ] {
            outcome.set(point, &format!("{metric}_min"), percentile(values, 0.0));
            outcome.set(point, &format!("{metric}_p50"), percentile(values, 50.0));
            outcome.set(point, &format!("{metric}_max"), percentile(values, 100.0));
            if metric != "retransmits" {
                outcome.set(point, metric, percentile(values, 50.0));
            }
        }
        outcome.samples.insert(format!("{point}/retransmits"), retransmits);
    }
    let mean_of = |lifts: &[&Lifted]| mean(&lifts.iter().map(|lift| lift.retransmits).collect::<Vec<_>>());
    let excess = mean_of(&ours).zip(mean_of(&others)).map(|(ours, others)| ours - others);
    outcome.set(point, "retransmits_excess", excess);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ss_leaves_out_what_is_nothing() {
        let young = "ESTAB 0 0 10.77.0.1:40000 10.77.0.254:5100 cubic wscale:7,7 rto:460 cwnd:10 bytes_acked:1449 pacing_rate 1Mbps";
        let old = "ESTAB 0 1 10.77.0.1:40000 10.77.0.254:5100 cubic cwnd:43 ssthresh:43 bytes_acked:9 retrans:3/112 unacked:43";
        let sample = |line| parse(line).map(|s| (s.cwnd, s.retransmits, s.acked_bytes));
        assert_eq!(sample(young), Some((10.0, 0.0, 1449.0)));
        assert_eq!(sample(old), Some((43.0, 112.0, 9.0)));
        assert_eq!(sample(""), None);
    }
}
