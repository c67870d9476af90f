// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peer protocol between simulated devices in virtual time: which are authenticated, when, and why not.

use giveway_engine::model::{CaState, Class};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use giveway_engine::peers::pace::{MAX_ANNOUNCED_REPORTS, report_airtime_us};
use giveway_engine::peers::session::{CHALLENGE_AGE, MAX_AUTHENTICATED, MAX_CANDIDATES};
use giveway_engine::peers::{
    DatagramRefusal, Heard, Key, Keyring, Outgoing, PaceConfig, PeerGroup, Purpose, Report, Sender, UNLIMITED_KBIT,
};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const SECRET: [u8; 32] = [7; 32];
const INTERVAL: Duration = Duration::from_millis(500);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn key() -> Keyring {
    Keyring::new(Key::from_secret(SECRET))
}

fn key_file(secrets: &[u8]) -> Keyring {
    let lines: Vec<String> = secrets
        .iter()
        .map(|byte| Key::from_secret([*byte; 32]).reveal())
        .collect();
    Keyring::parse(&lines.join("\n")).expect("a key file")
}

fn upload() -> Sender {
    Sender {
        cwnd_segments: 43,
        min_rtt_us: 256_000,
        srtt_us: 262_144,
        queue_bytes: 500_000,
        ca_state: CaState::Open,
        delivery_rate_kbit: 1_950,
        retransmits: 17,
        class: Class::Standard,
        demand_kbit: UNLIMITED_KBIT,
    }
}

/// Every number at its longest.
fn widest() -> Sender {
    let most = u32::MAX;
    Sender {
        cwnd_segments: most,
        min_rtt_us: most,
        srtt_us: most,
        queue_bytes: most,
        delivery_rate_kbit: most,
        retransmits: most,
        demand_kbit: most - 1,
        ..upload()
    }
}

struct Device {
    hood: PeerGroup,
    /// The kernel's, from which the device draws before each step; clones may have the same.
    kernel: ChaCha20Rng,
    address: IpAddr,
    senders: Vec<Sender>,
    alive: bool,
}

impl Device {
    fn refresh(&mut self) {
        let mut random = [0; 32];
        self.kernel.fill_bytes(&mut random);
        self.hood.refresh(random, Duration::ZERO);
    }
}

/// One access point that repeats every report to everyone, at once or never.
struct Air {
    now: Duration,
    rng: ChaCha20Rng,
    devices: Vec<Device>,
    /// Of a thousand receptions.
    lost_permille: u32,
    /// Receivers that lose all broadcasts of a sender.
    deaf: Vec<(usize, usize)>,
    /// Time, sender, bytes.
    log: Vec<(Duration, usize, Vec<u8>)>,
    /// Unicast: sender and receiver.
    direct: Vec<(usize, IpAddr)>,
}

impl Air {
    fn with(devices: usize, seed: u64) -> Self {
        let mut air = Self {
            now: Duration::ZERO,
            rng: ChaCha20Rng::seed_from_u64(seed),
            devices: Vec::new(),
            lost_permille: 0,
            deaf: Vec::new(),
            log: Vec::new(),
            direct: Vec::new(),
        };
        for at in 0..devices {
            air.join(at);
        }
        air
    }

    fn join(&mut self, at: usize) -> usize {
        let hood = PeerGroup::new(self.now, &mut self.rng, Some(key()), PaceConfig::default());
        let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, at as u8 + 1));
        self.devices.push(Device {
            hood,
            kernel: ChaCha20Rng::seed_from_u64(self.rng.next_u64()),
            address,
            senders: Vec::new(),
            alive: true,
        });
        self.devices.len() - 1
    }

    /// Clones of a machine that has just started its daemon, each with its own kernel's randomness, or (`alike`) all
    /// with the same.
    fn with_copies(copies: usize, alike: bool, seed: u64) -> Self {
        let mut air = Self::with(copies, seed);
        for at in 0..copies {
            let mut of = ChaCha20Rng::seed_from_u64(seed);
            air.devices[at].hood = PeerGroup::new(Duration::ZERO, &mut of, Some(key()), PaceConfig::default());
            if alike {
                air.devices[at].kernel = ChaCha20Rng::seed_from_u64(seed);
            }
        }
        air
    }

    /// The daemon dies, and another one starts without any state.
    fn restart(&mut self, at: usize) {
        self.devices[at].hood = PeerGroup::new(self.now, &mut self.rng, Some(key()), PaceConfig::default());
    }

    fn start(&mut self, at: usize) {
        self.devices[at].senders = vec![upload()];
        self.devices[at].hood.sender_started(self.now);
    }

    fn stop(&mut self, at: usize) {
        self.devices[at].senders.clear();
        self.devices[at].hood.sender_stopped(self.now);
    }

    /// Unicast is repeated until it is acknowledged, up to seven times.
    fn send(&mut self, from: usize, report: Outgoing) {
        let Outgoing { to: one, datagram } = report;
        let attempts = if one.is_some() { 7 } else { 1 };
        for to in 0..self.devices.len() {
            let meant = one.is_none_or(|address| self.devices[to].address == address);
            let missed = (0..attempts).all(|_| self.rng.next_u32() % 1000 < self.lost_permille);
            let lost = missed || (one.is_none() && self.deaf.contains(&(to, from)));
            if meant && to != from && self.devices[to].alive && !lost {
                let address = self.devices[from].address;
                // The outcome shows in the counters and in what the device authenticates.
                let device = &mut self.devices[to];
                device.refresh();
                let _ = device.hood.receive(self.now, address, &datagram);
            }
        }
        self.direct.extend(one.map(|to| (from, to)));
        self.log.push((self.now, from, datagram));
    }

    /// Everything that happens until `end`.
    fn run_to(&mut self, end: Duration) {
        while self.step(end) {}
        self.now = end;
    }

    fn run(&mut self, span: Duration) {
        self.run_to(self.now + span);
    }

    fn step(&mut self, end: Duration) -> bool {
        let alive = self.devices.iter().enumerate().filter(|(_, device)| device.alive);
        let next = alive
            .filter_map(|(at, device)| Some((device.hood.next_deadline()?, at)))
            .min();
        let Some((moment, at)) = next.filter(|(moment, _)| *moment <= end) else {
            return false;
        };
        self.now = self.now.max(moment);
        let device = &mut self.devices[at];
        device.refresh();
        device.hood.expire(self.now);
        if let Some(report) = device.hood.poll_report(self.now, &device.senders) {
            self.send(at, report);
        }
        true
    }

    /// The time until the condition holds; fails after `limit`.
    fn until(&mut self, limit: Duration, holds: impl Fn(&Self) -> bool) -> Duration {
        let start = self.now;
        while !holds(self) {
            assert!(self.step(start + limit), "does not hold after {limit:?}");
        }
        self.now - start
    }

    fn authenticates(&self, who: usize, whom: usize) -> bool {
        let session = self.devices[whom].hood.session();
        self.devices[who]
            .hood
            .peers()
            .any(|peer| peer.session == session && peer.authenticated)
    }

    fn all_authenticate(&self) -> bool {
        let n = self.devices.len();
        (0..n).all(|who| (0..n).all(|whom| who == whom || self.authenticates(who, whom)))
    }

    fn hood(&mut self, at: usize) -> &mut PeerGroup {
        &mut self.devices[at].hood
    }

    fn reports_since(&self, since: Duration) -> Vec<Report> {
        let sealed = self.log.iter().filter(|(at, ..)| *at >= since);
        sealed
            .map(|(_, _, datagram)| {
                Report::decode(&key().open(datagram).expect("sealed with the same key")).expect("a report")
            })
            .collect()
    }
}

/// A report of a member with `session`.
fn report(session: u64, counter: u64) -> Report {
    Report {
        session,
        counter,
        challenge: session ^ 1,
        interval_ms: 500,
        purpose: Purpose::Telling,
        challenged: vec![],
        responses: vec![],
        senders: vec![],
    }
}

fn sealed(report: &Report, rng: &mut ChaCha20Rng) -> Vec<u8> {
    key().seal(rng, &report.encode().expect("a report")).expect("it fits")
}

/// The challenge in a device's next report.
fn challenge_of(hood: &mut PeerGroup, now: Duration) -> u64 {
    let datagram = hood.farewell(now).expect("a key");
    Report::decode(&key().open(&datagram).expect("sealed with the same key"))
        .expect("a report")
        .challenge
}

#[test]
fn two_devices_authenticate_each_other_within_two_intervals() {
    for seed in 0..100 {
        let mut air = Air::with(2, seed);
        air.until(2 * INTERVAL + INTERVAL / 4, Air::all_authenticate);
    }
}

#[test]
fn a_group_that_starts_together_authenticates_within_three_intervals() {
    let mut air = Air::with(8, 1);
    let took = air.until(3 * INTERVAL, Air::all_authenticate);
    println!("8 devices authenticate each other after {took:?}");
}

#[test]
fn a_settled_group_sends_no_challenges_or_responses() {
    let mut air = Air::with(8, 2);
    (0..8).for_each(|at| air.start(at));
    air.run(ms(30_000));
    let reports = air.reports_since(ms(10_000));
    assert!(reports.len() > 100);
    assert!(
        reports
            .iter()
            .all(|report| report.responses.is_empty() && report.challenged.is_empty())
    );
}

#[test]
fn a_start_and_a_stop_are_reported_at_once() {
    let mut air = Air::with(3, 3);
    air.run(ms(20_000));
    air.start(0);
    assert_eq!(
        air.until(ms(1), |air| air.devices[1].hood.sending_devices() == 1),
        ms(0)
    );
    air.run(ms(10_000));
    air.stop(0);
    assert_eq!(
        air.until(ms(1), |air| air.devices[1].hood.sending_devices() == 0),
        ms(0)
    );
}

#[test]
fn a_start_survives_the_loss_of_its_first_report() {
    let mut air = Air::with(2, 4);
    air.run(ms(20_000));
    air.deaf = vec![(1, 0)];
    air.start(0);
    air.step(ms(20_000));
    air.deaf.clear();
    let took = air.until(ms(200), |air| air.devices[1].hood.sending_devices() == 1);
    assert!(took >= ms(80));
}

#[test]
fn a_new_sender_counts_within_two_intervals() {
    for seed in 0..50 {
        let mut air = Air::with(8, seed);
        air.run(ms(20_000));
        let newcomer = air.join(8);
        air.start(newcomer);
        // The eight are idle: they hurry because the newcomer waits for its response.
        air.until(2 * INTERVAL, |air| {
            (0..8).all(|at| air.devices[at].hood.sending_devices() == 1)
        });
    }
}

#[test]
fn a_restart_authenticates_again_and_replaces_the_old_session() {
    for seed in 0..50 {
        let mut air = Air::with(2, seed);
        (0..2).for_each(|at| air.start(at));
        air.run(ms(20_000));
        air.restart(0);
        air.until(2 * INTERVAL + INTERVAL / 4, Air::all_authenticate);
        // Well before the old session's six intervals of silence.
        air.until(2 * INTERVAL, |air| air.devices[1].hood.peers().count() == 1);
        assert_eq!(air.devices[1].hood.counters().expired, 0);
    }
}

#[test]
fn a_replay_to_a_restarted_device_is_refused() {
    let mut air = Air::with(2, 5);
    air.start(1);
    air.run(ms(60_000));
    let recorded: Vec<_> = air
        .log
        .iter()
        .filter(|(_, from, _)| *from == 1)
        .map(|(.., bytes)| bytes.clone())
        .collect();
    air.devices[1].alive = false;
    air.restart(0);
    let (now, address) = (air.now, air.devices[1].address);
    for datagram in &recorded {
        assert_eq!(
            air.hood(0).receive(now, address, datagram),
            Err(DatagramRefusal::Unauthenticated)
        );
    }
    assert_eq!(air.hood(0).sending_devices(), 0);
    assert_eq!(air.hood(0).counters().unauthenticated, recorded.len() as u64);
    // Not even when the replays are repeated while the device answers their challenge.
    air.run(ms(2_000));
    let now = air.now;
    let outcomes: Vec<_> = recorded
        .iter()
        .map(|bytes| air.hood(0).receive(now, address, bytes))
        .collect();
    assert!(
        outcomes
            .iter()
            .all(|outcome| *outcome == Err(DatagramRefusal::Replayed))
    );
}

#[test]
fn a_replay_does_not_revive_an_expired_peer() {
    let mut air = Air::with(2, 6);
    air.start(1);
    air.run(ms(20_000));
    // The attacker withholds reports that the device never heard.
    air.deaf = vec![(0, 1)];
    air.run(ms(1_000));
    air.devices[1].alive = false;
    air.run(ms(10_000));
    assert_eq!(air.hood(0).peers().count(), 0);
    let (now, address, log) = (air.now, air.devices[1].address, air.log.clone());
    for (.., datagram) in log.iter().filter(|(_, from, _)| *from == 1) {
        assert_eq!(
            air.hood(0).receive(now, address, datagram),
            Err(DatagramRefusal::Unauthenticated)
        );
    }
    assert_eq!(air.hood(0).sending_devices(), 0);
}

#[test]
fn a_late_report_is_stale_and_a_repeated_one_replayed() {
    let mut air = Air::with(2, 7);
    air.start(1);
    air.run(ms(10_000));
    air.deaf = vec![(0, 1)];
    let heard = air.log.len();
    air.run(ms(1_500));
    let (now, address) = (air.now, air.devices[1].address);
    let late: Vec<_> = air.log[heard..]
        .iter()
        .filter(|(_, from, _)| *from == 1)
        .map(|(.., b)| b.clone())
        .collect();
    let [first, .., last] = late.as_slice() else {
        panic!("too few reports")
    };
    assert_eq!(air.hood(0).receive(now, address, last), Ok(Heard::Updated));
    assert_eq!(air.hood(0).receive(now, address, first), Err(DatagramRefusal::Stale));
    assert_eq!(air.hood(0).receive(now, address, first), Err(DatagramRefusal::Replayed));
}

#[test]
fn a_device_ignores_its_own_reports() {
    let mut air = Air::with(1, 8);
    air.run(ms(1_000));
    let (now, address, datagram) = (air.now, air.devices[0].address, air.log[0].2.clone());
    assert_eq!(
        air.hood(0).receive(now, address, &datagram),
        Err(DatagramRefusal::OwnEcho)
    );
    assert_eq!(air.hood(0).peers().count(), 0);
}

#[test]
fn a_lost_response_is_requested_again() {
    let mut air = Air::with(2, 9);
    (0..2).for_each(|at| air.start(at));
    // Device 1 hears the other's first report only: the unsolicited responses are lost.
    air.until(ms(1_000), |air| air.devices[1].hood.peers().count() == 1);
    air.deaf = vec![(1, 0)];
    air.run(ms(2_500));
    assert!(!air.authenticates(1, 0) && air.authenticates(0, 1));
    air.deaf.clear();
    air.until(2 * INTERVAL + INTERVAL / 4, Air::all_authenticate);
}

#[test]
fn all_devices_count_the_same_despite_loss_and_restarts() {
    for devices in [2, 5, 16] {
        let mut air = Air::with(devices, devices as u64);
        air.lost_permille = 150;
        (0..devices).filter(|at| at % 2 == 0).for_each(|at| air.start(at));
        air.run(ms(30_000));
        air.restart(0);
        air.start(0);
        air.run(ms(60_000));
        air.lost_permille = 0;
        air.run(ms(60_000));
        let sending = devices.div_ceil(2);
        for at in 0..devices {
            assert_eq!(
                air.hood(at).sending_devices(),
                sending - usize::from(at % 2 == 0),
                "{at} of {devices}"
            );
        }
    }
}

#[test]
fn reports_stay_below_one_percent_of_the_airtime() {
    for devices in [2, 8, 32] {
        let mut air = Air::with(devices, 10);
        (0..devices).for_each(|at| air.start(at));
        air.run(ms(20_000));
        let since = air.now;
        air.run(ms(120_000));
        let config = PaceConfig::default();
        let reports = air.log.iter().filter(|(at, ..)| *at >= since);
        let used_us: f64 = reports
            .map(|(.., bytes)| report_airtime_us(bytes.len() as f64, &config))
            .sum();
        let percent = used_us / 120e6 * 100.0;
        println!(
            "{devices} devices: {percent:.2}% of the air time, interval {:?}",
            air.hood(0).interval()
        );
        assert!(percent < 1.0, "{devices} devices use {percent}%");
    }
}

#[test]
fn restarts_of_a_group_stay_below_one_percent_after_the_first_second() {
    let mut air = Air::with(32, 11);
    air.run(ms(30_000));
    (0..32).for_each(|at| air.restart(at));
    let since = air.now;
    air.run(ms(60_000));
    let config = PaceConfig::default();
    let used_us = |from: Duration, to: Duration| -> f64 {
        let reports = air.log.iter().filter(|(at, ..)| (from..to).contains(at));
        reports
            .map(|(.., bytes)| report_airtime_us(bytes.len() as f64, &config))
            .sum()
    };
    let first = used_us(since, since + ms(1_000)) / 1e6 * 100.0;
    let later = used_us(since + ms(1_000), since + ms(60_000)) / 59e6 * 100.0;
    println!("32 restarts: {first:.2}% in the first second, {later:.2}% in the 59 after it");
    assert!(later < 1.0);
}

#[test]
fn a_key_change_keeps_all_peers() {
    let mut air = Air::with(2, 12);
    (0..2).for_each(|at| air.start(at));
    air.run(ms(10_000));
    for step in [[7, 9].as_slice(), &[9, 7], &[9]] {
        for at in 0..2 {
            air.hood(at).set_keyring(Some(key_file(step)));
            air.run(ms(5_000));
            assert!(air.all_authenticate());
        }
    }
    for at in 0..2 {
        let counters = air.hood(at).counters();
        assert_eq!((counters.expired, counters.unknown_key), (0, 0));
    }
}

#[test]
fn without_a_key_a_device_neither_sends_nor_receives() {
    let mut rng = ChaCha20Rng::seed_from_u64(13);
    let mut alone = PeerGroup::new(ms(0), &mut rng, None, PaceConfig::default());
    alone.sender_started(ms(0));
    assert_eq!(alone.next_deadline(), None);
    assert_eq!(alone.poll_report(ms(10_000), &[upload()]), None);
    let datagram = sealed(&report(1, 1), &mut rng);
    assert_eq!(
        alone.receive(ms(0), IpAddr::V4(Ipv4Addr::LOCALHOST), &datagram),
        Err(DatagramRefusal::UnknownKey)
    );
}

#[test]
fn a_peer_expires_after_six_of_its_own_intervals() {
    let mut air = Air::with(2, 14);
    (0..2).for_each(|at| air.start(at));
    air.run(ms(20_000));
    air.devices[1].alive = false;
    let last = air.log.iter().rev().find(|(_, from, _)| *from == 1).unwrap().0;
    air.run_to(last + 6 * INTERVAL);
    assert_eq!(air.hood(0).sending_devices(), 1);
    let took = air.until(INTERVAL, |air| air.devices[0].hood.sending_devices() == 0);
    assert!(took <= INTERVAL / 2 + ms(1));
    assert_eq!(air.hood(0).counters().expired, 1);
}

#[test]
fn a_peer_with_lost_broadcasts_is_asked_directly_and_stays() {
    let mut air = Air::with(3, 20);
    (0..3).for_each(|at| air.start(at));
    air.run(ms(5_000));
    air.deaf = vec![(0, 1)];
    air.run(ms(60_000));
    assert!(air.authenticates(0, 1));
    let asked = air.hood(0).counters().asked;
    // Each answer starts a new silence: one question every four and a half intervals.
    assert!((20..=30).contains(&asked), "{asked}");
    assert_eq!(air.hood(2).counters().asked, 0);
}

#[test]
fn an_expired_peer_was_asked_once() {
    let mut air = Air::with(2, 21);
    (0..2).for_each(|at| air.start(at));
    air.run(ms(5_000));
    air.devices[1].alive = false;
    air.until(7 * INTERVAL, |air| !air.authenticates(0, 1));
    assert_eq!(air.hood(0).counters().asked, 1);
}

#[test]
fn only_authenticated_peers_are_answered_directly() {
    let mut air = Air::with(1, 22);
    air.run(ms(5_000));
    let mut rng = ChaCha20Rng::seed_from_u64(23);
    let question = Report {
        purpose: Purpose::Asking,
        ..report(9, 1)
    };
    let (now, datagram) = (air.now, sealed(&question, &mut rng));
    let stranger = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
    assert_eq!(
        air.hood(0).receive(now, stranger, &datagram),
        Err(DatagramRefusal::Unauthenticated)
    );
    air.run(ms(5_000));
    assert!(air.hood(0).counters().sent > 0);
    assert!(air.direct.is_empty());
}

#[test]
fn a_member_is_answered_at_most_twenty_times_a_second() {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let mut hood = PeerGroup::new(ms(0), &mut rng, Some(key()), PaceConfig::default());
    let response = challenge_of(&mut hood, ms(500));
    let mut answers = 0;
    for counter in 1..=1000 {
        let now = ms(1000 + counter);
        let asking = Report {
            purpose: Purpose::Asking,
            responses: vec![response],
            ..report(7, counter)
        };
        hood.receive(now, IpAddr::V4(Ipv4Addr::LOCALHOST), &sealed(&asking, &mut rng))
            .unwrap();
        while let Some(outgoing) = hood.poll_report(now, &[]) {
            answers += u32::from(outgoing.to.is_some());
        }
    }
    assert_eq!(answers, 20);
}

#[test]
fn an_hour_of_losses_expires_no_peer() {
    for lost_permille in [100, 150, 200, 250] {
        let mut air = Air::with(8, 24);
        (0..8).for_each(|at| air.start(at));
        air.run(ms(20_000));
        air.lost_permille = lost_permille;
        air.log.clear();
        let since = air.now;
        air.run(ms(3_600_000));
        let sum = |of: fn(&Device) -> u64| air.devices.iter().map(of).sum::<u64>();
        let (asked, expired) = (
            sum(|device| device.hood.counters().asked),
            sum(|device| device.hood.counters().expired),
        );
        let config = PaceConfig::default();
        let used_us: f64 = air
            .log
            .iter()
            .map(|(.., bytes)| report_airtime_us(bytes.len() as f64, &config))
            .sum();
        let percent = used_us / (air.now - since).as_micros() as f64 * 100.0;
        println!("{lost_permille} of 1000 lost: {expired} expired, {asked} asked, {percent:.2}% of the air");
        assert_eq!(expired, 0);
        assert!(percent < 1.0);
    }
}

#[test]
fn a_leaving_peer_is_removed_at_once_and_not_revived_by_late_reports() {
    let mut air = Air::with(2, 15);
    air.start(1);
    air.run(ms(10_000));
    let (now, address) = (air.now, air.devices[1].address);
    let late = {
        air.deaf = vec![(0, 1)];
        air.run(ms(1_000));
        air.log.iter().rev().find(|(_, from, _)| *from == 1).unwrap().2.clone()
    };
    let goodbye = air.hood(1).farewell(now).unwrap();
    assert_eq!(air.hood(0).receive(now, address, &goodbye), Ok(Heard::Left));
    assert_eq!(air.hood(0).peers().count(), 0);
    assert_eq!(
        air.hood(0).receive(now, address, &late),
        Err(DatagramRefusal::Unauthenticated)
    );
    assert_eq!(air.hood(0).sending_devices(), 0);
}

#[test]
fn a_clock_jump_backwards_keeps_peers_and_reports() {
    let mut air = Air::with(2, 16);
    (0..2).for_each(|at| air.start(at));
    air.run(ms(20_000));
    let senders = air.devices[0].senders.clone();
    let hood = air.hood(0);
    assert!(hood.expire(ms(5)).is_empty());
    let due = hood.next_deadline().unwrap();
    assert!(due <= ms(5) + 2 * INTERVAL, "{due:?}");
    assert!(hood.poll_report(due, &senders).is_some() || hood.expire(due).is_empty());
    assert_eq!(hood.sending_devices(), 1);
}

#[test]
fn a_clock_jump_forwards_expires_peers_and_recovers() {
    let mut air = Air::with(2, 17);
    air.run(ms(20_000));
    let end = Duration::MAX;
    assert_eq!(air.hood(0).expire(end).len(), 1);
    assert!(air.hood(0).poll_report(end, &[]).is_some());
    assert!(air.hood(0).next_deadline().is_some());
    air.hood(0).sender_started(end);
    assert!(air.hood(0).poll_report(end, &[upload()]).is_some());
    // Back in step with the others.
    air.run(ms(1));
    air.until(ms(20_000), Air::all_authenticate);
}

#[test]
fn the_sixty_fifth_peer_evicts_an_idle_one() {
    let mut rng = ChaCha20Rng::seed_from_u64(18);
    let mut hood = PeerGroup::new(ms(0), &mut rng, Some(key()), PaceConfig::default());
    let challenge = challenge_of(&mut hood, ms(0));
    for number in 0..=MAX_AUTHENTICATED as u64 {
        let senders = if number == 5 { vec![] } else { vec![upload()] };
        let member = Report {
            responses: vec![challenge],
            senders,
            ..report(1000 + number, 1)
        };
        let address = IpAddr::V4(Ipv4Addr::from(number as u32));
        assert_eq!(
            hood.receive(ms(number), address, &sealed(&member, &mut rng)),
            Ok(Heard::Joined)
        );
    }
    assert_eq!(
        hood.peers().filter(|peer| peer.authenticated).count(),
        MAX_AUTHENTICATED
    );
    assert!(hood.peers().all(|peer| peer.session != 1005));
    assert_eq!(hood.counters().evicted, 1);
    // A forgotten device has to authenticate again.
    let forgotten = Report {
        responses: vec![challenge],
        ..report(1005, 2)
    };
    let address = IpAddr::V4(Ipv4Addr::from(5));
    assert_eq!(
        hood.receive(ms(99), address, &sealed(&forgotten, &mut rng)),
        Err(DatagramRefusal::Unauthenticated)
    );
}

#[test]
fn made_up_sessions_fill_no_memory_and_evict_nobody() {
    let mut air = Air::with(2, 19);
    air.start(1);
    air.run(ms(10_000));
    let mut rng = ChaCha20Rng::seed_from_u64(20);
    let (now, address) = (air.now, air.devices[1].address);
    for number in 0..10_000 {
        let stranger = Report {
            senders: vec![upload(); 16],
            ..report(number, 1)
        };
        assert_eq!(
            air.hood(0).receive(now, address, &sealed(&stranger, &mut rng)),
            Err(DatagramRefusal::Unauthenticated)
        );
    }
    assert_eq!(air.hood(0).peers().count(), 1 + MAX_CANDIDATES);
    assert_eq!(air.hood(0).sending_devices(), 1);
    let due = air.hood(0).next_deadline().unwrap();
    assert!(air.hood(0).poll_report(due, &[widest(); 20]).unwrap().datagram.len() <= 512);
}

#[test]
fn a_forged_source_address_evicts_nobody() {
    let mut air = Air::with(3, 21);
    (0..3).for_each(|at| air.start(at));
    air.run(ms(10_000));
    // Relayed without the key: device 2's new session appears at device 1's address.
    air.restart(2);
    air.devices[2].address = air.devices[1].address;
    air.run(ms(3_000));
    assert!(air.authenticates(0, 1) && air.authenticates(0, 2));
}

#[test]
fn reports_are_small_and_within_the_limit() {
    let rng = &mut ChaCha20Rng::seed_from_u64(22);
    let length = |report: &Report, rng: &mut ChaCha20Rng| sealed(report, rng).len();
    let one = Report {
        senders: vec![upload()],
        ..report(u64::MAX, 10_000)
    };
    let largest = Report {
        senders: vec![widest()],
        interval_ms: 600_000,
        ..report(u64::MAX, u64::MAX)
    };
    let (typical, most) = (length(&one, rng), length(&largest, rng));
    println!(
        "one sender: {typical} bytes, at most {most}; idle {}",
        length(&report(1, 10_000), rng)
    );
    assert!(typical <= 92 && most <= 130);

    let mut hood = PeerGroup::new(ms(0), rng, Some(key()), PaceConfig::default());
    for session in 0..100 {
        let stranger = report(session, 1);
        let _ = hood.receive(ms(0), IpAddr::V4(Ipv4Addr::LOCALHOST), &sealed(&stranger, rng));
    }
    for senders in [[upload(); 40], [widest(); 40]] {
        let due = hood.next_deadline().unwrap();
        let datagram = hood.poll_report(due, &senders).unwrap().datagram;
        let told = Report::decode(&key().open(&datagram).unwrap()).unwrap();
        assert!(datagram.len() <= 512 && told.senders.len() >= 10 && told.responses.len() >= 2);
    }
}

#[test]
fn each_start_is_announced_repeatedly() {
    let mut air = Air::with(2, 23);
    air.run(ms(20_000));
    let before = air.log.len();
    air.start(0);
    air.run(ms(400));
    air.stop(0);
    air.run(ms(400));
    assert_eq!(air.log.len() - before, MAX_ANNOUNCED_REPORTS);
}

#[test]
fn a_key_file_has_one_or_two_keys_and_errors_reveal_nothing() {
    use giveway_engine::peers::KeyError;
    let line = Key::from_secret([0xab; 32]).reveal();
    assert_eq!(line, format!("giveway-key-1:{}", "ab".repeat(32)));
    let error = |text: &str| Keyring::parse(text).unwrap_err();
    assert_eq!(error("# nothing\n\n"), KeyError::NoKey);
    assert_eq!(error("secret"), KeyError::Prefix { line: 1 });
    assert_eq!(
        error(&format!("\n{}", &line[..40])),
        KeyError::Length { line: 2, digits: 26 }
    );
    assert_eq!(
        error(&line.replace("abab", "ab+b")),
        KeyError::Digit { line: 1, place: 3 }
    );
    assert_eq!(error(&format!("{line}\n{line}")), KeyError::Twice { line: 2 });
    let three: Vec<String> = (1..=3).map(|byte| Key::from_secret([byte; 32]).reveal()).collect();
    assert_eq!(error(&three.join("\n")), KeyError::TooMany { line: 3 });
    let keyring = Keyring::parse(&line).unwrap();
    assert!(!format!("{keyring:?}").contains("abab"));
}

fn nonce_of(datagram: &[u8]) -> Vec<u8> {
    datagram[8..32].to_vec()
}

#[test]
fn clones_never_seal_two_contents_under_one_nonce() {
    let mut air = Air::with_copies(2, true, 30);
    // They hear nothing of each other, as on two links of one group, and have different reports.
    air.deaf = vec![(0, 1), (1, 0)];
    (0..2).for_each(|at| air.start(at));
    air.devices[1].senders = vec![widest()];
    air.run(ms(30_000));
    let mut contents: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let (mut nonces, mut reused) = (0, 0);
    for (.., datagram) in &air.log {
        let content = key().open(datagram).unwrap();
        nonces += 1;
        if let Some(other) = contents.insert(nonce_of(datagram), content.clone()) {
            reused += u32::from(other != content);
        }
    }
    println!("{nonces} reports, {reused} of them under the nonce of another content");
    assert!(nonces > 60);
    assert_eq!(reused, 0);
}

#[test]
fn clones_begin_their_own_sessions_and_count_separately() {
    for alike in [false, true] {
        for copies in [2, 3, 5] {
            let mut air = Air::with_copies(copies, alike, copies as u64);
            let third = air.join(copies);
            (0..copies).for_each(|at| air.start(at));
            // Each clone begins a new session for each round in which two have drawn the same.
            air.until(ms(60_000), |air| {
                air.all_authenticate() && air.devices[third].hood.sending_devices() == copies
            });
            let copied: u64 = (0..copies).map(|at| air.hood(at).counters().copied).sum();
            println!(
                "{copies} copies, alike: {alike}: a third counts them after {:?}, {copied} begun anew",
                air.now
            );
            assert!(copied >= copies as u64 - 1);
        }
    }
}

#[test]
fn a_machine_restored_from_a_snapshot_is_authenticated_again() {
    let mut air = Air::with(2, 31);
    air.run(ms(10_000));
    let saved = 41;
    let mut of = ChaCha20Rng::seed_from_u64(saved);
    air.devices[1].hood = PeerGroup::new(air.now, &mut of, Some(key()), PaceConfig::default());
    air.run(ms(60_000));
    // The same again, as from a snapshot.
    let mut of = ChaCha20Rng::seed_from_u64(saved);
    air.devices[1].hood = PeerGroup::new(air.now, &mut of, Some(key()), PaceConfig::default());
    air.until(ms(60_000), Air::all_authenticate);
}

#[test]
fn replayed_own_reports_begin_no_new_session() {
    let mut air = Air::with(2, 32);
    air.start(0);
    air.run(ms(120_000));
    let own: Vec<_> = air
        .log
        .iter()
        .filter(|(_, from, _)| *from == 0)
        .map(|(.., b)| b.clone())
        .collect();
    assert!(own.len() > 200);
    let (now, address, session) = (air.now, air.devices[1].address, air.hood(0).session());
    for datagram in &own {
        assert_eq!(
            air.hood(0).receive(now, address, datagram),
            Err(DatagramRefusal::OwnEcho)
        );
    }
    assert_eq!(air.hood(0).session(), session);
}

#[test]
fn a_member_imitating_a_clone_causes_a_new_session_every_five_seconds_at_most() {
    let mut rng = ChaCha20Rng::seed_from_u64(33);
    let mut hood = PeerGroup::new(ms(0), &mut rng, Some(key()), PaceConfig::default());
    let mut begun = 0;
    for counter in 1..=1000 {
        let played = report(hood.session(), 1000 + counter);
        let outcome = hood.receive(
            ms(counter * 60),
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            &sealed(&played, &mut rng),
        );
        begun += u32::from(outcome == Err(DatagramRefusal::Copied));
    }
    assert_eq!(begun, 12);
}

/// Reports of a device that hears the other one, received by the attacker alone.
fn withheld(air: &mut Air) -> Vec<Vec<u8>> {
    air.deaf = vec![(0, 1)];
    air.start(1);
    air.run(ms(600_000));
    air.devices[1].alive = false;
    let of_device = air.log.iter().filter(|(_, from, _)| *from == 1);
    of_device.map(|(.., bytes)| bytes.clone()).collect()
}

/// How many are accepted.
fn play(air: &mut Air, recorded: &[Vec<u8>]) -> usize {
    let (now, address) = (air.now, air.devices[1].address);
    let heard = recorded.iter().map(|bytes| air.hood(0).receive(now, address, bytes));
    heard.filter(Result::is_ok).count()
}

#[test]
fn withheld_reports_are_refused_after_a_change_of_the_challenge() {
    for silence in [2 * CHALLENGE_AGE, Duration::from_secs(86_400)] {
        let mut air = Air::with(2, 34);
        let recorded = withheld(&mut air);
        air.run(silence);
        let accepted = play(&mut air, &recorded);
        println!(
            "{accepted} of {} recorded reports accepted {silence:?} later",
            recorded.len()
        );
        assert_eq!(accepted, 0);
        assert_eq!(air.hood(0).sending_devices(), 0);
    }
}

#[test]
fn a_response_to_the_previous_challenge_is_accepted() {
    let mut rng = ChaCha20Rng::seed_from_u64(35);
    let mut hood = PeerGroup::new(ms(0), &mut rng, Some(key()), PaceConfig::default());
    let heard = challenge_of(&mut hood, CHALLENGE_AGE - ms(1));
    let answer = |session, counter| Report {
        responses: vec![heard],
        ..report(session, counter)
    };
    let late = 2 * CHALLENGE_AGE - ms(1);
    let mut hears = |at: Duration, of: &Report| {
        // As often as any device reports.
        let _ = hood.poll_report(at, &[]);
        hood.receive(at, IpAddr::V4(Ipv4Addr::LOCALHOST), &sealed(of, &mut rng))
    };
    assert_eq!(hears(CHALLENGE_AGE + ms(1), &answer(1, 1)), Ok(Heard::Joined));
    assert_eq!(hears(late, &answer(2, 1)), Ok(Heard::Joined));
    assert_eq!(
        hears(late + ms(10), &answer(3, 1)),
        Err(DatagramRefusal::Unauthenticated)
    );
}

#[test]
fn reports_from_before_a_clock_jump_or_a_sleep_do_not_count() {
    for slept in [Duration::ZERO, Duration::from_secs(3_600)] {
        let mut rng = ChaCha20Rng::seed_from_u64(36);
        let mut hood = PeerGroup::new(ms(0), &mut rng, Some(key()), PaceConfig::default());
        let heard = challenge_of(&mut hood, ms(500));
        let now = if slept.is_zero() {
            Duration::from_secs(86_400)
        } else {
            ms(600)
        };
        let withheld = Report {
            responses: vec![heard],
            ..report(1, 1)
        };
        hood.refresh([1; 32], slept);
        let outcome = hood.receive(now, IpAddr::V4(Ipv4Addr::LOCALHOST), &sealed(&withheld, &mut rng));
        assert_eq!(outcome, Err(DatagramRefusal::Unauthenticated), "slept {slept:?}");
    }
}
