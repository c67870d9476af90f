// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pause revokes everything, and its end restores it.

use super::*;
use crate::queue::links::LinkRequest;
use crate::queue::{self, RootQdisc, Uplink};

const WHY: &str = "paused by uid 0";

fn pause(engine: &mut Network, ms: u64, reason: Option<&str>) -> Vec<Action> {
    engine.step(Duration::from_millis(ms), Input::Pause(reason.map(str::to_owned)))
}

#[test]
fn a_cap_is_cleared_at_once_and_restored_after_the_pause() {
    let mut engine = asking();
    answer(&mut engine, Outcome::Applied);
    let actions = pause(&mut engine, 300, Some(WHY));
    assert_eq!(caps(&actions), [(COOKIE, None)]);
    answer(&mut engine, Outcome::Applied);
    let changes = engine.changes();
    let last = &changes.iter().max_by_key(|latest| latest.t_ns).unwrap().change;
    assert_eq!((last.rule.as_str(), last.reason.as_str()), ("pause", WHY));
    assert!(caps(&pass(&mut engine, 400)).is_empty());
    let mut asked = caps(&pause(&mut engine, 500, None));
    asked.extend(caps(&pass(&mut engine, 600)));
    assert_eq!(asked, [(COOKIE, Some(20))]);
}

#[test]
fn deferred_caps_are_cleared_in_the_next_poll() {
    let mut engine = asking();
    answer(&mut engine, Outcome::Applied);
    pause(&mut engine, 300, Some(WHY));
    answer(&mut engine, Outcome::Deferred);
    assert_eq!(caps(&pass(&mut engine, 400)), [(COOKIE, None)]);
}

#[test]
fn new_connections_are_not_capped_during_a_pause() {
    let mut engine = asking();
    let tables = |actions: Vec<Action>| -> Vec<Vec<u32>> {
        let table = |action| match action {
            Action::CapNew(CapTable { caps, .. }) => Some(caps),
            _ => None,
        };
        actions.into_iter().filter_map(table).collect()
    };
    assert_eq!(tables(pause(&mut engine, 300, Some(WHY))), [[0]]);
    assert_eq!(tables(pass(&mut engine, 400)), Vec::<Vec<u32>>::new());
    assert_eq!(tables(pause(&mut engine, 500, None)), [[20]]);
}

#[test]
fn a_pause_restores_the_congestion_control_and_its_end_sets_it_again() {
    let background = Means {
        control: Some("yields".to_owned()),
        receive_window: false,
    };
    let mut engine = engine_with("", false, background);
    let asked = |actions: &[Action]| -> Vec<Value> {
        let value = |action: &Action| match action {
            Action::Set(Request { settings: limits, .. }) => Some(limits[0].value.clone()),
            _ => None,
        };
        actions.iter().filter_map(value).collect()
    };
    let answer = |engine: &mut Network, ms| {
        let outcomes = vec![(COOKIE, Setting::CongestionControl, Outcome::Applied)];
        engine.step(
            Duration::from_millis(ms),
            Input::Sockets(crate::sockets::Input::Outcomes(outcomes)),
        );
    };
    let yields = vec![Value::from("yields")];
    pass(&mut engine, 100);
    let set = by_hand::of_flow(0, Some(crate::model::Class::Background));
    let actions = engine.step(Duration::from_millis(150), by_hand::set(vec![set]));
    assert_eq!(asked(&actions), yields);
    answer(&mut engine, 150);
    assert_eq!(asked(&pause(&mut engine, 1000, Some(WHY))), [Value::default()]);
    answer(&mut engine, 1000);
    assert_eq!(asked(&pass(&mut engine, 2000)), []);
    assert_eq!(asked(&pause(&mut engine, 3000, None)), yields);
}

#[test]
fn the_queue_is_removed_and_installed_again_even_on_a_changed_link() {
    let config = Config::parse("[link]\nrate_mbit = 10.0").unwrap();
    let backends = Backends {
        htb: Ok(()),
        ..Backends::none()
    };
    let setup = Setup {
        seed: [1; 32],
        keys: None,
        rtt_resolution: vec![Duration::from_millis(1)],
        background: Default::default(),
        dry_run: false,
        backends,
    };
    let mut engine = Network::new(Duration::ZERO, &config, setup);
    engine.step(Duration::ZERO, Input::Interface(Some(interface(2))));
    let uplink = |mtu_bytes| Uplink {
        ifindex: 2,
        name: "eth2".to_owned(),
        mtu_bytes,
        header_bytes: 14,
        wired: true,
        speed_mbit: None,
        root: RootQdisc {
            kind: "pfifo_fast".to_owned(),
            ..RootQdisc::default()
        },
        up: true,
        carrier_losses: 0,
        chosen: true,
    };
    let requests = |actions: Vec<Action>| -> Vec<bool> {
        let up = |action| match action {
            Action::Queue(LinkRequest { request, .. }) => Some(matches!(request, queue::QueueRequest::Set(Some(_)))),
            _ => None,
        };
        actions.into_iter().filter_map(up).collect()
    };
    let done = Input::Queue(crate::queue::Input::Outcome {
        ifindex: 2,
        outcome: Ok(()),
    });
    let at = Duration::from_millis;
    assert_eq!(
        requests(engine.step(at(1), Input::Queue(crate::queue::Input::Uplinks(vec![uplink(1500)])))),
        [true]
    );
    engine.step(at(2), done);
    assert_eq!(requests(pause(&mut engine, 3, Some(WHY))), [false]);
    let done = Input::Queue(crate::queue::Input::Outcome {
        ifindex: 2,
        outcome: Ok(()),
    });
    engine.step(at(4), done);
    assert_eq!(engine.status(at(5)).queue.reason, WHY);
    assert!(requests(engine.step(at(6), Input::Queue(crate::queue::Input::Uplinks(vec![uplink(1400)])))).is_empty());
    assert_eq!(requests(pause(&mut engine, 7, None)), [true]);
}

#[test]
fn a_conflict_after_a_pause_names_the_policys_rule() {
    let mut engine = asking();
    answer(&mut engine, Outcome::Applied);
    let policys = engine.changes()[0].change.rule.clone();
    pause(&mut engine, 300, Some(WHY));
    answer(&mut engine, Outcome::Applied);
    let idle = |engine: &mut Network, ms, clamp| {
        let flows = vec![Flow {
            clamp,
            unsent_bytes: 0,
            ..upload()
        }];
        let pass = Input::Poll {
            flows,
            complete: false,
            queues: Default::default(),
        };
        caps(&engine.step(Duration::from_millis(ms), pass))
    };
    idle(&mut engine, 1_800, None);
    pause(&mut engine, 1_900, None);
    let asked: Vec<_> = [2_000, 2_100, 2_200]
        .into_iter()
        .flat_map(|ms| idle(&mut engine, ms, Some(33)))
        .collect();
    assert!(!asked.is_empty(), "only the kernel knows whose it is");
    let found = Value::Number(33);
    answer(&mut engine, Outcome::Foreign { found });
    let change = engine.changes().pop().unwrap().change;
    assert!(change.reason.contains("another tool"), "{change}");
    assert_eq!(change.rule, policys, "{change}");
}
