// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A share of one CPU. It refills as time passes, up to its part of a window: after little use more may be used at
//! once.

use std::time::Duration;

use super::WINDOW;

#[derive(Clone, Copy, Debug)]
pub struct Share {
    percent: u32,
    credit: Duration,
    refilled: Duration,
}

impl Share {
    pub fn new(now: Duration, percent: u32) -> Self {
        Self {
            percent,
            credit: WINDOW * percent / 100,
            refilled: now,
        }
    }

    /// False if it is used up; then it starts over from zero.
    pub fn spend(&mut self, now: Duration, used: Duration) -> bool {
        let passed = now.saturating_sub(self.refilled);
        self.refilled = now;
        self.credit = (self.credit + passed * self.percent / 100).min(WINDOW * self.percent / 100);
        let is_enough = used < self.credit;
        self.credit = self.credit.saturating_sub(used);
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_cpu_lasts_forever_and_a_whole_one_for_a_window() {
        let step = Duration::from_millis(100);
        let used_up_by = |each: Duration| {
            let mut share = Share::new(Duration::ZERO, 50);
            (1..1_000).find(|n| !share.spend(step * *n, each))
        };
        assert_eq!(used_up_by(step / 2), None);
        assert_eq!(used_up_by(step), Some(9));
    }
}
