// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames that no honest stack sends: headers, options and extensions that lie about themselves.
//! Input: a seeded source of chance, the ends of the link. Output: whole Ethernet frames, those together that belong
//! together (fragments). Pure; `sender` sends them.

pub mod sender;

use rand_chacha::rand_core::Rng;
use strum::{IntoStaticStr, VariantArray};

/// Of giveway's deadlines: RFC 4727's experimental numbers, in IPv4 and in IPv6.
const DEADLINE_OPTION: u8 = 0x9e;
const DEADLINE_OPTION_V6: u8 = 0x1e;
/// A port that a rule of the daemon gives a deadline, and one of its background flows.
pub const RULE_PORT: u16 = 5_005;
pub const BACKGROUND_PORT: u16 = 5_007;
pub const ETHERNET_BYTES: usize = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Above any MTU that the devices here can have is what the kernel itself refuses.
const LARGEST_BYTES: usize = 9_000;
/// Headers are no longer.
const READ_BYTES: usize = 256;
const UDP: u8 = 17;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

#[derive(Clone, Copy, Debug, Eq, IntoStaticStr, Ord, PartialEq, PartialOrd, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum PacketKind {
    /// Any header length, total length, fragment field, protocol.
    Ipv4Header,
    /// Options of all lengths; the deadline's with right and wrong ones.
    Ipv4Options,
    /// Ends anywhere in its headers.
    Truncated,
    /// Chains of extension headers, some longer than anyone reads.
    Ipv6Extensions,
    /// All of a datagram's fragments, only the first, only later ones, or ones that overlap.
    Fragments,
    /// One to four tags before a packet.
    Vlan,
    /// IP of no version that there is.
    BogusVersion,
    /// Hardly more than an Ethernet header.
    Tiny,
    Jumbo,
    Noise,
}

/// Where frames go from and to.
#[derive(Clone, Copy)]
pub struct Ends {
    pub macs: [[u8; 6]; 2],
    pub v4: [[u8; 4]; 2],
    pub v6: [[u8; 16]; 2],
}

/// The next frames of this kind: one, or those of one datagram.
pub fn frames(kind: PacketKind, ends: &Ends, random: &mut impl Rng) -> Vec<Vec<u8>> {
    let frame = |ether_type, payload: Vec<u8>| vec![ethernet(ends, ether_type, &payload)];
    match kind {
        PacketKind::Ipv4Header => frame(IPV4, ipv4_with_any_header(ends, random)),
        PacketKind::Ipv4Options => frame(IPV4, ipv4_with_options(ends, random)),
        PacketKind::Truncated => {
            let mut frame = packet_of_either_version(ends, random);
            let end = below(random, 60) as usize;
            frame.truncate(ETHERNET_BYTES + end);
            vec![frame]
        }
        PacketKind::Ipv6Extensions => frame(IPV6, ipv6_with_extensions(ends, random)),
        PacketKind::Fragments if is_one_in(random, 2) => fragments_v4(ends, random),
        PacketKind::Fragments => fragments_v6(ends, random),
        PacketKind::Vlan => vec![tagged(ends, random)],
        PacketKind::BogusVersion => {
            let ether_type = pick(random, &[IPV4, IPV6]);
            let bytes = below(random, 80).max(1) as usize;
            let mut payload = noise(random, bytes);
            let versions = [0, 1, 2, 3, 5, 7, 8, 15];
            payload[0] = pick(random, &versions) << 4 | payload[0] & 0xf;
            frame(ether_type, payload)
        }
        PacketKind::Tiny => {
            let length = below(random, 7) as usize;
            frame(pick(random, &[IPV4, IPV6, 0x0806, 0, 0x05ff]), noise(random, length))
        }
        PacketKind::Jumbo => {
            let room = LARGEST_BYTES - 28;
            let length = 1_400 + below(random, (room - 1_400) as u64) as usize;
            frame(IPV4, ipv4(ends, &Ipv4::udp(random), &noise(random, length)))
        }
        PacketKind::Noise => {
            let bytes = below(random, 1_500) as usize;
            frame(random.next_u32() as u16, noise(random, bytes))
        }
    }
}

/// The time left, as a sender might state it: none, some, and far too much.
pub fn deadline_us(random: &mut impl Rng) -> u32 {
    let some = below(random, 200_000) as u32;
    pick(random, &[0, 1, some, some, some, u32::MAX, i32::MAX as u32])
}

pub fn below(random: &mut impl Rng, limit: u64) -> u64 {
    random.next_u64() % limit.max(1)
}

pub fn is_one_in(random: &mut impl Rng, many: u64) -> bool {
    below(random, many) == 0
}

pub fn pick<T: Copy>(random: &mut impl Rng, of: &[T]) -> T {
    of[below(random, of.len() as u64) as usize]
}

/// As far as anyone reads it; behind that it only has to be there.
pub fn noise(random: &mut impl Rng, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0x5a; bytes];
    let read = bytes.min(READ_BYTES);
    random.fill_bytes(&mut noise[..read]);
    noise
}

/// As many bytes of it as are below this limit.
pub fn some_noise(random: &mut impl Rng, limit: usize) -> Vec<u8> {
    let bytes = below(random, limit as u64) as usize;
    noise(random, bytes)
}

/// What a field of the packet says: mostly the truth.
fn claim<T>(random: &mut impl Rng, truth: T, any: fn(u32) -> T) -> T {
    if is_one_in(random, 4) {
        any(random.next_u32())
    } else {
        truth
    }
}

fn ethernet(ends: &Ends, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let [from, to] = ends.macs;
    [&to[..], &from, &ether_type.to_be_bytes(), payload].concat()
}

fn packet_of_either_version(ends: &Ends, random: &mut impl Rng) -> Vec<u8> {
    if is_one_in(random, 2) {
        ethernet(ends, IPV4, &ipv4_with_options(ends, random))
    } else {
        ethernet(ends, IPV6, &ipv6_with_extensions(ends, random))
    }
}

/// What an IPv4 header may say, true or not.
struct Ipv4 {
    words: Option<u8>,
    total_bytes: Option<u16>,
    id: u16,
    fragment: u16,
    protocol: u8,
    tos: u8,
    options: Vec<u8>,
}

impl Ipv4 {
    fn udp(random: &mut impl Rng) -> Self {
        Self {
            words: None,
            total_bytes: None,
            id: random.next_u32() as u16,
            fragment: 0,
            protocol: UDP,
            tos: pick(random, &[0, 0, 4, 0xb8]),
            options: Vec::new(),
        }
    }
}

/// Its checksum is right, so that whoever forwards or receives it looks further.
fn ipv4(ends: &Ends, says: &Ipv4, payload: &[u8]) -> Vec<u8> {
    let header_bytes = 20 + says.options.len();
    let words = says.words.unwrap_or((header_bytes / 4) as u8) & 0xf;
    let total_bytes = says.total_bytes.unwrap_or((header_bytes + payload.len()) as u16);
    let mut packet = vec![0x40 | words, says.tos];
    for field in [total_bytes, says.id, says.fragment] {
        packet.extend(field.to_be_bytes());
    }
    packet.extend([64, says.protocol, 0, 0]);
    packet.extend(ends.v4.concat());
    packet.extend(&says.options);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// RFC 1071.
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn ipv4_with_any_header(ends: &Ends, random: &mut impl Rng) -> Vec<u8> {
    let length = below(random, 100) as usize;
    let says = Ipv4 {
        words: Some(below(random, 16) as u8),
        total_bytes: is_one_in(random, 2).then(|| random.next_u32() as u16),
        fragment: pick(random, &[0, 0, 0x2000, 0x4000, 0x8000, 0x1fff, 0x3fff]),
        protocol: pick(random, &[UDP, UDP, 6, 1, 0, 255, 41, 47]),
        tos: random.next_u32() as u8,
        ..Ipv4::udp(random)
    };
    ipv4(ends, &says, &noise(random, length))
}

fn ipv4_with_options(ends: &Ends, random: &mut impl Rng) -> Vec<u8> {
    let room = 4 * below(random, 11) as usize;
    let mut options = Vec::new();
    while options.len() < room {
        options.extend(option(random, DEADLINE_OPTION));
    }
    // Whatever does not fit is cut off in the middle.
    options.truncate(room);
    let says = Ipv4 {
        options,
        ..Ipv4::udp(random)
    };
    let length = below(random, 400) as usize;
    ipv4(ends, &says, &udp(random, length))
}

/// Padding, the deadline as it should be, the deadline with a wrong length, or any other type, length and data.
fn option(random: &mut impl Rng, deadline: u8) -> Vec<u8> {
    let data_bytes = if deadline == DEADLINE_OPTION { 6 } else { 4 };
    match below(random, 5) {
        0 => vec![pick(random, &[0, 1])],
        1 => [&[deadline, data_bytes][..], &deadline_us(random).to_be_bytes()].concat(),
        2 => vec![deadline],
        number => {
            let kind = if number == 3 { deadline } else { random.next_u32() as u8 };
            let length = below(random, 20) as usize;
            let claimed = if is_one_in(random, 2) {
                length as u8
            } else {
                random.next_u32() as u8
            };
            [vec![kind, claimed], noise(random, length)].concat()
        }
    }
}

fn udp(random: &mut impl Rng, data_bytes: usize) -> Vec<u8> {
    let claimed = claim(random, (data_bytes + 8) as u16, |any| any as u16);
    let (from, to) = (
        random.next_u32() as u16,
        pick(random, &[RULE_PORT, RULE_PORT, BACKGROUND_PORT, 9]),
    );
    let mut datagram = [from, to, claimed, 0].map(u16::to_be_bytes).concat();
    datagram.extend(noise(random, data_bytes));
    datagram
}

fn ipv6(ends: &Ends, next: u8, payload: &[u8], payload_bytes: u16) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(payload_bytes.to_be_bytes());
    packet.extend([next, 64]);
    packet.extend(ends.v6.concat());
    packet.extend(payload);
    packet
}

fn ipv6_with_extensions(ends: &Ends, random: &mut impl Rng) -> Vec<u8> {
    let kinds: Vec<u8> = (0..below(random, 13))
        .map(|_| pick(random, &[HOP_BY_HOP, ROUTING, DESTINATION, DESTINATION, FRAGMENT]))
        .collect();
    let mut payload = Vec::new();
    for (number, kind) in kinds.iter().enumerate() {
        let next = kinds.get(number + 1).copied().unwrap_or(UDP);
        payload.extend(extension(random, *kind, next));
    }
    let length = below(random, 300) as usize;
    payload.extend(udp(random, length));
    let claimed = claim(random, payload.len() as u16, |any| any as u16);
    ipv6(ends, kinds.first().copied().unwrap_or(UDP), &payload, claimed)
}

fn extension(random: &mut impl Rng, kind: u8, next: u8) -> Vec<u8> {
    if kind == FRAGMENT {
        let field = pick(random, &[0, 1, 8, 9, 0xfff8, 0xffff]);
        return fragment_header(next, field, random.next_u32());
    }
    let words = below(random, 4) as u8;
    let room = 6 + usize::from(words) * 8;
    let mut data = Vec::new();
    while data.len() < room {
        data.extend(option(random, DEADLINE_OPTION_V6));
    }
    data.truncate(room);
    let claimed = claim(random, words, |any| any as u8);
    [vec![next, claimed], data].concat()
}

fn fragment_header(next: u8, field: u16, id: u32) -> Vec<u8> {
    [&[next, 0][..], &field.to_be_bytes(), &id.to_be_bytes()].concat()
}

/// Byte ranges of a datagram and whether more follow: in order, or some, or lying over each other.
fn pieces(random: &mut impl Rng, datagram_bytes: usize) -> Vec<(usize, usize, bool)> {
    let each = 8 * (1 + below(random, 180) as usize);
    let starts = (0..datagram_bytes).step_by(each);
    let mut pieces: Vec<_> = starts
        .map(|start| (start, (start + each).min(datagram_bytes), start + each < datagram_bytes))
        .collect();
    match below(random, 4) {
        0 => {}
        1 => pieces.truncate(1),
        2 => drop(pieces.remove(0)),
        _ => pieces.iter_mut().for_each(|piece| piece.0 = piece.0.saturating_sub(8)),
    }
    pieces
}

fn fragments_v4(ends: &Ends, random: &mut impl Rng) -> Vec<Vec<u8>> {
    let length = 8 + below(random, 4_000) as usize;
    let datagram = udp(random, length);
    let whole = Ipv4::udp(random);
    let pieces = pieces(random, datagram.len());
    let fragment = |(start, end, more): (usize, usize, bool)| {
        let says = Ipv4 {
            fragment: (start / 8) as u16 | u16::from(more) << 13,
            options: Vec::new(),
            ..whole
        };
        ethernet(ends, IPV4, &ipv4(ends, &says, &datagram[start..end]))
    };
    pieces.into_iter().map(fragment).collect()
}

fn fragments_v6(ends: &Ends, random: &mut impl Rng) -> Vec<Vec<u8>> {
    let length = 8 + below(random, 4_000) as usize;
    let datagram = udp(random, length);
    let id = random.next_u32();
    let pieces = pieces(random, datagram.len());
    let fragment = |(start, end, more): (usize, usize, bool)| {
        let mut payload = fragment_header(UDP, start as u16 | u16::from(more), id);
        payload.extend(&datagram[start..end]);
        ethernet(ends, IPV6, &ipv6(ends, FRAGMENT, &payload, payload.len() as u16))
    };
    pieces.into_iter().map(fragment).collect()
}

fn tagged(ends: &Ends, random: &mut impl Rng) -> Vec<u8> {
    let mut frame = packet_of_either_version(ends, random);
    for _ in 0..=below(random, 4) {
        let tag = [pick(random, &[0x8100, 0x88a8, 0x9100]), random.next_u32() as u16];
        let at = ETHERNET_BYTES - 2;
        frame.splice(at..at, tag.map(u16::to_be_bytes).concat());
    }
    frame
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    const ENDS: Ends = Ends {
        macs: [[2, 0, 0, 0, 2, 1], [2, 0, 0, 0, 2, 2]],
        v4: [[10, 77, 2, 1], [10, 77, 2, 2]],
        v6: [[0xfd; 16], [0xfe; 16]],
    };

    fn draws(kind: PacketKind) -> Vec<Vec<Vec<u8>>> {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        (0..3_000).map(|_| frames(kind, &ENDS, &mut random)).collect()
    }

    fn payload(frame: &[u8]) -> &[u8] {
        &frame[ETHERNET_BYTES..]
    }

    #[test]
    fn the_same_seed_gives_the_same_frames() {
        for kind in PacketKind::VARIANTS.iter().copied() {
            assert_eq!(draws(kind), draws(kind), "{kind:?}");
        }
    }

    #[test]
    fn every_frame_is_addressed_and_fits_a_jumbo_device() {
        for kind in PacketKind::VARIANTS.iter().copied() {
            let sizes = ETHERNET_BYTES..=ETHERNET_BYTES + LARGEST_BYTES;
            for frame in draws(kind).concat() {
                assert!(sizes.contains(&frame.len()), "{kind:?}: {} bytes", frame.len());
                assert_eq!((&frame[..6], &frame[6..12]), (&ENDS.macs[1][..], &ENDS.macs[0][..]));
            }
        }
    }

    #[test]
    fn headers_claim_every_length_and_their_checksums_are_right() {
        let frames = draws(PacketKind::Ipv4Header).concat();
        let words: BTreeSet<u8> = frames.iter().map(|frame| payload(frame)[0] & 0xf).collect();
        assert_eq!(words.len(), 16);
        assert!(frames.iter().all(|frame| checksum(&payload(frame)[..20]) == 0));
    }

    #[test]
    fn the_deadline_option_comes_with_right_and_with_wrong_lengths() {
        let first_options = draws(PacketKind::Ipv4Options).concat();
        let first_options = first_options.iter().filter(|frame| payload(frame)[0] & 0xf > 5);
        let lengths: BTreeSet<u8> = first_options
            .filter(|frame| payload(frame)[20] == DEADLINE_OPTION)
            .map(|frame| payload(frame)[21])
            .collect();
        assert!(lengths.contains(&6) && lengths.len() > 50, "{lengths:?}");
    }

    #[test]
    fn truncated_packets_end_at_every_byte_of_their_headers() {
        let lengths: BTreeSet<_> = draws(PacketKind::Truncated).concat().iter().map(Vec::len).collect();
        assert!(
            (0..28).all(|bytes| lengths.contains(&(ETHERNET_BYTES + bytes))),
            "{lengths:?}"
        );
    }

    #[test]
    fn extension_chains_fall_below_and_exceed_the_parsers_limit() {
        let is_extension = |next: u8| [HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION].contains(&next);
        let frames = draws(PacketKind::Ipv6Extensions).concat();
        let with_none = frames.iter().filter(|frame| payload(frame)[6] == UDP).count();
        let long = frames
            .iter()
            .filter(|frame| is_extension(payload(frame)[6]) && frame.len() > 200);
        assert!(with_none > 0 && long.count() > 0);
    }

    #[test]
    fn fragments_come_whole_alone_late_and_overlapping() {
        let of_v4 = |frame: &Vec<u8>| frame[12..14] == IPV4.to_be_bytes();
        let sets = draws(PacketKind::Fragments);
        let offsets = |set: &[Vec<u8>]| -> Vec<(usize, usize)> {
            let field = |frame: &[u8]| u16::from_be_bytes([frame[6], frame[7]]);
            let piece = |frame: &Vec<u8>| {
                let packet = payload(frame);
                (usize::from(field(packet) & 0x1fff) * 8, packet.len() - 20)
            };
            set.iter().map(piece).collect()
        };
        let sets: Vec<_> = sets
            .iter()
            .filter(|set| set.iter().all(of_v4))
            .map(|set| offsets(set))
            .collect();
        let is_whole = |set: &&Vec<(usize, usize)>| set.len() > 1 && set.windows(2).all(|w| w[0].0 + w[0].1 == w[1].0);
        let overlaps = |set: &&Vec<(usize, usize)>| set.windows(2).any(|w| w[0].0 + w[0].1 > w[1].0);
        assert!(sets.iter().filter(is_whole).any(|set| set[0].0 == 0));
        assert!(sets.iter().any(|set| set.len() == 1 && set[0].0 == 0), "only the first");
        assert!(
            sets.iter().any(|set| set.first().is_some_and(|piece| piece.0 > 0)),
            "only later ones"
        );
        assert!(sets.iter().filter(overlaps).count() > 0);
    }

    #[test]
    fn vlan_tags_precede_the_packet() {
        for frame in draws(PacketKind::Vlan).concat() {
            let tag = u16::from_be_bytes([frame[12], frame[13]]);
            assert!([0x8100, 0x88a8, 0x9100].contains(&tag));
        }
    }
}
