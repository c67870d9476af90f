// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One flow of packets with deadlines, as an application would send it: SO_TXTIME in deadline mode, an SCM_TXTIME with
//! each packet, IP_RECVERR so that a refusal is told. Out, in JSON when all are sent: how many, and how many refusals
//! it was told of. It runs at a real-time priority, as an application with deadlines should have (P4), where it may.

use std::net::UdpSocket;

use anyhow::Result;
use nix::sys::socket::{setsockopt, sockopt};
use nix::time::ClockId;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::receiver::REALTIME_PRIORITY;
use super::{PACKET_BYTES, PORT, mark, monotonic_ns, now_ns, send_due, send_with_deadlines, sleep_until};
use crate::link::wire::RECEIVER_ADDRESS;
use crate::scheduling::take_fifo;

/// More than a burst, so that the queue refuses and not the socket.
const SEND_BUFFER_BYTES: usize = 8 << 20;

#[derive(Default, Deserialize, Serialize)]
pub struct DeadlineFlow {
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
    /// None: the receiver of a wire.
    pub to: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct SenderCounts {
    pub sent: u64,
    pub refused: u64,
}

/// The role `realtime-sender`.
pub fn run(flow: DeadlineFlow) -> Result<SenderCounts> {
    let socket = open(&flow, flow.to.as_deref().unwrap_or(RECEIVER_ADDRESS))?;
    // As for the receiver.
    let _ = take_fifo(REALTIME_PRIORITY);
    let mut random = ChaCha8Rng::seed_from_u64(flow.seed);
    let mut counts = SenderCounts::default();
    let bursts = flow.packets / flow.burst;
    for burst in 0..bursts {
        sleep_until(flow.first_ns + burst * flow.every_ns)?;
        let begun_ns = monotonic_ns()?;
        for _ in 0..flow.burst {
            let (least, most) = flow.deadline_us;
            let after_us = least + random.next_u64() % (most - least + 1);
            let is_refused = send(&socket, &flow, counts.sent as u32, begun_ns + after_us * 1_000)?;
            counts.sent += 1;
            counts.refused += u64::from(is_refused);
        }
    }
    Ok(counts)
}

pub fn open(flow: &DeadlineFlow, to: &str) -> Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER_BYTES)?;
    let clock = if flow.in_tai {
        ClockId::CLOCK_TAI
    } else {
        ClockId::CLOCK_MONOTONIC
    };
    send_with_deadlines(&socket, clock)?;
    if let Some(marking) = flow.marking {
        mark(&socket, marking)?;
    }
    socket.connect((to, PORT))?;
    Ok(socket)
}

/// Whether the packet was refused and the sender told so.
pub fn send(socket: &UdpSocket, flow: &DeadlineFlow, number: u32, deadline_ns: u64) -> Result<bool> {
    let made_ns = monotonic_ns()?;
    let due_ns = if flow.in_tai {
        deadline_ns - made_ns + now_ns(ClockId::CLOCK_TAI)?
    } else {
        deadline_ns
    };
    send_due::<PACKET_BYTES>(socket, (flow.flow, number), (made_ns, deadline_ns), due_ns)
}
