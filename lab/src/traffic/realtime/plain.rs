// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the machine spends on plain packets: `giveway-lab plain-bursts` sends bursts of them while a thread that runs
//! only when nothing else does counts what is left over. The difference to as long a time without packets is theirs,
//! wherever it was spent: system call, queue, timers, softirqs, and the switches between.
//! In: how many bursts. Out, in JSON: nanoseconds a packet, which with the virtual clock and one CPU are instructions.

use std::hint::black_box;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use super::{PACKET_BYTES, monotonic_ns, sleep_until};
use crate::link::BEST_EFFORT_PORT;
use crate::link::wire::NOBODY_ADDRESS;
use crate::namespace::Namespace;
use crate::statistics::percentile;

/// At 100 Mbit/s 7.4 ms of each 10: every burst waits in a queue that paces, and is gone before the next.
const BURST: u64 = 64;
const EVERY_NS: u64 = 10_000_000;
const SEND_BUFFER_BYTES: usize = 1 << 20;
const SPINS_AT_ONCE: u64 = 1_000;
const CALIBRATIONS: usize = 200;
/// The part of the time that is left over when nothing is sent.
const CALM: f64 = 0.95;
const CALM_INTERVALS: u64 = 5;
const PATIENCE: u32 = 200;

#[derive(Deserialize, Serialize)]
pub struct Bursts {
    pub bursts: u64,
}

#[derive(Deserialize, Serialize)]
pub struct Spent {
    /// Nanoseconds for each packet.
    pub packet_ns: f64,
    /// Of the processor's timer.
    pub packet_interrupts: f64,
    /// How many there were.
    pub packets: u64,
}

pub fn run_in(at: &Namespace, bursts: u64) -> Result<Spent> {
    let mut process = super::start("plain-bursts", at, Some(&Bursts { bursts }))?;
    super::read_answer(&mut process).context("plain packets were not measured; the reason is above")
}

/// `giveway-lab plain-bursts`.
pub fn run(description: &str) -> Result<()> {
    let Bursts { bursts } = serde_json::from_str(description)?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER_BYTES)?;
    socket.connect((NOBODY_ADDRESS, BEST_EFFORT_PORT))?;
    let spins_ns = spins_ns()?;
    thread::spawn(count_what_is_left);
    await_idleness(spins_ns)?;
    let (idle, ticks) = look_at(bursts, || Ok(()))?;
    let (left_over, interrupts) = look_at(bursts, || send_burst(&socket))?;
    let spent = Spent {
        packet_ns: (idle - left_over) * spins_ns / BURST as f64,
        packet_interrupts: (interrupts - ticks) / BURST as f64,
        packets: bursts * BURST,
    };
    println!("{}", serde_json::to_string(&spent)?);
    Ok(())
}

/// In `SPINS_AT_ONCE`.
static SPINS: AtomicU64 = AtomicU64::new(0);

fn count_what_is_left() {
    let lowest = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call only reads its argument; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &lowest) };
    loop {
        spin();
        SPINS.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline(never)]
fn spin() {
    for turn in 0..SPINS_AT_ONCE {
        black_box(turn);
    }
}

/// What one count stands for: the shortest that one took, which nothing interrupted.
fn spins_ns() -> Result<f64> {
    let mut shortest = u64::MAX;
    for _ in 0..CALIBRATIONS {
        let begun_ns = monotonic_ns()?;
        for _ in 0..10 {
            spin();
            SPINS.fetch_add(1, Ordering::Relaxed);
        }
        shortest = shortest.min(monotonic_ns()? - begun_ns);
    }
    Ok(shortest as f64 / 10.0)
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

/// How often the machine had nothing else to do in the time of a burst, and its timers interrupted it: the medians, so
/// that what happens now and then is nobody's.
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
        interrupts.push((timer_interrupts()? - before.1) as f64);
    }
    let median = |of: &[f64]| percentile(of, 50.0).context("there were no bursts");
    Ok((median(&left_over)?, median(&interrupts)?))
}

/// Of all processors, since the machine's start.
fn timer_interrupts() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/interrupts").context("cannot read /proc/interrupts")?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("LOC:"));
    let counts = line.context("/proc/interrupts has no LOC")?.split_whitespace();
    Ok(counts.map_while(|word| word.parse::<u64>().ok()).sum())
}

fn send_burst(socket: &UdpSocket) -> Result<()> {
    let packet = [0; PACKET_BYTES];
    for _ in 0..BURST {
        socket.send(&packet).context("cannot send a plain packet")?;
    }
    Ok(())
}
