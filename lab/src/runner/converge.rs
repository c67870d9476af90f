// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long after a sender starts, stops or dies every other one has the right cap.
//! In: how many events. Out: the 95th percentile of the time, false expiries, the reports' share of
//! the air. The caps are those that the daemons' logs say came into force on the sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Run;
use super::convergence::{CapChange, Expected, delays_ns};
use crate::cell::Cell;
use crate::giveway::{Entry, Recorder};
use crate::interrupt::pause_until;
use crate::outcome::Outcome;
use crate::process::Process;
use crate::scenario::{Cap, Converge};
use crate::statistics::percentile;
use crate::traffic::stream::{Source, now_ns, start_sink};

/// Alone a sender has no neighbour whose cap could be right.
const FEWEST: usize = 2;
/// From a station's return to the next death: its session has to be believed again.
const REJOIN: Duration = Duration::from_secs(5);
/// Added to the time between events at random, so that they meet the reports at any phase.
const JITTER_MS: u32 = 1_000;

/// The stations as they are now, and what was seen so far.
struct Group<'a> {
    cell: &'a mut Cell,
    cap: Cap,
    random: ChaCha8Rng,
    sources: Vec<Option<Source>>,
    recorders: Vec<Option<Recorder>>,
    sending: BTreeSet<usize>,
    changes: Vec<CapChange>,
    moments: BTreeMap<&'static str, Vec<Expected>>,
    _sink: Process,
}

pub fn run(cell: &mut Cell, converge: &Converge, run: &Run) -> Result<Outcome> {
    let begun = cell.air.counters()?;
    let cap = run.variant.giveway.context("convergence needs giveway")?;
    let mut group = Group::gather(cell, cap, run.seed)?;
    match *converge {
        Converge::StartStop { events, settle_s } => group.walk(events, settle_s, run)?,
        Converge::Death { events, settle_s } => group.die(events, settle_s, run)?,
    }
    let (moments, changes) = group.disperse()?;

    let mut outcome = Outcome::default();
    let name = &run.variant.name;
    for (kind, moments) in &moments {
        let point = if *kind == "death" { name.clone() } else { format!("{name}/{kind}") };
        measure(&mut outcome, &point, moments, &changes);
    }
    let air = cell.air.counters()? - begun;
    outcome.set(name, "report_airtime_percent", air.report_airtime_percent());
    outcome.set(name, "collisions_percent", air.collisions_percent());
    if matches!(converge, Converge::StartStop { .. }) {
        let statuses = cell.statuses()?;
        let expired: u64 = statuses.iter().map(|s| s.reports.expired_neighbours).sum();
        outcome.set(name, "false_expiries", expired as f64);
        outcome.set(name, "observed_h", air.elapsed_s / 3600.0);
    }
    Ok(outcome)
}

fn measure(outcome: &mut Outcome, point: &str, moments: &[Expected], changes: &[CapChange]) {
    let delays = delays_ns(changes, moments);
    let seconds = delays.iter().map(|delay| delay.map_or(f64::INFINITY, |ns| ns as f64 / 1e9));
    let seconds: Vec<_> = seconds.collect();
    outcome.set(point, "events", seconds.len() as f64);
    outcome.set(point, "unconverged", seconds.iter().filter(|s| s.is_infinite()).count() as f64);
    for (metric, percent) in [("converge_p50_s", 50.0), ("converge_p95_s", 95.0), ("converge_max_s", 100.0)] {
        // A percentile that falls on an event without an end is no number: its check fails.
        outcome.set(point, metric, percentile(&seconds, percent).filter(|s| s.is_finite()));
    }
    outcome.samples.insert(point.into(), seconds);
}

impl<'a> Group<'a> {
    fn gather(cell: &'a mut Cell, cap: Cap, seed: u64) -> Result<Self> {
        let stations = cell.stations();
        let sink = start_sink(cell.server())?;
        let mut group = Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            cap,
            sources: (0..stations).map(|_| None).collect(),
            recorders: (0..stations).map(|_| None).collect(),
            sending: BTreeSet::new(),
            changes: Vec::new(),
            moments: BTreeMap::new(),
            _sink: sink,
            cell,
        };
        for station in 0..stations {
            group.record(station, 0)?;
            group.sources[station] = Some(Source::connect(group.cell.station(station))?);
        }
        Ok(group)
    }

    fn record(&mut self, station: usize, part: u64) -> Result<()> {
        let file = self.cell.file(station, &format!("record-{part}.jsonl"));
        self.recorders[station] = Some(Recorder::start(self.cell.station(station), file)?);
        Ok(())
    }

    fn source(&mut self, station: usize) -> Result<&mut Source> {
        self.sources[station].as_mut().with_context(|| format!("station {} has no source", station + 1))
    }

    fn start(&mut self, station: usize) -> Result<u64> {
        self.sending.insert(station);
        self.source(station)?.start()
    }

    fn stop(&mut self, station: usize) -> Result<u64> {
        self.sending.remove(&station);
        self.source(station)?.stop()
    }

    fn settle(&mut self, seconds: f64) -> Result<()> {
        let jitter_ms = u64::from(self.random.next_u32() % JITTER_MS);
        pause_until(Instant::now() + Duration::from_secs_f64(seconds) + Duration::from_millis(jitter_ms))
    }

    fn any(&mut self, of: impl Iterator<Item = usize>) -> Option<usize> {
        let of: Vec<_> = of.collect();
        let index = self.random.next_u32() as usize % of.len().max(1);
        of.get(index).copied()
    }

    /// Notes what is expected from `t_ns` on; ends the period before it.
    fn expect(&mut self, kind: &'static str, t_ns: u64, until_ns: u64) {
        let cookies = self.sending.iter().filter_map(|&s| self.sources[s].as_ref());
        let senders: BTreeSet<u64> = cookies.map(|source| source.cookie).collect();
        let cap = self.cap.segments(senders.len() as u64);
        self.moments.entry(kind).or_default().push(Expected { t_ns, until_ns, senders, cap });
    }

    /// The number of senders goes from two up to all and down again, by a random one each time.
    fn walk(&mut self, events: u64, settle_s: f64, run: &Run) -> Result<()> {
        let stations = self.cell.stations();
        for station in 0..FEWEST.min(stations) {
            self.start(station)?;
        }
        self.settle(settle_s)?;
        let mut done = BTreeMap::from([("start", 0), ("stop", 0)]);
        let mut up = true;
        while done.values().any(|count| *count < events) {
            up = match self.sending.len() {
                few if few <= FEWEST => true,
                many if many == stations => false,
                _ => up,
            };
            let kind = if up { "start" } else { "stop" };
            let sending = self.sending.clone();
            let station = self.any((0..stations).filter(|s| sending.contains(s) != up));
            let station = station.context("a walk needs at least 3 stations")?;
            let t_ns = if up { self.start(station)? } else { self.stop(station)? };
            self.settle(settle_s)?;
            self.expect(kind, t_ns, now_ns()?);
            *done.entry(kind).or_default() += 1;
            run.progress.tick(&format!("{} starts, {} stops", done["start"], done["stop"]));
        }
        Ok(())
    }

    /// All send; one after another vanishes without a word and comes back.
    fn die(&mut self, events: u64, settle_s: f64, run: &Run) -> Result<()> {
        let stations = self.cell.stations();
        for station in 0..stations {
            self.start(station)?;
        }
        pause_until(Instant::now() + REJOIN)?;
        for event in 0..events {
            let station = self.any(0..stations).context("no station")?;
            let t_ns = self.vanish(station)?;
            self.settle(settle_s)?;
            self.expect("death", t_ns, now_ns()?);
            self.come_back(station, event + 1)?;
            run.progress.tick(&format!("{} of {events} deaths", event + 1));
        }
        Ok(())
    }

    fn vanish(&mut self, station: usize) -> Result<u64> {
        let mut daemon = self.cell.take_daemon(station)?;
        let guardian = daemon.guardian().context("the daemon has no guardian")?;
        let t_ns = now_ns()?;
        self.cell.air.set_present(station, false)?;
        kill(Pid::from_raw(guardian), Signal::SIGKILL)?;
        daemon.kill()?;
        self.source(station)?.kill()?;
        self.sending.remove(&station);
        self.sources[station] = None;
        self.finish_record(station)?;
        Ok(t_ns)
    }

    fn come_back(&mut self, station: usize, part: u64) -> Result<()> {
        self.cell.air.set_present(station, true)?;
        self.cell.start_daemon(station)?;
        self.cell.wait_for_daemon(station)?;
        self.record(station, part)?;
        self.sources[station] = Some(Source::connect(self.cell.station(station))?);
        self.start(station)?;
        pause_until(Instant::now() + REJOIN)
    }

    fn finish_record(&mut self, station: usize) -> Result<()> {
        if let Some(recorder) = self.recorders[station].take() {
            let change = |e: Entry| CapChange { t_ns: e.t_ns, cookie: e.cookie, cap: e.new };
            self.changes.extend(recorder.finish()?.into_iter().map(change));
        }
        Ok(())
    }

    fn disperse(mut self) -> Result<(BTreeMap<&'static str, Vec<Expected>>, Vec<CapChange>)> {
        for station in 0..self.recorders.len() {
            self.finish_record(station)?;
        }
        Ok((self.moments, self.changes))
    }
}
