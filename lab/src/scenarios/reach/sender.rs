// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The role `reach-sender`: offers so many Mbit/s by one kind of socket until it is killed. Its first line is the process
//! that sends.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::ring::Ring;
use crate::traffic::realtime::{monotonic_ns, sleep_until};

/// For experiments (RFC 3692).
const RAW_PROTOCOL: i32 = 253;
const MPTCP: i32 = 262;
const EVERY_NS: u64 = 5_000_000;
const PACKET_BYTES: usize = 1_200;
const NS_PER_S: f64 = 1e9;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum SocketKind {
    Tcp,
    Mptcp,
    Udp,
    UdpNotConnected,
    Raw,
    Packet,
    IoUring,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Offer {
    pub kind: SocketKind,
    pub to: SocketAddr,
    pub from: Option<IpAddr>,
    /// Of a packet socket.
    pub device: String,
    pub mbit: f64,
    /// What comes before the sender's own words where another process is to send on the connection that this one makes and
    /// keeps.
    pub handed_to: Vec<String>,
    /// The connection that was inherited.
    pub descriptor: Option<i32>,
}

impl Offer {
    pub fn udp(to: SocketAddr, mbit: f64) -> Self {
        Self {
            kind: SocketKind::Udp,
            to,
            from: None,
            device: String::new(),
            mbit,
            handed_to: Vec::new(),
            descriptor: None,
        }
    }
}

/// The role `reach-sender`.
pub fn run(description: &str) -> Result<()> {
    let offer: Offer = serde_json::from_str(description)?;
    if offer.descriptor.is_none() {
        let socket = open(&offer)?;
        if offer.handed_to.is_empty() {
            println!("{}", std::process::id());
            return send(&offer, &socket);
        }
        return hand_on(offer, &socket);
    }
    let descriptor = offer.descriptor.context("no connection was inherited")?;
    // SAFETY: it was inherited, and nothing else here owns it.
    let socket = Socket::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    println!("{}", std::process::id());
    send(&offer, &socket)
}

/// The other process has the output of this one, and says who sends.
fn hand_on(mut offer: Offer, socket: &Socket) -> Result<()> {
    socket.set_cloexec(false)?;
    offer.descriptor = Some(socket.as_raw_fd());
    let words = std::mem::take(&mut offer.handed_to);
    let own = std::env::current_exe()?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(own).args(["role", "reach-sender"]);
    let ended = command.arg(serde_json::to_string(&offer)?).status()?;
    bail!("the process that was to send ended: {ended}")
}

fn open(offer: &Offer) -> Result<Socket> {
    let (kind, protocol) = match offer.kind {
        SocketKind::Tcp => (Type::STREAM, None),
        SocketKind::Mptcp => (Type::STREAM, Some(Protocol::from(MPTCP))),
        SocketKind::Udp | SocketKind::UdpNotConnected | SocketKind::IoUring | SocketKind::Packet => (Type::DGRAM, None),
        SocketKind::Raw => (Type::RAW, Some(Protocol::from(RAW_PROTOCOL))),
    };
    let domain = match offer.kind {
        SocketKind::Packet => Domain::PACKET,
        _ => Domain::for_address(offer.to),
    };
    let socket = Socket::new(domain, kind, protocol).context("cannot make a socket")?;
    if let Some(from) = offer.from {
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    match offer.kind {
        SocketKind::UdpNotConnected | SocketKind::Raw | SocketKind::Packet => {}
        _ => socket
            .connect(&offer.to.into())
            .context("cannot reach the remote host")?,
    }
    // What has no room is lost, and not made up for when there is more.
    socket.set_nonblocking(offer.kind == SocketKind::Udp)?;
    Ok(socket)
}

fn send(offer: &Offer, socket: &Socket) -> Result<()> {
    let bytes = vec![0_u8; PACKET_BYTES];
    let frame = match offer.kind {
        SocketKind::Packet => ip_packet(offer.to, PACKET_BYTES)?,
        _ => Vec::new(),
    };
    let mut ring = match offer.kind {
        SocketKind::IoUring => Some(Ring::new()?),
        _ => None,
    };
    let device = match offer.kind {
        SocketKind::Packet => nix::net::if_::if_nametoindex(offer.device.as_str())?,
        _ => 0,
    };
    let began_ns = monotonic_ns()?;
    let mut due_ns = began_ns;
    let mut sent_bytes = 0.0;
    loop {
        due_ns += EVERY_NS;
        sleep_until(due_ns)?;
        let due_bytes = (monotonic_ns()? - began_ns) as f64 / NS_PER_S * offer.mbit * 1e6 / 8.0;
        while sent_bytes < due_bytes {
            sent_bytes += PACKET_BYTES as f64;
            // What is refused is lost like any other; only a connection breaks.
            match offer.kind {
                SocketKind::Tcp | SocketKind::Mptcp => write_all(socket, &bytes)?,
                SocketKind::Udp => drop(socket.send(&bytes)),
                SocketKind::UdpNotConnected | SocketKind::Raw => drop(socket.send_to(&bytes, &offer.to.into())),
                SocketKind::Packet => drop(send_frame(socket, device, &frame)),
                SocketKind::IoUring => match &mut ring {
                    Some(ring) => ring.send(socket.as_raw_fd(), &bytes)?,
                    None => bail!("there is no ring"),
                },
            }
        }
    }
}

fn write_all(socket: &Socket, bytes: &[u8]) -> Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = &rest[socket.send(rest).context("the connection broke")?..];
    }
    Ok(())
}

/// A UDP packet as a program writes it that makes its own.
fn ip_packet(to: SocketAddr, bytes: usize) -> Result<Vec<u8>> {
    let IpAddr::V4(ip) = to.ip() else {
        bail!("it makes packets of IPv4 alone");
    };
    let mut packet = vec![0; bytes];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
    packet[8] = 64;
    packet[9] = 17;
    packet[12..16].copy_from_slice(&Ipv4Addr::new(10, 77, 1, 1).octets());
    packet[16..20].copy_from_slice(&ip.octets());
    let sum: u32 = packet[..20]
        .chunks(2)
        .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    packet[20..22].copy_from_slice(&4_000_u16.to_be_bytes());
    packet[22..24].copy_from_slice(&to.port().to_be_bytes());
    packet[24..26].copy_from_slice(&((bytes - 20) as u16).to_be_bytes());
    Ok(packet)
}

fn send_frame(socket: &Socket, device: u32, packet: &[u8]) -> Result<()> {
    // SAFETY: plain data, for which zeros are valid.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_protocol = (libc::ETH_P_IP as u16).to_be();
    to.sll_ifindex = i32::try_from(device)?;
    to.sll_halen = 6;
    // To everybody: the remote host's device counts it in any case.
    to.sll_addr[..6].fill(0xff);
    // SAFETY: the packet and the address are valid for the call, with these lengths.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            0,
            (&raw const to).cast(),
            size_of_val(&to) as libc::socklen_t,
        )
    };
    nix::errno::Errno::result(sent)
        .map(drop)
        .context("cannot send a packet")
}
