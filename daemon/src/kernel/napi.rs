// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the kernel's threads that take packets in for a device (generic netlink, family `netdev`, Linux 6.8). Changes
//! nothing.

use anyhow::{Context as _, Result};
use giveway_engine::model::ProcessId;

use super::netlink::{Body, Netlink, attribute, u16_at, u32_at};
use super::tasks::{Tasks, Thread};

/// struct genlmsghdr: a command, a version, two bytes of nothing.
const HEADER_BYTES: usize = 4;
const FAMILY: &str = "netdev";
// include/uapi/linux/genetlink.h
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
// include/uapi/linux/netdev.h
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_PID: u16 = 4;

/// None where the device's packets are taken in by the softirq.
pub fn threads(ifindex: u32, tasks: &Tasks) -> Result<Vec<ProcessId>> {
    let mut threads = Vec::new();
    for pid in listed(ifindex)? {
        let found = tasks.threads.thread(pid).context("cannot read a NAPI thread")?;
        threads.extend(found.map(|Thread { start_ns, .. }| ProcessId { pid, start_ns }));
    }
    // A number that is listed now as well was of such a thread when its start was read.
    let still = listed(ifindex)?;
    threads.retain(|thread| still.contains(&thread.pid));
    Ok(threads)
}

fn listed(ifindex: u32) -> Result<Vec<u32>> {
    let mut netlink = Netlink::open_generic()?;
    let body = Body::new(&[CTRL_CMD_GETFAMILY, 1, 0, 0]).text(CTRL_ATTR_FAMILY_NAME, FAMILY);
    let family = netlink.get(GENL_ID_CTRL, &body);
    let family = family.context("the kernel does not report its NAPI threads (needs Linux 6.8)")?;
    let id = attribute(&family, HEADER_BYTES, CTRL_ATTR_FAMILY_ID).context("the kernel's family has no number")?;
    let body = Body::new(&[NETDEV_CMD_NAPI_GET, 1, 0, 0]).attribute(NETDEV_A_NAPI_IFINDEX, &ifindex.to_ne_bytes());
    let instances = netlink
        .dump(u16_at(id, 0)?, &body)
        .context("cannot list the device's NAPI instances")?;
    let thread = |message: &Vec<u8>| u32_at(attribute(message, HEADER_BYTES, NETDEV_A_NAPI_PID)?, 0).ok();
    Ok(instances.iter().filter_map(thread).collect())
}
