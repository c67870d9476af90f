// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Durations: how long a removed link's queue is kept, a flapping link waits, an unneeded queue stays, a failing detour
//! backs off. And the precedence of classes.

use super::classes::{identify, obey, see};
use super::*;
use crate::downlink::{Arrival, LeftOut};
use crate::model::{Choice, ChosenLimit, Class, Idleness, Process, ProcessId, Rates};
use crate::queue::links::LinkRequest;
use crate::queue::traffic::QueueCounters;
use crate::queue::{QueueRequest, RootQdisc, Uplink};

const WIFI: u32 = 2;
const LTE: u32 = 3;
const RATES: &str =
    "[[uplink]]\ninterface = \"wlan0\"\nrate_mbit = 20\n[[uplink]]\ninterface = \"wwan0\"\nrate_mbit = 4";
const LIMITED: &str = "[[rule]]\nport = 5201\nclass = \"bulk\"\nupload_limit_mbit = 2.0\n";

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// With these backends for queues.
fn with_queues(config: &str, backends: Backends) -> Network {
    let setup = Setup {
        seed: [1; 32],
        keys: None,
        rtt_resolution: vec![Duration::from_millis(1)],
        background: Means::default(),
        dry_run: false,
        backends,
    };
    let mut engine = Network::new(Duration::ZERO, &Config::parse(config).unwrap(), setup);
    engine.step(Duration::ZERO, Input::Interface(Some(interface(WIFI))));
    engine
}

fn bpf() -> Backends {
    Backends {
        bpf: Ok(()),
        marks: Ok(()),
        ..Backends::none()
    }
}

fn uplink(ifindex: u32, has_ours: bool, chosen: bool) -> Uplink {
    let (kind, ours) = match has_ours {
        true => ("gw", true),
        false => ("noqueue", false),
    };
    Uplink {
        ifindex,
        name: if ifindex == LTE { "wwan0" } else { "wlan0" }.to_owned(),
        mtu_bytes: 1500,
        header_bytes: 14,
        wired: false,
        speed_mbit: None,
        root: RootQdisc {
            kind: kind.to_owned(),
            ours,
            ..RootQdisc::default()
        },
        up: true,
        carrier_losses: 0,
        chosen,
    }
}

/// By link, whether a queue is installed or removed. Every request succeeds.
fn queues(engine: &mut Network, seconds: u64, input: Input<'_>) -> Vec<(u32, bool)> {
    let asked = engine.step(at(seconds), input).into_iter();
    let asked: Vec<(u32, bool)> = asked
        .filter_map(|action| match action {
            Action::Queue(LinkRequest { ifindex, request, .. }) => {
                Some((ifindex, matches!(request, QueueRequest::Set(Some(_)))))
            }
            _ => None,
        })
        .collect();
    for (ifindex, _) in &asked {
        let done = Input::Queue(crate::queue::Input::Outcome {
            ifindex: *ifindex,
            outcome: Ok(()),
        });
        engine.step(at(seconds), done);
    }
    asked
}

#[test]
fn a_link_that_returns_after_five_seconds_keeps_its_queue() {
    let mut engine = with_queues(RATES, bpf());
    let new = vec![uplink(WIFI, false, true), uplink(LTE, false, true)];
    assert_eq!(
        queues(&mut engine, 1, Input::Queue(crate::queue::Input::Uplinks(new))),
        [(WIFI, true), (LTE, true)]
    );
    let moved = || {
        Input::Queue(crate::queue::Input::Uplinks(vec![
            uplink(LTE, true, true),
            uplink(WIFI, true, false),
        ]))
    };
    let back = || {
        Input::Queue(crate::queue::Input::Uplinks(vec![
            uplink(WIFI, true, true),
            uplink(LTE, true, true),
        ]))
    };
    for seconds in [20, 22, 24] {
        assert_eq!(queues(&mut engine, seconds, moved()), []);
        assert_eq!(queues(&mut engine, seconds, Input::Tick), []);
    }
    assert_eq!(queues(&mut engine, 25, back()), []);
    assert_eq!(queues(&mut engine, 40, moved()), []);
    assert_eq!(queues(&mut engine, 49, Input::Tick), []);
    assert_eq!(queues(&mut engine, 50, Input::Tick), [(WIFI, false)]);
}

#[test]
fn a_link_that_was_present_for_five_seconds_waits_when_it_returns() {
    let mut engine = with_queues(RATES, bpf());
    let both = |wifi| {
        Input::Queue(crate::queue::Input::Uplinks(vec![
            uplink(wifi, false, true),
            uplink(LTE, true, true),
        ]))
    };
    let alone = || Input::Queue(crate::queue::Input::Uplinks(vec![uplink(LTE, true, true)]));
    queues(&mut engine, 1, both(WIFI));
    queues(&mut engine, 6, alone());
    assert_eq!(queues(&mut engine, 6, both(10)), [], "it comes and goes");
    assert_eq!(queues(&mut engine, 7, Input::Tick), [(10, true)]);
    queues(&mut engine, 30, alone());
    assert_eq!(queues(&mut engine, 30, both(11)), [(11, true)], "it stayed");
}

#[test]
fn an_unneeded_queue_stays_for_a_minute() {
    let mut engine = with_queues("", bpf());
    queues(
        &mut engine,
        1,
        Input::Queue(crate::queue::Input::Uplinks(vec![uplink(WIFI, false, true)])),
    );
    assert_eq!(
        queues(
            &mut engine,
            10,
            Input::Queue(crate::queue::Input::Ordered([(WIFI, 0)].into()))
        ),
        [(WIFI, true)]
    );
    let mut counters = QueueCounters::default();
    counters.bands.background.classified = 10;
    let goes = (11..200).find(|seconds| {
        let pass = Input::Poll {
            flows: Vec::new(),
            complete: true,
            queues: [(WIFI, counters.clone())].into(),
        };
        !queues(&mut engine, *seconds, pass).is_empty()
    });
    assert_eq!(goes, Some(71));
}

#[test]
fn a_detour_that_is_lost_repeatedly_backs_off_unless_it_lasted_a_minute() {
    let htb = Backends {
        htb: Ok(()),
        ..Backends::none()
    };
    let mut engine = with_queues("", htb);
    obey(&mut engine, 50, LIMITED);
    let departure = Arrival {
        ifindex: WIFI,
        name: "eth2".to_owned(),
        ..Arrival::default()
    };
    let way = Way::Sent;
    let mut comes = |seconds: u64, is_lost_after: u64| {
        let asks = |second: &u64| {
            let look = Input::Downlink(crate::downlink::Input::Arrivals {
                way,
                arrivals: vec![departure.clone()],
                counted: None,
            });
            let mut actions = engine.step(at(*second), look);
            actions.extend(engine.step(at(*second), Input::Tick));
            let is_it = |action: &Action| {
                matches!(
                    action,
                    Action::Downlink(crate::downlink::Action::Set { plan: Some(_), .. })
                )
            };
            actions.iter().any(is_it)
        };
        let came = (seconds..seconds + 100).find(asks).expect("a detour");
        let outcome = Ok(LeftOut::new());
        engine.step(
            at(came),
            Input::Downlink(crate::downlink::Input::Outcome { way, outcome }),
        );
        let reason = "it is gone".to_owned();
        engine.step(
            at(came + is_lost_after),
            Input::Downlink(crate::downlink::Input::Lost { way, reason }),
        );
        came - seconds
    };
    let waits = [comes(10, 1), comes(11, 1), comes(13, 1), comes(16, 61), comes(81, 1)];
    assert_eq!(waits, [0, 1, 2, 4, 1]);
}

const ID: ProcessId = ProcessId { pid: 5, start_ns: 7 };

fn owned() -> Flow {
    let owner = Owner {
        pid: ID.pid,
        command: "restic".to_owned(),
        start_ns: ID.start_ns,
    };
    Flow {
        owner: Some(owner),
        ..upload()
    }
}

#[test]
fn idle_io_class_and_idle_cgroups_send_as_background() {
    for idleness in [
        Idleness {
            io_idle: true,
            ..Idleness::default()
        },
        Idleness {
            group_idle: true,
            ..Idleness::default()
        },
        Idleness {
            sched_idle: true,
            ..Idleness::default()
        },
    ] {
        let mut engine = engine("", false);
        see(&mut engine, 100, vec![owned()], true);
        let process = Process {
            idleness,
            ..Process::default()
        };
        identify(&mut engine, 200, process);
        assert_eq!(engine.status(at(1)).flows[0].class, Class::Background);
    }
}

#[test]
fn a_smaller_limit_replaces_a_rules_only_if_root_set_it() {
    for (uid, counts) in [(1000, 1), (0, 48)] {
        let mut engine = engine("", false);
        obey(&mut engine, 50, LIMITED);
        see(&mut engine, 100, vec![owned()], true);
        let rates = Rates {
            up: Some(1_000),
            down: None,
        };
        let limited = Process {
            uid,
            chosen: Some(Choice {
                class: None,
                uid,
                limit: Some(ChosenLimit { number: 48, rates }),
            }),
            ..Process::default()
        };
        identify(&mut engine, 200, limited);
        assert_eq!(engine.limits_of_flows(), [counts].into(), "of {uid}");
    }
}
