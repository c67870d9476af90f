// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Endless transfers, and what they moved in the measured time.
//! Input: which station sends when, or is sent to. Output: goodput, fairness, retransmits, RTT; on an access point the air's counters
//! and, where daemons run, the caps active.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::super::Testbed;
use super::super::place::{Network, Place};
use super::{Measure, Probe};
use crate::cell::Cell;
use crate::channel::ChannelInterval;
use crate::experiment::Run;
use crate::giveway::Recorder;
use crate::giveway::answers::{CapChange, Status, active_caps};
use crate::interrupt::pause_until;
use crate::medium::report::MediumReport;
use crate::outcome::{Curve, Outcome};
use crate::parameters::Parameters;
use crate::scenario::Trace;
use crate::statistics::{jain, mean};
use crate::traffic::iperf3::{Interval, Iperf3Flow, Protocol, Running, Span};
use crate::traffic::realtime::monotonic_ns;

/// Endless transfers between stations and the server (iperf3).
pub struct Transfers {
    pub protocol: Protocol,
    pub senders: Vec<Span>,
    pub warmup_s: f64,
    pub seconds: f64,
    /// Give each station's goodput too, as points `VARIANT/1`, `VARIANT/2`...
    pub per_station: bool,
    /// Stations whose numbers are given together, as points `VARIANT/NAME`.
    pub groups: Vec<(&'static str, Range<usize>)>,
    /// Keep every daemon's log, for the caps over time.
    pub record: bool,
}

impl Transfers {
    /// The first `senders` stations send all the time, for as long as the user set.
    pub fn steady(parameters: &Parameters, protocol: Protocol, senders: usize) -> Self {
        let seconds = |name| parameters.count(name) as f64;
        Self::of(protocol, senders, seconds("warmup_s"), seconds("seconds"))
    }

    pub fn of(protocol: Protocol, senders: usize, warmup_s: f64, seconds: f64) -> Self {
        let span = |station| Span {
            station,
            from_s: 0.0,
            to_s: warmup_s + seconds,
            ..Span::default()
        };
        Self {
            protocol,
            senders: (0..senders).map(span).collect(),
            warmup_s,
            seconds,
            per_station: false,
            groups: Vec::new(),
            record: false,
        }
    }
}

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

/// What was seen of the air and the daemons.
#[derive(Default)]
struct Observed {
    begin: MediumReport,
    end: MediumReport,
    caps: Vec<f64>,
    expired: Option<f64>,
    /// In the end: peers that a daemon authenticates, in the mean.
    peers: Option<f64>,
    /// Of the measured time, how long the daemon that waited longest for a processor did.
    waited_percent: Option<f64>,
}

struct Transferring<'a> {
    transfers: &'a Transfers,
    running: Vec<Running>,
    recorders: Vec<Recorder>,
    begun_ns: u64,
    /// None away from an access point.
    observed: Option<Observed>,
}

impl Probe for Transfers {
    fn estimated_s(&self, _testbed: &Testbed) -> f64 {
        self.warmup_s + self.seconds
    }

    fn prepare<'a>(&'a self, _testbed: &'a Testbed, place: &mut Place, run: &Run) -> Result<Box<dyn Measure + 'a>> {
        let prepare = |span: &Span| {
            let stem = run.file(&format!("-sta{}", span.station + 1));
            Running::prepare(place.far()?.at, span, self.protocol, &stem)
        };
        let running: Vec<_> = self.senders.iter().map(prepare).collect::<Result<_>>()?;
        let far = place.far()?.at;
        running
            .iter()
            .try_for_each(|running| far.wait_until_listening(running.port))?;
        let recorders = match &place.network {
            Network::AccessPoint(cell) if self.record && cell.has_daemons() => start_recorders(cell)?,
            _ => Vec::new(),
        };
        Ok(Box::new(Transferring {
            transfers: self,
            running,
            recorders,
            begun_ns: monotonic_ns()?,
            observed: None,
        }))
    }
}

fn start_recorders(cell: &Cell) -> Result<Vec<Recorder>> {
    let start = |station| Recorder::start(cell.station(station), cell.file(station, "record.jsonl"));
    (0..cell.stations()).map(start).collect()
}

impl Measure for Transferring<'_> {
    fn measure(&mut self, place: &mut Place, run: &Run) -> Result<()> {
        let mut observed = Observed::default();
        let transfers = self.transfers;
        let end_s = transfers.warmup_s + transfers.seconds;
        let begun = Instant::now();
        self.begun_ns = monotonic_ns()?;
        let mut waited = Vec::new();
        for (at_s, step) in steps(transfers) {
            while begun.elapsed().as_secs_f64() < at_s {
                run.progress
                    .tick(&format!("{:.0} of {end_s:.0} s", begun.elapsed().as_secs_f64()));
                let tick = Instant::now() + Duration::from_secs(1);
                pause_until(tick.min(begun + Duration::from_secs_f64(at_s)))?;
            }
            match (step, &mut place.network) {
                (Step::Start(index), _) => {
                    let running = &mut self.running[index];
                    let (at, senders) = (place.sender(running.span.station)?.at, place.senders());
                    running.start(at, place.far()?.address, senders, end_s)?;
                }
                (Step::Begin, Network::AccessPoint(cell)) => {
                    observed.begin = cell.channel.counters()?;
                    waited = cell.daemons_waited_ns()?;
                }
                (Step::ReadCaps, Network::AccessPoint(cell)) if cell.has_daemons() => {
                    let caps = cell.statuses()?.into_iter().flat_map(|status| active_caps(&status));
                    observed.caps.extend(caps.map(|cap| cap as f64));
                }
                (Step::End, Network::AccessPoint(cell)) => {
                    observed.end = cell.channel.counters()?;
                    let since = cell
                        .daemons_waited_ns()?
                        .into_iter()
                        .zip(&waited)
                        .map(|(end, begin)| end - begin);
                    observed.waited_percent = since.reduce(f64::max).map(|ns| ns / 1e7 / transfers.seconds);
                }
                _ => {}
            }
        }
        if let Network::AccessPoint(cell) = &place.network {
            if cell.has_daemons() {
                let statuses = cell.statuses()?;
                let expired = |status: &Status| status.network.reports.counters.expired as f64;
                observed.expired = Some(statuses.iter().map(expired).sum());
                let authenticated = |status: &Status| {
                    let peers = status.network.peers.iter();
                    peers.filter(|peer| peer.authenticated).count() as f64
                };
                observed.peers = mean(&statuses.iter().map(authenticated).collect::<Vec<_>>());
            }
            self.observed = Some(observed);
        }
        Ok(())
    }

    fn report(self: Box<Self>, _place: &mut Place, run: &Run, outcome: &mut Outcome) -> Result<()> {
        run.progress.tick("waiting for the last packets");
        let flows: Vec<_> = self.running.into_iter().map(Running::finish).collect::<Result<_>>()?;
        measure(outcome, run.name, self.transfers, &flows);
        if let Some(observed) = &self.observed {
            measure_air(outcome, run.name, self.transfers, observed);
        }
        outcome.traces.extend(flows.iter().flat_map(traces));
        for (station, recorder) in self.recorders.into_iter().enumerate() {
            outcome
                .traces
                .extend(cap_traces(station, &recorder.finish()?.caps, self.begun_ns));
        }
        Ok(())
    }
}

/// Everything that happens, in order of time.
fn steps(transfer: &Transfers) -> Vec<(f64, Step)> {
    let end_s = transfer.warmup_s + transfer.seconds;
    let starts = transfer
        .senders
        .iter()
        .enumerate()
        .map(|(i, span)| (span.from_s, Step::Start(i)));
    let mut steps: Vec<_> = starts.collect();
    steps.push((transfer.warmup_s, Step::Begin));
    let moment = |part: f64| (transfer.warmup_s + part * transfer.seconds, Step::ReadCaps);
    steps.extend(CAP_READINGS.map(moment));
    steps.push((end_s, Step::End));
    steps.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    steps
}

fn measure(outcome: &mut Outcome, point: &str, transfer: &Transfers, flows: &[Iperf3Flow]) {
    let shares = measure_flows(outcome, point, transfer, &flows.iter().collect::<Vec<_>>());
    outcome.set(point, "jain", jain(&shares));
    for (flow, share) in flows.iter().zip(&shares).filter(|_| transfer.per_station) {
        outcome.set(&format!("{point}/{}", flow.station + 1), "goodput_mbit", *share);
    }
    for (name, stations) in &transfer.groups {
        let members: Vec<_> = flows.iter().filter(|flow| stations.contains(&flow.station)).collect();
        if !members.is_empty() {
            measure_flows(outcome, &format!("{point}/{name}"), transfer, &members);
        }
    }
}

/// Of these together; gives back the goodput of each while it sends.
fn measure_flows(outcome: &mut Outcome, point: &str, transfer: &Transfers, flows: &[&Iperf3Flow]) -> Vec<f64> {
    let (from_s, to_s) = (transfer.warmup_s, transfer.warmup_s + transfer.seconds);
    let shares: Vec<_> = flows.iter().map(|flow| flow.goodput_mbit(from_s, to_s)).collect();
    let share_of_time = |flow: &Iperf3Flow| (flow.to_s.min(to_s) - flow.from_s.max(from_s)) / (to_s - from_s);
    let total = flows
        .iter()
        .zip(&shares)
        .map(|(flow, share)| share * share_of_time(flow))
        .sum::<f64>();
    outcome.set(point, "goodput_mbit", total);
    outcome.set(point, "least_mbit", shares.iter().copied().reduce(f64::min));
    if transfer.protocol == Protocol::Tcp {
        let retransmits = flows.iter().map(|flow| flow.retransmits(from_s, to_s)).sum::<f64>();
        let rtts: Vec<_> = flows.iter().flat_map(|flow| flow.rtts_ms(from_s, to_s)).collect();
        let segments: f64 = flows.iter().map(|flow| flow.segments(from_s, to_s)).sum();
        outcome.set(point, "retransmits", retransmits);
        outcome.set(point, "segments", segments);
        outcome.percentiles(point, "rtt_*_ms", &rtts, &[50, 99]);
    }
    shares
}

fn measure_air(outcome: &mut Outcome, point: &str, transfer: &Transfers, observed: &Observed) {
    let (from_s, to_s) = (transfer.warmup_s, transfer.warmup_s + transfer.seconds);
    let Observed { begin, end, .. } = observed;
    let channel = ChannelInterval { begin, end };
    outcome.set(point, "collisions_percent", channel.collisions_percent());
    outcome.set(point, "busy_percent", channel.busy_percent());
    outcome.set(point, "lateness_p99_us", end.lateness_us.p99 as f64);
    if let Some(expired) = observed.expired {
        outcome.set(point, "report_airtime_percent", channel.report_airtime_percent());
        outcome.set(point, "false_expiries", expired);
        outcome.set(point, "peers", observed.peers);
        outcome.set(point, "daemon_waited_percent", observed.waited_percent);
        outcome.set(point, "observed_h", end.elapsed_ns as f64 / 3.6e12);
        // While the number of senders changes there is no one cap.
        let is_steady = transfer.senders.iter().all(|s| s.from_s <= from_s && s.to_s >= to_s);
        outcome.set(point, "cap_segments", mean(&observed.caps).filter(|_| is_steady));
    }
}

fn traces(flow: &Iperf3Flow) -> [Curve; 2] {
    let curve = |of, intervals: &[Interval], value: fn(&Interval) -> f64| {
        let points = intervals.iter().map(|i| (i.end, value(i)));
        Curve::new(of, flow.station, points.collect())
    };
    [
        curve(Trace::Goodput, &flow.received, Interval::mbit),
        curve(Trace::Cwnd, &flow.sent, Interval::cwnd_segments),
    ]
}

/// The caps of a station's sockets as stairs, one curve a socket.
fn cap_traces(station: usize, changes: &[CapChange], begun_ns: u64) -> Vec<Curve> {
    let mut curves: std::collections::BTreeMap<u64, Vec<(f64, f64)>> = Default::default();
    for CapChange { t_ns, cookie, cap } in changes {
        let Some(cap) = *cap else { continue };
        let at_s = t_ns.saturating_sub(begun_ns) as f64 / 1e9;
        let points = curves.entry(*cookie).or_default();
        if let Some(&(_, before)) = points.last() {
            points.push((at_s, before));
        }
        points.push((at_s, cap as f64));
    }
    let curve = |points| Curve::new(Trace::Cap, station, points);
    curves.into_values().map(curve).collect()
}
