// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Back-off of retries: soon at first, then doubled each time, up to a bound. Takes the time as an argument.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// For one operation. A new one waits for nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackOff {
    /// Before the latest attempt, or since the failure.
    waited: Duration,
    next: Option<Duration>,
}

impl BackOff {
    pub fn failed(&mut self, now: Duration) {
        self.waited = (self.waited * 2).clamp(SHORTEST, LONGEST);
        self.next = Some(now + self.waited);
    }

    /// The time of the next attempt; None: nothing failed, or it is being retried.
    pub fn next(&self) -> Option<Duration> {
        self.next
    }

    /// Whether a retry is due. True once: then it fails again, or succeeds.
    pub fn is_due(&mut self, now: Duration) -> bool {
        self.next.take_if(|next| *next <= now).is_some()
    }

    /// It has succeeded, or the operation is another one now.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// For people, before the reason.
    pub fn shown(&self, now: Duration, reason: &str) -> String {
        match self.next {
            Some(next) => {
                let left_s = next.saturating_sub(now).as_millis().div_ceil(1000);
                format!("tried again in {left_s} s: {reason}")
            }
            None => reason.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_minute() {
        let (mut back_off, mut now) = (BackOff::default(), Duration::from_secs(5));
        for wait_s in [1, 2, 4, 8, 16, 32, 60, 60] {
            back_off.failed(now);
            let next = now + Duration::from_secs(wait_s);
            assert_eq!(back_off.next(), Some(next));
            assert_eq!(back_off.shown(now, "why"), format!("tried again in {wait_s} s: why"));
            assert!(!back_off.is_due(next - Duration::from_nanos(1)));
            assert!(back_off.is_due(next) && !back_off.is_due(next), "once");
            now = next;
        }
        back_off.reset();
        back_off.failed(now);
        assert_eq!(back_off.next(), Some(now + SHORTEST));
    }
}
