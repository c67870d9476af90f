// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rate limit of a rule: what all its flows together send, over TCP and UDP, from one socket and from many, before
//! each kind of queue. Every window of ten seconds counts, as the sender's device counts its bytes.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::air::STATION_DEVICE;
use crate::experiment::{Run, pause};
use crate::giveway::{Daemon, answers};
use crate::guest::Guest;
use crate::interrupt::wait_for;
use crate::link::wire::{RECEIVER_ADDRESS, Wire};
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::process::Process;
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Variant};
use crate::traffic::iperf3::Protocol;

pub const SCENARIO: Scenario = Scenario {
    name: "rate-limit",
    about: "a rule's rate limit over TCP and UDP, with one socket and with twenty",
    stations: None,
    seconds: 20,
    warmup_s: 3,
    parameters: &[],
    plan: &plan,
};

const LIMITS_MBIT: [f64; 3] = [0.5, 5.0, 50.0];
const SOCKETS: [u32; 2] = [1, 20];
const LINK_MBIT: f64 = 100.0;
/// Above or below the limit, in any window.
const TOLERANCE: f64 = 0.05;
const WINDOW_S: f64 = 10.0;
const LOOK_EVERY: Duration = Duration::from_millis(250);
const PORT: u16 = 5201;
const QUEUE_LIMIT: Duration = Duration::from_secs(10);

/// The queue of the link.
#[derive(Clone, Copy)]
struct LinkQueue {
    name: &'static str,
    /// Its plot's file, and title.
    plot: (&'static str, &'static str),
    backend: &'static str,
    /// Of the link, which the limit does not need.
    rate_mbit: Option<f64>,
    /// For what this machine's kernel may not have.
    guest: Option<Guest>,
}

const QUEUES: [LinkQueue; 3] = [
    LinkQueue {
        name: "htb",
        plot: (
            "rate-limit-htb",
            "What a rule's flows send together, beside its limit: before htb",
        ),
        backend: "htb",
        rate_mbit: Some(LINK_MBIT),
        guest: None,
    },
    LinkQueue {
        name: "qdisc",
        plot: (
            "rate-limit-qdisc",
            "What a rule's flows send together, beside its limit: before the BPF qdisc",
        ),
        backend: "qdisc",
        rate_mbit: Some(LINK_MBIT),
        guest: Some(Guest::VIRTUAL),
    },
    LinkQueue {
        name: "qdisc-unpaced",
        plot: (
            "rate-limit-qdisc-unpaced",
            "What a rule's flows send together, beside its limit: before the BPF qdisc, which knows no rate of the link",
        ),
        backend: "qdisc",
        rate_mbit: None,
        guest: Some(Guest::VIRTUAL),
    },
];

#[derive(Clone, Copy)]
struct Trial {
    queue: LinkQueue,
    protocol: Protocol,
    sockets: u32,
    limit_mbit: f64,
    warmup_s: f64,
    seconds: f64,
}

fn plan(parameters: &Parameters) -> Result<Plan> {
    let (warmup_s, seconds) = (parameters.count("warmup_s") as f64, parameters.count("seconds") as f64);
    let mut variants = Vec::new();
    let mut checks = Vec::new();
    let mut plots = Vec::new();
    for queue in QUEUES {
        let mut lines = Vec::new();
        for (protocol, word) in [(Protocol::Tcp, "tcp"), (Protocol::Udp, "udp")] {
            for sockets in SOCKETS {
                let line = format!("{}/{word}-{sockets}", queue.name);
                for limit_mbit in LIMITS_MBIT {
                    let trial = Trial {
                        queue,
                        protocol,
                        sockets,
                        limit_mbit,
                        warmup_s,
                        seconds,
                    };
                    let name = format!("{line}/{limit_mbit}");
                    checks.extend(holds(&name));
                    variants.push(trial.variant(name));
                }
                lines.push((
                    match (protocol, sockets) {
                        (Protocol::Tcp, 1) => "TCP, one socket",
                        (Protocol::Tcp, _) => "TCP, twenty sockets",
                        (Protocol::Udp, 1) => "UDP, one socket",
                        (Protocol::Udp, _) => "UDP, twenty sockets",
                    },
                    line,
                ));
            }
        }
        let (file, title) = queue.plot;
        plots.push(Plot::Sweep {
            file,
            title,
            x: "limit, Mbit/s",
            y: ("goodput_of_limit", "sent, of the limit"),
            lines,
            levels: Vec::new(),
        });
    }
    Ok(Plan {
        variants,
        checks,
        plots,
        columns: "window_min_of_limit window_max_of_limit goodput_of_limit",
    })
}

impl Trial {
    fn variant(self, name: String) -> Variant {
        let seconds = self.warmup_s + self.seconds + 2.0;
        Variant::new(name, self.queue.guest, seconds, move |run| send(run, self))
    }
}

fn holds(name: &str) -> [Check; 2] {
    let near = Relation::Between(1.0 - TOLERANCE, 1.0 + TOLERANCE);
    ["window_min_of_limit", "window_max_of_limit"].map(|metric| Check::metric(name, metric, near).always())
}

/// A flood under a rule with a limit.
fn send(run: &Run, trial: Trial) -> Result<Outcome> {
    let wire = Wire::create()?;
    let mut daemon = Daemon::launch(&wire.sender, &configuration(trial), &run.file(""))?;
    daemon.wait_until_up(&wire.sender)?;
    wait_for("giveway's queue", QUEUE_LIMIT, || {
        let queue = answers::status(&wire.sender)?.network.queue;
        Ok(queue.in_force.map(drop))
    })?;
    let _server = serve(&wire, PORT)?;
    let _client = iperf3(&wire, false, &client(trial))?;
    run.progress.tick("sending");
    pause(trial.warmup_s)?;
    let mut outcome = Outcome::default();
    let sent = sample(&wire, trial.seconds)?;
    run.keep(&sent)?;
    let (seconds, bytes) = *sent.last().context("nothing was counted")?;
    let of_limit = |mbit: f64| mbit / trial.limit_mbit;
    let rates = windows(&sent, WINDOW_S.min(trial.seconds - 0.5));
    let extreme = |pick: fn(f64, f64) -> f64| rates.iter().copied().reduce(pick).map(of_limit);
    outcome.set(run.name, "window_min_of_limit", extreme(f64::min));
    outcome.set(run.name, "window_max_of_limit", extreme(f64::max));
    outcome.set(run.name, "goodput_of_limit", of_limit(bytes * 8e-6 / seconds));
    daemon.stop()?;
    Ok(outcome)
}

fn configuration(trial: Trial) -> Value {
    let link = trial.queue.rate_mbit.map(|rate_mbit| json!({"rate_mbit": rate_mbit}));
    json!({
        "cap": {"policy": "none"},
        "link": link.unwrap_or_else(|| json!({})),
        "queue": {"backend": trial.queue.backend},
        "rule": [{"address": RECEIVER_ADDRESS, "class": "bulk", "rate_limit_mbit": trial.limit_mbit}],
    })
}

fn client(trial: Trial) -> String {
    // Longer than it is looked at: it is ended.
    let seconds = trial.warmup_s + trial.seconds + 60.0;
    let sockets = trial.sockets;
    let udp = match trial.protocol {
        Protocol::Tcp => "",
        Protocol::Udp => " --udp --bitrate 0 --length 1400",
    };
    format!("--client {RECEIVER_ADDRESS} --port {PORT} --parallel {sockets} --time {seconds}{udp}")
}

fn serve(wire: &Wire, port: u16) -> Result<Process> {
    let server = iperf3(wire, true, &format!("--server --port {port}"))?;
    wire.receiver.wait_until_listening(port)?;
    Ok(server)
}

fn iperf3(wire: &Wire, is_server: bool, words: &str) -> Result<Process> {
    let at = if is_server { &wire.receiver } else { &wire.sender };
    let mut command = at.command("iperf3")?;
    command.args(words.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Process::spawn(command)
}

/// Seconds and bytes since the first look.
fn sample(wire: &Wire, seconds: f64) -> Result<Vec<(f64, f64)>> {
    let (began, first) = (Instant::now(), device(wire, "bytes")?);
    let mut samples = vec![(0.0, 0.0)];
    while began.elapsed().as_secs_f64() < seconds {
        pause(LOOK_EVERY.as_secs_f64())?;
        let bytes = device(wire, "bytes")? - first;
        samples.push((began.elapsed().as_secs_f64(), bytes));
    }
    Ok(samples)
}

/// What the sender's device has sent, in bytes or packets.
fn device(wire: &Wire, what: &str) -> Result<f64> {
    let shown = wire
        .sender
        .run("ip", &format!("-json -statistics link show dev {STATION_DEVICE}"))?;
    let shown: Value = serde_json::from_slice(&shown.stdout)?;
    let count = shown.pointer(&format!("/0/stats64/tx/{what}")).and_then(Value::as_f64);
    count.context("the device counts nothing")
}

/// Mbit/s of every window of at least this length between two samples.
pub fn windows(samples: &[(f64, f64)], length_s: f64) -> Vec<f64> {
    let rate = |(begin, before): &(f64, f64)| {
        let (end, after) = samples.iter().find(|(at, _)| at - begin >= length_s)?;
        Some((after - before) * 8e-6 / (end - begin))
    };
    samples.iter().filter_map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_is_looked_at() {
        // A megabyte in the first second, then nothing.
        let samples = [(0.0, 0.0), (1.0, 1e6), (2.0, 1e6), (3.0, 1e6)];
        assert_eq!(windows(&samples, 2.0), [4.0, 0.0]);
    }
}
