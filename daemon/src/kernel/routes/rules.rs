// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which tables of routes the rules lead to (`ip rule`), and for which packets. Input: rtnetlink's list of rules. Output: one
//! [`TableLookup`] for each table, kind of packets, and what the rule ignores of the table. It reads no route.

use std::collections::BTreeMap;

use anyhow::Result;

use super::again;
use crate::kernel::netlink::{Body, Netlink, attribute, attributes, u32_at};
use crate::kernel::uplink;

/// Bytes of a message before its attributes (struct fib_rule_hdr).
const RULE_BYTES: usize = 12;
/// More rules and tables are not read, each second anew.
const MOST_RULES: usize = 4096;
pub(super) const MOST_TABLES: usize = 64;
/// include/uapi/linux/fib_rules.h
const FR_ACT_TO_TBL: u8 = 1;
const FIB_RULE_INVERT: u32 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_PAD: u16 = 18;
const FRA_L3MDEV: u16 = 19;
const FRA_PROTOCOL: u16 = 21;
/// What says nothing of the packets that a rule is for. Whatever else there is, now or in a later kernel, chooses some.
const FOR_ALL_PACKETS: [u16; 7] = [
    FRA_PRIORITY,
    FRA_SUPPRESS_IFGROUP,
    FRA_SUPPRESS_PREFIXLEN,
    FRA_TABLE,
    FRA_PAD,
    FRA_L3MDEV,
    FRA_PROTOCOL,
];
const MAIN: u32 = libc::RT_TABLE_MAIN as u32;
/// The kernel keeps this host's own addresses there.
const LOCAL: u32 = libc::RT_TABLE_LOCAL as u32;

/// A table that packets are looked up in; in the order of preference.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct TableLookup {
    /// Only for packets of a source, a mark, a user, and so on.
    for_some: bool,
    priority: u32,
    /// Routes to addresses of so many bits or fewer do not count; None: all do.
    ignores_bits: Option<u8>,
    pub(super) table: u32,
}

impl TableLookup {
    /// Whether it takes a route for addresses of so many bits.
    pub(super) fn uses(&self, bits: u8) -> bool {
        self.ignores_bits.is_none_or(|ignored| bits > ignored)
    }
}

/// The ways of this protocol, and how many tables more there are.
pub(super) fn ways(family: u8) -> Result<(Vec<TableLookup>, usize)> {
    let rules = again(|| {
        let (mut netlink, mut rules) = (Netlink::open_strict()?, Vec::new());
        let mut fixed = [0; RULE_BYTES];
        fixed[0] = family;
        netlink.dump_while(libc::RTM_GETRULE, &Body::new(&fixed), |message| {
            rules.push(message.to_vec());
            rules.len() < MOST_RULES
        })?;
        Ok(rules)
    })?;
    if rules.is_empty() {
        // A kernel without rules looks in one table.
        let main = TableLookup {
            for_some: false,
            priority: 0,
            ignores_bits: None,
            table: MAIN,
        };
        return Ok((vec![main], 0));
    }
    let of_vrfs = match rules.iter().any(|rule| is_vrfs(rule)) {
        true => uplink::vrf_tables(&mut Netlink::open()?)?,
        false => Vec::new(),
    };
    Ok(chosen(rules.iter().flat_map(|rule| ways_of(rule, &of_vrfs))))
}

/// Of each way the first; a hundred rules lead to one table on many a host.
fn chosen(ways: impl Iterator<Item = TableLookup>) -> (Vec<TableLookup>, usize) {
    let mut first: BTreeMap<(u32, bool, Option<u8>), TableLookup> = BTreeMap::new();
    for way in ways {
        let known = first
            .entry((way.table, way.for_some, way.ignores_bits))
            .or_insert_with(|| way.clone());
        known.priority = known.priority.min(way.priority);
    }
    let mut ways: Vec<TableLookup> = first.into_values().collect();
    ways.sort();
    let mut tables: Vec<u32> = Vec::new();
    for way in &ways {
        if !tables.contains(&way.table) {
            tables.push(way.table);
        }
    }
    let unread = tables.split_off(tables.len().min(MOST_TABLES));
    ways.retain(|way| !unread.contains(&way.table));
    (ways, unread.len())
}

/// Of a VRF's devices: the rule is one for all of their tables.
fn is_vrfs(rule: &[u8]) -> bool {
    attribute(rule, RULE_BYTES, FRA_L3MDEV).is_some_and(|value| value == [1])
}

fn ways_of(rule: &[u8], of_vrfs: &[u32]) -> Vec<TableLookup> {
    let Some(&[_, to_bits, from_bits, tos, _, _, _, action, ..]) = rule.first_chunk::<RULE_BYTES>() else {
        return Vec::new();
    };
    if action != FR_ACT_TO_TBL {
        return Vec::new();
    }
    let number = |kind| u32_at(attribute(rule, RULE_BYTES, kind)?, 0).ok();
    let inverts = u32_at(rule, 8).is_ok_and(|flags| flags & FIB_RULE_INVERT != 0);
    let tables = match number(FRA_TABLE) {
        _ if is_vrfs(rule) => of_vrfs.to_vec(),
        table => table.into_iter().filter(|table| *table != LOCAL).collect(),
    };
    // All bits stand for none.
    let ignored = number(FRA_SUPPRESS_PREFIXLEN).and_then(|bits| u8::try_from(bits).ok());
    let way = |table| TableLookup {
        for_some: inverts || is_vrfs(rule) || [to_bits, from_bits, tos] != [0; 3] || chooses(rule),
        priority: number(FRA_PRIORITY).unwrap_or(0),
        ignores_bits: ignored,
        table,
    };
    tables.into_iter().map(way).collect()
}

/// Whether it has an attribute that is about packets.
fn chooses(rule: &[u8]) -> bool {
    attributes(rule, RULE_BYTES).any(|(kind, _)| !FOR_ALL_PACKETS.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(action: u8) -> Body {
        Body::new(&[2, 0, 0, 0, 0, 0, 0, action, 0, 0, 0, 0])
    }

    #[test]
    fn of_many_rules_so_many_tables_are_read_and_the_rest_is_counted() {
        let way = |n: u32| TableLookup {
            for_some: true,
            priority: n,
            ignores_bits: None,
            table: n % 100,
        };
        let main = TableLookup {
            for_some: false,
            priority: 32_766,
            ignores_bits: None,
            table: MAIN,
        };
        let (ways, unread) = chosen((0..1_000).map(way).chain([main.clone()]));
        assert_eq!((ways.len(), unread), (MOST_TABLES, 101 - MOST_TABLES));
        assert_eq!(ways[0], main, "what all packets take comes first");
    }

    #[test]
    fn a_rule_that_is_cut_short_leads_nowhere() {
        let whole = rule(FR_ACT_TO_TBL).attribute(FRA_TABLE, &100u32.to_ne_bytes());
        let bytes = whole.bytes();
        assert_eq!(ways_of(bytes, &[]).len(), 1);
        (0..bytes.len()).for_each(|length| assert!(ways_of(&bytes[..length], &[]).is_empty()));
        assert!(ways_of(rule(6).bytes(), &[]).is_empty(), "a blackhole has no table");
    }
}
