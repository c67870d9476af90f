// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each band has of a link whose queue knows an order by rates alone (htb). Input: a tuning. Output, bytes a second:
//!
//! | band | for sure | at most |
//! |---|---|---|
//! | real time | its share | its share |
//! | streams | the rest | the link's |
//! | best effort | a tenth of the link, at most half of what the two around it leave | the link's |
//! | background | its minimum rate | the link's |
//!
//! The BPF qdisc, which knows the bands themselves, keeps the same by its order (bpf/qdisc.bpf.c).

use super::Tuning;

/// Of the link's rate, what best effort has for sure.
const BEST_EFFORT_SHARE: u64 = 10;
/// And local traffic, where the rate is not for that.
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
    /// What local traffic has for sure, each kind of it; None: it is traffic like any other.
    pub local: Option<u64>,
}

impl Tuning {
    /// None where the link's rate is not known.
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
