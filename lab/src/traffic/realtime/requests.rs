// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests at set times, and the wait for their answers: the role `realtime-requests`. Each carries a deadline for
//! its own way (SO_TXTIME) and what is left for the rest (the IP option). Input: their description. Out, in JSON some
//! time after the last: when each was made, whether it was refused, when its answer was here. It runs above everything
//! that is measured, as the instrument that it is, and judges nothing.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::ClockId;
use serde::{Deserialize, Serialize};

use super::{PORT, monotonic_ns, send_due, send_with_deadlines};
use crate::calls::{IP_OPTIONS, IPPROTO_IP, set_option};
use crate::link::read_payload;
use crate::link::wire::RECEIVER_ADDRESS;
use crate::scheduling::{keep_in_memory, take_fifo};

pub const ANSWER_PORT: u16 = 5_009;
pub const REQUEST_BYTES: usize = 200;
/// Above everything of giveway's (its own thread has 49) only by being the remote host of the wire.
const PRIORITY: i32 = 50;
/// The answers to the last requests.
const DRAIN_NS: u64 = 1_000_000_000;
/// As docs/how-to/send-deadlines.md has it: type, length, microseconds; then the end of the options.
const OPTION_DEADLINE: u8 = 0x9e;

#[derive(Deserialize, Serialize)]
pub struct ClientOptions {
    pub requests: u32,
    pub first_ns: u64,
    pub every_ns: u64,
    /// The last bit of the request is to have left so long after it was made.
    pub send_within_us: u64,
    /// And the last bit of the answer so long after the request has arrived.
    pub answer_within_us: u32,
}

#[derive(Clone, Copy, Default, Deserialize, Serialize)]
pub struct Asked {
    pub made_ns: u64,
    pub refused: bool,
    /// 0: no answer came.
    pub answered_ns: u64,
}

/// The role `realtime-requests`.
pub fn run(description: ClientOptions) -> Result<Vec<Asked>> {
    let socket = open(&description)?;
    take_fifo(PRIORITY).context("no real-time priority for the requests")?;
    let mut asked = vec![Asked::default(); description.requests as usize];
    keep_in_memory()?;
    for number in 0..description.requests {
        let at_ns = description.first_ns + u64::from(number) * description.every_ns;
        receive_until(at_ns, &socket, &mut asked)?;
        let made_ns = monotonic_ns()?;
        let deadline_ns = made_ns + description.send_within_us * 1_000;
        let refused = send_due::<REQUEST_BYTES>(&socket, (0, number), (made_ns, deadline_ns), deadline_ns)?;
        asked[number as usize] = Asked {
            made_ns,
            refused,
            answered_ns: 0,
        };
    }
    receive_until(monotonic_ns()? + DRAIN_NS, &socket, &mut asked)?;
    Ok(asked)
}

fn open(description: &ClientOptions) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(("0.0.0.0", ANSWER_PORT))?;
    send_with_deadlines(&socket, ClockId::CLOCK_MONOTONIC)?;
    let mut option = [OPTION_DEADLINE, 6, 0, 0, 0, 0, 0, 0];
    option[2..6].copy_from_slice(&description.answer_within_us.to_be_bytes());
    set_option(&socket, IPPROTO_IP, IP_OPTIONS, &option).context("cannot set the IP option")?;
    socket.connect((RECEIVER_ADDRESS, PORT))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Takes answers until then.
fn receive_until(at_ns: u64, socket: &UdpSocket, asked: &mut [Asked]) -> Result<()> {
    let mut packet = [0; 2_048];
    loop {
        let left_ns = at_ns.saturating_sub(monotonic_ns()?);
        if left_ns == 0 {
            return Ok(());
        }
        let patience = TimeSpec::from_duration(Duration::from_nanos(left_ns));
        ppoll(
            &mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)],
            Some(patience),
            None,
        )?;
        let length = match socket.recv(&mut packet) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            received => received.context("cannot receive an answer")?,
        };
        let answered_ns = monotonic_ns()?;
        let payload = read_payload(&packet[..length]);
        if let Some(asked) = payload.and_then(|payload| asked.get_mut(payload.number as usize)) {
            asked.answered_ns = answered_ns;
        }
    }
}
