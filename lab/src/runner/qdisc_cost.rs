// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the way through a queue costs an ordinary packet.
//! In: the queue at the sender's device. Out: nanoseconds a packet of the whole way with it, and without any queue on
//! the same wire; the difference is the queue's, timers and softirqs included. Instructions, where the clock is virtual.

use std::path::Path;

use anyhow::Result;
use nix::sys::signal::Signal;

use super::Run;
use crate::giveway::{self, Daemon};
use crate::link::wire::Wire;
use crate::outcome::Outcome;
use crate::program_time::{Program, enable_statistics};
use crate::scenario::deadline::{QdiscCost, Queue};
use crate::traffic::realtime::plain::{self, Spent};

const PROGRAMS: [&str; 4] = ["gw_admit", "gw_enqueue", "gw_dequeue", "gw_gate"];

pub fn run(cost: &QdiscCost, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let wire = Wire::create()?;
    run.progress.tick("without a queue");
    let without = plain::run_in(&wire.sender, cost.bursts)?;
    run.progress.tick("with it");
    let mut outcome = Outcome::default();
    let with = match &cost.queue {
        Queue::Kernel { lines, .. } => {
            wire.set_queue(lines)?;
            plain::run_in(&wire.sender, cost.bursts)?
        }
        Queue::Giveway { admission, guard_us } => {
            let file = raw.join(format!("{}.toml", name.replace('/', "-")));
            match cost.rate_mbit {
                Some(rate_mbit) => giveway::write_queue_configuration(&file, rate_mbit, *admission, *guard_us)?,
                None => giveway::write_unpaced_configuration(&file)?,
            }
            beside_daemon(&mut outcome, name, &wire, &file, cost.bursts)?
        }
    };
    outcome.set(name, "instructions_per_packet", with.packet_ns - without.packet_ns);
    outcome.set(name, "path_instructions_per_packet", with.packet_ns);
    outcome.set(name, "noqueue_instructions_per_packet", without.packet_ns);
    outcome.set(name, "packets", with.packets as f64);
    outcome.set(name, "timer_interrupts_per_packet", with.packet_interrupts);
    Ok(outcome)
}

/// The daemon looks in every second or so, whatever is sent: it stands still meanwhile, and its programs do not.
fn beside_daemon(outcome: &mut Outcome, point: &str, wire: &Wire, configuration: &Path, bursts: u64) -> Result<Spent> {
    let mut daemon = Daemon::start(&wire.sender, configuration, configuration.with_extension("log"))?;
    daemon.wait_until_queueing(&wire.sender)?;
    daemon.signal(Signal::SIGSTOP)?;
    let spent = plain::run_in(&wire.sender, bursts).and_then(|spent| {
        tell_programs(outcome, point, wire, bursts)?;
        Ok(spent)
    });
    daemon.signal(Signal::SIGCONT)?;
    daemon.stop()?;
    spent
}

/// Where giveway's share goes, in a run of its own: the kernel's counting costs something itself.
fn tell_programs(outcome: &mut Outcome, point: &str, wire: &Wire, bursts: u64) -> Result<()> {
    let _statistics = enable_statistics()?;
    let programs = PROGRAMS.map(|name| Program::find(name).map(|program| (name, program)));
    let programs = programs.into_iter().collect::<Result<Vec<_>>>()?;
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
        outcome.set(
            point,
            &format!("{name}_instructions"),
            each(before.time_ns, after.time_ns),
        );
        outcome.set(point, &format!("{name}_runs"), each(before.count, after.count));
    }
    Ok(())
}
