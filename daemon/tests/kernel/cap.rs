// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Caps on real connections: set, held, left alone, cleared.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use std::os::fd::{AsFd, AsRawFd};

use giveway::actuate::sockets::cap::clear::{Clear, LAYOUT, SavedSocket, TreatedSocket};
use giveway::actuate::sockets::cap::{CapActuator, CapOutcome, CapResult};
use giveway::actuate::sockets::scavenger;
use giveway::kernel::flow_monitor::FlowMonitor;
use giveway::kernel::own_netns;
use giveway::kernel::records::{bytes_of, record};
use giveway_engine::model::{CaState, Cookie, Flow};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::errno::Errno;
use nix::sys::socket::sockopt::TcpCongestion;
use nix::sys::socket::{getsockopt, setsockopt};

use crate::support::lab::{FAR_V4, FAR_V6, Lab, NEAR_V4, run};
use crate::support::tcp::{Transfer, find, pair, scanned};
use crate::support::wait::await_some;

fn actuator() -> CapActuator {
    CapActuator::open(own_netns().unwrap()).unwrap()
}

fn clamp(monitor: &mut FlowMonitor, stream: &TcpStream) -> Option<u32> {
    scanned(monitor, stream).clamp
}

/// Asks for one cap and applies it.
fn apply_one(actuator: &mut CapActuator, cookie: Cookie, cap: Option<u32>) -> CapOutcome {
    let outcomes = actuator.write([(cookie, cap)]).unwrap();
    assert_eq!(outcomes.len(), 1, "one outcome for what was asked: {outcomes:?}");
    outcomes[0]
}

/// Looks at a transfer until it has moved this much, at each poll.
fn watch(monitor: &mut FlowMonitor, near: &TcpStream, polls: u32, mut look: impl FnMut(&Flow)) {
    let mut seen = 0;
    await_some("passes with the transfer", || {
        let flows = monitor.poll().unwrap();
        if let Some(flow) = find(&flows, near) {
            look(flow);
            seen += 1;
        }
        (seen >= polls).then_some(())
    });
}

#[test]
fn a_live_connection_is_held_below_its_cap_and_set_free_again() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let (near, far) = lab.connect(FAR_V4);
    let cookie = scanned(&mut monitor, &near).cookie;
    let _transfer = Transfer::start(&near, far);
    await_some("a window above the cap", || {
        (scanned(&mut monitor, &near).cwnd > 12).then_some(())
    });

    let outcome = apply_one(&mut actuator, cookie, Some(7));
    assert_eq!(
        (outcome.old, outcome.wanted, outcome.result),
        (None, Some(7), CapResult::Applied { without_restart: false })
    );
    assert_eq!(clamp(&mut monitor, &near), Some(7));
    await_some("the window to fall", || {
        (scanned(&mut monitor, &near).cwnd <= 7).then_some(())
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
        (scanned(&mut monitor, &near).cwnd > 9).then_some(())
    });
}

/// The kernel lowers a window to its clamp only while the window is what limits: a connection that is idle, or paced, or waits
/// in this device's queue would keep the one that it had.
#[test]
fn a_window_that_something_else_holds_back_comes_down_with_the_cap() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let (mut near, mut far) = lab.connect(FAR_V4);
    setsockopt(&near, TcpCongestion, &"cubic".into()).unwrap();
    near.write_all(b"little").unwrap();
    far.read_exact(&mut [0; 6]).unwrap();
    let idle = await_some("the acknowledgement", || {
        let flow = scanned(&mut monitor, &near);
        (flow.unacked_bytes == 0 && flow.delivered_segments > 1).then_some(flow)
    });
    assert!(idle.cwnd > 6, "{}", idle.cwnd);
    let outcome = apply_one(&mut actuator, idle.cookie, Some(6));
    assert_eq!(outcome.result, CapResult::Applied { without_restart: false });
    let capped = scanned(&mut monitor, &near);
    assert_eq!((capped.cwnd, capped.clamp), (6, Some(6)));
    assert_eq!(capped.congestion_control, idle.congestion_control);
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

    let reports = actuator.new_capped().unwrap();
    for near in opened.iter().map(|(near, _)| near).chain([&accepted]) {
        let flow = scanned(&mut monitor, near);
        assert_eq!(flow.clamp, Some(6));
        assert!(flow.cwnd <= 6, "the initial window {} is above the cap", flow.cwnd);
        let report = reports
            .iter()
            .find(|report| Cookie(report.cookie) == flow.cookie)
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
    let cookie = scanned(&mut monitor, &near).cookie;
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
        let flow = scanned(&mut monitor, &near);
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
    let cookie = scanned(&mut monitor, &near).cookie;
    set_as_somebody_else(cookie, 11);
    for wanted in [Some(5), None] {
        let outcome = apply_one(&mut actuator, cookie, wanted);
        assert_eq!((outcome.old, outcome.result), (Some(11), CapResult::Foreign));
    }
    assert_eq!(actuator.clear_all().unwrap(), []);
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
        let cookie = scanned(&mut monitor, &near).cookie;
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
    let cookie = scanned(&mut monitor, &near).cookie;
    run(&format!("ip -n {} link set gwv down", lab.far));
    near.write_all(&[0; 1000]).unwrap();
    await_some("a retransmission timeout", || {
        (scanned(&mut monitor, &near).ca_state == CaState::Loss).then_some(())
    });
    assert_eq!(
        apply_one(&mut actuator, cookie, Some(5)).result,
        CapResult::Deferred(CaState::Loss)
    );
    assert_eq!(clamp(&mut monitor, &near), None);

    run(&format!("ip -n {} link set gwv up", lab.far));
    far.read_exact(&mut [0; 1000]).unwrap();
    assert_eq!(actuator.write([]).unwrap(), [], "nothing stays staged");
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
    apply_one(actuator, scanned(monitor, &live.0).cookie, Some(21));
    actuator.publish_new(lab.ifindex, &[(0, 20)]).unwrap();
    [lab.connect(FAR_V6), live, free]
}

#[test]
fn revert_clears_what_is_ours_and_caps_nothing_more() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let streams = three(&lab, &mut monitor, &mut actuator);
    assert_eq!(
        streams.each_ref().map(|(near, _)| clamp(&mut monitor, near)),
        [Some(20), Some(21), None]
    );
    let mut cleared: Vec<_> = actuator
        .clear_all()
        .unwrap()
        .iter()
        .map(|o| o.cap.map(|(ours, _)| ours))
        .collect();
    cleared.sort_unstable();
    assert_eq!(cleared, [Some(20), Some(21)]);
    assert_eq!(streams.each_ref().map(|(near, _)| clamp(&mut monitor, near)), [None; 3]);
    let (after, _far) = lab.connect(FAR_V4);
    assert_eq!(clamp(&mut monitor, &after), None);
}

/// A connection that becomes a listener (connect(2) with AF_UNSPEC) keeps its clamp, and its children inherit it.
#[test]
fn a_listener_that_was_capped_as_a_connection_is_cleared_too() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let (near, _far) = lab.connect(FAR_V4);
    apply_one(&mut actuator, scanned(&mut monitor, &near).cookie, Some(20));
    let unspecified = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as libc::sa_family_t,
        sa_data: [0; 14],
    };
    // SAFETY: the address is valid for the calls, which only read it.
    let disconnected = unsafe { libc::connect(near.as_raw_fd(), &unspecified, size_of::<libc::sockaddr>() as u32) };
    assert_eq!(Errno::result(disconnected), Ok(0));
    nix::sys::socket::listen(&near, nix::sys::socket::Backlog::new(4).unwrap()).unwrap();
    let port = near.local_addr().unwrap().port();
    let listener = TcpListener::from(std::os::fd::OwnedFd::from(near));
    let child_of = |listener: &TcpListener| {
        let _far = lab.far(|| TcpStream::connect((NEAR_V4, port)).unwrap());
        (listener.accept().unwrap().0, _far)
    };
    let (inherits, _far) = child_of(&listener);
    assert_eq!(clamp(&mut monitor, &inherits), Some(20), "else this shows nothing");
    assert_eq!(actuator.clear_all().unwrap().len(), 2);
    assert_eq!(clamp(&mut monitor, &inherits), None);
    let (after, _far) = child_of(&listener);
    assert_eq!(clamp(&mut monitor, &after), None);
}

#[test]
fn after_the_actuators_death_its_recorded_values_are_cleared() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let streams = three(&lab, &mut monitor, &mut actuator);
    drop(actuator);
    // Another test that starts a command at this moment holds a copy of our descriptors until its exec.
    let (after, _far) = await_some("the programs to go with their process", || {
        let pair = lab.connect(FAR_V4);
        clamp(&mut monitor, &pair.0).is_none().then_some(pair)
    });
    set_as_somebody_else(scanned(&mut monitor, &after).cookie, 22);

    let clear = |dry_run| undo(None, &[20, 21], dry_run);
    assert_eq!(caps(&clear(true)), [20, 21]);
    assert_eq!(
        clamp(&mut monitor, &streams[0].0),
        Some(20),
        "a dry run changes nothing"
    );
    assert_eq!(caps(&clear(false)), [20, 21]);
    assert_eq!(streams.each_ref().map(|(near, _)| clamp(&mut monitor, near)), [None; 3]);
    assert_eq!(clamp(&mut monitor, &after), Some(22));
    assert_eq!(clear(false), [], "nothing is left");
}

fn undo(saved: Option<&MapHandle>, values: &[u32], dry_run: bool) -> Vec<TreatedSocket> {
    let mut clear = Clear::open(own_netns().unwrap(), saved, dry_run).unwrap();
    let found = clear.run(values).unwrap();
    assert!(found.iter().all(|one| one.error.is_none()), "{found:?}");
    found
}

/// The clamps that were found, each once: connections of before may not be gone yet.
fn caps(found: &[TreatedSocket]) -> Vec<u32> {
    let mut caps: Vec<u32> = found.iter().filter_map(|one| Some(one.cap?.0)).collect();
    caps.sort_unstable();
    caps.dedup();
    caps
}

#[test]
fn saved_state_tells_our_clamp_from_an_equal_one_of_another_owner() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let [new, live, free] = three(&lab, &mut monitor, &mut actuator);
    let taken = lab.connect(FAR_V4);
    let cookie = scanned(&mut monitor, &taken.0).cookie;
    apply_one(&mut actuator, cookie, Some(21));
    actuator.publish_new(lab.ifindex, &[]).unwrap();
    let equal = lab.connect(FAR_V4);
    let saved = MapHandle::try_from(actuator.saved()).unwrap();
    drop(actuator);
    set_as_somebody_else(scanned(&mut monitor, &equal.0).cookie, 21);
    // What is marked, but not ours any more.
    SavedSocket {
        clamp_ours: 30,
        ..saved_of(&saved, &taken.0)
    }
    .put(&saved, &taken.0);

    assert_eq!(caps(&undo(Some(&saved), &[], true)), [20, 21]);
    assert_eq!(clamp(&mut monitor, &new.0), Some(20), "a dry run changes nothing");
    assert_eq!(caps(&undo(Some(&saved), &[], false)), [20, 21]);
    let now = [&new, &live, &free, &equal, &taken].map(|(near, _)| clamp(&mut monitor, near));
    assert_eq!(now, [None, None, None, Some(21), Some(21)]);
    assert_eq!(undo(Some(&saved), &[], false), [], "nothing is left");
}

fn saved_of(saved: &MapHandle, socket: &impl AsFd) -> SavedSocket {
    let key = socket.as_fd().as_raw_fd().to_ne_bytes();
    record(&saved.lookup(&key, MapFlags::ANY).unwrap().unwrap()).unwrap()
}

trait PutSaved {
    fn put(&self, saved: &MapHandle, socket: &impl AsFd);
}

impl PutSaved for SavedSocket {
    fn put(&self, saved: &MapHandle, socket: &impl AsFd) {
        let key = socket.as_fd().as_raw_fd().to_ne_bytes();
        saved.update(&key, bytes_of(self), MapFlags::ANY).unwrap();
    }
}

#[test]
fn what_was_there_before_comes_back() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let [cleared, left] = [lab.connect(FAR_V4).0, lab.connect(FAR_V4).0];
    for near in [&cleared, &left] {
        apply_one(&mut actuator, scanned(&mut monitor, near).cookie, Some(9));
        let saved = saved_of(actuator.saved(), near);
        assert_eq!((saved.clamp_ours, saved.clamp_before), (9, u32::MAX));
        SavedSocket {
            clamp_before: 17,
            ..saved
        }
        .put(actuator.saved(), near);
    }
    let cookie = scanned(&mut monitor, &cleared).cookie;
    await_some("a clear", || {
        matches!(apply_one(&mut actuator, cookie, None).result, CapResult::Applied { .. }).then_some(())
    });
    assert_eq!(undo(Some(actuator.saved()), &[], false).len(), 1);
    for near in [&cleared, &left] {
        assert_eq!(clamp(&mut monitor, near), Some(17));
    }
}

#[test]
fn saved_state_of_an_older_layout_is_restored_and_of_a_newer_one_not_touched() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    let [older, newer] = [lab.connect(FAR_V4).0, lab.connect(FAR_V4).0];
    for (near, layout) in [(&older, LAYOUT - 1), (&newer, LAYOUT + 1)] {
        apply_one(&mut actuator, scanned(&mut monitor, near).cookie, Some(9));
        SavedSocket {
            layout,
            ..saved_of(actuator.saved(), near)
        }
        .put(actuator.saved(), near);
    }
    let cookies = [&older, &newer].map(|near| scanned(&mut monitor, near).cookie);
    let mut found = undo(Some(actuator.saved()), &[], false);
    found.sort_by_key(|one| one.layout);
    let told: Vec<_> = found
        .iter()
        .map(|one| (one.cookie, one.layout, one.cap.is_some()))
        .collect();
    assert_eq!(told, [(cookies[0], LAYOUT - 1, true), (cookies[1], LAYOUT + 1, false)]);
    assert_eq!([&older, &newer].map(|near| clamp(&mut monitor, near)), [None, Some(9)]);
    for wanted in [Some(5), None] {
        assert_eq!(apply_one(&mut actuator, cookies[1], wanted).result, CapResult::Foreign);
    }
    assert_eq!(actuator.clear_all().unwrap(), []);
}

/// A saved state with nothing but what a test sets in it.
fn blank() -> SavedSocket {
    SavedSocket {
        layout: LAYOUT,
        ..record(&[0; size_of::<SavedSocket>()]).unwrap()
    }
}

const PACING_RATE: (i32, i32) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
const WINDOW_CLAMP: (i32, i32) = (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP);

fn set(socket: &impl AsFd, (level, name): (i32, i32), value: u32) {
    let (descriptor, value) = (socket.as_fd().as_raw_fd(), &raw const value);
    // SAFETY: the kernel reads the four bytes that the pointer is to.
    let done = unsafe { libc::setsockopt(descriptor, level, name, value.cast(), 4) };
    Errno::result(done).unwrap();
}

fn get(socket: &impl AsFd, (level, name): (i32, i32)) -> u32 {
    let (descriptor, mut value, mut length) = (socket.as_fd().as_raw_fd(), 0u32, 4);
    // SAFETY: the kernel writes at most the four bytes that the pointer is to.
    let done = unsafe { libc::getsockopt(descriptor, level, name, (&raw mut value).cast(), &raw mut length) };
    Errno::result(done).unwrap();
    value
}

#[test]
fn accepted_sockets_inherit_the_listeners_saved_state() {
    let lab = Lab::enter();
    let actuator = actuator();
    let listener = TcpListener::bind((NEAR_V4, 0)).unwrap();
    let (before, ours) = (5_000_000, 1_000_000);
    set(&listener, PACING_RATE, ours);
    SavedSocket {
        ours: 2,
        pacing_before: before.into(),
        pacing_ours: ours.into(),
        ..blank()
    }
    .put(actuator.saved(), &listener);
    let port = listener.local_addr().unwrap().port();
    let _far = [(); 2].map(|()| lab.far(|| TcpStream::connect((NEAR_V4, port)).unwrap()));
    let [child, another] = [(); 2].map(|()| listener.accept().unwrap().0);
    // Changed since, by its owner.
    set(&another, PACING_RATE, ours + 1);
    assert_eq!(get(&child, PACING_RATE), ours);
    let found = undo(Some(actuator.saved()), &[], false);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].to_string().contains("pacing rate restored"), "{}", found[0]);
    assert_eq!(
        (get(&listener, PACING_RATE), get(&child, PACING_RATE)),
        (before, before)
    );
    assert_eq!(get(&another, PACING_RATE), ours + 1);
}

#[test]
fn a_congestion_control_and_a_receive_window_are_restored() {
    let lab = Lab::enter();
    let actuator = actuator();
    let (near, _far) = lab.connect(FAR_V4);
    let (before, ours) = (60_000, 20_000);
    setsockopt(&near, TcpCongestion, &"reno".into()).unwrap();
    set(&near, WINDOW_CLAMP, ours);
    let saved = SavedSocket {
        ours: 4 | 8,
        window_before: before,
        window_ours: ours,
        control_before: scavenger::kernel_name("cubic"),
        control_ours: scavenger::kernel_name("reno"),
        ..blank()
    };
    saved.put(actuator.saved(), &near);
    assert_eq!(undo(Some(actuator.saved()), &[], false).len(), 1);
    let control = getsockopt(&near, TcpCongestion).unwrap();
    assert!(control.to_string_lossy().starts_with("cubic"), "{control:?}");
    assert_eq!(get(&near, WINDOW_CLAMP), before);
}

#[test]
fn where_nobody_has_a_congestion_control_any_more_reno_stands_in() {
    let lab = Lab::enter();
    let actuator = actuator();
    let (near, _far) = lab.connect(FAR_V4);
    setsockopt(&near, TcpCongestion, &"cubic".into()).unwrap();
    let saved = SavedSocket {
        ours: 8,
        control_before: scavenger::kernel_name("unloaded"),
        control_ours: scavenger::kernel_name("cubic"),
        ..blank()
    };
    saved.put(actuator.saved(), &near);
    assert_eq!(undo(Some(actuator.saved()), &[], false)[0].error, None);
    let control = getsockopt(&near, TcpCongestion).unwrap();
    assert!(control.to_string_lossy().starts_with("reno"), "{control:?}");
}

#[test]
fn other_namespaces_are_never_capped() {
    let lab = Lab::enter();
    let mut actuator = actuator();
    // The remote host's interface has the same index in its namespace, and its sockets see the same cgroup hook.
    let far_ifindex = lab.far(|| nix::net::if_::if_nametoindex("gwv").unwrap());
    actuator.publish_new(far_ifindex, &[(0, 5)]).unwrap();
    let (_near, far) = lab.connect(FAR_V4);
    let flow = lab.far(|| scanned(&mut FlowMonitor::open(own_netns().unwrap()).unwrap(), &far));
    assert_eq!(flow.clamp, None);
    assert_eq!(apply_one(&mut actuator, flow.cookie, Some(5)).result, CapResult::Gone);
    let flow = lab.far(|| scanned(&mut FlowMonitor::open(own_netns().unwrap()).unwrap(), &far));
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
        let cookie = scanned(monitor, near).cookie;
        actuator.write([(cookie, from)]).unwrap();
        let before = scanned(monitor, near);
        if before.clamp != from || before.ca_state != CaState::Open || !ready(&before) {
            return None;
        }
        let outcome = apply_one(actuator, cookie, to);
        let after = scanned(monitor, near);
        (after.ca_state == CaState::Open && after.retransmits == before.retransmits).then_some((outcome.result, after))
    })
}

#[test]
fn a_clear_does_not_restart_slow_start() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    assert_eq!(actuator.ease_missing(), None);
    let (near, _transfer) = reno_transfer(&lab);
    let (result, flow) = change_undisturbed((&mut monitor, &mut actuator, &near), (Some(10), None), |flow| {
        flow.cwnd <= 10
    });
    assert_eq!(result, CapResult::Applied { without_restart: true });
    assert_eq!(flow.congestion_control, "reno", "its own congestion control is back");
    assert!(
        flow.ssthresh.is_some_and(|ssthresh| ssthresh <= 10),
        "ssthresh {:?}",
        flow.ssthresh
    );
}

#[test]
fn a_cap_that_the_first_slow_start_has_not_reached_leaves_nothing_behind() {
    let lab = Lab::enter();
    let (near, _far) = lab.connect(FAR_V4);
    let cookie = scanned(&mut lab.monitor(), &near).cookie;
    let mut actuator = actuator();
    for cap in [Some(500), None] {
        let outcome = apply_one(&mut actuator, cookie, cap);
        assert_eq!(outcome.result, CapResult::Applied { without_restart: false });
    }
    assert_eq!(scanned(&mut lab.monitor(), &near).ssthresh, None);
}

#[test]
fn a_cap_above_what_the_network_allows_keeps_ssthresh() {
    let lab = Lab::enter();
    let (mut monitor, mut actuator) = (lab.monitor(), actuator());
    lab.narrow(20, 60_000);
    let (near, _transfer) = reno_transfer(&lab);
    let in_avoidance = |flow: &Flow| flow.ssthresh.is_some_and(|ssthresh| ssthresh <= flow.cwnd);
    let (result, flow) = change_undisturbed((&mut monitor, &mut actuator, &near), (None, Some(500)), in_avoidance);
    assert_eq!(result, CapResult::Applied { without_restart: true });
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
    assert_eq!(
        (result, flow.ssthresh),
        (CapResult::Applied { without_restart: false }, Some(16))
    );
}

#[test]
fn more_sockets_than_the_kernels_table_holds_are_capped_in_turns() {
    let lab = Lab::enter();
    let (near, _far) = lab.connect(FAR_V4);
    let cookie = scanned(&mut lab.monitor(), &near).cookie;
    let mut actuator = actuator();
    let others = (1..=70_000)
        .map(|other| Cookie(u64::MAX - 70_001 + other))
        .filter(|other| *other != cookie);
    let outcomes = actuator
        .write(others.chain([cookie]).map(|cookie| (cookie, Some(20))))
        .unwrap();
    let of = |result| outcomes.iter().filter(|outcome| outcome.result == result).count();
    assert_eq!((of(CapResult::Gone), outcomes.len()), (70_000, 70_001));
    assert_eq!(scanned(&mut lab.monitor(), &near).clamp, Some(20));
}

#[test]
fn more_values_than_the_kernels_table_holds_are_cleared_in_turns() {
    let lab = Lab::enter();
    let (near, _far) = lab.connect(FAR_V4);
    let mut monitor = lab.monitor();
    let mut actuator = actuator();
    apply_one(&mut actuator, scanned(&mut monitor, &near).cookie, Some(69_999));
    drop(actuator);
    assert_eq!(clamp(&mut monitor, &near), Some(69_999));
    let values: Vec<u32> = (1..70_000).collect();
    assert_eq!(undo(None, &values, false).len(), 1);
    assert_eq!(clamp(&mut monitor, &near), None);
}
