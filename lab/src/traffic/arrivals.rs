// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What arrives at a host, counted where its device hands it on: whatever sent it, and whatever receives it.
//! Input: packets of all devices of a namespace. Output: bytes by where they went, on request. Sends nothing.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use nix::sys::socket::{LinkAddr, MsgFlags, recvmsg};
use socket2::{Domain, Protocol, Socket, Type};

use crate::calls::{ETH_P_ALL, PACKET_OUTGOING};
use crate::namespace::Namespace;
use crate::role::{Role, answer_each};

/// Bytes by `tcp:22`, `udp:53`, `ip:PROTOCOL` for IP without ports, or `ether:TYPE` for anything else; with ` dscp N` behind
/// it where the packets are marked.
pub type ByteCounts = BTreeMap<String, u64>;

/// IP headers of this size have no options.
const LEAST_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
/// Enough for IP with options, and for the ports.
const HEAD: usize = 96;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;

pub struct ArrivalCounter(Role);

impl ArrivalCounter {
    /// Counts from its return on.
    pub fn count(at: &Namespace) -> Result<Self> {
        Role::start(at, "arrivals", &()).map(Self)
    }

    /// Since the start.
    pub fn read(&mut self) -> Result<ByteCounts> {
        self.0.ask("")
    }
}

/// All that went to a port, say, whatever its mark.
pub fn of(counts: &ByteCounts, kind: &str) -> u64 {
    let is_it = |of: &str| {
        of.strip_prefix(kind)
            .is_some_and(|mark| mark.is_empty() || mark.starts_with(' '))
    };
    counts.iter().filter(|(of, _)| is_it(of)).map(|(_, bytes)| bytes).sum()
}

/// The role `arrivals`.
pub fn run(_description: &str) -> Result<()> {
    let protocol = Protocol::from(i32::from((ETH_P_ALL as u16).to_be()));
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol)).context("cannot see packets")?;
    // What it has no room for would not be counted.
    socket.set_recv_buffer_size(32 << 20).context("no room for packets")?;
    let counts = Arc::new(Mutex::new(ByteCounts::new()));
    let counted = counts.clone();
    thread::spawn(move || {
        let mut head = [0; HEAD];
        while let Ok((length, from)) = receive(&socket, &mut head) {
            let Some(from) = from.filter(|from| from.pkttype() != PACKET_OUTGOING) else {
                continue;
            };
            let kind = kind(u16::from_be(from.protocol()), &head[..length.min(HEAD)]);
            let mut counts = counted.lock().unwrap_or_else(PoisonError::into_inner);
            *counts.entry(kind).or_default() += length as u64;
        }
    });
    println!("counting");
    answer_each(|_| Ok(counts.lock().unwrap_or_else(PoisonError::into_inner).clone()))
}

/// How long the packet is, not what there was room for.
fn receive(socket: &Socket, head: &mut [u8]) -> nix::Result<(usize, Option<LinkAddr>)> {
    let mut room = [IoSliceMut::new(head)];
    let received = recvmsg::<LinkAddr>(socket.as_raw_fd(), &mut room, None, MsgFlags::MSG_TRUNC)?;
    Ok((received.bytes, received.address))
}

fn kind(ethertype: u16, packet: &[u8]) -> String {
    let (header, protocol, traffic_class) = match ethertype {
        ETHERTYPE_IPV4 if packet.len() >= LEAST_HEADER => (usize::from(packet[0] & 0xf) * 4, packet[9], packet[1]),
        // Nobody here sends extension headers.
        ETHERTYPE_IPV6 if packet.len() >= IPV6_HEADER => (IPV6_HEADER, packet[6], packet[0] << 4 | packet[1] >> 4),
        _ => return format!("ether:{ethertype:04x}"),
    };
    let port = packet
        .get(header + 2..header + 4)
        .map(|port| u16::from_be_bytes([port[0], port[1]]));
    let mark = match traffic_class >> 2 {
        0 => String::new(),
        dscp => format!(" dscp {dscp}"),
    };
    match (protocol, port) {
        (TCP, Some(port)) => format!("tcp:{port}{mark}"),
        (UDP, Some(port)) => format!("udp:{port}{mark}"),
        (protocol, _) => format!("ip:{protocol}{mark}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_by_destination() {
        let mut packet = [0; 40];
        packet[0] = 0x46;
        packet[9] = TCP;
        packet[26..28].copy_from_slice(&2222_u16.to_be_bytes());
        assert_eq!(kind(ETHERTYPE_IPV4, &packet), "tcp:2222");
        (packet[1], packet[9]) = (0x04, 47);
        assert_eq!(kind(ETHERTYPE_IPV4, &packet), "ip:47 dscp 1");
        assert_eq!(kind(0x0806, &packet), "ether:0806");
        assert_eq!(kind(ETHERTYPE_IPV4, &packet[..3]), "ether:0800");
        let mut packet = [0; 48];
        packet[..2].copy_from_slice(&[0x60, 0x40]);
        packet[6] = UDP;
        packet[42..44].copy_from_slice(&53_u16.to_be_bytes());
        assert_eq!(kind(ETHERTYPE_IPV6, &packet), "udp:53 dscp 1");
    }
}
