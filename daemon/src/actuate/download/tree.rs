// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue of the intermediate device: htb without a default, so that what names no class goes at once. A class for each
//! limit, and below it the queue of its flows: one with fq_codel, where the kernel has it; else several, which a hash of the flow
//! chooses: each has an equal part for sure, and what the others leave. A flow that does not slow down leaves the others theirs.
//! Before it comes a tbf that cuts packets of so many segments that they would hold up a slow limit, for up to a second.
//!
//! The same for bulk and for background of each link where these yield, below a class of the link with the rate that they
//! have together. Bulk borrows of it first; so background has little for sure, and all that bulk leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::class::{FAIREST_LIMITS, MOST_LIMITS};
use giveway_engine::downlink::{Counted, Passed};
use giveway_engine::model::{LimitNumber, RateLimit};
use nix::errno::Errno;

use crate::actuate::queue::htb::{self, Shape};
use crate::kernel::netlink::{
    Body, NLM_F_CREATE, NLM_F_REPLACE, Netlink, RTM_DELQDISC, RTM_DELTCLASS, RTM_GETTCLASS, RTM_NEWQDISC,
    RTM_NEWTCLASS, refused, u32_at,
};
use crate::kernel::now;
use crate::kernel::qdisc::{self, KIND, OPTIONS, ROOT, tcmsg};
use crate::kernel::skeletons::admission::types::gw_most;
use crate::kernel::skeletons::download::types::gw_redirect;

/// Of the root ("gd").
pub const HANDLE: u32 = gw_redirect::CLASS_OF_LIMITS.0 & 0xffff_0000;
const LIMITS: u32 = gw_redirect::CLASS_OF_LIMITS.0 & 0xffff;
const CLASSES_OF_A_LIMIT: u32 = gw_redirect::CLASSES_OF_A_LIMIT.0;
const QUEUES: u32 = gw_redirect::QUEUES_OF_A_LIMIT.0;
/// So many limits of rules have these, and of commands; the others have one.
const LIMITS_WITH_QUEUES: u32 = gw_redirect::LIMITS_WITH_QUEUES.0;
const _: () = assert!(LIMITS_WITH_QUEUES == FAIREST_LIMITS as u32);
const FIRST_OF_LINKS: u32 = gw_most::GW_LIMITS.0;
const GROUPS_OF_A_LINK: u32 = gw_redirect::GROUPS_OF_A_LINK.0;
/// What bulk and background have for sure of what they have at most: together less than they ever have.
const BULK_SHARE: u64 = 25;
const BACKGROUND_SHARE: u64 = 100;
/// More than any device carries, bytes a second.
const AT_ONCE: u64 = 12_500_000_000;
/// A limit may catch up on so much of its rate: timers are late on a busy machine. A packet of many segments that takes no
/// longer passes whole: each costs its receiver as much as one of a single segment.
const BURST_US: u64 = 5_000;
/// No packet is larger (BIG TCP: 512 kB).
const LARGEST_GSO: u64 = 1 << 19;
/// What may wait, of the limit's rate; and at least so many packets.
const QUEUE_MS: u64 = 100;
/// And no more than this in one queue: no socket is charged for it, and small packets take ten times their size.
const MOST_BYTES: u64 = 2 << 20;
const FEWEST_PACKETS: u32 = 12;
/// The same of all flows of one fq_codel. A flow may have [`QUEUE_MS`] standing, as by the other queues: a single connection over
/// 200 ms has the whole of its limit so (with CoDel's own 5 ms it has not). What is held back waits for itself alone.
const FEWEST_OF_ALL: u64 = 48;
const MOST_BYTES_OF_ALL: u32 = 16 << 20;
const INTERVAL_US: u32 = 300_000;
/// A thousand limits are 2,000 queues to list: looks take one part of the time in so many.
const LOOKS_TAKE_ONE_IN: u32 = 200;
const LONGEST_BETWEEN_LOOKS: Duration = Duration::from_secs(10);
/// Attributes of tbf (include/uapi/linux/pkt_sched.h).
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// And of fq_codel.
const FQ_CODEL: &str = "fq_codel";
const TCA_FQ_CODEL_TARGET: u16 = 1;
const TCA_FQ_CODEL_LIMIT: u16 = 2;
const TCA_FQ_CODEL_INTERVAL: u16 = 3;
const TCA_FQ_CODEL_MEMORY_LIMIT: u16 = 9;
/// The only class of a tbf.
const OF_TBF: u32 = 1;

/// A link on which bulk and background yield.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OrderedLink {
    pub ifindex: u32,
    /// They have so much together at most, bytes a second.
    pub most: u64,
}

pub struct Tree {
    ifindex: u32,
    /// fq_codel sees to the flows of each limit.
    is_fair: bool,
    /// Bytes a second, and of the largest packet, by number.
    limits: BTreeMap<LimitNumber, (u64, u32)>,
    /// And of the largest packet, by the links' numbers.
    ordered: BTreeMap<u32, (OrderedLink, u32)>,
    /// Of all that has been asked for: a packet that waits already and is larger than its tbf's burst would wait for ever.
    largest_packet: u32,
    /// From when on what was counted may be looked at again.
    next_look: Duration,
}

/// A class with queues for its flows.
struct Group {
    minor: u32,
    parent: u32,
    /// Bytes a second, for sure and at most.
    assured: u64,
    most: u64,
    priority: u32,
    packet_bytes: u32,
    is_fair: bool,
    queues: u32,
    /// Packets may wait there that are larger than those that poll whole from now on.
    shrinks: bool,
}

impl Tree {
    pub fn install(netlink: &mut Netlink, ifindex: u32) -> Result<Self> {
        // Nothing passes yet: whether the kernel has it is found by having it there.
        let fair = tcmsg(ifindex, 0, ROOT).text(KIND, FQ_CODEL);
        let is_fair = netlink.change(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &fair);
        htb::put_root_of(netlink, ifindex, HANDLE, 0).context("cannot give the intermediate device its queue")?;
        Ok(Self {
            ifindex,
            is_fair: is_fair.is_ok(),
            limits: BTreeMap::new(),
            ordered: BTreeMap::new(),
            largest_packet: 0,
            next_look: Duration::ZERO,
        })
    }

    /// One queue has all flows of a limit: no hash is to choose.
    pub fn is_fair(&self) -> bool {
        self.is_fair
    }

    /// Of this limit, or what a link orders.
    fn queues(&self, group: u32) -> u32 {
        let of_commands = group.checked_sub(MOST_LIMITS as u32);
        let is_first = |number: u32| number <= LIMITS_WITH_QUEUES;
        let has_queues = group >= FIRST_OF_LINKS || is_first(of_commands.filter(|n| *n > 0).unwrap_or(group));
        if self.is_fair || !has_queues { 1 } else { QUEUES }
    }

    /// Makes the classes of these limits and links, or changes those that are there.
    pub fn follow(
        &mut self,
        netlink: &mut Netlink,
        limits: &[RateLimit],
        ordered: &BTreeMap<u32, OrderedLink>,
        largest_packet: u32,
    ) -> Result<()> {
        self.largest_packet = self.largest_packet.max(largest_packet);
        let largest_packet = self.largest_packet;
        for limit in limits {
            let wanted = (limit.bytes_per_s, largest_packet);
            let before = self.limits.get(&limit.number).copied();
            if before == Some(wanted) {
                continue;
            }
            let group = Group {
                minor: minor_of(limit.number.into()),
                parent: ROOT,
                assured: limit.bytes_per_s,
                most: limit.bytes_per_s,
                priority: 0,
                packet_bytes: largest_packet,
                is_fair: self.is_fair,
                queues: self.queues(limit.number.into()),
                shrinks: before
                    .is_some_and(|(rate, packet)| whole(rate, packet) > whole(limit.bytes_per_s, largest_packet)),
            };
            group
                .put(netlink, self.ifindex)
                .with_context(|| format!("cannot limit what arrives to {} bytes/s", limit.bytes_per_s))?;
            self.limits.insert(limit.number, wanted);
        }
        for (number, link) in ordered {
            let wanted = (*link, largest_packet);
            if self.ordered.get(number) == Some(&wanted) {
                continue;
            }
            // What is there from now on is to be known, should it fail.
            let before = self.ordered.insert(*number, wanted);
            let shrinks = before.is_some_and(|(link_before, packet)| {
                whole(link_before.most, packet) > whole(link.most, largest_packet)
            });
            self.put_order(netlink, *number, link.most, largest_packet, shrinks)
                .context("cannot put what arrives in order")?;
        }
        Ok(())
    }

    fn put_order(&self, netlink: &mut Netlink, number: u32, most: u64, packet_bytes: u32, shrinks: bool) -> Result<()> {
        let of_link = group_of(number);
        self.put_available(netlink, number, most, packet_bytes)?;
        for (group, share) in (1..).zip([BULK_SHARE, BACKGROUND_SHARE]) {
            let group = Group {
                minor: minor_of(of_link + group),
                parent: HANDLE | minor_of(of_link),
                assured: most / share,
                most,
                // The lower number borrows first.
                priority: group - 1,
                packet_bytes,
                is_fair: self.is_fair,
                queues: self.queues(of_link + group),
                shrinks,
            };
            group.put(netlink, self.ifindex)?;
        }
        Ok(())
    }

    fn put_available(&self, netlink: &mut Netlink, number: u32, available: u64, packet_bytes: u32) -> Result<()> {
        let shape = shape(available, available, 0, packet_bytes);
        put_class(netlink, self.ifindex, minor_of(group_of(number)), ROOT, &shape)
    }

    /// Bulk and background of the link of this interface have so much together from now on.
    pub fn make_available(&self, netlink: &mut Netlink, ifindex: u32, bytes_per_s: u64) -> Result<()> {
        let mut links = self.ordered.iter();
        let Some((number, (_, packet_bytes))) = links.find(|(_, (link, _))| link.ifindex == ifindex) else {
            return Ok(());
        };
        self.put_available(netlink, *number, bytes_per_s, *packet_bytes)
    }

    /// By number, the interfaces of the links where what arrives is ordered.
    pub fn ordered(&self) -> impl Iterator<Item = (u32, u32)> {
        self.ordered.iter().map(|(number, (link, _))| (*number, link.ifindex))
    }

    /// Takes down what is no limit and no order any more; what waits there goes at once.
    pub fn forget(
        &mut self,
        netlink: &mut Netlink,
        limits: &BTreeSet<LimitNumber>,
        ordered: &BTreeMap<u32, OrderedLink>,
    ) -> Result<()> {
        let over = self.limits.keys().filter(|number| !limits.contains(number));
        let groups = over.map(|number| u32::from(*number));
        let left = self.ordered.keys().filter(|number| !ordered.contains_key(number));
        let links = left.map(|number| group_of(*number));
        let minors = |group| {
            let minor = minor_of(group);
            minor..=minor + self.queues(group)
        };
        // A link's own has no queues.
        let all: BTreeSet<u32> = groups
            .chain(links.clone().flat_map(|group| [group + 1, group + 2]))
            .flat_map(minors)
            .chain(links.map(minor_of))
            .collect();
        if all.is_empty() {
            return Ok(());
        }
        lift_those(netlink, self.ifindex, |minor| all.contains(&minor))?;
        super::wait_for(|| Ok(waiting_in(netlink, self.ifindex, &all)? == 0))?;
        // Those below first.
        for minor in all.iter().rev() {
            netlink
                .change(RTM_DELTCLASS, 0, &tcmsg(self.ifindex, HANDLE | minor, 0))
                .context("cannot take down a limit of what arrives")?;
        }
        self.limits.retain(|number, _| limits.contains(number));
        self.ordered.retain(|number, _| ordered.contains_key(number));
        Ok(())
    }

    /// What each of them has let pass since it was installed; None: it is too soon to look again.
    pub fn counted(&mut self, netlink: &mut Netlink) -> Result<Option<Counted>> {
        let began = now();
        if began < self.next_look {
            return Ok(None);
        }
        let counted = self.read_counters(netlink);
        let took = now().saturating_sub(began);
        self.next_look = began + (took * LOOKS_TAKE_ONE_IN).min(LONGEST_BETWEEN_LOOKS);
        counted.map(Some)
    }

    fn read_counters(&self, netlink: &mut Netlink) -> Result<Counted> {
        let mut all = Counted::default();
        for (parent, counted) in qdisc::all_counted(netlink, self.ifindex)? {
            // What fq_codel drops is counted above it, too.
            if parent & 0xffff_0000 != HANDLE || parent & 0xffff < LIMITS {
                continue;
            }
            let group = ((parent & 0xffff) - LIMITS) / CLASSES_OF_A_LIMIT;
            let Some(passed) = self.counted_in(&mut all, group) else {
                continue;
            };
            passed.passed_bytes += counted.sent_bytes;
            passed.passed_packets += u64::from(counted.sent_packets);
            passed.dropped_packets += u64::from(counted.dropped);
            passed.backlog_packets += u64::from(counted.backlog_packets);
            passed.backlog_bytes += u64::from(counted.backlog_bytes);
        }
        Ok(all)
    }

    /// Where what a group has counted belongs.
    fn counted_in<'a>(&self, all: &'a mut Counted, group: u32) -> Option<&'a mut Passed> {
        if let Some(of_links) = group.checked_sub(FIRST_OF_LINKS) {
            let (link, _) = self.ordered.get(&(of_links / GROUPS_OF_A_LINK))?;
            let which = (of_links % GROUPS_OF_A_LINK).checked_sub(1)?;
            return all.orders.entry(link.ifindex).or_default().get_mut(which as usize);
        }
        let number = LimitNumber::try_from(group).ok()?;
        let is_known = self.limits.contains_key(&number);
        is_known.then(|| all.limits.entry(number).or_default())
    }

    /// Nobody has put another queue in its place.
    pub fn stands(&self, netlink: &mut Netlink) -> Result<bool> {
        let root = qdisc::find_root(netlink, self.ifindex)?;
        Ok(root.is_some_and(|root| root.qdisc.handle == HANDLE))
    }
}

impl Group {
    fn put(&self, netlink: &mut Netlink, ifindex: u32) -> Result<()> {
        let Self {
            minor,
            parent,
            assured,
            most,
            priority,
            packet_bytes,
            is_fair,
            queues,
            shrinks,
        } = *self;
        let of_all = shape(assured, most, priority, packet_bytes);
        put_class(netlink, ifindex, minor, parent, &of_all)?;
        if is_fair {
            put_class(netlink, ifindex, minor + 1, HANDLE | minor, &of_all)?;
            if shrinks {
                drop_queue(netlink, ifindex, minor + 1)?;
            }
            put_queue(netlink, ifindex, minor + 1, most, packet_bytes)?;
            return put_fair(netlink, ifindex, minor + 1, most);
        }
        for queue in 1..=queues {
            let own = shape(assured / u64::from(queues), most, priority, packet_bytes);
            put_class(netlink, ifindex, minor + queue, HANDLE | minor, &own)?;
            if shrinks {
                drop_queue(netlink, ifindex, minor + queue)?;
            }
            put_queue(netlink, ifindex, minor + queue, most, packet_bytes)?;
        }
        Ok(())
    }
}

fn minor_of(group: u32) -> u32 {
    LIMITS + group * CLASSES_OF_A_LIMIT
}

/// Of the link of this number.
fn group_of(link: u32) -> u32 {
    FIRST_OF_LINKS + GROUPS_OF_A_LINK * link
}

fn shape(rate: u64, ceil: u64, priority: u32, packet_bytes: u32) -> Shape {
    Shape {
        rate: rate.max(1),
        ceil: ceil.max(1),
        priority,
        burst_us: BURST_US,
        packet_bytes,
        overhead_bytes: 0,
    }
}

fn put_class(netlink: &mut Netlink, ifindex: u32, minor: u32, parent: u32, shape: &Shape) -> Result<()> {
    netlink
        .change(
            RTM_NEWTCLASS,
            NLM_F_CREATE,
            &shape.message(ifindex, HANDLE | minor, parent),
        )
        .with_context(|| format!("cannot make the class {minor:x}"))
}

/// Bytes of the largest packet that is not cut.
fn whole(rate: u64, largest_packet: u32) -> u32 {
    (rate * BURST_US / 1_000_000)
        .min(LARGEST_GSO)
        .max(largest_packet.into()) as u32
}

/// With what waits there: at its new rate that would wait for longer than its flows do.
fn drop_queue(netlink: &mut Netlink, ifindex: u32, minor: u32) -> Result<()> {
    let message = tcmsg(ifindex, minor << 16, HANDLE | minor);
    netlink
        .change(RTM_DELQDISC, 0, &message)
        .context("cannot drop what waits behind a limit that is lowered")
}

/// It is no limit by itself: it cuts packets of many segments that would hold up the others, and its queue is short.
fn put_queue(netlink: &mut Netlink, ifindex: u32, minor: u32, rate: u64, largest_packet: u32) -> Result<()> {
    let fewest = FEWEST_PACKETS * largest_packet;
    let limit = (rate * QUEUE_MS / 1000).min(MOST_BYTES).max(fewest.into()) as u32;
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
        .attribute(TCA_TBF_BURST, &whole(rate, largest_packet).to_ne_bytes());
    let message = tcmsg(ifindex, minor << 16, HANDLE | minor)
        .text(KIND, "tbf")
        .nested(OPTIONS, options);
    let put = netlink.change(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &message);
    put.map_err(|error| match refused(&error) {
        Some(Errno::ENOENT) => error.context("this kernel has no tbf (CONFIG_NET_SCH_TBF)"),
        _ => error,
    })
}

/// In the place of the queue of the tbf.
fn put_fair(netlink: &mut Netlink, ifindex: u32, minor: u32, rate: u64) -> Result<()> {
    let packets = (rate * 2 * QUEUE_MS / 1000 / 1500).max(FEWEST_OF_ALL) as u32;
    let words = [
        (TCA_FQ_CODEL_TARGET, 1000 * QUEUE_MS as u32),
        (TCA_FQ_CODEL_LIMIT, packets),
        (TCA_FQ_CODEL_INTERVAL, INTERVAL_US),
        (TCA_FQ_CODEL_MEMORY_LIMIT, MOST_BYTES_OF_ALL),
    ];
    let options = words.into_iter().fold(Body::default(), |options, (kind, word)| {
        options.attribute(kind, &word.to_ne_bytes())
    });
    let message = tcmsg(ifindex, 0, minor << 16 | OF_TBF)
        .text(KIND, FQ_CODEL)
        .nested(OPTIONS, options);
    netlink
        .change(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &message)
        .context("cannot put fq_codel below a limit")
}

/// From now on nothing waits there.
pub fn lift(netlink: &mut Netlink, ifindex: u32) -> Result<()> {
    lift_those(netlink, ifindex, |_| true)
}

fn lift_those(netlink: &mut Netlink, ifindex: u32, is_meant: impl Fn(u32) -> bool) -> Result<()> {
    let classes = netlink
        .dump(RTM_GETTCLASS, &tcmsg(ifindex, 0, 0))
        .context("cannot list the classes of the intermediate device")?;
    for class in &classes {
        let (handle, parent) = (u32_at(class, 8)?, u32_at(class, 12)?);
        let (major, minor) = (handle & 0xffff_0000, handle & 0xffff);
        if major != HANDLE || minor < LIMITS || !is_meant(minor) {
            continue;
        }
        let shape = shape(AT_ONCE, AT_ONCE, 0, 1500);
        put_class(netlink, ifindex, minor, parent, &shape)?;
    }
    Ok(())
}

/// Packets.
pub fn waiting(netlink: &mut Netlink, ifindex: u32) -> Result<u32> {
    let root = qdisc::counted(netlink, ifindex, ROOT)?;
    Ok(root.map_or(0, |root| root.backlog_packets))
}

fn waiting_in(netlink: &mut Netlink, ifindex: u32, minors: &BTreeSet<u32>) -> Result<u32> {
    let all = qdisc::all_counted(netlink, ifindex)?.into_iter();
    let there = all.filter(|(parent, _)| parent & 0xffff_0000 == HANDLE && minors.contains(&(parent & 0xffff)));
    Ok(there.map(|(_, counted)| counted.backlog_packets).sum())
}
