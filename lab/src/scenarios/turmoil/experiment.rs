// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random operations on giveway's queue while hostile traffic is sent; then, what is left of all that.
//! Input: how long, a seed. Output: operations and packets by kind, packets and BPF objects that are still in the
//! kernel when everything has ended, whether the network works. The host counts the warnings in the kernel's log.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::leaks::Holdings;
use super::operations::{Happened, OPERATIONS, Operator};
use super::stage::TurmoilTestbed;
use crate::channel::STATION_DEVICE;
use crate::experiment::Run;
use crate::giveway::Daemon;
use crate::interrupt::{pause_until, wait_for};
use crate::link::wire::queue_configuration;
use crate::outcome::Outcome;
use crate::process::{Process, run as run_command};
use crate::traffic::hostile::sender::FAR_V4;

/// Each CPU keeps some packets at hand for its next receptions (64, in the kernel's NAPI_SKB_CACHE_SIZE), which
/// nothing makes it give back.
const PACKETS_AT_HAND: u64 = 2 * 64;
/// Until RCU has freed what was given up, with what the kernel's workers still have to do; long on a slow machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(120);
const WARM_UP: Duration = Duration::from_secs(3);
const TRANSFER_BYTES: u64 = 5_000_000;
const TRANSFER_PORT: u16 = 5_300;
const UP_WITHIN: Duration = Duration::from_secs(90);

/// Random operations on giveway and its link while hostile traffic is sent.
pub fn run(run: &Run, seconds: f64) -> Result<Outcome> {
    let (name, raw) = (run.name, run.raw);
    if !crate::guest::is_inside() {
        bail!("the turmoil counts what the whole kernel holds: it runs in a guest only");
    }
    warm_up(raw)?;
    let before = Holdings::count()?;
    let mut stage = TurmoilTestbed::create(raw, 2)?;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut operator = Operator::new(&mut stage, run.seed, raw);
    while Instant::now() < end {
        let operation = operator.next()?;
        run.progress.tick(operation);
    }
    let happened = operator.finish()?;
    let sent = stage.sent()?;
    drop(stage);

    let mut outcome = Outcome::default();
    describe(&mut outcome, name, &happened, &sent)?;
    let ended = Instant::now();
    let left = settled(&before)?;
    outcome.set(name, "settled_after_s", ended.elapsed().as_secs_f64());
    let held = left.packets.saturating_sub(before.packets);
    let beyond = if held > PACKETS_AT_HAND { held } else { 0 };
    outcome.set(name, "packets_held_before", before.packets as f64);
    outcome.set(name, "packets_held_after", left.packets as f64);
    outcome.set(name, "leaked_packets", (beyond + happened.miscounted_packets) as f64);
    let objects = left.objects_since(&before);
    objects
        .iter()
        .for_each(|object| eprintln!("still in the kernel: {object:?}"));
    outcome.set(name, "leaked_maps_programs", objects.len() as f64);
    let works = works(raw).inspect_err(|error| eprintln!("the network does not work: {error:#}"));
    outcome.set(name, "network_works", f64::from(u8::from(works.is_ok())));
    Ok(outcome)
}

/// Once through everything, so that modules are loaded and the kernel's own stocks filled before anything is counted.
fn warm_up(raw: &Path) -> Result<()> {
    let mut stage = TurmoilTestbed::create(raw, 2)?;
    stage.start_senders(0)?;
    let mut daemon = start_daemon(&stage, raw, 100)?;
    pause_until(Instant::now() + WARM_UP)?;
    daemon.stop()?;
    stage.stop_senders();
    Ok(())
}

/// A daemon whose qdisc is at the root.
fn start_daemon(stage: &TurmoilTestbed, raw: &Path, rate_mbit: u64) -> Result<Daemon> {
    let configuration = queue_configuration(rate_mbit, true);
    let daemon = Daemon::raise(&stage.near, &configuration, &raw.join("plain"))?;
    wait_for("giveway's qdisc", UP_WITHIN, || Ok(stage.our_qdisc()))?;
    Ok(daemon)
}

/// What the kernel holds when it no longer gets less, or is back where it was.
fn settled(before: &Holdings) -> Result<Holdings> {
    let deadline = Instant::now() + SETTLES_WITHIN;
    loop {
        let now = Holdings::count()?;
        let is_back = now.packets <= before.packets + PACKETS_AT_HAND && now.objects_since(before).is_empty();
        if is_back || Instant::now() > deadline {
            return Ok(now);
        }
        pause_until(Instant::now() + Duration::from_millis(200))?;
    }
}

/// A new link with giveway on it carries pings and a transfer.
fn works(raw: &Path) -> Result<()> {
    let stage = TurmoilTestbed::create(raw, 1)?;
    let mut daemon = start_daemon(&stage, raw, 50)?;
    stage.near.run("ping", &format!("-c 5 -W 5 {FAR_V4}"))?;
    let mut server = stage.far.command("sh")?;
    server.args(["-c", &format!("nc -l -p {TRANSFER_PORT} | wc -c")]);
    // An input that ends would end the connection from its side.
    server.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = Process::spawn(server)?;
    let send = format!("head -c {TRANSFER_BYTES} /dev/zero | nc {FAR_V4} {TRANSFER_PORT}");
    wait_for("a transfer", UP_WITHIN, || {
        let mut client = stage.near.command("sh")?;
        client.args(["-c", &send]);
        // The server may not listen yet.
        Ok(run_command(client).ok())
    })?;
    let mut received = String::new();
    let counted = server.pipes().stdout.take().context("the receiver has no output")?;
    BufReader::new(counted).read_line(&mut received)?;
    if received.trim().parse() != Ok(TRANSFER_BYTES) {
        bail!("of {TRANSFER_BYTES} bytes {} arrived", received.trim());
    }
    if stage.our_qdisc().is_none() {
        bail!("giveway's qdisc was not at {STATION_DEVICE} meanwhile");
    }
    daemon.stop()
}

fn describe(outcome: &mut Outcome, name: &str, happened: &Happened, sent: &BTreeMap<String, f64>) -> Result<()> {
    let counts = OPERATIONS.map(|(operation, ..)| {
        let count = happened.operations.get(operation).copied().unwrap_or(0) as f64;
        outcome.set(name, &format!("operations_{operation}"), count);
        count
    });
    let all: f64 = counts.iter().sum();
    outcome.set(name, "operations", all);
    outcome.set(name, "operations_rarest", counts.iter().copied().reduce(f64::min));
    outcome.set(name, "ours_percent", 100.0 * happened.found_ours as f64 / all);
    outcome.set_fields(name, happened)?;
    for (what, count) in sent {
        outcome.set(name, what, *count);
    }
    let of = |outcome: &str| -> f64 {
        let is_of = |what: &&String| what.starts_with(outcome);
        sent.keys().filter(is_of).map(|what| sent[what]).sum()
    };
    outcome.set(name, "hostile_frames", of("sent_"));
    Ok(())
}
