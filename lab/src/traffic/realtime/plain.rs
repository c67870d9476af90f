// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the machine spends on plain packets: the role `plain-bursts` sends bursts of them while a thread that runs
//! only when nothing else does counts what is left over. The difference to as long a time without packets is theirs,
//! wherever it was spent: system call, queue, timers, softirqs, and the switches between.
//! Input: how many bursts. Out, in JSON: nanoseconds a packet, which with the virtual clock and one CPU are
//! instructions.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use super::{PACKET_BYTES, monotonic_ns, shortest_ns, sleep_until, spin};
use crate::calls::SCHED_IDLE;
use crate::link::BEST_EFFORT_PORT;
use crate::link::wire::NOBODY_ADDRESS;
use crate::namespace::Namespace;
use crate::proc::numbers;
use crate::role::Role;
use crate::scheduling;
use crate::statistics::interquartile_mean;

/// At 100 Mbit/s 7.4 ms of each 10: every burst waits in a queue that paces, and is gone before the next.
const BURST: u64 = 64;
const EVERY_NS: u64 = 10_000_000;
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// Some 400 instructions: six for each packet of a burst.
const SPINS_AT_ONCE: u64 = 100;
const CALIBRATIONS: usize = 200;
const SPINS_OF_CALIBRATION: u32 = 100;
/// The part of the time that is left over when nothing is sent.
const CALM: f64 = 0.95;
const CALM_INTERVALS: u64 = 5;
const PATIENCE: u32 = 200;

#[derive(Deserialize, Serialize)]
pub struct PacketCost {
    /// Nanoseconds for each packet.
    pub packet_ns: f64,
    /// Of the processor's timer.
    pub packet_interrupts: f64,
    /// How many there were.
    pub packets: u64,
}

pub fn run_in(at: &Namespace, bursts: u64) -> Result<PacketCost> {
    Role::spawn(at, "plain-bursts", &bursts)?.finish()
}

/// The role `plain-bursts`.
pub fn run(bursts: u64) -> Result<PacketCost> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER_BYTES)?;
    socket.connect((NOBODY_ADDRESS, BEST_EFFORT_PORT))?;
    // What one count stands for.
    let all = || (0..SPINS_OF_CALIBRATION).for_each(|_| spin_once());
    let spins_ns = shortest_ns(CALIBRATIONS, all)? as f64 / f64::from(SPINS_OF_CALIBRATION);
    thread::spawn(count_what_is_left);
    await_idleness(spins_ns)?;
    let (idle, ticks) = look_at(bursts, || Ok(()))?;
    let (left_over, interrupts) = look_at(bursts, || send_burst(&socket))?;
    Ok(PacketCost {
        packet_ns: (idle - left_over) * spins_ns / BURST as f64,
        packet_interrupts: (interrupts - ticks) / BURST as f64,
        packets: bursts * BURST,
    })
}

/// In `SPINS_AT_ONCE`.
static SPINS: AtomicU64 = AtomicU64::new(0);

fn count_what_is_left() {
    // Without it the busy machine is noticed by `await_idleness`.
    let _ = scheduling::set(0, SCHED_IDLE, 0);
    loop {
        spin_once();
    }
}

fn spin_once() {
    spin(SPINS_AT_ONCE);
    SPINS.fetch_add(1, Ordering::Relaxed);
}

/// Until the machine has nothing left to do from before, such as after it was booted.
fn await_idleness(spins_ns: f64) -> Result<()> {
    for _ in 0..PATIENCE {
        let (idle, _) = look_at(CALM_INTERVALS, || Ok(()))?;
        if idle * spins_ns > CALM * EVERY_NS as f64 {
            return Ok(());
        }
    }
    bail!("the machine is too busy for the cost of a packet to be seen")
}

/// How often the machine had nothing else to do in the time of a burst, and its timers interrupted it: means of the
/// middle half, so that what happens now and then is nobody's, and one timer more or less does not decide.
fn look_at(bursts: u64, mut burst: impl FnMut() -> Result<()>) -> Result<(f64, f64)> {
    let mut next_ns = monotonic_ns()? + EVERY_NS;
    sleep_until(next_ns)?;
    let (mut left_over, mut interrupts) = (Vec::new(), Vec::new());
    for _ in 0..bursts {
        let before = (SPINS.load(Ordering::Relaxed), timer_interrupts()?);
        burst()?;
        next_ns += EVERY_NS;
        ensure!(monotonic_ns()? < next_ns, "the machine is too slow for the bursts");
        sleep_until(next_ns)?;
        left_over.push((SPINS.load(Ordering::Relaxed) - before.0) as f64);
        interrupts.push(timer_interrupts()? - before.1);
    }
    let middle = |of: &[f64]| interquartile_mean(of).context("there were no bursts");
    Ok((middle(&left_over)?, middle(&interrupts)?))
}

/// Of all processors, since the machine's start.
fn timer_interrupts() -> Result<f64> {
    Ok(numbers("/proc/interrupts", "LOC:")?.iter().sum())
}

fn send_burst(socket: &UdpSocket) -> Result<()> {
    let packet = [0; PACKET_BYTES];
    for _ in 0..BURST {
        socket.send(&packet).context("cannot send a plain packet")?;
    }
    Ok(())
}
