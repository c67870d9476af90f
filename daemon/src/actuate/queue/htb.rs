// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The four bands as classes of htb, for kernels without the BPF qdisc. Input: a plan with a rate, of which the engine says what
//! each band has ([`BandRates`]). Output: a tree: below the link's class one for each band, which borrow from it in the bands' order.
//!
//! Where the rate is not for local traffic (`local = "unlimited"`), the link's class and two for that are below one of the
//! device, which has no bound. Local traffic borrows there, behind all that the link's classes borrow from the link.
//!
//! htb serves first the classes within their own rate, then by priority those that borrow. It takes the class of a packet
//! from skb->priority, which admission sets, so there are no filters; whatever names no class is best effort.

use anyhow::{Context as _, Result};
use giveway_engine::queue::Plan;
use giveway_engine::queue::band_rates::BandRates;
use giveway_engine::queue::traffic::Served;
use nix::errno::Errno;

use super::{BANDS, HANDLE, is_ours};
use crate::kernel::netlink::{Body, NLM_F_CREATE, NLM_F_REPLACE, Netlink, RTM_NEWQDISC, RTM_NEWTCLASS, refused};
use crate::kernel::qdisc::{self, OPTIONS, ROOT, tcmsg};
use crate::kernel::skeletons::admission::types::gw_most;

pub const KIND: &str = "htb";

/// Minor numbers of the classes.
const LINK: u32 = 1;
/// What the link and local traffic have in common, where the rate is not for that.
const DEVICE: u32 = 2;
/// Local traffic: what has a deadline or is a stream, and the rest.
const LOCAL_FIRST: u32 = 0x40;
const LOCAL: u32 = 0x48;
/// More than any device carries, bytes a second.
const DEVICE_RATE: u64 = 50_000_000_000;
const REALTIME: u32 = 0x10;
const STREAMS: u32 = 0x18;
const BEST_EFFORT: u32 = 0x20;
const BACKGROUND: u32 = 0x30;

/// The class of each band, for skb->priority.
pub const CLASS_OF_BAND: [u32; BANDS] = [
    HANDLE | REALTIME,
    HANDLE | STREAMS,
    HANDLE | BEST_EFFORT,
    HANDLE | BACKGROUND,
];

/// The classes of local traffic, for skb->priority.
pub const CLASS_OF_LOCAL: [u32; 2] = [HANDLE | LOCAL_FIRST, HANDLE | LOCAL];

/// Attributes of htb and its structs (include/uapi/linux/pkt_sched.h).
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
const HTB_VERSION: u32 = 3;
const TC_LINKLAYER_ETHERNET: u8 = 1;
/// Attributes of fq_codel.
const TCA_FQ_CODEL_TARGET: u16 = 1;
const TCA_FQ_CODEL_LIMIT: u16 = 2;
const TCA_FQ_CODEL_INTERVAL: u16 = 3;
const TCA_FQ_CODEL_ECN: u16 = 4;

/// Nanoseconds in a tick of the packet scheduler.
const TICK_NS: u64 = 64;
/// Timers are as fine as this at best: a class may catch up on so much of its rate.
const BURST_US: u64 = 100;
/// Twice what admission promises at a time, so that nothing promised is dropped here, even
/// if it has given up what a link that stopped still holds.
const REALTIME_PACKETS: u32 = 2 * gw_most::GW_PROMISES.0;
/// What best effort and background may hold where there is no fq_codel to keep their queues short.
const QUEUE_US: u64 = 100_000;
const FEWEST_PACKETS: u64 = 16;
const MOST_PACKETS: u64 = 1000;

/// As the classes' queues count them.
pub fn bands(netlink: &mut Netlink, ifindex: u32) -> Result<[Served; BANDS]> {
    let mut bands = [Served::default(); BANDS];
    for (served, class) in bands.iter_mut().zip(CLASS_OF_BAND) {
        let counted = qdisc::counted(netlink, ifindex, class)?.context("a class of htb has lost its queue")?;
        *served = Served {
            sent_packets: counted.sent_packets.into(),
            sent_bytes: counted.sent_bytes,
            dropped_full: counted.dropped.into(),
            backlog_packets: counted.backlog_packets.into(),
            backlog_bytes: counted.backlog_bytes.into(),
            more: None,
        };
    }
    Ok(bands)
}

struct Class {
    minor: u32,
    parent: u32,
    rate: u64,
    ceil: u64,
    priority: u32,
    burst_us: u64,
}

/// Puts the tree up at the root, or changes the one that is there.
pub fn install(netlink: &mut Netlink, plan: &Plan) -> Result<()> {
    put_root(netlink, plan.ifindex).context("cannot install htb")?;
    tune(netlink, plan)
}

/// Makes the classes and their queues, or changes those that are there.
pub fn tune(netlink: &mut Netlink, plan: &Plan) -> Result<()> {
    let rates = plan.tuning.band_rates();
    let rates = rates.context("htb cannot order without a rate")?;
    let rate = rates.rate;
    for class in classes(&rates) {
        let message = class.message(plan);
        netlink
            .change(RTM_NEWTCLASS, NLM_F_CREATE, &message)
            .with_context(|| format!("cannot make htb's class {:x}", class.minor))?;
    }
    for (minor, fair) in [
        (REALTIME, false),
        (STREAMS, true),
        (BEST_EFFORT, true),
        (BACKGROUND, true),
    ] {
        let target_us = u64::from(plan.tuning.sojourn_target_us) * u64::from(fair);
        put_leaf(netlink, plan, rate, minor, target_us).context("cannot give htb's classes their queues")?;
    }
    if plan.tuning.spares_local {
        for minor in [LOCAL_FIRST, LOCAL] {
            let target_us = plan.tuning.sojourn_target_us.into();
            put_leaf(netlink, plan, DEVICE_RATE, minor, target_us).context("cannot give local traffic its queue")?;
        }
    }
    Ok(())
}

fn put_root(netlink: &mut Netlink, ifindex: u32) -> Result<()> {
    if is_ours(&qdisc::root(netlink, ifindex)?.qdisc) {
        return Ok(());
    }
    put_root_of(netlink, ifindex, HANDLE, BEST_EFFORT)
}

/// With this class for what names no other; 0: that waits for nothing.
pub fn put_root_of(netlink: &mut Netlink, ifindex: u32, handle: u32, default: u32) -> Result<()> {
    // struct tc_htb_glob: version, rate2quantum, default class, debug, direct packets.
    let init = [HTB_VERSION, 10, default, 0, 0].map(u32::to_ne_bytes).concat();
    let message = tcmsg(ifindex, handle, ROOT)
        .text(qdisc::KIND, KIND)
        .nested(OPTIONS, Body::default().attribute(TCA_HTB_INIT, &init));
    let put = netlink.change(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &message);
    put.map_err(|error| match refused(&error) {
        Some(Errno::ENOENT) => error.context("this kernel has no htb (CONFIG_NET_SCH_HTB)"),
        _ => error,
    })
}

fn classes(rates: &BandRates) -> Vec<Class> {
    let class = |minor, parent, assured, most, priority| Class {
        minor,
        parent,
        rate: assured,
        ceil: most,
        priority,
        burst_us: BURST_US,
    };
    let mut classes = match rates.local {
        // It borrows from the device behind what borrows from the link, so that it keeps nothing of that waiting.
        Some(local) => vec![
            class(DEVICE, 0, DEVICE_RATE, DEVICE_RATE, 0),
            class(LINK, DEVICE, rates.rate, rates.rate, 0),
            class(LOCAL_FIRST, DEVICE, local, DEVICE_RATE, 0),
            class(LOCAL, DEVICE, local, DEVICE_RATE, 3),
        ],
        None => vec![class(LINK, 0, rates.rate, rates.rate, 0)],
    };
    let bands = [
        (REALTIME, rates.realtime, 0),
        (STREAMS, rates.stream, 1),
        (BEST_EFFORT, rates.best_effort, 2),
        (BACKGROUND, rates.background, 3),
    ];
    classes.extend(bands.map(|(minor, band, priority)| class(minor, LINK, band.assured, band.most, priority)));
    classes
}

impl Class {
    fn message(&self, plan: &Plan) -> Body {
        let parent = if self.parent == 0 { ROOT } else { HANDLE | self.parent };
        let shape = Shape {
            rate: self.rate,
            ceil: self.ceil,
            priority: self.priority,
            burst_us: self.burst_us,
            packet_bytes: plan.tuning.max_packet_bytes,
            overhead_bytes: plan.tuning.overhead_bytes,
        };
        shape.message(plan.ifindex, HANDLE | self.minor, parent)
    }
}

/// What a class is given, wherever it stands; rates in bytes a second.
pub struct Shape {
    pub rate: u64,
    pub ceil: u64,
    pub priority: u32,
    pub burst_us: u64,
    /// Of the largest packet, and what each takes on the link beside its own.
    pub packet_bytes: u32,
    pub overhead_bytes: u32,
}

impl Shape {
    pub fn message(&self, ifindex: u32, handle: u32, parent: u32) -> Body {
        let mut parameters = [
            ratespec(self.rate, self.overhead_bytes),
            ratespec(self.ceil, self.overhead_bytes),
        ]
        .concat();
        let packet = u64::from(self.packet_bytes + self.overhead_bytes);
        let burst_ticks = |rate: u64| {
            let burst_bytes = packet.max(rate * self.burst_us / 1_000_000);
            u32::try_from(burst_bytes * 1_000_000_000 / rate / TICK_NS).unwrap_or(u32::MAX)
        };
        // struct tc_htb_opt goes on: buffer, cbuffer, quantum, level, prio.
        let quantum = self.packet_bytes;
        let rest = [
            burst_ticks(self.rate),
            burst_ticks(self.ceil),
            quantum,
            0,
            self.priority,
        ];
        parameters.extend(rest.map(u32::to_ne_bytes).concat());
        let options = Body::default()
            .attribute(TCA_HTB_PARMS, &parameters)
            .attribute(TCA_HTB_RATE64, &self.rate.to_ne_bytes())
            .attribute(TCA_HTB_CEIL64, &self.ceil.to_ne_bytes());
        tcmsg(ifindex, handle, parent)
            .text(qdisc::KIND, KIND)
            .nested(OPTIONS, options)
    }
}

/// struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate. A link layer that is named needs none of
/// the tables that older tools send.
pub fn ratespec(rate: u64, overhead_bytes: u32) -> Vec<u8> {
    let overhead = u16::try_from(overhead_bytes).unwrap_or(u16::MAX);
    let rate = u32::try_from(rate).unwrap_or(u32::MAX);
    [
        &[0, TC_LINKLAYER_ETHERNET][..],
        &overhead.to_ne_bytes(),
        &[0; 4],
        &rate.to_ne_bytes(),
    ]
    .concat()
}

/// A queue for a class: a plain FIFO in the order admitted, or, with a target, a fair one where the kernel has it.
fn put_leaf(netlink: &mut Netlink, plan: &Plan, rate: u64, minor: u32, target_us: u64) -> Result<()> {
    // Each kind has a handle of its own: what stands there under the same handle could not be replaced by another kind.
    let message = |kind, offset: u32| {
        let handle = HANDLE + ((minor + offset) << 16);
        tcmsg(plan.ifindex, handle, HANDLE | minor).text(qdisc::KIND, kind)
    };
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    let fair = minor != REALTIME;
    // A target of 0 stands for none.
    if target_us > 0 {
        let number = |value: u32| value.to_ne_bytes();
        let target_us = u32::try_from(target_us).unwrap_or(u32::MAX);
        let options = Body::default()
            .attribute(TCA_FQ_CODEL_TARGET, &number(target_us))
            .attribute(
                TCA_FQ_CODEL_INTERVAL,
                &number(plan.tuning.sojourn_interval_us.max(target_us.saturating_mul(2))),
            )
            .attribute(TCA_FQ_CODEL_LIMIT, &number(MOST_PACKETS as u32))
            .attribute(TCA_FQ_CODEL_ECN, &number(1));
        match netlink.change(RTM_NEWQDISC, flags, &message("fq_codel", 1).nested(OPTIONS, options)) {
            Err(error) if refused(&error) == Some(Errno::ENOENT) => {}
            done => return done,
        }
    }
    let packets = rate * QUEUE_US.max(5 * target_us) / 1_000_000 / u64::from(plan.tuning.max_packet_bytes.max(1));
    let limit = if fair {
        packets.clamp(FEWEST_PACKETS, MOST_PACKETS) as u32
    } else {
        REALTIME_PACKETS
    };
    // struct tc_fifo_qopt: the limit.
    netlink.change(
        RTM_NEWQDISC,
        flags,
        &message("pfifo", 0).attribute(OPTIONS, &limit.to_ne_bytes()),
    )
}
