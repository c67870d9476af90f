// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rate of each band under htb, which orders by rates alone. Input: a tuning. Output, bytes a second:
//!
//! | band | guaranteed | at most |
//! |---|---|---|
//! | realtime | its share | its share |
//! | streams | the rest | the link's |
//! | best effort | a tenth of the link, at most half of what the two around it leave | the link's |
//! | background | its minimum rate | the link's |
//!
//! The BPF qdisc, which knows the bands itself, enforces the same by its order (bpf/qdisc.bpf.c).

use super::Tuning;

/// The guaranteed fraction of best effort.
const BEST_EFFORT_SHARE: u64 = 10;
/// And that of local traffic, where the rate excludes it.
const LOCAL_SHARE: u64 = 100;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BandRate {
    pub assured: u64,
    pub most: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BandRates {
    /// Of the link.
    pub rate: u64,
    pub realtime: BandRate,
    pub stream: BandRate,
    pub best_effort: BandRate,
    pub background: BandRate,
    /// The guarantee of each kind of local traffic; None: it is ordinary traffic.
    pub local: Option<u64>,
}

impl Tuning {
    /// None where the link's rate is unknown.
    pub fn band_rates(&self) -> Option<BandRates> {
        let rate = self.rate_bytes_per_s?;
        let realtime = (rate * u64::from(self.realtime_percent) / 100).max(1);
        let background = self.background_min_bytes_per_s.clamp(1, rate);
        let rest = rate.saturating_sub(realtime + background).max(1);
        let best_effort = (rate / BEST_EFFORT_SHARE).min(rest / 2).max(1);
        let borrows = |assured| BandRate { assured, most: rate };
        Some(BandRates {
            rate,
            realtime: BandRate {
                assured: realtime,
                most: realtime,
            },
            stream: borrows(rest.saturating_sub(best_effort).max(1)),
            best_effort: borrows(best_effort),
            background: borrows(background),
            local: self.spares_local.then(|| (rate / LOCAL_SHARE).max(1)),
        })
    }
}
