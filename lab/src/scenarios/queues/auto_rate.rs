// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An upload behind a modem whose rate nobody has told: what it moves and what waits, with giveway told the rate,
//! giveway that finds it, and without giveway; on links of one rate and on one whose rate moves within seconds.

use std::time::Instant;

use anyhow::Result;
use giveway_engine::queue::traffic::QueueCounters;
use serde_json::json;

use super::modem_queue::start_queue;
use super::passed::counted;
use crate::channel::STATION_DEVICE;
use crate::experiment::{Run, pause};
use crate::giveway::{Daemon, answers};
use crate::guest::Guest;
use crate::modem::{FAR_ADDRESS, LEAST_MBIT, Modem, ModemLink};
use crate::outcome::{Curve, Outcome};
use crate::parameters::Parameters;
use crate::scenario::{Check, Relation, Trace, Variant};
use crate::statistics::percentile;
use crate::traffic::endless::{
    Arrivals, BIN_NS, DISCARD_PORT, start_datagrams, start_observed_sender, start_probe, start_sink,
};
use crate::traffic::realtime::monotonic_ns;
use crate::uplink::PACKET_BYTES;

/// It has the BPF qdisc, and a clock that the machine does not disturb.
const GUEST: Guest = Guest::VIRTUAL;
const UPLOAD: u16 = 5_501;
const RTT_MS: u64 = 100;
const LINKS: [(&str, ModemLink); 4] = [
    ("1", ModemLink::Steady(1.0)),
    ("10", ModemLink::Steady(10.0)),
    ("50", ModemLink::Steady(50.0)),
    ("trace", ModemLink::Trace),
];
/// Of the truth, what `below` is told.
const A_LITTLE_BELOW: f64 = 0.98;
const IDLE: &str = "auto/idle";
const AUTO: &str = "auto";
/// Beside the upload, on 10 Mbit/s: datagrams at more than half of that.
const BESIDE_UDP: &str = "auto/udp";
const UDP_MBIT: f64 = 6.0;

/// What arrived over these times is compared with the link's rate, where nothing in the device keeps a queue from standing.
const ARRIVES_OVER_MS: [u64; 4] = [100, 200, 500, 1_000];
const TENTH: f64 = 0.1;

#[derive(Clone, Copy, PartialEq)]
enum Method {
    /// Nothing is uploaded.
    None,
    /// One queue for all in the device, and the modem's.
    Plain,
    /// In the device, where nothing waits: what a distribution has.
    FqCodel,
    /// giveway, told the rate; on the trace the least.
    Fixed,
    /// giveway, told a little less, as docs/explanation/queue-and-admission.md advises: a link carries hardly ever just what it is said to.
    Below,
    /// giveway, not told.
    Auto,
}

impl Method {
    /// The kernel's; none: giveway's.
    fn queue(self) -> Option<&'static str> {
        match self {
            Self::Plain | Self::None => Some("pfifo limit 1000"),
            Self::FqCodel => Some("fq_codel"),
            Self::Fixed | Self::Below | Self::Auto => None,
        }
    }
}

const METHODS: [(&str, Method); 6] = [
    ("none", Method::None),
    ("plain", Method::Plain),
    ("fq_codel", Method::FqCodel),
    ("fixed", Method::Fixed),
    ("below", Method::Below),
    (AUTO, Method::Auto),
];

#[derive(Clone, Copy)]
struct Trial {
    method: Method,
    link: ModemLink,
    udp_mbit: Option<f64>,
    warmup_s: f64,
    seconds: f64,
}

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let (warmup_s, seconds) = (parameters.seconds("warmup_s"), parameters.seconds("seconds"));
    let variant = |name: String, method, link, udp_mbit| {
        let trial = Trial {
            method,
            link,
            udp_mbit,
            warmup_s,
            seconds,
        };
        Variant::new(name, Some(GUEST), warmup_s + seconds, move |run| upload(run, trial))
    };
    let mut variants = Vec::new();
    for (link_name, link) in LINKS {
        let makes_sense = |method| method != Method::Below || link != ModemLink::Trace;
        for (name, method) in METHODS.into_iter().filter(|(_, method)| makes_sense(*method)) {
            variants.push(variant(format!("{name}/{link_name}"), method, link, None));
        }
    }
    let ten = ModemLink::Steady(10.0);
    variants.push(variant(BESIDE_UDP.into(), Method::Auto, ten, Some(UDP_MBIT)));
    variants.push(Variant::new(IDLE, Some(GUEST), seconds, move |run| idle(run, seconds)));
    Ok(variants)
}

pub fn bounds() -> Vec<Check> {
    let mut checks: Vec<_> = LINKS
        .into_iter()
        .flat_map(|(name, link)| checks_on(name, link))
        .collect();
    let zero = |metric| Check::metric(IDLE, metric, Relation::Exactly(0.0)).always();
    checks.extend([
        Check::metric(BESIDE_UDP, "goodput_mbit", Relation::AtLeast(4.0)),
        Check::metric(BESIDE_UDP, "probe_p95_ms", Relation::AtMost(50.0)),
        zero("sent_packets"),
        zero("changes"),
    ]);
    checks
}

fn checks_on(name: &str, link: ModemLink) -> Vec<Check> {
    let [auto, fixed, below, plain] = [AUTO, "fixed", "below", "plain"].map(|method| format!("{method}/{name}"));
    let ratio =
        |over: &str, metric, holds| Check::ratio(format!("{auto} {metric} / {over}"), &auto, over, metric, holds);
    // All but the probes.
    let known = Check::metric(&auto, "known_as_tcp_percent", Relation::AtLeast(90.0)).always();
    let mut checks: Vec<Check> = match link {
        ModemLink::Steady(mbit) => {
            let two_packets_ms = 2.0 * PACKET_BYTES as f64 * 8.0 / (mbit * 1e3);
            let later = |over: &str, metric| {
                let holds = Relation::AtMost(two_packets_ms.max(10.0));
                Check::difference(format!("{auto} {metric} - {over}"), &auto, over, metric, holds)
            };
            let beside = |over: &String| {
                [
                    ratio(over, "goodput_mbit", Relation::AtLeast(0.95)),
                    later(over, "rtt_p50_ms"),
                    later(over, "probe_p50_ms"),
                ]
            };
            [fixed, below].iter().flat_map(beside).collect()
        }
        ModemLink::Trace | ModemLink::Steps(_) => vec![
            ratio(&plain, "goodput_mbit", Relation::AtLeast(0.85)),
            ratio(&plain, "rtt_p95_ms", Relation::AtMost(0.25)),
            ratio(&plain, "probe_p95_ms", Relation::AtMost(0.25)),
        ],
    };
    checks.push(known);
    checks
}

/// None: giveway takes no part.
fn start_daemon(modem: &Modem, trial: Trial, run: &Run) -> Result<Option<Daemon>> {
    let rate = match (trial.method, trial.link) {
        (Method::Auto, _) => json!("auto"),
        (Method::Fixed, ModemLink::Steady(mbit)) => json!(mbit),
        (Method::Below, ModemLink::Steady(mbit)) => json!(A_LITTLE_BELOW * mbit),
        (Method::Fixed, ModemLink::Trace) => json!(LEAST_MBIT),
        _ => return Ok(None),
    };
    start_queue(modem, rate, run).map(Some)
}

fn upload(run: &Run, trial: Trial) -> Result<Outcome> {
    let end_s = trial.warmup_s + trial.seconds;
    let modem = Modem::raise(trial.method.queue(), RTT_MS, trial.link, (run.seed, end_s))?;
    let daemon = start_daemon(&modem, trial, run)?;
    let sink = start_sink(&modem.far, &[UPLOAD])?;
    let _probe = start_probe(&modem.device, FAR_ADDRESS)?;
    let datagrams = |mbit| start_datagrams(&modem.device, FAR_ADDRESS, DISCARD_PORT, mbit);
    let _datagrams = trial.udp_mbit.map(datagrams).transpose()?;
    let (begun, begun_ns) = (Instant::now(), monotonic_ns()?);
    let sender = match trial.method {
        Method::None => None,
        _ => Some(start_observed_sender(&modem.device, FAR_ADDRESS, UPLOAD, "cubic")?),
    };
    run.progress.tick("warming up");
    modem.pass(begun, 0.0, trial.warmup_s)?;
    run.progress.tick("measuring");
    modem.pass(begun, trial.warmup_s, end_s)?;
    let queue = match (&daemon, trial.method) {
        (Some(_), Method::Auto) => Some(answers::status(&modem.device)?.network.queue),
        _ => None,
    };
    let found = queue.as_ref().and_then(|queue| queue.estimate);
    let rtts_us: Vec<(u64, u32)> = sender.map_or(Ok(Vec::new()), |sender| sender.finish())?;
    let arrivals: Arrivals = sink.finish()?;
    run.keep(&json!({"arrivals": &arrivals, "rtts_us": &rtts_us, "estimated": &found}))?;
    daemon.map_or(Ok(()), |mut daemon| daemon.stop())?;
    let [from_ns, to_ns] = [trial.warmup_s, end_s].map(|s| begun_ns + (s * 1e9) as u64);
    let mut outcome = Outcome::default();
    let measured = rtts_us.iter().filter(|(t_ns, _)| (from_ns..to_ns).contains(t_ns));
    let rtts_ms: Vec<f64> = measured.map(|(_, us)| f64::from(*us) / 1e3).collect();
    if trial.method != Method::None {
        outcome.set(run.name, "goodput_mbit", arrivals.mbit(UPLOAD, (from_ns, to_ns)));
        outcome.percentiles(run.name, "rtt_*_ms", &rtts_ms, &[50, 95]);
    }
    let waits_ms = arrivals.delays_ms((from_ns, to_ns));
    outcome.set(run.name, "probe_p50_ms", percentile(&waits_ms, 50.0));
    outcome.set(run.name, "probe_p95_ms", percentile(&waits_ms, 95.0));
    let rate = found.and_then(|found| found.rate_bytes_per_s);
    outcome.set(run.name, "estimated_mbit", rate.map(|rate| rate as f64 / 125e3));
    let known = queue.and_then(|queue| known_as_tcp_percent(&queue.counters?));
    outcome.set(run.name, "known_as_tcp_percent", known);
    if trial.method == Method::Plain {
        for window_ms in ARRIVES_OVER_MS {
            let percent = near_rate_percent(&arrivals, &modem, begun_ns, (from_ns, to_ns), window_ms * 1_000_000);
            outcome.set(run.name, &format!("arrives_near_rate_{window_ms}ms_percent"), percent);
        }
    }
    outcome.traces = vec![Curve::new(Trace::Goodput, 0, arrivals.curve(UPLOAD))];
    Ok(outcome)
}

/// What a receiver can know of the link's rate while a queue stands before it: of how many moments what arrived just before is
/// within a tenth of it.
fn near_rate_percent(
    arrivals: &Arrivals,
    modem: &Modem,
    begun_ns: u64,
    (from_ns, to_ns): (u64, u64),
    window_ns: u64,
) -> f64 {
    let moments = (from_ns + window_ns..to_ns).step_by(BIN_NS as usize);
    let is_near = |at_ns: &u64| {
        let arrives_mbit = arrivals.mbit(UPLOAD, (at_ns - window_ns, *at_ns));
        let rate_mbit = modem.rate_mbit((at_ns - begun_ns) as f64 / 1e9);
        rate_mbit.is_some_and(|mbit| (arrives_mbit / mbit - 1.0).abs() <= TENTH)
    };
    let near = moments.clone().filter(is_near).count();
    100.0 * near as f64 / moments.count() as f64
}

/// Of what the queue has sent.
fn known_as_tcp_percent(counters: &QueueCounters) -> Option<f64> {
    let bands = counters.bands.in_order();
    let served = bands.iter().filter_map(|(_, band)| band.served);
    let sums = served.fold((0, 0), |(tcp, all), served| {
        let of_tcp = served.more.map_or(0, |more| more.tcp_sent_bytes);
        (tcp + of_tcp, all + served.sent_bytes)
    });
    (sums.1 > 0).then(|| 100.0 * sums.0 as f64 / sums.1 as f64)
}

/// Where nobody sends, giveway neither sends nor changes anything.
fn idle(run: &Run, seconds: f64) -> Result<Outcome> {
    let modem = Modem::raise(None, RTT_MS, ModemLink::Steady(10.0), (run.seed, seconds))?;
    let mut daemon = start_queue(&modem, json!("auto"), run)?;
    let sent_packets = || counted(&modem.device, STATION_DEVICE, "tx/packets");
    let tuning = || -> Result<_> { Ok(answers::status(&modem.device)?.network.queue.installed) };
    let (sent, before) = (sent_packets()?, tuning()?);
    pause(seconds)?;
    let mut outcome = Outcome::default();
    outcome.set(run.name, "sent_packets", sent_packets()? - sent);
    outcome.set(run.name, "changes", f64::from(u8::from(tuning()? != before)));
    daemon.stop()?;
    Ok(outcome)
}
