// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Smoothed and minimum round-trip time, and the retransmission timeout (RFC 6298 with Linux's floor under the variance).

const VARIANCE_FLOOR_NS: u64 = 200_000_000;

#[derive(Debug, Default)]
pub struct Rtt {
    pub smoothed_ns: u64,
    pub least_ns: u64,
    /// Of the newest segment acknowledged.
    pub latest_ns: u64,
    variance_ns: u64,
}

impl Rtt {
    /// Of the oldest and the newest segment that one acknowledgement covers: the former is smoothed, the latter may be
    /// the minimum.
    pub fn sample(&mut self, oldest_ns: u64, newest_ns: u64) {
        self.latest_ns = newest_ns;
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.least_ns, self.variance_ns) = (oldest_ns, newest_ns, oldest_ns / 2);
            return;
        }
        self.least_ns = self.least_ns.min(newest_ns);
        self.variance_ns = (3 * self.variance_ns + self.smoothed_ns.abs_diff(oldest_ns)) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + oldest_ns) / 8;
    }

    pub fn timeout_ns(&self) -> u64 {
        self.smoothed_ns + (4 * self.variance_ns).max(VARIANCE_FLOOR_NS)
    }
}
