// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection's downloads over the monitor's polls: whether it receives in bulk, how fast, and its RTT. Input:
//! samples. Output: facts; the policy is elsewhere.
//!
//! A receiver cannot see the sender's backlog, as the socket queue shows it at the sender. The received bytes
//! distinguish the two: a page or a response ends before it counts, a download continues.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::Flow;

/// A connection receives in bulk after this much within a second ...
const BULK_BYTES: u64 = 64 * 1024;
const BULK_WITHIN: Duration = Duration::from_secs(1);
/// ... and no longer when less than this arrived in this time: well below four segments an RTT.
const OVER_BYTES: u64 = 4 * 1024;
const OVER_WITHIN: Duration = Duration::from_secs(2);
const LONGEST_RTT_US: u32 = 5_000_000;
/// A sender silent for longer than one and a half RTTs, and this, had nothing to send; the next packet then answers an
/// old one. The kernel counts that as an RTT, and its mean remembers it for some time.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_SHOWS: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default)]
pub struct Receiving {
    is_bulk: bool,
    /// Bytes since the connection began, each time that there were more; the first entry is the total before.
    arrived: VecDeque<(Duration, u64)>,
    rtt: Duration,
    min_rtt: Duration,
    /// The latest poll showed nothing new.
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
        // From the remote host's timestamps, which may be anything.
        if (1..=LONGEST_RTT_US).contains(&flow.receiver_rtt_us) {
            let before = self.rtt;
            self.rtt = Duration::from_micros(flow.receiver_rtt_us.into());
            // The handshake took the same path, before there could be a queue.
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
        // In slow start a window arrives in one burst, and the RTT may not be known yet.
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

    /// Mean and minimum RTT; None without returned timestamps.
    pub fn rtts(&self) -> Option<(Duration, Duration)> {
        (!self.rtt.is_zero()).then_some((self.rtt, self.min_rtt))
    }

    fn since(&self, now: Duration, within: Duration) -> u64 {
        let latest = self.arrived.back().map_or(0, |(_, bytes)| *bytes);
        latest.saturating_sub(self.at(now.saturating_sub(within)))
    }

    /// The bytes received by then; if unknown, the smallest known number.
    fn at(&self, then: Duration) -> u64 {
        let until_then = self.arrived.iter().rev().find(|(at, _)| *at <= then);
        until_then.or(self.arrived.front()).map_or(0, |(_, bytes)| *bytes)
    }
}

#[cfg(test)]
mod tests;
