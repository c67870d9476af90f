// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Caps on real connections: set, held, left alone, lifted.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use giveway::actuate::cap::lift::Lift;
use giveway::actuate::cap::{CapActuator, CapResult, Outcome};
use giveway::kernel::flow_monitor::FlowMonitor;
use giveway::kernel::own_netns;
use giveway_engine::model::{CaState, Cookie, Flow};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpCongestion;

use super::lab::{FAR_V4, FAR_V6, Lab, NEAR_V4, Transfer, await_some, find, pair, run, walked};

fn actuator() -> CapActuator {
    CapActuator::open(own_netns().unwrap()).unwrap()
}

fn clamp(monitor: &mut FlowMonitor, stream: &TcpStream) -> Option<u32> {
    walked(monitor, stream).clamp
}

/// Asks for one cap and applies it.
fn apply_one(actuator: &mut CapActuator, cookie: Cookie, cap: Option<u32>) -> Outcome {
    actuator.set(cookie, cap);
    let outcomes = actuator.apply().unwrap();
    assert_eq!(outcomes.len(), 1, "one outcome for what was asked: {outcomes:?}");
    outcomes[0]
}

/// Looks at a transfer until it has moved this much, at each pass.
fn watch(monitor: &mut FlowMonitor, near: &TcpStream, passes: u32, mut look: impl FnMut(&Flow)) {
    let mut seen = 0;
    await_some("passes with the transfer", || {
        let flows = monitor.pass().unwrap();
        if let Some(flow) = find(&flows, near) {
            look(flow);
            seen += 1;
        }
        (seen >= passes).then_some(())
    });
}

#[test]
fn a_live_connection_is_held_below_its_cap_and_set_free_again() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let (near, far) = lab.connect(FAR_V4);
    let cookie = walked(&mut monitor, &near).cookie;
    let _transfer = Transfer::start(&near, far);
    await_some("a window above the cap", || {
        (walked(&mut monitor, &near).cwnd > 12).then_some(())
    });

    let outcome = apply_one(&mut actuator, cookie, Some(7));
    assert_eq!(
        (outcome.old, outcome.wanted, outcome.result),
        (None, Some(7), CapResult::Applied { eased: false })
    );
    assert_eq!(clamp(&mut monitor, &near), Some(7));
    await_some("the window to fall", || {
        (walked(&mut monitor, &near).cwnd <= 7).then_some(())
    });
    watch(&mut monitor, &near, 50, |flow| {
        assert!(flow.cwnd <= 7, "cwnd {} above the cap", flow.cwnd)
    });

    assert_eq!(apply_one(&mut actuator, cookie, Some(7)).result, CapResult::Unchanged);
    assert_eq!(apply_one(&mut actuator, cookie, Some(9)).old, Some(7));
    assert!(matches!(
        apply_one(&mut actuator, cookie, None).result,
        CapResult::Applied { .. }
    ));
    assert_eq!(clamp(&mut monitor, &near), None);
    await_some("the window to grow", || {
        (walked(&mut monitor, &near).cwnd > 9).then_some(())
    });
}

#[test]
fn a_new_connection_is_capped_before_its_first_data() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    assert_eq!(actuator.new_connections_missing(), None);
    let listener = TcpListener::bind(("::", 0)).unwrap();
    let (before, _far) = lab.connect(FAR_V4);
    let generation = actuator.publish_new(lab.ifindex, &[(0, 6)]).unwrap();

    let opened = [lab.connect(FAR_V4), lab.connect(FAR_V6)];
    let port = listener.local_addr().unwrap().port();
    let _accepted_far = lab.far(|| TcpStream::connect((NEAR_V4, port)).unwrap());
    let (accepted, _) = listener.accept().unwrap();

    let mut reports = Vec::new();
    actuator.poll_events(&mut |report| reports.push(report)).unwrap();
    for near in opened.iter().map(|(near, _)| near).chain([&accepted]) {
        let flow = walked(&mut monitor, near);
        assert_eq!(flow.clamp, Some(6));
        assert!(flow.cwnd <= 6, "the initial window {} is above the cap", flow.cwnd);
        let report = reports
            .iter()
            .find(|report| report.cookie == flow.cookie)
            .expect("a cap is reported");
        assert_eq!((report.cap, report.generation), (6, generation));
        assert_eq!(Some(report.rtt_us), flow.min_rtt_us);
    }
    assert_eq!(reports.len(), 3);
    assert_eq!(
        clamp(&mut monitor, &before),
        None,
        "older connections are the business of apply"
    );

    let [(near, far), _] = opened;
    let _transfer = Transfer::start(&near, far);
    watch(&mut monitor, &near, 50, |flow| {
        assert!(flow.cwnd <= 6, "cwnd {} above the cap", flow.cwnd)
    });
    // What was set there is known as ours.
    let cookie = walked(&mut monitor, &near).cookie;
    await_some("a change", || {
        matches!(
            apply_one(&mut actuator, cookie, Some(8)).result,
            CapResult::Applied { .. }
        )
        .then_some(())
    });
}

#[test]
fn the_cap_of_a_new_connection_is_that_of_its_rtt() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    // Each step has a cap of its own, so the cap tells the step.
    let steps: Vec<_> = (0..64).map(|n| (n * 8, 100 + n)).collect();
    actuator.publish_new(lab.ifindex, &steps).unwrap();
    for _ in 0..20 {
        let (near, _far) = lab.connect(FAR_V4);
        let flow = walked(&mut monitor, &near);
        let step = flow.clamp.expect("capped") - 100;
        let rtt_us = flow.min_rtt_us.unwrap();
        assert!(
            rtt_us >= step * 8 && (rtt_us < step * 8 + 8 || step == 63),
            "{rtt_us} us got step {step}"
        );
    }
    // A table that begins above every RTT here, and one for another interface.
    for (ifindex, steps) in [(lab.ifindex, [(60_000_000, 5)]), (lab.ifindex + 1000, [(0, 5)])] {
        actuator.publish_new(ifindex, &steps).unwrap();
        let (near, _far) = lab.connect(FAR_V4);
        assert_eq!(clamp(&mut monitor, &near), None);
    }
}

/// Another owner of clamps, who does not tell us.
fn set_as_somebody_else(cookie: Cookie, cap: u32) {
    assert!(matches!(
        apply_one(&mut actuator(), cookie, Some(cap)).result,
        CapResult::Applied { .. }
    ));
}

#[test]
fn a_clamp_of_somebody_else_is_left_alone() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let (near, _far) = lab.connect(FAR_V4);
    let cookie = walked(&mut monitor, &near).cookie;
    set_as_somebody_else(cookie, 11);
    for wanted in [Some(5), None] {
        let outcome = apply_one(&mut actuator, cookie, wanted);
        assert_eq!((outcome.old, outcome.result), (Some(11), CapResult::Foreign));
    }
    assert_eq!(actuator.revert().unwrap(), []);
    assert_eq!(clamp(&mut monitor, &near), Some(11));
}

#[test]
fn a_clamp_from_the_route_is_left_alone_by_new_connections() {
    let lab = Lab::enter();
    run("ip route replace 10.99.0.0/24 dev gwv cwnd lock 11");
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    actuator.publish_new(lab.ifindex, &[(0, 5)]).unwrap();
    // The kernel takes a route's window over when the first connection to a host ends.
    await_some("the route's clamp", || {
        let (near, far) = lab.connect(FAR_V4);
        let clamp = clamp(&mut monitor, &near);
        near.shutdown(Shutdown::Write).unwrap();
        drop((far, near));
        assert!(matches!(clamp, Some(5 | 11)));
        (clamp == Some(11)).then_some(())
    });
}

#[test]
fn loopback_is_never_capped() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    actuator.publish_new(1, &[(0, 5)]).unwrap();
    // An address of the veth is reached through lo as well.
    for ip in ["127.0.0.1", NEAR_V4, "::1"] {
        let (near, _other) = pair(&TcpListener::bind((ip, 0)).unwrap());
        assert_eq!(clamp(&mut monitor, &near), None);
        let cookie = walked(&mut monitor, &near).cookie;
        assert_eq!(apply_one(&mut actuator, cookie, Some(5)).result, CapResult::Loopback);
        assert_eq!(clamp(&mut monitor, &near), None);
    }
    drop(lab);
}

#[test]
fn a_connection_that_repairs_a_loss_is_capped_afterwards() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let (mut near, mut far) = lab.connect(FAR_V4);
    let cookie = walked(&mut monitor, &near).cookie;
    run(&format!("ip -n {} link set gwv down", lab.far));
    near.write_all(&[0; 1000]).unwrap();
    await_some("a retransmission timeout", || {
        (walked(&mut monitor, &near).ca_state == CaState::Loss).then_some(())
    });
    assert_eq!(
        apply_one(&mut actuator, cookie, Some(5)).result,
        CapResult::Deferred(CaState::Loss)
    );
    assert_eq!(clamp(&mut monitor, &near), None);

    run(&format!("ip -n {} link set gwv up", lab.far));
    far.read_exact(&mut [0; 1000]).unwrap();
    assert_eq!(actuator.apply().unwrap(), [], "nothing stays staged");
    await_some("the end of the repair", || {
        let outcome = apply_one(&mut actuator, cookie, Some(5));
        matches!(outcome.result, CapResult::Applied { .. }).then_some(())
    });
    assert_eq!(clamp(&mut monitor, &near), Some(5));
}

#[test]
fn a_connection_that_ended_is_reported_as_gone() {
    let _lab = Lab::enter();
    let outcome = apply_one(&mut actuator(), Cookie(u64::MAX), Some(5));
    assert_eq!(outcome.result, CapResult::Gone);
}

/// Three connections: capped as new, capped live, never capped.
fn three(lab: &Lab, monitor: &mut FlowMonitor, actuator: &mut CapActuator) -> [(TcpStream, TcpStream); 3] {
    let [live, free] = [lab.connect(FAR_V4), lab.connect(FAR_V4)];
    apply_one(actuator, walked(monitor, &live.0).cookie, Some(21));
    actuator.publish_new(lab.ifindex, &[(0, 20)]).unwrap();
    [lab.connect(FAR_V6), live, free]
}

#[test]
fn revert_lifts_what_is_ours_and_caps_nothing_more() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let streams = three(&lab, &mut monitor, &mut actuator);
    assert_eq!(
        streams.each_ref().map(|(near, _)| clamp(&mut monitor, near)),
        [Some(20), Some(21), None]
    );
    let mut lifted: Vec<_> = actuator.revert().unwrap().iter().map(|o| o.old).collect();
    lifted.sort_unstable();
    assert_eq!(lifted, [Some(20), Some(21)]);
    assert_eq!(streams.each_ref().map(|(near, _)| clamp(&mut monitor, near)), [None; 3]);
    let (after, _far) = lab.connect(FAR_V4);
    assert_eq!(clamp(&mut monitor, &after), None);
}

#[test]
fn after_the_actuators_death_its_recorded_values_are_lifted() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let streams = three(&lab, &mut monitor, &mut actuator);
    drop(actuator);
    // Another test that starts a command at this moment holds a copy of our descriptors until its exec.
    let (after, _far) = await_some("the programs to go with their process", || {
        let pair = lab.connect(FAR_V4);
        clamp(&mut monitor, &pair.0).is_none().then_some(pair)
    });
    set_as_somebody_else(walked(&mut monitor, &after).cookie, 22);

    let mut lift = Lift::open(own_netns().unwrap()).unwrap();
    let caps = |found: Vec<giveway::actuate::cap::lift::Lifted>| {
        assert!(found.iter().all(|one| one.error.is_none()));
        let mut caps: Vec<_> = found.iter().map(|one| one.cap).collect();
        caps.sort_unstable();
        // The connections that were tried above may not be gone yet.
        caps.dedup();
        caps
    };
    assert_eq!(caps(lift.run(&[20, 21], true).unwrap()), [20, 21]);
    assert_eq!(
        clamp(&mut monitor, &streams[0].0),
        Some(20),
        "a dry run changes nothing"
    );
    assert_eq!(caps(lift.run(&[20, 21], false).unwrap()), [20, 21]);
    assert_eq!(streams.each_ref().map(|(near, _)| clamp(&mut monitor, near)), [None; 3]);
    assert_eq!(clamp(&mut monitor, &after), Some(22));
    assert_eq!(lift.run(&[20, 21], false).unwrap(), [], "nothing is left");
}

#[test]
fn other_namespaces_are_never_capped() {
    let lab = Lab::enter();
    let mut actuator = actuator();
    // The far end's interface has the same index in its namespace, and its sockets see the same cgroup hook.
    let far_ifindex = lab.far(|| nix::net::if_::if_nametoindex("gwv").unwrap());
    actuator.publish_new(far_ifindex, &[(0, 5)]).unwrap();
    let (_near, far) = lab.connect(FAR_V4);
    let flow = lab.far(|| walked(&mut FlowMonitor::open(own_netns().unwrap()).unwrap(), &far));
    assert_eq!(flow.clamp, None);
    assert_eq!(apply_one(&mut actuator, flow.cookie, Some(5)).result, CapResult::Gone);
    let flow = lab.far(|| walked(&mut FlowMonitor::open(own_netns().unwrap()).unwrap(), &far));
    assert_eq!(flow.clamp, None);
}

/// A transfer by Reno, whose window shows what it is told.
fn reno_transfer(lab: &Lab) -> (TcpStream, Transfer) {
    let (near, far) = lab.connect(FAR_V4);
    setsockopt(&near, TcpCongestion, &"reno".into()).unwrap();
    let transfer = Transfer::start(&near, far);
    (near, transfer)
}

/// Puts one cap on and then another, as soon as the connection is as `ready` says; returns what became of the second
/// and the flow after it. A loss in between changes the windows for reasons of its own: then once more.
fn change_undisturbed(
    (monitor, actuator, near): (&mut FlowMonitor, &mut CapActuator, &TcpStream),
    (from, to): (Option<u32>, Option<u32>),
    ready: impl Fn(&Flow) -> bool,
) -> (CapResult, Flow) {
    await_some("a change that no loss disturbs", || {
        let cookie = walked(monitor, near).cookie;
        actuator.set(cookie, from);
        actuator.apply().unwrap();
        let before = walked(monitor, near);
        if before.clamp != from || before.ca_state != CaState::Open || !ready(&before) {
            return None;
        }
        let outcome = apply_one(actuator, cookie, to);
        let after = walked(monitor, near);
        (after.ca_state == CaState::Open && after.retransmits == before.retransmits).then_some((outcome.result, after))
    })
}

#[test]
fn a_lift_does_not_restart_slow_start() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    assert_eq!(actuator.ease_missing(), None);
    let (near, _transfer) = reno_transfer(&lab);
    let (result, flow) = change_undisturbed((&mut monitor, &mut actuator, &near), (Some(10), None), |flow| {
        flow.cwnd <= 10
    });
    assert_eq!(result, CapResult::Applied { eased: true });
    assert_eq!(flow.congestion_control, "reno", "its own congestion control is back");
    assert!(
        flow.ssthresh.is_some_and(|ssthresh| ssthresh <= 10),
        "ssthresh {:?}",
        flow.ssthresh
    );
}

#[test]
fn a_cap_above_what_the_network_allows_keeps_ssthresh() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    lab.narrow(20, 60_000);
    let (near, _transfer) = reno_transfer(&lab);
    let in_avoidance = |flow: &Flow| flow.ssthresh.is_some_and(|ssthresh| ssthresh <= flow.cwnd);
    let (result, flow) = change_undisturbed((&mut monitor, &mut actuator, &near), (None, Some(500)), in_avoidance);
    assert_eq!(result, CapResult::Applied { eased: true });
    assert!(in_avoidance(&flow), "cwnd {}, ssthresh {:?}", flow.cwnd, flow.ssthresh);
}

#[test]
fn a_raised_cap_is_reached_fast() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let (near, _transfer) = reno_transfer(&lab);
    let (result, flow) = change_undisturbed((&mut monitor, &mut actuator, &near), (Some(8), Some(16)), |flow| {
        flow.cwnd == 8
    });
    assert_eq!((result, flow.ssthresh), (CapResult::Applied { eased: false }, Some(16)));
}
