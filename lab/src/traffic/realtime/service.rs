// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service that answers requests, each after a given time of computing: the role `realtime-service`. It knows no
//! deadline. Input: its description. Out, in JSON when its standard input ends: when it had each request in its hands,
//! and whether it was told that its answer was refused. It judges nothing.

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use super::{listen, monotonic_ns, receive_all, shortest_ns, spin};
use crate::scheduling::{keep_in_memory, take_fifo};

const TURNS_AT_ONCE: u64 = 1_000;
const CALIBRATIONS: usize = 100;

#[derive(Deserialize, Serialize)]
pub struct ServiceOptions {
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

/// The role `realtime-service`; it listens from its first line on.
pub fn run(description: ServiceOptions) -> Result<Vec<Handled>> {
    let socket = listen()?;
    setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
    let turns_ns = shortest_ns(CALIBRATIONS, || spin(TURNS_AT_ONCE))?;
    let turns = description.work_ns * TURNS_AT_ONCE / turns_ns.max(1);
    if let Some(priority) = description.priority {
        take_fifo(priority).context("no real-time priority for the service")?;
    }
    let mut handled = Vec::with_capacity(description.requests as usize);
    keep_in_memory()?;
    receive_all(&socket, |request, packet, from, received_ns| {
        spin(turns);
        let answered_ns = monotonic_ns()?;
        let refused = match socket.send_to(packet, from) {
            Ok(_) => false,
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => true,
            // The client is gone.
            Err(error) if error.raw_os_error() == Some(Errno::ECONNREFUSED as i32) => false,
            Err(error) => bail!("cannot answer request {}: {error}", request.number),
        };
        handled.push(Handled {
            number: request.number,
            received_ns,
            answered_ns,
            refused,
        });
        Ok(())
    })?;
    Ok(handled)
}
