// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The qdisc at the root of a device's way out, as the kernel tells it. Reads only.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::netlink::{Body, Netlink, attribute, text, u32_at};

/// Bytes of a message before its attributes (struct tcmsg).
const TCMSG_BYTES: usize = 20;
/// The parent of a root qdisc, and of no other (include/uapi/linux/pkt_sched.h).
pub const ROOT: u32 = 0xffff_ffff;
/// The parent of what stands at the way in, which is no part of the way out.
const INGRESS: u32 = 0xffff_fff1;
/// Attributes of a qdisc (include/uapi/linux/rtnetlink.h).
pub const KIND: u16 = 1;
pub const OPTIONS: u16 = 2;
const STAB: u16 = 8;
const INGRESS_BLOCK: u16 = 13;
const EGRESS_BLOCK: u16 = 14;

/// Statistics of one, and their parts (include/uapi/linux/gen_stats.h).
const STATS: u16 = 7;
const STATS_BASIC: u16 = 1;
const STATS_QUEUE: u16 = 3;

/// What a qdisc has counted since it was installed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QdiscCounters {
    pub sent_bytes: u64,
    pub sent_packets: u32,
    pub backlog_packets: u32,
    pub backlog_bytes: u32,
    pub dropped: u32,
}

/// A qdisc as it is installed again: what the kernel dumps of it, unread.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Qdisc {
    pub kind: String,
    /// 0: the kernel's default, which comes back by itself.
    pub handle: u32,
    pub options: Option<Vec<u8>>,
}

/// What stands at a device's root.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceRoot {
    pub qdisc: Qdisc,
    /// What a [`Qdisc`] does not hold, if there is any.
    pub entangled: Option<String>,
}

/// The fixed part of every message about qdiscs, classes and filters.
pub fn tcmsg(ifindex: u32, handle: u32, parent: u32) -> Body {
    let words = [0, ifindex, handle, parent, 0];
    Body::new(&words.map(u32::to_ne_bytes).concat())
}

/// The root qdisc of a device.
pub fn root(netlink: &mut Netlink, ifindex: u32) -> Result<DeviceRoot> {
    find_root(netlink, ifindex)?.context("the device has no root qdisc")
}

/// Of every device that has one.
pub fn roots(netlink: &mut Netlink) -> Result<Vec<(u32, Qdisc)>> {
    let all = netlink
        .dump(libc::RTM_GETQDISC, &tcmsg(0, 0, 0))
        .context("cannot list the qdiscs")?;
    let mut roots = Vec::new();
    for message in &all {
        if u32_at(message, 12)? == ROOT {
            roots.push((u32_at(message, 4)?, read(message, u32_at(message, 8)?)?));
        }
    }
    Ok(roots)
}

/// None: the kernel shows none, as of a device that is down and has lost its own.
pub fn find_root(netlink: &mut Netlink, ifindex: u32) -> Result<Option<DeviceRoot>> {
    let all = netlink
        .dump(libc::RTM_GETQDISC, &tcmsg(ifindex, 0, 0))
        .context("cannot list the qdiscs")?;
    let mut root = None;
    let mut entangled = None;
    for message in all.iter().filter(|m| u32_at(m, 4).is_ok_and(|index| index == ifindex)) {
        let (handle, parent) = (u32_at(message, 8)?, u32_at(message, 12)?);
        let has = |kind| attribute(message, TCMSG_BYTES, kind).is_some();
        if parent == ROOT {
            root = Some(read(message, handle)?);
            if has(STAB) {
                entangled = Some("has a size table (stab)");
            } else if has(EGRESS_BLOCK) || has(INGRESS_BLOCK) {
                entangled = Some("shares a block of filters");
            }
        } else if parent != INGRESS && handle != 0 {
            entangled = Some("has queues of its own");
        }
    }
    let Some(qdisc) = root else { return Ok(None) };
    if qdisc.handle != 0 && entangled.is_none() && has_filters(netlink, ifindex, qdisc.handle)? {
        entangled = Some("has filters");
    }
    Ok(Some(DeviceRoot {
        qdisc,
        entangled: entangled.map(str::to_owned),
    }))
}

/// What the qdisc below this class has counted; None where there is none.
pub fn counted(netlink: &mut Netlink, ifindex: u32, parent: u32) -> Result<Option<QdiscCounters>> {
    let all = all_counted(netlink, ifindex)?;
    Ok(all
        .into_iter()
        .find_map(|(of, counted)| (of == parent).then_some(counted)))
}

/// What each qdisc of the device has counted, by its parent; of those that tell it.
pub fn all_counted(netlink: &mut Netlink, ifindex: u32) -> Result<Vec<(u32, QdiscCounters)>> {
    let all = netlink
        .dump(libc::RTM_GETQDISC, &tcmsg(ifindex, 0, 0))
        .context("cannot list the qdiscs")?;
    let here = all.iter().filter(|m| u32_at(m, 4).ok() == Some(ifindex));
    here.map(|message| Ok((u32_at(message, 12)?, count(message)?)))
        .collect()
}

fn count(message: &[u8]) -> Result<QdiscCounters> {
    let statistics = attribute(message, TCMSG_BYTES, STATS).context("a qdisc tells no statistics")?;
    let part = |kind| attribute(statistics, 0, kind).context("a qdisc tells no statistics");
    // struct gnet_stats_basic: bytes (64 bits), packets. struct gnet_stats_queue: qlen, backlog, drops.
    let (basic, queue) = (part(STATS_BASIC)?, part(STATS_QUEUE)?);
    let bytes = basic.first_chunk().context("a netlink message is cut short")?;
    Ok(QdiscCounters {
        sent_bytes: u64::from_ne_bytes(*bytes),
        sent_packets: u32_at(basic, 8)?,
        backlog_packets: u32_at(queue, 0)?,
        backlog_bytes: u32_at(queue, 4)?,
        dropped: u32_at(queue, 8)?,
    })
}

fn read(message: &[u8], handle: u32) -> Result<Qdisc> {
    Ok(Qdisc {
        kind: attribute(message, TCMSG_BYTES, KIND)
            .and_then(text)
            .context("the kernel tells a qdisc without its kind")?,
        handle,
        options: attribute(message, TCMSG_BYTES, OPTIONS).map(<[u8]>::to_vec),
    })
}

fn has_filters(netlink: &mut Netlink, ifindex: u32, parent: u32) -> Result<bool> {
    let filters = netlink
        .dump(libc::RTM_GETTFILTER, &tcmsg(ifindex, 0, parent))
        .context("cannot list the filters of a qdisc")?;
    Ok(!filters.is_empty())
}
