// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limit of a rule for what its flows receive, in one and in many connections: what leaves the limit's device in every
//! window of ten seconds, how the connections share it, and what a new one gets before it is known.
//!
//! On this machine the round trip is that of a wire without a delay; with one, which takes netem, in the guest.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use giveway_engine::network::limit_use::LimitUse;
use serde_json::{Value, json};

use super::rate_limit::windows;
use crate::experiment::{Run, pause};
use crate::giveway::{Daemon, answers};
use crate::guest::Guest;
use crate::interrupt::wait_for;
use crate::link::wire::{SENDER_ADDRESS, Wire};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Variant};
use crate::statistics::jain;
use crate::traffic::endless::{start_sender, start_sink};
use crate::uplink::{DEVICE_ADDRESS, PACKET_BYTES, Queue, Shape, Uplink};

pub const SCENARIO: Scenario = Scenario {
    name: "download-limit",
    about: "a rule's limit for what its flows receive, with 1, 4 and 16 connections",
    stations: None,
    seconds: 30,
    warmup_s: 10,
    parameters: &[],
    plan,
};

const LIMITS_MBIT: [f64; 4] = [0.5, 2.5, 20.0, 200.0];
/// An emulated processor passes no more on.
const GUEST_LIMITS_MBIT: [f64; 3] = [0.5, 2.5, 20.0];
const CONNECTIONS: [usize; 3] = [1, 4, 16];
const RTTS_MS: [u64; 2] = [40, 200];
/// Far above every limit.
const LINK_KBIT: u64 = 1_000_000;
const WINDOW_S: f64 = 10.0;
const TOLERANCE: f64 = 0.05;
/// Where the queue inside a limit is fair.
const JAIN: f64 = 0.9;
/// Of the limit, in the first second of a connection.
const FIRST_SECOND: f64 = 1.5;
const PORT: u16 = 5301;
const DEVICE: &str = "giveway-down";
const LOOK_EVERY: Duration = Duration::from_millis(250);
const PUT_UP_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Copy)]
struct Trial {
    limit_mbit: f64,
    connections: usize,
    /// None: a wire on this machine.
    rtt_ms: Option<u64>,
    warmup_s: f64,
    seconds: f64,
}

/// Where what is limited arrives, and where it comes from.
enum Path {
    Wire(Wire),
    Delayed(Uplink),
}

fn plan(parameters: &Parameters) -> Result<Plan> {
    let (warmup_s, seconds) = (parameters.count("warmup_s") as f64, parameters.count("seconds") as f64);
    let (mut variants, mut checks, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    let places = [("host".to_owned(), None, &LIMITS_MBIT[..])];
    let guests = RTTS_MS.map(|rtt_ms| (format!("guest-{rtt_ms}ms"), Some(rtt_ms), &GUEST_LIMITS_MBIT[..]));
    for (place, rtt_ms, limits) in places.into_iter().chain(guests) {
        for connections in CONNECTIONS {
            for &limit_mbit in limits {
                let name = format!("{place}/{connections}/{limit_mbit}");
                let trial = Trial {
                    limit_mbit,
                    connections,
                    rtt_ms,
                    warmup_s,
                    seconds,
                };
                checks.extend(trial.checks(&name));
                variants.push(trial.variant(name));
            }
            if rtt_ms.is_none() {
                let label = ["1 connection", "4 connections", "16 connections"];
                let at = CONNECTIONS.iter().position(|count| *count == connections);
                lines.push((label[at.unwrap_or_default()], format!("{place}/{connections}")));
            }
        }
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![Plot::Sweep {
            file: "download-limit",
            title: "What a rule's flows receive together, beside its limit",
            x: "limit, Mbit/s",
            y: ("passed_of_limit", "received, of the limit"),
            lines,
            levels: Vec::new(),
        }],
        columns: "window_min_of_limit window_max_of_limit passed_of_limit first_second_of_limit jain",
    })
}

impl Trial {
    fn checks(&self, name: &str) -> Vec<Check> {
        let near = Relation::Between(1.0 - TOLERANCE, 1.0 + TOLERANCE);
        let mut checks: Vec<Check> = ["window_min_of_limit", "window_max_of_limit"]
            .map(|metric| Check::metric(name, metric, near).always())
            .into();
        let first = Check::metric(name, "first_second_of_limit", Relation::AtMost(FIRST_SECOND));
        checks.push(first.always());
        // Eight queues chosen by a hash are fair only by chance: wanted, and reported.
        if self.connections > 1 {
            checks.push(Check::metric(name, "jain", Relation::AtLeast(JAIN)).goal());
        }
        checks
    }

    fn variant(self, name: String) -> Variant {
        let guest = self.rtt_ms.map(|_| Guest::VIRTUAL);
        let seconds = self.warmup_s + self.seconds + 3.0;
        Variant::new(name, guest, seconds, move |run| receive(run, self))
    }

    fn path(&self) -> Result<Path> {
        let Some(rtt_ms) = self.rtt_ms else {
            return Ok(Path::Wire(Wire::create()?));
        };
        let shape = Shape {
            up_kbit: LINK_KBIT,
            down_kbit: LINK_KBIT,
            rtt_ms,
            queue: Queue::Fifo,
            driver_bytes: PACKET_BYTES,
        };
        Ok(Path::Delayed(Uplink::raise(&shape)?))
    }
}

impl Path {
    fn device(&self) -> (&Namespace, &'static str) {
        match self {
            Self::Wire(wire) => (&wire.sender, SENDER_ADDRESS),
            Self::Delayed(uplink) => (&uplink.device, DEVICE_ADDRESS),
        }
    }

    fn far(&self) -> &Namespace {
        match self {
            Self::Wire(wire) => &wire.receiver,
            Self::Delayed(uplink) => &uplink.far,
        }
    }
}

/// Downloads under a rule that was there before them.
fn receive(run: &Run, trial: Trial) -> Result<Outcome> {
    let path = trial.path()?;
    let (device, address) = path.device();
    let configuration = json!({
        "cap": {"policy": "none"},
        "rule": [{"local_port": PORT, "class": "standard", "download_limit_mbit": trial.limit_mbit}],
    });
    let mut daemon = Daemon::launch(device, &configuration, &run.file(""))?;
    daemon.wait_until_up(device)?;
    wait_for("the limit's device", PUT_UP_WITHIN, || {
        let downloads = answers::status(device)?.network.downloads;
        Ok((!downloads.links.is_empty()).then_some(()))
    })?;
    let _sink = start_sink(device, &[PORT])?;
    run.progress.tick("downloading");
    let first = start_sender(path.far(), address, PORT, "cubic")?;
    pause(1.0)?;
    let first_second_mbit = received_bytes(device)?.iter().sum::<u64>() as f64 * 8e-6;
    let others = (1..trial.connections).map(|_| start_sender(path.far(), address, PORT, "cubic"));
    let _senders: Vec<_> = others.chain([Ok(first)]).collect::<Result<_>>()?;
    pause(trial.warmup_s)?;
    let before = received_bytes(device)?;
    let passed = sample(device, trial.seconds)?;
    let after = received_bytes(device)?;
    run.keep(&passed)?;
    let (seconds, bytes) = *passed.last().context("nothing was counted")?;
    let of_limit = |mbit: f64| mbit / trial.limit_mbit;
    let rates = windows(&passed, WINDOW_S.min(trial.seconds - 0.5));
    let extreme = |pick: fn(f64, f64) -> f64| rates.iter().copied().reduce(pick).map(of_limit);
    let mut outcome = Outcome::default();
    outcome.set(run.name, "window_min_of_limit", extreme(f64::min));
    outcome.set(run.name, "window_max_of_limit", extreme(f64::max));
    outcome.set(run.name, "passed_of_limit", of_limit(bytes * 8e-6 / seconds));
    outcome.set(run.name, "first_second_of_limit", of_limit(first_second_mbit));
    let shares: Vec<f64> = after
        .iter()
        .zip(&before)
        .map(|(after, before)| (after - before) as f64)
        .collect();
    outcome.set(run.name, "jain", jain(&shares));
    outcome.set(
        run.name,
        "dropped_packets",
        dropped(&answers::status(device)?.network.limits),
    );
    daemon.stop()?;
    Ok(outcome)
}

/// Payload of each connection, as the kernel counts it, in the order of their cookies.
fn received_bytes(device: &Namespace) -> Result<Vec<u64>> {
    let status = answers::status(device)?;
    let mut flows: Vec<_> = status
        .network
        .flows
        .iter()
        .filter(|view| view.flow.local.port() == PORT)
        .collect();
    flows.sort_by_key(|view| view.flow.cookie);
    Ok(flows.iter().map(|view| view.flow.received_bytes).collect())
}

fn dropped(limits: &[LimitUse]) -> Option<f64> {
    let queue = limits.first()?.download.as_ref()?.queue?;
    Some(queue.passed.dropped_packets as f64)
}

/// Seconds and bytes since the first look.
fn sample(device: &Namespace, seconds: f64) -> Result<Vec<(f64, f64)>> {
    let (began, first) = (Instant::now(), passed_bytes(device)?);
    let mut samples = vec![(0.0, 0.0)];
    while began.elapsed().as_secs_f64() < seconds {
        pause(LOOK_EVERY.as_secs_f64())?;
        let bytes = passed_bytes(device)? - first;
        samples.push((began.elapsed().as_secs_f64(), bytes));
    }
    Ok(samples)
}

/// What has left the limit's device, as its own counters say.
fn passed_bytes(device: &Namespace) -> Result<f64> {
    let shown = device.run("ip", &format!("-json -statistics link show dev {DEVICE}"))?;
    let shown: Value = serde_json::from_slice(&shown.stdout)?;
    let count = shown.pointer("/0/stats64/rx/bytes").and_then(Value::as_f64);
    count.context("the limit's device counts nothing")
}
