// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a sender's window moves: giveway's rule for background, compiled from `bpf/ledbat/rule.h`, and CUBIC (RFC 9438). In
//! come acknowledgements, losses and timeouts; out go the window and the pace.

/// As much as C needs, in its alignment.
#[repr(C, align(8))]
pub struct Rule([u8; 128]);

unsafe extern "C" {
    fn lab_background_begin(sender: *mut Rule, packets: u32, base_us: u32, now_ms: u64);
    fn lab_background_acked(
        sender: *mut Rule,
        rtt_us: u32,
        acked: u32,
        lost: u32,
        in_flight: u32,
        jitter_us: u32,
        delivered_before: u32,
        delivered: u32,
        now_ms: u64,
    );
    fn lab_background_timeout(sender: *mut Rule, now_ms: u64);
    fn lab_background_cwnd(sender: *const Rule, in_flight: u32) -> u32;
    fn lab_background_pace_percent(sender: *const Rule) -> u32;
}

/// What an acknowledgement shows.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    pub now_us: u64,
    /// Of the packet that was sent last.
    pub rtt_us: u64,
    /// Packets.
    pub acked: u64,
    /// Thought lost by it.
    pub lost: u64,
    /// Before it.
    pub in_flight: u64,
    pub jitter_us: u64,
    /// When that packet was sent, and now.
    pub delivered_before: u64,
    pub delivered: u64,
    /// What is lost was sent after the window was last reduced.
    pub is_new_loss: bool,
}

pub enum Control {
    Background(Box<Rule>),
    Cubic(Cubic),
}

const FIRST_PACKETS: u32 = 10;

impl Control {
    /// With a first round trip from the handshake.
    pub fn background(base_us: u64, now_us: u64) -> Self {
        let mut rule = Box::new(Rule([0; 128]));
        // SAFETY: C has asserted that the state fits, and nobody else has it.
        unsafe { lab_background_begin(&raw mut *rule, FIRST_PACKETS, base_us as u32, now_us / 1000) };
        Self::Background(rule)
    }

    pub fn acked(&mut self, seen: &Acked) {
        match self {
            // SAFETY: the state was begun, and nobody else has it.
            Self::Background(rule) => unsafe {
                lab_background_acked(
                    &raw mut **rule,
                    seen.rtt_us as u32,
                    seen.acked as u32,
                    seen.lost as u32,
                    seen.in_flight as u32,
                    seen.jitter_us as u32,
                    seen.delivered_before as u32,
                    seen.delivered as u32,
                    seen.now_us / 1000,
                );
            },
            Self::Cubic(cubic) => cubic.acked(seen),
        }
    }

    pub fn timeout(&mut self, now_us: u64) {
        match self {
            // SAFETY: the state was begun, and nobody else has it.
            Self::Background(rule) => unsafe { lab_background_timeout(&raw mut **rule, now_us / 1000) },
            Self::Cubic(cubic) => cubic.timeout(),
        }
    }

    /// Packets, while so many are in flight.
    pub fn cwnd(&self, in_flight: u64) -> u64 {
        match self {
            // SAFETY: the state was begun.
            Self::Background(rule) => unsafe { lab_background_cwnd(&raw const **rule, in_flight as u32).into() },
            Self::Cubic(cubic) => cubic.window.max(1.0) as u64,
        }
    }

    /// Of the window over a round trip; None: not paced.
    pub fn pace_percent(&self) -> Option<u64> {
        match self {
            Self::Background(rule) => {
                // SAFETY: the state was begun.
                let percent = unsafe { lab_background_pace_percent(&raw const **rule) };
                (percent > 0).then_some(percent.into())
            }
            Self::Cubic(_) => None,
        }
    }
}

const BETA: f64 = 0.7;
const C: f64 = 0.4;

pub struct Cubic {
    window: f64,
    threshold: f64,
    most: f64,
    begun_us: Option<u64>,
    k_s: f64,
    /// What Reno would have.
    reno: f64,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            window: FIRST_PACKETS.into(),
            threshold: f64::INFINITY,
            most: 0.0,
            begun_us: None,
            k_s: 0.0,
            reno: 0.0,
        }
    }
}

impl Cubic {
    fn acked(&mut self, seen: &Acked) {
        if seen.lost > 0 && seen.is_new_loss {
            self.reduce();
            return;
        }
        let is_limited = seen.in_flight + seen.acked >= self.window as u64;
        if seen.lost > 0 || !is_limited {
            return;
        }
        let acked = seen.acked as f64;
        if self.window < self.threshold {
            self.window += acked;
            return;
        }
        let begun_us = *self.begun_us.get_or_insert_with(|| {
            self.k_s = ((self.most - self.window).max(0.0) / C).cbrt();
            self.most = self.most.max(self.window);
            self.reno = self.window;
            seen.now_us
        });
        let t_s = (seen.now_us - begun_us + seen.rtt_us) as f64 / 1e6;
        let wanted = self.most + C * (t_s - self.k_s).powi(3);
        self.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) * acked / self.window;
        let wanted = wanted.max(self.reno).clamp(self.window, 1.5 * self.window);
        self.window += (wanted - self.window) / self.window * acked;
    }

    fn reduce(&mut self) {
        self.most = if self.window < self.most {
            self.window * (1.0 + BETA) / 2.0
        } else {
            self.window
        };
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.begun_us = None;
    }

    fn timeout(&mut self) {
        self.reduce();
        self.window = 1.0;
    }
}
