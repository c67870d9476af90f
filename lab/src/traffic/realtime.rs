// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets with deadlines, from processes of their own: `giveway-lab realtime-sender` sends bursts at set times and
//! counts what it is told, `giveway-lab realtime-receiver` notes when each came; `giveway-lab flood` fills a queue.
//! `giveway-lab realtime-enqueue` measures what one packet costs, `giveway-lab plain-bursts` what any packet does.
//! `giveway-lab realtime-requests` asks a `giveway-lab realtime-service`, `giveway-lab icmp-flood` pings beside them.
//! In: a description in JSON as the one argument (the receiver needs none). Out: see each. They share the machine's monotonic clock.

pub mod enqueue;
pub mod flood;
pub mod icmp;
pub mod plain;
pub mod receiver;
pub mod requests;
pub mod sender;
pub mod service;

use std::io::Read;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::namespace::Namespace;
use crate::process::Process;

pub const PORT: u16 = 5_005;
/// P3, section 5: packets of 1,400 bytes.
pub const PACKET_BYTES: usize = 1_400;
/// What it is on the wire: UDP, IP and Ethernet before it.
pub const FRAME_BYTES: u64 = PACKET_BYTES as u64 + 8 + 20 + 14;

pub fn now_ns(clock: ClockId) -> Result<u64> {
    let now = clock_gettime(clock)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// `now_ns` of the clock that the link, the senders and the receiver all use.
pub fn monotonic_ns() -> Result<u64> {
    now_ns(ClockId::CLOCK_MONOTONIC)
}

fn sleep_until(monotonic_ns: u64) -> Result<()> {
    let when = TimeSpec::new((monotonic_ns / 1_000_000_000) as _, (monotonic_ns % 1_000_000_000) as _);
    let flags = ClockNanosleepFlags::TIMER_ABSTIME;
    match clock_nanosleep(ClockId::CLOCK_MONOTONIC, flags, &when) {
        Ok(_) => Ok(()),
        Err(error) => Err(error).context("cannot wait"),
    }
}

/// SCHED_FIFO for the calling thread, or why not.
fn ask_for_fifo(priority: i32) -> Result<()> {
    let wanted = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the call only reads its argument; 0 is the calling thread.
    Errno::result(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &wanted) })?;
    Ok(())
}

/// All of it, now and later, as whoever has deadlines does: a page fault may wait for any process.
fn keep_in_memory() -> Result<()> {
    // SAFETY: takes no pointers.
    let kept = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    Errno::result(kept)
        .context("cannot keep the process in memory")
        .map(drop)
}

/// Starts `giveway-lab ROLE [DESCRIPTION]` with its standard input and output as pipes.
fn start(role: &str, at: &Namespace, description: Option<&impl Serialize>) -> Result<Process> {
    let mut command = at.command(std::env::current_exe()?)?;
    command
        .arg(role)
        .args(description.map(serde_json::to_string).transpose()?);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    Process::spawn(command)
}

/// All that it says until it ends, as JSON.
fn read_answer<T: DeserializeOwned>(process: &mut Process) -> Result<T> {
    let mut said = String::new();
    let mut output = process.pipes().stdout.take().context("the process has no output")?;
    output.read_to_string(&mut said)?;
    Ok(serde_json::from_str(&said)?)
}
