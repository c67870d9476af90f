// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device: limits requested and answered, other tools, new connections, dry runs.

use std::net::{Ipv4Addr, SocketAddr};

use super::*;
use crate::change::{Change, Setting, Subject, Value};
use crate::model::{CaState, Cookie, Device, Flow, FlowEvent, Owner, Protocol, TcpState};
use crate::share::SharePhase;
use crate::share::limiter::{CapTable, ELSEWHERE};
use crate::sockets::owners::Unidentified;
use crate::sockets::setting::{Outcome, Request};

mod active;
pub mod by_hand;
mod classes;
mod control;
mod datagrams;
mod enforcement;
mod forwarded;
mod lasting;
mod pause;

pub fn interface(index: u32) -> Interface {
    Interface {
        name: format!("eth{index}"),
        index,
        ipv4: Some(Ipv4Addr::LOCALHOST),
    }
}
const COOKIE: Cookie = Cookie(7);

fn device(name: &str, kind: Option<&str>) -> Device {
    Device {
        name: name.to_owned(),
        kind: kind.map(str::to_owned),
        is_loopback: name == "lo",
        is_routed: name != "lo",
    }
}

pub fn upload() -> Flow {
    let address: SocketAddr = (Ipv4Addr::LOCALHOST, 5201).into();
    Flow {
        cookie: COOKIE,
        protocol: Protocol::Tcp,
        local: address,
        remote: address,
        state: TcpState::Established,
        owner: None,
        uid: Some(0),
        priority: 0,
        dscp: 0,
        cgroup_id: 1,
        ifindex: 2,
        cwnd: 100,
        clamp: None,
        ssthresh: None,
        mss_bytes: 1448,
        srtt_us: 100_000,
        min_rtt_us: Some(100_000),
        rttvar_us: 0,
        in_flight_bytes: 144_800,
        unsent_bytes: 100_000,
        unacked_bytes: 144_800,
        delivery_rate_bytes_per_s: 125_000,
        pacing_rate_bytes_per_s: None,
        retransmits: 0,
        delivered_segments: 0,
        acked_bytes: 0,
        received_bytes: 0,
        latest_rtt_us: 0,
        receiver_rtt_us: 0,
        ca_state: CaState::Open,
        congestion_control: "cubic".to_owned(),
    }
}

const CONSTANT: &str = "[cap]\nfixed_segments = 20";

fn engine(config: &str, dry_run: bool) -> Network {
    engine_with(config, dry_run, Means::default())
}

/// With these means for background connections to yield.
fn engine_with(config: &str, dry_run: bool, background: Means) -> Network {
    let config = Config::parse(config).expect("a configuration");
    let setup = Setup {
        seed: [1; 32],
        keys: None,
        rtt_resolution: vec![Duration::from_millis(1)],
        background,
        dry_run,
        backends: Backends::none(),
    };
    let mut engine = Network::new(Duration::ZERO, &config, setup);
    engine.step(Duration::ZERO, Input::Interface(Some(interface(2))));
    engine
}

/// An engine that just requests its first cap.
fn asking() -> Network {
    let mut engine = engine(CONSTANT, false);
    assert!(caps(&pass(&mut engine, 100)).is_empty());
    assert_eq!(caps(&pass(&mut engine, 200)), [(COOKIE, Some(20))]);
    engine
}

fn pass(engine: &mut Network, ms: u64) -> Vec<Action> {
    let flows = vec![upload()];
    engine.step(
        Duration::from_millis(ms),
        Input::Poll {
            flows,
            complete: false,
            queues: Default::default(),
        },
    )
}

#[test]
fn a_retransmitting_connection_counts_as_sending() {
    for (ca_state, until_ms, still_sends) in [
        (CaState::Open, 2_000, false),
        (CaState::Loss, 2_000, true),
        // The remote host is gone.
        (CaState::Loss, 20_000, false),
    ] {
        let mut engine = asking();
        let flow = Flow {
            unsent_bytes: 0,
            ca_state,
            retransmits: 1,
            ..upload()
        };
        for ms in (300..until_ms).step_by(100) {
            engine.step(
                Duration::from_millis(ms),
                Input::Poll {
                    flows: vec![flow.clone()],
                    complete: false,
                    queues: Default::default(),
                },
            );
        }
        assert_eq!(
            engine.limiter.sharing().connections > 0,
            still_sends,
            "{ca_state:?}, {until_ms} ms"
        );
    }
}

/// With a closed window or a vanished remote host, a connection would take its part of the device's share for nothing
/// until it is closed.
#[test]
fn a_connection_to_a_silent_remote_host_stops_counting_as_sending() {
    for (takes, still_sends) in [(true, true), (false, false)] {
        let mut engine = asking();
        for ms in (300..20_000).step_by(100) {
            let flow = Flow {
                delivered_segments: if takes { ms as u32 } else { 0 },
                in_flight_bytes: 0,
                unacked_bytes: 0,
                ..upload()
            };
            engine.step(
                Duration::from_millis(ms),
                Input::Poll {
                    flows: vec![flow],
                    complete: false,
                    queues: Default::default(),
                },
            );
        }
        assert_eq!(engine.limiter.sharing().connections > 0, still_sends, "takes: {takes}");
    }
}

fn answer(engine: &mut Network, outcome: Outcome) -> Vec<Action> {
    engine.step(
        Duration::from_millis(200),
        Input::Sockets(crate::sockets::Input::Outcomes(vec![(COOKIE, Setting::Cap, outcome)])),
    )
}

fn caps(actions: &[Action]) -> Vec<(Cookie, Option<u32>)> {
    let cap = |action: &Action| match action {
        Action::Set(Request {
            cookie,
            settings: limits,
        }) => {
            assert_eq!(
                (limits.len(), &limits[0].setting),
                (1, &Setting::Cap),
                "only cwnd is limited"
            );
            Some((*cookie, crate::sockets::setting::segments(&limits[0].value)))
        }
        _ => None,
    };
    actions.iter().filter_map(cap).collect()
}

#[test]
fn a_deferred_cap_is_requested_again_in_the_next_poll() {
    let mut engine = asking();
    assert!(caps(&answer(&mut engine, Outcome::Deferred)).is_empty());
    let event = FlowEvent::CaState { to: CaState::Open };
    let input = Input::Sockets(crate::sockets::Input::Events(vec![(COOKIE, event)]));
    assert!(caps(&engine.step(Duration::from_millis(250), input)).is_empty());
    assert_eq!(caps(&pass(&mut engine, 300)), [(COOKIE, Some(20))]);
}

/// A scan over the sockets that meets a locked one is aborted, without a report.
#[test]
fn values_written_by_an_aborted_scan_are_no_conflict() {
    let shown = |engine: &mut Network, ms, clamp| {
        let flow = Flow { clamp, ..upload() };
        let passed = Input::Poll {
            flows: vec![flow],
            complete: false,
            queues: Default::default(),
        };
        caps(&engine.step(Duration::from_millis(ms), passed))
    };
    for written in [Some(20), None] {
        let mut engine = asking();
        answer(&mut engine, Outcome::Unknown);
        let again = shown(&mut engine, 300, written);
        assert_eq!(again.is_empty(), written.is_some(), "{written:?}: {again:?}");
        if written.is_none() {
            answer(&mut engine, Outcome::Applied);
        }
        for ms in [400, 500, 600] {
            assert!(shown(&mut engine, ms, Some(20)).is_empty(), "{written:?}");
        }
        let latest = engine.changes().last().cloned().expect("a change");
        assert!(
            !latest.change.reason.contains("another tool"),
            "{written:?}: {}",
            latest.change.reason
        );
        assert_eq!(latest.change.new, Value::from(Some(20_u32)));
    }
}

#[test]
fn a_connection_that_leaves_the_managed_interface_is_uncapped() {
    let mut engine = asking();
    answer(&mut engine, Outcome::Applied);
    let moved = engine.step(Duration::from_millis(250), Input::Interface(Some(interface(3))));
    assert_eq!(caps(&moved), [(COOKIE, None)]);
    answer(&mut engine, Outcome::Applied);
    let changes = engine.changes();
    assert_eq!(changes.last().map(|c| c.change.reason.as_str()), Some(ELSEWHERE));
    assert!(caps(&pass(&mut engine, 300)).is_empty());
}

#[test]
fn a_dry_run_decides_once_and_reports_no_conflict() {
    let mut engine = engine(CONSTANT, true);
    for ms in [100, 200, 300, 400, 500] {
        assert!(caps(&pass(&mut engine, ms)).is_empty());
    }
    let changes = engine.changes();
    let changes: Vec<_> = changes
        .iter()
        .map(|c| (&c.change.new, c.change.made, c.times))
        .collect();
    assert_eq!(changes, [(&Value::Number(20), false, 1)]);
    assert!(!engine.status(Duration::from_secs(1)).flows[0].conflict);
}

#[test]
fn the_kernel_decides_whose_an_unknown_clamp_is() {
    let mut engine = asking();
    answer(&mut engine, Outcome::Applied);
    let held = |clamp| Flow { clamp, ..upload() };
    let mut pass = |ms, clamp| {
        let flows = vec![held(clamp)];
        caps(&engine.step(
            Duration::from_millis(ms),
            Input::Poll {
                flows,
                complete: false,
                queues: Default::default(),
            },
        ))
    };
    assert!(pass(300, Some(20)).is_empty());
    assert!(pass(400, Some(33)).is_empty());
    assert_eq!(pass(500, Some(33)), [(COOKIE, Some(20))]);
    answer(
        &mut engine,
        Outcome::Foreign {
            found: Value::Number(33),
        },
    );
    assert!(engine.status(Duration::from_secs(1)).flows[0].conflict);
}

#[test]
fn an_unknown_value_is_queried_with_a_reason() {
    let mut engine = asking();
    let mut idle_with_a_clamp = |ms| {
        let flows = vec![Flow {
            cookie: Cookie(8),
            clamp: Some(20),
            unsent_bytes: 0,
            ..upload()
        }];
        let pass = Input::Poll {
            flows,
            complete: false,
            queues: Default::default(),
        };
        engine.step(Duration::from_millis(ms), pass)
    };
    let asked = (3..6)
        .flat_map(|pass| idle_with_a_clamp(pass * 100))
        .find_map(|action| match action {
            Action::Set(request) => request.settings.into_iter().next(),
            _ => None,
        });
    let reason = asked.expect("only the kernel knows whose it is").reason;
    assert!(!reason.rule.is_empty() && !reason.reason.is_empty(), "{reason:?}");
}

#[test]
fn a_cap_set_during_a_full_scan_is_not_forgotten() {
    let mut engine = engine(CONSTANT, false);
    engine.step(
        Duration::ZERO,
        Input::Sockets(crate::sockets::Input::CappedAtConnect(vec![(COOKIE, 20)])),
    );
    let nothing = Input::Poll {
        flows: Vec::new(),
        complete: true,
        queues: Default::default(),
    };
    engine.step(Duration::from_millis(50), nothing);
    for ms in [100, 200, 300] {
        let flows = vec![Flow {
            clamp: Some(20),
            ..upload()
        }];
        let input = Input::Poll {
            flows,
            complete: false,
            queues: Default::default(),
        };
        assert!(caps(&engine.step(Duration::from_millis(ms), input)).is_empty());
    }
    assert_eq!(engine.status(Duration::from_secs(1)).flows[0].cap, Some(20));
}

#[test]
fn new_connections_are_capped_on_the_managed_interface_only() {
    let mut engine = engine(CONSTANT, false);
    let mut table = |link| {
        let actions = engine.step(Duration::ZERO, Input::Interface(link));
        actions.into_iter().find_map(|action| match action {
            Action::CapNew(CapTable { ifindex, caps }) => Some((ifindex, caps)),
            _ => None,
        })
    };
    assert_eq!(table(Some(interface(2))), None, "the same as before");
    assert_eq!(table(Some(interface(3))), Some((3, vec![20])));
    assert_eq!(table(None), Some((0, vec![0])));
    assert_eq!(table(None), None);
}

#[test]
fn an_idle_connection_gets_the_cap_of_a_new_one() {
    // 1.2 Mbit/s × 100 ms are ten segments.
    let mut engine = engine("[cap]\ncapacity_mbit = 1.2", false);
    engine.step(
        Duration::ZERO,
        Input::Sockets(crate::sockets::Input::CappedAtConnect(vec![(COOKIE, 4)])),
    );
    let idle = Flow {
        unsent_bytes: 0,
        clamp: Some(4),
        ..upload()
    };
    let flows = vec![idle];
    let actions = engine.step(
        Duration::from_millis(100),
        Input::Poll {
            flows,
            complete: true,
            queues: Default::default(),
        },
    );
    assert_eq!(caps(&actions), [(COOKIE, Some(10))]);
}

#[test]
fn nothing_is_requested_of_a_closed_socket() {
    let mut engine = asking();
    assert!(caps(&answer(&mut engine, Outcome::Gone)).is_empty());
    assert!(engine.status(Duration::from_secs(1)).flows.is_empty());
}

#[test]
fn a_refused_limit_is_recorded_as_not_made_and_not_repeated() {
    let mut engine = asking();
    answer(
        &mut engine,
        Outcome::Failed {
            errno: "EINVAL, errno 22".to_owned(),
        },
    );
    assert!(caps(&pass(&mut engine, 300)).is_empty());
    let changes = engine.changes();
    let change = &changes[0].change;
    assert_eq!((&change.new, change.made), (&Value::Number(20), false));
    assert!(change.reason.contains("(EINVAL, errno 22)"), "{}", change.reason);
    assert!(
        change.shown(false).contains(" -> 20 segments (failed); rule "),
        "{change}"
    );
}

#[test]
fn a_setting_without_means_is_not_reported_as_refused_by_the_kernel() {
    let mut engine = asking();
    answer(&mut engine, Outcome::Unable);
    assert!(caps(&pass(&mut engine, 300)).is_empty());
    let change = &engine.changes()[0].change;
    assert!(
        !change.made && change.reason.starts_with("giveway does not set this here"),
        "{change}"
    );
}

#[test]
fn an_estimated_share_is_reported_in_numbers() {
    let mut engine = engine("[cap]\npolicy = \"estimated\"", false);
    assert_eq!(engine.status(Duration::ZERO).policy.estimate, None);
    for ms in [100, 200, 300] {
        pass(&mut engine, ms);
    }
    let found = engine.status(Duration::from_millis(300)).policy.estimate.unwrap();
    assert!(found.share_bytes_per_s.is_some_and(|share| share > 0), "{found:?}");
    assert_eq!(found.target_queueing_delay_us, 12_000);
    assert_eq!(
        matches!(found.phase, SharePhase::Suspended | SharePhase::Baseline),
        found.limits_return_in_ms.is_some()
    );
    let shown = serde_json::to_value(found).unwrap();
    assert!(
        ["start", "baseline"].contains(&shown["phase"].as_str().unwrap()),
        "{shown}"
    );
    // From a newer giveway.
    assert_eq!(
        serde_json::from_str::<SharePhase>("\"later\"").unwrap(),
        SharePhase::Unknown
    );
}

#[test]
fn a_flow_has_an_owner_once_process_and_cgroup_were_read() {
    let mut engine = engine("", false);
    let owned = || Flow {
        owner: Some(Owner {
            pid: 77,
            command: "cp".to_owned(),
            start_ns: 5,
        }),
        ..upload()
    };
    let mut pass = |ms| {
        let input = Input::Poll {
            flows: vec![owned()],
            complete: true,
            queues: Default::default(),
        };
        let actions = engine.step(Duration::from_millis(ms), input);
        let asked = actions.into_iter().find(|action| matches!(action, Action::Identify(_)));
        (asked, engine.status(Duration::ZERO).flows.remove(0))
    };
    let id = crate::model::ProcessId { pid: 77, start_ns: 5 };
    let (asked, flow) = pass(100);
    assert_eq!(
        asked,
        Some(Action::Identify(Unidentified {
            processes: vec![id],
            cgroups: vec![1],
        }))
    );
    assert_eq!((flow.exe, flow.unit), (None, None));
    let process = crate::model::Process {
        exe: "/usr/bin/cp".to_owned(),
        ..Default::default()
    };
    engine.step(
        Duration::from_millis(150),
        Input::Identified {
            processes: vec![(id, Some(process.into()))],
            cgroups: vec![(1, Some("/system.slice/backup.service".into()))],
        },
    );
    let flow = engine.status(Duration::ZERO).flows.remove(0);
    assert_eq!(flow.exe.as_deref(), Some("/usr/bin/cp"));
    assert_eq!(flow.unit.as_deref(), Some("backup.service"));
}

#[test]
fn short_lived_connections_are_not_identified() {
    let mut engine = engine("", false);
    let mut asked = |ms, cookie| {
        let flow = Flow {
            cookie: Cookie(cookie),
            cgroup_id: cookie,
            ..upload()
        };
        let input = Input::Poll {
            flows: vec![flow],
            complete: false,
            queues: Default::default(),
        };
        let actions = engine.step(Duration::from_millis(ms), input);
        actions.iter().any(|action| matches!(action, Action::Identify(_)))
    };
    assert!(!asked(100, 1000) && !asked(200, 1001), "each seen once");
    assert!(asked(300, 1001), "it has lasted");
}

#[test]
fn changes_of_closed_sockets_are_forgotten_first() {
    let mut engine = asking();
    answer(&mut engine, Outcome::Applied);
    engine.step(
        Duration::from_secs(1),
        Input::Sockets(crate::sockets::Input::Events(vec![(COOKIE, FlowEvent::Close)])),
    );
    let others = (1000..1000 + crate::change::KEPT as u64).map(|cookie| (Cookie(cookie), 20));
    engine.step(
        Duration::from_secs(2),
        Input::Sockets(crate::sockets::Input::CappedAtConnect(others.collect())),
    );
    let is_closed = |latest: &crate::change::Latest| latest.change.subject == Subject::Socket { cookie: COOKIE };
    assert!(!engine.changes().iter().any(is_closed));
}
