// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps TCP from making packets of many segments on a link whose plan says so (gso_max_segs), and gives back what the device
//! had.

use anyhow::{Context as _, Result};
use giveway_engine::queue::Plan;

use super::QueueActuator;
use crate::kernel::netlink::{IFLA_GROUP, IFLA_GSO_MAX_SEGS, Netlink, RTM_NEWLINK};
use crate::kernel::uplink;

pub(super) const SINGLE_SEGMENTS: u32 = 1;

impl QueueActuator {
    pub(super) fn limit_segments(&mut self, ifindex: u32, plan: &Plan) -> Result<()> {
        let before = self.links.get_mut(&ifindex).and_then(|link| link.before.as_mut());
        let before = before.context("what the queue was is not journalled")?;
        let found = uplink::device(&mut self.netlink, plan.ifindex)?.gso_max_segments;
        let is_single = found == SINGLE_SEGMENTS;
        let wanted = match (plan.single_segments, before.limits_segments) {
            (true, _) if !is_single => {
                (before.gso_max_segments, before.limits_segments) = (found, true);
                self.journal.add([&*before])?;
                SINGLE_SEGMENTS
            }
            (false, true) if is_single => {
                let wanted = before.gso_max_segments;
                set_gso_max_segments(&mut self.netlink, plan.ifindex, wanted)?;
                before.limits_segments = false;
                // What somebody else sets from now on is not ours to restore.
                let standing = self.links.values().filter_map(|link| link.before.as_ref());
                return self.journal.replace(standing);
            }
            _ => return Ok(()),
        };
        set_gso_max_segments(&mut self.netlink, plan.ifindex, wanted)
    }
}

pub(super) fn set_gso_max_segments(netlink: &mut Netlink, ifindex: u32, segments: u32) -> Result<()> {
    let group = uplink::device(netlink, ifindex)?.group;
    // Connections keep the limit that they found with their route. Those over IPv4 look again after any change of a link
    // that the kernel tells of, as it does when a group is set, be it the same one. (So does a write to ipv4/route/flush; but
    // whoever lists that folder can keep it waiting.) IPv6 has no such means: its open connections keep the old limit, until
    // they end or their route changes.
    let message = uplink::ifinfomsg(ifindex)
        .attribute(IFLA_GSO_MAX_SEGS, &segments.to_ne_bytes())
        .attribute(IFLA_GROUP, &group.to_ne_bytes());
    netlink
        .change(RTM_NEWLINK, 0, &message)
        .context("cannot set gso_max_segs")?;
    Ok(())
}
