// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sending end of one connection, as Linux has it: CUBIC, loss detection by RACK, proportional rate reduction, one
//! probe before a timeout, cwnd clamp, and pacing only where a maximum rate was set.
//!
//! Input: what the application has written, acknowledgements, the time. Output: segments to send, one by one, and when
//! to ask again. Sends nothing itself. Left out: undo of a reduction, F-RTO, ECN, receive windows.

use std::collections::VecDeque;

use giveway_engine::model::CaState;

use super::cubic::Cubic;
use super::packet::MSS_BYTES;
use super::rate::{RateSampler, SentSegment};
use super::rtt::Rtt;

/// Segments in a burst of a paced connection: two are the least that Linux hands over together (`tcp_min_tso_segs`).
const PACED_BURST: u32 = 2;
/// Segments known to have arrived beyond one that has not, before it counts as lost.
const REORDERING: u32 = 3;
const INITIAL_CWND: u32 = 10;

#[derive(Debug, Default)]
struct Segment {
    sent: SentSegment,
    is_sacked: bool,
    is_lost: bool,
    /// Sent again, and that copy is in flight.
    is_repeated: bool,
    was_repeated: bool,
}

#[derive(Debug)]
pub struct TcpSender {
    pub cubic: Cubic,
    pub rtt: Rtt,
    pub rate: RateSampler,
    pub ca_state: CaState,
    pub retransmits: u32,
    /// `SO_MAX_PACING_RATE`, bytes a second of payload.
    pub max_pacing: Option<u64>,
    /// Segments that the application has written.
    pub written: u32,
    /// The first segment not acknowledged, and those from it on that were sent.
    next: u32,
    flight: VecDeque<Segment>,
    sacked: u32,
    lost: u32,
    repeated: u32,
    is_cwnd_limited: bool,
    max_flight: u32,
    max_flight_until: u32,
    recover_until: u32,
    /// Of proportional rate reduction: cwnd before, delivered and sent since.
    prr: (u32, u32, u32),
    newest_delivered: (u64, u32),
    may_send_ns: u64,
    burst: u32,
    timeout_ns: Option<u64>,
    has_probed: bool,
    backoff: u32,
    last_sent_ns: u64,
}

impl TcpSender {
    /// After a handshake of this round-trip time.
    pub fn new(now_ns: u64, handshake_ns: u64) -> Self {
        let mut sender = Self {
            cubic: Cubic::new(),
            rtt: Rtt::default(),
            rate: RateSampler::new(now_ns),
            ca_state: CaState::Open,
            retransmits: 0,
            max_pacing: None,
            written: 0,
            next: 0,
            flight: VecDeque::new(),
            sacked: 0,
            lost: 0,
            repeated: 0,
            is_cwnd_limited: false,
            max_flight: 0,
            max_flight_until: 0,
            recover_until: 0,
            prr: (0, 0, 0),
            newest_delivered: (0, 0),
            may_send_ns: 0,
            burst: 0,
            timeout_ns: None,
            has_probed: false,
            backoff: 0,
            last_sent_ns: now_ns,
        };
        sender.rtt.sample(handshake_ns, handshake_ns);
        sender
    }

    fn sent(&self) -> u32 {
        self.next + self.flight.len() as u32
    }

    pub fn in_flight(&self) -> u32 {
        self.flight.len() as u32 + self.repeated - self.sacked - self.lost
    }

    pub fn unsent_segments(&self) -> u32 {
        self.written - self.sent()
    }

    pub fn unacked_segments(&self) -> u32 {
        self.flight.len() as u32
    }

    /// `TCP_BPF_SNDCWND_CLAMP`, which sets ssthresh too; with avoidance, ssthresh is then set to cwnd (`bpf/clamp.h`).
    pub fn set_clamp(&mut self, clamp: Option<u32>) {
        let old = self.cubic.clamp;
        let clamp = clamp.unwrap_or(u32::MAX);
        let cwnd = self.cubic.cwnd;
        let restarts = match clamp {
            u32::MAX => cwnd >= old || self.cubic.ssthresh < old,
            _ => cwnd >= self.cubic.ssthresh && cwnd < old && cwnd < clamp,
        };
        self.cubic.clamp = clamp;
        self.cubic.ssthresh = clamp;
        if restarts {
            self.cubic.ease();
        }
    }

    /// When to ask for segments or for a timeout next.
    pub fn next_event_ns(&self) -> Option<u64> {
        let has_more = self.lost > self.repeated || self.unsent_segments() > 0;
        let paced =
            (has_more && self.max_pacing.is_some() && self.in_flight() < self.cubic.cwnd).then_some(self.may_send_ns);
        [self.timeout_ns, paced].into_iter().flatten().min()
    }

    /// A segment to send now; ask until there is none.
    pub fn poll(&mut self, now_ns: u64) -> Option<u32> {
        if self.max_pacing.is_some() && self.burst == 0 && now_ns < self.may_send_ns {
            return self.stop(false);
        }
        self.restart_after_idle(now_ns);
        if self.in_flight() >= self.cubic.cwnd {
            return self.stop(true);
        }
        let again = (self.lost > self.repeated)
            .then(|| self.flight.iter().position(|s| s.is_lost && !s.is_repeated))
            .flatten();
        let index = match again {
            Some(index) => {
                let segment = &mut self.flight[index];
                (segment.is_repeated, segment.was_repeated) = (true, true);
                self.repeated += 1;
                self.retransmits += 1;
                index
            }
            None if self.unsent_segments() > 0 => {
                if self.flight.is_empty() {
                    self.rate.idle(now_ns);
                }
                self.flight.push_back(Segment::default());
                self.flight.len() - 1
            }
            None => return self.stop(false),
        };
        self.note_sent(now_ns, index);
        Some(self.next + index as u32)
    }

    fn note_sent(&mut self, now_ns: u64, index: usize) {
        self.flight[index].sent = self.rate.sent(now_ns);
        if self.ca_state == CaState::Recovery {
            self.prr.2 += 1;
        }
        self.last_sent_ns = now_ns;
        if self.timeout_ns.is_none() {
            self.arm(now_ns);
        }
        self.pace(now_ns);
    }

    /// Nothing more is sent now (`tcp_cwnd_validate`): because of cwnd, or for another reason.
    fn stop(&mut self, by_cwnd: bool) -> Option<u32> {
        self.burst = 0;
        let flight = self.flight.len() as u32;
        if by_cwnd || self.next >= self.max_flight_until || (!self.is_cwnd_limited && flight > self.max_flight) {
            self.max_flight = flight;
            self.max_flight_until = self.sent();
            self.is_cwnd_limited = by_cwnd;
        }
        None
    }

    /// Internal pacing: after a burst, its length at the rate, less at most half of it for time lost before.
    fn pace(&mut self, now_ns: u64) {
        let Some(most) = self.max_pacing else { return };
        if self.burst == 0 {
            self.burst = PACED_BURST;
            let own = self.cubic.cwnd as f64 * MSS_BYTES as f64 * 1e9 / self.rtt.smoothed_ns.max(1) as f64;
            let ratio = if self.cubic.cwnd < self.cubic.ssthresh / 2 {
                2.0
            } else {
                1.2
            };
            let rate = (own * ratio).min(most as f64).max(1.0);
            let length_ns = (PACED_BURST as u64 * MSS_BYTES) as f64 * 1e9 / rate;
            let credit_ns = now_ns.saturating_sub(self.may_send_ns) as f64;
            self.may_send_ns = now_ns + (length_ns - credit_ns.min(length_ns / 2.0)) as u64;
        }
        self.burst -= 1;
    }

    fn restart_after_idle(&mut self, now_ns: u64) {
        let mut idle_ns = now_ns.saturating_sub(self.last_sent_ns);
        if self.flight.is_empty() && self.unsent_segments() > 0 && idle_ns > self.rtt.timeout_ns() {
            self.cubic.ssthresh = self.cubic.ssthresh.max(self.cubic.cwnd / 2 + self.cubic.cwnd / 4);
            while idle_ns > self.rtt.timeout_ns() && self.cubic.cwnd > INITIAL_CWND {
                self.cubic.cwnd = (self.cubic.cwnd / 2).max(INITIAL_CWND);
                idle_ns -= self.rtt.timeout_ns();
            }
            self.last_sent_ns = now_ns;
        }
    }

    fn arm(&mut self, now_ns: u64) {
        let wait_ns = self.rtt.timeout_ns() << self.backoff.min(6);
        let may_probe = self.ca_state == CaState::Open && !self.has_probed && self.sacked == 0;
        let wait_ns = if may_probe {
            wait_ns.min(2 * self.rtt.smoothed_ns)
        } else {
            wait_ns
        };
        self.timeout_ns = (!self.flight.is_empty()).then_some(now_ns + wait_ns);
    }

    /// An acknowledgement: the next segment expected, and blocks beyond it.
    pub fn acknowledge(&mut self, now_ns: u64, next: u32, blocks: &[(u32, u32)]) {
        let unacknowledged_before = self.next;
        let delivered_before = self.rate.delivered();
        let round = self.take_in(now_ns, next, blocks);
        let newly = (self.rate.delivered() - delivered_before) as u32;
        self.rate.finish(now_ns, self.rtt.least_ns);
        if let Some((oldest_ns, newest_ns)) = round {
            self.rtt.sample(oldest_ns, newest_ns);
            let is_pacing = self.max_pacing.is_some();
            self.cubic.sample(now_ns, newest_ns, self.next, self.sent(), is_pacing);
        }
        let advanced = self.next > unacknowledged_before;
        if advanced {
            (self.backoff, self.has_probed) = (0, false);
        }
        let newly_lost = self.find_losses();
        self.change_state(now_ns, newly, newly_lost, advanced);
        if newly > 0 {
            self.arm(now_ns);
        }
    }

    /// Returns the round-trip times of the oldest and the newest segment that it acknowledges.
    fn take_in(&mut self, now_ns: u64, next: u32, blocks: &[(u32, u32)]) -> Option<(u64, u64)> {
        let (mut oldest, mut newest) = (None, None);
        while self.next < next {
            let Some(segment) = self.flight.pop_front() else { break };
            if segment.is_sacked {
                self.sacked -= 1;
            } else {
                if !segment.was_repeated {
                    let rtt_ns = now_ns - segment.sent.at_ns;
                    oldest = oldest.or(Some(rtt_ns));
                    newest = Some(rtt_ns);
                }
                self.deliver(now_ns, self.next, &segment);
            }
            self.lost -= u32::from(segment.is_lost);
            self.repeated -= u32::from(segment.is_repeated);
            self.next += 1;
        }
        for (from, to) in blocks {
            for number in (*from).max(self.next)..(*to).min(self.sent()) {
                let index = (number - self.next) as usize;
                if self.flight[index].is_sacked {
                    continue;
                }
                let mut segment = std::mem::take(&mut self.flight[index]);
                self.deliver(now_ns, number, &segment);
                self.sacked += 1;
                self.lost -= u32::from(segment.is_lost);
                self.repeated -= u32::from(segment.is_repeated);
                (segment.is_sacked, segment.is_lost, segment.is_repeated) = (true, false, false);
                self.flight[index] = segment;
            }
        }
        Some((oldest?, newest?))
    }

    fn deliver(&mut self, now_ns: u64, number: u32, segment: &Segment) {
        self.rate.delivered_one(now_ns, &segment.sent);
        // The original of a repeated one may have arrived instead.
        if !segment.was_repeated || now_ns - segment.sent.at_ns >= self.rtt.least_ns {
            self.newest_delivered = self.newest_delivered.max((segment.sent.at_ns, number));
        }
    }

    /// RACK: a segment is lost if a later one has arrived.
    fn find_losses(&mut self) -> u32 {
        let is_sure = self.sacked >= REORDERING || matches!(self.ca_state, CaState::Recovery | CaState::Loss);
        if !is_sure || (self.sacked == 0 && self.repeated == 0) {
            return 0;
        }
        let mut found = 0;
        for (index, segment) in self.flight.iter_mut().enumerate() {
            let waits = !segment.is_sacked && (!segment.is_lost || segment.is_repeated);
            if waits && (segment.sent.at_ns, self.next + index as u32) < self.newest_delivered {
                if segment.is_repeated {
                    segment.is_repeated = false;
                    self.repeated -= 1;
                } else {
                    segment.is_lost = true;
                    self.lost += 1;
                }
                found += 1;
            }
        }
        found
    }

    fn change_state(&mut self, now_ns: u64, newly: u32, newly_lost: u32, advanced: bool) {
        if matches!(self.ca_state, CaState::Recovery | CaState::Loss) && self.next >= self.recover_until {
            if self.ca_state == CaState::Recovery {
                self.cubic.cwnd = self.cubic.ssthresh.min(self.cubic.clamp);
            }
            self.ca_state = CaState::Open;
        }
        if self.lost > 0 && matches!(self.ca_state, CaState::Open | CaState::Disorder) {
            self.prr = (self.cubic.cwnd, 0, 0);
            self.cubic.lose();
            self.recover_until = self.sent();
            self.ca_state = CaState::Recovery;
        }
        match self.ca_state {
            CaState::Recovery => self.reduce(newly, newly_lost, advanced),
            state => {
                if state != CaState::Loss {
                    self.ca_state = if self.sacked > 0 {
                        CaState::Disorder
                    } else {
                        CaState::Open
                    };
                }
                if newly > 0 && advanced && self.may_grow() {
                    self.cubic.grow(now_ns, newly);
                }
            }
        }
    }

    /// `tcp_is_cwnd_limited`.
    fn may_grow(&self) -> bool {
        self.is_cwnd_limited || (self.cubic.is_slow_start() && self.cubic.cwnd < 2 * self.max_flight)
    }

    /// Proportional rate reduction (RFC 6937, `tcp_cwnd_reduction`).
    fn reduce(&mut self, newly: u32, newly_lost: u32, advanced: bool) {
        let (before, ref mut delivered, sent) = self.prr;
        *delivered += newly;
        let delivered = *delivered;
        let room = i64::from(self.cubic.ssthresh) - i64::from(self.in_flight());
        let more = if room < 0 {
            let share = u64::from(self.cubic.ssthresh) * u64::from(delivered);
            share.div_ceil(u64::from(before.max(1))) as i64 - i64::from(sent)
        } else {
            let most = i64::from(delivered.saturating_sub(sent)).max(i64::from(newly));
            (most + i64::from(advanced && newly_lost == 0)).min(room)
        };
        let more = more.max(i64::from(sent == 0)) as u32;
        self.cubic.cwnd = (self.in_flight() + more).max(1);
    }

    /// Time has passed. A segment to send again as a probe, if one is due.
    pub fn tick(&mut self, now_ns: u64) -> Option<u32> {
        if self.timeout_ns.is_none_or(|at| at > now_ns) {
            return None;
        }
        if self.ca_state == CaState::Open && !self.has_probed && self.sacked == 0 && !self.flight.is_empty() {
            self.has_probed = true;
            let index = self.flight.len() - 1;
            self.flight[index].was_repeated = true;
            self.retransmits += 1;
            self.note_sent(now_ns, index);
            self.arm(now_ns);
            return Some(self.next + index as u32);
        }
        self.time_out(now_ns);
        None
    }

    fn time_out(&mut self, now_ns: u64) {
        if self.ca_state != CaState::Loss {
            self.cubic.lose();
        }
        self.cubic.time_out();
        for segment in self.flight.iter_mut().filter(|segment| !segment.is_sacked) {
            (segment.is_lost, segment.is_repeated) = (true, false);
        }
        self.lost = self.flight.len() as u32 - self.sacked;
        self.repeated = 0;
        self.recover_until = self.sent();
        self.ca_state = CaState::Loss;
        self.backoff += 1;
        self.has_probed = false;
        self.arm(now_ns);
    }
}
