// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links on which no queue of ours stands until it is wanted: whether packets come that one would have to order.

use std::time::Duration;

use giveway_engine::network::queue::Backend;

use super::QueueActuator;
use crate::kernel::now;
use crate::kernel::qdisc::{self, ROOT};

/// For so long a queue that is wanted waits for what is in its place to be empty.
const PUT_OFF: Duration = Duration::from_secs(1);

impl QueueActuator {
    /// Of these, where a queue comes when it is wanted: those on which packets came since the last time that one would have to
    /// order. What waits in a qdisc is lost with it, so for a while a moment is waited for in which nothing does.
    pub fn ordered(&mut self, waiting: &[u32]) -> Vec<u32> {
        let Some(admission) = &self.admission else {
            return Vec::new();
        };
        let mut on = Vec::new();
        for (ifindex, link) in &mut self.links {
            if link.plan.backend != Backend::None || !waiting.contains(ifindex) {
                continue;
            }
            match admission.counters(link.number) {
                Ok(counted) => {
                    let [realtime, stream, _, background] = counted.packets;
                    let packets = realtime + stream + background + counted.only_ordered;
                    if link.ordered.is_some_and(|before| before != packets) {
                        let since = *link.put_off.get_or_insert_with(now);
                        let mut waits = || qdisc::counted(&mut self.netlink, *ifindex, ROOT);
                        if now().saturating_sub(since) < PUT_OFF
                            && matches!(waits(), Ok(Some(root)) if root.waiting_packets > 0)
                        {
                            continue;
                        }
                        on.push(*ifindex);
                    }
                    (link.ordered, link.put_off) = (Some(packets), None);
                }
                Err(error) => tracing::debug!("{}: {error:#}", link.name),
            }
        }
        on
    }
}
