// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cost of datagrams: a refused one causes no decision, and a report only one if it changes the senders.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::routes::medium;
use super::*;
use crate::class::Activity;
use crate::config::{Cap, CapPolicyName};
use crate::model::{Choice, Class, Limit, ProcessId, Rates};
use crate::peers::{Key, Report};
use crate::share::Limits;
use crate::share::Member;
use crate::share::limiter::Limiter;
use crate::share::{Link, SharePolicy};
use crate::sockets::setting::Wish;

const SENDERS: u64 = 1000;
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// A policy that counts its calls.
struct Counting(Box<dyn SharePolicy>, Arc<AtomicUsize>);

impl SharePolicy for Counting {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn allot(&mut self, now: Duration, link: &Link<'_>, members: &[Member]) -> Vec<Limits> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.allot(now, link, members)
    }

    fn newcomer<'a>(&'a self, link: &Link<'_>) -> Box<dyn Fn(Duration) -> Limits + 'a> {
        self.0.newcomer(link)
    }

    fn reason(&self, link: &Link<'_>, rtt: Duration) -> String {
        self.0.reason(link, rtt)
    }
}

fn member(seed: u8, secret: u8) -> Network {
    member_with(seed, secret, &Config::default())
}

fn member_with(seed: u8, secret: u8, config: &Config) -> Network {
    let setup = Setup {
        seed: [seed; 32],
        keys: Some(Keyring::new(Key::from_secret([secret; 32]))),
        rtt_resolution: vec![Duration::from_millis(1)],
        background: Means::default(),
        dry_run: false,
        backends: Backends::none(),
    };
    let mut engine = Network::new(Duration::ZERO, config, setup);
    engine.step(Duration::ZERO, Input::Interface(Some(interface(2))));
    engine
}

fn sends(engine: &mut Network, now: Duration, connections: u64) {
    let flow = |cookie| Flow {
        cookie: Cookie(cookie),
        ..upload()
    };
    for _ in 0..2 {
        let flows = (0..connections).map(flow).collect();
        engine.step(
            now,
            Input::Poll {
                flows,
                complete: true,
                queues: Default::default(),
            },
        );
    }
}

fn reports(actions: Vec<Action>) -> Vec<Vec<u8>> {
    let report = |action| match action {
        Action::Report(report) => Some(report.datagram),
        _ => None,
    };
    actions.into_iter().filter_map(report).collect()
}

/// A device with many senders, and an authenticated peer with none.
struct Pair {
    now: Duration,
    device: Network,
    peer: Network,
    /// All reports of the peer.
    heard: Vec<Vec<u8>>,
    asked: Arc<AtomicUsize>,
}

impl Pair {
    fn new() -> Self {
        let config = Config {
            cap: Cap {
                capacity_mbit: Some(20.0),
                ..Cap::default()
            },
            ..Config::default()
        };
        let (mut device, asked) = (member_with(1, 7, &config), Arc::new(AtomicUsize::new(0)));
        let policy = Box::new(Counting(crate::share::from_config(&config), asked.clone()));
        device.limiter = Limiter::new(policy, vec![Duration::from_millis(1)]);
        let mut pair = Self {
            now: Duration::ZERO,
            device,
            peer: member(2, 7),
            heard: Vec::new(),
            asked,
        };
        sends(&mut pair.device, Duration::ZERO, SENDERS);
        while !pair.device.peer_group.peers().any(|peer| peer.authenticated) {
            pair.poll_time(10);
        }
        pair
    }

    /// Both get their ticks, and receive each other's reports.
    fn poll_time(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        for report in reports(self.device.step(self.now, Input::Tick)) {
            let heard = Input::Peers(crate::peers::Input::Datagram {
                from: PEER,
                bytes: &report,
            });
            self.peer.step(self.now, heard);
        }
        for report in reports(self.peer.step(self.now, Input::Tick)) {
            self.hear(&report);
            self.heard.push(report);
        }
    }

    /// The actions after a datagram, and the calls of the policy for it.
    fn hear(&mut self, bytes: &[u8]) -> (Vec<Action>, usize) {
        let before = self.asked.load(Ordering::Relaxed);
        let from = PEER;
        let actions = self
            .device
            .step(self.now, Input::Peers(crate::peers::Input::Datagram { from, bytes }));
        (actions, self.asked.load(Ordering::Relaxed) - before)
    }

    /// One of each refused kind.
    fn refused(&mut self) -> Vec<(&'static str, Vec<u8>)> {
        let recorded = self.heard[0].clone();
        let with = |at: usize, byte: u8| {
            let mut datagram = recorded.clone();
            datagram[at] = byte;
            datagram
        };
        let [broken, older, future] = [with(40, !recorded[40]), with(3, 1), with(3, 99)];
        let later = Duration::from_secs(60);
        let stranger = reports(member(3, 7).step(later, Input::Tick)).remove(0);
        let foreign = reports(member(4, 8).step(later, Input::Tick)).remove(0);
        let own = reports(self.device.step(later, Input::Tick)).remove(0);
        vec![
            ("eight bytes", vec![0; 8]),
            ("no magic", vec![0xff; 512]),
            ("a broken seal", broken),
            (
                "a broken seal of the greatest length",
                [recorded.clone(), vec![1; 512]].concat()[..512].to_vec(),
            ),
            ("an older version", older),
            ("a future version", future),
            ("another group's", foreign),
            ("a replay", recorded),
            ("a stranger's, not authenticated", stranger),
            ("its own", own),
        ]
    }
}

#[test]
fn a_refused_datagram_causes_no_decision() {
    let mut pair = Pair::new();
    let refused = pair.refused();
    pair.now += Duration::from_secs(60);
    let received = pair.device.peer_group.counters().received;
    for (what, datagram) in &refused {
        let (actions, asked) = pair.hear(datagram);
        assert!(
            actions.is_empty() && asked == 0,
            "{what}: asked {asked} times, {actions:?}"
        );
    }
    let counters = pair.device.peer_group.counters();
    assert_eq!(counters.received, received, "{counters:?}");
    assert_eq!(counters.older_version, 1);
    assert_eq!(pair.device.status(pair.now).reports.older, Some(PEER));
}

#[test]
fn a_report_causes_a_decision_only_if_it_changes_the_senders() {
    let mut pair = Pair::new();
    pair.poll_time(1000);
    let before = pair.asked.load(Ordering::Relaxed);
    (0..100).for_each(|_| pair.poll_time(1000));
    assert!(pair.heard.len() > 15, "{} reports", pair.heard.len());
    assert_eq!(pair.asked.load(Ordering::Relaxed), before);
    sends(&mut pair.peer, pair.now, 1);
    (0..10).for_each(|_| pair.poll_time(50));
    assert_eq!(pair.asked.load(Ordering::Relaxed), before + 1);
    assert_eq!(pair.device.status(pair.now).policy.senders, 2);
}

/// Everything that a user without rights can cause by requests, with the outcomes of the resulting actions.
fn requests_of_a_user(n: u64) -> Vec<Input<'static>> {
    let process = ProcessId {
        pid: 4_711,
        start_ns: n,
    };
    let choice = Choice {
        class: Some(if n.is_multiple_of(2) {
            Class::Background
        } else {
            Class::Bulk
        }),
        uid: 1000,
        limit: None,
    };
    let limit = Limit {
        number: 1,
        rates: Rates {
            up: Some(1_000 + n),
            down: None,
        },
        class: Class::Standard,
    };
    let active = Activity {
        uid: 1000,
        seat: None,
        cgroup: format!("/user.slice/{n}"),
    };
    let taken_over = (Cookie(1), Setting::Cap, Value::Number(n));
    vec![
        Input::Class(crate::class::Input::Chosen { process, choice }),
        by_hand::set(vec![by_hand::of_flow(1000, choice.class)]),
        Input::Class(crate::class::Input::CommandLimits(vec![limit])),
        Input::Class(crate::class::Input::Active(vec![active])),
        Input::Class(crate::class::Input::Processes(Vec::new())),
        Input::Sockets(crate::sockets::Input::Datagrams(Vec::new())),
        Input::Enforcement(crate::enforcement::Input::Elsewhere(Vec::new())),
        Input::Class(crate::class::Input::Forwarding([n].into())),
        Input::Identified {
            processes: vec![(process, None)],
            cgroups: vec![(n, None)],
        },
        Input::Nice(crate::background::nice::Input::Outcome {
            process,
            outcome: Err("it has ended".to_owned()),
        }),
        Input::Nice(crate::background::nice::Input::Taken(vec![(
            process,
            1,
            "nice 0".to_owned(),
        )])),
        Input::Sockets(crate::sockets::Input::Outcomes(vec![(
            Cookie(1),
            Setting::Cap,
            Outcome::Gone,
        )])),
        Input::Sockets(crate::sockets::Input::TakenOver(vec![taken_over])),
        Input::Sockets(crate::sockets::Input::CappedAtConnect(vec![(Cookie(n), 4)])),
        Input::Queue(crate::queue::Input::Outcome {
            ifindex: 2,
            outcome: Ok(()),
        }),
        Input::Downlink(crate::downlink::Input::Outcome {
            way: Way::Sent,
            outcome: Ok(Default::default()),
        }),
        Input::Queue(crate::queue::Input::Refusals(Vec::new())),
        Input::Class(crate::class::Input::ReadAgain),
    ]
}

#[test]
fn frequent_requests_of_a_user_cause_no_decision() {
    let mut pair = Pair::new();
    let before = pair.asked.load(Ordering::Relaxed);
    for n in 0..200 {
        for input in requests_of_a_user(n) {
            let what = format!("{input:?}");
            pair.now += DECISION_GAP;
            pair.device.step(pair.now, input);
            assert_eq!(pair.asked.load(Ordering::Relaxed), before, "{what}");
        }
    }
}

#[test]
fn flapping_connections_cause_at_most_a_hundred_decisions_a_second() {
    let mut pair = Pair::new();
    let before = pair.asked.load(Ordering::Relaxed);
    for cookie in 0..10_000 {
        pair.now += Duration::from_micros(100);
        let events = [FlowEvent::Open, FlowEvent::Close].map(|event| (Cookie(1_000_000 + cookie), event));
        pair.device
            .step(pair.now, Input::Sockets(crate::sockets::Input::Events(events.to_vec())));
    }
    let asked = pair.asked.load(Ordering::Relaxed) - before;
    assert!((90..=100).contains(&asked), "{asked}");
}

#[test]
fn a_flapping_peer_causes_at_most_a_hundred_decisions_a_second() {
    let mut pair = Pair::new();
    let key = Keyring::new(Key::from_secret([7; 32]));
    let mut rng = ChaCha20Rng::from_seed([9; 32]);
    let last = key.open(pair.heard.last().unwrap()).unwrap();
    let mut report = Report::decode(&last).unwrap();
    let sender = pair
        .device
        .limiter
        .reported(&pair.device.flows, medium!(pair.device))
        .pop();
    let before = pair.asked.load(Ordering::Relaxed);
    for _ in 0..2000 {
        report.counter += 1;
        report.senders = if report.senders.is_empty() {
            sender.into_iter().collect()
        } else {
            Vec::new()
        };
        let datagram = key.seal(&mut rng, &report.encode().unwrap()).unwrap();
        pair.now += Duration::from_micros(500);
        pair.hear(&datagram);
        if pair.device.next_deadline().is_some_and(|at| at <= pair.now) {
            pair.device.step(pair.now, Input::Tick);
        }
    }
    let decisions = pair.asked.load(Ordering::Relaxed) - before;
    assert!((90..=101).contains(&decisions), "{decisions}");
    // The last state counts all the same.
    pair.now += Duration::from_millis(10);
    pair.device.step(pair.now, Input::Tick);
    let devices = 1 + u32::from(!report.senders.is_empty());
    assert_eq!(pair.device.status(pair.now).policy.senders, devices);
}

/// The rest is usable by the peers at once, not with the next regular report.
#[test]
fn falling_and_rising_demand_is_reported_at_once() {
    // Nagle's algorithm holds the rest of a write back until everything before it is acknowledged.
    let little = Flow {
        unsent_bytes: 700,
        unacked_bytes: 2_000,
        ..upload()
    };
    let told = |changes: &[u64]| {
        told_ms(|ms| {
            let is_light = changes.iter().filter(|change| **change <= ms).count() % 2 == 1;
            vec![Flow {
                delivered_segments: ms as u32,
                ..if is_light { little.clone() } else { upload() }
            }]
        })
    };
    let regular = told(&[]);
    let (falls, rises) = (9_000, 10_300);
    let changed = told(&[falls, rises]);
    // Its demand is unlimited once two polls show it.
    for ms in [falls, rises + 100] {
        assert!(!regular.contains(&ms), "{ms} in {regular:?}");
        assert!(changed.contains(&ms), "{ms} in {changed:?}");
    }
    // The in-flight bytes have fallen too, some hundred milliseconds later.
    let soon = |told: &[u64]| told.iter().filter(|ms| (falls..=falls + 300).contains(ms)).count();
    assert!(soon(&changed) >= 3 && soon(&regular) <= 1, "{changed:?} {regular:?}");
}

fn of_found_shares(seed: u8) -> Network {
    let config = Config {
        cap: Cap {
            policy: CapPolicyName::Estimated,
            ..Cap::default()
        },
        ..Config::default()
    };
    member_with(seed, 7, &config)
}

/// The seconds in which an upload has a cap, on a device with a key and no number; a member is present for the first
/// minute, or never.
fn limited_s(has_member: bool) -> Vec<u64> {
    let mut config = Config::default();
    config.group.key_file = Some("/etc/giveway/group.key".to_owned());
    let mut device = member_with(1, 7, &config);
    let mut other = member(2, 7);
    let (mut cap, mut limited) = (None, Vec::new());
    for ms in (0..150_000).step_by(100) {
        let now = Duration::from_millis(ms);
        let flows = vec![Flow {
            clamp: cap,
            delivered_segments: (ms / 2) as u32,
            ..upload()
        }];
        let queues = Default::default();
        let mut actions = device.step(
            now,
            Input::Poll {
                flows,
                complete: true,
                queues,
            },
        );
        let asked = actions.iter().find_map(|action| match action {
            Action::Set(Request { settings: limits, .. }) => Some(limits.clone()),
            _ => None,
        });
        for Wish { setting, value, .. } in asked.into_iter().flatten() {
            if setting == Setting::Cap {
                cap = crate::sockets::setting::segments(&value);
            }
            let applied = Input::Sockets(crate::sockets::Input::Outcomes(vec![(
                COOKIE,
                setting,
                Outcome::Applied,
            )]));
            actions.extend(device.step(now, applied));
        }
        if has_member && ms < 60_000 {
            for report in reports(actions) {
                let (from, bytes) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), &*report);
                other.step(now, Input::Peers(crate::peers::Input::Datagram { from, bytes }));
            }
            for bytes in &reports(other.step(now, Input::Tick)) {
                let from = PEER;
                device.step(now, Input::Peers(crate::peers::Input::Datagram { from, bytes }));
            }
        }
        if cap.is_some() && ms % 1_000 == 0 {
            limited.push(ms / 1_000);
        }
    }
    limited
}

#[test]
fn a_key_limits_nothing_without_a_peer() {
    assert_eq!(limited_s(false), Vec::<u64>::new());
    let beside = limited_s(true);
    let (first, last) = (beside.first().copied(), beside.last().copied());
    assert!(first.is_some_and(|s| s < 20), "{beside:?}");
    // Half a minute after the last report, and the seconds in which a cap is cleared.
    assert!(last.is_some_and(|s| (80..120).contains(&s)), "{beside:?}");
}

/// When `device` reports within 30 s, polling `of` at each of these times.
fn told_ms(of: impl Fn(u64) -> Vec<Flow>) -> Vec<u64> {
    let mut device = of_found_shares(1);
    let mut at = Vec::new();
    for ms in (0..30_000).step_by(100) {
        let pass = Input::Poll {
            flows: of(ms),
            complete: true,
            queues: Default::default(),
        };
        at.extend(reports(device.step(Duration::from_millis(ms), pass)).iter().map(|_| ms));
    }
    at
}

/// With small writes Nagle's algorithm always leaves something unsent; a segment was just acknowledged or not.
#[test]
fn a_nearly_full_window_is_not_reported_each_second() {
    let at_edge = |ms: u64| {
        vec![Flow {
            unsent_bytes: 700,
            unacked_bytes: if (ms / 300).is_multiple_of(2) {
                144_800
            } else {
                144_800 - 1_448
            },
            delivered_segments: ms as u32,
            ..upload()
        }]
    };
    let steady = told_ms(|ms| at_edge(ms - ms % 600)).len();
    let flickers = told_ms(at_edge).len();
    assert!(
        flickers <= steady + 6,
        "{flickers} reports in 30 s where {steady} are regular"
    );
}

/// Of twenty connections only sixteen are reported; a change of the others is not announced.
#[test]
fn connections_beyond_the_report_are_not_announced() {
    let twenty = |ms: u64, flaps: bool| {
        let of = |cookie: u64| {
            let is_light = flaps && cookie >= 16 && (ms / 300).is_multiple_of(2);
            Flow {
                cookie: Cookie(cookie),
                unsent_bytes: 700,
                unacked_bytes: if is_light { 2_000 } else { 144_800 },
                delivered_segments: ms as u32,
                ..upload()
            }
        };
        (0..20).map(of).collect::<Vec<_>>()
    };
    let steady = told_ms(|ms| twenty(ms, false)).len();
    let flaps = told_ms(|ms| twenty(ms, true)).len();
    assert!(
        flaps <= steady + 1,
        "{flaps} reports in 30 s where {steady} are regular"
    );
}

/// Devices that hear each other; a connection of the first one alternates between unlimited and hardly any demand.
/// Returns when the others learn that it has a second connection, in ms after that starts.
fn learnt_after_ms(flickers: bool, devices: u8) -> u64 {
    let mut group: Vec<Network> = (1..=devices).map(of_found_shares).collect();
    let start = 40_000;
    for ms in (0..60_000).step_by(50) {
        let now = Duration::from_millis(ms);
        let mut told = Vec::new();
        for (index, device) in group.iter_mut().enumerate() {
            let input = if ms % 100 == 0 {
                let one = Flow {
                    unsent_bytes: 700,
                    unacked_bytes: if index == 0 && flickers && (ms / 300).is_multiple_of(2) {
                        2_000
                    } else {
                        144_800
                    },
                    delivered_segments: ms as u32,
                    ..upload()
                };
                let another = Flow {
                    cookie: Cookie(99),
                    delivered_segments: ms as u32,
                    ..upload()
                };
                let mut flows = vec![one];
                // It counts from its second poll on.
                if index == 0 && ms + 100 >= start {
                    flows.push(another);
                }
                Input::Poll {
                    flows,
                    complete: true,
                    queues: Default::default(),
                }
            } else {
                Input::Tick
            };
            told.extend(
                reports(device.step(now, input))
                    .into_iter()
                    .map(|report| (index, report)),
            );
        }
        for (from, report) in told {
            let address = IpAddr::V4(Ipv4Addr::new(10, 0, 1, from as u8 + 1));
            for (index, device) in group.iter_mut().enumerate() {
                if index != from {
                    let input = Input::Peers(crate::peers::Input::Datagram {
                        from: address,
                        bytes: &report,
                    });
                    device.step(now, input);
                }
            }
        }
        let first = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1));
        let knows = |device: &Network| {
            device
                .peer_group
                .peers()
                .any(|peer| peer.address == first && peer.senders.len() == 2)
        };
        if ms >= start && group[1..].iter().all(knows) {
            return ms - start;
        }
    }
    u64::MAX
}

#[test]
fn a_start_is_reported_at_once_despite_earlier_demand_changes() {
    let learnt = [2, 8, 24].map(|devices| [false, true].map(|flickers| learnt_after_ms(flickers, devices)));
    assert!(
        learnt.iter().all(|[steady, flickers]| *flickers <= steady + 100),
        "2, 8, 24 devices, [steady, flickers] ms: {learnt:?}"
    );
}
