// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peer protocol between the devices on one access point.
//!
//! In: datagrams from anyone, what this device sends, the time. Out: datagrams to send, the authenticated peers with
//! their latest reports, and a count of every refusal. Layers, from the bytes up: [`codec`] (a report as bytes),
//! [`seal`] (encryption and authenticity), [`session`] (authenticated peers), [`pace`] (when to report). Never: a
//! socket, a clock, a panic on what a peer sends. `docs/reference/protocol.md` is the specification.

pub mod codec;
pub mod pace;
pub mod seal;
pub mod session;

use std::net::IpAddr;
use std::time::Duration;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{CryptoRng, Rng, SeedableRng};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use codec::{Malformed, Purpose, Report, Sender, UNLIMITED_KBIT};
use pace::Pace;
pub use pace::{Group, PaceConfig};
pub use seal::{Key, KeyError, Keyring, MAGIC, MAX_DATAGRAM_BYTES, VERSION};
use session::Sessions;

/// The shortest report of any version.
pub const MIN_DATAGRAM_BYTES: usize = seal::OVERHEAD_BYTES + codec::MIN_BYTES;
/// How long an older version on the link is reported: the longest interval between two reports.
const OLDER_SHOWN: Duration = Duration::from_millis(*codec::INTERVAL_RANGE_MS.end() as u64);

/// After a sleep this long a challenge no longer proves recency.
const LONG_SLEEP: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub enum Input<'a> {
    /// The group's keys, read again; None: no group.
    Keys(Option<Keyring>),
    /// A datagram on the group's port.
    Datagram { from: IpAddr, bytes: &'a [u8] },
    /// Datagrams on that port that were refused unread, since the last time.
    Filtered(Filtered),
}

/// Why a datagram was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DatagramRefusal {
    #[error("{0} bytes are too few for a report")]
    TooShort(usize),
    #[error("{0} bytes are too many for a report")]
    TooLong(usize),
    #[error("not a report of giveway")]
    NotOurs,
    #[error("version {0} of the protocol; this giveway reads version {VERSION}")]
    OlderVersion(u8),
    #[error("version {0} of the protocol; this giveway reads version {VERSION}")]
    FutureVersion(u8),
    #[error("sealed with a key that this device does not have")]
    UnknownKey,
    #[error("the authentication tag does not match")]
    Forged,
    #[error("an authentic datagram is not a report: {0}")]
    Malformed(#[from] Malformed),
    #[error("this device's own report came back")]
    OwnEcho,
    #[error(
        "a report of this device's own session that it did not send: this machine is a clone of another, or was cloned"
    )]
    Copied,
    #[error("replayed: this report was received before")]
    Replayed,
    #[error("stale: a newer report was received before")]
    Stale,
    #[error("not authenticated: its session has not yet answered a challenge")]
    Unauthenticated,
}

/// Every datagram is counted once among those received or refused, under one name.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Counters {
    pub sent: u64,
    /// Accepted.
    pub received: u64,
    pub own_echo: u64,
    /// Sent by a clone of this machine; each begins a new session here.
    #[serde(default)]
    pub copied: u64,
    pub malformed: u64,
    pub unknown_key: u64,
    pub forged: u64,
    pub replayed: u64,
    pub stale: u64,
    pub unauthenticated: u64,
    #[serde(default)]
    pub older_version: u64,
    pub future_version: u64,
    /// From outside of the link.
    #[serde(default)]
    pub off_link: u64,
    /// Asked directly whether they are still there.
    pub asked: u64,
    /// Peers that fell silent.
    pub expired: u64,
    /// Peers and candidates forgotten for lack of room.
    pub evicted: u64,
}

impl Counters {
    fn count(&mut self, outcome: &Result<Heard, DatagramRefusal>) {
        let counter = match outcome {
            Ok(_) => &mut self.received,
            Err(DatagramRefusal::OwnEcho) => &mut self.own_echo,
            Err(DatagramRefusal::Copied) => &mut self.copied,
            Err(
                DatagramRefusal::TooShort(_)
                | DatagramRefusal::TooLong(_)
                | DatagramRefusal::NotOurs
                | DatagramRefusal::Malformed(_),
            ) => &mut self.malformed,
            Err(DatagramRefusal::UnknownKey) => &mut self.unknown_key,
            Err(DatagramRefusal::Forged) => &mut self.forged,
            Err(DatagramRefusal::Replayed) => &mut self.replayed,
            Err(DatagramRefusal::Stale) => &mut self.stale,
            Err(DatagramRefusal::Unauthenticated) => &mut self.unauthenticated,
            Err(DatagramRefusal::OlderVersion(_)) => &mut self.older_version,
            Err(DatagramRefusal::FutureVersion(_)) => &mut self.future_version,
        };
        *counter += 1;
    }

    /// All datagrams that came in.
    pub fn heard(&self) -> u64 {
        self.received
            + self.own_echo
            + self.copied
            + self.malformed
            + self.unknown_key
            + self.forged
            + self.replayed
            + self.stale
            + self.unauthenticated
            + self.older_version
            + self.future_version
            + self.off_link
    }
}

/// Datagrams that the socket filter refused.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Filtered {
    pub off_link: u64,
    /// Of a length that no report has.
    pub malformed: u64,
    pub older_version: u64,
    /// The source of the latest one of an older version.
    pub older_from: Option<IpAddr>,
}

/// The effect of an accepted report.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Heard {
    /// Its session is authenticated from now on.
    Joined,
    /// An idle peer sends.
    Started,
    /// A peer is idle.
    Stopped,
    /// The same state with newer numbers.
    Updated,
    /// The peer leaves.
    Left,
}

/// A datagram to send.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outgoing {
    /// None: everyone.
    pub to: Option<IpAddr>,
    pub datagram: Vec<u8>,
}

/// Another device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peer<'a> {
    pub address: IpAddr,
    pub session: u64,
    pub authenticated: bool,
    /// Since its last report.
    pub age: Duration,
    /// Between its reports, as announced.
    pub interval: Duration,
    /// Empty unless authenticated.
    pub senders: &'a [Sender],
}

/// One device's end of the protocol. Deliberately not `Clone`: a copy would take part as the same session.
///
/// `now` is the time since any fixed origin. After a jump forwards peers expire and return; a jump backwards counts as
/// no time.
pub struct PeerGroup {
    rng: ChaCha20Rng,
    keyring: Option<Keyring>,
    sessions: Sessions,
    pace: Pace,
    counters: Counters,
    /// The latest device of an older version, and when it was heard.
    older: Option<(IpAddr, Duration)>,
    slept: Duration,
    clock: Clock,
}

impl PeerGroup {
    /// Without a key the device neither sends nor receives.
    pub fn new(now: Duration, rng: &mut impl CryptoRng, keyring: Option<Keyring>, config: PaceConfig) -> Self {
        let mut rng = ChaCha20Rng::from_rng(rng);
        let sessions = Sessions::new(&mut rng);
        let pace = Pace::new(Duration::ZERO, config, &mut rng);
        Self {
            rng,
            keyring,
            sessions,
            pace,
            counters: Counters::default(),
            older: None,
            slept: Duration::ZERO,
            clock: Clock::new(now),
        }
    }

    /// Before the next step: fresh randomness from the kernel, since a copy of this machine may have the earlier one;
    /// and the total time that this machine has slept, which `now` may not include: reports from before a sleep prove
    /// nothing after it.
    pub fn refresh(&mut self, random: [u8; 32], slept: Duration) {
        self.stir(random);
        if slept.saturating_sub(self.slept) >= LONG_SLEEP {
            self.sessions.change_challenge(self.clock.now, &mut self.rng);
        }
        self.slept = slept;
    }

    fn stir(&mut self, random: [u8; 32]) {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        for (byte, fresh) in seed.iter_mut().zip(random) {
            *byte ^= fresh;
        }
        self.rng = ChaCha20Rng::from_seed(seed);
    }

    /// The key file changed. No peer is forgotten for it.
    pub fn set_keyring(&mut self, keyring: Option<Keyring>) {
        self.keyring = keyring;
    }

    /// The IP header of the interface's reports: 20 bytes for IPv4, 40 for IPv6.
    pub fn set_ip_header(&mut self, bytes: u32) {
        self.pace.set_ip_header(bytes);
    }

    /// A datagram arrived.
    pub fn receive(&mut self, now: Duration, from: IpAddr, datagram: &[u8]) -> Result<Heard, DatagramRefusal> {
        let now = self.clock.advance(now);
        let outcome = self.take_in(now, from, datagram);
        self.counters.count(&outcome);
        match outcome {
            Ok(_) => self.pace.observe(datagram.len()),
            Err(DatagramRefusal::OlderVersion(_)) => self.older = Some((from, now)),
            Err(_) => {}
        }
        outcome
    }

    /// Datagrams that were refused before they came here.
    pub fn filtered(&mut self, now: Duration, filtered: Filtered) {
        let now = self.clock.advance(now);
        self.counters.off_link += filtered.off_link;
        self.counters.malformed += filtered.malformed;
        self.counters.older_version += filtered.older_version;
        self.older = filtered.older_from.map(|from| (from, now)).or(self.older);
    }

    /// A device that speaks an older version of the protocol, and is ignored.
    pub fn older(&self) -> Option<IpAddr> {
        let (address, heard) = self.older?;
        (self.clock.now.saturating_sub(heard) <= OLDER_SHOWN).then_some(address)
    }

    fn take_in(&mut self, now: Duration, from: IpAddr, datagram: &[u8]) -> Result<Heard, DatagramRefusal> {
        let keyring = self.keyring.as_ref().ok_or(DatagramRefusal::UnknownKey)?;
        let report = Report::decode(&keyring.open(datagram)?)?;
        let tag = seal::tag_of(datagram).ok_or(DatagramRefusal::TooShort(datagram.len()))?;
        if self.sessions.is_copied(now, &report, tag) {
            // Two copies that draw the same randomness may each have heard different reports.
            self.stir(std::array::from_fn(|at| tag[at % seal::TAG_BYTES]));
            self.sessions.begin_anew(now, &mut self.rng);
            self.pace.hurry(now);
            return Err(DatagramRefusal::Copied);
        }
        self.renew_challenge(now);
        let heard = self.sessions.hear(now, from, report, &mut self.rng);
        if self.sessions.owes_responses() {
            self.pace.hurry(now);
        }
        heard
    }

    fn renew_challenge(&mut self, now: Duration) {
        let idle = self.promised(&[]);
        self.sessions.renew_challenge(now, idle, &mut self.rng);
    }

    /// Forgets the peers that were silent for six of their intervals; returns the addresses of the authenticated ones.
    pub fn expire(&mut self, now: Duration) -> Vec<IpAddr> {
        let now = self.clock.advance(now);
        let gone = self.sessions.expire(now, &mut self.rng);
        self.counters.expired += gone.len() as u64;
        gone
    }

    /// When to call [`Self::poll_report`] and [`Self::expire`] next. Ask again after every other call.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.keyring.as_ref()?;
        let report = self.pace.due(self.group());
        let next = self.sessions.next_deadline().map_or(report, |next| next.min(report));
        Some(self.clock.outside_time(next))
    }

    /// A report that is due; call until None. `senders` are this device's, the most important first: those that do not
    /// fit are left out.
    pub fn poll_report(&mut self, now: Duration, senders: &[Sender]) -> Option<Outgoing> {
        self.keyring.as_ref()?;
        let now = self.clock.advance(now);
        self.renew_challenge(now);
        if let Some((to, purpose)) = self.sessions.poll_direct(now) {
            return self.report_to(to, senders, purpose);
        }
        if now < self.pace.due(self.group()) {
            return None;
        }
        let datagram = self.report(now, senders, Purpose::Telling)?;
        Some(Outgoing { to: None, datagram })
    }

    /// The last report to everyone: this device leaves. May be repeated.
    pub fn farewell(&mut self, now: Duration) -> Option<Vec<u8>> {
        let now = self.clock.advance(now);
        self.report(now, &[], Purpose::Leaving)
    }

    fn report(&mut self, now: Duration, senders: &[Sender], purpose: Purpose) -> Option<Vec<u8>> {
        let report = self.sessions.compose(senders, self.promised(senders), purpose);
        let datagram = self.seal(&report)?;
        self.pace.sent(now, datagram.len(), !senders.is_empty(), &mut self.rng);
        Some(datagram)
    }

    /// Besides the regular reports, and not counted with them: there is one for a silence, and one in answer.
    fn report_to(&mut self, to: IpAddr, senders: &[Sender], purpose: Purpose) -> Option<Outgoing> {
        let interval = self.promised(senders);
        let (report, _) = self.sessions.compose_direct(senders, interval, purpose);
        self.counters.asked += u64::from(purpose == Purpose::Asking);
        let datagram = self.seal(&report)?;
        Some(Outgoing { to: Some(to), datagram })
    }

    fn seal(&mut self, report: &Report) -> Option<Vec<u8>> {
        let content = report.encode().ok()?;
        let datagram = self.keyring.as_ref()?.seal(&mut self.rng, &content)?;
        self.sessions.sealed(seal::tag_of(&datagram)?);
        self.counters.sent += 1;
        Some(datagram)
    }

    /// The interval that a report with these senders announces.
    fn promised(&self, senders: &[Sender]) -> Duration {
        let sending = !senders.is_empty();
        self.pace.interval(self.group_if(sending), sending)
    }

    /// A connection of this device began to send: reported at once.
    pub fn sender_started(&mut self, now: Duration) {
        let now = self.clock.advance(now);
        self.pace.started_sending(now, self.group_if(true), &mut self.rng);
    }

    /// A connection of this device has another demand.
    pub fn demand_changed(&mut self, now: Duration) {
        let now = self.clock.advance(now);
        self.pace.changed_demand(now, self.group(), &mut self.rng);
    }

    /// A connection of this device stopped sending.
    pub fn sender_stopped(&mut self, now: Duration) {
        let now = self.clock.advance(now);
        self.pace.stopped_sending(now, self.group(), &mut self.rng);
    }

    /// All devices heard, authenticated or not.
    pub fn peers(&self) -> impl Iterator<Item = Peer<'_>> {
        self.sessions.known().map(|session| Peer {
            address: session.address,
            session: session.id,
            authenticated: session.authenticated,
            age: self.clock.now.saturating_sub(session.last_heard),
            interval: session.interval,
            senders: &session.senders,
        })
    }

    /// Authenticated peers with connections to report.
    pub fn sending_devices(&self) -> usize {
        self.sessions.authenticated().filter(|s| !s.senders.is_empty()).count()
    }

    pub fn counters(&self) -> Counters {
        Counters {
            evicted: self.sessions.evicted(),
            ..self.counters
        }
    }

    /// This device's own session.
    pub fn session(&self) -> u64 {
        self.sessions.own()
    }

    /// The present interval between this device's reports.
    pub fn interval(&self) -> Duration {
        self.pace.interval(self.group(), self.pace.sending())
    }

    /// The whole group's regular reports, in percent of the airtime, as computed here.
    pub fn airtime_percent(&self) -> f64 {
        self.pace.airtime_percent(self.group())
    }

    fn group(&self) -> Group {
        self.group_if(self.pace.sending())
    }

    fn group_if(&self, sending: bool) -> Group {
        let all = self.sessions.authenticated().count() + 1;
        let sending = self.sending_devices() + usize::from(sending);
        Group {
            sending,
            idle: all - sending,
        }
    }
}

/// Longer than the longest silence that is waited for, whatever the clock shows.
const LONGEST_STEP: Duration = Duration::from_secs(2 * 60 * 60);

/// Makes a monotonic time from one that may jump.
struct Clock {
    outside: Duration,
    now: Duration,
}

impl Clock {
    fn new(now: Duration) -> Self {
        Self {
            outside: now,
            now: Duration::ZERO,
        }
    }

    fn advance(&mut self, now: Duration) -> Duration {
        self.now += now.saturating_sub(self.outside).min(LONGEST_STEP);
        self.outside = now;
        self.now
    }

    /// An inner time in the caller's terms.
    fn outside_time(&self, moment: Duration) -> Duration {
        self.outside.saturating_add(moment.saturating_sub(self.now))
    }
}
