// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU time within a sliding window.

use std::collections::VecDeque;
use std::time::Duration;

/// Recent use.
#[derive(Debug, Default)]
pub struct Spent {
    /// When it was noticed, and how much. It was used since the sample before.
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

    /// Removes these again, each at its time.
    pub fn take_out(&mut self, others: &Self) {
        for (at, amount) in &mut self.amounts {
            let other = others.amounts.iter().find(|(other_at, _)| other_at == at);
            *amount = amount.saturating_sub(other.map_or(Duration::ZERO, |(_, amount)| *amount));
        }
    }

    /// It has been paid for.
    pub fn clear(&mut self) {
        self.amounts.clear();
    }

    pub fn within(&self, now: Duration, window: Duration) -> Duration {
        let lately = self.amounts.iter().filter(|(at, _)| *at + window > now);
        lately.map(|(_, amount)| *amount).sum()
    }
}
