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

    /// As if these had never been added, each at the same time.
    pub fn take_out(&mut self, others: &Self) {
        for (at, amount) in &mut self.amounts {
            let other = others.amounts.iter().find(|(other_at, _)| other_at == at);
            *amount = amount.saturating_sub(other.map_or(Duration::ZERO, |(_, amount)| *amount));
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

/// What a rule's processes, or all, used: those that have real time, and those that ended with it.
#[derive(Debug, Default)]
pub struct Account {
    pub spent: Spent,
    /// When one of them was last set back for it.
    pub overran_at: Option<Duration>,
}

impl Account {
    /// Whether nothing more may be given on it.
    pub fn is_overdrawn(&self, now: Duration, window: Duration, budget: Duration) -> bool {
        self.overran_at.is_some_and(|at| at + window > now) || self.spent.within(now, window) > budget
    }

    /// Whether nothing follows from it any more.
    pub fn is_settled(&self, now: Duration, window: Duration) -> bool {
        !self.is_overdrawn(now, window, Duration::ZERO)
    }
}

/// So many percent of a time.
pub fn share(of: Duration, percent: u32) -> Duration {
    of * percent / 100
}
