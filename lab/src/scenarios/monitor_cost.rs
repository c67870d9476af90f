// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cost of monitoring: many sockets of which few are active, and an idle daemon. Without an access point: two
//! namespaces and a wire.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::experiment::{Run, pause};
use crate::giveway::answers::{self, Status};
use crate::giveway::{self, Daemon};
use crate::interrupt::{pause_until, wait_for};
use crate::meter::{Meter, MeterReading, resident_mb, run_ss, scanner_mb};
use crate::namespace::Namespace;
use crate::network::{PEER_ADDRESS, raise_pair};
use crate::outcome::{Metrics, Outcome};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Variant};
use crate::statistics::mean;
use crate::traffic::crowd;

pub const SCENARIO: Scenario = Scenario {
    name: "monitor-cost",
    about: "Processor time and memory of a daemon that only monitors, with many open connections and idle, beside `ss`",
    seconds: 60,
    warmup_s: 20,
    parameters: &[
        Parameter::range(
            "sockets",
            10_000,
            10,
            19_000,
            "established connections; and a tenth of them",
        ),
        Parameter::range("active", 100, 1, 1_000, "of these, how many send 20 messages a second"),
    ],
    plan: &plan,
};

/// The sockets of an idle device.
const IDLE_SOCKETS: u64 = 5;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let sockets = parameters.count("sockets");
    let active = parameters.count("active");
    let variant = |name: String, sockets, active: u64, peer| {
        let cost = Cost {
            sockets,
            active: active.min(sockets),
            peer,
            warmup_s: parameters.count("warmup_s") as f64,
            seconds: parameters.count("seconds") as f64,
        };
        let estimated_s = cost.warmup_s + cost.seconds * 1.3 + sockets as f64 * 1e-3;
        Variant::new(name, None, estimated_s, move |run| cost.run(run))
    };
    let goal = |variant: &str, metric, holds| Check::metric(variant, metric, holds).goal();
    let open = [sockets, sockets / 10].map(|sockets| (format!("open/{sockets}"), sockets));
    let idle = [("idle/alone", false), ("idle/peer", true)];
    let most = open[0].0.clone();
    let mut checks = vec![
        goal(&most, "cpu_percent", Relation::AtMost(1.0)),
        goal(&most, "ss_over_poll", Relation::AtLeast(100.0)),
    ];
    for (name, _) in idle {
        checks.push(goal(name, "cpu_percent", Relation::AtMost(0.3)));
        checks.push(goal(name, "rss_mb", Relation::AtMost(20.0)));
    }
    let busy = open.map(|(name, sockets)| variant(name, sockets, active, false));
    let idle = idle.map(|(name, peer)| variant(name.into(), IDLE_SOCKETS, 0, peer));
    Ok(Plan {
        variants: busy.into_iter().chain(idle).collect(),
        checks,
        plots: vec![Plot::distribution(
            "cost",
            "CPU time of one look at all sockets",
            ("time, s", "events that are over, %"),
            ["poll", "ss -tin", "ss -tinp"].map(|what| format!("{most}/{what}")),
        )],
        columns: "cpu_percent cpu_percent_bpf all_per_poll_us ss_tinp_ms ss_over_poll rss_mb",
    })
}

/// The daemon's default time between two scans, so that each round has one.
const ROUND_S: f64 = 10.0;
/// After a request, until the daemon has forgotten its own answer.
const AFTER_STATUS: Duration = Duration::from_millis(300);
const PEER_LIMIT: Duration = Duration::from_secs(10);

struct Cost {
    /// Established connections of the watched namespace.
    sockets: u64,
    /// Of these, how many send.
    active: u64,
    /// A group key, and another daemon at the wire's other end.
    peer: bool,
    warmup_s: f64,
    seconds: f64,
}

impl Cost {
    /// The cost of a monitoring daemon: its own CPU time, that of its programs in other processes' context, and its
    /// memory, beside one `ss` over the same sockets in the same round. Excludes the cost of measuring.
    fn run(&self, run: &Run) -> Result<Outcome> {
        let (name, raw) = (run.name, run.raw);
        let (device, peer) = raise_pair()?;
        let _host = crowd::start("crowd-host", &peer, PEER_ADDRESS, self.sockets, self.active)?;
        run.progress.tick("connecting");
        let _guest = crowd::start("crowd-guest", &device, PEER_ADDRESS, self.sockets, self.active)?;
        let key = self.peer.then(|| giveway::new_key(raw)).transpose()?;
        let (mut daemon, mut others) = start_daemons(key.as_deref(), &device, &peer, run)?;
        pause(self.warmup_s)?;
        let peers = await_peers(self, &device)?;

        let meter = Meter::of(&daemon)?;
        let rounds = (self.seconds / ROUND_S).round().max(1.0) as u32;
        let mut samples = Vec::new();
        for number in 1..=rounds {
            run.progress.tick(&format!("round {number} of {rounds}"));
            samples.push(one_round(self, &device, &meter, self.seconds / f64::from(rounds))?);
        }
        let mut outcome = Outcome::default();
        summarize(&mut outcome, name, &samples);
        outcome.set(name, "peers", peers as f64);
        let watchdog = daemon.watchdog().context("the daemon has no watchdog")?;
        outcome.set(name, "rss_mb", resident_mb(daemon.process.id())?);
        outcome.set(name, "rss_watchdog_mb", resident_mb(watchdog)?);
        outcome.set(name, "scanner_mb", scanner_mb(daemon.process.id())?);
        run.keep(&json!({"variant": name, "machine": machine()?, "rounds": samples}))?;
        for daemon in others.iter_mut().chain([&mut daemon]) {
            daemon.stop()?;
        }
        if let Some(key) = key {
            // The results are kept; a key is not.
            std::fs::remove_file(key).context("cannot remove the group's key")?;
        }
        Ok(outcome)
    }
}

/// Two namespaces joined by a wire, in which nothing limits or delays: the watched device and its peer.
/// The measured daemon, and its peer where it has one.
fn start_daemons(key: Option<&Path>, device: &Namespace, peer: &Namespace, run: &Run) -> Result<(Daemon, Vec<Daemon>)> {
    let mut configuration = json!({"cap": {"policy": "none"}});
    if let Some(key) = key {
        configuration["group"] = json!({"key_file": key});
    }
    let start = |at: &Namespace, role: &str| Daemon::raise(at, &configuration, &run.file(&format!("-{role}")));
    let others = key.iter().map(|_| start(peer, "peer")).collect::<Result<_>>()?;
    Ok((start(device, "giveway")?, others))
}

/// The number of peers that the daemon authenticates, once it is complete.
fn await_peers(cost: &Cost, device: &Namespace) -> Result<u64> {
    let wanted = u64::from(cost.peer);
    wait_for("the peer to be authenticated", PEER_LIMIT, || {
        let peers = answers::status(device)?.network.peers;
        let authenticated = peers.iter().filter(|peer| peer.authenticated).count() as u64;
        Ok((authenticated == wanted).then_some(authenticated))
    })
}

fn one_round(cost: &Cost, device: &Namespace, meter: &Meter, seconds: f64) -> Result<Metrics> {
    let status_before = answers::status(device)?;
    pause_until(Instant::now() + AFTER_STATUS)?;
    let before = meter.read()?;
    pause(seconds)?;
    let spent = meter.read()? - before;
    let status = answers::status(device)?;
    let mut round = describe(&spent, &status_before, &status);
    if cost.active > 0 {
        for (flags, metric) in [("-tinp", "ss_tinp"), ("-tin", "ss_tin")] {
            let (wall, cpu) = run_ss(device, flags)?;
            round.insert(format!("{metric}_ms"), wall.as_secs_f64() * 1e3);
            round.insert(format!("{metric}_cpu_ms"), cpu.as_secs_f64() * 1e3);
        }
    }
    Ok(round)
}

fn describe(spent: &MeterReading, before: &Status, after: &Status) -> Metrics {
    let percent = |ns: f64| 100.0 * ns / spent.elapsed_ns;
    let (before, after) = (&before.daemon, &after.daemon);
    let passes = (after.polls.count - before.polls.count) as f64;
    let scans = (after.full_scans.count - before.full_scans.count) as f64;
    let polls_us = (after.polls.cpu_us - before.polls.cpu_us) as f64;
    let scans_us = (after.full_scans.cpu_us - before.full_scans.cpu_us) as f64;
    // The counters span a little more than the window: scaled to the polls within it.
    let span_s = (after.uptime_s - before.uptime_s).max(f64::MIN_POSITIVE);
    let looks = (passes + scans) / span_s * spent.elapsed_ns / 1e9;
    let all_ns = spent.daemon_ns + spent.programs_ns;
    let mut round = Metrics::from([
        ("cpu_percent".into(), percent(all_ns)),
        ("cpu_percent_daemon".into(), percent(spent.daemon_ns)),
        ("cpu_percent_bpf".into(), percent(spent.programs_ns)),
        ("bpf_runs_per_s".into(), spent.program_runs * 1e9 / spent.elapsed_ns),
        ("machine_busy_percent".into(), spent.machine_busy_percent()),
        ("polls_per_s".into(), (passes + scans) / span_s),
        ("all_per_poll_us".into(), all_ns / 1e3 / looks),
        ("poll_us".into(), polls_us / passes),
    ]);
    if scans > 0.0 {
        round.insert("full_scan_us".into(), scans_us / scans);
    }
    round
}

/// The mean of each metric over the rounds, so that rare events count, with the median and the extremes beside it.
fn summarize(outcome: &mut Outcome, point: &str, rounds: &[Metrics]) {
    let of = |metric: &str| -> Vec<f64> { rounds.iter().filter_map(|round| round.get(metric).copied()).collect() };
    for metric in rounds.iter().flat_map(Metrics::keys).collect::<BTreeSet<_>>() {
        let values = of(metric);
        outcome.set(point, metric, mean(&values));
        outcome.percentiles(point, &format!("{metric}_*"), &values, &[0, 50, 100]);
    }
    // CPU time over CPU time: the daemon's whole cost, including its scans and its programs in the senders.
    let [ss, pass] = ["ss_tinp_cpu_ms", "all_per_poll_us"].map(|metric| mean(&of(metric)));
    let ss_over_poll = ss.zip(pass).map(|(ss_ms, poll_us)| ss_ms * 1e3 / poll_us);
    outcome.set(point, "ss_over_poll", ss_over_poll);
    for (what, metric, unit_s) in [
        ("poll", "all_per_poll_us", 1e-6),
        ("ss -tin", "ss_tin_cpu_ms", 1e-3),
        ("ss -tinp", "ss_tinp_cpu_ms", 1e-3),
    ] {
        let seconds = of(metric).into_iter().map(|value| value * unit_s).collect();
        outcome.samples.insert(format!("{point}/{what}"), seconds);
    }
}

/// The machine that the numbers are from.
fn machine() -> Result<Value> {
    let uname = nix::sys::utsname::uname()?;
    let first = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
        line.map(|rest| rest.trim_matches([' ', '\t', ':']).to_owned())
    };
    Ok(json!({
        "kernel": uname.release().to_string_lossy(),
        "architecture": uname.machine().to_string_lossy(),
        "processor": first("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism()?.get(),
        "memory": first("/proc/meminfo", "MemTotal"),
        "load_average": first("/proc/loadavg", ""),
        "bpf_jit": first("/proc/sys/net/core/bpf_jit_enable", ""),
    }))
}
