// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One flow of packets with deadlines, as an application would send it: SO_TXTIME in deadline mode, an SCM_TXTIME with
//! each packet, IP_RECVERR so that a refusal is told. Out, in JSON when all are sent: how many, and how many refusals
//! it was told of. It runs at a real-time priority, as whoever has deadlines does (P4), where it may.

use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg, setsockopt, sockopt};
use nix::time::ClockId;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::{PACKET_BYTES, PORT, monotonic_ns, now_ns, sleep_until};
use crate::link::wire::RECEIVER_ADDRESS;
use crate::link::{PAYLOAD_MAGIC, Payload, payload_bytes};
use crate::namespace::Namespace;
use crate::process::Process;

/// More than a burst, so that the queue refuses and not the socket.
const SEND_BUFFER_BYTES: usize = 8 << 20;

#[derive(Default, Deserialize, Serialize)]
pub struct Flow {
    pub flow: u32,
    pub packets: u64,
    pub burst: u64,
    pub every_ns: u64,
    pub first_ns: u64,
    pub deadline_us: (u64, u64),
    pub seed: u64,
    /// SO_PRIORITY and TOS, where they are to be set.
    pub marking: Option<(i32, i32)>,
    /// `etf` takes no other clock.
    pub in_tai: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Told {
    pub sent: u64,
    pub refused: u64,
}

pub struct Sender(Process);

impl Sender {
    pub fn start(at: &Namespace, flow: &Flow) -> Result<Self> {
        super::start("realtime-sender", at, Some(flow)).map(Self)
    }

    /// Waits until it has sent everything.
    pub fn finish(mut self) -> Result<Told> {
        super::read_answer(&mut self.0).context("a sender of packets with deadlines failed; its reason is above")
    }
}

/// `giveway-lab realtime-sender`.
pub fn run(description: &str) -> Result<()> {
    let flow: Flow = serde_json::from_str(description)?;
    let socket = open(&flow, RECEIVER_ADDRESS)?;
    super::receiver::ask_for_realtime();
    let mut random = ChaCha8Rng::seed_from_u64(flow.seed);
    let mut told = Told::default();
    let bursts = flow.packets / flow.burst;
    for burst in 0..bursts {
        sleep_until(flow.first_ns + burst * flow.every_ns)?;
        let begun_ns = monotonic_ns()?;
        for _ in 0..flow.burst {
            let (least, most) = flow.deadline_us;
            let after_us = least + random.next_u64() % (most - least + 1);
            let is_refused = send(&socket, &flow, told.sent as u32, begun_ns + after_us * 1_000)?;
            told.sent += 1;
            told.refused += u64::from(is_refused);
        }
    }
    println!("{}", serde_json::to_string(&told)?);
    Ok(())
}

pub fn open(flow: &Flow, to: &str) -> Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
    setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER_BYTES)?;
    let clock = if flow.in_tai {
        libc::CLOCK_TAI
    } else {
        libc::CLOCK_MONOTONIC
    };
    let in_deadline_mode = libc::sock_txtime {
        clockid: clock,
        flags: libc::SOF_TXTIME_DEADLINE_MODE,
    };
    setsockopt(&socket, sockopt::TxTime, &in_deadline_mode).context("cannot set SO_TXTIME")?;
    if let Some((priority, tos)) = flow.marking {
        setsockopt(&socket, sockopt::Ipv4Tos, &tos)?;
        // After the TOS, which sets a priority too.
        setsockopt(&socket, sockopt::Priority, &priority)?;
    }
    socket.connect((to, PORT))?;
    Ok(socket)
}

/// Whether the packet was refused and the sender told so.
pub fn send(socket: &UdpSocket, flow: &Flow, number: u32, deadline_ns: u64) -> Result<bool> {
    let mut packet = [0; PACKET_BYTES];
    let made_ns = monotonic_ns()?;
    let payload = Payload {
        magic: PAYLOAD_MAGIC,
        flow: flow.flow,
        number,
        reserved: 0,
        deadline_ns,
        made_ns,
    };
    let start = payload_bytes(&payload);
    packet[..start.len()].copy_from_slice(&start);
    let deadline = if flow.in_tai {
        deadline_ns - made_ns + now_ns(ClockId::from_raw(libc::CLOCK_TAI))?
    } else {
        deadline_ns
    };
    let control = [ControlMessage::TxTime(&deadline)];
    let nobody: Option<&SockaddrIn> = None;
    match sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(&packet)],
        &control,
        MsgFlags::empty(),
        nobody,
    ) {
        Ok(PACKET_BYTES) => Ok(false),
        Err(Errno::ENOBUFS) => Ok(true),
        other => bail!("cannot send packet {number} of flow {}: {other:?}", flow.flow),
    }
}
