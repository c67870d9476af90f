// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP as fast as the machine is, where no link holds it back: what each queue leaves of the throughput, and takes of the
//! processor. And what is lost when giveway's queue comes in place of the kernel's, since something is to be held.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::air::STATION_DEVICE;
use crate::experiment::{Run, pause};
use crate::giveway::{Daemon, answers};
use crate::guest::Guest;
use crate::interrupt::wait_for;
use crate::link::wire::{RECEIVER_ADDRESS, Wire};
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::proc::numbers;
use crate::process::Process;
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};

pub const SCENARIO: Scenario = Scenario {
    name: "line-rate",
    about: "throughput and processor time with each queue where nothing holds the link back",
    stations: None,
    seconds: 2,
    warmup_s: 1,
    parameters: &[],
    plan: &plan,
};

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

fn plan(parameters: &Parameters) -> Result<Plan> {
    let (warmup_s, seconds) = (parameters.count("warmup_s") as f64, parameters.count("seconds") as f64);
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
    let mut checks: Vec<_> = FLOWS
        .iter()
        .map(|flows| {
            let [ours, other] = ["giveway", "fq_codel"].map(|queue| format!("{queue}/{flows}"));
            let name = format!("giveway over fq_codel, {flows} flows");
            Check::ratio(name, &ours, &other, "mbit", Relation::AtLeast(0.97)).always()
        })
        .collect();
    checks.push(Check::metric("comes", "comes_ms", Relation::AtMost(300.0)).always());
    Ok(Plan {
        variants,
        checks,
        plots: Vec::new(),
        columns: "mbit busy_percent busy_ns_per_kb comes_ms sent lost",
    })
}

fn configuration(stands: Stands) -> Value {
    match stands {
        Stands::Giveway => json!({"cap": {"policy": "none"}, "queue": {"backend": "qdisc"}}),
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
    let _server = serve(&wire, PORT, None)?;
    // Longer than it is looked at: it is ended.
    let length = warmup_s + seconds + 60.0;
    let words = format!("--client {RECEIVER_ADDRESS} --port {PORT} --parallel {flows} --time {length}");
    let client = iperf3(&wire, false, &words, None)?;
    run.progress.tick("sending");
    pause(warmup_s)?;
    let (began, before, busy_before) = (Instant::now(), sent_bytes(&wire)?, busy_ns()?);
    pause(seconds)?;
    let (elapsed_s, bytes, busy) = (
        began.elapsed().as_secs_f64(),
        sent_bytes(&wire)? - before,
        busy_ns()? - busy_before,
    );
    let mut outcome = Outcome::default();
    outcome.set(run.name, "mbit", bytes * 8e-6 / elapsed_s);
    outcome.set(run.name, "busy_percent", busy * 1e-7 / elapsed_s);
    outcome.set(run.name, "busy_ns_per_kb", busy / (bytes / 1e3));
    drop(client);
    if let Some(daemon) = &mut daemon {
        daemon.stop()?;
    }
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

fn sent_bytes(wire: &Wire) -> Result<f64> {
    let shown = wire
        .sender
        .run("ip", &format!("-json -statistics link show dev {STATION_DEVICE}"))?;
    let shown: Value = serde_json::from_slice(&shown.stdout)?;
    let count = shown.pointer("/0/stats64/tx/bytes").and_then(Value::as_f64);
    count.context("the device counts nothing")
}

#[derive(Deserialize)]
struct Report {
    end: End,
}

#[derive(Deserialize)]
struct End {
    sum: Sum,
}

#[derive(Deserialize)]
struct Sum {
    lost_packets: f64,
    packets: f64,
}

/// Datagrams without a break, 10,000 a second; amid them one of background.
fn come(run: &Run) -> Result<Outcome> {
    let wire = Wire::create()?;
    let mut daemon = Daemon::launch(&wire.sender, &configuration(Stands::Watching), &run.file(""))?;
    daemon.wait_until_watching(&wire.sender)?;
    let file = run.file("-received.json");
    let mut plain = serve(&wire, PORT, Some(file.clone()))?;
    let _background = serve(&wire, BACKGROUND_PORT, None)?;
    let words = format!("--client {RECEIVER_ADDRESS} --port {PORT} --udp --length 1000 --bitrate 80M --time 4");
    let _client = iperf3(&wire, false, &words, None)?;
    pause(1.5)?;
    // DSCP LE: background by its own mark.
    let words = format!(
        "--client {RECEIVER_ADDRESS} --port {BACKGROUND_PORT} --udp --tos 4 --length 100 --bitrate 80K --time 1"
    );
    let _low = iperf3(&wire, false, &words, None)?;
    let marked = || {
        let shown = wire.sender.run("tc", &format!("qdisc show dev {STATION_DEVICE}"))?;
        Ok(String::from_utf8_lossy(&shown.stdout)
            .contains(" 6777: ")
            .then(Instant::now))
    };
    let began = Instant::now();
    let came = wait_for("giveway's queue", COMES_WITHIN, marked)?;
    wait_for("iperf3 to end", ENDS_WITHIN, || plain.exit())?;
    let report: Report = serde_json::from_slice(&std::fs::read(&file)?).context("iperf3's report is not readable")?;
    let status = answers::status(&wire.sender)?;
    let mut outcome = Outcome::default();
    // With the time that the sender takes to start.
    outcome.set(run.name, "comes_ms", (came - began).as_secs_f64() * 1e3);
    outcome.set(run.name, "sent", report.end.sum.packets);
    outcome.set(run.name, "lost", report.end.sum.lost_packets);
    let in_force = status.network.queue.in_force.is_some();
    outcome.set(run.name, "stays", f64::from(in_force));
    daemon.stop()?;
    Ok(outcome)
}

fn serve(wire: &Wire, port: u16, report: Option<PathBuf>) -> Result<Process> {
    let words = format!("--server --one-off --json --port {port}");
    let server = iperf3(wire, true, &words, report)?;
    wire.receiver.wait_until_listening(port)?;
    Ok(server)
}

fn iperf3(wire: &Wire, is_server: bool, words: &str, report: Option<PathBuf>) -> Result<Process> {
    let at = if is_server { &wire.receiver } else { &wire.sender };
    let mut command = at.command("iperf3")?;
    command.args(words.split_whitespace());
    let out = report.map(std::fs::File::create).transpose()?;
    command
        .stdin(Stdio::null())
        .stdout(out.map_or_else(Stdio::null, Stdio::from))
        .stderr(Stdio::null());
    Process::spawn(command)
}
