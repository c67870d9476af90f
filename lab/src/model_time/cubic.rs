// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CUBIC as Linux has it (`net/ipv4/tcp_cubic.c`, kernel 6.18), HyStart included.
//!
//! Input: cwnd, how many segments were just acknowledged, times. Output: the next cwnd and, on a loss, ssthresh. Never
//! looks at packets.

/// 717 / 1024.
const BETA: f64 = 717.0 / 1024.0;
/// Segments a second cubed: `bic_scale` 41 of 1024 x 10.
const C: f64 = 41.0 * 10.0 / 1024.0;
/// The interval at which the slope is recomputed at the same cwnd: HZ / 32.
const UPDATE_NS: u64 = 31_250_000;
/// `tcp_friendliness`: segments acknowledged for each that Reno would add, over cwnd.
const FRIENDLY: f64 = 15.0 / 8.0;

const HYSTART_LOW_WINDOW: u32 = 16;
const HYSTART_SAMPLES: u32 = 8;
const HYSTART_TRAIN_GAP_NS: u64 = 2_000_000;
const HYSTART_DELAY_NS: std::ops::RangeInclusive<u64> = 4_000_000..=16_000_000;

#[derive(Debug, Default)]
pub struct Cubic {
    pub cwnd: u32,
    pub ssthresh: u32,
    /// The kernel's clamp of cwnd (`snd_cwnd_clamp`).
    pub clamp: u32,
    counted: u32,
    last_max: u32,
    epoch: Option<u64>,
    k_s: f64,
    origin: f64,
    reno_cwnd: u32,
    acked: u32,
    slope: u32,
    last_cwnd: u32,
    last_time_ns: u64,
    delay_min_ns: u64,
    round: Round,
}

/// HyStart's view of one round trip.
#[derive(Debug, Default)]
struct Round {
    ends: u32,
    start_ns: u64,
    last_ack_ns: u64,
    samples: u32,
    least_ns: u64,
}

impl Cubic {
    pub fn new() -> Self {
        Self {
            cwnd: 10,
            ssthresh: u32::MAX,
            clamp: u32::MAX,
            ..Self::default()
        }
    }

    pub fn is_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// An acknowledgement: `rtt_ns` of the newest segment in it. `next` is the first segment not yet acknowledged, `sent`
    /// the first not yet sent.
    pub fn sample(&mut self, now_ns: u64, rtt_ns: u64, next: u32, sent: u32, is_pacing: bool) {
        if self.delay_min_ns == 0 || rtt_ns < self.delay_min_ns {
            self.delay_min_ns = rtt_ns;
        }
        if !self.is_slow_start() || self.cwnd < HYSTART_LOW_WINDOW {
            return;
        }
        if next > self.round.ends {
            self.round = Round {
                ends: sent,
                start_ns: now_ns,
                last_ack_ns: now_ns,
                samples: 0,
                least_ns: u64::MAX,
            };
        }
        let round = &mut self.round;
        if now_ns - round.last_ack_ns <= HYSTART_TRAIN_GAP_NS {
            round.last_ack_ns = now_ns;
            let limit_ns = if is_pacing {
                self.delay_min_ns
            } else {
                self.delay_min_ns / 2
            };
            if now_ns - round.start_ns > limit_ns {
                self.ssthresh = self.cwnd;
            }
        }
        round.least_ns = round.least_ns.min(rtt_ns);
        if round.samples < HYSTART_SAMPLES {
            round.samples += 1;
        } else {
            let slack_ns = (self.delay_min_ns / 8).clamp(*HYSTART_DELAY_NS.start(), *HYSTART_DELAY_NS.end());
            if round.least_ns > self.delay_min_ns + slack_ns {
                self.ssthresh = self.cwnd;
            }
        }
    }

    /// So many segments were acknowledged while cwnd was the limit.
    pub fn grow(&mut self, now_ns: u64, mut acked: u32) {
        if self.is_slow_start() {
            let grown = self.cwnd.saturating_add(acked).min(self.ssthresh);
            acked -= grown - self.cwnd;
            self.cwnd = grown.min(self.clamp);
            if acked == 0 {
                return;
            }
        }
        self.update(now_ns, acked);
        if self.counted >= self.slope {
            self.counted = 0;
            self.cwnd += 1;
        }
        self.counted += acked;
        if self.counted >= self.slope {
            let more = self.counted / self.slope;
            self.counted -= more * self.slope;
            self.cwnd += more;
        }
        self.cwnd = self.cwnd.min(self.clamp);
    }

    fn update(&mut self, now_ns: u64, acked: u32) {
        self.acked += acked;
        if self.last_cwnd == self.cwnd && self.slope > 0 && now_ns - self.last_time_ns <= UPDATE_NS {
            return;
        }
        self.last_cwnd = self.cwnd;
        self.last_time_ns = now_ns;
        let cwnd = f64::from(self.cwnd);
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.acked = acked;
            self.reno_cwnd = self.cwnd;
            let below = f64::from(self.last_max) - cwnd;
            self.k_s = (below.max(0.0) / C).cbrt();
            self.origin = cwnd.max(f64::from(self.last_max));
            now_ns
        });
        let t = (now_ns - epoch + self.delay_min_ns) as f64 / 1e9 - self.k_s;
        let target = self.origin + C * t * t * t;
        let mut slope = if target > cwnd {
            cwnd / (target - cwnd)
        } else {
            100.0 * cwnd
        };
        if self.last_max == 0 {
            slope = slope.min(20.0);
        }
        let a_segment = ((cwnd * FRIENDLY) as u32).max(1);
        while self.acked > a_segment {
            self.acked -= a_segment;
            self.reno_cwnd += 1;
        }
        if self.reno_cwnd > self.cwnd {
            slope = slope.min(cwnd / f64::from(self.reno_cwnd - self.cwnd));
        }
        self.slope = (slope as u32).max(2);
    }

    /// A loss: ssthresh, with fast convergence.
    pub fn lose(&mut self) -> u32 {
        self.epoch = None;
        self.last_max = if self.cwnd < self.last_max {
            (f64::from(self.cwnd) * (1.0 + BETA) / 2.0) as u32
        } else {
            self.cwnd
        };
        self.ssthresh = ((f64::from(self.cwnd) * BETA) as u32).max(2);
        self.ssthresh
    }

    /// Another congestion control for the length of one call, then this one again, which starts at the present cwnd
    /// without history.
    pub fn ease(&mut self) {
        *self = Self {
            cwnd: self.cwnd,
            ssthresh: self.cwnd,
            clamp: self.clamp,
            ..Self::default()
        };
    }

    /// A retransmission timeout: `bictcp_reset`.
    pub fn time_out(&mut self) {
        *self = Self {
            cwnd: 1,
            ssthresh: self.ssthresh,
            clamp: self.clamp,
            delay_min_ns: 0,
            ..Self::default()
        };
    }
}
