// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP as fast as the machine is, where no link holds it back: what each queue leaves of the throughput, and takes of the
//! processor. And what is lost when giveway's queue comes in place of the kernel's, since something is to be held.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::iperf3;
use super::passed::counted;
use crate::channel::STATION_DEVICE;
use crate::experiment::{Run, pause};
use crate::giveway::{Daemon, answers};
use crate::guest::Guest;
use crate::interrupt::wait_for;
use crate::link::wire::Wire;
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::proc::numbers;
use crate::scenario::{Check, Relation, Variant};

const PORT: u16 = 5_640;
const BACKGROUND_PORT: u16 = 5_641;
const FLOWS: [u32; 2] = [1, 16];
/// Of USER_HZ, in which /proc/stat counts.
const TICK_NS: f64 = 1e7;
const COMES_WITHIN: Duration = Duration::from_secs(10);
const ENDS_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
enum Stands {
    Nothing,
    Kernel(&'static str),
    /// Without a known rate: nothing is to be held.
    Watching,
    /// All the same.
    Giveway,
}

const QUEUES: [(&str, Stands); 6] = [
    ("noqueue", Stands::Nothing),
    ("fq_codel", Stands::Kernel("fq_codel")),
    ("fq", Stands::Kernel("fq")),
    ("cake", Stands::Kernel("cake bandwidth 0")),
    ("giveway", Stands::Watching),
    ("giveway-queue", Stands::Giveway),
];

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let (warmup_s, seconds) = (parameters.seconds("warmup_s"), parameters.seconds("seconds"));
    let mut variants = Vec::new();
    for (queue, stands) in QUEUES {
        for flows in FLOWS {
            let send = move |run: &Run| send(run, stands, flows, warmup_s, seconds);
            let name = format!("{queue}/{flows}");
            // A processor that is never idle takes ten to thirty times as long as a real one.
            let estimated_s = 30.0 * (warmup_s + seconds);
            variants.push(Variant::new(name, Some(Guest::VIRTUAL), estimated_s, send));
        }
    }
    let two = Guest {
        cpus: 2,
        ..Guest::VIRTUAL
    };
    variants.push(Variant::new("comes", Some(two), 60.0, come));
    Ok(variants)
}

pub fn bounds() -> Vec<Check> {
    let beside = |flows| {
        let [ours, other] = ["giveway", "fq_codel"].map(|queue| format!("{queue}/{flows}"));
        let name = format!("giveway over fq_codel, {flows} flows");
        Check::ratio(name, &ours, &other, "mbit", Relation::AtLeast(0.97)).always()
    };
    let comes = Check::metric("comes", "comes_ms", Relation::AtMost(300.0)).always();
    FLOWS.into_iter().map(beside).chain([comes]).collect()
}

fn configuration(stands: Stands) -> Value {
    match stands {
        Stands::Giveway => json!({"cap": {"policy": "none"}, "queue": {"backend": "bpf"}}),
        _ => json!({"cap": {"policy": "none"}}),
    }
}

fn send(run: &Run, stands: Stands, flows: u32, warmup_s: f64, seconds: f64) -> Result<Outcome> {
    let wire = Wire::create()?;
    let mut daemon = match stands {
        Stands::Nothing => None,
        Stands::Kernel(kind) => {
            wire.set_queue(&[format!("root handle 1: {kind}")])?;
            None
        }
        Stands::Watching | Stands::Giveway => {
            let mut daemon = Daemon::launch(&wire.sender, &configuration(stands), &run.file(""))?;
            match stands {
                Stands::Giveway => daemon.wait_until_queueing(&wire.sender)?,
                _ => daemon.wait_until_watching(&wire.sender)?,
            }
            Some(daemon)
        }
    };
    let _server = iperf3::serve(&wire, PORT, None)?;
    // Longer than it is looked at: it is ended.
    let length_s = warmup_s + seconds + 60.0;
    let client = iperf3::send(&wire, PORT, length_s, &format!("--parallel {flows}"))?;
    run.progress.tick("sending");
    pause(warmup_s)?;
    let sent_bytes = || counted(&wire.sender, STATION_DEVICE, "tx/bytes");
    let (began, before, busy_before) = (Instant::now(), sent_bytes()?, busy_ns()?);
    pause(seconds)?;
    let (elapsed_s, bytes, busy) = (
        began.elapsed().as_secs_f64(),
        sent_bytes()? - before,
        busy_ns()? - busy_before,
    );
    let mut outcome = Outcome::default();
    outcome.set(run.name, "mbit", bytes * 8e-6 / elapsed_s);
    outcome.set(run.name, "busy_percent", busy * 1e-7 / elapsed_s);
    outcome.set(run.name, "busy_ns_per_kb", busy / (bytes / 1e3));
    drop(client);
    daemon.as_mut().map_or(Ok(()), Daemon::stop)?;
    Ok(outcome)
}

/// All processors'.
fn busy_ns() -> Result<f64> {
    let ticks = numbers("/proc/stat", "cpu ")?;
    let [user, nice, system, _, _, irq, softirq, ..] = ticks[..] else {
        anyhow::bail!("/proc/stat is not readable");
    };
    Ok((user + nice + system + irq + softirq) * TICK_NS)
}

/// Datagrams without a break, 10,000 a second; amid them one of background.
fn come(run: &Run) -> Result<Outcome> {
    let wire = Wire::create()?;
    let mut daemon = Daemon::launch(&wire.sender, &configuration(Stands::Watching), &run.file(""))?;
    daemon.wait_until_watching(&wire.sender)?;
    let file = run.file("-received.json");
    let mut plain = iperf3::serve(&wire, PORT, Some(file.clone()))?;
    let _background = iperf3::serve(&wire, BACKGROUND_PORT, None)?;
    let _client = iperf3::send(&wire, PORT, 4.0, "--udp --length 1000 --bitrate 80M")?;
    pause(1.5)?;
    // DSCP LE: background by its own mark.
    let _low = iperf3::send(&wire, BACKGROUND_PORT, 1.0, "--udp --tos 4 --length 100 --bitrate 80K")?;
    let marked = || {
        let shown = wire.sender.run("tc", &format!("qdisc show dev {STATION_DEVICE}"))?;
        Ok(String::from_utf8_lossy(&shown.stdout)
            .contains(" 6777: ")
            .then(Instant::now))
    };
    let began = Instant::now();
    let came = wait_for("giveway's queue", COMES_WITHIN, marked)?;
    wait_for("iperf3 to end", ENDS_WITHIN, || plain.exit())?;
    let report: Value = serde_json::from_slice(&std::fs::read(&file)?).context("iperf3's report is not readable")?;
    let status = answers::status(&wire.sender)?;
    let mut outcome = Outcome::default();
    // With the time that the sender takes to start.
    outcome.set(run.name, "comes_ms", (came - began).as_secs_f64() * 1e3);
    outcome.set(run.name, "sent", report["end"]["sum"]["packets"].as_f64());
    outcome.set(run.name, "lost", report["end"]["sum"]["lost_packets"].as_f64());
    let installed = status.network.queue.installed.is_some();
    outcome.set(run.name, "stays", f64::from(installed));
    daemon.stop()?;
    Ok(outcome)
}
