// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules by which a queue contends for the channel: those of DCF, or of one access category of EDCA (802.11e).
//!
//! Input: an Ethernet frame. Output: its access category, and the constants of one. IEEE 802.11-2020: 10.3.4 (DCF),
//! 10.23.2 (EDCA), tables 9-155 (stations) and the defaults of dot11QAPEDCATable (access points). Every TXOP is one
//! frame. Keeps no state.

use super::airtime::ETHERNET_HEADER_BYTES;

/// In order of precedence where two queues of one sender reach the same slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    Voice,
    Video,
    BestEffort,
    Background,
}

pub const CATEGORIES: [Category; 4] = [
    Category::Voice,
    Category::Video,
    Category::BestEffort,
    Category::Background,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Slots after SIFS in which it stays silent: DIFS has two.
    pub aifsn: u64,
    pub cw_min: u64,
    pub cw_max: u64,
    /// EDCA counts at the beginning of a slot, so also one in which another sender begins; DCF at its end. That is why
    /// best effort with AIFSN 3 gets as much as a DCF station (Bianchi, Tinnirello, Scalia: Understanding 802.11e
    /// contention-based prioritization mechanisms, 2005).
    pub counts_busy_slot: bool,
}

/// aCWmin and aCWmax of ERP (clause 18).
const CW_MIN: u64 = 15;
const CW_MAX: u64 = 1_023;

pub const DCF: Access = Access {
    aifsn: 2,
    cw_min: CW_MIN,
    cw_max: CW_MAX,
    counts_busy_slot: false,
};

impl Access {
    pub const fn edca(category: Category, is_access_point: bool) -> Self {
        let earlier = is_access_point as u64;
        let (aifsn, cw_min, cw_max) = match (category, is_access_point) {
            (Category::Voice, _) => (2 - earlier, CW_MIN >> 2, CW_MIN >> 1),
            (Category::Video, _) => (2 - earlier, CW_MIN >> 1, CW_MIN),
            (Category::BestEffort, true) => (3, CW_MIN, 4 * (CW_MIN + 1) - 1),
            (Category::BestEffort, false) => (3, CW_MIN, CW_MAX),
            (Category::Background, _) => (7, CW_MIN, CW_MAX),
        };
        Self {
            aifsn,
            cw_min,
            cw_max,
            counts_busy_slot: true,
        }
    }
}

/// A byte of the source address, which nothing else here reads: written by `bpf/access.bpf.c`.
const MARK_AT: usize = 7;
/// In the mark, beside the user priority in its last three bits.
const MARK: u8 = 0x10;

impl Category {
    /// As mac80211 chooses: by `skb->priority` 256 to 263, else by the DSCP.
    pub fn of(frame: &[u8]) -> Self {
        let mark = frame.get(MARK_AT).filter(|byte| **byte & !7 == MARK);
        Self::of_user_priority(mark.map_or_else(|| user_priority_of_dscp(frame), |byte| byte & 7))
    }

    /// Table 10-1.
    fn of_user_priority(priority: u8) -> Self {
        match priority {
            1 | 2 => Self::Background,
            4 | 5 => Self::Video,
            6 | 7 => Self::Voice,
            _ => Self::BestEffort,
        }
    }
}

/// Linux's own choice without a QoS map (`cfg80211_classify8021d`): the first three bits, except where RFC 8325
/// differs. Only IP has one.
fn user_priority_of_dscp(frame: &[u8]) -> u8 {
    let ip = frame.get(ETHERNET_HEADER_BYTES - 2..).unwrap_or_default();
    let dscp = match ip {
        [0x08, 0x00, _, tos, ..] => tos >> 2,
        [0x86, 0xdd, first, second, ..] => (first << 2 | second >> 6) & 0x3f,
        _ => 0,
    };
    match dscp {
        10 | 12 | 14 | 16 => 0, // AF1x, CS2
        18 | 20 | 22 => 3,      // AF2x
        24 | 26 | 28 | 30 => 4, // CS3, AF3x
        44 | 46 => 6,           // VA, EF
        48 => 7,                // CS6
        _ => dscp >> 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(tos: u8) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, tos]);
        frame
    }

    #[test]
    fn a_dscp_gives_the_category_that_linux_gives_it() {
        let cases = [
            (0, Category::BestEffort),
            (0b000001 << 2, Category::BestEffort), // LE: three bits do not show it
            (8 << 2, Category::Background),        // CS1
            (10 << 2, Category::BestEffort),       // AF11
            (34 << 2, Category::Video),            // AF41
            (46 << 2, Category::Voice),            // EF
            (46 << 2 | 3, Category::Voice),        // ECN bits are not the DSCP's
        ];
        for (tos, category) in cases {
            assert_eq!(Category::of(&ipv4(tos)), category, "{tos:#x}");
        }
        let mut ipv6 = vec![0; 60];
        ipv6[12..16].copy_from_slice(&[0x86, 0xdd, 0x62, 0x00]); // traffic class 0x20: CS1
        assert_eq!(Category::of(&ipv6), Category::Background);
    }

    #[test]
    fn priority_mark_overrides_dscp() {
        let mut frame = ipv4(46 << 2);
        frame[MARK_AT] = MARK | 1;
        assert_eq!(Category::of(&frame), Category::Background);
        frame[MARK_AT] = MARK;
        assert_eq!(Category::of(&frame), Category::BestEffort);
        frame[MARK_AT] = 0;
        assert_eq!(Category::of(&frame), Category::Voice);
        assert_eq!(Category::of(&[]), Category::BestEffort);
    }
}
