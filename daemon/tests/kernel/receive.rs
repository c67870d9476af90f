// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A download that yields by the window that its receiver offers, on a real connection over a narrow link. Who sends
//! knows nothing of it.

use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use giveway::actuate::sockets::SocketActuator as _;
use giveway::actuate::sockets::cap::CapActuator;
use giveway::actuate::sockets::receive::ReceiveActuator;
use giveway::kernel::own_netns;
use giveway_engine::change::Value;
use giveway_engine::sockets::setting::Outcome;
use libbpf_rs::MapHandle;
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};

use crate::support::bottleneck::{Bottleneck, Shape, Transfer};
use crate::support::tcp::{cookie, set_least_to_wake_for, set_window_clamp, window_clamp};

const LINK: Shape = Shape {
    mbit: 20,
    rtt: Duration::from_millis(50),
    queue: Duration::from_millis(100),
    loses_one_in: 0,
};
const LINK_MBIT: f64 = LINK.mbit as f64;

/// In the far namespace, where the downloads arrive.
struct Receiver {
    actuator: ReceiveActuator,
    _marks: CapActuator,
}

impl Receiver {
    fn open() -> Self {
        let netns = own_netns().unwrap();
        let caps = CapActuator::open(netns).unwrap();
        let saved = MapHandle::try_from(caps.saved()).unwrap();
        Self {
            actuator: ReceiveActuator::open(netns, saved, None).unwrap(),
            _marks: caps,
        }
    }

    fn tell(&mut self, socket: &TcpStream, value: Value) {
        let outcomes = self.actuator.apply(&[(cookie(socket), value)]).unwrap();
        assert!(matches!(outcomes[..], [(_, Outcome::Applied)]), "{outcomes:?}");
    }
}

/// A download under way, sent by this congestion control, its receiving end, and what keeps its window.
fn download(link: &Bottleneck, congestion_control: &str) -> (Transfer, TcpStream, Receiver) {
    let (from, to) = link.connect();
    setsockopt(&from, TcpCongestion, &congestion_control.into()).unwrap();
    let near = to.try_clone().unwrap();
    let receiver = link.at_remote_host(move || {
        let mut receiver = Receiver::open();
        receiver.tell(&near, "yields".into());
        receiver
    });
    (Transfer::begin(from, to.try_clone().unwrap()), to, receiver)
}

/// The most that it moves in any of some spans of time, Mbit/s, and the longest wait in the queue in that one. A machine
/// that holds a packet up looks like somebody else's transfer, for some seconds.
fn best(link: &Bottleneck, background: &Transfer) -> (f64, Duration) {
    let spans = (0..5).map(|_| {
        link.longest_wait();
        (background.mbit_during(Duration::from_secs(2)), link.longest_wait())
    });
    let mut best = (0.0, Duration::ZERO);
    for span in spans {
        if span.0 > best.0 {
            best = span;
        }
        if best.0 > 0.85 * LINK_MBIT {
            break;
        }
    }
    best
}

#[test]
fn a_background_download_alone_fills_the_link_and_keeps_its_queue_short() {
    for sender in ["cubic", "bbr"] {
        let link = Bottleneck::enter(LINK);
        let (background, _, _receiver) = download(&link, sender);
        sleep(Duration::from_secs(4));
        let (mbit, wait) = best(&link, &background);
        assert!(mbit > 0.85 * LINK_MBIT, "{sender}: {mbit:.1} Mbit/s");
        assert!(wait < Duration::from_millis(60), "{sender}: {wait:?} in the queue");
    }
}

#[test]
fn a_background_download_yields_within_a_second_and_comes_back() {
    // BBR has taken the foreground's share for the link's own rate, and grows by a quarter in eight round trips.
    for (sender, comes_back_s) in [("cubic", 3), ("bbr", 6)] {
        let link = Bottleneck::enter(LINK);
        let (background, _, _receiver) = download(&link, sender);
        sleep(Duration::from_secs(5));
        let foreground = link.transfer("cubic");
        sleep(Duration::from_millis(1_200));
        let beside = background.mbit_during(Duration::from_secs(3));
        assert!(beside < 0.05 * LINK_MBIT, "{sender}: {beside:.2} Mbit/s beside CUBIC");
        drop(foreground);
        sleep(Duration::from_secs(comes_back_s));
        let (again, _) = best(&link, &background);
        assert!(again > 0.5 * LINK_MBIT, "{sender}: {again:.1} Mbit/s after it");
    }
}

/// What the sender's application makes of it is no sign of anybody else.
#[test]
fn a_server_that_sends_less_than_the_link_takes_loses_nothing() {
    let link = Bottleneck::enter(LINK);
    let (background, to, _receiver) = download(&link, "cubic");
    sleep(Duration::from_secs(3));
    background.hold_to(6.0);
    sleep(Duration::from_secs(1));
    let slow = background.mbit_during(Duration::from_secs(4));
    assert!(slow > 5.0, "{slow:.1} Mbit/s of 6");
    assert!(window_clamp(&to) < 500_000, "{}", window_clamp(&to));
}

#[test]
fn random_loss_does_not_stop_a_background_download() {
    let link = Bottleneck::enter(Shape {
        loses_one_in: 100,
        ..LINK
    });
    // CUBIC would stop by itself.
    let (background, _, _receiver) = download(&link, "bbr");
    sleep(Duration::from_secs(4));
    let (mbit, _) = best(&link, &background);
    assert!(mbit > 0.5 * LINK_MBIT, "{mbit:.1} Mbit/s");
}

#[test]
fn its_window_is_the_kernels_again_when_it_is_background_no_longer() {
    let link = Bottleneck::enter(LINK);
    let (background, to, mut receiver) = download(&link, "cubic");
    sleep(Duration::from_secs(4));
    let window = || window_clamp(&to);
    let ours = window();
    assert!(ours < 1_000_000, "{ours}");
    link.at_remote_host(|| receiver.tell(&to, Value::default()));
    let before = window();
    assert!(before > ours, "{before} after {ours}");
    background.mbit_during(Duration::from_secs(2));
    assert!(window() >= before, "{} after {before}", window());
}

/// A middlebox may take them away, at whatever moment.
#[test]
fn a_download_whose_timestamps_vanish_is_let_go() {
    let link = Bottleneck::enter(LINK);
    let (background, to, _receiver) = download(&link, "cubic");
    sleep(Duration::from_secs(3));
    let ours = window_clamp(&to);
    let foreground = link.transfer("cubic");
    sleep(Duration::from_secs(2));
    let yielding = window_clamp(&to);
    assert!(yielding < 4_000 && ours > yielding, "{ours}, then {yielding}");
    link.strip_timestamps();
    drop(foreground);
    sleep(Duration::from_secs(6));
    let again = background.mbit_during(Duration::from_secs(2));
    assert!(again > 0.5 * LINK_MBIT, "{again:.1} Mbit/s");
}

/// For it the kernel enlarges the buffer, and sets the window itself.
#[test]
fn an_application_that_waits_for_much_at_once_yields_all_the_same() {
    let link = Bottleneck::enter(LINK);
    let (background, to, mut receiver) = download(&link, "cubic");
    sleep(Duration::from_secs(2));
    set_least_to_wake_for(&to, 2_999_999);
    background.mbit_during(Duration::from_secs(1));
    assert!(window_clamp(&to) < 300_000, "{}", window_clamp(&to));
    assert_eq!(receiver.actuator.taken_over().unwrap(), []);
}

#[test]
fn a_window_that_somebody_else_sets_is_left_alone() {
    let link = Bottleneck::enter(LINK);
    let (background, to, mut receiver) = download(&link, "cubic");
    sleep(Duration::from_secs(3));
    set_window_clamp(&to, 30_000);
    background.mbit_during(Duration::from_secs(1));
    assert_eq!(window_clamp(&to), 30_000);
    let taken = receiver.actuator.taken_over().unwrap();
    assert_eq!(taken, [(cookie(&to), Value::Number(30_000))]);
    assert_eq!(
        link.at_remote_host(|| receiver.actuator.revert().unwrap()),
        1,
        "the callback"
    );
    assert_eq!(window_clamp(&to), 30_000);
}
