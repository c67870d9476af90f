// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The role `hostile`: sends what nobody should, batch after batch, whatever becomes of the device meanwhile.
//! Input: a seed and the interface. Output: each second a line of JSON with how much of what it sent so far, and how
//! often it was refused (ENOBUFS) or failed otherwise. Sockets live for one batch, so that a new device is soon found.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, send, sendmsg, socket,
};
use nix::time::ClockId;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use strum::VariantArray;

use super::{BACKGROUND_PORT, Ends, PacketKind, RULE_PORT, below, deadline_us, frames, is_one_in, pick, some_noise};
use crate::calls::{
    IP_OPTIONS, IP_RECVERR, IP_TOS, IPPROTO_IP, IPPROTO_IPV6, IPV6_DSTOPTS, IPV6_RECVERR, IPV6_TCLASS, PACKET_VNET_HDR,
    SO_MAX_PACING_RATE, SO_PRIORITY, SO_TXTIME, SOL_PACKET, SOL_SOCKET, SOL_UDP, UDP_SEGMENT, bind_to_device,
    set_option,
};
use crate::traffic::realtime::monotonic_ns;

pub const NEAR_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 1);
pub const FAR_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 2);
pub const NEAR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 2, 0, 0, 0, 0, 0, 1);
pub const FAR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 2, 0, 0, 0, 0, 0, 2);
pub const NEAR_MAC: [u8; 6] = [2, 0, 0, 0, 2, 1];
pub const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 2, 2];
const TCP_SINK_PORT: u16 = 5_100;

const BATCH: u64 = 64;
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// After a batch: what else happens needs a CPU too.
const PAUSE: Duration = Duration::from_millis(5);
/// While there is no device, or it is down.
const RETRY: Duration = Duration::from_millis(20);
/// Of a datagram that its stack has to fragment.
const LARGEST_DATAGRAM: usize = 20_000;

type Counts = BTreeMap<String, u64>;

pub fn run(description: &str) -> Result<()> {
    let (seed, interface): (u64, String) = serde_json::from_str(description)?;
    let interface = interface.as_str();
    let ends = Ends {
        macs: [NEAR_MAC, FAR_MAC],
        v4: [NEAR_V4.octets(), FAR_V4.octets()],
        v6: [NEAR_V6.octets(), FAR_V6.octets()],
    };
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut counts = Counts::new();
    let mut reported = Instant::now();
    loop {
        let opened = match below(&mut random, 8) {
            0..4 => send_frames(interface, &ends, &mut random, &mut counts),
            4 => send_raw(&ends, &mut random, &mut counts),
            5..7 => send_datagrams(&mut random, &mut counts),
            _ => send_stream(&mut random, &mut counts),
        };
        sleep(if opened.is_ok() { PAUSE } else { RETRY });
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            println!("{}", serde_json::to_string(&counts)?);
            io::stdout().flush()?;
        }
    }
}

/// What became of one send. That most fail in some way is the point of it.
fn note<T>(counts: &mut Counts, what: &str, done: Result<T, Errno>) {
    let outcome = match done {
        Ok(_) => "sent",
        Err(Errno::ENOBUFS) => "refused",
        Err(_) => "failed",
    };
    *counts.entry(format!("{outcome}_{what}")).or_default() += 1;
}

/// Whole frames, some with a claim that they are to be segmented further down.
fn send_frames(interface: &str, ends: &Ends, random: &mut ChaCha8Rng, counts: &mut Counts) -> io::Result<()> {
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
    bind_to_device(&socket, if_nametoindex(interface)?)?;
    set_option(&socket, SOL_SOCKET, SO_PRIORITY, &any_priority(random))?;
    let claims = is_one_in(random, 4);
    if claims {
        set_option(&socket, SOL_PACKET, PACKET_VNET_HDR, &1_i32.to_ne_bytes())?;
    }
    for _ in 0..BATCH {
        let kind = pick(random, PacketKind::VARIANTS);
        for frame in frames(kind, ends, random) {
            let (name, whole) = match claims {
                true => (
                    "frame_with_offload",
                    [offload_claim(random, frame.len()), frame].concat(),
                ),
                false => (kind.into(), frame),
            };
            note(counts, name, send(socket.as_raw_fd(), &whole, MsgFlags::MSG_DONTWAIT));
        }
    }
    Ok(())
}

/// `struct virtio_net_hdr`: flags, GSO type, header length, segment size, where a checksum begins and goes.
fn offload_claim(random: &mut ChaCha8Rng, bytes: usize) -> Vec<u8> {
    let flags = below(random, 2) as u8;
    let kind = pick(random, &[0, 1, 3, 4, 5, 0x80 | 1]);
    let sizes = [
        below(random, bytes as u64 + 1) as u16,
        pick(random, &[0, 1, 100, 536, 1_400, u16::MAX]),
        pick(random, &[0, 14, 34, 54]),
        pick(random, &[0, 6, 16, 1_000]),
    ];
    [vec![flags, kind], sizes.map(u16::to_ne_bytes).concat()].concat()
}

/// IPv4 with headers of our own through the stack's output.
fn send_raw(ends: &Ends, random: &mut ChaCha8Rng, counts: &mut Counts) -> io::Result<()> {
    let (family, protocol) = (AddressFamily::Inet, SockProtocol::Raw);
    let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    set_option(&socket, SOL_SOCKET, SO_PRIORITY, &any_priority(random))?;
    let to = SockaddrStorage::from(SocketAddr::from((FAR_V4, 0)));
    for _ in 0..BATCH {
        let kind = pick(random, &[PacketKind::Ipv4Header, PacketKind::Ipv4Options]);
        for frame in frames(kind, ends, random) {
            let packet = &frame[super::ETHERNET_BYTES..];
            let done = nix::sys::socket::sendto(socket.as_raw_fd(), packet, &to, MsgFlags::MSG_DONTWAIT);
            note(counts, "raw_ipv4", done);
        }
    }
    Ok(())
}

/// Of an honest stack: with deadlines of every kind, options, segmentation, fragments.
fn send_datagrams(random: &mut ChaCha8Rng, counts: &mut Counts) -> io::Result<()> {
    let is_v4 = is_one_in(random, 2);
    let (near, far): (IpAddr, IpAddr) = match is_v4 {
        true => (NEAR_V4.into(), FAR_V4.into()),
        false => (NEAR_V6.into(), FAR_V6.into()),
    };
    let port = pick(random, &[RULE_PORT, BACKGROUND_PORT, 9, 5_006]);
    let socket = UdpSocket::bind((near, 0))?;
    socket.connect((far, port))?;
    socket.set_nonblocking(true)?;
    let segments = mark(&socket, is_v4, random);
    let has_deadline = is_one_in(random, 2) && ask_for_deadlines(&socket, random).is_ok();
    let name = match (segments, has_deadline) {
        (true, _) => "udp_segmented",
        (false, true) => "udp_with_txtime",
        (false, false) => "udp",
    };
    let nobody: Option<&SockaddrStorage> = None;
    for _ in 0..BATCH {
        let length = if is_one_in(random, 4) { LARGEST_DATAGRAM } else { 1_472 };
        let data = some_noise(random, length);
        let when = any_time(random)?;
        let control = [ControlMessage::TxTime(&when)];
        let control = if has_deadline { &control[..] } else { &[] };
        let in_fragments = data.len() > 1_472 && !segments;
        let name = if in_fragments { "udp_in_fragments" } else { name };
        let (data, flags) = ([IoSlice::new(&data)], MsgFlags::MSG_DONTWAIT);
        note(counts, name, sendmsg(socket.as_raw_fd(), &data, control, flags, nobody));
    }
    Ok(())
}

/// Whether its datagrams will be segmented. What the kernel does not take is left out.
fn mark(socket: &UdpSocket, is_v4: bool, random: &mut ChaCha8Rng) -> bool {
    let on = 1_i32.to_ne_bytes();
    let tos = pick(random, &[0_i32, 4, 0xb8, 0x88]).to_ne_bytes();
    let us = deadline_us(random).to_be_bytes();
    let (level, [tos_name, errors, options], value) = if is_v4 {
        let option = [&[0x9e, 6][..], &us, &[1, 0]].concat();
        let names = [IP_TOS, IP_RECVERR, IP_OPTIONS];
        (IPPROTO_IP, names, option)
    } else {
        // Next header and length are the kernel's to fill in.
        let option = [&[0, 0, 0x1e, 4][..], &us].concat();
        let names = [IPV6_TCLASS, IPV6_RECVERR, IPV6_DSTOPTS];
        (IPPROTO_IPV6, names, option)
    };
    let _ = set_option(socket, level, tos_name, &tos);
    let _ = set_option(socket, SOL_SOCKET, SO_PRIORITY, &any_priority(random));
    if is_one_in(random, 2) {
        let _ = set_option(socket, level, errors, &on);
    }
    if is_one_in(random, 3) {
        let _ = set_option(socket, level, options, &value);
    }
    let bytes = 1 + below(random, 1_400) as i32;
    is_one_in(random, 4) && set_option(socket, SOL_UDP, UDP_SEGMENT, &bytes.to_ne_bytes()).is_ok()
}

fn any_priority(random: &mut ChaCha8Rng) -> [u8; 4] {
    pick(random, &[0_i32, 0, 1, 6, 7]).to_ne_bytes()
}

/// SO_TXTIME, mostly as giveway wants it.
fn ask_for_deadlines(socket: &UdpSocket, random: &mut ChaCha8Rng) -> Result<(), Errno> {
    let monotonic = ClockId::CLOCK_MONOTONIC;
    let clock = pick(random, &[monotonic, monotonic, monotonic, ClockId::CLOCK_TAI]);
    let flags = pick(random, &[1_u32, 1, 1, 0, 3]);
    let value = [clock.as_raw().to_ne_bytes(), flags.to_ne_bytes()].concat();
    set_option(socket, SOL_SOCKET, SO_TXTIME, &value)
}

/// Past, near, far, and where arithmetic overflows.
fn any_time(random: &mut ChaCha8Rng) -> Result<u64, io::Error> {
    let now_ns = monotonic_ns().map_err(io::Error::other)?;
    let near_ns = now_ns + below(random, 100_000_000);
    let far_ns = now_ns + below(random, 100_000_000_000);
    let any_ns = random.next_u64();
    let edges_ns = [now_ns, now_ns / 2, 0, 1, any_ns, u64::MAX, i64::MAX as u64];
    Ok(pick(
        random,
        &[&[near_ns, near_ns, near_ns, far_ns][..], &edges_ns].concat(),
    ))
}

/// A connection that ends at any moment, some of them paced by TCP itself.
fn send_stream(random: &mut ChaCha8Rng, counts: &mut Counts) -> io::Result<()> {
    let is_v4 = is_one_in(random, 2);
    let far: IpAddr = if is_v4 { FAR_V4.into() } else { FAR_V6.into() };
    let mut stream = TcpStream::connect_timeout(&(far, TCP_SINK_PORT).into(), Duration::from_millis(100))?;
    stream.set_write_timeout(Some(Duration::from_millis(50)))?;
    if is_one_in(random, 2) {
        let rate = pick(random, &[10_000_u32, 1_000_000, u32::MAX]);
        set_option(&stream, SOL_SOCKET, SO_MAX_PACING_RATE, &rate.to_ne_bytes())?;
    }
    set_option(&stream, SOL_SOCKET, SO_PRIORITY, &any_priority(random))?;
    for _ in 0..below(random, BATCH) {
        let data = some_noise(random, 30_000);
        let written = stream.write(&data);
        note(
            counts,
            "tcp",
            written.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0))),
        );
    }
    Ok(())
}
