// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Admission on real packets, before htb: which band they belong to, which deadlines it sees, what it refuses whole.

mod link;
mod marks;

use std::time::Duration;

use crate::support::lab::{FAR_V4, FAR_V6, Lab, run};
use crate::support::tcp::Transfer;
use crate::support::wait::{await_some, until};
use giveway::kernel::skeletons::admission::types;
use link::{Link, Program, Sender, at_nice_19, fragment, frames_of, set};
use nix::errno::Errno;

const BOTH: [&str; 2] = [FAR_V4, FAR_V6];
/// In time whatever else is in the way at 10 Mbit/s.
const AMPLE: Duration = Duration::from_millis(200);
const DSCP_LE_TOS: i32 = 1 << 2;
const THREE_FRAGMENTS: usize = 4_000;

#[test]
fn a_deadline_in_an_ip_option_is_kept_or_refused_and_can_be_read_at_the_receiver() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    for far in BOTH {
        let receiver = link.receiver(far);
        let sender = Sender::to(&receiver);
        sender.state_time_left(50_000);
        link.assert_admitted(100, || sender.send(&[7; 100]));
        let (length, options) = receiver.receive_with_options();
        assert_eq!(length, 100);
        let stated = 50_000_u32.to_be_bytes();
        assert!(options.windows(4).any(|bytes| bytes == stated), "{far}: {options:x?}");

        sender.state_time_left(0);
        link.assert_refused(|| sender.send(&[7; 100]));
        assert!(!receiver.has_more());
    }
}

#[test]
fn a_datagram_in_fragments_is_admitted_whole_or_not_at_all() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    for far in BOTH {
        let receiver = link.receiver(far);
        let sender = Sender::to(&receiver);
        sender.ask_for_deadlines();
        let classified = || link.counters().bands.realtime.classified;
        let (before, arrived) = (classified(), receiver.fragments_arrived());
        link.assert_refused(|| sender.send_by(&[7; THREE_FRAGMENTS], Duration::ZERO));
        assert_eq!(classified(), before, "{far}");

        link.assert_admitted(THREE_FRAGMENTS, || sender.send_by(&[7; THREE_FRAGMENTS], AMPLE));
        assert_eq!(receiver.receive(), THREE_FRAGMENTS);
        assert_eq!(classified(), before + 3, "{far}");
        assert_eq!(
            receiver.fragments_arrived(),
            arrived + 3,
            "{far}: those of the second datagram only"
        );
    }
}

const TIME_LEFT: [u8; 8] = [0x9e, 6, 0, 3, 0, 0, 0, 0];
const A_SECOND_LEFT: [u8; 8] = [0x9e, 6, 0, 15, 0x42, 0x40, 0, 0];
const NO_TIME_LEFT: [u8; 8] = [0x9e, 6, 0, 0, 0, 0, 0, 0];

/// Bytes 4 and 5 of what follows are the sender's data, where the first fragment has the datagram's length.
#[test]
fn a_later_fragment_gives_back_its_own_part_whatever_it_carries() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    let admission = Program::before_the_qdisc(&link, 1_250_000);
    for (id, value) in [(1, 0), (2, 0xff)] {
        let parts = [(0, 1_472), (1_472, 1_472), (2_944, 1_064)]
            .map(|(from, bytes)| fragment(&link, &TIME_LEFT, id, from, bytes, value));
        // A byte is 1 us of the real-time share.
        let own = parts
            .each_ref()
            .map(|part| (types::gw_band::GW_REALTIME.0, part.len() as u32 * 1_000));
        assert_eq!(parts.each_ref().map(|part| admission.stamp(part)), own, "{value:x}");
        // The datagram is over: what says that it belongs to it has no promise.
        let after = admission.stamp(&parts[1]);
        assert_eq!(after, (types::gw_band::GW_BEST_EFFORT.0, 0), "{value:x}");
    }
}

/// A promise without slack keeps others out for as long as it waits. What a program is given for a test is root's.
#[test]
fn who_is_alone_leaves_room_for_the_first_deadlines_of_another() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    let admission = Program::before_the_qdisc(&link, 125_000);
    let far = link::frame(&link, &A_SECOND_LEFT, usize::MAX);
    // So few, at 1 Mbit/s, that hardly any time passes.
    let promised = (0..100_000).take_while(|_| admission.admits(&far)).count();
    assert!((100..100_000).contains(&promised), "{promised}");
    let receiver = link.receiver(FAR_V4);
    let sender = Sender::of_user(12_345, &receiver);
    sender.ask_for_deadlines();
    for _ in 0..5 {
        link.assert_admitted(100, || sender.send_by(&[7; 100], AMPLE));
    }
}

/// Where nothing can be promised, nothing bounds that band.
#[test]
fn without_a_rate_the_strict_band_is_for_whom_a_rule_names() {
    let lab = Lab::enter();
    for (rules, band) in [
        ("", types::gw_band::GW_BEST_EFFORT),
        ("[[deadline]]\nport = 12289\n", types::gw_band::GW_REALTIME),
    ] {
        let link = Link::with(&lab, rules);
        let admission = Program::before_the_qdisc(&link, 0);
        let before = link.counters().only_ordered;
        let stamp = admission.stamp(&link::frame(&link, &TIME_LEFT, usize::MAX));
        assert_eq!(stamp, (band.0, 0), "{rules}");
        // By these the queue comes where there is none yet.
        assert_eq!(
            link.counters().only_ordered - before,
            u64::from(rules.is_empty()),
            "{rules}"
        );
    }
}

/// A rate that is found promises nothing at first.
#[test]
fn while_a_rate_promises_nothing_the_strict_band_is_for_whom_a_rule_names() {
    let lab = Lab::enter();
    for (rules, band) in [
        ("", types::gw_band::GW_BEST_EFFORT),
        ("[[deadline]]\nport = 12289\n", types::gw_band::GW_REALTIME),
    ] {
        let link = Link::with(&lab, rules);
        let admission = Program::configured(&link, 1_250_000, |config| {
            config.flags &= !types::gw_link_flag::GW_ADMIT.0;
            config.flags |= types::gw_link_flag::GW_ONLY_NAMED.0;
        });
        let (stamped, _) = admission.stamp(&link::frame(&link, &TIME_LEFT, usize::MAX));
        assert_eq!(stamped, band.0, "{rules}");
    }
}

/// 197 ms are left to one packet, a second to the other.
#[test]
fn what_waits_below_is_taken_from_each_deadline() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    for (below_us, admitted) in [(0, [true, true]), (200_000, [false, true]), (2_000_000, [false, false])] {
        let admission = Program::configured(&link, 1_250_000, |config| config.below_us = below_us);
        let frames = [TIME_LEFT, A_SECOND_LEFT].map(|left| link::frame(&link, &left, usize::MAX));
        assert_eq!(frames.map(|frame| admission.admits(&frame)), admitted, "{below_us} us");
    }
}

/// Numbers of datagrams are used again, from 0 to 65,535 in IPv4.
#[test]
fn a_refusal_is_for_one_datagram_and_not_for_later_ones_of_its_number() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    let part = |options: &[u8], id, from| fragment(&link, options, id, from, 1_472, 0);
    for id in [1, 2] {
        link.assert_refused(|| link.send_frame(&part(&NO_TIME_LEFT, id, 0)));
        assert_eq!(link.send_frame(&part(&[], id, 1_472)), Err(Errno::ENOBUFS));
    }
    assert!(
        link.send_frame(&part(&[], 1, 0)).is_ok(),
        "a datagram without a deadline"
    );
    assert!(link.send_frame(&part(&[], 1, 1_472)).is_ok(), "and what belongs to it");
    until("the other verdict is too old", || {
        link.send_frame(&part(&[], 2, 1_472)).is_ok()
    });
}

/// 8 x 1,000 bytes take 8.4 ms at the real-time share of 10 Mbit/s, one segment 1.1 ms.
#[test]
fn a_datagram_to_be_segmented_is_admitted_as_one_and_charged_for_all() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    for far in BOTH {
        let receiver = link.receiver(far);
        let sender = Sender::to(&receiver);
        sender.ask_for_deadlines();
        set(
            &sender.socket,
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            &1_000_i32.to_ne_bytes(),
        )
        .unwrap();
        link.assert_refused(|| sender.send_by(&[7; 8_000], Duration::from_millis(6)));
        assert!(!receiver.has_more());

        link.assert_admitted(8_000, || sender.send_by(&[7; 8_000], AMPLE));
        let segments: Vec<usize> = (0..8).map(|_| receiver.receive()).collect();
        assert_eq!(segments, [1_000; 8], "{far}");
    }
}

/// As a VLAN device with its tag in the packet, or a container or virtual machine, sends them.
#[test]
fn tagged_packets_are_read_behind_their_tags() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    let (over, ample) = ([0x9e, 6, 0, 0, 0, 0, 0, 0], [0x9e, 6, 0, 3, 0, 0, 0, 0]);
    for tags in [&[0x81, 0, 0x60, 7][..], &[0x88, 0xa8, 0, 7, 0x81, 0, 0x40, 7]] {
        let tagged = |options| {
            let mut frame = link::frame(&link, options, usize::MAX);
            frame.splice(12..12, tags.iter().copied());
            frame
        };
        link.assert_refused(|| link.send_frame(&tagged(&over)));
        let ample = tagged(&ample);
        link.assert_admitted(ample.len(), || link.send_frame(&ample));
    }
}

#[test]
fn lower_effort_and_the_lowest_priority_are_background() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    for (far, level, name) in [
        (FAR_V4, libc::IPPROTO_IP, libc::IP_TOS),
        (FAR_V6, libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    ] {
        let receiver = link.receiver(far);
        let marks = [(level, name, DSCP_LE_TOS), (libc::SOL_SOCKET, libc::SO_PRIORITY, 1)];
        for (level, name, value) in marks {
            let sender = Sender::to(&receiver);
            set(&sender.socket, level, name, &value.to_ne_bytes()).unwrap();
            link.assert_background(&sender, 1);
        }
        link.assert_background(&Sender::to(&receiver), 0);
    }
}

#[test]
fn a_registered_triple_is_background_and_nothing_beside_it() {
    let lab = Lab::enter();
    let mut link = Link::of(&lab);
    for far in BOTH {
        let (receiver, other) = (link.receiver(far), link.receiver(far));
        let (registered, stranger) = (Sender::to(&receiver), Sender::to(&receiver));
        link.register(&receiver, Some(registered.local_port()));
        link.assert_background(&registered, 1);
        link.assert_background(&stranger, 0);
        link.register(&receiver, None);
        link.assert_background(&stranger, 1);
        link.assert_background(&Sender::to(&other), 0);
    }
}

#[test]
fn a_socket_that_a_task_at_nice_19_made_is_background() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    assert_eq!(link.missing(), Vec::<String>::new());
    for far in BOTH {
        let receiver = link.receiver(far);
        let sender = at_nice_19(|| Sender::to(&receiver));
        link.assert_background(&sender, 1);
        link.assert_background(&Sender::to(&receiver), 0);
    }
}

#[test]
fn what_tcp_paces_is_never_taken_for_a_deadline() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    let available = run("sysctl -n net.ipv4.tcp_available_congestion_control");
    let controls = ["cubic", "bbr"].map(|name| available.contains(name).then_some(name));
    assert!(controls[0].is_some(), "this kernel has no cubic, only {available}");
    for control in controls.into_iter().flatten() {
        let (near, far) = lab.connect(FAR_V4);
        set(&near, libc::IPPROTO_TCP, libc::TCP_CONGESTION, control.as_bytes()).unwrap();
        set(
            &near,
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            &500_000_u32.to_ne_bytes(),
        )
        .unwrap();
        let before = link.counters().bands.best_effort.classified;
        let _transfer = Transfer::start(&near, far);
        await_some("a hundred packets of the transfer", || {
            (link.counters().bands.best_effort.classified > before + 100).then_some(())
        });
    }
    link.assert_no_deadline();
}

/// Whatever their headers claim: cut short anywhere, with every header length and version, options that lie.
#[test]
fn frames_that_cannot_be_read_are_best_effort_and_never_refused() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    let before = link.counters();
    let frames = frames_of(&link);
    for frame in &frames {
        // The queue itself may be full for a moment.
        await_some("room in the queue", || link.send_frame(frame).ok());
    }
    let after = link.counters();
    link.assert_no_deadline();
    assert_eq!(after.bands.background.classified, before.bands.background.classified);
    assert!(after.bands.best_effort.classified >= before.bands.best_effort.classified + frames.len() as u64);
}

/// Unlike those, this one says clearly what it wants.
#[test]
fn a_whole_frame_with_a_deadline_that_is_over_is_refused() {
    let lab = Lab::enter();
    let link = Link::of(&lab);
    let frame = link::frame(&link, &[0x9e, 6, 0, 0, 0, 0, 0, 0], 40);
    link.assert_refused(|| link.send_frame(&frame));
}
