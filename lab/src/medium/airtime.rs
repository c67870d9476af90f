// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The airtime of a frame.
//!
//! Input: the length of an Ethernet frame and a rate. Output: nanoseconds by the ERP-OFDM PHY of IEEE 802.11-2020
//! (clause 18, which takes the OFDM of clause 17 to 2.4 GHz). Knows nothing of contention, queues or loss.

/// One OFDM rate: its name in Mbit/s and the data bits one 4 us symbol carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhyRate {
    pub mbit: u32,
    bits_per_symbol: u64,
}

const fn rate(mbit: u32) -> PhyRate {
    PhyRate {
        mbit,
        bits_per_symbol: mbit as u64 * 4,
    }
}

/// From the most robust to the fastest.
pub const RATES: [PhyRate; 8] = [
    rate(6),
    rate(9),
    rate(12),
    rate(18),
    rate(24),
    rate(36),
    rate(48),
    rate(54),
];
/// The rate of group-addressed frames: every station must be able to receive them.
pub const BASIC_RATE: PhyRate = RATES[0];
const ACK_RATE: PhyRate = RATES[4];

const SYMBOL_NS: u64 = 4_000;
/// Preamble (16 us) and SIGNAL field (4 us).
const PREAMBLE_AND_SIGNAL_NS: u64 = 20_000;
/// Silence that ERP-OFDM appends so that its timing fits the older PHY's SIFS.
const SIGNAL_EXTENSION_NS: u64 = 6_000;
/// The SERVICE field (16) and the tail (6) around the frame.
const SERVICE_AND_TAIL_BITS: u64 = 22;
const ACK_BYTES: u64 = 14;
pub const ETHERNET_HEADER_BYTES: usize = 14;
/// MAC header 24, LLC/SNAP 8, FCS 4: they replace the Ethernet header.
const WIFI_OVERHEAD_BYTES: u64 = 36;

/// The *long* slot of clause 18: an access point with any 802.11b station in reach must use it.
pub const SLOT_NS: u64 = 20_000;
pub const SIFS_NS: u64 = 10_000;
pub const DIFS_NS: u64 = SIFS_NS + 2 * SLOT_NS;

const fn ppdu_ns(bytes: u64, rate: PhyRate) -> u64 {
    let symbols = (bytes * 8 + SERVICE_AND_TAIL_BITS).div_ceil(rate.bits_per_symbol);
    PREAMBLE_AND_SIGNAL_NS + symbols * SYMBOL_NS + SIGNAL_EXTENSION_NS
}

pub const ACK_NS: u64 = ppdu_ns(ACK_BYTES, ACK_RATE);

/// The airtime of one data frame, without its acknowledgement.
pub fn frame_ns(ethernet_bytes: usize, rate: PhyRate) -> u64 {
    let body = ethernet_bytes.saturating_sub(ETHERNET_HEADER_BYTES) as u64;
    ppdu_ns(body + WIFI_OVERHEAD_BYTES, rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_frame_at_54_mbit_takes_57_symbols() {
        // 1,476 + 36 bytes = 12,096 bits, + 22 = 12,118, / 216 = 56.1 symbols.
        assert_eq!(frame_ns(1_490, RATES[7]), 20_000 + 57 * 4_000 + 6_000);
    }

    #[test]
    fn an_acknowledgement_takes_two_symbols_at_24_mbit() {
        assert_eq!(ACK_NS, 34_000);
    }

    #[test]
    fn a_frame_shorter_than_its_header_is_still_a_frame() {
        assert_eq!(frame_ns(3, BASIC_RATE), frame_ns(ETHERNET_HEADER_BYTES, BASIC_RATE));
    }
}
