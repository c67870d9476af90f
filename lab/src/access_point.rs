// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stations on one emulated access point, with a server behind it, and the policy of their daemons: data, and the
//! paper's formula for the cap.

use crate::parameters::Parameters;

#[derive(Clone, Copy, Debug)]
pub struct AccessPoint {
    pub medium: &'static str,
    pub rtt_ms: u64,
    /// Replaces it: one for each station, in turn.
    pub different_rtts_ms: &'static [u64],
    pub stations: usize,
    /// Of the access point and of each station; None: the medium's default.
    pub queue_packets: Option<u64>,
    /// The daemons' policy; None: no daemon runs.
    pub giveway: Option<Cap>,
    /// The policy for connections to the server, all of which are background then.
    pub background: Option<BackgroundPolicy>,
    pub managed: Managed,
}

/// Which stations have a daemon, where there are any.
#[derive(Clone, Copy, Debug)]
pub enum Managed {
    All,
    First(usize),
    AllButFirst(usize),
}

/// Parts of giveway's class background.
#[derive(Clone, Copy, Debug)]
pub struct BackgroundPolicy {
    pub is_marked: bool,
    /// By its congestion control.
    pub is_slowed: bool,
}

/// The daemon's policy in the lab.
#[derive(Clone, Copy, Debug)]
pub enum Cap {
    /// P1's formula with P1's values, at this RTT.
    Formula { rtt_ms: u64 },
    /// The same number of segments regardless of other senders (P1, figure 6).
    Segments(u64),
    /// The estimated share, with this `prefer`.
    Estimated(&'static str),
    /// An unconfigured daemon, except for the group's key where it has one.
    Default { has_key: bool },
}

pub const FIXED54: &str = "fixed54";
pub const FIXED6: &str = "fixed6";
pub const ARF: &str = "arf";
pub const ARF_LOSSY: &str = "arf-lossy";
pub const ARF_CLASSIC: &str = "arf-classic";
/// The same two with the access categories of 802.11e.
pub const FIXED54_EDCA: &str = "fixed54-edca";
pub const ARF_LOSSY_EDCA: &str = "arf-lossy-edca";
pub const MEDIA: &[&str] = &[
    FIXED54,
    FIXED6,
    ARF,
    ARF_LOSSY,
    ARF_CLASSIC,
    FIXED54_EDCA,
    ARF_LOSSY_EDCA,
];

impl AccessPoint {
    /// With the RTT and the number of stations that the user set.
    pub fn new(parameters: &Parameters, medium: &'static str, giveway: Option<Cap>) -> Self {
        Self::of(parameters, medium, parameters.count("stations") as usize, giveway)
    }

    /// With the RTT that the user set.
    pub fn of(parameters: &Parameters, medium: &'static str, stations: usize, giveway: Option<Cap>) -> Self {
        Self {
            medium,
            rtt_ms: parameters.count("rtt_ms"),
            different_rtts_ms: &[],
            stations,
            queue_packets: None,
            giveway,
            background: None,
            managed: Managed::All,
        }
    }

    /// Of each station.
    pub fn rtts_ms(&self) -> Vec<u64> {
        let in_turn = |station: usize| match self.different_rtts_ms {
            [] => self.rtt_ms,
            rtts_ms => rtts_ms[station % rtts_ms.len()],
        };
        (0..self.stations).map(in_turn).collect()
    }

    pub fn has_daemon(&self, station: usize) -> bool {
        (self.giveway.is_some() || self.background.is_some())
            && match self.managed {
                Managed::All => true,
                Managed::First(count) => station < count,
                Managed::AllButFirst(count) => station >= count,
            }
    }
}

/// The medium that the user chose, or else the scenario's own.
pub fn media(parameters: &Parameters, own: &[&'static str]) -> Vec<&'static str> {
    let chosen = parameters.choice("medium");
    let chosen = MEDIA.iter().find(|medium| Some(**medium) == chosen);
    chosen.map_or(own.to_vec(), |chosen| vec![chosen])
}

/// P1's cap of a lone connection while `senders` stations send, segments.
///
/// P1, section 2.3: floor((capacity x RTT - margin) / (segment x N)); with 20 Mbit/s, 120 kB
/// and 1,500 bytes it gives the paper's table 2. The margin is at most a fifth of
/// capacity x RTT and the floor 4 segments (giveway's own limits).
pub fn paper_cap(rtt_ms: u64, senders: u64) -> u64 {
    let in_flight_bytes = PAPER_CAPACITY_MBIT * 1_000_000 / 8 * rtt_ms / 1_000;
    let margin_bytes = PAPER_MARGIN_BYTES.min(in_flight_bytes / 5);
    let share = (in_flight_bytes - margin_bytes) / (PAPER_SEGMENT_BYTES * senders);
    share.max(4)
}

pub const PAPER_CAPACITY_MBIT: u64 = 20;
pub const PAPER_MARGIN_BYTES: u64 = 120_000;
pub const PAPER_SEGMENT_BYTES: u64 = 1_500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_gives_the_papers_table_2() {
        assert_eq!([5, 6, 7, 8].map(|n| paper_cap(256, n)), [69, 57, 49, 43]);
    }

    #[test]
    fn a_short_path_keeps_four_fifths_and_four_segments() {
        assert_eq!(paper_cap(100, 2), 66);
        assert_eq!(paper_cap(2, 8), 4);
    }
}
