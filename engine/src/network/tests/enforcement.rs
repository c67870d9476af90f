// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a requested limit or class is enforced: by the link that the flow leaves by, by the queue in which it was
//! seen, and reported once.

use super::classes::{obey, see};

use super::*;
use crate::downlink::{Arrival, LeftOut, Way};
use crate::enforcement::Cause;
use crate::enforcement::elsewhere::Elsewhere;
use crate::model::{Class, Prefix, Rates};
use crate::queue::{RootQdisc, Uplink};

const LIMITED: &str = "[[rule]]\nport = 5201\nclass = \"bulk\"\nupload_limit_mbit = 2.0\n";
const BACKGROUND: &str = "[[rule]]\nport = 5201\nclass = \"background\"\n";
const ETH: u32 = 2;
const TUN: u32 = 9;

fn managing(config: &str, backends: Backends) -> Network {
    let config = Config::parse(config).expect("a configuration");
    let setup = Setup {
        seed: [1; 32],
        keys: None,
        rtt_resolution: vec![Duration::from_millis(1)],
        background: Means::default(),
        dry_run: backends.dry_run,
        backends,
    };
    let mut engine = Network::new(Duration::ZERO, &config, setup);
    engine.step(Duration::ZERO, Input::Interface(Some(interface(ETH))));
    let devices = [
        (1, device("lo", None)),
        (ETH, device("eth2", None)),
        (TUN, device("tun0", Some("tun"))),
    ];
    engine.step(
        Duration::ZERO,
        Input::Class(crate::class::Input::Devices(devices.into())),
    );
    let uplink = Uplink {
        ifindex: ETH,
        name: "eth2".to_owned(),
        mtu_bytes: 1500,
        header_bytes: 14,
        wired: false,
        speed_mbit: None,
        up: true,
        carrier_losses: 0,
        root: RootQdisc {
            kind: "noqueue".to_owned(),
            ..RootQdisc::default()
        },
        chosen: true,
    };
    engine.step(Duration::ZERO, Input::Queue(crate::queue::Input::Uplinks(vec![uplink])));
    engine.step(
        Duration::ZERO,
        Input::Queue(crate::queue::Input::Outcome {
            ifindex: ETH,
            outcome: Ok(()),
        }),
    );
    engine
}

fn with_htb() -> Backends {
    Backends {
        htb: Ok(()),
        ..Backends::none()
    }
}

/// An engine whose only managed link has a queue.
fn with_queue() -> Network {
    managing("[link]\nrate_mbit = 10.0", with_htb())
}

/// Polls of a flow on this device over these seconds, followed by the reports on its limit.
fn sends(engine: &mut Network, ifindex: u32, ms: std::ops::Range<u64>, seen_on: Option<u32>) {
    for ms in ms.step_by(100) {
        let flow = Flow {
            ifindex,
            delivered_segments: ms as u32,
            ..upload()
        };
        see(engine, ms, vec![flow], false);
        let traced = engine.overview().to_be_traced();
        let traced = traced.into_iter().map(|cookie| (cookie, seen_on)).collect();
        engine.step(
            Duration::from_millis(ms),
            Input::Enforcement(crate::enforcement::Input::Traced(traced)),
        );
    }
}

/// Uploads on this link can be limited.
fn departs(engine: &mut Network, ms: u64) {
    let (now, way) = (Duration::from_millis(ms), Way::Sent);
    let departure = Arrival {
        ifindex: ETH,
        name: "eth2".to_owned(),
        ..Arrival::default()
    };
    let looked = Input::Downlink(crate::downlink::Input::Arrivals {
        way,
        arrivals: vec![departure],
        counted: None,
    });
    let actions = engine.step(now, looked);
    let is_it = |action: &Action| matches!(action, Action::Downlink(crate::downlink::Action::Set { way: Way::Sent, plan: Some(plan) }) if plan.links.contains_key(&ETH));
    assert!(actions.iter().any(is_it), "{actions:?}");
    engine.step(
        now,
        Input::Downlink(crate::downlink::Input::Outcome {
            way,
            outcome: Ok(LeftOut::new()),
        }),
    );
}

fn limit(engine: &Network) -> (Option<String>, String) {
    let view = engine.status(Duration::from_secs(100)).flows.remove(0);
    let limit = view.limit.and_then(|limits| limits.upload).expect("it has a limit");
    assert_eq!(limit.mbit, 2.0);
    (
        limit.enforcement.enforced_by,
        limit.enforcement.reason.unwrap_or_default(),
    )
}

/// The reports on enforcement.
fn said(engine: &Network) -> Vec<String> {
    let changes = engine.changes().into_iter().map(|latest| latest.change.to_string());
    changes.filter(|line| line.contains("not enforced")).collect()
}

#[test]
fn a_limit_is_enforced_on_the_link_that_the_flow_leaves_by() {
    let mut engine = with_queue();
    obey(&mut engine, 50, LIMITED);
    departs(&mut engine, 60);
    sends(&mut engine, ETH, 100..1000, None);
    assert_eq!(limit(&engine), (Some("eth2".to_owned()), String::new()));
    assert!(said(&engine).is_empty());
    assert!(engine.overview().to_be_traced().is_empty(), "its device tells");
}

#[test]
fn a_limited_flow_through_an_unmanaged_tunnel_is_reported_once_within_a_second() {
    let mut engine = with_queue();
    obey(&mut engine, 50, LIMITED);
    sends(&mut engine, TUN, 100..1100, None);
    let (enforced_by, reason) = limit(&engine);
    assert_eq!(enforced_by, None);
    assert_eq!(
        reason,
        "it leaves by the tunnel tun0 (tun), which is not managed (set `interfaces = [\"eth2\", \"tun0\"]`)"
    );
    let [line] = &said(&engine)[..] else {
        panic!("{:?}", said(&engine))
    };
    assert!(
        line.contains("rate limit 2 Mbit/s -> not enforced; rule a.toml:1: it leaves by"),
        "{line}"
    );
    // Another flow of the same rule on the same device is not reported again.
    let other = Flow {
        cookie: Cookie(8),
        ifindex: TUN,
        ..upload()
    };
    for ms in [1200, 1600, 2000] {
        see(&mut engine, ms, vec![other.clone()], false);
        engine.step(
            Duration::from_millis(ms),
            Input::Enforcement(crate::enforcement::Input::Traced(vec![(Cookie(8), None)])),
        );
    }
    assert_eq!(said(&engine).len(), 1);
    let short = engine.status(Duration::from_secs(2)).not_enforced.remove(0);
    assert_eq!(
        (short.what.as_str(), short.interface.as_str()),
        ("rate limit 2 Mbit/s", "tun0")
    );
    assert_eq!(
        (short.class, short.upload_limit_mbit, short.cause),
        (None, Some(2.0), Cause::NotManaged)
    );
}

#[test]
fn a_flow_on_a_device_above_a_managed_link_is_limited_there() {
    let mut engine = with_queue();
    obey(&mut engine, 50, LIMITED);
    departs(&mut engine, 60);
    sends(&mut engine, TUN, 100..1100, Some(ETH));
    assert_eq!(limit(&engine).0.as_deref(), Some("eth2"));
    assert!(said(&engine).is_empty());
    // The route changes, and the device below with it.
    sends(&mut engine, TUN, 1100..2100, None);
    assert_eq!(limit(&engine).0, None);
    assert_eq!(said(&engine).len(), 1);
    sends(&mut engine, TUN, 2100..3100, Some(ETH));
    let latest = engine.changes().pop().unwrap().change;
    assert!(latest.to_string().contains("not enforced -> 2 Mbit/s"), "{latest}");
    assert!(engine.status(Duration::from_secs(4)).not_enforced.is_empty());
}

#[test]
fn local_traffic_is_not_ordered_but_limited() {
    let own: Prefix = "127.0.0.0/8".to_owned().try_into().unwrap();
    assert!(own.contains(upload().remote.ip()));
    let mut engine = with_queue();
    engine.step(
        Duration::ZERO,
        Input::Queue(crate::queue::Input::Subnets([(ETH, vec![own])].into())),
    );
    obey(&mut engine, 50, BACKGROUND);
    sends(&mut engine, ETH, 100..1100, None);
    let status = engine.status(Duration::from_secs(2));
    let order = status.flows[0].class_enforcement.clone().unwrap();
    assert_eq!((order.enforced_by, order.cause), (None, Some(Cause::Local)));
    let short = &status.not_enforced[0];
    assert_eq!(
        (short.class, short.upload_limit_mbit, short.cause),
        (Some(Class::Background), None, Cause::Local)
    );
    assert!(short.reason.contains("local traffic of eth2"), "{}", short.reason);
    assert_eq!(said(&engine).len(), 1);
    // Now its address is another one.
    engine.step(Duration::ZERO, Input::Queue(crate::queue::Input::Subnets([].into())));
    sends(&mut engine, ETH, 1100..2100, None);
    assert!(engine.status(Duration::from_secs(3)).not_enforced.is_empty());

    let mut engine = with_queue();
    engine.step(
        Duration::ZERO,
        Input::Queue(crate::queue::Input::Subnets([(ETH, vec![own])].into())),
    );
    obey(&mut engine, 50, LIMITED);
    departs(&mut engine, 60);
    sends(&mut engine, ETH, 100..1100, None);
    assert_eq!(limit(&engine), (Some("eth2".to_owned()), String::new()));
}

#[test]
fn a_missing_queue_a_dry_run_and_a_pause_are_reported_as_reasons() {
    let no_rate = managing("", with_htb());
    let dry = managing(
        "[link]\nrate_mbit = 10.0",
        Backends {
            dry_run: true,
            ..with_htb()
        },
    );
    let mut paused = with_queue();
    paused.step(Duration::ZERO, Input::Pause(Some("uid 0 tries it".to_owned())));
    for (mut engine, expected) in [
        (no_rate, "upload limits have not been installed yet"),
        (dry, "a dry run changes nothing"),
        (paused, "giveway is paused: uid 0 tries it"),
    ] {
        obey(&mut engine, 50, LIMITED);
        sends(&mut engine, ETH, 100..1100, None);
        let (enforced_by, reason) = limit(&engine);
        assert!(enforced_by.is_none() && reason.starts_with(expected), "{reason}");
        assert_eq!(said(&engine).len(), 1, "{reason}");
        let at_start = engine
            .overview()
            .shortfalls_of(Some(Class::Background), Rates::default());
        let reason = expected.replace(
            "upload limits have not been installed yet",
            "eth2 has no giveway queue: ",
        );
        assert!(at_start[0].starts_with(&reason), "{at_start:?}");
        assert!(engine.overview().enforcing().is_empty(), "{reason}");
    }
}

#[test]
fn an_unenforced_class_is_reported_once_per_device() {
    let mut engine = with_queue();
    obey(&mut engine, 50, BACKGROUND);
    sends(&mut engine, TUN, 100..1100, None);
    let view = engine.status(Duration::from_secs(2)).flows.remove(0);
    assert!(view.limit.is_none());
    assert!(view.class_enforcement.unwrap().reason.unwrap().contains("tun0"));
    let [line] = &said(&engine)[..] else {
        panic!("{:?}", said(&engine))
    };
    assert!(
        line.starts_with("interface tun0 (to 127.0.0.1:5201): class background -> not enforced"),
        "{line}"
    );
    obey(&mut engine, 1200, "[[rule]]\nport = 5201\nclass = \"bulk\"\n");
    sends(&mut engine, TUN, 1200..2000, None);
    let status = engine.status(Duration::from_secs(2));
    assert!(status.not_enforced.is_empty() && status.flows[0].class_enforcement.is_none());
}

#[test]
fn loopback_traffic_is_shown_but_not_logged() {
    let mut engine = with_queue();
    obey(&mut engine, 50, LIMITED);
    sends(&mut engine, 1, 100..1100, None);
    assert_eq!(limit(&engine), (None, "it stays on this host (lo)".to_owned()));
    assert!(said(&engine).is_empty());
}

#[test]
fn without_a_queue_a_detour_enforces_limits_but_not_classes() {
    let mut engine = managing("", with_htb());
    obey(&mut engine, 50, LIMITED);
    departs(&mut engine, 60);
    sends(&mut engine, ETH, 100..1100, None);
    assert_eq!(limit(&engine), (Some("eth2".to_owned()), String::new()));
    assert!(said(&engine).is_empty());
    let limited = Rates {
        up: Some(1),
        down: None,
    };
    let lacks = |class| engine.overview().shortfalls_of(Some(class), limited);
    assert!(
        lacks(Class::Bulk)
            .iter()
            .all(|reason| !reason.contains("eth2 has no queue"))
    );
    assert!(lacks(Class::Background)[0].starts_with("eth2 has no giveway queue: "));
    let (way, reason) = (Way::Sent, "it is gone".to_owned());
    engine.step(
        Duration::from_millis(1100),
        Input::Downlink(crate::downlink::Input::Lost { way, reason }),
    );
    sends(&mut engine, ETH, 1200..2200, None);
    let (enforced_by, reason) = limit(&engine);
    assert!(
        enforced_by.is_none() && reason.ends_with("uploads on eth2 are not limited: it is gone"),
        "{reason}"
    );
    assert_eq!(said(&engine).len(), 1);
}

#[test]
fn a_command_is_warned_of_links_without_a_queue_and_unmanaged_devices() {
    let engine = with_queue();
    let limited = Rates {
        up: Some(1),
        down: None,
    };
    let told = engine.overview().shortfalls_of(Some(Class::Bulk), limited);
    assert_eq!(engine.overview().enforcing(), ["eth2"]);
    assert_eq!(
        told,
        ["the tunnel tun0 (tun) has routes and is not managed (set `interfaces = [\"eth2\", \"tun0\"]`)"]
    );
    assert!(
        engine
            .overview()
            .shortfalls_of(Some(Class::Bulk), Rates::default())
            .is_empty(),
        "it asks for no queue"
    );
}

fn elsewhere(uid: u32, pid: u32, command: String, netns_inum: u32) -> Elsewhere {
    Elsewhere {
        id: crate::model::ProcessId { pid, start_ns: 7 },
        command,
        netns_inum,
        uid,
    }
}

#[test]
fn a_process_in_another_network_namespace_is_reported_once() {
    let mut engine = with_queue();
    let process = elsewhere(0, 5, "curl".to_owned(), 4711);
    for ms in [1000, 2000] {
        engine.step(
            Duration::from_millis(ms),
            Input::Enforcement(crate::enforcement::Input::Elsewhere(vec![process.clone()])),
        );
    }
    let [line] = &said(&engine)[..] else {
        panic!("{:?}", said(&engine))
    };
    assert!(
        line.starts_with("process 5 (curl): class chosen -> not enforced; rule giveway exec: "),
        "{line}"
    );
    assert!(line.contains("net:[4711]"), "{line}");
    assert_eq!(engine.status(Duration::from_secs(3)).elsewhere.len(), 1);
    engine.step(
        Duration::from_secs(3),
        Input::Enforcement(crate::enforcement::Input::Elsewhere(Vec::new())),
    );
    assert!(engine.status(Duration::from_secs(3)).elsewhere.is_empty());
}

/// They rename themselves before each poll, and those of every other user move between namespaces.
#[test]
fn many_processes_of_a_user_in_other_namespaces_hide_nobodys_and_are_reported_rarely() {
    for (uids, namespaces) in [(1, 1), (1, 5000), (500, 5000)] {
        let mut engine = with_queue();
        let mut told = 0;
        for second in (1..=120).step_by(7) {
            let hostile = |n: u32| {
                let netns_inum = 1 + (n + second) % namespaces;
                elsewhere(1000 + n % uids, 10_000 + n, format!("{second}-{n}"), netns_inum)
            };
            let mut found: Vec<_> = (0..5000).map(hostile).collect();
            found.push(elsewhere(0, 60_000, format!("roots {second}"), 4711));
            let actions = engine.step(
                Duration::from_secs(second.into()),
                Input::Enforcement(crate::enforcement::Input::Elsewhere(found)),
            );
            let is_told = |action: &&Action| matches!(action, Action::Record(_));
            told += actions.iter().filter(is_told).count();
        }
        let shown = engine.status(Duration::from_secs(120)).elsewhere;
        assert!(shown.len() <= 64, "{}", shown.len());
        let roots = shown.iter().find(|process| process.pid == 60_000);
        assert_eq!(roots.map(|process| process.command.as_str()), Some("roots 1"));
        println!("{uids} users, {namespaces} namespaces: {told} changes in 120 s");
        assert!(told <= 1 + 2 * 16, "{told}");
        assert!(
            said(&engine).iter().any(|line| line.contains("roots 1")),
            "root's is told of"
        );
    }
}

/// An unconnected UDP socket has no route of its own: the queue in which it was seen decides.
#[test]
fn an_unconnected_udp_socket_is_enforced_where_its_packets_are_seen() {
    let rule = "[[rule]]\nlocal_port = 5201\nclass = \"bulk\"\nupload_limit_mbit = 2.0\n";
    for (seen_on, said_lines) in [(Some(ETH), 0), (None, 1)] {
        let mut engine = with_queue();
        obey(&mut engine, 50, rule);
        departs(&mut engine, 60);
        for second in 1..5 {
            let flow = Flow {
                protocol: Protocol::Udp,
                remote: (Ipv4Addr::UNSPECIFIED, 0).into(),
                ifindex: 0,
                delivered_segments: second,
                ..upload()
            };
            let now = Duration::from_secs(second.into());
            engine.step(now, Input::Sockets(crate::sockets::Input::Datagrams(vec![flow])));
            let traced = engine.overview().to_be_traced();
            let traced = traced.into_iter().map(|cookie| (cookie, seen_on)).collect();
            engine.step(now, Input::Enforcement(crate::enforcement::Input::Traced(traced)));
        }
        let view = engine.status(Duration::from_secs(6)).datagrams.remove(0);
        let enforced_by = view.limit.unwrap().upload.unwrap().enforcement.enforced_by;
        assert_eq!(enforced_by.is_some(), seen_on.is_some());
        assert_eq!(said(&engine).len(), said_lines, "{:?}", said(&engine));
    }
}

#[test]
fn deadlines_on_unmanaged_interfaces_are_reported_once_each() {
    let deadline = "[link]\nrate_mbit = 10.0\n[[deadline]]\nport = 5005\ndeadline_ms = 10.0";
    let mut engine = managing(deadline, with_htb());
    let devices = [(ETH, device("eth2", None)), (TUN, device("tun0", Some("tun")))];
    for ms in [100, 200] {
        engine.step(
            Duration::from_millis(ms),
            Input::Class(crate::class::Input::Devices(devices.clone().into())),
        );
    }
    let [line] = &said(&engine)[..] else {
        panic!("{:?}", said(&engine))
    };
    assert!(
        line.starts_with("interface tun0: deadlines promised -> not enforced; rule [[deadline]]: "),
        "{line}"
    );
    assert!(said(&with_queue()).is_empty(), "none are configured");
}
