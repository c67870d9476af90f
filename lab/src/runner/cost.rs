// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a daemon costs that watches: its own CPU time, that of its programs in other processes' context,
//! and its memory, beside one `ss` over the same sockets in the same round.
//! In: how many sockets there are and how many of them send. Out: means over the rounds with median, smallest
//! and largest, and every round's numbers as JSON. What serves to measure is not in the measured time.

mod machine;
pub mod meter;
mod pair;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Run;
use crate::giveway::{self, Daemon, Status};
use crate::interrupt::{pause_until, wait_for};
use crate::namespace::Namespace;
use crate::outcome::{Metrics, Outcome};
use crate::scenario::Cost;
use crate::statistics::{mean, percentile};
use crate::traffic::crowd;
use meter::{Meter, Reading, resident_mb, run_ss};
use pair::{PEER_ADDRESS, Pair};

/// A round lasts as long as the daemon's default time between two walks, so that each holds one.
const ROUND_S: f64 = 10.0;
/// After a question, until the daemon has forgotten its own answer.
const AFTER_STATUS: Duration = Duration::from_millis(300);
const NEIGHBOUR_LIMIT: Duration = Duration::from_secs(10);

pub fn run(cost: &Cost, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let pair = Pair::create()?;
    let _host = crowd::start("crowd-host", &pair.peer, PEER_ADDRESS, cost.sockets, cost.active)?;
    run.progress.tick("connecting");
    let _guest = crowd::start("crowd-guest", &pair.device, PEER_ADDRESS, cost.sockets, cost.active)?;
    let key = cost.neighbour.then(|| giveway::new_key(raw)).transpose()?;
    let (mut daemon, mut others) = start_daemons(key.as_deref(), &pair, raw, &name.replace('/', "-"))?;
    pause_until(Instant::now() + Duration::from_secs_f64(cost.warmup_s))?;
    let neighbours = await_neighbours(cost, &pair.device)?;

    let meter = Meter::of(&daemon)?;
    let rounds = (cost.seconds / ROUND_S).round().max(1.0) as u32;
    let mut samples = Vec::new();
    for number in 1..=rounds {
        run.progress.tick(&format!("round {number} of {rounds}"));
        samples.push(one_round(cost, &pair.device, &meter, cost.seconds / f64::from(rounds))?);
    }
    let mut outcome = Outcome::default();
    summarize(&mut outcome, name, &samples);
    outcome.set(name, "neighbours", neighbours as f64);
    let guardian = daemon.guardian().context("the daemon has no guardian")?;
    outcome.set(name, "rss_mb", resident_mb(daemon.id())?);
    outcome.set(name, "rss_guardian_mb", resident_mb(guardian)?);
    machine::keep(raw, name, &samples)?;
    for daemon in others.iter_mut().chain([&mut daemon]) {
        daemon.stop()?;
    }
    if let Some(key) = key {
        // The results are kept; a key is not for keeping.
        std::fs::remove_file(key).context("cannot remove the group's key")?;
    }
    Ok(outcome)
}

/// The measured daemon, and its neighbour where it has one.
fn start_daemons(key: Option<&Path>, pair: &Pair, raw: &Path, label: &str) -> Result<(Daemon, Vec<Daemon>)> {
    let configuration = raw.join(format!("{label}.toml"));
    giveway::write_watching_configuration(&configuration, key)?;
    let start = |at: &Namespace, role: &str| {
        let mut daemon = Daemon::start(at, &configuration, raw.join(format!("{label}-{role}.log")))?;
        daemon.wait_until_up(at)?;
        Ok::<_, anyhow::Error>(daemon)
    };
    let others = key
        .iter()
        .map(|_| start(&pair.peer, "neighbour"))
        .collect::<Result<_>>()?;
    Ok((start(&pair.device, "giveway")?, others))
}

/// How many neighbours the daemon believes, once it is as many as there are.
fn await_neighbours(cost: &Cost, device: &Namespace) -> Result<u64> {
    let wanted = u64::from(cost.neighbour);
    wait_for("the neighbour to be believed", NEIGHBOUR_LIMIT, || {
        let status = giveway::status(device)?;
        let believed = status.neighbours.iter().filter(|n| n.believed).count() as u64;
        Ok((believed == wanted).then_some(believed))
    })
}

fn one_round(cost: &Cost, device: &Namespace, meter: &Meter, seconds: f64) -> Result<Metrics> {
    let status_before = giveway::status(device)?;
    pause_until(Instant::now() + AFTER_STATUS)?;
    let before = meter.read()?;
    pause_until(Instant::now() + Duration::from_secs_f64(seconds))?;
    let spent = meter.read()? - before;
    let status = giveway::status(device)?;
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

fn describe(spent: &Reading, before: &Status, after: &Status) -> Metrics {
    let percent = |ns: f64| 100.0 * ns / spent.elapsed_ns;
    let passes = (after.passes.count - before.passes.count) as f64;
    let walks = (after.walks.count - before.walks.count) as f64;
    // The counters span a little more than the window: a rate makes of them the passes within it.
    let span_s = (after.uptime_s - before.uptime_s).max(f64::MIN_POSITIVE);
    let looks = (passes + walks) / span_s * spent.elapsed_ns / 1e9;
    let mut round = Metrics::from([
        ("cpu_percent".into(), percent(spent.daemon_ns + spent.programs_ns)),
        ("cpu_percent_daemon".into(), percent(spent.daemon_ns)),
        ("cpu_percent_bpf".into(), percent(spent.programs_ns)),
        ("bpf_runs_per_s".into(), spent.program_runs * 1e9 / spent.elapsed_ns),
        ("machine_busy_percent".into(), spent.machine_busy_percent()),
        ("passes_per_s".into(), (passes + walks) / span_s),
        (
            "all_per_pass_us".into(),
            (spent.daemon_ns + spent.programs_ns) / 1e3 / looks,
        ),
        (
            "pass_us".into(),
            (after.passes.cpu_us - before.passes.cpu_us) as f64 / passes,
        ),
    ]);
    if walks > 0.0 {
        round.insert(
            "walk_us".into(),
            (after.walks.cpu_us - before.walks.cpu_us) as f64 / walks,
        );
    }
    round
}

/// The mean of each metric over the rounds, so that what happens once a minute counts, with the median and the
/// extremes beside it.
fn summarize(outcome: &mut Outcome, point: &str, rounds: &[Metrics]) {
    let of = |metric: &str| -> Vec<f64> { rounds.iter().filter_map(|round| round.get(metric).copied()).collect() };
    for metric in rounds.iter().flat_map(Metrics::keys).collect::<BTreeSet<_>>() {
        let values = of(metric);
        outcome.set(point, metric, mean(&values));
        for (name, percent) in [("min", 0.0), ("p50", 50.0), ("max", 100.0)] {
            outcome.set(point, &format!("{metric}_{name}"), percentile(&values, percent));
        }
    }
    // CPU time over CPU time: the daemon's whole cost, its walks and its programs in the senders included.
    let [ss, pass] = ["ss_tinp_cpu_ms", "all_per_pass_us"].map(|metric| mean(&of(metric)));
    outcome.set(
        point,
        "ss_over_pass",
        ss.zip(pass).map(|(ss_ms, pass_us)| ss_ms * 1e3 / pass_us),
    );
    for (what, metric, unit_s) in [
        ("pass", "all_per_pass_us", 1e-6),
        ("ss -tin", "ss_tin_cpu_ms", 1e-3),
        ("ss -tinp", "ss_tinp_cpu_ms", 1e-3),
    ] {
        let seconds = of(metric).into_iter().map(|value| value * unit_s).collect();
        outcome.samples.insert(format!("{point}/{what}"), seconds);
    }
}
