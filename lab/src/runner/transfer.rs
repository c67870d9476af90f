// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Endless transfers, and what they moved in the measured time.
//! In: who sends when. Out: goodput, fairness, retransmits, RTT, the air's counters and, where
//! daemons run, the caps in force.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::Run;
use crate::air::Counters;
use crate::cell::Cell;
use crate::giveway::{Entry, Recorder};
use crate::interrupt::pause_until;
use crate::outcome::{Curve, Outcome};
use crate::scenario::{Protocol, Trace, Transfer};
use crate::statistics::{jain, mean, percentile};
use crate::traffic::iperf3::{Flow, Interval, Running};
use crate::traffic::stream::now_ns;

/// When in the measured time the caps are read, as parts of it.
const CAP_READINGS: [f64; 3] = [0.3, 0.6, 0.95];

/// What happens at a moment of the variant.
#[derive(Clone, Copy)]
enum Step {
    Begin,
    Start(usize),
    ReadCaps,
    End,
}

#[derive(Default)]
struct Observed {
    begin: Counters,
    end: Counters,
    caps: Vec<f64>,
    expired: Option<f64>,
}

pub fn run(cell: &mut Cell, transfer: &Transfer, run: &Run) -> Result<Outcome> {
    let prepare = |span| Running::prepare(cell, span, transfer.protocol);
    let mut transfers: Vec<_> = transfer.senders.iter().map(prepare).collect::<Result<_>>()?;
    transfers.iter().try_for_each(Running::wait_until_listening)?;
    let recorders = start_recorders(cell, transfer)?;

    let begun_ns = now_ns()?;
    let observed = follow(cell, transfer, &mut transfers, run)?;
    run.progress.tick("waiting for the last packets");
    let flows: Vec<_> = transfers.into_iter().map(Running::finish).collect::<Result<_>>()?;

    let mut outcome = Outcome::default();
    measure(&mut outcome, &run.variant.name, transfer, &flows, &observed);
    outcome.traces.extend(flows.iter().flat_map(traces));
    for (station, recorder) in recorders.into_iter().enumerate() {
        outcome
            .traces
            .extend(cap_traces(station, &recorder.finish()?, begun_ns));
    }
    Ok(outcome)
}

fn start_recorders(cell: &Cell, transfer: &Transfer) -> Result<Vec<Recorder>> {
    let stations = if transfer.record && cell.has_daemons() {
        cell.stations()
    } else {
        0
    };
    let start = |station| Recorder::start(cell.station(station), cell.file(station, "record.jsonl"));
    (0..stations).map(start).collect()
}

/// Everything that happens, in order of time.
fn steps(transfer: &Transfer, read_caps: bool) -> Vec<(f64, Step)> {
    let end_s = transfer.warmup_s + transfer.seconds;
    let starts = transfer
        .senders
        .iter()
        .enumerate()
        .map(|(i, span)| (span.from_s, Step::Start(i)));
    let mut steps: Vec<_> = starts.collect();
    steps.push((transfer.warmup_s, Step::Begin));
    if read_caps {
        let moment = |part: f64| (transfer.warmup_s + part * transfer.seconds, Step::ReadCaps);
        steps.extend(CAP_READINGS.map(moment));
    }
    steps.push((end_s, Step::End));
    steps.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    steps
}

fn follow(cell: &mut Cell, transfer: &Transfer, transfers: &mut [Running], run: &Run) -> Result<Observed> {
    let mut observed = Observed::default();
    let end_s = transfer.warmup_s + transfer.seconds;
    let begun = Instant::now();
    for (at_s, step) in steps(transfer, cell.has_daemons()) {
        while begun.elapsed().as_secs_f64() < at_s {
            run.progress
                .tick(&format!("{:.0} of {end_s:.0} s", begun.elapsed().as_secs_f64()));
            let tick = Instant::now() + Duration::from_secs(1);
            pause_until(tick.min(begun + Duration::from_secs_f64(at_s)))?;
        }
        match step {
            Step::Start(index) => transfers[index].start(cell, end_s)?,
            Step::Begin => observed.begin = cell.air.counters()?,
            Step::ReadCaps => observed.caps.extend(caps_in_force(cell)?),
            Step::End => observed.end = cell.air.counters()?,
        }
    }
    if cell.has_daemons() {
        let statuses = cell.statuses()?;
        let expired: u64 = statuses.iter().map(|s| s.reports.expired).sum();
        observed.expired = Some(expired as f64);
    }
    Ok(observed)
}

/// Caps of the sockets that send, as the kernel has them; one that has none, or another than giveway says, counts as
/// 0, which no bound accepts.
fn caps_in_force(cell: &Cell) -> Result<Vec<f64>> {
    let statuses = cell.statuses()?;
    let senders = statuses
        .iter()
        .flat_map(|status| &status.flows)
        .filter(|flow| flow.sender);
    let cap = |flow: &crate::giveway::Flow| flow.clamp.filter(|_| flow.clamp == flow.cap).unwrap_or(0);
    Ok(senders.map(|flow| cap(flow) as f64).collect())
}

fn measure(outcome: &mut Outcome, point: &str, transfer: &Transfer, flows: &[Flow], observed: &Observed) {
    let (from_s, to_s) = (transfer.warmup_s, transfer.warmup_s + transfer.seconds);
    let shares: Vec<_> = flows.iter().map(|flow| flow.goodput_mbit(from_s, to_s)).collect();
    let share_of_time = |flow: &Flow| (flow.to_s.min(to_s) - flow.from_s.max(from_s)) / (to_s - from_s);
    let total = flows
        .iter()
        .zip(&shares)
        .map(|(flow, share)| share * share_of_time(flow))
        .sum::<f64>();
    outcome.set(point, "goodput_mbit", total);
    outcome.set(point, "jain", jain(&shares));
    for (flow, share) in flows.iter().zip(&shares).filter(|_| transfer.per_station) {
        outcome.set(&format!("{point}/{}", flow.station + 1), "goodput_mbit", *share);
    }
    if transfer.protocol == Protocol::Tcp {
        let retransmits = flows.iter().map(|flow| flow.retransmits(from_s, to_s)).sum::<f64>();
        let rtts: Vec<_> = flows.iter().flat_map(|flow| flow.rtts_ms(from_s, to_s)).collect();
        outcome.set(point, "retransmits", retransmits);
        outcome.set(point, "rtt_p50_ms", percentile(&rtts, 50.0));
        outcome.set(point, "rtt_p99_ms", percentile(&rtts, 99.0));
    }
    let air = observed.end - observed.begin;
    outcome.set(point, "collisions_percent", air.collisions_percent());
    outcome.set(point, "busy_percent", air.busy_percent());
    outcome.set(point, "lateness_p99_us", air.lateness_p99_us);
    if let Some(expired) = observed.expired {
        outcome.set(point, "report_airtime_percent", air.report_airtime_percent());
        outcome.set(point, "false_expiries", expired);
        outcome.set(point, "observed_h", observed.end.elapsed_s / 3600.0);
        // While the number of senders changes there is no one cap.
        let is_steady = transfer.senders.iter().all(|s| s.from_s <= from_s && s.to_s >= to_s);
        outcome.set(point, "cap_segments", mean(&observed.caps).filter(|_| is_steady));
    }
}

fn traces(flow: &Flow) -> [Curve; 2] {
    let curve = |of, intervals: &[Interval], value: fn(&Interval) -> f64| Curve {
        of,
        station: flow.station,
        points: intervals.iter().map(|i| (i.end, value(i))).collect(),
    };
    [
        curve(Trace::Goodput, &flow.received, Interval::mbit),
        curve(Trace::Cwnd, &flow.sent, Interval::cwnd_segments),
    ]
}

/// The caps of a station's sockets as stairs, one curve a socket.
fn cap_traces(station: usize, entries: &[Entry], begun_ns: u64) -> Vec<Curve> {
    let mut curves: std::collections::BTreeMap<u64, Vec<(f64, f64)>> = Default::default();
    for entry in entries.iter().filter(|entry| entry.kind == "cap") {
        let Some(cap) = entry.new else { continue };
        let at_s = entry.t_ns.saturating_sub(begun_ns) as f64 / 1e9;
        let points = curves.entry(entry.cookie).or_default();
        if let Some(&(_, before)) = points.last() {
            points.push((at_s, before));
        }
        points.push((at_s, cap as f64));
    }
    let curve = |points| Curve {
        of: Trace::Cap,
        station,
        points,
    };
    curves.into_values().map(curve).collect()
}
