// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rate of a sender towards one receiver.
//!
//! Input: whether each attempt was acknowledged. Output: the rate of the next one. `Arf` is the Automatic Rate Fallback
//! of Kamerman and Monteban (WaveLAN-II, 1997) with three failures instead of two, and one where the first attempt at a
//! higher rate is its probe. It cannot tell a collision from a weak signal, which is why contention slows everybody
//! down.

use super::airtime::{PhyRate, RATES};

const FAILURES_TO_STEP_DOWN: u32 = 3;
/// Of the original.
const FAILURES_OF_CLASSIC: u32 = 2;
const SUCCESSES_TO_STEP_UP: u32 = 10;
/// The timer of ARF, counted in attempts. Without it a sender that keeps colliding never recovers.
const ATTEMPTS_TO_STEP_UP: u32 = 15;

#[derive(Debug, Clone)]
pub enum RateControl {
    Fixed54,
    /// At the most robust rate, whatever happens.
    Fixed6,
    Arf(Arf),
}

#[derive(Debug, Clone)]
pub struct Arf {
    failures_to_step_down: u32,
    index: usize,
    /// The rate was raised and not used yet.
    probing: bool,
    failures_in_a_row: u32,
    successes_in_a_row: u32,
    attempts_at_this_rate: u32,
}

impl RateControl {
    pub fn arf() -> Self {
        Self::Arf(Arf::at(RATES.len() - 1, FAILURES_TO_STEP_DOWN))
    }

    /// As it was published.
    pub fn arf_classic() -> Self {
        Self::Arf(Arf::at(RATES.len() - 1, FAILURES_OF_CLASSIC))
    }

    pub fn rate(&self) -> PhyRate {
        match self {
            Self::Fixed54 => RATES[RATES.len() - 1],
            Self::Fixed6 => RATES[0],
            Self::Arf(arf) => RATES[arf.index],
        }
    }

    pub fn attempted(&mut self, acknowledged: bool) {
        if let Self::Arf(arf) = self {
            arf.attempted(acknowledged);
        }
    }
}

impl Arf {
    fn at(index: usize, failures_to_step_down: u32) -> Self {
        Self {
            failures_to_step_down,
            index,
            probing: false,
            failures_in_a_row: 0,
            successes_in_a_row: 0,
            attempts_at_this_rate: 0,
        }
    }

    fn attempted(&mut self, acknowledged: bool) {
        self.attempts_at_this_rate += 1;
        let probed = std::mem::take(&mut self.probing);
        if acknowledged {
            self.failures_in_a_row = 0;
            self.successes_in_a_row += 1;
            let earned = self.successes_in_a_row >= SUCCESSES_TO_STEP_UP;
            if (earned || self.attempts_at_this_rate >= ATTEMPTS_TO_STEP_UP) && self.index + 1 < RATES.len() {
                *self = Self {
                    probing: true,
                    ..Self::at(self.index + 1, self.failures_to_step_down)
                };
            }
        } else {
            self.failures_in_a_row += 1;
            self.successes_in_a_row = 0;
            if probed || self.failures_in_a_row >= self.failures_to_step_down {
                *self = Self::at(self.index.saturating_sub(1), self.failures_to_step_down);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pattern: impl IntoIterator<Item = bool>) -> u32 {
        let mut control = RateControl::arf();
        pattern
            .into_iter()
            .for_each(|acknowledged| control.attempted(acknowledged));
        control.rate().mbit
    }

    #[test]
    fn fixed_stays_at_54_whatever_happens() {
        let mut control = RateControl::Fixed54;
        (0..100).for_each(|_| control.attempted(false));
        assert_eq!(control.rate().mbit, 54);
    }

    #[test]
    fn the_third_failure_in_a_row_steps_down_and_a_success_between_does_not() {
        assert_eq!(after([false; 2]), 54);
        assert_eq!(after([false; 3]), 48);
        assert_eq!(after([false, false, true, false, false]), 54);
        assert_eq!(after([false; 6]), 36);
    }

    #[test]
    fn it_never_leaves_the_table() {
        assert_eq!(after([false; 100]), 6);
        assert_eq!(after([true; 100]), 54);
    }

    #[test]
    fn ten_successes_in_a_row_step_up() {
        let down = [false; 6];
        assert_eq!(after(down.into_iter().chain([true; 9])), 36);
        assert_eq!(after(down.into_iter().chain([true; 10])), 48);
    }

    #[test]
    fn a_probe_that_fails_steps_back_at_once_and_one_that_succeeds_stays() {
        let raised = || [false; 6].into_iter().chain([true; 10]);
        assert_eq!(after(raised().chain([false])), 36);
        assert_eq!(after(raised().chain([true, false, false])), 48);
    }

    #[test]
    fn the_timer_steps_up_where_successes_in_a_row_never_reach_ten() {
        let every_fifth_fails = (1..=15).map(|n| n % 5 != 4);
        assert_eq!(after([false; 6].into_iter().chain(every_fifth_fails)), 48);
    }
}
