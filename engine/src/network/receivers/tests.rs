// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device that downloads over a link with a queue: what its window becomes, and what neighbours are told.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use super::super::action::{Action, Input, Outcome};
use super::super::tests::{by_hand, interface, upload};
use super::super::{Background, Setup};
use super::*;
use crate::config::Config;
use crate::model::{Class, Flow};
use crate::peers::{Key, Keyring};
use crate::queue::Backends;

const FOUND: &str = "[cap]\npolicy = \"found\"\ndownlink = true\n";
const COOKIE: Cookie = Cookie(7);
const MIN_RTT_S: f64 = 0.1;
/// 20 Mbit/s, and a queue of 0.4 s.
const LINK: f64 = 2_500_000.0;
const QUEUE_S: f64 = 0.4;
const PASS_MS: u64 = 100;
/// What a kernel offers by itself.
const KERNELS_WINDOW: f64 = 3e6;

/// A device with one download, and what its kernel does.
struct Download {
    engine: Network,
    now: Duration,
    window: Value,
    received: f64,
    /// The sender has no more than this, bytes a second.
    wants: f64,
    /// A queue that somebody else keeps.
    strangers_s: f64,
    rtt_s: f64,
    /// That may still come.
    offered: f64,
    /// Connections beside it that send, and that receive 80 kB/s.
    uploads: u64,
    trickles: u64,
    /// To its neighbours.
    reports: Vec<Vec<u8>>,
}

impl Download {
    fn new(config: &str) -> Self {
        Self::of(config, 1, true)
    }

    fn of(config: &str, seed: u8, holds_windows: bool) -> Self {
        let setup = Setup {
            seed: [seed; 32],
            keys: Some(Keyring::new(Key::from_secret([7; 32]))),
            rtt_resolution: vec![Duration::from_millis(1)],
            background: Background {
                control: None,
                receive_window: true,
            },
            holds_windows,
            dry_run: false,
            backends: Backends::none(),
        };
        let config = Config::parse(config).expect("a configuration");
        let mut engine = Network::new(Duration::ZERO, &config, setup);
        engine.step(Duration::ZERO, Input::Interface(Some(interface(2))));
        Self {
            engine,
            now: Duration::ZERO,
            window: Value::default(),
            received: 0.0,
            wants: f64::INFINITY,
            strangers_s: 0.0,
            rtt_s: MIN_RTT_S,
            offered: 0.0,
            uploads: 0,
            trickles: 0,
            reports: Vec::new(),
        }
    }

    fn flow(&self) -> Flow {
        Flow {
            unsent_bytes: 0,
            unacked_bytes: 0,
            received_bytes: self.received as u64,
            receiver_rtt_us: (self.rtt_s * 1e6) as u32,
            offered_bytes: self.offered as u64,
            ..upload()
        }
    }

    fn flows(&self) -> Vec<Flow> {
        let uploads = (0..self.uploads).map(|n| Flow {
            cookie: Cookie(100 + n),
            ..upload()
        });
        let trickles = (0..self.trickles).map(|n| Flow {
            cookie: Cookie(200 + n),
            received_bytes: (self.now.as_secs_f64() * 80_000.0) as u64,
            offered_bytes: 20_000,
            ..self.flow()
        });
        uploads.chain(trickles).chain([self.flow()]).collect()
    }

    /// What is asked of its window; done at once. Other requests are left unanswered.
    fn obey(&mut self, actions: Vec<Action>) -> Vec<Value> {
        let mut asked = Vec::new();
        let mut left = VecDeque::from(actions);
        while let Some(action) = left.pop_front() {
            let (cookie, limits) = match action {
                Action::Limit { cookie, limits } => (cookie, limits),
                Action::Report(report) => {
                    self.reports.push(report.datagram);
                    continue;
                }
                _ => continue,
            };
            for (setting, value) in limits {
                if cookie == COOKIE {
                    assert_eq!(setting, Setting::ReceiveWindow);
                    self.window = value.clone();
                    asked.push(value);
                }
                let outcomes = Input::Outcomes(vec![(cookie, setting, Outcome::Applied)]);
                left.extend(self.engine.step(self.now, outcomes));
            }
        }
        asked
    }

    fn pass(&mut self) -> Vec<Value> {
        self.now += Duration::from_millis(PASS_MS);
        let most = LINK * (MIN_RTT_S + QUEUE_S);
        let window = match self.window {
            Value::Number(bytes) => bytes as f64,
            _ => KERNELS_WINDOW,
        };
        // What was offered is never taken back.
        self.offered = self.offered.max(window);
        let under_way = self.offered.min(most).min(self.wants * MIN_RTT_S);
        self.rtt_s = (under_way / LINK).max(MIN_RTT_S) + self.strangers_s;
        let arrived = under_way / self.rtt_s * PASS_MS as f64 / 1e3;
        self.received += arrived;
        self.offered -= arrived;
        let flows = self.flows();
        let pass = Input::Pass {
            flows,
            complete: false,
            queues: Default::default(),
        };
        let actions = self.engine.step(self.now, pass);
        self.obey(actions)
    }

    fn run(&mut self, seconds: u64) -> Vec<Value> {
        let passes = 0..seconds * 1_000 / PASS_MS;
        passes.flat_map(|_| self.pass()).collect()
    }

    fn name_background(&mut self, add: bool) -> Vec<Value> {
        let set = by_hand::of_flow(0, Some(Class::Background));
        let input = by_hand::set(if add { vec![set] } else { Vec::new() });
        let actions = self.engine.step(self.now, input);
        self.obey(actions)
    }

    fn hear(&mut self, from: IpAddr, neighbour: &mut Self) {
        for bytes in neighbour.reports.drain(..) {
            self.engine.step(self.now, Input::Datagram { from, bytes: &bytes });
        }
    }

    fn told(&self) -> Vec<Sender> {
        self.engine.receivers_told(self.now, usize::MAX)
    }

    fn last_change(&self) -> String {
        self.engine.changes().last().expect("a change").change.to_string()
    }
}

fn is_number(value: &Value) -> bool {
    matches!(value, Value::Number(_))
}

#[test]
fn a_download_fills_the_link_with_a_short_queue() {
    let mut download = Download::new(FOUND);
    download.run(30);
    let before = download.received;
    let mut longest_s: f64 = 0.0;
    for _ in 0..100 {
        download.pass();
        longest_s = longest_s.max(download.rtt_s);
    }
    let part = (download.received - before) / (10.0 * LINK);
    assert!(part > 0.97, "{part}");
    assert!(longest_s < 1.25 * MIN_RTT_S, "{longest_s}");
    let status = download.engine.status(download.now);
    let receiving = status.policy.receiving.expect("shares of what is received");
    assert_eq!((receiving.devices, receiving.connections), (1, 1));
    assert!(receiving.doing.unwrap().contains("a share of"));
    assert_eq!((status.policy.senders, status.flows[0].receiver), (0, true));
    assert!(download.last_change().contains("rule found: a share of"));
}

#[test]
fn what_was_offered_before_comes_first_and_is_no_strangers_queue() {
    let mut download = Download::new(FOUND);
    // Six seconds of the link.
    download.offered = 6.0 * LINK;
    for _ in 0..200 {
        download.pass();
        let receiving = download.engine.status(download.now).policy.receiving;
        let doing = receiving.and_then(|view| view.doing).unwrap_or_default();
        assert!(!doing.contains("nothing is limited"), "{doing}");
    }
    assert!(download.rtt_s < 1.25 * MIN_RTT_S, "{}", download.rtt_s);
}

#[test]
fn nothing_is_held_by_a_fixed_capacity_or_where_the_kernel_cannot() {
    for (config, holds_windows) in [("[cap]\ncapacity_mbit = 20.0\n", true), (FOUND, false)] {
        let mut download = Download::of(config, 1, holds_windows);
        assert!(download.run(15).is_empty());
        assert!(download.told().is_empty());
        assert!(download.engine.status(download.now).policy.receiving.is_none());
    }
}

#[test]
fn what_no_longer_receives_has_its_window_back() {
    let mut download = Download::new(FOUND);
    download.run(10);
    assert!(is_number(&download.window));
    download.wants = 0.0;
    let asked = download.run(4);
    assert_eq!(asked.last(), Some(&Value::default()));
    assert!(download.last_change().contains(NO_LONGER), "{}", download.last_change());
    assert!(download.run(1).is_empty() && download.told().is_empty());
}

#[test]
fn background_is_left_to_its_own_rule() {
    let mut download = Download::new(FOUND);
    download.run(10);
    let gives_way = Value::from(super::super::control::GIVES_WAY);
    let asked = [download.name_background(true), download.run(3)].concat();
    assert_eq!(asked, [gives_way]);
    assert!(download.told().is_empty());
    let asked = [download.name_background(false), download.run(3)].concat();
    assert_eq!(asked.first(), Some(&Value::default()));
    assert!(asked.len() > 1 && asked[1..].iter().all(is_number), "{asked:?}");
    assert_eq!(download.told().len(), 1);
}

#[test]
fn a_pause_gives_the_window_back_until_it_is_over() {
    let mut download = Download::new(FOUND);
    download.run(10);
    let actions = download.engine.step(download.now, Input::Pause(Some("try".to_owned())));
    assert_eq!(download.obey(actions), [Value::default()]);
    assert!(download.run(5).is_empty());
    let actions = download.engine.step(download.now, Input::Pause(None));
    download.obey(actions);
    assert!(download.run(2).iter().any(is_number));
}

#[test]
fn a_window_that_an_application_has_set_is_left_alone() {
    let mut download = Download::new(FOUND);
    download.run(10);
    let taken = vec![(COOKIE, Setting::ReceiveWindow, Value::Number(30_000))];
    download.engine.step(download.now, Input::TakenOver(taken));
    assert!(download.last_change().contains("giveway leaves it alone from now on"));
    assert!(download.run(5).is_empty());
}

#[test]
fn neighbours_are_told_the_window_and_whether_it_is_what_holds_the_connection() {
    let mut download = Download::new(FOUND);
    download.run(20);
    let told = download.told()[0];
    let Value::Number(window) = download.window else {
        panic!("{:?}", download.window)
    };
    let cwnd_bytes = told.cwnd_segments * 1_448;
    assert!(
        u64::from(cwnd_bytes).abs_diff(window) < 2 * 1_448,
        "{cwnd_bytes} of {window}"
    );
    assert_eq!((told.direction, told.min_rtt_us), (Direction::Down, 100_000));
    assert!(told.queue_bytes > cwnd_bytes, "it wants more");
    // A stream that needs a tenth of the link.
    download.wants = 0.1 * LINK;
    download.run(5);
    let told = download.told()[0];
    assert!(told.queue_bytes <= told.cwnd_segments * 1_448, "it has what it wants");
    assert!(told.delivery_rate_kbit.abs_diff(2_000) < 100, "{told:?}");
}

#[test]
fn where_places_are_few_all_downloads_are_told_as_one() {
    let mut download = Download::new(FOUND);
    download.run(20);
    let one = download.told()[0];
    let sum = together(&[
        one,
        Sender {
            cwnd_segments: 5,
            queue_bytes: 5_000,
            delivery_rate_kbit: 7,
            ..one
        },
    ])
    .expect("two");
    assert_eq!(sum.cwnd_segments, one.cwnd_segments + 5);
    assert_eq!(sum.queue_bytes, one.queue_bytes + 5_000);
    assert_eq!(sum.delivery_rate_kbit, one.delivery_rate_kbit + 7);
    assert!(download.engine.receivers_told(download.now, 0).len() == 1);
}

#[test]
fn sixteen_uploads_leave_a_place_for_what_is_received() {
    let mut ours = Download::new("[cap]\ncapacity_mbit = 20.0\n");
    let mut theirs = Download::of(FOUND, 2, true);
    theirs.uploads = 16;
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    for _ in 0..100 {
        theirs.pass();
        ours.now = theirs.now;
        for device in [&mut ours, &mut theirs] {
            let actions = device.engine.step(device.now, Input::Tick);
            device.obey(actions);
        }
        ours.hear(address(2), &mut theirs);
        theirs.hear(address(1), &mut ours);
    }
    let status = ours.engine.status(ours.now);
    let senders = &status.neighbours[0].senders;
    let of = |direction| senders.iter().filter(|one| one.direction == direction).count();
    assert_eq!((of(Direction::Up), of(Direction::Down)), (15, 1));
}

#[test]
fn a_window_that_is_about_the_same_is_seldom_changed() {
    // While nothing is limited, and while it is.
    for (strangers_s, varies_s, most) in [(0.3, 0.1, 5), (0.0, 0.02, 10)] {
        let mut download = Download::new(FOUND);
        download.run(20);
        download.strangers_s = strangers_s;
        download.run(if strangers_s > 0.0 { 20 } else { 0 });
        let mut changes = 0;
        for pass in 0..100 {
            download.strangers_s = strangers_s + if pass % 8 < 4 { varies_s } else { 0.0 };
            changes += download.pass().len();
        }
        assert!(changes <= most, "{changes} in 10 s");
    }
}

#[test]
fn two_that_trickle_leave_a_download_the_link() {
    let mut download = Download::new(FOUND);
    download.trickles = 2;
    download.run(30);
    let before = download.received;
    download.run(10);
    let part = (download.received - before) / (10.0 * LINK);
    assert!(part > 0.85, "{part}");
}

#[test]
fn where_a_queue_stays_the_window_holds_nothing_back_and_stays_near_what_is_under_way() {
    let mut download = Download::new(FOUND);
    download.run(20);
    download.strangers_s = 0.3;
    download.run(20);
    let Value::Number(window) = download.window else {
        panic!("{:?}", download.window)
    };
    let under_way = LINK * (MIN_RTT_S + QUEUE_S);
    assert!((2.0..4.0).contains(&(window as f64 / under_way)), "{window}");
}

#[test]
fn a_neighbour_that_downloads_is_no_sender() {
    let mut ours = Download::of("[cap]\ncapacity_mbit = 20.0\n", 1, false);
    let mut theirs = Download::of(FOUND, 2, true);
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    for _ in 0..100 {
        theirs.pass();
        ours.now = theirs.now;
        for device in [&mut ours, &mut theirs] {
            let actions = device.engine.step(device.now, Input::Tick);
            device.obey(actions);
        }
        ours.hear(address(2), &mut theirs);
        theirs.hear(address(1), &mut ours);
    }
    let status = ours.engine.status(ours.now);
    assert_eq!(status.neighbours[0].senders.len(), 1);
    assert_eq!(status.policy.senders, 0);
    assert_eq!(ours.engine.receiving_devices(0), 1);
}
