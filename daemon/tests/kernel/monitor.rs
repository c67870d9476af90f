// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the flow monitor shows of real sockets.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use giveway::kernel::cgroup::CgroupRoot;
use giveway::kernel::flow_monitor::{FlowMonitor, SocketEvent};
use giveway::kernel::own_netns;
use giveway::kernel::tasks::Tasks;
use giveway_engine::model::{CaState, Flow, FlowEvent, TcpState};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::support::lab::{FAR_V4, FAR_V6, Lab, NEAR_V4, run};
use crate::support::process::KillOnDrop;
use crate::support::tcp::{Transfer, fill, find, pair, scanned};
use crate::support::wait::{await_some, until};

/// What `ss -tinH` says of one socket: the words with a colon, and those that stand before their value.
fn ss(stream: &TcpStream) -> HashMap<String, String> {
    let (local, remote) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    let text = run(&format!("ss -tinHO src {local} dst {remote}"));
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.len() > 10, "ss does not know the socket: {text:?}");
    let mut fields: HashMap<String, String> = words
        .iter()
        .filter_map(|word| word.split_once(':'))
        .map(|(k, v)| (k.into(), v.into()))
        .collect();
    fields.extend(words.windows(2).map(|pair| (pair[0].into(), pair[1].into())));
    fields.insert("send_queue".into(), words[2].into());
    fields.insert("congestion_control".into(), words[5].into());
    fields
}

fn number(text: &str) -> f64 {
    text.trim_end_matches("bps")
        .parse()
        .unwrap_or_else(|_| panic!("no number: {text}"))
}

/// ss writes milliseconds with three digits or fewer.
fn same(ours: f64, theirs: &str, what: &str) {
    let theirs = number(theirs);
    assert!(
        (ours - theirs).abs() <= 1.0 + theirs * 0.01,
        "{what}: {ours} here, {theirs} in ss"
    );
}

#[test]
fn every_field_is_what_ss_says() {
    let lab = Lab::enter();
    let mut monitor = lab.monitor();
    let (mut near, _far) = lab.connect(FAR_V4);
    fill(&mut near);
    let flow = scanned(&mut monitor, &near);
    let ss = ss(&near);
    let of = |name: &str| {
        ss.get(name)
            .unwrap_or_else(|| panic!("ss does not say {name}: {ss:?}"))
            .as_str()
    };

    assert_eq!(flow.state, TcpState::Established);
    assert_eq!(flow.congestion_control, of("congestion_control"));
    assert_eq!(flow.clamp, None);
    assert_eq!(flow.ifindex, lab.ifindex);
    assert_eq!(flow.ca_state, CaState::Open);
    same(flow.cwnd.into(), of("cwnd"), "cwnd, segments");
    same(flow.mss_bytes.into(), of("mss"), "mss, bytes");
    same(
        (flow.unsent_bytes + flow.unacked_bytes) as f64,
        of("send_queue"),
        "queue, bytes",
    );
    assert!(flow.unsent_bytes > 0, "a connection that nobody reads has unsent bytes");
    same(flow.unsent_bytes as f64, of("notsent"), "unsent, bytes");
    same(
        flow.min_rtt_us.unwrap().into(),
        &(number(of("minrtt")) * 1000.0).to_string(),
        "min RTT, us",
    );
    let (rtt, rttvar) = of("rtt").split_once('/').unwrap();
    same(flow.srtt_us.into(), &(number(rtt) * 1000.0).to_string(), "srtt, us");
    same(
        flow.rttvar_us.into(),
        &(number(rttvar) * 1000.0).to_string(),
        "rttvar, us",
    );
    same(
        flow.delivery_rate_bytes_per_s as f64 * 8.0,
        of("delivery_rate"),
        "delivery rate, bit/s",
    );
    same(
        flow.pacing_rate_bytes_per_s.unwrap() as f64 * 8.0,
        of("pacing_rate"),
        "pacing rate, bit/s",
    );
    let unacked = ss.get("unacked").map_or(0.0, |text| number(text));
    same(
        flow.in_flight_bytes as f64,
        &(unacked * f64::from(flow.mss_bytes)).to_string(),
        "in flight, bytes",
    );
    let retransmits = ss
        .get("retrans")
        .and_then(|text| text.split_once('/'))
        .map_or("0", |(_, total)| total);
    assert_eq!(flow.retransmits.to_string(), retransmits);
    assert_eq!(flow.ssthresh, ss.get("ssthresh").map(|text| text.parse().unwrap()));
}

#[test]
fn the_owner_is_the_process_that_uses_the_socket() {
    let lab = Lab::enter();
    let listener = lab.far_listener(FAR_V4);
    let (before, _far_before) = pair(&listener);
    // Another process, connected before anyone watches.
    let address = listener.local_addr().unwrap();
    let script = format!("exec 3<>/dev/tcp/{}/{}; echo up; read", address.ip(), address.port());
    let mut command = Command::new("bash");
    command
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut shell = KillOnDrop::spawn(&mut command);
    shell.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    let mut monitor = lab.monitor();
    let (after, _far_after) = pair(&listener);

    let me = std::fs::read_to_string("/proc/self/comm").unwrap().trim().to_owned();
    for stream in [&before, &after] {
        let owner = scanned(&mut monitor, stream).owner.expect("an open file has an owner");
        assert_eq!((owner.pid, &owner.command), (std::process::id(), &me));
    }
    let flows = monitor.scan().unwrap();
    let owners = flows.iter().filter_map(|flow| flow.owner.as_ref());
    let command = owners
        .filter(|owner| owner.pid == shell.id())
        .map(|owner| owner.command.as_str())
        .next();
    assert_eq!(command, Some("bash"));
    drop(shell.stdin.take());
    shell.wait().unwrap();
}

#[test]
fn the_owner_of_an_accepted_socket_is_known_from_its_first_receive() {
    let lab = Lab::enter();
    let mut monitor = lab.monitor();
    let listener = TcpListener::bind((NEAR_V4, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let mut far = lab.far(|| TcpStream::connect(address).unwrap());
    let (mut near, _) = listener.accept().unwrap();
    far.write_all(b"x").unwrap();
    near.read_exact(&mut [0]).unwrap();
    let flows = monitor.poll().unwrap();
    let owner = find(&flows, &near).expect("a receiver is active").owner.clone();
    assert_eq!(owner.map(|owner| owner.pid), Some(std::process::id()));
}

#[test]
fn the_owner_of_a_silent_accepted_socket_is_found_by_the_next_scan() {
    let lab = Lab::enter();
    let mut monitor = lab.monitor();
    monitor.scan().unwrap();
    let listener = TcpListener::bind((NEAR_V4, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let _far = lab.far(|| TcpStream::connect(address).unwrap());
    let (near, _) = listener.accept().unwrap();
    let owner = scanned(&mut monitor, &near).owner;
    assert_eq!(owner.map(|owner| owner.pid), Some(std::process::id()));
}

#[test]
fn the_owner_of_an_inherited_socket_is_found_within_six_scans() {
    let lab = Lab::enter();
    let listener = lab.far_listener(FAR_V4);
    let (near, _far) = pair(&listener);
    let mut monitor = lab.monitor();
    assert_eq!(
        scanned(&mut monitor, &near).owner.map(|owner| owner.pid),
        Some(std::process::id())
    );
    let cookie = scanned(&mut monitor, &near).cookie;
    // The heir holds the socket as its standard input; it is not closed here until the heir runs.
    let mut sleep = Command::new("sleep");
    let heir = KillOnDrop::spawn(sleep.arg("60").stdin(std::os::fd::OwnedFd::from(near)));
    drop(sleep);
    let owners = (0..6).map(|_| {
        let flows = monitor.scan().unwrap();
        flows
            .into_iter()
            .find(|flow| flow.cookie == cookie)
            .expect("still open")
            .owner
            .map(|owner| owner.pid)
    });
    let owners: Vec<_> = owners.collect();
    assert!(owners.contains(&Some(heir.id())), "{owners:?}");
}

#[test]
fn the_owner_is_whoever_uses_the_socket_while_another_keeps_a_copy() {
    moves_to_its_user(FlowMonitor::open);
    moves_to_its_user(FlowMonitor::open_over_all);
}

fn moves_to_its_user(open: fn(u32) -> anyhow::Result<FlowMonitor>) {
    let lab = Lab::enter();
    let mut monitor = open(own_netns().unwrap()).unwrap();
    let (mut near, _far) = lab.connect(FAR_V4);
    near.write_all(b"x").unwrap();
    // A pass shows it only while it is active.
    let mut owner = || {
        let flows = monitor.poll().unwrap();
        Some(find(&flows, &near)?.owner.as_ref()?.pid)
    };
    until("it is this process's", || owner() == Some(std::process::id()));
    let mut shell = Command::new("bash");
    shell.args(["-c", "while echo x; do sleep 0.1 >&2; done"]);
    let copy = std::os::fd::OwnedFd::from(near.try_clone().unwrap());
    let child = KillOnDrop::spawn(shell.stdout(copy));
    drop(shell);
    until("it is the child's", || owner() == Some(child.id()));
    for _ in 0..20 {
        assert_eq!(
            await_some("a poll shows it", &mut owner),
            child.id(),
            "a copy is no use"
        );
    }
}

#[test]
fn the_cgroup_has_a_path() {
    let lab = Lab::enter();
    let mut monitor = lab.monitor();
    let (near, _far) = lab.connect(FAR_V4);
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
    let id = scanned(&mut monitor, &near).cgroup_id;
    let tasks = Tasks::load(own_netns().unwrap()).unwrap();
    let path_of = |id| tasks.cgroup(id).map(|cgroup| cgroup.path);
    assert_eq!(path_of(id).as_deref(), Some(path));
    assert_eq!(path_of(u64::MAX), None);

    // Hidden, as by `ip netns exec`.
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).unwrap();
    assert!(CgroupRoot::open().is_ok());
    assert_eq!(path_of(id).as_deref(), Some(path));
}

#[test]
fn ipv6_and_ipv4_through_an_ipv6_socket_are_shown_by_their_addresses() {
    let lab = Lab::enter();
    let mut monitor = lab.monitor();
    let (six, _far_six) = lab.connect(FAR_V6);
    let flow = scanned(&mut monitor, &six);
    assert_eq!(
        (flow.local, flow.remote),
        (six.local_addr().unwrap(), six.peer_addr().unwrap())
    );

    let (mapped, _far_mapped) = lab.connect(&format!("::ffff:{FAR_V4}"));
    let flow = scanned(&mut monitor, &mapped);
    assert_eq!(flow.local.ip().to_string(), NEAR_V4);
    assert_eq!(flow.remote.ip().to_string(), FAR_V4);
}

/// Polls until the connections' own handshakes are no longer in them.
fn settle(monitor: &mut FlowMonitor) {
    await_some("idle connections leave the polls", || {
        monitor.poll().unwrap().is_empty().then_some(())
    });
}

/// Both ways in which a poll may go.
const OPENINGS: [fn(u32) -> anyhow::Result<FlowMonitor>; 2] = [FlowMonitor::open, FlowMonitor::open_over_all];

#[test]
fn a_pass_shows_the_active_and_only_them() {
    OPENINGS.into_iter().for_each(shows_the_active_and_only_them);
}

fn shows_the_active_and_only_them(open: fn(u32) -> anyhow::Result<FlowMonitor>) {
    let lab = Lab::enter();
    let mut monitor = open(own_netns().unwrap()).unwrap();
    let listener = lab.far_listener(FAR_V4);
    let mut streams: Vec<_> = (0..500).map(|_| pair(&listener)).collect();
    settle(&mut monitor);

    streams[7].0.write_all(b"x").unwrap();
    let flows = monitor.poll().unwrap();
    assert_eq!(flows.len(), 1, "one of 500 was active");
    assert!(find(&flows, &streams[7].0).is_some());

    // More than the kernel hands over in one read.
    streams.iter_mut().for_each(|(near, _)| near.write_all(b"x").unwrap());
    let mut cookies: Vec<_> = monitor.poll().unwrap().iter().map(|flow| flow.cookie).collect();
    cookies.sort_unstable();
    cookies.dedup();
    assert_eq!(cookies.len(), 500, "every active socket, once");
}

#[test]
fn a_stalled_sender_stays_in_the_passes() {
    OPENINGS.into_iter().for_each(stalls_and_stays);
}

fn stalls_and_stays(open: fn(u32) -> anyhow::Result<FlowMonitor>) {
    let lab = Lab::enter();
    let (mut near, _far) = lab.connect(FAR_V4);
    fill(&mut near);
    // It stalled before anyone watched: the first scan finds it.
    let mut monitor = open(own_netns().unwrap()).unwrap();
    assert!(monitor.scan().unwrap().iter().any(|flow| flow.unsent_bytes > 0));
    let start = Instant::now();
    await_some("1.5 s of polls", || {
        let flows = monitor.poll().unwrap();
        assert!(
            find(&flows, &near).is_some(),
            "gone from the polls after {:?}",
            start.elapsed()
        );
        (start.elapsed().as_millis() > 1500).then_some(())
    });
}

fn collect(monitor: &mut FlowMonitor, events: &mut Vec<SocketEvent>) {
    monitor.poll_events(&mut |event| events.push(event)).unwrap();
}

#[test]
fn events_tell_a_life_in_order() {
    let lab = Lab::enter();
    let mut monitor = lab.monitor();
    let listener = lab.far_listener(FAR_V4);
    let (near, far) = pair(&listener);
    let cookie = scanned(&mut monitor, &near).cookie;
    let (local, remote) = (near.local_addr().unwrap(), near.peer_addr().unwrap());
    drop(far);
    await_some("the remote host's FIN", || {
        (near.peek(&mut [0]).unwrap() == 0).then_some(())
    });
    drop(near);

    let mut events = Vec::new();
    await_some("the end of the connection", || {
        collect(&mut monitor, &mut events);
        events
            .iter()
            .any(|event| event.cookie == cookie && event.what == FlowEvent::Close)
            .then_some(())
    });
    events.retain(|event| event.cookie == cookie);
    assert!(events.is_sorted_by_key(|event| event.t_ns));
    // The kernel chooses the local port after it says that it connects.
    assert!(
        events[1..]
            .iter()
            .all(|event| event.local == local && event.remote == remote),
        "{events:#?}"
    );
    let what: Vec<_> = events.iter().map(|event| event.what).collect();
    assert_eq!(
        what,
        [
            FlowEvent::State {
                from: TcpState::Close,
                to: TcpState::SynSent
            },
            FlowEvent::Open,
            FlowEvent::State {
                from: TcpState::Established,
                to: TcpState::CloseWait
            },
            FlowEvent::State {
                from: TcpState::CloseWait,
                to: TcpState::LastAck
            },
            FlowEvent::Close,
        ]
    );
    assert_eq!(monitor.lost_events().unwrap(), 0);
}

#[test]
fn retransmissions_are_counted_and_limited_in_number() {
    let lab = Lab::enter();
    let mut monitor = lab.monitor();
    let (near, far) = lab.connect(FAR_V4);
    lab.narrow(20, 30_000);
    let cookie = scanned(&mut monitor, &near).cookie;
    let transfer = Transfer::start(&near, far);
    let mut events = Vec::new();
    await_some("40 lost segments", || {
        collect(&mut monitor, &mut events);
        (scanned(&mut monitor, &near).retransmits >= 40).then_some(())
    });
    drop(transfer);
    // What the limit held back comes with a later poll.
    await_some("every retransmission is told", || {
        monitor.poll().unwrap();
        collect(&mut monitor, &mut events);
        let told = events.iter().filter(|event| event.what == FlowEvent::Retransmit);
        (told.map(|event| event.count).sum::<u32>() >= 40).then_some(())
    });
    events.retain(|event| event.cookie == cookie);
    let told: Vec<_> = events
        .iter()
        .filter(|event| event.what == FlowEvent::Retransmit)
        .collect();
    assert!(
        told.windows(2).all(|two| two[1].t_ns - two[0].t_ns >= 10_000_000),
        "closer than 10 ms: {told:#?}"
    );
    assert!(
        events
            .iter()
            .any(|event| event.what == FlowEvent::CaState { to: CaState::Recovery })
    );
}

#[test]
fn one_event_wakes_nobody_and_many_do_before_any_is_lost() {
    let lab = Lab::enter();
    let mut monitor = lab.monitor();
    let listener = lab.far_listener(FAR_V4);
    let (near, _far) = pair(&listener);
    let events = monitor.events_fd().try_clone_to_owned().unwrap();
    let is_readable = || poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], 0u16).unwrap() == 1;
    assert!(!is_readable(), "a connection was opened, which can wait for a poll");
    let mut told = Vec::new();
    collect(&mut monitor, &mut told);
    let local = near.local_addr().unwrap();
    assert!(
        told.iter()
            .any(|event| event.what == FlowEvent::Open && event.local == local)
    );
    until("many wake the reader", || {
        drop(pair(&listener));
        is_readable()
    });
    assert_eq!(monitor.lost_events().unwrap(), 0);
}

#[test]
fn other_namespaces_are_never_seen() {
    let lab = Lab::enter();
    let mut monitor = lab.monitor();
    let mut far_monitor = lab.far(|| FlowMonitor::open(giveway::kernel::own_netns().unwrap()).unwrap());
    let (mut near, far) = lab.connect(FAR_V4);
    near.write_all(b"x").unwrap();

    let is_far = |flow: &Flow| flow.local == far.local_addr().unwrap();
    let mut shown = monitor.poll().unwrap();
    shown.extend(monitor.scan().unwrap());
    assert!(find(&shown, &near).is_some());
    assert!(!shown.iter().any(is_far), "a socket of the far namespace was shown");
    let mut events = Vec::new();
    collect(&mut monitor, &mut events);
    assert!(!events.is_empty() && events.iter().all(|event| event.local != far.local_addr().unwrap()));
    // The same hooks show the far socket to whoever watches there.
    let seen_there = lab.far(|| far_monitor.scan().unwrap());
    assert!(seen_there.iter().any(is_far));
    assert!(find(&seen_there, &near).is_none());
}

/// One build of Linux has no such iterators, for nobody (EPERM, before it looks at the program): there a poll goes over all
/// sockets. A program of ours that a kernel refuses would look the same and cost as much.
#[test]
fn a_pass_goes_from_mark_to_mark_where_the_kernel_can() {
    let lab = Lab::enter();
    if let Some(reason) = lab.monitor().why_all_sockets() {
        assert!(reason.contains("(os error 1)"), "{reason}");
    }
}

/// Root here; each user for itself.
#[test]
fn of_a_user_so_many_udp_sockets_are_listed_and_those_that_were_listed_stay() {
    OPENINGS.into_iter().for_each(lists_so_many_and_those_stay);
}

fn lists_so_many_and_those_stay(open: fn(u32) -> anyhow::Result<FlowMonitor>) {
    const MOST: usize = 1024;
    let _lab = Lab::enter();
    let mut monitor = open(own_netns().unwrap()).unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let socket = || {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.send_to(b"x", "127.0.0.1:9").unwrap();
        udp
    };
    let mut sockets: Vec<UdpSocket> = (0..MOST + 200).map(|_| socket()).collect();
    let cookies = |flows: Vec<Flow>| flows.iter().map(|flow| flow.cookie).collect::<BTreeSet<_>>();
    let first = cookies(monitor.datagrams().unwrap());
    assert_eq!(first.len(), MOST);
    assert_eq!(cookies(monitor.datagrams().unwrap()), first);
    sockets.extend((0..200).map(|_| socket()));
    assert_eq!(cookies(monitor.datagrams().unwrap()), first);
    // The kernel frees them a little later.
    drop(sockets.drain(..600).collect::<Vec<_>>());
    until("others take their places", || {
        monitor.datagrams().unwrap().len() == sockets.len()
    });
}
