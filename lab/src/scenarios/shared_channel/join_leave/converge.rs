// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long after a sender starts, stops or dies every other one has the right cap. Input: how many events. Output: the
//! 95th percentile of the time, false expiries, the reports' share of airtime. Caps are active when the daemons' logs
//! say so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::convergence::{CapTarget, ExpectedCaps, delays_ns, off_after};
use crate::access_point::paper_cap;
use crate::cell::{Cell, station_address};
use crate::channel::ChannelInterval;
use crate::experiment::Run;
use crate::giveway::Recorder;
use crate::giveway::answers::{CapChange, Recorded};
use crate::interrupt::pause_until;
use crate::outcome::Outcome;
use crate::role::Role;
use crate::traffic::realtime::monotonic_ns;
use crate::traffic::stream::{TcpSource, start_sink};

/// A lone sender has no peer whose cap could be right.
const FEWEST: usize = 2;
/// From a station's return to the next death: its session has to be authenticated again.
const REJOIN: Duration = Duration::from_secs(5);
/// Random addition to the time between events, so that they meet the reports at any phase.
const JITTER_MS: u32 = 1_000;

/// The stations' state, and the recorded events.
struct Group<'a> {
    cell: &'a mut Cell,
    right: Right,
    random: ChaCha8Rng,
    sources: Vec<Option<TcpSource>>,
    recorders: Vec<Option<Recorder>>,
    sending: BTreeSet<usize>,
    seen: ObservedCaps,
    _sink: Role,
}

#[derive(Default)]
struct ObservedCaps {
    recorded: Recorded,
    moments: BTreeMap<&'static str, Vec<ExpectedCaps>>,
    deaths: Vec<Death>,
}

/// A station was removed from the channel.
struct Death {
    address: String,
    from_ns: u64,
    to_ns: u64,
}

/// The time within which all caps have to be right, in 95 of 100 cases.
pub fn limit_s(kind: &str) -> f64 {
    match kind {
        "start" => 1.0,
        "stop" => 2.0,
        _ => 5.0,
    }
}

/// Which caps are right.
#[derive(Clone, Copy)]
pub enum Right {
    /// P1's, at this RTT, by the number of senders.
    Formula { rtt_ms: u64 },
    /// Those that are active before the next change, with an unknown capacity.
    Settled,
}

impl Right {
    /// Until the first change that counts: an unknown capacity is estimated first.
    fn settles_first(self) -> Duration {
        match self {
            Self::Formula { .. } => Duration::ZERO,
            Self::Settled => Duration::from_secs(20),
        }
    }
}

/// How long until every peer's cap is right.
#[derive(Clone, Copy)]
pub enum Change {
    /// The number of senders goes from 2 to all and back; points `start` and `stop`.
    StartStop { events: u64, settle_s: f64 },
    /// A sender vanishes: daemon, watchdog and traffic killed, station removed from the channel.
    Death { events: u64, settle_s: f64 },
}

impl Change {
    pub fn estimated_s(self, stations: usize, right: Right) -> f64 {
        let events_s = match self {
            Change::StartStop { events, settle_s } => events as f64 * 2.0 * (settle_s + 0.5) + stations as f64 / 2.0,
            Change::Death { events, settle_s } => events as f64 * (settle_s + 6.5),
        };
        events_s + right.settles_first().as_secs_f64()
    }
}

/// On an access point whose stations have daemons.
pub fn observe(cell: &mut Cell, right: Right, change: Change, run: &Run) -> Result<Outcome> {
    let begun = cell.channel.counters()?;
    let mut group = Group::gather(cell, right, run.seed)?;
    match change {
        Change::StartStop { events, settle_s } => group.scan(events, settle_s, run)?,
        Change::Death { events, settle_s } => group.die(events, settle_s, run)?,
    }
    let seen = group.disperse()?;

    let mut outcome = Outcome::default();
    let name = run.name;
    for (kind, moments) in &seen.moments {
        let point = if name.ends_with(kind) {
            name.to_owned()
        } else {
            format!("{name}/{kind}")
        };
        measure(&mut outcome, &point, moments, &seen.recorded.caps);
        if matches!(right, Right::Settled) {
            let after_ns = (limit_s(kind) * 1e9) as u64;
            let off = moments
                .iter()
                .map(|moment| off_after(&seen.recorded.caps, moment, after_ns));
            let percent: Vec<f64> = off
                .map(|part| part.map_or(f64::INFINITY, |part| 100.0 * part))
                .collect();
            outcome.percentiles(&point, "off_*_percent", &percent, &[50, 95]);
        }
    }
    let end = cell.channel.counters()?;
    let conditions = ChannelInterval {
        begin: &begun,
        end: &end,
    };
    outcome.set(name, "report_airtime_percent", conditions.report_airtime_percent());
    outcome.set(name, "collisions_percent", conditions.collisions_percent());
    outcome.set(name, "false_expiries", seen.false_expiries() as f64);
    outcome.set(name, "observed_h", (end.elapsed_ns - begun.elapsed_ns) as f64 / 3.6e12);
    Ok(outcome)
}

fn measure(outcome: &mut Outcome, point: &str, moments: &[ExpectedCaps], changes: &[CapChange]) {
    let delays = delays_ns(changes, moments).into_iter();
    let seconds: Vec<_> = delays
        .map(|delay| delay.map_or(f64::INFINITY, |ns| ns as f64 / 1e9))
        .collect();
    let unconverged = seconds.iter().filter(|s| s.is_infinite()).count();
    outcome.set(point, "events", seconds.len() as f64);
    outcome.set(point, "unconverged", unconverged as f64);
    outcome.percentiles(point, "converge_*_s", &seconds, &[50, 95, 100]);
    outcome.samples.insert(point.into(), seconds);
}

impl<'a> Group<'a> {
    fn gather(cell: &'a mut Cell, right: Right, seed: u64) -> Result<Self> {
        let stations = cell.stations();
        let sink = start_sink(cell.server())?;
        let mut group = Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            right,
            sources: (0..stations).map(|_| None).collect(),
            recorders: (0..stations).map(|_| None).collect(),
            sending: BTreeSet::new(),
            seen: ObservedCaps::default(),
            _sink: sink,
            cell,
        };
        for station in 0..stations {
            group.record(station, 0)?;
            group.sources[station] = Some(TcpSource::connect(group.cell.station(station))?);
        }
        Ok(group)
    }

    fn record(&mut self, station: usize, part: u64) -> Result<()> {
        let file = self.cell.file(station, &format!("record-{part}.jsonl"));
        self.recorders[station] = Some(Recorder::start(self.cell.station(station), file)?);
        Ok(())
    }

    fn source(&mut self, station: usize) -> Result<&mut TcpSource> {
        self.sources[station]
            .as_mut()
            .with_context(|| format!("station {} has no source", station + 1))
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

    /// Records the expected state from `t_ns` on; ends the period before it.
    fn expect(&mut self, kind: &'static str, t_ns: u64, until_ns: u64) {
        let now = self.sending.len();
        let before = if kind == "start" { now - 1 } else { now + 1 };
        let cookies = self.sending.iter().filter_map(|&s| self.sources[s].as_ref());
        let senders: BTreeSet<u64> = cookies.map(|source| source.cookie).collect();
        let target = match self.right {
            Right::Formula { rtt_ms } => CapTarget::Cap(paper_cap(rtt_ms, senders.len() as u64)),
            Right::Settled => CapTarget::Settled { before },
        };
        self.seen.moments.entry(kind).or_default().push(ExpectedCaps {
            t_ns,
            until_ns,
            senders,
            target,
        });
    }

    /// The number of senders goes from two up to all and down again, by a random one each time.
    fn scan(&mut self, events: u64, settle_s: f64, run: &Run) -> Result<()> {
        let stations = self.cell.stations();
        for station in 0..FEWEST.min(stations) {
            self.start(station)?;
        }
        pause_until(Instant::now() + self.right.settles_first())?;
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
            let station = station.context("a scan needs at least 3 stations")?;
            let t_ns = if up { self.start(station)? } else { self.stop(station)? };
            self.settle(settle_s)?;
            self.expect(kind, t_ns, monotonic_ns()?);
            *done.entry(kind).or_default() += 1;
            run.progress
                .tick(&format!("{} starts, {} stops", done["start"], done["stop"]));
        }
        Ok(())
    }

    /// All send; one after another vanishes without notice and returns.
    fn die(&mut self, events: u64, settle_s: f64, run: &Run) -> Result<()> {
        let stations = self.cell.stations();
        for station in 0..stations {
            self.start(station)?;
        }
        pause_until(Instant::now() + self.right.settles_first() + REJOIN)?;
        for event in 0..events {
            let station = self.any(0..stations).context("no station")?;
            let t_ns = self.vanish(station)?;
            self.settle(settle_s)?;
            self.expect("death", t_ns, monotonic_ns()?);
            self.come_back(station, event + 1)?;
            self.seen.deaths.push(Death {
                address: station_address(station),
                from_ns: t_ns,
                to_ns: monotonic_ns()?,
            });
            run.progress.tick(&format!("{} of {events} deaths", event + 1));
        }
        Ok(())
    }

    fn vanish(&mut self, station: usize) -> Result<u64> {
        let mut daemon = self.cell.take_daemon(station)?;
        daemon.watchdog().context("the daemon has no watchdog")?;
        let t_ns = monotonic_ns()?;
        self.cell.channel.set_present(station, false)?;
        daemon.kill_with_watchdog()?;
        self.source(station)?.kill()?;
        self.sending.remove(&station);
        self.sources[station] = None;
        self.finish_record(station)?;
        Ok(t_ns)
    }

    fn come_back(&mut self, station: usize, part: u64) -> Result<()> {
        self.cell.channel.set_present(station, true)?;
        self.cell.start_daemon(station)?;
        self.cell.wait_for_daemon(station)?;
        self.record(station, part)?;
        self.sources[station] = Some(TcpSource::connect(self.cell.station(station))?);
        self.start(station)?;
        pause_until(Instant::now() + REJOIN)
    }

    fn finish_record(&mut self, station: usize) -> Result<()> {
        if let Some(recorder) = self.recorders[station].take() {
            let Recorded { caps, expired } = recorder.finish()?;
            self.seen.recorded.caps.extend(caps);
            self.seen.recorded.expired.extend(expired);
        }
        Ok(())
    }

    fn disperse(mut self) -> Result<ObservedCaps> {
        for station in 0..self.recorders.len() {
            self.finish_record(station)?;
        }
        Ok(self.seen)
    }
}

impl ObservedCaps {
    /// Peers given up as silent although they were alive and present.
    fn false_expiries(&self) -> usize {
        let is_true = |t_ns: u64, address: &str| {
            let mut deaths = self.deaths.iter().filter(|death| death.address == address);
            deaths.any(|death| (death.from_ns..=death.to_ns).contains(&t_ns))
        };
        let false_ones = self
            .recorded
            .expired
            .iter()
            .filter(|(t_ns, address)| !is_true(*t_ns, address));
        false_ones.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_false_unless_its_peer_was_dead_then() {
        let expiry = |t_ns, address: &str| (t_ns, address.to_owned());
        let dead = Death {
            address: "10.77.0.3".into(),
            from_ns: 100,
            to_ns: 200,
        };
        let mut seen = ObservedCaps {
            deaths: vec![dead],
            ..ObservedCaps::default()
        };
        seen.recorded.expired = vec![
            expiry(150, "10.77.0.3"),
            expiry(150, "10.77.0.4"),
            expiry(250, "10.77.0.3"),
        ];
        assert_eq!(seen.false_expiries(), 2);
    }
}
