// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that only computes, while a transfer of the same device wants the link and the one processor.
//! In: the uplink's shape, how much is computed and how often. Out: how long it took, and what an upload got while it
//! ran and between, or a download in all. Every run is kept as JSON.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;

use super::Run;
use super::foreground::{pause, start_daemon};
use crate::interrupt::{pause_until, wait_for};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::process::{Process, run as finish};
use crate::scenario::foreground::{Background, Gate};
use crate::statistics::{mean, percentile};
use crate::traffic::http::{FarEnd, start_upload};
use crate::traffic::work::Work;
use crate::uplink::{DEVICE_ADDRESS, Uplink};

const PATIENCE: Duration = Duration::from_secs(10);
const DATAGRAM_BYTES: f64 = 1_400.0;

/// One run of the program, and the pause before it.
#[derive(Serialize)]
struct Measured {
    seconds: f64,
    pause_s: f64,
    background_bytes: u64,
    background_pause_bytes: u64,
}

pub fn run(gate: &Gate, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let label = name.replace('/', "-");
    let uplink = Uplink::raise(&gate.shape)?;
    let daemon = start_daemon(&gate.shape, &uplink.device, raw, &label)?;
    let mut far = FarEnd::start(&uplink.far)?;
    let mut work = Work::start(&uplink.device)?;
    let background = match gate.background {
        None => vec![],
        Some(Background::Upload) => vec![start_upload(&uplink.device, "cubic")?],
        Some(Background::Download) => start_download(&uplink)?,
    };
    run.progress.tick("warming up");
    pause_until(Instant::now() + Duration::from_secs_f64(gate.warmup_s))?;

    let (begun, received) = (Instant::now(), datagrams(&uplink.device)?);
    let mut random = ChaCha8Rng::seed_from_u64(run.seed);
    let mut measured = Vec::new();
    for repetition in 1..=gate.repetitions {
        run.progress.tick(&format!("run {repetition} of {}", gate.repetitions));
        let (begun, received) = (Instant::now(), far.received_bytes()?);
        pause(&mut random)?;
        let (pause_s, before) = (begun.elapsed().as_secs_f64(), far.received_bytes()?);
        let seconds = work.run(gate.steps)?;
        measured.push(Measured {
            seconds,
            pause_s,
            background_bytes: far.received_bytes()? - before,
            background_pause_bytes: before - received,
        });
    }
    let file = raw.join(format!("{label}.json"));
    std::fs::write(&file, serde_json::to_string(&measured)?)
        .with_context(|| format!("cannot write {}", file.display()))?;
    let mut outcome = summarize(name, gate, &measured);
    if gate.background == Some(Background::Download) {
        let received = datagrams(&uplink.device)? - received;
        let mbit = received * DATAGRAM_BYTES * 8e-6 / begun.elapsed().as_secs_f64();
        outcome.set(name, "background_goodput_mbit", mbit);
    }
    drop(background);
    if let Some(mut daemon) = daemon {
        daemon.stop()?;
    }
    Ok(outcome)
}

/// Datagrams marked LE, half of the link, from a far end that the program cannot slow down, to a reader at nice 19.
fn start_download(uplink: &Uplink) -> Result<Vec<Process>> {
    let mut reader = uplink.device.command("nice")?;
    reader.args(["-n", "19", "iperf3", "--server"]).stdout(Stdio::null());
    let reader = Process::spawn(reader)?;
    wait_for("the download's reader", PATIENCE, || {
        let mut sockets = uplink.device.command("ss")?;
        sockets.args(["-Hltn", "sport = :5201"]);
        Ok((!finish(sockets)?.stdout.is_empty()).then_some(()))
    })?;
    let mut sender = uplink.far.command("chrt")?;
    sender.args(["--fifo", "50", "iperf3", "--udp", "--client", DEVICE_ADDRESS]);
    sender
        .args(["--bitrate", "50M", "--length", "1400", "--tos", "4", "--time", "3600"])
        .stdout(Stdio::null());
    Ok(vec![Process::spawn(sender)?, reader])
}

/// What the namespace's UDP has given to its readers.
fn datagrams(device: &Namespace) -> Result<f64> {
    let mut show = device.command("cat")?;
    show.arg("/proc/net/snmp");
    let said = String::from_utf8(finish(show)?.stdout)?;
    let values = said.lines().filter(|line| line.starts_with("Udp:")).nth(1);
    let received = values.and_then(|line| line.split_whitespace().nth(1));
    received
        .context("/proc/net/snmp has no line of UDP")?
        .parse()
        .context("/proc/net/snmp is not readable")
}

fn summarize(name: &str, gate: &Gate, measured: &[Measured]) -> Outcome {
    let mut outcome = Outcome::default();
    let seconds: Vec<_> = measured.iter().map(|m| m.seconds).collect();
    outcome.set(name, "run_time_mean_s", mean(&seconds));
    outcome.set(name, "run_time_max_s", percentile(&seconds, 100.0));
    if gate.background == Some(Background::Upload) {
        let mbit = |bytes: fn(&Measured) -> u64, seconds: fn(&Measured) -> f64| {
            let bytes: u64 = measured.iter().map(bytes).sum();
            bytes as f64 * 8e-6 / measured.iter().map(seconds).sum::<f64>()
        };
        let beside = mbit(|m| m.background_bytes, |m| m.seconds);
        let between = mbit(|m| m.background_pause_bytes, |m| m.pause_s);
        outcome.set(name, "background_goodput_mbit", beside);
        outcome.set(name, "background_between_mbit", between);
    }
    outcome.samples.insert(name.into(), seconds);
    outcome
}
