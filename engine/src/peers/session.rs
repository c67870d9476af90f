// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is authenticated.
//!
//! In: authentic reports, each with its sender's address and the time. Out: which sessions exist, which of them
//! are authenticated and what they said last, and this device's own next report. A session is authenticated once it
//! repeated the challenge that stands in our own reports, so neither clocks nor stored state are needed. The
//! challenge changes whenever a authenticated session is forgotten, so that no report recorded before can revive it, and
//! every few minutes, so that none that was withheld is authenticated later. A report in our own session that we did not send
//! is a copy's: then ours begins anew.
//! Never: a clock (`now` never runs backwards here), unbounded memory.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use rand_chacha::rand_core::Rng;

use super::codec::{self, Purpose, Report, Sender};
use super::seal::{MAX_CONTENT_BYTES, TAG_BYTES};
use super::{DatagramRefusal, Heard};

/// The most other devices authenticated at the same time.
pub const MAX_AUTHENTICATED: usize = 64;
/// The most devices remembered that have not proved themselves, without what they say.
pub const MAX_CANDIDATES: usize = 32;
/// A device is gone after this many of its own intervals (and half a one, for jitter).
const SILENT_INTERVALS: u32 = 6;
/// After this many it is asked directly: what goes to one device is acknowledged and repeated on Wi-Fi, what goes
/// to all is not.
const ASKED_INTERVALS: u32 = 4;
/// What a device says that it sends counts for so long without another word, however rare it says that its reports are:
/// the longest interval alone would keep its senders among us for an hour.
const SENDERS_COUNT: Duration = Duration::from_secs(300);
/// Nobody is answered more often: an honest device asks after four intervals, and these are longer together.
const ANSWER_GAP: Duration = Duration::from_millis(50);
/// A device heard for the first time gets its response so often unasked: broadcasts get lost.
const FIRST_RESPONSES: u8 = 2;
/// A challenge is replaced after this long, or after [`CHALLENGE_INTERVALS`] where reports are that rare.
pub const CHALLENGE_AGE: Duration = Duration::from_secs(300);
/// Of a device with nothing to send. Whoever hears a challenge in its last moment answers it before it ceases to count.
const CHALLENGE_INTERVALS: u32 = 2;
/// The reports of one's own that are told from a copy's. An response comes within milliseconds.
const SENT_KEPT: usize = 64;
/// Between two new sessions for copies: a member that plays one has us begin anew no more often.
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
    /// Reports of ours that shall still carry its challenge.
    responses_owed: u8,
    /// The last report of ours that carried its challenge, or our challenge.
    served: u64,
    /// It fell silent and was asked whether it is still there.
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

    /// When it will have missed this many reports, or has to be asked as if it had.
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

    /// Whom to forget first when there is no room: those with nothing to send, then the longest silent.
    fn worth(&self) -> (bool, Duration) {
        (!self.senders.is_empty(), self.last_heard)
    }
}

/// The counters of a session that were seen: the highest, and a bit for each of the 64 up to it.
#[derive(Debug, Default)]
struct Window {
    highest: u64,
    seen: u64,
}

impl Window {
    /// Only a counter above all others is news. An older one that was never seen was overtaken on its way;
    /// one that was seen, or is too old to tell, is a replay.
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

/// This device's session, and all that it hears.
#[derive(Debug)]
pub struct Sessions {
    own: u64,
    counter: u64,
    challenge: u64,
    /// The one before, which counts until this one is replaced.
    challenge_before: Option<u64>,
    challenged: Duration,
    /// The tags of our latest reports.
    sent: VecDeque<[u8; TAG_BYTES]>,
    /// When a session was last begun because of a copy.
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

    /// Sessions forgotten because there was no room.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    pub fn owes_responses(&self) -> bool {
        self.known.iter().any(|s| s.responses_owed > 0)
    }

    /// Our latest report has this tag.
    pub fn sealed(&mut self, tag: [u8; TAG_BYTES]) {
        if self.sent.len() == SENT_KEPT {
            self.sent.pop_front();
        }
        self.sent.push_back(tag);
    }

    /// Whether an authentic report is in our session and was not sent by us. An old one is taken for our own: whoever
    /// records our reports must not be able to end our session with them. Of two copies the one that has
    /// sent less notices the other.
    pub fn is_copied(&self, now: Duration, report: &Report, tag: [u8; TAG_BYTES]) -> bool {
        let is_recent = report.counter.saturating_add(SENT_KEPT as u64) > self.counter;
        let may_begin = self.begun_anew.is_none_or(|at| now >= at + ANEW_GAP);
        report.session == self.own && is_recent && may_begin && !self.sent.contains(&tag)
    }

    /// As after a restart, but that others are authenticated as before.
    pub fn begin_anew(&mut self, now: Duration, rng: &mut impl Rng) {
        self.own = rng.next_u64();
        self.counter = 0;
        self.sent.clear();
        self.begun_anew = Some(now);
        self.change_challenge(now, rng);
    }

    /// What the challenge proves is that somebody has heard us, and only as recently as it was chosen. `interval` is that
    /// of a device with nothing to send.
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

    /// Nothing that was heard so far proves anything any more.
    pub fn change_challenge(&mut self, now: Duration, rng: &mut impl Rng) {
        self.challenge = rng.next_u64();
        self.challenge_before = None;
        self.challenged = now;
    }

    /// Takes in an authentic report. What is refused changes nothing that is authenticated.
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

    /// A restarted device has a new session at its old address. The old one makes way once it has missed a
    /// report since; a live one does not, so that a forged source address takes nobody's place.
    fn retire_predecessor(&mut self, now: Duration, successor: &Session, rng: &mut impl Rng) {
        let retired = |s: &Session| {
            s.authenticated
                && s.address == successor.address
                && s.last_heard <= successor.first_heard
                && now >= s.missed(1)
        };
        self.forget(now, retired, rng);
    }

    /// Removes the sessions that were silent for too long; returns the addresses of those that had been authenticated.
    pub fn expire(&mut self, now: Duration, rng: &mut impl Rng) -> Vec<IpAddr> {
        let silent = self.forget(now, |s| now >= s.gone_at(), rng);
        silent.iter().filter(|s| s.authenticated).map(|s| s.address).collect()
    }

    /// When to call [`Self::expire`] and [`Self::poll_direct`] next.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.known.iter().map(Session::next_deadline).min()
    }

    /// Whom to send a report of its own now, and whether to answer or to ask.
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

    /// Without its counter a recorded report could not be told from a new one, so what it responses must no longer
    /// count.
    fn forgotten(&mut self, now: Duration, session: &Session, rng: &mut impl Rng) {
        if session.authenticated {
            self.change_challenge(now, rng);
        }
    }

    /// This device's next report to everyone. Of those that wait for an response, or are challenged, the ones served
    /// longest ago come first.
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

    /// A report to one device, which authenticates this one already; and the room left in it for more than two
    /// responses. Tells the first senders that fit.
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
    fn only_a_higher_counter_is_news() {
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

    /// One datagram of a member with the longest interval, and then nothing any more: its senders count for five minutes at most.
    #[test]
    fn who_says_that_it_sends_and_will_not_be_heard_for_long_is_not_counted_for_an_hour() {
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
