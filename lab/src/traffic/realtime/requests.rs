// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests at set times, and the wait for their answers: `giveway-lab realtime-requests`. Each carries a deadline for
//! its own way (SO_TXTIME) and what is left for the rest (the IP option). In: their description. Out, in JSON some time
//! after the last: when each was made, whether it was refused, when its answer was here. It runs above everything that
//! is measured, as the instrument that it is, and judges nothing.

use std::io::{ErrorKind, IoSlice};
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use serde::{Deserialize, Serialize};

use super::{PORT, monotonic_ns};
use crate::link::wire::RECEIVER_ADDRESS;
use crate::link::{PAYLOAD_MAGIC, Payload, payload_bytes, read_payload};
use crate::namespace::Namespace;
use crate::process::Process;

pub const ANSWER_PORT: u16 = 5_009;
pub const REQUEST_BYTES: usize = 200;
/// Above everything of giveway's (its own thread has 49) only by being the far end of the wire.
const PRIORITY: i32 = 50;
/// The answers to the last requests.
const DRAIN_NS: u64 = 1_000_000_000;
/// As docs/queue.md has it: type, length, microseconds; then the end of the options.
const OPTION_DEADLINE: u8 = 0x9e;

#[derive(Deserialize, Serialize)]
pub struct Description {
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

pub struct Requests(Process);

impl Requests {
    pub fn start(at: &Namespace, description: &Description) -> Result<Self> {
        super::start("realtime-requests", at, Some(description)).map(Self)
    }

    /// Waits until all are sent and answered, by their numbers.
    pub fn finish(mut self) -> Result<Vec<Asked>> {
        super::read_answer(&mut self.0).context("the requests failed; their reason is above")
    }
}

/// `giveway-lab realtime-requests`.
pub fn run(description: &str) -> Result<()> {
    let description: Description = serde_json::from_str(description)?;
    let socket = open(&description)?;
    super::ask_for_fifo(PRIORITY).context("no real-time priority for the requests")?;
    let mut asked = vec![Asked::default(); description.requests as usize];
    super::keep_in_memory()?;
    for number in 0..description.requests {
        let at_ns = description.first_ns + u64::from(number) * description.every_ns;
        receive_until(at_ns, &socket, &mut asked)?;
        let made_ns = monotonic_ns()?;
        let refused = send(&socket, number, made_ns, made_ns + description.send_within_us * 1_000)?;
        asked[number as usize] = Asked {
            made_ns,
            refused,
            answered_ns: 0,
        };
    }
    receive_until(monotonic_ns()? + DRAIN_NS, &socket, &mut asked)?;
    println!("{}", serde_json::to_string(&asked)?);
    Ok(())
}

fn open(description: &Description) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(("0.0.0.0", ANSWER_PORT))?;
    setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
    let in_deadline_mode = libc::sock_txtime {
        clockid: libc::CLOCK_MONOTONIC,
        flags: libc::SOF_TXTIME_DEADLINE_MODE,
    };
    setsockopt(&socket, sockopt::TxTime, &in_deadline_mode).context("cannot set SO_TXTIME")?;
    let mut option = [OPTION_DEADLINE, 6, 0, 0, 0, 0, 0, 0];
    option[2..6].copy_from_slice(&description.answer_within_us.to_be_bytes());
    // SAFETY: the option is valid for the call, which only reads it.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_OPTIONS,
            option.as_ptr().cast(),
            option.len() as libc::socklen_t,
        )
    };
    Errno::result(set).context("cannot set the IP option")?;
    socket.connect((RECEIVER_ADDRESS, PORT))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Whether it was refused.
fn send(socket: &UdpSocket, number: u32, made_ns: u64, deadline_ns: u64) -> Result<bool> {
    let mut packet = [0; REQUEST_BYTES];
    let payload = Payload {
        magic: PAYLOAD_MAGIC,
        flow: 0,
        number,
        reserved: 0,
        deadline_ns,
        made_ns,
    };
    let start = payload_bytes(&payload);
    packet[..start.len()].copy_from_slice(&start);
    let control = [ControlMessage::TxTime(&deadline_ns)];
    let nobody: Option<&SockaddrIn> = None;
    match sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(&packet)],
        &control,
        MsgFlags::empty(),
        nobody,
    ) {
        Ok(REQUEST_BYTES) => Ok(false),
        Err(Errno::ENOBUFS) => Ok(true),
        other => bail!("cannot send request {number}: {other:?}"),
    }
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
