// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection's goodput: sent and received payload a second, over the last second. Input: samples. Output: rates.

use std::time::Duration;

use crate::model::Flow;
use crate::rate;

/// The averaging time is at least this ...
const OVER: Duration = Duration::from_secs(1);
/// ... and at most this: a connection that is not polled has been idle.
const IDLE: Duration = Duration::from_secs(3);

/// Mbit/s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GoodputRates {
    pub upload_mbit: f64,
    pub download_mbit: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Goodput {
    since: Option<ByteCounts>,
    latest: GoodputRates,
}

#[derive(Clone, Copy, Debug)]
struct ByteCounts {
    at: Duration,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Goodput {
    pub fn observe(&mut self, now: Duration, flow: &Flow) {
        let counted = ByteCounts {
            at: now,
            sent_bytes: flow.acked_bytes,
            received_bytes: flow.received_bytes,
        };
        let before = *self.since.get_or_insert(counted);
        let took = now.saturating_sub(before.at);
        if took < OVER {
            return;
        }
        // A lower counter is another connection's.
        let mbit = |after: u64, before: u64| rate::mbit(after.saturating_sub(before)) / took.as_secs_f64();
        self.latest = match took <= IDLE {
            true => GoodputRates {
                upload_mbit: mbit(counted.sent_bytes, before.sent_bytes),
                download_mbit: mbit(counted.received_bytes, before.received_bytes),
            },
            false => GoodputRates::default(),
        };
        self.since = Some(counted);
    }

    /// As of now.
    pub fn rates(&self, now: Duration) -> GoodputRates {
        let is_idle = self.since.is_none_or(|since| now.saturating_sub(since.at) > IDLE);
        if is_idle { GoodputRates::default() } else { self.latest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::tests::upload;

    fn goodput(samples: &[(u64, u64, u64)]) -> Goodput {
        let mut goodput = Goodput::default();
        for (ms, acked_bytes, received_bytes) in samples {
            let flow = Flow {
                acked_bytes: *acked_bytes,
                received_bytes: *received_bytes,
                ..upload()
            };
            goodput.observe(Duration::from_millis(*ms), &flow);
        }
        goodput
    }

    #[test]
    fn rates_cover_the_last_second_in_each_direction() {
        let goodput = goodput(&[
            (0, 0, 1_000_000),
            (500, 100_000, 1_000_000),
            (1_000, 125_000, 1_500_000),
        ]);
        let rates = goodput.rates(Duration::from_millis(1_900));
        assert_eq!((rates.upload_mbit, rates.download_mbit), (1.0, 4.0));
    }

    #[test]
    fn a_connection_that_is_not_polled_is_idle() {
        let goodput = goodput(&[(0, 0, 0), (1_000, 125_000, 0)]);
        assert_eq!(goodput.rates(Duration::from_millis(4_001)), GoodputRates::default());
    }

    #[test]
    fn a_pause_does_not_lower_the_next_rate() {
        let goodput = goodput(&[(0, 0, 0), (60_000, 0, 125_000), (61_000, 0, 375_000)]);
        assert_eq!(goodput.rates(Duration::from_millis(61_000)).download_mbit, 2.0);
    }

    #[test]
    fn a_reconnected_socket_has_no_negative_rate() {
        let goodput = goodput(&[(0, 900_000, 900_000), (1_000, 0, 0)]);
        assert_eq!(goodput.rates(Duration::from_millis(1_000)), GoodputRates::default());
    }
}
