// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets at the programs that read them in the kernel: admission on the way out, arrival on the way in, the filter of
//! reports. Needs root. The first byte says how the link is configured; then come packets: for which program, what is
//! said beside it, a length, and that many bytes from the Ethernet header on.
//!
//! Checked of each, against a second reading (`reading`): only what has a deadline is ever dropped, and what is over for
//! certain is; every packet is counted once, in the band that its stamp and its priority name, but for best effort where
//! no queue stands, which has neither; a refusal is told once; of its bytes only the DSCP is changed, to that of its
//! class, and what is wrong with its checksum stays as wrong as it was; only a request for a chain is noted, and once;
//! the filter lets through what it should and counts the rest. And of all of them: what is promised adds up, and is
//! nothing when every deadline is over.
#![no_main]

#[path = "packets/kernel.rs"]
mod kernel;
#[path = "packets/reading.rs"]
mod reading;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use giveway::actuate::queue::admission::{Admission, Counters};
use giveway::kernel::arrival::{Arrival, Rule};
use giveway::kernel::own_netns;
use giveway::kernel::report_filter::ReportFilter;
use giveway::kernel::skeletons::admission::types;
use giveway_engine::config::Config;
use giveway_engine::peers::{Filtered, MAGIC, MAX_DATAGRAM_BYTES, MIN_DATAGRAM_BYTES, VERSION};
use giveway_engine::queue::BackgroundFlow;
use kernel::{Arrivals, Beside, LinkState, Program, configure};
use libfuzzer_sys::fuzz_target;
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, unshare};
use nix::unistd::Pid;
use reading::{Datagram, ETHERNET, Packet, TCP, UDP, read};
use socket2::{Domain, Socket, Type};

/// A rule with a deadline each, one without, and a chain each.
const CONFIGURATION: &str = "[[deadline]]\nport = 5005\ndeadline_ms = 10\n[[deadline]]\nport = 443\nprotocol = \"tcp\"\n\
    deadline_ms = 50\n[[deadline]]\nport = 5006\n[[chain]]\nlocal_port = 5050\nbudget_ms = 10\npriority = 20\n";
const BACKGROUND: ([u8; 4], u16) = ([10, 0, 0, 9], 9);
const LONGEST_FRAME: usize = 1_522;
/// What the kernel accepts in a test run: an Ethernet and an IPv4 header.
const SHORTEST_FRAME: usize = 34;
const CLASSES: [u32; 4] = [1 << 16 | 2, 1 << 16 | 3, 1 << 16 | 4, 1 << 16 | 5];
const RATES: [u64; 4] = [0, 125_000, 1_250_000, 125_000_000];
const DROP: u32 = 2;
const NEXT: u32 = u32::MAX;
const STAMP_MAGIC: u32 = 0x6a7d_0000;
/// GW_SLOTS of 32.8 us, and GW_LOST_AFTER_NS.
const ALL_OVER: Duration = Duration::from_millis(400);
/// VERDICT_HOLDS_NS, and what passes here between a decision and what is noted of it.
const VERDICT_HOLDS: Duration = Duration::from_millis(2_200);
const SETTLE_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: u32 = 64;

struct Target {
    admission: Admission,
    admit: Program,
    note: Program,
    filter: Program,
    _arrival: Arrival,
    reports: ReportFilter,
    _socket: Socket,
    link: LinkState,
    arrivals: Arrivals,
    config: types::gw_link_config,
    /// Of first fragments: whether the datagram was refused, and when.
    refused: HashMap<Datagram, (bool, Instant)>,
    /// Of first fragments of a background flow, which later ones cannot be told to be.
    background: HashMap<Datagram, Instant>,
    settled: Instant,
    inputs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Dropped,
    Realtime,
    BestEffort,
    Background,
}

impl Target {
    fn load() -> Self {
        unshare(CloneFlags::CLONE_NEWNET).expect("packets are fuzzed as root");
        // What arrives is noted for a CPU.
        let mut cpu = CpuSet::new();
        cpu.set(0).expect("there is a first CPU");
        sched_setaffinity(Pid::from_raw(0), &cpu).expect("this thread can stay on one CPU");
        let config = Config::parse(CONFIGURATION).expect("a valid configuration");
        let netns = own_netns().expect("a network namespace");
        let rules: Vec<_> = config.chain.into_iter().map(|chain| Rule { chain, uid: 0 }).collect();
        let arrival = Arrival::load(netns, &rules).expect("arrival loads");
        let admission = Admission::load(netns, &config.deadline, None, None, None).expect("admission loads");
        let (address, port) = BACKGROUND;
        let flow = BackgroundFlow {
            address: IpAddr::V4(Ipv4Addr::from(address)),
            port,
            local_port: None,
        };
        admission.add_background(&flow).expect("a background flow");
        let socket = Socket::new(Domain::IPV6, Type::DGRAM, None).expect("a socket");
        let reports = ReportFilter::attach(&socket).expect("the filter loads");
        let (admit, note) = (Program::find("gw_admit"), Program::find("gw_note_arrival"));
        Self {
            link: LinkState::of(&admit),
            arrivals: Arrivals::of(&note, 0),
            admission,
            admit,
            note,
            filter: Program::find("gw_filter_repor"),
            _arrival: arrival,
            reports,
            _socket: socket,
            config: types::gw_link_config::default(),
            refused: HashMap::new(),
            background: HashMap::new(),
            settled: Instant::now(),
            inputs: 0,
        }
    }

    fn configure(&mut self, setting: u8) {
        let flag = types::gw_link_flag::GW_ADMIT.0 * u32::from(setting >> 2 & 1);
        self.config = types::gw_link_config {
            ifindex: 1,
            backend: match setting & 3 {
                0 => types::gw_backend::GW_BACKEND_NONE,
                2 => types::gw_backend::GW_BACKEND_FIFO,
                _ => types::gw_backend::GW_BACKEND_EDF,
            },
            flags: flag | types::gw_link_flag::GW_CALLS.0,
            rate_bytes_per_s: RATES[usize::from(setting >> 3 & 3)],
            max_packet_bytes: 1_514,
            realtime_percent: 80,
            guard_us: 100,
            rules: 3,
            background_flows: 1,
            class_of_band: if setting >> 6 & 1 > 0 { CLASSES } else { [0; 4] },
            mark_of_class: if setting >> 7 > 0 {
                marks(setting >> 6 & 1 == 0)
            } else {
                Default::default()
            },
            ..Default::default()
        };
        configure(&self.admission.shared.link_config, &self.config);
    }

    fn packet(&mut self, what: u8, how: u8, frame: &[u8]) {
        let beside = Beside {
            priority: u32::from(how & 1),
            tstamp: u64::from(how >> 3 & 1) << 40 | u64::from(how >> 3 & 1),
            gso_segs: [0, 1, 8, 64][usize::from(how >> 1 & 3)],
        };
        match what % 8 {
            0..=4 => self.send(frame, beside),
            5 | 6 => self.arrive(frame, beside),
            _ => self.filter(frame, beside),
        }
    }

    fn send(&mut self, frame: &[u8], beside: Beside) {
        let before = self.counters();
        let Some(ran) = self.admit.run(frame, beside) else {
            return;
        };
        let after = self.counters();
        let packet = read(frame);
        let counted = |counter: fn(&Counters) -> u64| counter(&after) - counter(&before);
        let refused = counted(|c| c.refused.iter().sum());
        let bands: Vec<u64> = (0..4).map(|band| after.packets[band] - before.packets[band]).collect();
        let has_no_queue = self.config.backend == types::gw_backend::GW_BACKEND_NONE;
        let fate = match (ran.returned, &bands[..]) {
            (DROP, [0, 0, 0, 0]) => Fate::Dropped,
            (NEXT, [0, 0, 0, 0]) if has_no_queue => Fate::BestEffort,
            (NEXT, [1, 0, 0, 0]) => Fate::Realtime,
            (NEXT, [0, 0, 1, 0]) if !has_no_queue => Fate::BestEffort,
            (NEXT, [0, 1, 0, 0]) if packet.as_ref().is_some_and(is_of_call) => Fate::BestEffort,
            (NEXT, [0, 0, 0, 1]) => Fate::Background,
            other => panic!("{other:?}: {packet:?}"),
        };
        let own_ns = ran.control_block[3];
        if fate == Fate::Dropped {
            assert_eq!(ran.frame, frame, "a byte was changed");
        } else {
            let band = bands.iter().position(|count| *count == 1);
            assert_eq!(
                ran.control_block[0],
                band.map_or(0, |band| STAMP_MAGIC | band as u32),
                "the stamp names another band"
            );
            let class = band.map_or(0, |band| self.config.class_of_band[band]);
            let class_of_mark = CLASS_OF_BAND[band.unwrap_or(BEST_EFFORT)];
            let mark = packet.as_ref().map(|_| self.config.mark_of_class[class_of_mark]);
            let mark = mark.unwrap_or_default();
            assert_changed(frame, &ran.frame, mark.dscp);
            let priority = match (class, mark.user_priority) {
                (0, 0) => beside.priority,
                (0, user_priority) => 256 + u32::from(user_priority),
                (class, _) => class,
            };
            assert_eq!(ran.priority, priority);
            assert!(own_ns == 0 || fate == Fate::Realtime, "{fate:?} has a promise");
        }
        let admitted = counted(|c| c.admitted);
        let is_first_word = !packet.as_ref().is_some_and(|packet| packet.is_later_fragment);
        assert_eq!(refused, u64::from(fate == Fate::Dropped && is_first_word), "{packet:?}");
        assert!(
            admitted <= u64::from(fate == Fate::Realtime && is_first_word),
            "{packet:?}"
        );
        self.judge(packet, beside, fate, admitted > 0);
        let told = self.admission.refusals().expect("refusals can be read").len() as u64;
        assert_eq!(told + counted(|c| c.events_lost), refused);
    }

    /// Whether this may become of the packet.
    fn judge(&mut self, packet: Option<Packet>, beside: Beside, fate: Fate, is_promised: bool) {
        let plain = |is_background| {
            if is_background {
                Fate::Background
            } else {
                Fate::BestEffort
            }
        };
        let Some(packet) = packet else {
            assert_eq!(fate, plain(beside.priority == 1));
            return;
        };
        let is_background = beside.priority == 1 || packet.dscp == 1 || is_registered(&packet);
        if packet.is_later_fragment {
            let decided = self.refused.get(&packet.datagram);
            let refused = decided
                .filter(|(_, at)| at.elapsed() < VERDICT_HOLDS)
                .map(|(refused, _)| *refused);
            let begun = self.background.get(&packet.datagram);
            let is_of_flow = begun.is_some_and(|at| at.elapsed() < VERDICT_HOLDS);
            match fate {
                Fate::Background if is_of_flow => {}
                Fate::Dropped => assert_eq!(refused, Some(true), "{packet:?}"),
                Fate::Realtime => assert_eq!(refused, Some(false), "{packet:?}"),
                fate => assert_eq!(fate, plain(is_background), "{packet:?}"),
            }
            return;
        }
        if packet.has_more {
            self.refused.remove(&packet.datagram);
            self.background.remove(&packet.datagram);
        }
        let rule_ms = packet
            .remote_port
            .and_then(|port| rule_ms(packet.datagram.protocol, port));
        let has_deadline = packet.option_us.is_some() || rule_ms.is_some_and(|ms| ms > 0);
        let has_rate = self.config.rate_bytes_per_s > 0;
        let can_promise = has_rate
            && self.config.flags & types::gw_link_flag::GW_ADMIT.0 > 0
            && self.config.backend != types::gw_backend::GW_BACKEND_NONE;
        match (has_deadline, can_promise) {
            (false, _) => assert_eq!(fate, plain(is_background), "{packet:?}"),
            (true, false) if !has_rate && rule_ms.is_none() => assert_eq!(fate, Fate::BestEffort, "{packet:?}"),
            (true, false) => assert_eq!((fate, is_promised), (Fate::Realtime, false), "{packet:?}"),
            (true, true) => {
                assert!(
                    fate == Fate::Dropped || (fate == Fate::Realtime && is_promised),
                    "{packet:?}: {fate:?}"
                );
                assert!(
                    packet.option_us != Some(0) || fate == Fate::Dropped,
                    "it is over: {packet:?}"
                );
            }
        }
        if !has_deadline && packet.has_more && is_registered(&packet) {
            self.background.insert(packet.datagram, Instant::now());
        } else if has_deadline && can_promise && packet.has_more {
            self.refused
                .insert(packet.datagram, (fate == Fate::Dropped, Instant::now()));
        }
    }

    fn arrive(&mut self, frame: &[u8], beside: Beside) {
        let before = self.arrivals.look();
        let Some(ran) = self.note.run(frame, beside) else {
            return;
        };
        let after = self.arrivals.look();
        assert_eq!((ran.returned, &ran.frame[..]), (NEXT, frame));
        let is_whole = |packet: &Packet| !packet.is_later_fragment && !packet.has_more;
        let is_request = |packet: &Packet| packet.datagram.protocol == UDP && packet.remote_port == Some(5_050);
        let is_noted = read(frame).is_some_and(|packet| is_whole(&packet) && is_request(&packet));
        assert_eq!(after.noted.wrapping_sub(before.noted), u32::from(is_noted));
        assert_eq!(after.waiting, after.in_ring, "{before:?}");
    }

    /// A test run shows this kind of program the packet from its network header on, and not from its UDP header.
    fn filter(&mut self, frame: &[u8], beside: Beside) {
        let Some(ran) = self.filter.run(frame, beside) else {
            return;
        };
        let net = &frame[ETHERNET..];
        let is_ipv4 = frame[12..ETHERNET] == [8, 0];
        let word = net.get(8..12).unwrap_or(&[0; 4]);
        let header = if is_ipv4 { 20 } else { 40 };
        // What is not all there is read as nothing.
        let ttl = if net.len() < header {
            0
        } else {
            net[if is_ipv4 { 8 } else { 7 }]
        };
        let is_older = word[..3] == MAGIC && (1..VERSION).contains(&word[3]);
        let wanted = match (is_older, ttl, net.len()) {
            (true, ..) => [0, 0, 1],
            (_, ttl, _) if ttl != 255 => [1, 0, 0],
            (.., length) if !(8 + MIN_DATAGRAM_BYTES..=8 + MAX_DATAGRAM_BYTES).contains(&length) => [0, 1, 0],
            _ => [0; 3],
        };
        let counted = self.reports.take().expect("the filter counts").unwrap_or_default();
        let Filtered {
            off_link,
            malformed,
            older_version,
            ..
        } = counted;
        assert_eq!([off_link, malformed, older_version], wanted, "{net:x?}");
        assert_eq!(ran.returned as usize, if wanted == [0; 3] { net.len() } else { 0 });
    }

    fn counters(&self) -> Counters {
        self.admission.counters(0).expect("admission counts")
    }

    /// What is promised adds up; now and then, that it is nothing when all of it is over.
    fn restore_removed(&mut self) {
        self.inputs += 1;
        if self.inputs.is_multiple_of(LOOK_EVERY) {
            let promised = self.link.promised();
            assert_eq!(
                (promised.packets, promised.broken_slots),
                (promised.in_slots, 0),
                "{promised:?}"
            );
            assert_eq!(promised.packets > 0, promised.work_ns > 0, "{promised:?}");
        }
        if self.settled.elapsed() > SETTLE_EVERY {
            self.settle();
            self.settled = Instant::now();
        }
    }

    fn settle(&mut self) {
        std::thread::sleep(ALL_OVER);
        let (lost, before) = (self.link.promised().packets, self.counters().expired);
        // Each decision expires one slot at most.
        self.configure(EDF);
        for _ in 0..lost + 2 {
            self.send(&over(), Beside::default());
        }
        assert_eq!(self.counters().expired - before, u64::from(lost));
        self.configure(FIFO);
        self.link.age_fifo();
        self.send(&over(), Beside::default());
        let promised = self.link.promised();
        let nothing = kernel::Promised {
            packets: 0,
            in_slots: 0,
            work_ns: 0,
            broken_slots: 0,
            fifo_waiting: 0,
            fifo_work_ns: 0,
        };
        assert_eq!(promised, nothing);
        self.refused.retain(|_, (_, at)| at.elapsed() < VERDICT_HOLDS);
    }
}

/// `enum gw_class` by which the packets in each band are marked, where no rule says otherwise.
const CLASS_OF_BAND: [usize; 4] = [1, 3, 3, 5];
/// Its place among the bands.
const BEST_EFFORT: usize = 2;
const WRITE_DSCP: u8 = 0x80;

/// Of a call (RFC 4594 and 5865), and not ssh's.
fn is_of_call(packet: &Packet) -> bool {
    let ports = [packet.local_port, packet.remote_port];
    [32, 34, 36, 38, 40, 44, 46].contains(&packet.dscp) && !ports.contains(&Some(22))
}

/// EF, CS0 and LE; the priority is told where htb does not need it.
fn marks(is_priority_free: bool) -> [types::gw_class_mark; 8] {
    let mut of_class = [types::gw_class_mark::default(); 8];
    for (class, dscp) in CLASS_OF_BAND.into_iter().zip([46, 0, 0, 1]) {
        of_class[class].dscp = WRITE_DSCP | dscp;
    }
    of_class[CLASS_OF_BAND[3]].user_priority = u8::from(is_priority_free);
    of_class
}

/// That only this DSCP was written, and with it the checksum of IPv4; 0: nothing.
fn assert_changed(before: &[u8], after: &[u8], dscp: u8) {
    let mut expected = before.to_vec();
    if dscp > 0 {
        let (dscp, first) = (dscp & !WRITE_DSCP, before[ETHERNET]);
        let second = before[ETHERNET + 1];
        if first >> 4 == 4 {
            let word =
                |frame: &[u8], at: usize| u32::from(frame[ETHERNET + at]) << 8 | u32::from(frame[ETHERNET + at + 1]);
            let sum = |frame: &[u8]| (word(frame, 0) + word(frame, 10)) % 0xffff;
            assert_eq!(sum(before), sum(after), "the checksum");
            expected[ETHERNET + 1] = dscp << 2 | second & 3;
            expected[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&after[ETHERNET + 10..ETHERNET + 12]);
        } else {
            expected[ETHERNET] = first & 0xf0 | dscp >> 2;
            expected[ETHERNET + 1] = dscp << 6 | second & 0x3f;
        }
    }
    assert_eq!(after, expected, "another byte was changed");
}

/// With admission, at 1.25 MB/s.
const EDF: u8 = 1 | 1 << 2 | 2 << 3;
const FIFO: u8 = 2 | 1 << 2 | 2 << 3;

/// A packet whose deadline is over.
fn over() -> Vec<u8> {
    let mut frame = vec![0; ETHERNET + 28];
    frame[12] = 8;
    frame[ETHERNET] = 0x47;
    frame[ETHERNET + 3] = 28;
    frame[ETHERNET + 20..ETHERNET + 22].copy_from_slice(&[0x9e, 6]);
    frame
}

fn is_registered(packet: &Packet) -> bool {
    let (address, port) = BACKGROUND;
    !packet.datagram.is_ipv6 && packet.datagram.remote[..4] == address && packet.remote_port == Some(port)
}

/// The rule's deadline, 0 where it has none of its own.
fn rule_ms(protocol: u8, port: u16) -> Option<u32> {
    [(UDP, 5_005, 10), (TCP, 443, 50), (UDP, 5_006, 0)]
        .iter()
        .find(|(p, q, _)| (*p, *q) == (protocol, port))
        .map(|(.., ms)| *ms)
}

thread_local! {
    static TARGET: RefCell<Target> = RefCell::new(Target::load());
}

// Loaded before the first input: its links wait for the kernel's lock of devices, which others may hold for longer than an
// input may take.
fuzz_target!(init: TARGET.with(|_| ()), |input: &[u8]| {
    let Some((setting, mut rest)) = input.split_first() else {
        return;
    };
    TARGET.with_borrow_mut(|target| {
        target.configure(*setting);
        while let [what, how, high, low, tail @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
            let (frame, next) = tail.split_at(length);
            if (SHORTEST_FRAME..=LONGEST_FRAME).contains(&length) {
                target.packet(*what, *how, frame);
            }
            rest = next;
        }
        target.restore_removed();
    });
});
