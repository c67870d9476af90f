// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of giveway, or of the packets that went through it, is still in the kernel.
//! Input: nothing. Output: packets that the kernel holds, BPF objects, and whether the qdisc's own counts add up.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use crate::bpf_objects::{Object, all, values_of_maps};
use crate::proc::number;

/// Where packets are allocated, but for TCP's own: those share a cache with whatever has their size.
const PACKETS: &str = "skbuff_head_cache";
const COUNTERS: &str = "band_counters";

/// A moment of the kernel.
#[derive(Debug)]
pub struct Holdings {
    pub packets: u64,
    pub objects: BTreeSet<Object>,
}

/// `struct gw_band_counters`, as far as it has to add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BandCounters {
    pub queued_packets: u64,
    pub sent_packets: u64,
    dropped_full: u64,
    dropped_sojourn: u64,
    dropped_late: u64,
    dropped_reset: u64,
    pub backlog_packets: u64,
    backlog_bytes: u64,
    tcp_backlog_bytes: u64,
}

impl BandCounters {
    /// In the order of queueing.h, each as packets and then bytes or a reason's packets.
    fn read(value: &[u8]) -> Option<Self> {
        let (words, _) = value.as_chunks::<8>();
        let words: Vec<_> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let words: &[u64; 12] = words.first_chunk()?;
        Some(Self {
            queued_packets: words[0],
            sent_packets: words[2],
            dropped_full: words[4],
            dropped_sojourn: words[5],
            dropped_late: words[6],
            dropped_reset: words[7],
            backlog_packets: words[8],
            backlog_bytes: words[9],
            tcp_backlog_bytes: words[11],
        })
    }
}

impl Holdings {
    pub fn count() -> Result<Self> {
        Ok(Self {
            packets: active(PACKETS)?,
            objects: all(),
        })
    }

    /// BPF objects that were not there then.
    pub fn objects_since<'a>(&'a self, then: &'a Holdings) -> Vec<&'a Object> {
        self.objects.difference(&then.objects).collect()
    }
}

/// Objects in use. What CPUs keep for later would count as such, so they are made to give it up first.
fn active(cache: &str) -> Result<u64> {
    std::fs::write(format!("/sys/kernel/slab/{cache}/shrink"), "1")
        .with_context(|| format!("cannot shrink the kernel's {cache}"))?;
    Ok(number("/proc/slabinfo", &format!("{cache} "), 0)? as u64)
}

/// Of every loaded qdisc object: the counters of each band of each instance, by map and place in it.
pub fn counters() -> Result<BTreeMap<(u32, u32), BandCounters>> {
    let read = |((map, key), value): ((u32, Vec<u8>), Vec<u8>)| {
        let place = key.first_chunk().map(|key| u32::from_ne_bytes(*key));
        let counters = place.zip(BandCounters::read(&value));
        let (place, counters) = counters.context("the qdisc's counters are not as they should be")?;
        Ok(((map, place), counters))
    };
    values_of_maps(COUNTERS).into_iter().map(read).collect()
}

impl BandCounters {
    /// By how many packets what came in and what went out differ; one more where TCP's part is more than all that waits.
    pub fn imbalance(&self, place: u32) -> u64 {
        // The two other bands refuse what is too much before it is queued; streams and best effort drop what waits.
        let drops_waiting = matches!(place % 4, 1 | 2);
        let dropped_full = if drops_waiting { self.dropped_full } else { 0 };
        let gone = self.sent_packets + dropped_full + self.dropped_sojourn + self.dropped_late + self.dropped_reset;
        let more_of_tcp = u64::from(self.tcp_backlog_bytes > self.backlog_bytes);
        self.queued_packets.abs_diff(gone.wrapping_add(self.backlog_packets)) + more_of_tcp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_in_the_order_of_the_kernels_struct() {
        let value: Vec<u8> = (300..312_u64).flat_map(u64::to_ne_bytes).collect();
        let counters = BandCounters {
            queued_packets: 300,
            sent_packets: 302,
            dropped_full: 304,
            dropped_sojourn: 305,
            dropped_late: 306,
            dropped_reset: 307,
            backlog_packets: 308,
            backlog_bytes: 309,
            tcp_backlog_bytes: 311,
        };
        assert_eq!(BandCounters::read(&value), Some(counters));
        assert_eq!(BandCounters::read(&value[..40]), None);
    }

    #[test]
    fn counters_report_their_imbalance() {
        let counters = BandCounters {
            queued_packets: 10,
            sent_packets: 5,
            dropped_full: 2,
            backlog_packets: 3,
            ..Default::default()
        };
        assert_eq!((counters.imbalance(6), counters.imbalance(4)), (0, 2));
        let more_of_tcp = BandCounters {
            tcp_backlog_bytes: 1,
            ..counters
        };
        assert_eq!(more_of_tcp.imbalance(6), 1);
    }
}
