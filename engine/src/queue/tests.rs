// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands on the link's way out, by link, kernel, configuration and what others do.

use super::*;
use crate::config::Config;

fn root(kind: &str) -> RootQdisc {
    RootQdisc {
        kind: kind.to_owned(),
        ..RootQdisc::default()
    }
}

fn cable() -> Uplink {
    Uplink {
        ifindex: 2,
        name: "eth0".to_owned(),
        mtu_bytes: 1500,
        header_bytes: 14,
        wired: true,
        speed_mbit: Some(100),
        root: root("pfifo_fast"),
    }
}

fn wifi() -> Uplink {
    Uplink {
        wired: false,
        speed_mbit: None,
        root: root("noqueue"),
        ..cable()
    }
}

fn queue(text: &str, with_qdisc: bool) -> Queue {
    let config = Config::parse(text).unwrap();
    let backends = Backends {
        qdisc: with_qdisc.then_some(()).ok_or("too old a kernel".to_owned()),
        htb: Ok(()),
        dry_run: false,
    };
    Queue::new(config.link, config.queue, backends)
}

/// What is asked for first on this link.
fn first(text: &str, with_qdisc: bool, uplink: Uplink) -> (Option<Plan>, String) {
    let mut queue = queue(text, with_qdisc);
    let plan = queue.observe(Some(uplink)).flatten();
    (plan, queue.why)
}

fn in_force(text: &str) -> Queue {
    let mut queue = queue(text, false);
    queue.observe(Some(cable())).unwrap();
    assert!(queue.conclude(Ok(())).0.unwrap().made);
    queue
}

fn ours(uplink: Uplink) -> Uplink {
    let root = RootQdisc {
        ours: true,
        ..root("htb")
    };
    Uplink { root, ..uplink }
}

#[test]
fn a_cable_has_its_own_rate_and_a_radio_has_none() {
    let (plan, _) = first("", true, cable());
    let plan = plan.unwrap();
    assert_eq!(
        (plan.backend, plan.rate_bytes_per_s),
        (Backend::Qdisc, Some(12_500_000))
    );
    assert_eq!(
        (plan.overhead_bytes, plan.max_packet_bytes, plan.driver_bytes),
        (24, 1514, 1514)
    );
    let (plan, why) = first("", true, wifi());
    assert_eq!(plan.unwrap().rate_bytes_per_s, None);
    assert!(why.contains("nothing is paced and no deadline promised"), "{why}");
}

#[test]
fn without_the_bpf_qdisc_it_is_htb_where_the_rate_is_known_and_else_nothing() {
    assert_eq!(first("", false, cable()).0.unwrap().backend, Backend::Htb);
    let (plan, why) = first("", false, wifi());
    assert!(
        plan.is_none() && why.contains("htb cannot order without a rate"),
        "{why}"
    );
    let (plan, _) = first("[link]\nrate_mbit = 5", false, wifi());
    assert_eq!(plan.unwrap().rate_bytes_per_s, Some(625_000));
}

#[test]
fn a_link_faster_than_1_gbit_is_left_alone_unless_asked_for() {
    let fast = || Uplink {
        speed_mbit: Some(10_000),
        ..cable()
    };
    assert!(first("", true, fast()).0.is_none());
    assert!(first("[queue]\nbackend = \"htb\"", true, fast()).0.is_some());
    assert!(first("[link]\nrate_mbit = 10000", true, fast()).0.is_some());
}

#[test]
fn somebodys_intention_is_left_alone() {
    for kind in ["htb", "tbf", "netem", "cake", "prio", "bpf_something"] {
        let (plan, why) = first(
            "",
            true,
            Uplink {
                root: root(kind),
                ..cable()
            },
        );
        assert!(
            plan.is_none() && why.contains(kind) && why.contains("left alone"),
            "{why}"
        );
    }
    let mut filtered = root("fq_codel");
    filtered.entangled = Some("has filters".to_owned());
    assert!(
        first(
            "",
            true,
            Uplink {
                root: filtered,
                ..cable()
            }
        )
        .0
        .is_none()
    );
}

#[test]
fn what_stands_is_not_asked_for_again() {
    let mut queue = in_force("");
    assert_eq!(queue.observe(Some(ours(cable()))), None);
    assert_eq!(queue.observe(None), None, "the link is down");
    assert_eq!(queue.observe(Some(ours(cable()))), None, "and comes back");
}

#[test]
fn a_new_rate_and_a_new_mtu_are_asked_for() {
    let mut queue = in_force("");
    let slower = Uplink {
        speed_mbit: Some(10),
        mtu_bytes: 9000,
        ..ours(cable())
    };
    let plan = queue.observe(Some(slower)).unwrap().unwrap();
    assert_eq!((plan.rate_bytes_per_s, plan.max_packet_bytes), (Some(1_250_000), 9014));
    assert_eq!(plan.sojourn_target_us, 10_845, "1.5 packets' time");
}

#[test]
fn a_qdisc_that_another_tool_put_in_our_place_stays() {
    let mut queue = in_force("");
    assert_eq!(queue.observe(Some(cable())), Some(None));
    let (change, next) = queue.conclude(Ok(()));
    assert!(change.unwrap().why.contains("another tool"));
    assert_eq!((next, queue.observe(Some(cable()))), (None, None));
    let other = Uplink { ifindex: 3, ..cable() };
    assert!(
        queue.observe(Some(other)).flatten().is_some(),
        "another link is another matter"
    );
}

#[test]
fn a_backend_that_fails_is_not_tried_again_and_the_other_one_is() {
    let mut queue = queue("", true);
    queue.observe(Some(cable())).unwrap();
    let (_, next) = queue.conclude(Err("the verifier refused it".to_owned()));
    assert_eq!(next.unwrap().unwrap().backend, Backend::Htb);
    assert!(queue.why.contains("the verifier refused it"));
    let (_, next) = queue.conclude(Err("no htb either".to_owned()));
    assert_eq!(next, None);
    assert_eq!(queue.observe(Some(cable())), None);
}

#[test]
fn segments_are_single_where_64_kb_take_more_than_a_millisecond() {
    let single = |mbit: u32| {
        let text = format!("[link]\nrate_mbit = {mbit}");
        first(&text, true, cable()).0.unwrap().single_segments
    };
    assert!(single(500) && !single(600));
}
