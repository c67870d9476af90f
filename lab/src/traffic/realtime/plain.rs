// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the machine spends on plain packets: `giveway-lab plain-bursts` sends bursts of them while a thread that runs
//! only when nothing else does counts what is left over. The difference to as long a time without packets is theirs,
//! wherever it was spent: system call, queue, timers, softirqs, and the switches between.
//! In: how many bursts. Out, in JSON: nanoseconds a packet, which with the virtual clock and one CPU are instructions.

use std::hint::black_box;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use super::{PACKET_BYTES, monotonic_ns, sleep_until};
use crate::link::BEST_EFFORT_PORT;
use crate::link::wire::NOBODY_ADDRESS;
use crate::namespace::Namespace;

/// At 100 Mbit/s 7.4 ms of each 10: every burst waits in a queue that paces, and is gone before the next.
const BURST: u64 = 64;
const EVERY_NS: u64 = 10_000_000;
const SEND_BUFFER_BYTES: usize = 1 << 20;
const SPINS_AT_ONCE: u64 = 1_000;
const CALIBRATIONS: usize = 200;

#[derive(Deserialize, Serialize)]
pub struct Bursts {
    pub bursts: u64,
}

/// Nanoseconds for each packet, and how many there were.
#[derive(Deserialize, Serialize)]
pub struct Spent {
    pub packet_ns: f64,
    pub packets: u64,
    /// Of the machine's time, what was left over without packets.
    pub idle_percent: f64,
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
    let without = left_over(bursts, || Ok(()))?;
    let with = left_over(bursts, || send_burst(&socket))?;
    let packets = bursts * BURST;
    let spent = Spent {
        packet_ns: (without as f64 - with as f64) * spins_ns / packets as f64,
        packets,
        idle_percent: 100.0 * without as f64 * spins_ns / (bursts * EVERY_NS) as f64,
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

/// Counts of the time that this many bursts take.
fn left_over(bursts: u64, mut burst: impl FnMut() -> Result<()>) -> Result<u64> {
    let mut next_ns = monotonic_ns()? + EVERY_NS;
    sleep_until(next_ns)?;
    let before = SPINS.load(Ordering::Relaxed);
    for _ in 0..bursts {
        burst()?;
        next_ns += EVERY_NS;
        ensure!(monotonic_ns()? < next_ns, "the machine is too slow for the bursts");
        sleep_until(next_ns)?;
    }
    Ok(SPINS.load(Ordering::Relaxed) - before)
}

fn send_burst(socket: &UdpSocket) -> Result<()> {
    let packet = [0; PACKET_BYTES];
    for _ in 0..BURST {
        socket.send(&packet).context("cannot send a plain packet")?;
    }
    Ok(())
}
