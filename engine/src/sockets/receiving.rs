// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection receives, as the monitor shows it over time: whether it does so in bulk, how fast, and how long its
//! packets take. Input: samples. Output: facts; the policy is elsewhere.
//!
//! Nothing tells a receiver what waits at the sender, as the socket queue does at this end. What arrives does: a page or an
//! answer is over before it counts, a download goes on.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::Flow;

/// A connection receives in bulk when so much has come within a second ...
const BULK_BYTES: u64 = 64 * 1024;
const BULK_WITHIN: Duration = Duration::from_secs(1);
/// ... and no longer when less than this came in so long: well below what four segments each round trip are.
const OVER_BYTES: u64 = 4 * 1024;
const OVER_WITHIN: Duration = Duration::from_secs(2);
const LONGEST_RTT_US: u32 = 5_000_000;
/// A sender that said nothing for longer than one and a half round trips, and this, had nothing to send; the packet that comes then
/// answers one of ours from before. The kernel counts that as a round trip, and its mean remembers it for some time.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_SHOWS: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default)]
pub struct Receiving {
    is_bulk: bool,
    /// Bytes since the connection began, each time that there were more; the first is what there was before.
    arrived: VecDeque<(Duration, u64)>,
    rtt: Duration,
    min_rtt: Duration,
    /// The latest look showed nothing new.
    is_silent: bool,
    resumed: Option<Duration>,
}

impl Receiving {
    pub fn observe(&mut self, now: Duration, flow: &Flow) {
        let before = self.arrived.back().map(|(_, bytes)| *bytes);
        if before.is_some_and(|before| flow.received_bytes < before) {
            // The same socket with another connection.
            *self = Self::default();
        }
        self.note_pause(now, before == Some(flow.received_bytes));
        if before != Some(flow.received_bytes) {
            self.arrived.push_back((now, flow.received_bytes));
        }
        // The remote host's timestamps say it, and it may say anything.
        if (1..=LONGEST_RTT_US).contains(&flow.receiver_rtt_us) {
            let before = self.rtt;
            self.rtt = Duration::from_micros(flow.receiver_rtt_us.into());
            // The handshake went the same way, before there was anything to wait behind.
            let shown = flow.min_rtt_us.filter(|us| *us > 0);
            let shown = shown.map_or(self.rtt, |us| {
                let sent = Duration::from_micros(us.into());
                self.rtt.clamp(sent / 2, sent)
            });
            self.min_rtt = match self.min_rtt {
                Duration::ZERO => shown,
                least => least.min(shown),
            };
            if self.resumed.is_some() {
                let known = if before.is_zero() { self.min_rtt } else { before };
                self.rtt = self.rtt.min(known);
            }
        }
        self.is_bulk |= self.since(now, BULK_WITHIN) >= BULK_BYTES;
        self.is_bulk &= !flow.state.remote_host_has_finished();
        self.expire(now);
    }

    fn note_pause(&mut self, now: Duration, is_silent: bool) {
        let pause = self.rtt * 3 / 2 + PAUSE;
        let is_long = self
            .arrived
            .back()
            .is_some_and(|(at, _)| now.saturating_sub(*at) > pause);
        // In slow start a window comes in one piece, and how long a round trip takes may not be known yet.
        if self.is_silent && !is_silent && is_long && !self.rtt.is_zero() {
            self.resumed = Some(now);
        }
        self.resumed = self.resumed.filter(|at| now.saturating_sub(*at) < PAUSE_SHOWS);
        self.is_silent = is_silent;
    }

    pub fn expire(&mut self, now: Duration) {
        self.is_bulk &= self.since(now, OVER_WITHIN) >= OVER_BYTES;
        while self
            .arrived
            .get(1)
            .is_some_and(|(at, _)| now.saturating_sub(*at) >= OVER_WITHIN)
        {
            self.arrived.pop_front();
        }
    }

    pub fn is_bulk(&self) -> bool {
        self.is_bulk
    }

    /// Mean and least round trip; None where no timestamps come back.
    pub fn rtts(&self) -> Option<(Duration, Duration)> {
        (!self.rtt.is_zero()).then_some((self.rtt, self.min_rtt))
    }

    fn since(&self, now: Duration, within: Duration) -> u64 {
        let latest = self.arrived.back().map_or(0, |(_, bytes)| *bytes);
        latest.saturating_sub(self.at(now.saturating_sub(within)))
    }

    /// What had come by then; where that is not known, the least that is.
    fn at(&self, then: Duration) -> u64 {
        let until_then = self.arrived.iter().rev().find(|(at, _)| *at <= then);
        until_then.or(self.arrived.front()).map_or(0, |(_, bytes)| *bytes)
    }
}

#[cfg(test)]
mod tests;
