// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The delivery rate as `tcp_info` shows it (`net/ipv4/tcp_rate.c`): over about one round trip, the longer of the
//! times in which the segments were sent and acknowledged.

use super::packet::MSS_BYTES;

/// State of a segment at its sending.
#[derive(Debug, Default, Clone)]
pub struct SentSegment {
    pub at_ns: u64,
    first_sent_ns: u64,
    delivered: u64,
    delivered_ns: u64,
}

#[derive(Debug)]
pub struct RateSampler {
    delivered: u64,
    delivered_ns: u64,
    first_sent_ns: u64,
    /// The newest segment of the present acknowledgement.
    newest: Option<SentSegment>,
    bytes_per_s: u64,
}

impl RateSampler {
    pub fn new(now_ns: u64) -> Self {
        Self {
            delivered: 0,
            delivered_ns: now_ns,
            first_sent_ns: now_ns,
            newest: None,
            bytes_per_s: 0,
        }
    }

    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// Nothing is in flight: a new measurement begins.
    pub fn idle(&mut self, now_ns: u64) {
        (self.delivered_ns, self.first_sent_ns) = (now_ns, now_ns);
    }

    pub fn sent(&mut self, now_ns: u64) -> SentSegment {
        SentSegment {
            at_ns: now_ns,
            first_sent_ns: self.first_sent_ns,
            delivered: self.delivered,
            delivered_ns: self.delivered_ns,
        }
    }

    pub fn delivered_one(&mut self, now_ns: u64, sent: &SentSegment) {
        self.delivered += 1;
        self.delivered_ns = now_ns;
        if self.newest.as_ref().is_none_or(|newest| sent.at_ns >= newest.at_ns) {
            self.newest = Some(sent.clone());
        }
    }

    /// The acknowledgement is read.
    pub fn finish(&mut self, now_ns: u64, least_rtt_ns: u64) {
        let Some(newest) = self.newest.take() else { return };
        self.first_sent_ns = newest.at_ns;
        let sending_ns = newest.at_ns - newest.first_sent_ns;
        let interval_ns = sending_ns.max(now_ns - newest.delivered_ns);
        if interval_ns >= least_rtt_ns.max(1) {
            self.bytes_per_s = (self.delivered - newest.delivered) * MSS_BYTES * 1_000_000_000 / interval_ns;
        }
    }
}
