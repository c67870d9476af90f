// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What giveway's queue costs traffic that wants nothing of it, beside the kernel's own queues: where packets wait for
//! a link, and where nothing ever waits.

use anyhow::Result;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::bpf_objects::{Program, enable_statistics};
use crate::experiment::Run;
use crate::giveway::Daemon;
use crate::guest::Guest;
use crate::link::wire::{self, Wire, queue_configuration};
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::scenario::{Check, Relation, Variant};
use crate::traffic::realtime::plain::{self, PacketCost};

const RATE_MBIT: u64 = 100;

/// Of fq_codel's, where packets wait.
const PACED: f64 = 1.4;
const PACED_GOAL: f64 = 1.2;

/// What stands at the device.
#[derive(Clone)]
enum Stands {
    Kernel(Vec<String>),
    /// Holds packets back at this rate; None: it is there, and holds nothing.
    Giveway(Option<u64>),
    /// Nothing is to be held, so the device's own stays.
    Watching,
}

/// Where it has to hold packets back for the link, and where it has not.
fn queues(paced: bool) -> Vec<(&'static str, Stands)> {
    // As in `deadline`: the kernel's shaper keeps at most one packet below, as giveway and cake do.
    let plain = |kind: &str| {
        Stands::Kernel(if paced {
            vec![wire::paced(RATE_MBIT), format!("parent 1: handle 10: {kind}")]
        } else {
            vec![format!("root handle 1: {kind}")]
        })
    };
    let bandwidth = if paced { format!("{RATE_MBIT}mbit") } else { "0".into() };
    let mut queues = vec![
        ("pfifo_fast", plain("pfifo_fast")),
        ("fq_codel", plain("fq_codel")),
        (
            "cake",
            Stands::Kernel(vec![format!("root handle 1: cake bandwidth {bandwidth}")]),
        ),
    ];
    match paced {
        true => queues.push(("giveway", Stands::Giveway(Some(RATE_MBIT)))),
        false => queues.extend([("giveway", Stands::Watching), ("giveway-queue", Stands::Giveway(None))]),
    }
    queues
}

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let bursts = parameters.count("bursts");
    let variant = |(name, stands): (&str, Stands), load: &str| {
        let cost = move |run: &Run| cost(run, &stands, bursts);
        Variant::new(
            format!("{name}/{load}"),
            Some(Guest::VIRTUAL),
            bursts as f64 * 0.05,
            cost,
        )
    };
    let under = |load: &'static str| {
        queues(load == "paced")
            .into_iter()
            .map(move |queue| variant(queue, load))
    };
    Ok(["paced", "unpaced"].into_iter().flat_map(under).collect())
}

pub fn bounds() -> Vec<Check> {
    let over = |name: &str, most| {
        let name = format!("giveway over fq_codel, {name}");
        let (ours, theirs, metric) = ("giveway/paced", "fq_codel/paced", "instructions_per_packet");
        Check::ratio(name, ours, theirs, metric, Relation::AtMost(most)).always()
    };
    vec![
        over("paced", PACED),
        over("paced, goal", PACED_GOAL).goal(),
        Check::metric("giveway/unpaced", "gw_enqueue_runs", Relation::Exactly(0.0)).always(),
    ]
}

const PROGRAMS: [&str; 5] = ["gw_admit", "gw_enqueue", "gw_dequeue", "gw_cpu_gate", "gw_touch_send"];

/// Nanoseconds a packet of the whole way with the queue, and without any on the same wire; the difference is the
/// queue's, timers and softirqs included. Instructions, where the clock is virtual.
fn cost(run: &Run, stands: &Stands, bursts: u64) -> Result<Outcome> {
    let name = run.name;
    let wire = Wire::create()?;
    run.progress.tick("without a queue");
    let without = plain::run_in(&wire.sender, bursts)?;
    run.progress.tick("with it");
    let mut outcome = Outcome::default();
    let configuration = match stands {
        Stands::Kernel(lines) => {
            wire.set_queue(lines)?;
            None
        }
        Stands::Giveway(Some(rate_mbit)) => Some(queue_configuration(*rate_mbit, true)),
        Stands::Giveway(None) => Some(json!({"cap": {"policy": "none"}, "queue": {"backend": "bpf"}})),
        Stands::Watching => Some(json!({"cap": {"policy": "none"}})),
    };
    let with = match configuration {
        Some(configuration) => beside_daemon(&mut outcome, run, &wire, &configuration, bursts)?,
        None => plain::run_in(&wire.sender, bursts)?,
    };
    outcome.set(name, "instructions_per_packet", with.packet_ns - without.packet_ns);
    outcome.set(name, "path_instructions_per_packet", with.packet_ns);
    outcome.set(name, "noqueue_instructions_per_packet", without.packet_ns);
    outcome.set(name, "packets", with.packets as f64);
    outcome.set(name, "timer_interrupts_per_packet", with.packet_interrupts);
    Ok(outcome)
}

/// The daemon looks in every second or so, whatever is sent: it is stopped meanwhile, and its programs are not.
fn beside_daemon(
    outcome: &mut Outcome,
    run: &Run,
    wire: &Wire,
    configuration: &Value,
    bursts: u64,
) -> Result<PacketCost> {
    let mut daemon = Daemon::launch(&wire.sender, configuration, &run.file(""))?;
    match configuration.get("queue") {
        Some(_) => daemon.wait_until_queueing(&wire.sender)?,
        None => daemon.wait_until_watching(&wire.sender)?,
    }
    daemon.process.signal(Signal::SIGSTOP)?;
    let spent = plain::run_in(&wire.sender, bursts).and_then(|spent| {
        tell_programs(outcome, run.name, wire, bursts)?;
        Ok(spent)
    });
    daemon.process.signal(Signal::SIGCONT)?;
    daemon.stop()?;
    spent
}

/// Where giveway's share goes, in a run of its own: the kernel's counting costs something itself.
fn tell_programs(outcome: &mut Outcome, point: &str, wire: &Wire, bursts: u64) -> Result<()> {
    let _statistics = enable_statistics()?;
    // The queue's own are there once one was installed.
    let found = PROGRAMS.map(|name| Some((name, Program::find(name).ok()?)));
    let programs: Vec<_> = found.into_iter().flatten().collect();
    for name in PROGRAMS {
        outcome.set(point, &format!("{name}_runs"), 0.0);
    }
    let read = || {
        programs
            .iter()
            .map(|(_, program)| program.runs())
            .collect::<Result<Vec<_>>>()
    };
    let before = read()?;
    let packets = plain::run_in(&wire.sender, bursts)?.packets as f64;
    for ((name, _), (before, after)) in programs.iter().zip(before.iter().zip(read()?)) {
        let each = |before: u64, after: u64| (after - before) as f64 / packets;
        let (instructions, runs) = (format!("{name}_instructions"), format!("{name}_runs"));
        outcome.set(point, &instructions, each(before.time_ns, after.time_ns));
        outcome.set(point, &runs, each(before.count, after.count));
    }
    Ok(())
}
