// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets with deadlines over the modelled link, beside floods of best effort and background.
//! In: the queue at the sender's device, the flows, how many packets. Out: by flow and in all, what was sent, refused,
//! told and late; P3's five stages; what the others got. Late is what the link says, never the receiver.

mod stages;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Run;
use crate::giveway::{self, Daemon};
use crate::interrupt::pause_until;
use crate::link::wire::Wire;
use crate::link::{BACKGROUND_PORT, BEST_EFFORT_PORT, Link, Passed};
use crate::outcome::Outcome;
use crate::process::Process;
use crate::scenario::deadline::{Deadline, Marking, Queue, RealtimeFlow};
use crate::traffic::realtime::flood::{self, Flood};
use crate::traffic::realtime::receiver::Receiver;
use crate::traffic::realtime::sender::{Flow, Sender, Told};
use crate::traffic::realtime::{FRAME_BYTES, PACKET_BYTES, monotonic_ns};

/// SO_PRIORITY and the TOS byte: what the kernel's priomap puts first, Expedited Forwarding (RFC 3246).
const REALTIME_MARKS: (i32, i32) = (6, 0xb8);
/// Below best effort in the kernel's priomap; Lower Effort (RFC 8622).
const BACKGROUND_MARKS: (i32, i32) = (1, 0x04);
/// Just below the 1,000 packets that pfifo_fast holds, so that the flood waits for the queue and never spins.
const BEST_EFFORT_FLOODS: usize = 2;
const PACKETS_OF_BEST_EFFORT: usize = 450;
const PACKETS_OF_BACKGROUND: usize = 64;
/// From the start of the processes to the first packet with a deadline; the floods have filled the queue by then.
const HEAD_START: Duration = Duration::from_secs(1);
/// After the last one was sent; longer than any queue here.
const DRAIN: Duration = Duration::from_secs(1);

pub fn run(deadline: &Deadline, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let wire = Wire::create()?;
    let mut daemon = queue_up(deadline, &wire, raw, &name.replace('/', "-"))?;
    let cycle: u64 = deadline.flows.iter().map(|flow| flow.burst).sum();
    let bursts = deadline.packets.div_ceil(cycle);
    let most = deadline.flows.iter().map(|flow| flow.burst * bursts).max();
    let most = u32::try_from(most.context("there is nothing to send")?)?;
    let link = Link::load(
        &wire.sender,
        deadline.rate_mbit * 125_000,
        deadline.flows.len() as u32,
        most,
    )?;

    let receiver = Receiver::start(&wire.receiver)?;
    let floods = start_floods(&wire)?;
    let first = Instant::now() + HEAD_START;
    let first_ns = monotonic_ns()? + HEAD_START.as_nanos() as u64;
    let senders = start_senders(deadline, &wire, run.seed, bursts, first_ns)?;
    run.progress.tick("the queue fills");
    pause_until(first)?;
    let (before, begun_ns) = (link.passed()?, monotonic_ns()?);
    run.progress.tick("packets with deadlines");
    let told = senders.into_iter().map(Sender::finish).collect::<Result<Vec<_>>>()?;
    let (after, ended_ns) = (link.passed()?, monotonic_ns()?);
    drop(floods);
    pause_until(Instant::now() + DRAIN)?;
    let delivered = receiver.finish()?;

    let mut outcome = Outcome::default();
    stages::summarize(&mut outcome, name, deadline, &told, &link.stamps()?, &delivered);
    describe_others(&mut outcome, name, &before, &after, (ended_ns - begun_ns) as f64);
    let rate_bytes_per_ns = deadline.rate_mbit as f64 / 8e3;
    outcome.set(
        name,
        "driver_max_bytes",
        after.longest_wait_ns as f64 * rate_bytes_per_ns,
    );
    if let Some(daemon) = &mut daemon {
        compare_counts(&mut outcome, name, &wire, &told)?;
        daemon.stop()?;
    }
    Ok(outcome)
}

/// What is at the sender's device: the kernel's queue, or giveway's with its daemon.
fn queue_up(deadline: &Deadline, wire: &Wire, raw: &Path, label: &str) -> Result<Option<Daemon>> {
    match &deadline.queue {
        Queue::Kernel { lines, .. } => {
            wire.set_queue(lines)?;
            Ok(None)
        }
        Queue::Giveway { admission, guard_us } => {
            let file = raw.join(format!("{label}.toml"));
            giveway::write_queue_configuration(&file, deadline.rate_mbit, *admission, *guard_us)?;
            let mut daemon = Daemon::start(&wire.sender, &file, raw.join(format!("{label}.log")))?;
            daemon.wait_until_queueing(&wire.sender)?;
            Ok(Some(daemon))
        }
    }
}

fn marking(queue: &Queue) -> Marking {
    match queue {
        Queue::Kernel { marking, .. } => *marking,
        Queue::Giveway { .. } => Marking::None,
    }
}

/// Background says what it is to every queue; whether that means anything there is the queue's affair.
fn start_floods(wire: &Wire) -> Result<Vec<Process>> {
    let best_effort = Flood {
        port: BEST_EFFORT_PORT,
        marking: None,
        packets: PACKETS_OF_BEST_EFFORT,
    };
    let background = Flood {
        port: BACKGROUND_PORT,
        marking: Some(BACKGROUND_MARKS),
        packets: PACKETS_OF_BACKGROUND,
    };
    let floods = std::iter::repeat_n(&best_effort, BEST_EFFORT_FLOODS).chain([&background]);
    floods.map(|flood| flood::start(&wire.sender, flood)).collect()
}

fn start_senders(deadline: &Deadline, wire: &Wire, seed: u64, bursts: u64, first_ns: u64) -> Result<Vec<Sender>> {
    let marking = marking(&deadline.queue);
    let start = |(number, flow): (usize, &RealtimeFlow)| {
        let flow = Flow {
            flow: number as u32,
            packets: flow.burst * bursts,
            burst: flow.burst,
            every_ns: flow.every_us * 1_000,
            first_ns: first_ns + flow.after_us * 1_000,
            deadline_us: flow.deadline_us,
            seed: seed.wrapping_add(number as u64),
            marking: (marking != Marking::None).then_some(REALTIME_MARKS),
            in_tai: marking == Marking::ClassesAndTai,
        };
        Sender::start(&wire.sender, &flow)
    };
    deadline.flows.iter().enumerate().map(start).collect()
}

/// What the floods got while packets with deadlines were sent.
fn describe_others(outcome: &mut Outcome, point: &str, before: &Passed, after: &Passed, elapsed_ns: f64) {
    let payload = PACKET_BYTES as f64 / FRAME_BYTES as f64;
    let mbit = |before: u64, after: u64| (after - before) as f64 * 8e3 / elapsed_ns;
    let best_effort = mbit(before.best_effort.bytes, after.best_effort.bytes);
    let background = mbit(before.background.bytes, after.background.bytes);
    outcome.set(point, "best_effort_goodput_mbit", best_effort * payload);
    outcome.set(point, "background_goodput_mbit", background * payload);
    outcome.set(point, "link_mbit", mbit(before.bytes(), after.bytes()));
}

/// The daemon's own count of refusals, beside what the senders were told.
fn compare_counts(outcome: &mut Outcome, point: &str, wire: &Wire, told: &[Told]) -> Result<()> {
    let queue = giveway::status(&wire.sender)?.queue;
    let counted = queue
        .and_then(|queue| queue.counters)
        .context("giveway says nothing of its queue")?;
    let told: u64 = told.iter().map(|told| told.refused).sum();
    let refused = counted.refused.total;
    outcome.set(point, "refused_counted", refused as f64);
    outcome.set(point, "refused_miscounted", refused.abs_diff(told) as f64);
    outcome.set(point, "dropped_late", counted.late as f64);
    Ok(())
}
