// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links on which no queue of ours stands until it is wanted: whether packets come that one would have to order.

use std::collections::BTreeMap;

use giveway_engine::queue::Backend;

use super::QueueActuator;
use crate::kernel::qdisc::{self, ROOT};

impl QueueActuator {
    /// Of these, where a queue comes when it is wanted: those on which packets came that one would have to order, since the last
    /// time that nothing waited; and how many wait there now.
    pub fn ordered(&mut self, without_queue: &[u32]) -> BTreeMap<u32, u32> {
        let Some(admission) = &self.admission else {
            return BTreeMap::new();
        };
        let mut on = BTreeMap::new();
        for (ifindex, link) in &mut self.links {
            if link.plan.backend != Backend::None || !without_queue.contains(ifindex) {
                continue;
            }
            let counted = match admission.counters(link.number) {
                Ok(counted) => counted,
                Err(error) => {
                    tracing::debug!("{}: {error:#}", link.name);
                    continue;
                }
            };
            let [realtime, stream, _, background] = counted.packets;
            let packets = realtime + stream + background + counted.only_ordered;
            let mut backlog_packets = 0;
            if link.ordered.is_some_and(|before| before != packets) {
                let root = qdisc::counted(&mut self.netlink, *ifindex, ROOT);
                backlog_packets = root.ok().flatten().map_or(0, |root| root.backlog_packets);
                on.insert(*ifindex, backlog_packets);
            }
            if backlog_packets == 0 {
                link.ordered = Some(packets);
            }
        }
        on
    }
}
