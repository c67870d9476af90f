// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A live stream and three file transfers on four devices of one access point.

mod playout;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Case, Conditions};
use crate::access_point::{BackgroundPolicy, Cap, Managed};
use crate::cell::{Cell, SERVER_ADDRESS};
use crate::experiment::Run;
use crate::giveway::answers::active_caps;
use crate::interrupt::{pause_until, wait_for};
use crate::outcome::{Curve, Outcome};
use crate::role::Role;
use crate::scenario::{Check, Relation, Trace};
use crate::statistics::mean;
use crate::traffic::application::{ApplicationKind, SAMPLE_EVERY, SentPart, UploadReport, prepare, start_sink};
use playout::play;

/// The first station streams, the other three transfer.
const STREAMS: usize = 1;
const PHOTOS: u64 = 10;
const PHOTO_BYTES: u64 = 12_000_000;
/// 2.5 Mbit/s.
const STREAM: ApplicationKind = ApplicationKind::Stream {
    frame_bytes: 12_500,
    every_ms: 40,
};
/// The stream's playout buffer: for remote control. With a second nothing ever stalls.
const BUFFER_MS: u64 = 150;
const MBIT_AT_LEAST: f64 = 1.0;
const CAPS_READ_AFTER: Duration = Duration::from_millis(1_500);

/// The programs, on one station each.
#[derive(Clone)]
struct Programs {
    /// Points are below this name.
    point: String,
    kinds: Vec<(&'static str, ApplicationKind)>,
    /// Of streams that run alone; else they end with the last transfer.
    stream_s: f64,
}

/// Which stations have a daemon, and its policy.
#[derive(Clone, Copy)]
struct Mix {
    name: &'static str,
    managed: Managed,
    giveway: Option<Cap>,
    background: Option<BackgroundPolicy>,
}

fn mixes(rtt_ms: u64) -> [Mix; 6] {
    let transfers = Managed::AllButFirst(STREAMS);
    let mix = |name, managed, giveway, background| Mix {
        name,
        managed,
        giveway,
        background,
    };
    let background = |is_slowed| BackgroundPolicy {
        is_marked: true,
        is_slowed,
    };
    [
        mix("plain", Managed::All, None, None),
        mix("transfers-capped-30", transfers, Some(Cap::Segments(30)), None),
        mix(
            "stream-capped-20",
            Managed::First(STREAMS),
            Some(Cap::Segments(20)),
            None,
        ),
        // A configured capacity in equal parts, whatever the program.
        mix("equal-caps", Managed::All, Some(Cap::Formula { rtt_ms }), None),
        // One rule on each device that transfers, and nothing on the one that streams.
        mix("giveway", transfers, None, Some(background(true))),
        // The same with `congestion_control` off: the access category alone.
        mix("marked-only", transfers, None, Some(background(false))),
    ]
}

pub fn variants(conditions: &Conditions) -> Vec<Case> {
    let transfer = ApplicationKind::Files {
        count: 1,
        bytes: conditions.parameters.count("file_kb") * 1_000,
    };
    let photos = ApplicationKind::Files {
        count: PHOTOS,
        bytes: PHOTO_BYTES,
    };
    let case = |what: &str, giveway, kinds: &[_]| {
        let programs = Programs {
            point: conditions.name(what),
            kinds: kinds.to_vec(),
            stream_s: conditions.seconds("seconds"),
        };
        let case = conditions.case((what, giveway));
        case.act(programs.estimated_s(), move |cell, run| run_all(&programs, cell, run))
    };
    let mut cases = Vec::new();
    for (what, kind) in [("stream", STREAM), ("transfer", transfer), ("photos", photos)] {
        cases.push(case(&format!("alone/{what}"), None, &[(what, kind)]));
    }
    let mut kinds = vec![("stream", STREAM)];
    kinds.extend(["transfer-1", "transfer-2", "transfer-3"].map(|what| (what, transfer)));
    let in_time = Relation::AtMost(BUFFER_MS as f64);
    for mix in mixes(conditions.rtt_ms) {
        let case = case(mix.name, mix.giveway, &kinds)
            .on(|place| (place.managed, place.background) = (mix.managed, mix.background))
            .check(|name| Check::metric(name, "pause_max_ms", in_time).goal());
        cases.push(match mix.giveway {
            Some(Cap::Segments(cap)) => case.holds_cap(cap),
            _ => case,
        });
    }
    cases
}

/// The stream as good as alone, and the last transfer hardly later than without any control.
pub fn better_than_both_trades(conditions: &Conditions) -> Vec<Check> {
    let (ours, alone) = (conditions.name("giveway") + "/stream", conditions.name("alone/stream"));
    let stream = |metric: &'static str| {
        let check = format!("{ours} {metric} - alone");
        Check::difference(check, &ours, &alone, metric, Relation::AtMost(0.0)).goal()
    };
    let [mixed, plain] = conditions.names(["giveway", "plain"]);
    let later = format!("{mixed} completion_s / plain");
    vec![
        stream("stalls"),
        stream("late_kb"),
        Check::ratio(later, &mixed, &plain, "completion_s", Relation::AtMost(1.05)).goal(),
    ]
}

impl Programs {
    fn estimated_s(&self) -> f64 {
        let bytes = |(_, kind): &(_, ApplicationKind)| match kind {
            ApplicationKind::Files { count, bytes } => count * bytes,
            ApplicationKind::Stream { .. } => 0,
        };
        let bytes: u64 = self.kinds.iter().map(bytes).sum();
        // At the channel's full speed.
        if bytes > 0 {
            bytes as f64 * 8.0 / 16e6
        } else {
            self.stream_s
        }
    }

    /// The limit of waiting.
    fn limit(&self) -> Duration {
        Duration::from_secs_f64(60.0 + self.estimated_s() * 16.0 / MBIT_AT_LEAST)
    }
}

fn run_all(programs: &Programs, cell: &mut Cell, run: &Run) -> Result<Outcome> {
    let _sink = start_sink(cell.server())?;
    let stations = (0..).zip(&programs.kinds);
    let prepared = stations.map(|(station, (_, kind))| prepare(cell.station(station), SERVER_ADDRESS, *kind));
    let mut roles: Vec<Role> = prepared.collect::<Result<_>>()?;
    let begun = Instant::now();
    roles.iter_mut().try_for_each(|role| role.send_line("start"))?;
    let caps = read_caps(cell, begun)?;
    wait_until_done(programs, &roles, begun, run)?;
    let sent: Vec<UploadReport> = roles.into_iter().map(Role::finish).collect::<Result<_>>()?;
    let mut outcome = Outcome::default();
    outcome.set(&programs.point, "cap_segments", caps);
    let late_us = cell.channel.counters()?.lateness_us.p99;
    outcome.set(&programs.point, "lateness_p99_us", late_us as f64);
    let pause_ms = sent.iter().filter_map(longest_pause_ms).reduce(f64::max);
    outcome.set(&programs.point, "pause_max_ms", pause_ms);
    let first_ns = sent.iter().map(|sent| sent.begun_ns).min();
    let first_ns = first_ns.context("nothing was sent")?;
    for (station, ((what, kind), sent)) in programs.kinds.iter().zip(&sent).enumerate() {
        set_metrics(&mut outcome, programs, (what, *kind), sent);
        let at_s = |at_ns: u64| at_ns.saturating_sub(first_ns) as f64 / 1e9;
        let points = sent.samples.iter().map(|s| (at_s(s.at_ns), f64::from(s.cwnd)));
        outcome.traces.push(Curve::new(Trace::Cwnd, station, points.collect()));
    }
    run.keep(&sent)?;
    Ok(outcome)
}

/// Of all senders, soon after they began.
fn read_caps(cell: &Cell, begun: Instant) -> Result<Option<f64>> {
    if !cell.has_daemons() {
        return Ok(None);
    }
    pause_until(begun + CAPS_READ_AFTER)?;
    let statuses = cell.statuses()?;
    let caps: Vec<_> = statuses.iter().flat_map(active_caps).map(|cap| cap as f64).collect();
    Ok(mean(&caps))
}

/// Until the last transfer has ended, or a lone stream has lasted long enough.
fn wait_until_done(programs: &Programs, roles: &[Role], begun: Instant, run: &Run) -> Result<()> {
    let of_kinds = roles.iter().zip(&programs.kinds);
    let transfers = of_kinds.filter(|(_, (_, kind))| matches!(kind, ApplicationKind::Files { .. }));
    let transfers: Vec<_> = transfers.map(|(role, _)| role).collect();
    if transfers.is_empty() {
        return pause_until(begun + Duration::from_secs_f64(programs.stream_s));
    }
    wait_for("the last transfer to end", programs.limit(), || {
        run.progress
            .tick(&format!("{} s of transfers", begun.elapsed().as_secs()));
        for role in &transfers {
            if !role.has_answered()? {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

/// The longest time that a program could not check its socket: the machine was busy.
fn longest_pause_ms(sent: &UploadReport) -> Option<f64> {
    let pauses = sent
        .samples
        .windows(2)
        .map(|pair| (pair[1].at_ns - pair[0].at_ns) as f64 / 1e6);
    let longest_ms = pauses.reduce(f64::max)?;
    Some(longest_ms - SAMPLE_EVERY.as_secs_f64() * 1e3)
}

fn set_metrics(outcome: &mut Outcome, programs: &Programs, (what, kind): (&str, ApplicationKind), sent: &UploadReport) {
    let point = match programs.kinds.len() {
        1 => programs.point.clone(),
        _ => format!("{}/{what}", programs.point),
    };
    let cwnds: Vec<_> = sent.samples.iter().map(|sample| f64::from(sample.cwnd)).collect();
    let rtts = sent.samples.iter().map(|sample| f64::from(sample.rtt_us) / 1e3);
    let rtts: Vec<_> = rtts.collect();
    outcome.percentiles(&point, "cwnd_*", &cwnds, &[50, 95, 100]);
    outcome.percentiles(&point, "rtt_*_ms", &rtts, &[50, 99]);
    match kind {
        ApplicationKind::Files { .. } => {
            let took_s = sent.completion_s();
            outcome.set(&point, "completion_s", took_s);
            // Of the mix, that of the last.
            let of_all = outcome.points.get(&programs.point);
            let last_s = of_all.and_then(|of_all| of_all.get("completion_s").copied());
            let last_s = took_s.map(|took_s| took_s.max(last_s.unwrap_or(0.0)));
            outcome.set(&programs.point, "completion_s", last_s);
        }
        ApplicationKind::Stream { frame_bytes, .. } => {
            let playout = play(&sent.parts, BUFFER_MS * 1_000_000);
            let delay_ms = |frame: &SentPart| (frame.arrived_ns - frame.made_ns) as f64 / 1e6;
            let delays: Vec<_> = sent.parts.iter().map(delay_ms).collect();
            outcome.percentiles(&point, "delay_*_ms", &delays, &[50, 99, 100]);
            outcome.set(&point, "stalls", playout.stalls as f64);
            outcome.set(&point, "stalled_s", playout.stalled_ns as f64 / 1e9);
            outcome.set(&point, "late_kb", (playout.late * frame_bytes) as f64 / 1e3);
            outcome.set(&point, "frames", sent.parts.len() as f64);
        }
    }
}
