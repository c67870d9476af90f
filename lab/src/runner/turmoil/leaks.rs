// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of giveway, or of the packets that went through it, is still in the kernel.
//! In: nothing. Out: packets that the kernel holds, BPF objects, and whether the qdisc's own counts add up.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::process::run;

/// Where packets are allocated, but for TCP's own: those share a cache with whatever has their size.
const PACKETS: &str = "skbuff_head_cache";
const COUNTERS: &str = "band_counters";

/// A moment of the kernel.
#[derive(Debug)]
pub struct Holdings {
    pub packets: u64,
    /// Programs, maps and links by kind and number, with their names.
    pub objects: BTreeMap<(&'static str, u64), String>,
}

#[derive(Deserialize)]
struct Object {
    id: u64,
    #[serde(default)]
    name: String,
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
}

/// Bytes as bpftool writes them: "0x2a".
#[derive(Deserialize)]
struct Entry {
    key: Vec<String>,
    value: Vec<String>,
}

impl Entry {
    /// Of the key, or of a value's 64-bit words.
    fn number(bytes: &[String]) -> Option<u64> {
        let byte = |text: &String| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        bytes.iter().rev().try_fold(0, |sum, text| Some(sum << 8 | byte(text)?))
    }

    fn read(&self) -> Option<(u64, BandCounters)> {
        let words = self.value.chunks(8).map(Self::number).collect::<Option<Vec<_>>>()?;
        // In the order of queueing.h, bytes left out.
        let [
            queued_packets,
            _,
            sent_packets,
            _,
            dropped_full,
            dropped_sojourn,
            dropped_late,
            dropped_reset,
            backlog_packets,
        ] = *words.first_chunk()?;
        let counters = BandCounters {
            queued_packets,
            sent_packets,
            dropped_full,
            dropped_sojourn,
            dropped_late,
            dropped_reset,
            backlog_packets,
        };
        Some((Self::number(&self.key)?, counters))
    }
}

impl Holdings {
    pub fn look() -> Result<Self> {
        let mut objects = BTreeMap::new();
        for kind in ["prog", "map", "link"] {
            let of_kind = loaded(kind)?.into_iter();
            objects.extend(of_kind.map(|object| ((kind, object.id), object.name)));
        }
        let packets = active(PACKETS)?;
        Ok(Self { packets, objects })
    }

    /// BPF objects that were not there then.
    pub fn objects_since(&self, then: &Holdings) -> Vec<String> {
        let new = self
            .objects
            .iter()
            .filter(|(object, _)| !then.objects.contains_key(object));
        new.map(|((kind, id), name)| format!("{kind} {id} {name}")).collect()
    }
}

/// Objects in use. What CPUs keep for later would count as such, so they are made to give it up first.
fn active(cache: &str) -> Result<u64> {
    std::fs::write(format!("/sys/kernel/slab/{cache}/shrink"), "1")
        .with_context(|| format!("cannot shrink the kernel's {cache}"))?;
    let all = std::fs::read_to_string("/proc/slabinfo").context("the kernel does not say what it has allocated")?;
    let line = all.lines().find_map(|line| line.strip_prefix(cache)?.strip_prefix(' '));
    let count = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    count.with_context(|| format!("/proc/slabinfo has no {cache}"))
}

fn loaded(kind: &str) -> Result<Vec<Object>> {
    let mut bpftool = Command::new("bpftool");
    bpftool.args(["-j", kind, "show"]);
    let said = run(bpftool)?.stdout;
    serde_json::from_slice(&said).with_context(|| format!("bpftool's list of every {kind} is not readable"))
}

/// Of every loaded qdisc object: the counters of each band of each instance, by map and place in it.
pub fn counters() -> Result<BTreeMap<(u64, u64), BandCounters>> {
    let mut all = BTreeMap::new();
    for map in loaded("map")?.iter().filter(|map| map.name == COUNTERS) {
        let mut bpftool = Command::new("bpftool");
        bpftool.args(["-j", "map", "dump", "id", &map.id.to_string()]);
        // A map may vanish between the two calls.
        let Ok(output) = run(bpftool) else { continue };
        let entries: Vec<Entry> =
            serde_json::from_slice(&output.stdout).context("the qdisc's counters are not readable")?;
        for entry in &entries {
            let (place, counters) = entry.read().context("the qdisc's counters are not as they should be")?;
            all.insert((map.id, place), counters);
        }
    }
    Ok(all)
}

impl BandCounters {
    /// By how many packets what came in and what went out differ.
    pub fn imbalance(&self, place: u64) -> u64 {
        // The two other bands refuse what is too much before it is queued; best effort drops what waits.
        let is_best_effort = place % 3 == 1;
        let dropped_full = if is_best_effort { self.dropped_full } else { 0 };
        let gone = self.sent_packets + dropped_full + self.dropped_sojourn + self.dropped_late + self.dropped_reset;
        self.queued_packets.abs_diff(gone.wrapping_add(self.backlog_packets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_what_bpftool_writes() {
        let word = |number: u64| number.to_le_bytes().map(|byte| format!("{byte:#04x}"));
        let entry = Entry {
            key: ["0x04", "0x00", "0x00", "0x00"].map(String::from).into(),
            value: (300..310).flat_map(word).collect(),
        };
        let counters = BandCounters {
            queued_packets: 300,
            sent_packets: 302,
            dropped_full: 304,
            dropped_sojourn: 305,
            dropped_late: 306,
            dropped_reset: 307,
            backlog_packets: 308,
        };
        assert_eq!(entry.read(), Some((4, counters)));
    }

    #[test]
    fn counters_add_up_or_say_by_how_much_they_do_not() {
        let counters = BandCounters {
            queued_packets: 10,
            sent_packets: 5,
            dropped_full: 2,
            backlog_packets: 3,
            ..Default::default()
        };
        assert_eq!((counters.imbalance(4), counters.imbalance(3)), (0, 2));
    }
}
