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
use crate::scenario::deadline::{QdiscCost, Queue};
use crate::traffic::realtime::plain::{self, Spent};

pub fn run(cost: &QdiscCost, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let wire = Wire::create()?;
    run.progress.tick("without a queue");
    let without = plain::run_in(&wire.sender, cost.bursts)?;
    run.progress.tick("with it");
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
            beside_daemon(&wire, &file, cost.bursts)?
        }
    };
    let mut outcome = Outcome::default();
    outcome.set(name, "instructions_per_packet", with.packet_ns - without.packet_ns);
    outcome.set(name, "path_instructions_per_packet", with.packet_ns);
    outcome.set(name, "noqueue_instructions_per_packet", without.packet_ns);
    outcome.set(name, "packets", with.packets as f64);
    outcome.set(name, "idle_percent", with.idle_percent);
    Ok(outcome)
}

/// The daemon looks in every second or so, whatever is sent: it stands still meanwhile, and its programs do not.
fn beside_daemon(wire: &Wire, configuration: &Path, bursts: u64) -> Result<Spent> {
    let mut daemon = Daemon::start(&wire.sender, configuration, configuration.with_extension("log"))?;
    daemon.wait_until_queueing(&wire.sender)?;
    daemon.signal(Signal::SIGSTOP)?;
    let spent = plain::run_in(&wire.sender, bursts);
    daemon.signal(Signal::SIGCONT)?;
    daemon.stop()?;
    spent
}
