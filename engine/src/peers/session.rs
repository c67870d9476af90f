// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Authentication of peers.
//!
//! In: authentic reports, each with its sender's address and the time. Out: the known sessions, which of them are
//! authenticated, their latest reports, and this device's own next report. A session is authenticated once it responds
//! with the challenge of this device's reports, so neither clocks nor stored state are needed. The challenge changes
//! whenever an authenticated session is forgotten, so that no recorded report can revive it, and every few minutes, so
//! that no withheld one is accepted later. A report of the own session that this device did not send comes from a
//! clone: then a new session begins. Never: a clock (`now` never runs backwards here), unbounded memory.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use rand_chacha::rand_core::Rng;

use super::codec::{self, Purpose, Report, Sender};
use super::seal::{MAX_CONTENT_BYTES, TAG_BYTES};
use super::{DatagramRefusal, Heard};

/// The most authenticated peers.
pub const MAX_AUTHENTICATED: usize = 64;
/// The most unauthenticated devices, which are remembered without their senders.
pub const MAX_CANDIDATES: usize = 32;
/// A peer expires after this many of its own intervals (and half a one, for jitter).
const SILENT_INTERVALS: u32 = 6;
/// After this many it is asked directly: Wi-Fi acknowledges and repeats unicast, but not broadcast.
const ASKED_INTERVALS: u32 = 4;
/// A peer's senders count for this long after its last report, however long its announced interval: the longest one
/// would keep them for an hour.
const SENDERS_COUNT: Duration = Duration::from_secs(300);
/// The shortest time between two answers to a device: an honest one asks after four intervals, which are longer.
const ANSWER_GAP: Duration = Duration::from_millis(50);
/// The unsolicited responses to a new device: broadcasts get lost.
const FIRST_RESPONSES: u8 = 2;
/// A challenge is replaced after this long, or after [`CHALLENGE_INTERVALS`] if reports are that rare.
pub const CHALLENGE_AGE: Duration = Duration::from_secs(300);
/// Of an idle device. A challenge heard in its last moment is answered before it expires.
const CHALLENGE_INTERVALS: u32 = 2;
/// The own reports that are distinguished from a clone's. A response comes within milliseconds.
const SENT_KEPT: usize = 64;
/// Between two new sessions for clones: a member that imitates one causes no more.
pub const ANEW_GAP: Duration = Duration::from_secs(5);

/// Another device's daemon, from its start to its end.
#[derive(Debug)]
pub struct Session {
    pub id: u64,
    pub address: IpAddr,
    pub authenticated: bool,
    pub interval: Duration,
    /// Empty unless authenticated.
    pub senders: Vec<Sender>,
    pub last_heard: Duration,
    first_heard: Duration,
    counters: Window,
    challenge: u64,
    /// Own reports that are still to carry its challenge.
    responses_owed: u8,
    /// The last own report that carried its challenge, or the own challenge.
    served: u64,
    /// It fell silent, and was asked directly.
    asked: bool,
    answer_owed: bool,
    answered: Option<Duration>,
}

impl Session {
    fn new(now: Duration, from: IpAddr, report: &Report) -> Self {
        Self {
            id: report.session,
            address: from,
            authenticated: false,
            interval: Duration::ZERO,
            senders: Vec::new(),
            last_heard: now,
            first_heard: now,
            counters: Window::default(),
            challenge: report.challenge,
            responses_owed: FIRST_RESPONSES,
            served: 0,
            asked: false,
            answer_owed: false,
            answered: None,
        }
    }

    /// When it will have missed this many reports.
    fn missed(&self, reports: u32) -> Duration {
        let interval = if self.senders.is_empty() {
            self.interval
        } else {
            self.interval.min(2 * SENDERS_COUNT / (2 * SILENT_INTERVALS + 1))
        };
        self.last_heard
            .saturating_add(interval.saturating_mul(reports))
            .saturating_add(interval / 2)
    }

    fn gone_at(&self) -> Duration {
        self.missed(SILENT_INTERVALS)
    }

    fn asked_at(&self) -> Option<Duration> {
        (self.authenticated && !self.asked).then(|| self.missed(ASKED_INTERVALS))
    }

    fn next_deadline(&self) -> Duration {
        if self.answer_owed {
            return Duration::ZERO;
        }
        self.asked_at().unwrap_or_else(|| self.gone_at())
    }

    /// The eviction order: idle ones first, then the longest silent.
    fn worth(&self) -> (bool, Duration) {
        (!self.senders.is_empty(), self.last_heard)
    }
}

/// The counters seen in a session: the highest, and a bit for each of the 64 up to it.
#[derive(Debug, Default)]
struct Window {
    highest: u64,
    seen: u64,
}

impl Window {
    /// Only a counter above all others is new. An older one that was never seen is stale; one that was seen, or is too
    /// old, is a replay.
    fn advance(&mut self, counter: u64) -> Result<(), DatagramRefusal> {
        if self.seen == 0 || counter > self.highest {
            let step = u32::try_from(counter - self.highest).unwrap_or(u32::MAX);
            self.seen = self.seen.checked_shl(step).unwrap_or(0) | 1;
            self.highest = counter;
            return Ok(());
        }
        let bit = u32::try_from(self.highest - counter)
            .ok()
            .and_then(|age| 1u64.checked_shl(age));
        match bit {
            Some(bit) if self.seen & bit == 0 => {
                self.seen |= bit;
                Err(DatagramRefusal::Stale)
            }
            _ => Err(DatagramRefusal::Replayed),
        }
    }
}

/// This device's session, and all sessions that it hears.
#[derive(Debug)]
pub struct Sessions {
    own: u64,
    counter: u64,
    challenge: u64,
    /// The previous one, which is valid until this one is replaced.
    challenge_before: Option<u64>,
    challenged: Duration,
    /// The tags of this device's latest reports.
    sent: VecDeque<[u8; TAG_BYTES]>,
    /// The latest new session because of a clone.
    begun_anew: Option<Duration>,
    known: Vec<Session>,
    evicted: u64,
}

impl Sessions {
    pub fn new(rng: &mut impl Rng) -> Self {
        Self {
            own: rng.next_u64(),
            counter: 0,
            challenge: rng.next_u64(),
            challenge_before: None,
            challenged: Duration::ZERO,
            sent: VecDeque::with_capacity(SENT_KEPT),
            begun_anew: None,
            known: Vec::new(),
            evicted: 0,
        }
    }

    pub fn own(&self) -> u64 {
        self.own
    }

    pub fn known(&self) -> impl Iterator<Item = &Session> {
        self.known.iter()
    }

    pub fn authenticated(&self) -> impl Iterator<Item = &Session> {
        self.known.iter().filter(|s| s.authenticated)
    }

    /// Sessions evicted for lack of room.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    pub fn owes_responses(&self) -> bool {
        self.known.iter().any(|s| s.responses_owed > 0)
    }

    /// The latest own report has this tag.
    pub fn sealed(&mut self, tag: [u8; TAG_BYTES]) {
        if self.sent.len() == SENT_KEPT {
            self.sent.pop_front();
        }
        self.sent.push_back(tag);
    }

    /// Whether an authentic report belongs to the own session but was not sent by this device. An old one counts as
    /// own: a recorder of reports must not be able to end the session with them. Of two clones, the one that has sent
    /// less notices the other.
    pub fn is_copied(&self, now: Duration, report: &Report, tag: [u8; TAG_BYTES]) -> bool {
        let is_recent = report.counter.saturating_add(SENT_KEPT as u64) > self.counter;
        let may_begin = self.begun_anew.is_none_or(|at| now >= at + ANEW_GAP);
        report.session == self.own && is_recent && may_begin && !self.sent.contains(&tag)
    }

    /// As after a restart, but the peers stay authenticated.
    pub fn begin_anew(&mut self, now: Duration, rng: &mut impl Rng) {
        self.own = rng.next_u64();
        self.counter = 0;
        self.sent.clear();
        self.begun_anew = Some(now);
        self.change_challenge(now, rng);
    }

    /// A response proves that somebody has heard this device after the challenge was chosen. `interval` is that of an
    /// idle device.
    pub fn renew_challenge(&mut self, now: Duration, interval: Duration, rng: &mut impl Rng) {
        let age = now.saturating_sub(self.challenged);
        let lasts = CHALLENGE_AGE.max(interval.saturating_mul(CHALLENGE_INTERVALS));
        if age >= lasts {
            let before = self.challenge;
            self.change_challenge(now, rng);
            // Time may have jumped.
            self.challenge_before = (age < 2 * lasts).then_some(before);
        }
    }

    /// No report received so far proves anything any more.
    pub fn change_challenge(&mut self, now: Duration, rng: &mut impl Rng) {
        self.challenge = rng.next_u64();
        self.challenge_before = None;
        self.challenged = now;
    }

    /// Takes in an authentic report. A refused one changes nothing that is authenticated.
    // Long: the checks, in the order that makes them safe.
    pub fn hear(
        &mut self,
        now: Duration,
        from: IpAddr,
        report: Report,
        rng: &mut impl Rng,
    ) -> Result<Heard, DatagramRefusal> {
        if report.session == self.own {
            return Err(DatagramRefusal::OwnEcho);
        }
        let is_ours = |response: &u64| *response == self.challenge || Some(*response) == self.challenge_before;
        let proof = report.responses.iter().any(is_ours);
        let mut session = match self.known.iter().position(|s| s.id == report.session) {
            Some(at) => {
                self.known[at].counters.advance(report.counter)?;
                self.known.swap_remove(at)
            }
            None => {
                let mut session = Session::new(now, from, &report);
                session.counters.advance(report.counter)?;
                session
            }
        };
        let authenticated_before = session.authenticated;
        if report.purpose == Purpose::Leaving {
            self.forgotten(now, &session, rng);
            return if authenticated_before {
                Ok(Heard::Left)
            } else {
                Err(DatagramRefusal::Unauthenticated)
            };
        }
        session.authenticated |= proof;
        session.address = from;
        session.last_heard = now;
        session.asked = false;
        session.interval = Duration::from_millis(report.interval_ms.into());
        session.challenge = report.challenge;
        if report.challenged.contains(&codec::hint(self.own)) {
            session.responses_owed = session.responses_owed.max(1);
        }
        if !session.authenticated {
            self.make_room(now, false, MAX_CANDIDATES, rng);
            self.known.push(session);
            return Err(DatagramRefusal::Unauthenticated);
        }
        let may_ask = session.answered.is_none_or(|at| now >= at + ANSWER_GAP);
        session.answer_owed |= report.purpose == Purpose::Asking && may_ask;
        let started = session.senders.is_empty() && !report.senders.is_empty();
        let stopped = !session.senders.is_empty() && report.senders.is_empty();
        session.senders = report.senders;
        self.make_room(now, true, MAX_AUTHENTICATED, rng);
        self.retire_predecessor(now, &session, rng);
        self.known.push(session);
        Ok(match (authenticated_before, started, stopped) {
            (false, ..) => Heard::Joined,
            (true, true, _) => Heard::Started,
            (true, _, true) => Heard::Stopped,
            (true, false, false) => Heard::Updated,
        })
    }

    fn make_room(&mut self, now: Duration, authenticated: bool, most: usize, rng: &mut impl Rng) {
        let of_kind = |s: &&Session| s.authenticated == authenticated;
        if self.known.iter().filter(of_kind).count() < most {
            return;
        }
        let least = self.known.iter().filter(of_kind).min_by_key(|s| s.worth());
        let least = least.map(|s| s.id);
        self.forget(now, |s| Some(s.id) == least, rng);
        self.evicted += 1;
    }

    /// A restarted device has a new session at its old address. The old one is removed once it has missed a report
    /// since; a live one is not, so that a forged source address evicts nobody.
    fn retire_predecessor(&mut self, now: Duration, successor: &Session, rng: &mut impl Rng) {
        let retired = |s: &Session| {
            s.authenticated
                && s.address == successor.address
                && s.last_heard <= successor.first_heard
                && now >= s.missed(1)
        };
        self.forget(now, retired, rng);
    }

    /// Removes the sessions that were silent for too long; returns the addresses of the authenticated ones.
    pub fn expire(&mut self, now: Duration, rng: &mut impl Rng) -> Vec<IpAddr> {
        let silent = self.forget(now, |s| now >= s.gone_at(), rng);
        silent.iter().filter(|s| s.authenticated).map(|s| s.address).collect()
    }

    /// When to call [`Self::expire`] and [`Self::poll_direct`] next.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.known.iter().map(Session::next_deadline).min()
    }

    /// The device that is to get a report of its own now, and whether to answer or to ask.
    pub fn poll_direct(&mut self, now: Duration) -> Option<(IpAddr, Purpose)> {
        if let Some(session) = self.known.iter_mut().find(|s| s.answer_owed) {
            session.answer_owed = false;
            session.answered = Some(now);
            return Some((session.address, Purpose::Telling));
        }
        let silent = |s: &&mut Session| s.asked_at().is_some_and(|at| now >= at);
        let session = self.known.iter_mut().find(silent)?;
        session.asked = true;
        Some((session.address, Purpose::Asking))
    }

    fn forget(&mut self, now: Duration, which: impl Fn(&Session) -> bool, rng: &mut impl Rng) -> Vec<Session> {
        let forgotten: Vec<Session> = self.known.extract_if(.., |s| which(s)).collect();
        for session in &forgotten {
            self.forgotten(now, session, rng);
        }
        forgotten
    }

    /// Without its counter a recorded report could not be distinguished from a new one, so its responses must no longer
    /// count.
    fn forgotten(&mut self, now: Duration, session: &Session, rng: &mut impl Rng) {
        if session.authenticated {
            self.change_challenge(now, rng);
        }
    }

    /// This device's next report to everyone. Of the sessions that wait for a response, or are challenged, the ones
    /// served longest ago come first.
    pub fn compose(&mut self, senders: &[Sender], interval: Duration, purpose: Purpose) -> Report {
        let (mut report, left) = self.compose_direct(senders, interval, purpose);
        self.known.sort_by_key(|s| s.served);
        for session in self
            .known
            .iter_mut()
            .filter(|s| !s.authenticated)
            .take(codec::MAX_CHALLENGED)
        {
            report.challenged.push(codec::hint(session.id));
            session.served = self.counter;
        }
        let room = (2 + left / codec::ECHO_BYTES).min(codec::MAX_RESPONSES);
        for session in self.known.iter_mut().filter(|s| s.responses_owed > 0).take(room) {
            report.responses.push(session.challenge);
            session.responses_owed -= 1;
            session.served = self.counter;
        }
        report
    }

    /// A report to one device, which has authenticated this one already; and the room left in it for more than two
    /// responses. Contains the first senders that fit.
    pub fn compose_direct(&mut self, senders: &[Sender], interval: Duration, purpose: Purpose) -> (Report, usize) {
        self.counter += 1;
        // Two responses always fit.
        let mut left = MAX_CONTENT_BYTES - codec::MAX_FIXED_BYTES - 2 * codec::ECHO_BYTES;
        let fits = |sender: &&Sender| {
            let after = left.checked_sub(sender.encoded_bytes());
            left = after.unwrap_or(left);
            after.is_some()
        };
        let senders = senders.iter().take(codec::MAX_SENDERS).take_while(fits);
        let report = Report {
            session: self.own,
            counter: self.counter,
            challenge: self.challenge,
            interval_ms: interval.as_millis().try_into().unwrap_or(u32::MAX),
            purpose,
            challenged: Vec::new(),
            responses: Vec::new(),
            senders: senders.copied().collect(),
        };
        (report, left)
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;
    use crate::model::{CaState, Class};

    #[test]
    fn only_a_higher_counter_is_new() {
        let mut window = Window::default();
        assert_eq!(window.advance(7), Ok(()));
        assert_eq!(window.advance(7), Err(DatagramRefusal::Replayed));
        assert_eq!(window.advance(9), Ok(()));
        assert_eq!(window.advance(8), Err(DatagramRefusal::Stale));
        assert_eq!(window.advance(8), Err(DatagramRefusal::Replayed));
        assert_eq!(window.advance(u64::MAX), Ok(()));
        assert_eq!(window.advance(9), Err(DatagramRefusal::Replayed));
        assert_eq!(window.advance(u64::MAX), Err(DatagramRefusal::Replayed));
    }

    /// One datagram of a member with the longest interval, then silence: its senders count for five minutes at most.
    #[test]
    fn senders_of_a_silent_peer_count_for_five_minutes_at_most() {
        let mut rng = ChaCha20Rng::from_seed([1; 32]);
        let mut sessions = Sessions::new(&mut rng);
        let report = Report {
            session: 1,
            counter: 1,
            challenge: 2,
            interval_ms: *codec::INTERVAL_RANGE_MS.end(),
            purpose: Purpose::Telling,
            challenged: Vec::new(),
            responses: vec![sessions.challenge],
            senders: vec![Sender {
                cwnd_segments: 4,
                min_rtt_us: 100_000,
                srtt_us: 100_000,
                queue_bytes: 1_000_000,
                ca_state: CaState::Open,
                delivery_rate_kbit: 100,
                retransmits: 0,
                class: Class::Realtime,
                demand_kbit: codec::UNLIMITED_KBIT,
            }],
        };
        let from = IpAddr::from([10, 0, 0, 2]);
        let heard = sessions.hear(Duration::ZERO, from, report, &mut rng);
        assert_eq!(heard, Ok(Heard::Joined));
        let mut gone_s = 0;
        while sessions.authenticated().next().is_some() {
            gone_s += 10;
            sessions.expire(Duration::from_secs(gone_s), &mut rng);
        }
        assert!(gone_s <= 300, "it counts for {gone_s} s");
    }
}
