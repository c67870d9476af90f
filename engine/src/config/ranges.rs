// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether each value is one that can be meant. In comes a configuration whose keys and types are right, out goes the
//! first value that is out of its range.

use super::{CapPolicyName, Config, ConfigError};
use crate::realtime::CEILING;

/// No deadline and no part of one is longer.
const LONGEST_US: u32 = 10_000_000;
/// What all chains together may have of one CPU: something must be left for everybody else.
const CHAINS_PERCENT: u64 = 80;

impl Config {
    /// Whether each value is within its range, of a configuration that was not read from text.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check_ranges(&self) -> Result<(), ConfigError> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let (cap, link, queue) = (&self.cap, &self.link, &self.queue);
        let limits = &self.realtime_limits;
        let within = |x: f64, most: f64| x.is_finite() && (0.0..=most).contains(&x);
        let checks = [
            (
                "monitor.passes_per_second",
                (1..=100).contains(&self.monitor.passes_per_second),
                "from 1 to 100",
            ),
            (
                "monitor.full_walk_s",
                (1..=3600).contains(&self.monitor.full_walk_s),
                "from 1 to 3600 seconds",
            ),
            (
                "cap.capacity_mbit",
                cap.capacity_mbit.is_none_or(|c| positive(c) && c <= 1e6),
                "above 0, at most 1000000 Mbit/s",
            ),
            (
                "cap.segment_bytes",
                (64..=65_535).contains(&cap.segment_bytes),
                "from 64 to 65535 bytes",
            ),
            (
                "cap.rtt_ms",
                cap.rtt_ms.is_none_or(|r| (1..=60_000).contains(&r)),
                "from 1 to 60000 ms",
            ),
            (
                "cap.fixed_segments",
                cap.fixed_segments.is_none_or(|s| (4..=1_000_000).contains(&s)),
                "from 4 to 1000000 segments",
            ),
            ("group.port", self.group.port != 0, "from 1 to 65535"),
            (
                "group.report_interval_ms",
                (100..=10_000).contains(&self.group.report_interval_ms),
                "from 100 to 10000 ms",
            ),
            (
                "group.airtime_percent",
                positive(self.group.airtime_percent) && self.group.airtime_percent <= 10.0,
                "above 0, at most 10 percent",
            ),
            (
                "group.basic_rate_mbit",
                positive(self.group.basic_rate_mbit) && self.group.basic_rate_mbit <= 1000.0,
                "above 0, at most 1000 Mbit/s",
            ),
            (
                "link.rate_mbit",
                link.rate_mbit.is_none_or(|r| (0.01..=400_000.0).contains(&r)),
                "from 0.01 to 400000 Mbit/s",
            ),
            (
                "link.overhead_bytes",
                link.overhead_bytes.is_none_or(|o| o <= 256),
                "from 0 to 256 bytes",
            ),
            (
                "link.driver_bytes",
                link.driver_bytes.is_none_or(|d| d <= 1 << 20),
                "from 0 to 1048576 bytes",
            ),
            (
                "queue.realtime_percent",
                (1..=100).contains(&queue.realtime_percent),
                "from 1 to 100 percent",
            ),
            (
                "queue.path_budget_us",
                queue.path_budget_us <= LONGEST_US,
                "from 0 to 10000000 us",
            ),
            (
                "queue.guard_us",
                queue.guard_us.is_none_or(|g| g <= LONGEST_US),
                "from 0 to 10000000 us",
            ),
            (
                "queue.trickle_kbit",
                queue.trickle_kbit <= 1_000_000,
                "from 0 to 1000000 kbit/s",
            ),
            (
                "queue.sojourn_target_ms",
                queue.sojourn_target_ms.is_none_or(|t| within(t, 10_000.0)),
                "from 0 to 10000 ms",
            ),
            (
                "deadline.port",
                self.deadline.iter().all(|d| d.port != 0),
                "given, from 1 to 65535",
            ),
            (
                "deadline.deadline_ms",
                self.deadline.iter().all(|d| within(d.deadline_ms, 10_000.0)),
                "from 0 to 10000 ms",
            ),
            (
                "deadline.path_budget_us",
                self.deadline
                    .iter()
                    .all(|d| d.path_budget_us.is_none_or(|b| b <= LONGEST_US)),
                "from 0 to 10000000 us",
            ),
            (
                "background.address",
                self.background.iter().all(|b| !b.address.is_unspecified()),
                "given, an IPv4 or IPv6 address",
            ),
            (
                "background.port",
                self.background.iter().all(|b| b.port != 0),
                "given, from 1 to 65535",
            ),
            (
                "realtime.exe",
                self.realtime.iter().all(|r| r.exe.is_some() || r.user.is_some()),
                "given, or else user: nobody but root may decide what gets real time",
            ),
            (
                "realtime.exe",
                self.realtime
                    .iter()
                    .all(|r| r.exe.as_ref().is_none_or(|exe| exe.starts_with('/'))),
                "an absolute path",
            ),
            (
                "realtime.priority",
                self.realtime
                    .iter()
                    .all(|r| (1..=limits.max_priority).contains(&r.priority)),
                "from 1 to realtime_limits.max_priority",
            ),
            (
                "realtime.budget_percent",
                self.realtime.iter().all(|r| (1..=100_000).contains(&r.budget_percent)),
                "from 1 to 100000 percent of one CPU",
            ),
            (
                "realtime_limits.max_priority",
                (1..=CEILING).contains(&limits.max_priority),
                "from 1 to 48, below giveway's own thread and the kernel's interrupt threads",
            ),
            (
                "realtime_limits.total_percent",
                (1..=95).contains(&limits.total_percent),
                "from 1 to 95 percent",
            ),
            (
                "realtime_limits.window_ms",
                (200..=10_000).contains(&limits.window_ms),
                "from 200 to 10000 ms",
            ),
            (
                "realtime_limits.canary_ms",
                (100..=10_000).contains(&limits.canary_ms),
                "from 100 to 10000 ms",
            ),
            (
                "realtime_limits.rttime_ms",
                (10..=60_000).contains(&limits.rttime_ms),
                "from 10 to 60000 ms",
            ),
            (
                "grant.user",
                self.grant.iter().all(|g| g.user.is_some() || g.group.is_some()),
                "given, or else group",
            ),
            (
                "grant.max_priority",
                self.grant
                    .iter()
                    .all(|g| (1..=limits.max_priority).contains(&g.max_priority)),
                "from 1 to realtime_limits.max_priority",
            ),
            (
                "receive.napi_priority",
                self.receive.napi_priority <= CEILING,
                "from 0 to 48, below giveway's own thread",
            ),
            (
                "receive.busy_poll_us",
                self.receive.busy_poll_us <= 10_000,
                "from 0 to 10000 us",
            ),
            (
                "chain.local_port",
                self.chain.iter().all(|c| c.local_port != 0),
                "given, from 1 to 65535",
            ),
            (
                "chain.budget_ms",
                self.chain
                    .iter()
                    .all(|c| positive(c.budget_ms) && within(c.budget_ms, f64::from(LONGEST_US) / 1e3)),
                "given, above 0 and at most 10000 ms",
            ),
            (
                "chain.priority",
                self.chain
                    .iter()
                    .all(|c| (1..=limits.max_priority).contains(&c.priority)),
                "from 1 to realtime_limits.max_priority",
            ),
            (
                "chain.share_percent",
                self.chain.iter().all(|c| c.share_percent >= 1)
                    && self.chain.iter().map(|c| u64::from(c.share_percent)).sum::<u64>() <= CHAINS_PERCENT,
                "from 1 percent, and at most 80 percent of a CPU in all [[chain]]s together",
            ),
        ];
        for (key, holds, range) in checks {
            if !holds {
                return Err(ConfigError::Value {
                    key: key.to_owned(),
                    problem: format!("must be {range}"),
                });
            }
        }
        if cap.policy == CapPolicyName::Fixed && cap.capacity_mbit.is_none() && cap.fixed_segments.is_none() {
            return Err(ConfigError::Value {
                key: "cap.policy".to_owned(),
                problem: "\"fixed\" needs cap.capacity_mbit, what the access point really carries".to_owned(),
            });
        }
        Ok(())
    }
}
