// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A second reading of packets, by the rules of bpf/read_packet.h: what the programs do is compared with what it says.
//! Input: a frame. Output: what of it decides, or None where it cannot be read.

const IPV4_OPTION: u8 = 0x9e;
const IPV6_OPTION: u8 = 0x1e;
const IPV6_EXTENSIONS: usize = 4;
const OPTIONS: usize = 40;
pub const ETHERNET: usize = 14;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

#[derive(Clone, Debug, Default)]
pub struct Packet {
    pub datagram: Datagram,
    pub remote_port: Option<u16>,
    pub local_port: Option<u16>,
    pub dscp: u8,
    /// Time left, in microseconds, as an IP option states it.
    pub option_us: Option<u32>,
    pub is_later_fragment: bool,
    pub has_more: bool,
}

/// What the fragments of one datagram have in common.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Datagram {
    pub is_ipv6: bool,
    pub local: [u8; 16],
    pub remote: [u8; 16],
    pub id: [u8; 4],
    pub protocol: u8,
}

pub fn read(frame: &[u8]) -> Option<Packet> {
    let net = &frame[ETHERNET..];
    // For a test, the network header follows the first type: behind a tag no packet is found.
    let (mut packet, transport_at) = match (&frame[12..ETHERNET], net.get(..20)?[0] >> 4) {
        ([0x08, 0x00], 4) => read_ipv4(net)?,
        ([0x86, 0xdd], 6) => read_ipv6(net)?,
        _ => return None,
    };
    if !packet.is_later_fragment
        && [TCP, UDP].contains(&packet.datagram.protocol)
        && let Some([a, b, c, d]) = take(net, transport_at)
    {
        packet.local_port = Some(u16::from_be_bytes([a, b]));
        packet.remote_port = Some(u16::from_be_bytes([c, d]));
    }
    Some(packet)
}

fn take<const N: usize>(net: &[u8], at: usize) -> Option<[u8; N]> {
    net.get(at..)?.first_chunk().copied()
}

fn read_ipv4(net: &[u8]) -> Option<(Packet, usize)> {
    let bytes = usize::from(net[0] & 0xf) * 4;
    if bytes < 20 {
        return None;
    }
    let fragment = u16::from_be_bytes([net[6], net[7]]);
    let mut packet = Packet {
        dscp: net[1] >> 2,
        is_later_fragment: fragment & 0x1fff > 0,
        has_more: fragment & 0x2000 > 0,
        option_us: option(net, 20, bytes, IPV4_OPTION),
        ..Packet::default()
    };
    let datagram = &mut packet.datagram;
    datagram.id[..2].copy_from_slice(&net[4..6]);
    datagram.protocol = net[9];
    datagram.local[..4].copy_from_slice(&net[12..16]);
    datagram.remote[..4].copy_from_slice(&net[16..20]);
    Some((packet, bytes))
}

fn read_ipv6(net: &[u8]) -> Option<(Packet, usize)> {
    let header: [u8; 40] = take(net, 0)?;
    let mut packet = Packet {
        dscp: (header[0] << 4 | header[1] >> 4) >> 2,
        ..Packet::default()
    };
    packet.datagram.is_ipv6 = true;
    packet.datagram.local.copy_from_slice(&header[8..24]);
    packet.datagram.remote.copy_from_slice(&header[24..]);
    let (mut next, mut at) = (header[6], 40);
    for _ in 0..IPV6_EXTENSIONS {
        if ![0, 43, 44, 60].contains(&next) {
            break;
        }
        let extension: [u8; 8] = take(net, at)?;
        if next == 44 {
            packet.is_later_fragment = u16::from_be_bytes([extension[2], extension[3]]) & 0xfff8 > 0;
            packet.has_more = extension[3] & 1 > 0;
            packet.datagram.id.copy_from_slice(&extension[4..]);
            at += 8;
        } else {
            let bytes = (usize::from(extension[1]) + 1) * 8;
            if next != 43 {
                packet.option_us = option(net, at + 2, at + bytes, IPV6_OPTION).or(packet.option_us);
            }
            at += bytes;
        }
        next = extension[0];
    }
    packet.datagram.protocol = next;
    Some((packet, at))
}

fn option(net: &[u8], mut at: usize, end: usize, wanted: u8) -> Option<u32> {
    let is_ipv4 = wanted == IPV4_OPTION;
    for _ in 0..OPTIONS {
        let [kind, length] = take(net, at).filter(|_| at + 2 <= end)?;
        if is_ipv4 && kind == 0 {
            return None;
        }
        // Padding of one byte.
        if kind <= u8::from(is_ipv4) {
            at += 1;
            continue;
        }
        let bytes = usize::from(length) + if is_ipv4 { 0 } else { 2 };
        if bytes < 2 {
            return None;
        }
        if kind == wanted
            && bytes == 6
            && at + bytes <= end
            && let Some(us) = take(net, at + 2)
        {
            return Some(u32::from_be_bytes(us));
        }
        at += bytes;
    }
    None
}
