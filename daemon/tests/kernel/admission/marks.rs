// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What packets carry of their class out of this machine, read at the other end of the link.

use giveway_engine::model::Class;
use std::io::Write as _;
use std::net::SocketAddr;

use super::link::{Link, Sender, frame, set};
use super::{AMPLE, BOTH, THREE_FRAGMENTS};
use crate::support::lab::{FAR_V4, Lab, run};

/// Of every class.
const MARKS: &str = "[marks]\nrealtime = \"EF\"\nstream = \"AF41\"\nstandard = \"CS0\"\nbulk = \"AF11\"\n";
const MARK_OF: [(Class, u8); 5] = [
    (Class::Realtime, 46),
    (Class::Stream, 34),
    (Class::Standard, 0),
    (Class::Bulk, 10),
    (Class::Background, 1),
];
/// What the application has set: CS5, which no class has.
const OWN: u8 = 40;
const LE: u8 = 1;

/// The DSCP and the ECN bits of a packet whose header is right.
fn marks(packet: &[u8]) -> (u8, u8) {
    let class = if packet[0] >> 4 == 4 {
        let header = &packet[..usize::from(packet[0] & 0xf) * 4];
        let words = header
            .chunks(2)
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        assert_eq!(words.sum::<u32>() % 0xffff, 0, "the checksum of {header:x?}");
        packet[1]
    } else {
        packet[0] << 4 | packet[1] >> 4
    };
    (class >> 2, class & 3)
}

fn set_marks(sender: &Sender, remote: SocketAddr, dscp: u8, ecn: u8) {
    let (level, name) = match remote {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    };
    set(&sender.socket, level, name, &i32::from(dscp << 2 | ecn).to_ne_bytes()).unwrap();
}

fn lower(sender: &Sender) {
    set(
        &sender.socket,
        libc::SOL_SOCKET,
        libc::SO_PRIORITY,
        &1_i32.to_ne_bytes(),
    )
    .unwrap();
}

#[test]
fn udp_of_each_class_carries_its_mark_and_keeps_its_ecn_bits() {
    let lab = Lab::enter();
    let link = Link::with(&lab, MARKS);
    for far in BOTH {
        let receiver = link.receiver(far);
        for (class, dscp) in MARK_OF {
            let sender = Sender::to(&receiver);
            link.treat(&sender.socket, class);
            for ecn in 0..4 {
                set_marks(&sender, receiver.address, OWN, ecn);
                let arrivals = link.watch();
                sender.send(&[7; 100]).unwrap();
                assert_eq!(marks(&arrivals.next()), (dscp, ecn), "{far} {class:?}");
                assert_eq!(receiver.receive(), 100, "{far} {class:?}");
            }
        }
    }
}

#[test]
fn tcp_of_each_class_carries_its_mark_and_keeps_its_ecn_bits() {
    const ECT_0: u8 = 2;
    let lab = Lab::enter();
    let link = Link::with(&lab, MARKS);
    for netns in [&lab.near, &lab.far] {
        run(&format!("ip netns exec {netns} sysctl -qw net.ipv4.tcp_ecn=1"));
    }
    for far in BOTH {
        for (class, dscp) in MARK_OF {
            let (mut near, _far) = lab.connect(far);
            link.treat(&near, class);
            let arrivals = link.watch();
            near.write_all(&[7; 100]).unwrap();
            assert_eq!(marks(&arrivals.next()), (dscp, ECT_0), "{far} {class:?}");
        }
    }
}

#[test]
fn only_background_is_marked_by_default() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    for far in BOTH {
        let receiver = link.receiver(far);
        for (class, _) in MARK_OF {
            let sender = Sender::to(&receiver);
            set_marks(&sender, receiver.address, OWN, 1);
            link.treat(&sender.socket, class);
            let arrivals = link.watch();
            sender.send(&[7; 100]).unwrap();
            let expected = if class == Class::Background { LE } else { OWN };
            assert_eq!(marks(&arrivals.next()), (expected, 1), "{far} {class:?}");
        }
    }
}

#[test]
fn nothing_is_marked_where_nothing_is_to_be() {
    let lab = Lab::enter();
    let link = Link::with(&lab, "[marks]\nbackground = \"keep\"\n");
    let receiver = link.receiver(FAR_V4);
    let sender = Sender::to(&receiver);
    set_marks(&sender, receiver.address, OWN, 1);
    lower(&sender);
    let arrivals = link.watch();
    link.assert_background(&sender, 1);
    assert_eq!(marks(&arrivals.next()), (OWN, 1));
}

#[test]
fn a_packet_with_a_deadline_is_realtime() {
    let lab = Lab::enter();
    let link = Link::with(&lab, MARKS);
    for far in BOTH {
        let receiver = link.receiver(far);
        let sender = Sender::to(&receiver);
        sender.ask_for_deadlines();
        let arrivals = link.watch();
        link.assert_admitted(THREE_FRAGMENTS, || sender.send_by(&[7; THREE_FRAGMENTS], AMPLE));
        for _ in 0..3 {
            assert_eq!(marks(&arrivals.next()), (46, 0), "{far}");
        }
        assert_eq!(receiver.receive(), THREE_FRAGMENTS);
    }
}

#[test]
fn each_fragment_and_each_segment_carries_the_mark() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    for far in BOTH {
        let receiver = link.receiver(far);
        let sender = Sender::to(&receiver);
        lower(&sender);
        let arrivals = link.watch();
        sender.send(&[7; THREE_FRAGMENTS]).unwrap();
        for _ in 0..3 {
            assert_eq!(marks(&arrivals.next()), (LE, 0), "{far}");
        }
        assert_eq!(receiver.receive(), THREE_FRAGMENTS);

        set(
            &sender.socket,
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            &1_000_i32.to_ne_bytes(),
        )
        .unwrap();
        sender.send(&[7; 3_000]).unwrap();
        let headers = if far == FAR_V4 { 20 + 8 } else { 40 + 8 };
        let mut arrived = 0;
        while arrived < 3_000 {
            // The device may take the segments in one piece.
            let packet = arrivals.next();
            assert_eq!(marks(&packet), (LE, 0), "{far}");
            arrived += packet.len() - headers;
        }
        let segments: Vec<usize> = (0..3).map(|_| receiver.receive()).collect();
        assert_eq!(segments, [1_000; 3], "{far}");
    }
}

/// A frame of a device below, whose checksum its sender has left wrong: the mark makes neither right nor worse.
#[test]
fn a_packet_behind_a_vlan_tag_is_marked_and_no_other_byte_is_changed() {
    let lab = Lab::enter();
    let link = Link::with(&lab, "[marks]\nbackground = \"CS1\"\n");
    let mut tagged = frame(&link, &[], usize::MAX);
    tagged[15] = LE << 2 | 3;
    tagged.splice(12..12, [0x81, 0, 0x60, 7]);
    let arrivals = link.watch();
    link.send_frame(&tagged).unwrap();
    let arrived = arrivals.next();
    let mut expected = tagged[18..].to_vec();
    expected[1] = 8 << 2 | 3;
    let difference = (8_u32 << 2 | 3) - (u32::from(LE) << 2 | 3);
    // One's complement: what is more in one word is less in the other.
    let checksum = 0xffff - difference;
    expected[10..12].copy_from_slice(&(checksum as u16).to_be_bytes());
    assert_eq!(arrived, expected);
}

/// MACsec, EtherCAT, MPLS: a byte that is changed makes such a frame worthless to its receiver.
#[test]
fn what_only_begins_like_ip_is_not_changed() {
    let lab = Lab::enter();
    let link = Link::with(&lab, "[marks]\nbackground = \"CS1\"\n");
    for ethertype in [[0x88, 0xe5], [0x88, 0xa4], [0x88, 0x47]] {
        for tag in [&[][..], &[0x81, 0, 0x60, 7]] {
            let mut other = frame(&link, &[], usize::MAX);
            other[12..14].copy_from_slice(&ethertype);
            other[15] = LE << 2;
            let sent = other[14..].to_vec();
            other.splice(12..12, tag.iter().copied());
            let arrivals = link.watch();
            link.send_frame(&other).unwrap();
            assert_eq!(arrivals.next_of(ethertype), sent, "{ethertype:x?} behind {tag:x?}");
        }
    }
}
