// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The congestion control and the receive windows of background connections: which have it, which are restored, and
//! conflicts.

use super::*;
use crate::downlink::{Arrival, DownloadRate, LeftOut};
use crate::model::Class;

const YIELDS: &str = "yields";

fn background(receive_window: bool) -> Means {
    Means {
        control: Some(YIELDS.to_owned()),
        receive_window,
    }
}

/// With one connection, named as background or not.
fn engine() -> Network {
    super::engine_with("", false, background(false))
}

fn name_background(engine: &mut Network, ms: u64, add: bool) -> Vec<Action> {
    let set = by_hand::of_flow(0, Some(Class::Background));
    let all = if add { vec![set] } else { Vec::new() };
    engine.step(Duration::from_millis(ms), by_hand::set(all))
}

fn see(engine: &mut Network, ms: u64, flow: Flow) -> Vec<Action> {
    let (flows, complete, queues) = (vec![flow], false, Default::default());
    engine.step(
        Duration::from_millis(ms),
        Input::Poll {
            flows,
            complete,
            queues,
        },
    )
}

fn having(congestion_control: &str) -> Flow {
    Flow {
        congestion_control: congestion_control.to_owned(),
        ..upload()
    }
}

fn by(ifindex: u32) -> Flow {
    Flow { ifindex, ..upload() }
}

fn answer(engine: &mut Network, ms: u64, outcome: Outcome) {
    let outcomes = vec![(COOKIE, Setting::CongestionControl, outcome)];
    engine.step(
        Duration::from_millis(ms),
        Input::Sockets(crate::sockets::Input::Outcomes(outcomes)),
    );
}

/// The requested values.
fn asked(actions: &[Action]) -> Vec<Value> {
    let value = |action: &Action| match action {
        Action::Set(Request { settings: limits, .. }) => match limits.as_slice() {
            [wish] if wish.setting == Setting::CongestionControl => Some(wish.value.clone()),
            _ => panic!("{limits:?}"),
        },
        _ => None,
    };
    actions.iter().filter_map(value).collect()
}

fn yields() -> Vec<Value> {
    vec![Value::from(YIELDS)]
}

/// An engine whose only connection yields.
fn giving_way() -> Network {
    let mut engine = engine();
    see(&mut engine, 100, upload());
    assert_eq!(asked(&name_background(&mut engine, 200, true)), yields());
    answer(&mut engine, 200, Outcome::Applied);
    assert!(asked(&see(&mut engine, 300, having(YIELDS))).is_empty());
    engine
}

fn latest(engine: &Network) -> String {
    let changes = engine.changes();
    let mut of_control = changes
        .iter()
        .filter(|latest| latest.change.setting == Setting::CongestionControl);
    of_control.next_back().unwrap().change.to_string()
}

#[test]
fn only_background_connections_yield() {
    let mut engine = engine();
    for ms in [100, 200, 300] {
        assert!(asked(&see(&mut engine, ms, upload())).is_empty());
    }
    assert_eq!(asked(&name_background(&mut engine, 400, true)), yields());
}

#[test]
fn congestion_control_is_restored_when_background_ends_and_why_names_both() {
    let mut engine = giving_way();
    assert!(latest(&engine).contains(": congestion control cubic -> yields; rule giveway class set by uid 0"));
    assert_eq!(asked(&name_background(&mut engine, 800, false)), [Value::default()]);
    answer(&mut engine, 800, Outcome::Applied);
    assert!(latest(&engine).contains(": congestion control yields -> cubic; rule default"));
    assert!(asked(&see(&mut engine, 1_400, upload())).is_empty());
}

#[test]
fn successive_changes_are_made_together_half_a_second_later() {
    let mut engine = giving_way();
    // Whether or not it is polled meanwhile.
    assert!(asked(&name_background(&mut engine, 400, false)).is_empty());
    let none_seen = |engine: &mut Network, ms| {
        let (flows, complete, queues) = (Vec::new(), false, Default::default());
        engine.step(
            Duration::from_millis(ms),
            Input::Poll {
                flows,
                complete,
                queues,
            },
        )
    };
    assert!(asked(&none_seen(&mut engine, 600)).is_empty());
    assert_eq!(asked(&none_seen(&mut engine, 700)), [Value::default()]);
}

#[test]
fn without_a_scavenger_congestion_control_nothing_is_requested() {
    let mut engine = super::engine("", false);
    see(&mut engine, 100, upload());
    assert!(asked(&name_background(&mut engine, 200, true)).is_empty());
}

#[test]
fn loopback_connections_do_not_yield() {
    let mut engine = engine();
    name_background(&mut engine, 100, true);
    assert!(asked(&see(&mut engine, 200, by(1))).is_empty());
}

#[test]
fn udp_has_no_congestion_control_to_change() {
    let mut engine = engine();
    name_background(&mut engine, 100, true);
    let udp = Flow {
        protocol: Protocol::Udp,
        ..upload()
    };
    let actions = engine.step(
        Duration::from_millis(200),
        Input::Sockets(crate::sockets::Input::Datagrams(vec![udp])),
    );
    assert!(asked(&actions).is_empty());
}

#[test]
fn a_connection_without_a_route_is_unchanged_until_it_has_one() {
    let mut engine = engine();
    name_background(&mut engine, 100, true);
    assert!(asked(&see(&mut engine, 200, by(0))).is_empty());
    assert_eq!(asked(&see(&mut engine, 300, by(2))), yields());
    answer(&mut engine, 300, Outcome::Applied);
    let lost = Flow {
        ifindex: 0,
        ..having(YIELDS)
    };
    assert!(asked(&see(&mut engine, 400, lost)).is_empty());
}

#[test]
fn connections_yield_on_any_interface() {
    let mut engine = giving_way();
    let moved = engine.step(Duration::from_millis(400), Input::Interface(Some(interface(3))));
    assert!(asked(&moved).is_empty());
}

#[test]
fn a_failed_request_is_repeated_half_a_second_later() {
    let mut engine = engine();
    see(&mut engine, 100, upload());
    name_background(&mut engine, 200, true);
    answer(&mut engine, 200, Outcome::Deferred);
    assert!(asked(&see(&mut engine, 600, upload())).is_empty());
    assert_eq!(asked(&see(&mut engine, 700, upload())), yields());
}

#[test]
fn another_tools_congestion_control_is_not_overridden_and_why_says_so() {
    let mut engine = giving_way();
    assert!(
        asked(&see(&mut engine, 400, having("bbr"))).is_empty(),
        "it may be old news"
    );
    assert_eq!(
        asked(&see(&mut engine, 500, having("bbr"))),
        yields(),
        "only the kernel knows"
    );
    let found = Value::from("bbr");
    answer(&mut engine, 500, Outcome::Foreign { found });
    let line = latest(&engine);
    assert!(
        line.contains("yields -> bbr; rule giveway class set by uid 0: conflict: another tool set it"),
        "{line}"
    );
    assert!(asked(&see(&mut engine, 600, having("bbr"))).is_empty());
    assert!(asked(&name_background(&mut engine, 700, false)).is_empty());
}

#[test]
fn a_dry_run_reports_what_would_be_set() {
    let mut engine = super::engine_with("", true, background(false));
    see(&mut engine, 100, upload());
    assert!(asked(&name_background(&mut engine, 200, true)).is_empty());
    assert!(latest(&engine).contains("congestion control cubic -> yields (not made)"));
    for ms in [300, 400, 500] {
        assert!(asked(&see(&mut engine, ms, upload())).is_empty());
    }
}

/// Whether the window yields, where that is requested.
fn windows(actions: &[Action]) -> Vec<bool> {
    let of = |action: &Action| match action {
        Action::Set(Request { settings: limits, .. }) => limits
            .iter()
            .find(|wish| wish.setting == Setting::ReceiveWindow)
            .map(|wish| wish.value != Value::default()),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

/// An engine whose only connection's window yields.
fn window_giving_way() -> Network {
    let mut engine = super::engine_with("", false, background(true));
    see(&mut engine, 100, upload());
    assert_eq!(windows(&name_background(&mut engine, 200, true)), [true]);
    let applied = [Setting::CongestionControl, Setting::ReceiveWindow];
    let applied = applied.map(|setting| (COOKIE, setting, Outcome::Applied));
    engine.step(
        Duration::from_millis(200),
        Input::Sockets(crate::sockets::Input::Outcomes(applied.to_vec())),
    );
    assert!(engine.status(Duration::from_millis(200)).flows[0].receive_yields);
    engine
}

#[test]
fn background_downloads_yield_until_background_ends() {
    let mut engine = window_giving_way();
    assert!(windows(&see(&mut engine, 800, having(YIELDS))).is_empty());
    assert_eq!(windows(&name_background(&mut engine, 900, false)), [false]);
}

#[test]
fn background_windows_are_unchanged_where_a_link_orders_downloads() {
    let mut engine = window_giving_way();
    let rate = DownloadRate {
        ifindex: upload().ifindex,
        mbit: 20.0,
        configured_in: "[link]",
    };
    engine.downloads.follow_rates(vec![rate]);
    let arrival = Arrival {
        ifindex: rate.ifindex,
        name: "wlan0".to_owned(),
        ..Arrival::default()
    };
    assert!(engine.downloads.observe(Duration::ZERO, vec![arrival]).is_some());
    assert!(windows(&see(&mut engine, 800, having(YIELDS))).is_empty(), "not yet");
    engine
        .downloads
        .conclude(Duration::from_millis(800), Ok(LeftOut::new()));
    assert_eq!(windows(&see(&mut engine, 1400, having(YIELDS))), [false]);
    let outcome = vec![(COOKIE, Setting::ReceiveWindow, Outcome::Applied)];
    engine.step(
        Duration::from_millis(1400),
        Input::Sockets(crate::sockets::Input::Outcomes(outcome)),
    );
    assert!(windows(&see(&mut engine, 2000, having(YIELDS))).is_empty());
    engine.downloads.lost(Duration::from_secs(2), "it is gone".to_owned());
    assert_eq!(windows(&see(&mut engine, 2600, having(YIELDS))), [true]);
}

#[test]
fn another_tools_window_is_not_overridden_and_why_says_so() {
    let mut engine = window_giving_way();
    let taken = vec![(COOKIE, Setting::ReceiveWindow, Value::Number(30_000))];
    engine.step(
        Duration::from_millis(300),
        Input::Sockets(crate::sockets::Input::TakenOver(taken)),
    );
    let changes = engine.changes();
    let line = changes.iter().next_back().unwrap().change.to_string();
    assert!(line.contains("receive window yields -> 30000 bytes"), "{line}");
    assert!(
        line.contains("conflict: another tool set it, and giveway does not override it"),
        "{line}"
    );
    assert!(!engine.status(Duration::from_millis(300)).flows[0].receive_yields);
    assert!(windows(&name_background(&mut engine, 900, false)).is_empty());
}
