// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service that answers requests, each after a given time of computing: `giveway-lab realtime-service`. It knows no
//! deadline. In: its description. Out, in JSON when its standard input ends: when it had each request in its hands, and
//! whether it was told that its answer was refused. It judges nothing.

use std::hint::black_box;
use std::io::{Read, Write, stdin, stdout};
use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use super::{PORT, monotonic_ns};
use crate::link::read_payload;
use crate::link::wire::RECEIVER_ADDRESS;
use crate::namespace::Namespace;
use crate::process::Process;

/// How long it may take to notice that standard input ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const TURNS_AT_ONCE: u64 = 1_000;
const CALIBRATIONS: usize = 100;

#[derive(Deserialize, Serialize)]
pub struct Description {
    /// What a request takes to compute where nothing disturbs it.
    pub work_ns: u64,
    /// SCHED_FIFO for all of the process.
    pub priority: Option<i32>,
    /// As many will come, so that nothing need be asked of the kernel for their records meanwhile.
    pub requests: u32,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
pub struct Handled {
    pub number: u32,
    pub received_ns: u64,
    pub answered_ns: u64,
    pub refused: bool,
}

pub struct Service(Process);

impl Service {
    /// Waits until it listens.
    pub fn start(at: &Namespace, description: &Description) -> Result<Self> {
        let mut service = Self(super::start("realtime-service", at, Some(description))?);
        let output = service.0.pipes().stdout.as_mut().context("the service has no output")?;
        output
            .read_exact(&mut [0; 1])
            .context("the service did not start; its reason is above")?;
        Ok(service)
    }

    pub fn finish(mut self) -> Result<Vec<Handled>> {
        drop(self.0.pipes().stdin.take());
        super::read_answer(&mut self.0).context("the service failed; its reason is above")
    }
}

/// `giveway-lab realtime-service`.
pub fn run(description: &str) -> Result<()> {
    let description: Description = serde_json::from_str(description)?;
    let socket = UdpSocket::bind((RECEIVER_ADDRESS, PORT)).context("cannot listen")?;
    setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
    socket.set_read_timeout(Some(LOOK_EVERY))?;
    let turns = turns_in(description.work_ns)?;
    if let Some(priority) = description.priority {
        super::ask_for_fifo(priority).context("no real-time priority for the service")?;
    }
    let lasts = std::thread::spawn(|| stdin().read_to_end(&mut Vec::new()));
    stdout().write_all(b"\n")?;
    stdout().flush()?;
    let mut handled = Vec::with_capacity(description.requests as usize);
    super::keep_in_memory()?;
    let mut packet = [0; 2_048];
    while !lasts.is_finished() {
        let Ok((length, from)) = socket.recv_from(&mut packet) else {
            continue; // nothing for a while
        };
        let received_ns = monotonic_ns()?;
        let Some(payload) = read_payload(&packet[..length]) else {
            continue;
        };
        compute(turns);
        let answered_ns = monotonic_ns()?;
        let refused = match socket.send_to(&packet[..length], from) {
            Ok(_) => false,
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => true,
            // Who asked is gone.
            Err(error) if error.raw_os_error() == Some(Errno::ECONNREFUSED as i32) => false,
            Err(error) => bail!("cannot answer request {}: {error}", payload.number),
        };
        handled.push(Handled {
            number: payload.number,
            received_ns,
            answered_ns,
            refused,
        });
    }
    println!("{}", serde_json::to_string(&handled)?);
    Ok(())
}

#[inline(never)]
fn compute(turns: u64) {
    for turn in 0..turns {
        black_box(turn);
    }
}

/// From the shortest time that some took, which nothing disturbed.
fn turns_in(work_ns: u64) -> Result<u64> {
    let mut shortest_ns = u64::MAX;
    for _ in 0..CALIBRATIONS {
        let begun_ns = monotonic_ns()?;
        compute(TURNS_AT_ONCE);
        shortest_ns = shortest_ns.min(monotonic_ns()? - begun_ns);
    }
    Ok(work_ns * TURNS_AT_ONCE / shortest_ns.max(1))
}
