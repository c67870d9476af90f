// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What others on the link can do to a daemon by datagrams on the peers' port: nothing from beyond the link wakes
//! it, junk costs little, and its honest peers are heard through it.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use giveway_engine::peers::{Keyring, MAGIC, MAX_DATAGRAM_BYTES, VERSION};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use super::limits::as_user;
use crate::support::lab::{FAR_V4, Lab, NEAR_V4, NEAR_V6, run};
use crate::support::process::{Daemon, PAPER, giveway};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::wait::until;

const PORT: u16 = 339;
const ON_LINK_TTL: u32 = 255;

fn key() -> String {
    format!("giveway-key-1:{}\n", "5a".repeat(32))
}

/// A daemon of the group in the calling thread's namespace, and its files.
fn member() -> (Daemon, [Scratch; 2]) {
    member_with("")
}

/// The same, with more in its `[group]`.
fn member_with(more: &str) -> (Daemon, [Scratch; 2]) {
    let key_file = Scratch::new("group.key", &key());
    fs::set_permissions(&key_file.0, fs::Permissions::from_mode(0o600)).unwrap();
    let config = format!("{PAPER}[group]\nkey_file = \"{}\"\n{more}", key_file.path());
    let config = Scratch::new("group.toml", &config);
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    (daemon, [key_file, config])
}

/// A stranger's socket in the far namespace.
fn stranger(lab: &Lab, to: &str, ttl: u32) -> Socket {
    lab.far(|| {
        let to: SocketAddr = (to.parse::<IpAddr>().unwrap(), PORT).into();
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP)).unwrap();
        match to {
            SocketAddr::V4(_) => socket.set_ttl_v4(ttl).unwrap(),
            SocketAddr::V6(_) => socket.set_unicast_hops_v6(ttl).unwrap(),
        }
        socket.connect(&to.into()).unwrap();
        socket
    })
}

/// Everything of a report that a stranger can read off the link, and a broken seal.
fn junk(version: u8, bytes: usize) -> Vec<u8> {
    let id = Keyring::parse(&key()).unwrap().ids().next().unwrap();
    let mut datagram = [&MAGIC[..], &[version], &id].concat();
    datagram.resize(bytes, 0x5a);
    datagram
}

fn count(daemon: &Daemon, counter: &str) -> u64 {
    daemon.status()["reports"][counter].as_u64().unwrap_or(0)
}

/// What the socket's filter kept from it, by the kernel's own count.
fn dropped(file: &str) -> u64 {
    let table = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let port = format!(":{PORT:04X}");
    let line = table
        .lines()
        .find(|line| line.split_whitespace().nth(1).is_some_and(|at| at.ends_with(&port)));
    line.and_then(|line| line.split_whitespace().last()?.parse().ok())
        .unwrap()
}

/// Datagrams from beyond the link and of impossible lengths; the one that follows them is the first to be read.
fn only_what_can_be_a_report_reaches_the_daemon(lab: &Lab, to: &str, table: &str) {
    let (daemon, _files) = member();
    until("the daemon listens", || count(&daemon, "sent") > 0);
    let routed = stranger(lab, to, ON_LINK_TTL - 1);
    let on_link = stranger(lab, to, ON_LINK_TTL);
    for _ in 0..500 {
        routed.send(&junk(VERSION, 100)).unwrap();
    }
    for bytes in [0, 8, 69, MAX_DATAGRAM_BYTES + 1] {
        on_link.send(&junk(VERSION, bytes)).unwrap();
    }
    on_link.send(&junk(VERSION, 70)).unwrap();
    on_link.send(&junk(VERSION, MAX_DATAGRAM_BYTES)).unwrap();
    until("what can be a report is read", || count(&daemon, "forged") >= 2);
    assert_eq!(count(&daemon, "forged"), 2, "datagrams from beyond the link were read");
    until("what was kept back is counted", || {
        count(&daemon, "off_link") >= 500 && count(&daemon, "malformed") >= 4
    });
    assert_eq!((count(&daemon, "off_link"), count(&daemon, "malformed")), (500, 4));
    assert_eq!(dropped(table), 504, "the filter did not drop them");
}

#[test]
fn nothing_from_beyond_the_link_and_no_impossible_length_wakes_the_daemon() {
    let lab = Lab::enter();
    only_what_can_be_a_report_reaches_the_daemon(&lab, NEAR_V4, "udp");
}

/// Takes the IPv4 addresses, so that reports go by IPv6.
fn without_ipv4(lab: &Lab) {
    run("ip address flush dev gwv scope global");
    run(&format!("ip address add {NEAR_V6}/64 dev gwv nodad"));
    lab.far(|| run(&format!("ip -4 address del {FAR_V4}/24 dev gwv")));
}

#[test]
fn nor_over_ipv6() {
    let lab = Lab::enter();
    without_ipv4(&lab);
    only_what_can_be_a_report_reaches_the_daemon(&lab, NEAR_V6, "udp6");
}

fn believe_each_other(lab: &Lab, near: &Daemon, far: &Daemon) {
    let authenticates = |status: Value| status["peers"][0]["authenticated"] == true;
    until("both are authenticated", || {
        authenticates(near.status()) && lab.far(|| authenticates(far.status()))
    });
}

#[test]
fn peers_hear_each_other_over_ipv6() {
    let lab = Lab::enter();
    without_ipv4(&lab);
    let (near, _files) = member();
    let (far, _more) = lab.far(member);
    believe_each_other(&lab, &near, &far);
}

#[test]
fn a_peer_of_an_older_version_is_counted_named_once_and_not_authenticated() {
    let lab = Lab::enter();
    let (daemon, _files) = member();
    until("the daemon listens", || count(&daemon, "sent") > 0);
    // As version 1 sent: with an ordinary TTL.
    let older = stranger(&lab, NEAR_V4, 64);
    for _ in 0..50 {
        older.send(&junk(1, 100)).unwrap();
    }
    until("all of an older version are counted", || {
        count(&daemon, "older_version") == 50
    });
    assert_eq!(dropped("udp"), 50, "it woke the daemon");
    let status = daemon.status();
    assert_eq!(status["reports"]["older"], FAR_V4);
    assert_eq!(status["peers"].as_array().unwrap().len(), 0);
    let text = String::from_utf8(giveway(&["status"]).stdout).unwrap();
    let line = format!("{FAR_V4} uses an older version");
    assert_eq!(text.matches(&line).count(), 1, "{text}");
}

fn udp_as_nobody(port: u16) -> std::io::Result<std::net::UdpSocket> {
    as_user(NOBODY, || std::net::UdpSocket::bind(("0.0.0.0", port)))
}

#[test]
fn no_user_takes_the_groups_port_before_the_daemon() {
    let lab = Lab::enter();
    let all = String::from_utf8(giveway(&["config", "default"]).stdout).unwrap();
    let port = all
        .lines()
        .find_map(|line| line.trim_start_matches(['#', ' ']).strip_prefix("port = "));
    let taken = udp_as_nobody(port.unwrap().parse().unwrap());
    let refused = taken.as_ref().err().map(std::io::Error::kind);
    let (near, _files) = member();
    let (far, _more) = lab.far(member);
    believe_each_other(&lab, &near, &far);
    assert_eq!(refused, Some(ErrorKind::PermissionDenied));
}

#[test]
fn a_port_that_any_user_may_take_is_told_of() {
    let lab = Lab::enter();
    let (daemon, files) = member_with("port = 48048\n");
    let told = "any user may take that port first";
    assert!(daemon.status()["warnings"].to_string().contains(told));
    let check = giveway(&["config", "check", files[1].path()]);
    assert!(String::from_utf8(check.stdout).unwrap().contains(told));
    drop(daemon);
    let (daemon, files) = member();
    assert!(!daemon.status()["warnings"].to_string().contains(told));
    let check = giveway(&["config", "check", files[1].path()]);
    assert!(!String::from_utf8(check.stdout).unwrap().contains(told));
    drop((daemon, lab));
}

/// Even where any user may have it.
#[test]
fn at_a_change_of_address_the_port_is_free_at_no_moment() {
    const ANYBODYS: u16 = 48_048;
    let lab = Lab::enter();
    let (daemon, _files) = member_with(&format!("port = {ANYBODYS}\n"));
    until("the daemon listens", || count(&daemon, "sent") > 0);
    let (is_over, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            as_user(NOBODY, || {
                while !is_over.load(Ordering::Relaxed) {
                    let bound = std::net::UdpSocket::bind(("0.0.0.0", ANYBODYS));
                    taken.fetch_add(u64::from(bound.is_ok()), Ordering::Relaxed);
                }
            });
        });
        for change in 1..=20 {
            run(&format!("ip address add 10.99.{change}.1/24 dev gwv"));
            run(&format!("ip address del 10.99.{}.1/24 dev gwv", change - 1));
            let shown = format!("10.99.{change}.1");
            until("the daemon has followed", || {
                daemon.status()["interface"].to_string().contains(&shown)
            });
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(taken.into_inner(), 0, "times that a user had the port");
    let status = daemon.status();
    assert!(!status.to_string().contains("working alone"), "{status}");
    drop((daemon, lab));
}

/// Connections whose queues never empty, since nobody reads; small, for there are many.
fn stuck_uploads(lab: &Lab, number: usize) -> Vec<(TcpStream, TcpStream)> {
    let listener = lab.far_listener(FAR_V4);
    let at = listener.local_addr().unwrap();
    let listening = Socket::from(listener);
    listening.set_recv_buffer_size(2048).unwrap();
    listening.listen(128).unwrap();
    let upload = |_| {
        let near = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        near.set_send_buffer_size(16_384).unwrap();
        near.connect(&at.into()).unwrap();
        let mut near = TcpStream::from(near);
        let far = listening.accept().unwrap().0.into();
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 4096]).is_ok() {}
        (near, far)
    };
    (0..number).map(upload).collect()
}

/// CPU time of a process's threads.
fn cpu(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let spent = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(tasks.filter_map(spent).sum())
}

/// Sends this many datagrams a second for so long; returns how many it sent.
fn flood(socket: &Socket, datagram: &[u8], per_second: u32, time: Duration) -> u32 {
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < time {
        let due = (begun.elapsed().as_secs_f64() * f64::from(per_second)) as u32;
        for _ in sent..due {
            let _ = socket.send(datagram);
        }
        sent = sent.max(due);
        thread::sleep(Duration::from_micros(500));
    }
    sent
}

/// The share of a CPU that the daemon uses while this goes on.
fn share_of_cpu(pid: u32, what: impl FnOnce()) -> f64 {
    let (begun, before) = (Instant::now(), cpu(pid));
    what();
    (cpu(pid) - before).as_secs_f64() / begun.elapsed().as_secs_f64()
}

#[test]
fn two_thousand_pieces_of_junk_a_second_cost_little_and_drown_no_peer() {
    const SENDERS: usize = 1000;
    const PER_SECOND: u32 = 2000;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let lab = Lab::enter();
    let _uploads = stuck_uploads(&lab, SENDERS);
    let (daemon, _files) = member();
    let (far, _more) = lab.far(member);
    believe_each_other(&lab, &daemon, &far);
    until("all connections count as senders", || {
        daemon.status()["policy"]["connections"] == SENDERS
    });
    let pid = daemon.0.id();
    let time = Duration::from_secs(6);
    let quiet = share_of_cpu(pid, || thread::sleep(time));
    let junk = junk(VERSION, MAX_DATAGRAM_BYTES);
    let socket = stranger(&lab, NEAR_V4, ON_LINK_TTL);
    let mut sent = 0;
    let flooded = share_of_cpu(pid, || sent = flood(&socket, &junk, PER_SECOND, time));
    println!(
        "{:.1}% of a CPU without junk, {:.1}% with {sent} pieces",
        quiet * 100.0,
        flooded * 100.0
    );
    until("all junk is read", || count(&daemon, "forged") == u64::from(sent));
    assert!(
        flooded - quiet < 0.1,
        "junk costs {:.1}% of a CPU",
        (flooded - quiet) * 100.0
    );
    assert_eq!(count(&daemon, "expired"), 0);
    assert_eq!(daemon.status()["peers"][0]["authenticated"], true);
}
