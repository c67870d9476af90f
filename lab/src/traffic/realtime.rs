// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets with deadlines, from processes of their own: the role `realtime-sender` sends bursts at set times and
//! counts what it is told, `realtime-receiver` notes when each came; `flood` fills a queue.
//! `realtime-enqueue` measures what one packet costs, `plain-bursts` what any packet does.
//! `realtime-requests` asks a `realtime-service`, `icmp-flood` pings beside them.
//! Each takes a description (the receiver needs none). They share the machine's monotonic clock.

pub mod flood;
pub mod icmp;
pub mod plain;
pub mod receiver;
pub mod requests;
pub mod sender;
pub mod service;

use std::hint::black_box;
use std::io::{IoSlice, Read as _, stdin};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};

use crate::calls::{SOF_TXTIME_DEADLINE_MODE, sock_txtime};
use crate::link::{PAYLOAD_MAGIC, Payload, read_payload};
use crate::records::bytes_of;

pub const PORT: u16 = 5_005;
/// How long it may take to notice that standard input ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);
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

pub fn sleep_until(monotonic_ns: u64) -> Result<()> {
    let when = TimeSpec::new((monotonic_ns / 1_000_000_000) as _, (monotonic_ns % 1_000_000_000) as _);
    let flags = ClockNanosleepFlags::TIMER_ABSTIME;
    match clock_nanosleep(ClockId::CLOCK_MONOTONIC, flags, &when) {
        Ok(_) => Ok(()),
        Err(error) => Err(error).context("cannot wait"),
    }
}

/// The shortest of so many times that it took, which nothing interrupted.
fn shortest_ns(times: usize, act: impl Fn()) -> Result<u64> {
    let mut shortest_ns = u64::MAX;
    for _ in 0..times {
        let begun_ns = monotonic_ns()?;
        act();
        shortest_ns = shortest_ns.min(monotonic_ns()? - begun_ns);
    }
    Ok(shortest_ns)
}

#[inline(never)]
fn spin(turns: u64) {
    for turn in 0..turns {
        black_box(turn);
    }
}

/// SO_TXTIME in deadline mode, by this clock, and IP_RECVERR, so that a refusal is told.
pub fn send_with_deadlines(socket: &UdpSocket, clock: ClockId) -> Result<()> {
    setsockopt(socket, sockopt::Ipv4RecvErr, &true)?;
    let in_deadline_mode = sock_txtime {
        clockid: clock.as_raw(),
        flags: SOF_TXTIME_DEADLINE_MODE,
    };
    setsockopt(socket, sockopt::TxTime, &in_deadline_mode).context("cannot set SO_TXTIME")
}

/// SO_PRIORITY and TOS.
fn mark(socket: &UdpSocket, (priority, tos): (i32, i32)) -> Result<()> {
    setsockopt(socket, sockopt::Ipv4Tos, &tos)?;
    // After the TOS, which sets a priority too.
    Ok(setsockopt(socket, sockopt::Priority, &priority)?)
}

/// Sends a packet of this flow and number, due at `due_ns` of the socket's own SO_TXTIME clock. Whether it was refused
/// and the sender told so.
pub fn send_due<const BYTES: usize>(
    socket: &UdpSocket,
    (flow, number): (u32, u32),
    (made_ns, deadline_ns): (u64, u64),
    due_ns: u64,
) -> Result<bool> {
    let payload = Payload {
        magic: PAYLOAD_MAGIC,
        flow,
        number,
        reserved: 0,
        deadline_ns,
        made_ns,
    };
    let mut packet = [0; BYTES];
    let start = bytes_of(&payload);
    packet[..start.len()].copy_from_slice(start);
    let control = [ControlMessage::TxTime(&due_ns)];
    let (flags, nobody): (_, Option<&SockaddrIn>) = (MsgFlags::empty(), None);
    match sendmsg(socket.as_raw_fd(), &[IoSlice::new(&packet)], &control, flags, nobody) {
        Ok(sent) if sent == BYTES => Ok(false),
        Err(Errno::ENOBUFS) => Ok(true),
        other => bail!("cannot send packet {number} of flow {flow}: {other:?}"),
    }
}

/// Where packets with deadlines come to.
fn listen() -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("cannot listen")?;
    socket.set_read_timeout(Some(LOOK_EVERY))?;
    Ok(socket)
}

/// Says that it listens and handles each packet with a deadline, until standard input ends. The handler is given the
/// packet's payload, all its bytes, where it is from, and when it was here.
fn receive_all(
    socket: &UdpSocket,
    mut handle: impl FnMut(&Payload, &[u8], SocketAddr, u64) -> Result<()>,
) -> Result<()> {
    let lasts = std::thread::spawn(|| stdin().read_to_end(&mut Vec::new()));
    println!();
    let mut packet = [0; 2_048];
    while !lasts.is_finished() {
        let Ok((length, from)) = socket.recv_from(&mut packet) else {
            continue; // nothing for a while
        };
        let at_ns = monotonic_ns()?;
        if let Some(payload) = read_payload(&packet[..length]) {
            handle(&payload, &packet[..length], from, at_ns)?;
        }
    }
    Ok(())
}
