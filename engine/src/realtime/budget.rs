// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU time within a sliding window. In come amounts with their times, out goes what lies within the window.

use std::collections::VecDeque;
use std::time::Duration;

/// What was used lately.
#[derive(Debug, Default)]
pub struct Spent {
    /// When it was noticed, and how much. An amount was used before it was noticed, at most since the sample before.
    amounts: VecDeque<(Duration, Duration)>,
}

impl Spent {
    pub fn add(&mut self, now: Duration, used: Duration, window: Duration) {
        while self.amounts.front().is_some_and(|(at, _)| *at + window <= now) {
            self.amounts.pop_front();
        }
        match self.amounts.back_mut() {
            Some((at, amount)) if *at == now => *amount += used,
            _ => self.amounts.push_back((now, used)),
        }
    }

    pub fn within(&self, now: Duration, window: Duration) -> Duration {
        self.amounts
            .iter()
            .filter(|(at, _)| *at + window > now)
            .map(|(_, amount)| *amount)
            .sum()
    }
}

/// So many percent of a time.
pub fn share(of: Duration, percent: u32) -> Duration {
    of * percent / 100
}
