// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the arrivals say. Pure: bins and probes in, numbers out. Times are nanoseconds of CLOCK_MONOTONIC.

use super::{Arrivals, BIN_NS};
use crate::uplink::PACKET_BYTES;

/// Ethernet, IPv4 and TCP with timestamps.
pub const PAYLOAD_BYTES: f64 = PACKET_BYTES as f64 - 66.0;
/// Over which it is told whether a transfer has a share of the link.
const SHARE_NS: u64 = 500_000_000;

impl Arrivals {
    /// Mbit/s on the link, headers included.
    pub fn mbit(&self, port: u16, during_ns: (u64, u64)) -> f64 {
        self.goodput_mbit(port, during_ns) * PACKET_BYTES as f64 / PAYLOAD_BYTES
    }

    pub fn goodput_mbit(&self, port: u16, (from_ns, to_ns): (u64, u64)) -> f64 {
        let payload: u64 = self.bins(port, (from_ns, to_ns)).map(u64::from).sum();
        payload as f64 * 8e3 / (to_ns - from_ns) as f64
    }

    /// Those that begin within this time.
    fn bins(&self, port: u16, (from_ns, to_ns): (u64, u64)) -> impl Iterator<Item = u32> {
        let [from, to] = [from_ns, to_ns].map(|ns| ns.saturating_sub(self.begun_ns).div_ceil(BIN_NS) as usize);
        let bins = self.bytes.get(&port).map_or(&[][..], Vec::as_slice);
        bins.iter().take(to).skip(from).copied()
    }

    /// When the first of it came, from this time on.
    pub fn first_ns(&self, port: u16, from_ns: u64) -> Option<u64> {
        let from = from_ns.saturating_sub(self.begun_ns).div_ceil(BIN_NS);
        let bins = self.bytes.get(&port)?;
        let first = (from..bins.len() as u64).find(|bin| bins[*bin as usize] > 0)?;
        Some(self.begun_ns + first * BIN_NS)
    }

    /// Seconds from the one time until the transfers together have less than this (or as much, `more`), for half a second;
    /// looked for until the other time.
    pub fn settles_s(&self, ports: &[u16], (from_ns, to_ns): (u64, u64), mbit: f64, more: bool) -> Option<f64> {
        let starts = (from_ns..to_ns.saturating_sub(SHARE_NS)).step_by(BIN_NS as usize);
        let of_all = |at: u64| {
            ports
                .iter()
                .map(|port| self.mbit(*port, (at, at + SHARE_NS)))
                .sum::<f64>()
        };
        let is_there = |at: &u64| (of_all(*at) >= mbit) == more;
        starts.into_iter().find(is_there).map(|at| (at - from_ns) as f64 / 1e9)
    }

    /// What probes of this time waited, ms.
    pub fn delays_ms(&self, (from_ns, to_ns): (u64, u64)) -> Vec<f64> {
        let within = self
            .probes_ns
            .iter()
            .filter(|(sent_ns, _)| (from_ns..to_ns).contains(sent_ns));
        within.map(|(_, delay_ns)| *delay_ns as f64 / 1e6).collect()
    }

    /// When the first probe came that had waited for longer than this.
    pub fn first_waiting_ns(&self, (from_ns, to_ns): (u64, u64), than_ms: f64) -> Option<u64> {
        let waited =
            |(sent_ns, delay_ns): &&(u64, u64)| (from_ns..to_ns).contains(sent_ns) && *delay_ns as f64 / 1e6 > than_ms;
        self.probes_ns
            .iter()
            .find(waited)
            .map(|(sent_ns, delay_ns)| sent_ns + delay_ns)
    }

    /// Seconds since the first bin, and Mbit/s of each tenth of a second.
    pub fn curve(&self, port: u16) -> Vec<(f64, f64)> {
        const STEP_NS: u64 = 100_000_000;
        let length = self.bytes.get(&port).map_or(0, Vec::len) as u64 * BIN_NS;
        let steps = (0..length / STEP_NS).map(|step| step * STEP_NS);
        let point = |at: u64| {
            let from_ns = self.begun_ns + at;
            (at as f64 / 1e9, self.mbit(port, (from_ns, from_ns + STEP_NS)))
        };
        steps.map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 1;
    const SECOND: u64 = 1_000_000_000;
    const LINK_MBIT: f64 = 20.0;

    /// The link full for two seconds, then nothing for two.
    fn arrivals() -> Arrivals {
        let full = (LINK_MBIT * 125.0 * 20.0 * PAYLOAD_BYTES / PACKET_BYTES as f64) as u32;
        Arrivals {
            begun_ns: 0,
            bytes: [(PORT, [[full; 100], [0; 100]].concat())].into(),
            probes_ns: vec![(SECOND, 3_000_000), (2 * SECOND, 30_000_000)],
        }
    }

    #[test]
    fn a_full_link_has_its_rate_with_headers() {
        let mbit = arrivals().mbit(PORT, (0, 2 * SECOND));
        assert!((mbit - LINK_MBIT).abs() < 0.01, "{mbit}");
        assert_eq!(arrivals().mbit(2, (0, SECOND)), 0.0);
    }

    #[test]
    fn transfer_has_yielded_after_half_a_second_without_bytes() {
        let since = |more| arrivals().settles_s(&[PORT], (SECOND, 4 * SECOND), 1.0, more);
        assert_eq!(since(false), Some(0.98));
        assert_eq!(since(true), Some(0.0));
        assert_eq!(arrivals().settles_s(&[PORT], (0, 2 * SECOND), 1.0, false), None);
    }

    #[test]
    fn queue_is_timed_at_the_probes_arrival() {
        let all = (0, 4 * SECOND);
        assert_eq!(arrivals().first_waiting_ns(all, 10.0), Some(2 * SECOND + 30_000_000));
        assert_eq!(arrivals().delays_ms((0, 2 * SECOND)), [3.0]);
    }

    #[test]
    fn transfer_begins_with_its_first_nonempty_bin() {
        assert_eq!(arrivals().first_ns(PORT, SECOND / 2), Some(SECOND / 2));
        assert_eq!(arrivals().first_ns(PORT, 3 * SECOND), None);
    }
}
