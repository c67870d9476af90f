// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A background transfer of one device beside a foreground of another, in a router that neither controls: whether the
//! foreground gets what it has alone, how soon, and what the background moves when nobody else sends.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use super::crossing::{Crossing, FAR_ADDRESS, RouterLink, RouterQueue};
use crate::experiment::{Run, pause};
use crate::giveway::Daemon;
use crate::guest::Guest;
use crate::interrupt::pause_until;
use crate::namespace::Namespace;
use crate::outcome::{Curve, Outcome};
use crate::parameters::Parameters;
use crate::role::Role;
use crate::scenario::{Check, Relation, Trace, Variant};
use crate::statistics::{mean, percentile};
use crate::traffic::endless::{Arrivals, start_probe, start_sender, start_sink};
use crate::traffic::http::{Client, HttpMethod, KB, RemoteHost};
use crate::traffic::realtime::monotonic_ns;

/// It has every queue and congestion control, and a clock that the machine does not disturb.
const GUEST: Guest = Guest::VIRTUAL;
const LINK_MBIT: f64 = 20.0;
const RTT_MS: u64 = 50;
const QUEUES: [RouterQueue; 7] = [
    RouterQueue::Fifo50,
    RouterQueue::Fifo100,
    RouterQueue::Fifo250,
    RouterQueue::Codel,
    RouterQueue::FqCodel,
    RouterQueue::Policer,
    RouterQueue::Loss,
];
const BACKGROUND: u16 = 5_501;
const FOREGROUND: u16 = 5_502;
/// What others do, where it tells most.
const OTHERS: [&str; 4] = ["cubic", "bbr", "lp", "vegas"];
const COMPARED: [RouterQueue; 3] = [RouterQueue::Fifo100, RouterQueue::FqCodel, RouterQueue::Loss];

/// What giveway slows down: one background, and two.
const WAYS: [(&str, &str, Background); 2] = [
    ("giveway", "two", Background::Giveway),
    ("download", "two-downloads", Background::Download("cubic")),
];

const IDLE_S: f64 = 1.0;
/// Until a transfer that has just begun has found its rate.
const START_S: f64 = 5.0;
/// For the background to come back before the requests.
const RETURN_S: f64 = 8.0;
const SECOND_AFTER_S: f64 = 5.0;
/// For which two background transfers run.
const PAIR_S: f64 = 120.0;
const REQUEST_BYTES: u64 = 100 * KB;
/// docs/explanation/background.md: an eighth of the round trip.
const TARGET_MS: f64 = RTT_MS as f64 / 8.0;
/// Below it the background is out of the way; from the other on it is back.
const AWAY: f64 = 0.05;
const BACK: f64 = 0.5;

/// Of all that the foreground has alone.
const KEPT: f64 = 0.95;

fn link(queue: RouterQueue) -> RouterLink {
    RouterLink {
        queue,
        mbit: LINK_MBIT,
        rtt_ms: RTT_MS,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Background {
    Nobody,
    /// CUBIC, until giveway replaces it.
    Giveway,
    /// Sent by this, and giveway is where it arrives.
    Download(&'static str),
    By(&'static str),
}

#[derive(Clone, Copy)]
struct Trial {
    queue: RouterQueue,
    background: Background,
    warmup_s: f64,
    seconds: f64,
    requests: u64,
}

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let mut variants = Vec::new();
    for queue in QUEUES {
        let variant = |what: &str, background| {
            let trial = Trial {
                queue,
                background,
                warmup_s: parameters.seconds("warmup_s"),
                seconds: parameters.seconds("seconds"),
                requests: parameters.count("requests"),
            };
            let estimated_s = IDLE_S + trial.warmup_s + trial.seconds + RETURN_S + trial.requests as f64;
            let name = format!("{}/{what}", queue.name());
            Variant::new(name, Some(GUEST), estimated_s, move |run| beside(run, trial))
        };
        variants.push(variant("foreground", Background::Nobody));
        for (what, two, background) in WAYS {
            variants.push(variant(what, background));
            let name = format!("{}/{two}", queue.name());
            variants.push(Variant::new(name, Some(GUEST), SECOND_AFTER_S + PAIR_S, move |run| {
                two_backgrounds(run, queue, background)
            }));
        }
        if COMPARED.contains(&queue) {
            variants.push(variant("download/bbr", Background::Download("bbr")));
            variants.extend(OTHERS.map(|by| variant(&format!("by/{by}"), Background::By(by))));
        }
    }
    Ok(variants)
}

pub fn bounds() -> Vec<Check> {
    let of = |queue| {
        WAYS.into_iter()
            .flat_map(move |(what, two, _)| checks_of(queue, what, two))
    };
    QUEUES.into_iter().flat_map(of).collect()
}

fn checks_of(queue: RouterQueue, what: &str, two: &str) -> Vec<Check> {
    let name = |what: &str| format!("{}/{what}", queue.name());
    let (ours, alone, two) = (name(what), name("foreground"), name(two));
    let of_alone = |metric, holds| Check::ratio(format!("{ours} {metric} / alone"), &ours, &alone, metric, holds);
    let of_ours = |metric, holds| Check::metric(&ours, metric, holds);
    let mut checks = vec![
        of_alone("foreground_mbit", Relation::AtLeast(KEPT)),
        of_alone("request_mean_s", Relation::AtMost(1.0 / KEPT)),
        of_ours("added_p95_ms", Relation::AtMost(60.0)),
        of_ours("yield_s", Relation::AtMost(1.0)),
        of_ours("yield_s", Relation::AtMost(0.5)).goal(),
        // What CUBIC moves in the same place.
        of_alone(
            "steady_mbit",
            Relation::AtLeast(if queue == RouterQueue::Loss { 2.0 } else { 0.9 }),
        ),
        Check::metric(&two, "share_ratio", Relation::AtLeast(0.8)),
    ];
    if queue.fifo_ms().is_some() {
        checks.push(of_ours("yield_after_queue_s", Relation::AtMost(0.5)));
    }
    if queue == RouterQueue::Loss {
        checks.push(of_ours("steady_mbit", Relation::AtLeast(0.7 * LINK_MBIT)).goal());
    }
    checks
}

/// The moments of a trial, nanoseconds.
struct Moments {
    idle: u64,
    background: u64,
    foreground: u64,
    foreground_end: u64,
    requests: u64,
}

/// The background alone, then a foreground beside it, then the background alone again, then requests beside it.
fn beside(run: &Run, trial: Trial) -> Result<Outcome> {
    let crossing = Crossing::raise(link(trial.queue))?;
    let [ours, theirs] = &crossing.devices;
    let _daemon = match trial.background {
        Background::Giveway => Some(start_daemon(ours, run, "", &[BACKGROUND])?),
        Background::Download(_) => Some(start_daemon(&crossing.far, run, "", &[BACKGROUND])?),
        _ => None,
    };
    let _remote_host = RemoteHost::start(&crossing.far)?;
    let sink = start_sink(&crossing.far, &[BACKGROUND, FOREGROUND])?;
    let mut client = Client::start(theirs, FAR_ADDRESS.parse()?, None)?;
    // The first finds cold caches everywhere.
    client.request(HttpMethod::Post, KB)?;
    let _probe = start_probe(theirs, FAR_ADDRESS)?;
    let idle = monotonic_ns()?;
    pause(IDLE_S)?;
    let background = monotonic_ns()?;
    run.progress.tick("background alone");
    let _upload = match trial.background {
        Background::Nobody => None,
        Background::Giveway => Some(start_sender(ours, FAR_ADDRESS, BACKGROUND, "cubic")?),
        Background::By(control) | Background::Download(control) => {
            Some(start_sender(ours, FAR_ADDRESS, BACKGROUND, control)?)
        }
    };
    pause(trial.warmup_s)?;
    run.progress.tick("a foreground beside it");
    let foreground = monotonic_ns()?;
    let transfer = start_sender(theirs, FAR_ADDRESS, FOREGROUND, "cubic")?;
    pause(trial.seconds)?;
    let foreground_end = monotonic_ns()?;
    drop(transfer);
    pause(RETURN_S)?;
    run.progress.tick("requests beside it");
    let requests = monotonic_ns()?;
    let seconds = make_requests(&mut client, trial.requests)?;
    let arrivals: Arrivals = sink.finish()?;
    run.keep(&json!({ "arrivals": &arrivals, "requests_s": &seconds }))?;
    let moments = Moments {
        idle,
        background,
        foreground,
        foreground_end,
        requests,
    };
    let mut outcome = Outcome::default();
    set_metrics(&mut outcome, run.name, trial, &moments, &arrivals);
    outcome.set(run.name, "request_mean_s", mean(&seconds));
    outcome.set(run.name, "request_p95_s", percentile(&seconds, 95.0));
    Ok(outcome)
}

/// Its own qdisc has no part in this: the device's link is as fast as the machine. `ports` are background, at either end.
fn start_daemon(at: &Namespace, run: &Run, what: &str, ports: &[u16]) -> Result<Daemon> {
    let rule = |end: &str, port: u16| json!({end: port, "class": "background"});
    let rules = ports
        .iter()
        .flat_map(|port| ["port", "local_port"].map(|end| rule(end, *port)));
    let configuration = json!({
        "cap": {"policy": "none"},
        "queue": {"backend": "none"},
        "rule": rules.collect::<Vec<_>>(),
    });
    Daemon::raise(at, &configuration, &run.file(what))
}

fn make_requests(client: &mut Client, count: u64) -> Result<Vec<f64>> {
    let begun = Instant::now();
    let request = |number: u64| {
        pause_until(begun + Duration::from_secs(number))?;
        Ok(client.request(HttpMethod::Post, REQUEST_BYTES)?.seconds)
    };
    (0..count).map(request).collect()
}

fn set_metrics(outcome: &mut Outcome, point: &str, trial: Trial, at: &Moments, arrivals: &Arrivals) {
    let [start_ns, length_ns] = [START_S, trial.seconds].map(|seconds| (seconds * 1e9) as u64);
    let Some(first) = arrivals.first_ns(FOREGROUND, at.foreground) else {
        return;
    };
    let beside = (first, first + length_ns);
    outcome.set(point, "foreground_mbit", arrivals.mbit(FOREGROUND, beside));
    outcome.traces = curves(arrivals);
    if trial.background == Background::Nobody {
        let steady = (first + start_ns.min(length_ns / 2), first + length_ns);
        outcome.set(point, "steady_mbit", arrivals.mbit(FOREGROUND, steady));
        return;
    }
    let warmup_ns = at.foreground - at.background;
    let steady = (at.background + start_ns.min(warmup_ns / 2), at.foreground);
    outcome.set(point, "steady_mbit", arrivals.mbit(BACKGROUND, steady));
    let mbit = arrivals.mbit(BACKGROUND, beside);
    outcome.set(point, "background_percent", 100.0 * mbit / LINK_MBIT);
    let idle_ms = percentile(&arrivals.delays_ms((at.idle, at.background)), 50.0);
    let alone_ms = arrivals.delays_ms(steady);
    let p95_ms = percentile(&alone_ms, 95.0);
    outcome.set(point, "added_p95_ms", p95_ms.zip(idle_ms).map(|(p95, idle)| p95 - idle));
    let is_away = arrivals.settles_s(&[BACKGROUND], beside, AWAY * LINK_MBIT, false);
    outcome.set(point, "yield_s", is_away);
    // A queue that the background has not made itself.
    let own_ms = alone_ms.iter().copied().fold(TARGET_MS, f64::max);
    let queue = arrivals.first_waiting_ns(beside, own_ms);
    // 0: it was away before.
    let after_s = |queue: u64| is_away.map(|away_s| (away_s - (queue - first) as f64 / 1e9).max(0.0));
    outcome.set(point, "yield_after_queue_s", queue.and_then(after_s));
    let alone_again = (at.foreground_end, at.requests);
    let return_s = arrivals.settles_s(&[BACKGROUND], alone_again, BACK * LINK_MBIT, true);
    outcome.set(point, "return_s", return_s);
}

fn curves(arrivals: &Arrivals) -> Vec<Curve> {
    let curve = |(station, port)| Curve::new(Trace::Goodput, station, arrivals.curve(port));
    [BACKGROUND, FOREGROUND].into_iter().enumerate().map(curve).collect()
}

/// One on each device, the second a while after the first.
fn two_backgrounds(run: &Run, queue: RouterQueue, background: Background) -> Result<Outcome> {
    let crossing = Crossing::raise(link(queue))?;
    let [first, second] = &crossing.devices;
    let both = [BACKGROUND, FOREGROUND];
    let _daemons = match background {
        Background::Download(_) => vec![start_daemon(&crossing.far, run, "", &both)?],
        _ => vec![
            start_daemon(first, run, "-1", &both)?,
            start_daemon(second, run, "-2", &both)?,
        ],
    };
    let sink: Role = start_sink(&crossing.far, &[BACKGROUND, FOREGROUND])?;
    run.progress.tick("two backgrounds");
    let _first = start_sender(first, FAR_ADDRESS, BACKGROUND, "cubic")?;
    pause(SECOND_AFTER_S)?;
    let _second = start_sender(second, FAR_ADDRESS, FOREGROUND, "cubic")?;
    let from_ns = monotonic_ns()?;
    pause(PAIR_S)?;
    let to_ns = monotonic_ns()?;
    let arrivals: Arrivals = sink.finish()?;
    run.keep(&arrivals)?;
    let [first, second] = [BACKGROUND, FOREGROUND].map(|port| arrivals.mbit(port, (from_ns, to_ns)));
    let mut outcome = Outcome::default();
    outcome.set(run.name, "first_mbit", first);
    outcome.set(run.name, "second_mbit", second);
    outcome.set(run.name, "share_ratio", first.min(second) / first.max(second));
    outcome.traces = curves(&arrivals);
    Ok(outcome)
}
