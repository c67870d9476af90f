// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is read of the queues active: what they have counted, and the packets with deadlines that were refused.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use giveway_engine::queue::Backend;
use giveway_engine::queue::traffic::{Band, Bands, QueueCounters, Refusal, Refused, Served};

use super::admission::Admission;
use super::bpf_qdisc::BpfQdisc;
use super::{BANDS, ManagedLink, QueueActuator, htb};
use crate::kernel::netlink::Netlink;
use crate::kernel::now;

impl QueueActuator {
    /// By interface, where a queue is active. What htb counts costs more to read: it may be this old.
    pub fn counters(&mut self, at_most_old: Duration) -> Result<BTreeMap<u32, QueueCounters>> {
        let Some(admission) = &self.admission else {
            return Ok(BTreeMap::new());
        };
        let mut all = BTreeMap::new();
        for (ifindex, link) in &mut self.links {
            if link.plan.backend == Backend::None {
                continue;
            }
            match link.counters(&mut self.netlink, admission, self.qdisc.as_ref(), at_most_old) {
                Ok(counters) => drop(all.insert(*ifindex, counters)),
                // It is just going away.
                Err(error) => tracing::debug!("{}: {error:#}", link.name),
            }
        }
        Ok(all)
    }

    /// Refusals that were not fetched yet, oldest first.
    pub fn refusals(&self) -> Result<Vec<Refusal>> {
        self.admission.as_ref().map_or(Ok(Vec::new()), Admission::refusals)
    }
}

impl ManagedLink {
    fn counters(
        &mut self,
        netlink: &mut Netlink,
        admission: &Admission,
        qdisc: Option<&BpfQdisc>,
        at_most_old: Duration,
    ) -> Result<QueueCounters> {
        let (served_at, served) = self.bands(netlink, qdisc, at_most_old)?;
        let counted = admission.counters(self.number)?;
        let band = |band: usize| Band {
            classified: counted.packets[band],
            served: served.map(|served| served[band]),
        };
        let bands = Bands {
            realtime: band(0),
            stream: band(1),
            best_effort: band(2),
            background: band(3),
        };
        let late = bands.realtime.served.and_then(|served| served.more);
        let [_, own, others, full, share, _] = counted.refused;
        Ok(QueueCounters {
            admitted: counted.admitted,
            refused: Refused {
                total: own + others + full + share,
                own,
                others,
                full,
                share,
            },
            late: late.map_or(0, |more| more.dropped_late),
            expired: counted.expired,
            untold: counted.events_lost,
            served_t_ns: served_at.as_nanos() as u64,
            only_ordered: counted.only_ordered,
            bands,
        })
    }

    /// When it was read, and what was.
    fn bands(
        &mut self,
        netlink: &mut Netlink,
        qdisc: Option<&BpfQdisc>,
        at_most_old: Duration,
    ) -> Result<(Duration, Option<[Served; BANDS]>)> {
        let now = now();
        match (self.plan.backend, qdisc) {
            (Backend::Htb, _) => {
                if let Some((read, served)) = self.served
                    && now.saturating_sub(read) < at_most_old
                {
                    return Ok((read, Some(served)));
                }
                let served = htb::bands(netlink, self.plan.ifindex)?;
                self.served = Some((now, served));
                Ok((now, Some(served)))
            }
            (Backend::Bpf, Some(qdisc)) => Ok((now, Some(qdisc.bands(self.number)?))),
            _ => Ok((now, None)),
        }
    }
}
