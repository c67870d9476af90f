// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue of the intermediate device: htb without a default, so that what names no class goes at once. A class for each
//! limit, and below it several for its flows, which a hash of the flow chooses: each has an equal part for sure, and what the
//! others leave. A flow that does not slow down leaves the others theirs. Each has a tbf that cuts packets of many segments,
//! which would hold up a slow limit for a second.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use giveway_engine::class::{LimitNumber, RateLimit};
use giveway_engine::downlink::Passed;
use nix::errno::Errno;

use crate::actuate::queue::htb::{self, Shape};
use crate::kernel::netlink::{Body, Netlink, Refused, u32_at};
use crate::kernel::qdisc::{self, KIND, OPTIONS, ROOT, tcmsg};

/// Of the root ("gd"): what bpf/detour.h says.
pub const HANDLE: u32 = 0x6764_0000;
const LIMITS: u32 = 0x100;
const CLASSES_OF_A_LIMIT: u32 = 16;
const QUEUES: u32 = 8;
/// More than any device carries, bytes a second.
const AT_ONCE: u64 = 12_500_000_000;
/// A limit may catch up on so much of its rate: timers are late on a busy machine.
const BURST_US: u64 = 5_000;
/// What may wait, of the limit's rate; and at least so many packets.
const QUEUE_MS: u64 = 100;
const FEWEST_PACKETS: u32 = 12;
/// Attributes of tbf (include/uapi/linux/pkt_sched.h).
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;

pub struct Tree {
    ifindex: u32,
    /// Bytes a second, and of the largest packet, by number.
    limits: BTreeMap<u8, (u64, u32)>,
}

impl Tree {
    pub fn put_up(netlink: &mut Netlink, ifindex: u32) -> Result<Self> {
        htb::put_root_of(netlink, ifindex, HANDLE, 0).context("cannot give the intermediate device its queue")?;
        Ok(Self {
            ifindex,
            limits: BTreeMap::new(),
        })
    }

    /// Makes the classes of these limits, or changes those that are there.
    pub fn follow(&mut self, netlink: &mut Netlink, limits: &[RateLimit], largest_packet: u32) -> Result<()> {
        for limit in limits {
            let wanted = (limit.bytes_per_s, largest_packet);
            if self.limits.get(&limit.number) == Some(&wanted) {
                continue;
            }
            self.put_limit(netlink, limit, largest_packet)
                .with_context(|| format!("cannot limit what arrives to {} bytes/s", limit.bytes_per_s))?;
            self.limits.insert(limit.number, wanted);
        }
        Ok(())
    }

    fn put_limit(&self, netlink: &mut Netlink, limit: &RateLimit, largest_packet: u32) -> Result<()> {
        let minor = LIMITS + u32::from(limit.number) * CLASSES_OF_A_LIMIT;
        let rate = limit.bytes_per_s;
        let shape = |rate: u64, ceil| Shape {
            rate: rate.max(1),
            ceil,
            priority: 0,
            burst_us: BURST_US,
            packet_bytes: largest_packet,
            overhead_bytes: 0,
        };
        put_class(netlink, self.ifindex, minor, ROOT, &shape(rate, rate))?;
        for queue in 1..=QUEUES {
            let own = shape(rate / u64::from(QUEUES), rate);
            put_class(netlink, self.ifindex, minor + queue, HANDLE | minor, &own)?;
            put_queue(netlink, self.ifindex, minor + queue, rate, largest_packet)?;
        }
        Ok(())
    }

    /// Takes down what is no limit any more; what waits there goes at once.
    pub fn forget(&mut self, netlink: &mut Netlink, wanted: &BTreeSet<u8>) -> Result<()> {
        let gone: Vec<u8> = self
            .limits
            .keys()
            .copied()
            .filter(|number| !wanted.contains(number))
            .collect();
        if gone.is_empty() {
            return Ok(());
        }
        let minors = |number: &u8| {
            let minor = LIMITS + u32::from(*number) * CLASSES_OF_A_LIMIT;
            minor..=minor + QUEUES
        };
        let all: BTreeSet<u32> = gone.iter().flat_map(minors).collect();
        lift_those(netlink, self.ifindex, |minor| all.contains(&minor))?;
        super::wait_for(|| Ok(waiting_in(netlink, self.ifindex, &all)? == 0))?;
        // Those below first.
        for minor in all.iter().rev() {
            netlink
                .change(libc::RTM_DELTCLASS, 0, &tcmsg(self.ifindex, HANDLE | minor, 0))
                .context("cannot take down a limit of what arrives")?;
        }
        self.limits.retain(|number, _| wanted.contains(number));
        Ok(())
    }

    /// What each limit has let pass since it was put up.
    pub fn passed(&self, netlink: &mut Netlink) -> Result<BTreeMap<LimitNumber, Passed>> {
        let mut all = BTreeMap::<LimitNumber, Passed>::new();
        for (parent, counted) in qdisc::all_counted(netlink, self.ifindex)? {
            let number = (parent & 0xffff).saturating_sub(LIMITS) / CLASSES_OF_A_LIMIT;
            let number = u8::try_from(number)
                .ok()
                .filter(|number| self.limits.contains_key(number));
            let Some(number) = number.filter(|_| parent & 0xffff_0000 == HANDLE) else {
                continue;
            };
            let passed = all.entry(number).or_default();
            passed.passed_bytes += counted.sent_bytes;
            passed.passed_packets += u64::from(counted.sent_packets);
            passed.dropped_packets += u64::from(counted.dropped);
            passed.waiting_packets += u64::from(counted.waiting_packets);
            passed.waiting_bytes += u64::from(counted.waiting_bytes);
        }
        Ok(all)
    }

    /// Nobody has put another queue in its place.
    pub fn stands(&self, netlink: &mut Netlink) -> Result<bool> {
        let root = qdisc::find_root(netlink, self.ifindex)?;
        Ok(root.is_some_and(|root| root.qdisc.handle == HANDLE))
    }
}

fn put_class(netlink: &mut Netlink, ifindex: u32, minor: u32, parent: u32, shape: &Shape) -> Result<()> {
    netlink
        .change(
            libc::RTM_NEWTCLASS,
            libc::NLM_F_CREATE,
            &shape.message(ifindex, HANDLE | minor, parent),
        )
        .with_context(|| format!("cannot make the class {minor:x}"))
}

/// It is no limit by itself: it cuts packets, and its queue is short.
fn put_queue(netlink: &mut Netlink, ifindex: u32, minor: u32, rate: u64, largest_packet: u32) -> Result<()> {
    let fewest = FEWEST_PACKETS * largest_packet;
    let limit = u32::try_from(rate * QUEUE_MS / 1000).unwrap_or(u32::MAX).max(fewest);
    // struct tc_tbf_qopt: rate, peak rate, limit, buffer, mtu.
    let parameters = [
        htb::ratespec(AT_ONCE, 0),
        vec![0; 12],
        [limit, 0, 0].map(u32::to_ne_bytes).concat(),
    ]
    .concat();
    let options = Body::default()
        .attribute(TCA_TBF_PARMS, &parameters)
        .attribute(TCA_TBF_RATE64, &AT_ONCE.to_ne_bytes())
        .attribute(TCA_TBF_BURST, &largest_packet.to_ne_bytes());
    let message = tcmsg(ifindex, minor << 16, HANDLE | minor)
        .text(KIND, "tbf")
        .nested(OPTIONS, options);
    let put = netlink.change(libc::RTM_NEWQDISC, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &message);
    put.map_err(|error| match error.downcast_ref::<Refused>() {
        Some(Refused(Errno::ENOENT)) => error.context("this kernel has no tbf (CONFIG_NET_SCH_TBF)"),
        _ => error,
    })
}

/// From now on nothing waits there.
pub fn lift(netlink: &mut Netlink, ifindex: u32) -> Result<()> {
    lift_those(netlink, ifindex, |_| true)
}

fn lift_those(netlink: &mut Netlink, ifindex: u32, is_meant: impl Fn(u32) -> bool) -> Result<()> {
    let classes = netlink
        .dump(libc::RTM_GETTCLASS, &tcmsg(ifindex, 0, 0))
        .context("cannot list the classes of the intermediate device")?;
    for class in &classes {
        let (handle, parent) = (u32_at(class, 8)?, u32_at(class, 12)?);
        let (major, minor) = (handle & 0xffff_0000, handle & 0xffff);
        if major != HANDLE || minor < LIMITS || !is_meant(minor) {
            continue;
        }
        let shape = Shape {
            rate: AT_ONCE,
            ceil: AT_ONCE,
            priority: 0,
            burst_us: BURST_US,
            packet_bytes: 1500,
            overhead_bytes: 0,
        };
        put_class(netlink, ifindex, minor, parent, &shape)?;
    }
    Ok(())
}

/// Packets.
pub fn waiting(netlink: &mut Netlink, ifindex: u32) -> Result<u32> {
    let root = qdisc::counted(netlink, ifindex, ROOT)?;
    Ok(root.map_or(0, |root| root.waiting_packets))
}

fn waiting_in(netlink: &mut Netlink, ifindex: u32, minors: &BTreeSet<u32>) -> Result<u32> {
    let all = qdisc::all_counted(netlink, ifindex)?.into_iter();
    let there = all.filter(|(parent, _)| parent & 0xffff_0000 == HANDLE && minors.contains(&(parent & 0xffff)));
    Ok(there.map(|(_, counted)| counted.waiting_packets).sum())
}
