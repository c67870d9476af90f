// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends packets that must leave within DEADLINE_MS milliseconds: sender ADDRESS PORT DEADLINE_MS PACKETS
//!
//! If giveway cannot send a packet in time, sendmsg fails with ENOBUFS at once: the sender can then send something
//! smaller, something newer, or nothing. Run: cargo run -p giveway-lab --example sender

use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg, setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};

fn open_socket(address: &str, port: u16) -> Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?; // reports refusals
    let deadlines = libc::sock_txtime {
        clockid: libc::CLOCK_MONOTONIC,
        flags: libc::SOF_TXTIME_DEADLINE_MODE,
    };
    setsockopt(&socket, sockopt::TxTime, &deadlines)?;
    socket.connect((address, port))?;
    Ok(socket)
}

/// Whether the packet will leave in time; if not, it was not sent.
fn send_until(socket: &UdpSocket, data: &[u8], deadline_ns: u64) -> Result<bool> {
    let deadline = [ControlMessage::TxTime(&deadline_ns)];
    let to: Option<&SockaddrIn> = None; // it is connected
    match sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(data)],
        &deadline,
        MsgFlags::empty(),
        to,
    ) {
        Ok(_) => Ok(true),
        Err(Errno::ENOBUFS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, port, deadline_ms, packets] = words.as_slice() else {
        anyhow::bail!("sender ADDRESS PORT DEADLINE_MS PACKETS");
    };
    let socket = open_socket(address, port.parse().context("PORT")?)?;
    let (after_ms, packets): (u64, u64) = (deadline_ms.parse()?, packets.parse()?);
    let mut refused = 0;
    for _ in 0..packets {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        let now_ns = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
        if !send_until(&socket, &[0; 1_000], now_ns + after_ms * 1_000_000)? {
            refused += 1; // the link is busy until the deadline: this example drops the packet
        }
    }
    println!("sent {} refused {refused}", packets - refused);
    Ok(())
}
