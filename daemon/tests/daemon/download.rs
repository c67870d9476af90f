// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What arrives is held to its limit, from the first packet of a command on and for what was open before a rule came; and
//! whatever happens to what holds it, traffic goes on, and nothing of giveway's is left.

use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use giveway::kernel::tcx::{self, TcxHook};
use giveway_engine::rate::mbit;
use libbpf_rs::libbpf_sys::{BPF_PROG_TYPE_SCHED_CLS, bpf_prog_load};
use nix::net::if_::if_nametoindex;
use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpCongestion;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::classes::{Rules, rule};
use super::nice::Group;
use crate::support::lab::{FAR_V4, FAR_V6, Lab, NEAR_V4, carried, run};
use crate::support::process::{Daemon, giveway, program};
use crate::support::scratch::Scratch;
use crate::support::wait::{await_some, held, until};

/// Of goodput: each packet of 1,514 bytes has 1,448 of them. On a machine that is busy with other tests a receiver has to wait, and
/// makes up for it.
const LIMIT_MBIT: f64 = 4.0;
const LEAST_MBIT: f64 = 3.2;
const MOST_MBIT: f64 = 4.4;
/// Far above the limit.
const FREE_MBIT: f64 = 40.0;
const WINDOW: Duration = Duration::from_secs(2);
const DEVICE: &str = "giveway-down";

/// Something at the remote host that sends far more than the limit to whoever connects, and leaves the processors to others.
pub(super) fn source(lab: &Lab, ip: &str) -> u16 {
    let listener = lab.far_listener(ip);
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || serve(&listener));
    port
}

fn serve(listener: &TcpListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        // What arrives in order comes in leaps behind BBR, which loses much at so low a rate.
        setsockopt(&stream, TcpCongestion, &OsString::from("cubic")).unwrap();
        thread::spawn(move || {
            while stream.write_all(&[0; 16 * 1024]).is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
        });
    }
}

/// What one receiver has got.
pub(super) struct Received {
    bytes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Drop for Received {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Received {
    fn by(mut receive: impl FnMut() -> std::io::Result<usize> + Send + 'static) -> Self {
        let received = Self {
            bytes: Arc::default(),
            stop: Arc::default(),
        };
        let (bytes, stop) = (Arc::clone(&received.bytes), Arc::clone(&received.stop));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // Nothing may come for a while.
                let got = receive().unwrap_or(0);
                bytes.fetch_add(got as u64, Ordering::Relaxed);
            }
        });
        received
    }

    pub(super) fn over_tcp(ip: &str, port: u16) -> Self {
        let ip: IpAddr = ip.parse().unwrap();
        let mut stream = TcpStream::connect((ip, port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut buffer = vec![0; 256 * 1024];
        Self::by(move || stream.read(&mut buffer))
    }

    pub(super) fn mbit(&self, time: Duration) -> f64 {
        mbit_of(|| self.bytes.load(Ordering::Relaxed), time)
    }

    fn is_free(&self) -> bool {
        self.mbit(Duration::from_millis(200)) > FREE_MBIT
    }

    fn is_held(&self) -> bool {
        self.mbit(Duration::from_millis(400)) < MOST_MBIT * 1.5
    }
}

pub(super) fn mbit_of(count: impl Fn() -> u64, time: Duration) -> f64 {
    let (before, began) = (count(), Instant::now());
    thread::sleep(time);
    mbit(((count() - before) as f64 / began.elapsed().as_secs_f64()) as u64)
}

/// By the limit's device itself: what an application has got comes in leaps, as what was lost is sent again.
pub(super) fn passed_mbit(time: Duration) -> f64 {
    mbit_of(|| carried("giveway-down").0, time)
}

const HELD_MBIT: Range<f64> = LEAST_MBIT..MOST_MBIT;

/// A file that grows as a command receives.
fn size_of(file: &Scratch) -> u64 {
    fs::metadata(&file.0).map_or(0, |about| about.len())
}

/// A command with this limit; it ends with all that it has started.
fn exec(arguments: &[&str], command: &[&str]) -> Group {
    let mut exec = Command::new(program());
    exec.arg("exec").args(arguments).args(["--require", "--"]);
    Group::spawn(exec.args(command))
}

fn start(rules: &Rules) -> Daemon {
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    until("the link is managed", || {
        !daemon.status()["links"].as_array().is_none_or(Vec::is_empty)
    });
    daemon
}

fn limited(condition: &str) -> String {
    rule(
        &format!("{condition}\ndownload_limit_mbit = {LIMIT_MBIT:.1}"),
        "standard",
    )
}

fn reload() {
    let told = giveway(&["reload"]);
    assert!(told.status.success(), "{told:?}");
}

fn limiting(daemon: &Daemon) -> bool {
    !daemon.status()["downloads"]["links"]
        .as_array()
        .is_none_or(Vec::is_empty)
}

/// Nothing of giveway's stands in the way of what arrives.
pub(super) fn is_clean() -> bool {
    run("ip link show type ifb").is_empty()
}

#[test]
fn a_command_receives_no_more_than_its_limit_from_its_first_packet_on_over_tcp_and_udp() {
    let lab = Lab::enter();
    let _daemon = start(&Rules::new());
    assert!(is_clean(), "no limit, nothing attached");
    // What a program of the command starts makes the connection, and nothing is known of it before.
    for ip in [FAR_V4, FAR_V6] {
        let (port, file) = (source(&lab, ip), Scratch::new("received", ""));
        let script = format!("(exec 3<>/dev/tcp/{ip}/{port}; exec cat <&3 >{}) & wait", file.path());
        let command = exec(&["--down", "4mbit"], &["bash", "-c", &script]);
        until("something arrives", || size_of(&file) > 0);
        thread::sleep(Duration::from_secs(1));
        let first_second_mbit = mbit(size_of(&file));
        assert!(first_second_mbit < LIMIT_MBIT * 1.5, "{first_second_mbit} Mbit/s");
        held("its limit holds", HELD_MBIT, || {
            mbit_of(|| size_of(&file), Duration::from_secs(2))
        });
        drop(command);
    }
    // A socket that connects to nobody, as that of QUIC often is.
    let flood = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    let port = flood.local_addr().unwrap().port();
    thread::spawn(move || {
        let (_, from) = flood.recv_from(&mut [0; 16]).unwrap();
        // It does not slow down, and ends.
        for _ in 0..4_000 {
            let _ = flood.send_to(&[0; 1400], from);
            thread::sleep(Duration::from_millis(1));
        }
    });
    let file = Scratch::new("received", "");
    let script = format!(
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.sendto(b'x', ('{FAR_V4}', {port}))\n\
         f = open('{}', 'wb', 0)\nwhile True: f.write(s.recv(2000))\n",
        file.path()
    );
    let _command = exec(&["--class", "bulk", "--down", "2mbit"], &["python3", "-c", &script]);
    until("something arrives", || size_of(&file) > 0);
    let mbit = mbit_of(|| size_of(&file), Duration::from_secs(2));
    assert!((1.6..2.2).contains(&mbit), "{mbit} Mbit/s");
}

#[test]
fn what_was_open_before_a_rule_came_has_its_limit_within_a_second_and_others_have_not() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let daemon = start(&rules);
    let [one, other] = [FAR_V4, FAR_V4].map(|ip| source(&lab, ip));
    let [held, free] = [one, other].map(|port| Received::over_tcp(FAR_V4, port));
    let _beside = Received::over_tcp(FAR_V4, one);
    until("it is fast", || held.is_free() && free.is_free());
    rules.write("50-test.toml", &limited(&format!("port = {one}")));
    reload();
    thread::sleep(Duration::from_secs(1));
    assert!(held.is_held());
    // One limit for both.
    thread::sleep(Duration::from_secs(1));
    let both = passed_mbit(Duration::from_secs(2));
    assert!((LIMIT_MBIT * 0.95..LIMIT_MBIT * 1.05).contains(&both), "{both} Mbit/s");
    assert!(free.is_free());
    // By packets alone, from its first one on.
    let new = Received::over_tcp(FAR_V4, one);
    assert!(new.mbit(Duration::from_millis(500)) < LIMIT_MBIT * 1.5);
    let status = daemon.status();
    let flows = status["flows"].as_array().unwrap();
    let remote = format!("{FAR_V4}:{one}");
    let flow = flows.iter().find(|flow| flow["remote"] == remote).unwrap();
    assert_eq!(flow["limit"]["download"]["enforced_by"], "gwv", "{flow}");
    assert!(flow["limit"]["upload"].is_null(), "{flow}");
    rules.write("50-test.toml", "");
    reload();
    until("it is fast again", || held.is_free());
    until("nothing is left", is_clean);
}

#[test]
fn status_shows_what_each_limit_lets_through_and_what_each_flow_receives() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let [limited_port, free_port] = [FAR_V4, FAR_V4].map(|ip| source(&lab, ip));
    rules.write("50-test.toml", &limited(&format!("port = {limited_port}")));
    let daemon = start(&rules);
    let [_held, free] = [limited_port, free_port].map(|port| Received::over_tcp(FAR_V4, port));
    // Until what came before the limit was known is over.
    thread::sleep(Duration::from_secs(3));
    let passed = |status: &Value| {
        status["limits"][0]["download"]["queue"]["passed_bytes"]
            .as_u64()
            .unwrap()
    };
    let before = daemon.status();
    let by_device = passed_mbit(Duration::from_secs(4));
    let after = daemon.status();
    let took_ns = after["taken_t_ns"].as_u64().unwrap() - before["taken_t_ns"].as_u64().unwrap();
    let by_status = mbit(((passed(&after) - passed(&before)) as f64 / (took_ns as f64 / 1e9)) as u64);
    // The queue is read once a second.
    assert!((by_status / by_device - 1.0).abs() < 0.3, "{by_status}, {by_device}");
    let limit = &after["limits"][0];
    assert_eq!(limit["limited_by"], "rule", "{limit}");
    assert_eq!(limit["download"]["limit_mbit"], LIMIT_MBIT, "{limit}");
    assert_eq!(limit["download"]["flows"], 1, "{limit}");
    assert!(limit["upload"].is_null(), "{limit}");
    let received = |status: &Value, port| {
        let remote = format!("{FAR_V4}:{port}");
        let flows = status["flows"].as_array().unwrap();
        let flow = flows.iter().find(|flow| flow["remote"] == remote).unwrap();
        flow["download_mbit"].as_f64().unwrap()
    };
    let by_receiver = free.mbit(Duration::from_secs(3));
    let shown = received(&daemon.status(), free_port);
    assert!((shown / by_receiver - 1.0).abs() < 0.3, "{shown}, {by_receiver}");
    let passing = limit["download"]["queue"]["throughput_mbit"].as_f64().unwrap();
    assert!((passing / by_device - 1.0).abs() < 0.1, "{passing}, {by_device}");
}

#[test]
fn a_thousand_limits_hold_at_once_keep_nobody_waiting_and_leave_nothing() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = source(&lab, FAR_V4);
    let others: String = (1..1000).map(|port| limited(&format!("local_port = {port}"))).collect();
    let daemon = start(&rules);
    rules.write("50-test.toml", &(others + &limited(&format!("port = {port}"))));
    reload();
    until("what arrives is limited", || limiting(&daemon));
    let held = Received::over_tcp(FAR_V4, port);
    until("it is held", || held.is_held());
    let mbit = passed_mbit(Duration::from_secs(2));
    assert!((LIMIT_MBIT * 0.95..LIMIT_MBIT * 1.05).contains(&mbit), "{mbit} Mbit/s");
    let began = Instant::now();
    let limits = daemon.status()["limits"].as_array().unwrap().len();
    assert!(
        limits == 1000 && began.elapsed() < Duration::from_secs(2),
        "{limits}: {:?}",
        began.elapsed()
    );
    rules.write("50-test.toml", "");
    reload();
    until("it is fast again", || held.is_free());
    until("nothing is left", is_clean);
}

#[test]
fn with_the_daemon_and_its_watchdog_dead_everything_arrives_at_once_and_nothing_is_left() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = source(&lab, FAR_V4);
    rules.write("50-test.toml", &limited(&format!("port = {port}")));
    for (guarded, name) in [(true, DEVICE), (false, DEVICE), (true, "renamed")] {
        let mut daemon = start(&rules);
        until("what arrives is limited", || limiting(&daemon));
        run(&format!("ip link set {DEVICE} name {name}"));
        let held = Received::over_tcp(FAR_V4, port);
        thread::sleep(Duration::from_secs(1));
        assert!(held.is_held());
        let killed = Instant::now();
        match guarded {
            true => drop(daemon.kill()),
            false => daemon.kill_both(),
        }
        until("everything arrives", || held.is_free());
        assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
        daemon.0.wait().unwrap();
        if !guarded {
            assert!(!is_clean());
            let said = giveway(&["revert"]);
            assert!(said.status.success(), "{said:?}");
        }
        assert!(is_clean());
    }
}

#[test]
fn whatever_somebody_does_to_the_intermediate_device_traffic_goes_on_within_a_second() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = source(&lab, FAR_V4);
    rules.write("50-test.toml", &limited(&format!("port = {port}")));
    let daemon = start(&rules);
    let held = Received::over_tcp(FAR_V4, port);
    for (command, said) in [
        (format!("ip link set {DEVICE} down"), "was switched off"),
        (format!("ip link del {DEVICE}"), "is gone"),
        (
            format!("tc qdisc replace dev {DEVICE} root pfifo"),
            "another tool has changed the queue",
        ),
    ] {
        until("what arrives is limited", || limiting(&daemon));
        until("it is held", || held.is_held());
        run(&command);
        let begun = Instant::now();
        until("everything arrives", || held.is_free());
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "{command}: {:?}",
            begun.elapsed()
        );
        let told = await_some("it is told of", || {
            let changes = daemon.status()["changes"].to_string();
            changes.contains(said).then_some(changes)
        });
        assert!(told.contains("not shaped"), "{told}");
    }
    daemon.signal(Signal::SIGTERM);
    until("nothing is left", is_clean);
}

#[test]
fn an_mtu_that_changes_stops_nothing() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = source(&lab, FAR_V4);
    rules.write("50-test.toml", &limited(&format!("port = {port}")));
    let daemon = start(&rules);
    until("what arrives is limited", || limiting(&daemon));
    let set = |mtu| {
        run(&format!("ip link set gwv mtu {mtu}"));
        lab.far(|| run(&format!("ip link set gwv mtu {mtu}")));
    };
    set(9000);
    // The links are looked at once a second.
    thread::sleep(Duration::from_millis(1500));
    let _held = Received::over_tcp(FAR_V4, port);
    thread::sleep(Duration::from_secs(1));
    let mbit = passed_mbit(Duration::from_secs(3));
    assert!((LIMIT_MBIT * 0.9..LIMIT_MBIT * 1.05).contains(&mbit), "{mbit} Mbit/s");
    // Packets wait that are larger than any that come from now on.
    set(1500);
    until("it goes on", || passed_mbit(Duration::from_secs(1)) > LIMIT_MBIT * 0.8);
}

/// Packets wait that are larger than those that a slow limit lets pass whole.
#[test]
fn a_limit_that_is_lowered_while_packets_wait_holds_from_then_on() {
    const LOW_MBIT: f64 = 2.0;
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = source(&lab, FAR_V4);
    let limit = |mbit: f64| {
        let text = rule(&format!("port = {port}\ndownload_limit_mbit = {mbit:.1}"), "standard");
        rules.write("50-test.toml", &text);
    };
    limit(200.0);
    let daemon = start(&rules);
    until("what arrives is limited", || limiting(&daemon));
    let held = Received::over_tcp(FAR_V4, port);
    until("it is fast", || held.is_free());
    limit(LOW_MBIT);
    reload();
    thread::sleep(Duration::from_secs(1));
    let mbit = passed_mbit(Duration::from_secs(3));
    assert!((LOW_MBIT * 0.8..LOW_MBIT * 1.1).contains(&mbit), "{mbit} Mbit/s");
}

#[test]
fn who_listens_on_the_port_of_others_takes_nothing_of_what_is_for_them() {
    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
    const SENT: usize = 400;
    let (lab, rules) = (Lab::enter(), Rules::new());
    let daemon = start(&rules);
    lab.far(|| run("ip route add 239.0.0.0/8 dev gwv"));
    let victim = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    victim.set_reuse_address(true).unwrap();
    victim
        .bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into())
        .unwrap();
    let victim = UdpSocket::from(victim);
    victim.join_multicast_v4(&GROUP, &NEAR_V4.parse().unwrap()).unwrap();
    victim.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let port = victim.local_addr().unwrap().port();
    let file = Scratch::new("listens", "");
    let script = format!(
        "import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\ns.bind(('', {port}))\ns.sendto(b'x', ('{FAR_V4}', 9))\n\
         open('{}', 'w').write('x')\ntime.sleep(60)\n",
        file.path()
    );
    let _other = exec(&["--down", "10kbit"], &["python3", "-c", &script]);
    until("another listens there, with a limit", || {
        size_of(&file) > 0 && limiting(&daemon)
    });
    let far = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    let sender = thread::spawn(move || {
        for _ in 0..SENT {
            far.send_to(&[0; 1000], (GROUP, port)).unwrap();
            thread::sleep(Duration::from_millis(2));
        }
    });
    let received = (0..SENT).take_while(|_| victim.recv(&mut [0; 2000]).is_ok()).count();
    sender.join().unwrap();
    assert!(received > SENT * 9 / 10, "{received} of {SENT}");
}

#[test]
fn where_another_tool_filters_what_arrives_nothing_goes_past_it_also_when_it_comes_later() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = source(&lab, FAR_V4);
    rules.write("50-test.toml", &limited(&format!("port = {port}")));
    let daemon = start(&rules);
    until("what arrives is limited", || limiting(&daemon));
    run("nft add table netdev gwtest");
    for (put, take, said) in [
        (
            vec![
                "tc qdisc add dev gwv clsact".to_owned(),
                "tc filter add dev gwv ingress protocol ip u32 match u32 0 0 classid 1:1".to_owned(),
            ],
            "tc qdisc del dev gwv clsact",
            "tc filters at the ingress of gwv",
        ),
        (
            vec!["nft add chain netdev gwtest early { type filter hook ingress device gwv priority 0; }".to_owned()],
            "nft delete chain netdev gwtest early",
            "an nftables chain at the ingress of gwv",
        ),
    ] {
        for command in &put {
            let words: Vec<&str> = command.split_whitespace().collect();
            let ran = Command::new(words[0]).args(&words[1..]).output().unwrap();
            assert!(ran.status.success(), "{command}: {ran:?}");
        }
        until("nothing is taken past it", || !limiting(&daemon));
        let reasons = daemon.status()["downloads"]["reasons"].to_string();
        assert!(reasons.contains(said), "{reasons}");
        let refused = giveway(&["exec", "--down", "4mbit", "--require", "--", "true"]);
        let line = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(125) && line.contains(said), "{line}");
        run(take);
        until("it is limited again", || limiting(&daemon));
    }
}

/// A program of tcx with this verdict on everything; -1 leaves it to the next one.
pub(super) fn program_that_returns(verdict: i32) -> OwnedFd {
    // r0 = verdict; exit
    let instructions = [u64::from(verdict.cast_unsigned()) << 32 | 0xb7, 0x95];
    // SAFETY: all that is pointed to is valid for the call; what may be null is null.
    let loaded = unsafe {
        bpf_prog_load(
            BPF_PROG_TYPE_SCHED_CLS,
            ptr::null(),
            c"GPL".as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as u64,
            ptr::null_mut(),
        )
    };
    assert!(loaded >= 0, "{loaded}");
    // SAFETY: the call succeeded, so this is a descriptor that nothing else owns.
    unsafe { OwnedFd::from_raw_fd(loaded) }
}

#[test]
fn a_program_of_another_tool_that_is_asked_first_is_told_of() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = source(&lab, FAR_V4);
    rules.write("50-test.toml", &limited(&format!("port = {port}")));
    let (program, ifindex) = (program_that_returns(-1), if_nametoindex("gwv").unwrap());
    let attach = || tcx::attach(program.as_fd(), ifindex, TcxHook::Ingress).unwrap();
    let first = attach();
    let daemon = start(&rules);
    until("what arrives is limited", || limiting(&daemon));
    let reasons = || daemon.status()["downloads"]["reasons"].to_string();
    const SAID: &str = "tcx programs of other tools run before giveway's at the ingress: 1";
    until("it is told of", || reasons().contains(SAID));
    drop(first);
    until("it is gone", || reasons() == "[]");
    let _behind = attach();
    until("giveway's is behind it again", || reasons().contains(SAID));
    assert!(limiting(&daemon));
}

#[test]
fn a_link_that_refuses_the_program_is_told_of_and_has_its_limits_once_it_does_not() {
    /// As many as the kernel lets stand at one place (BPF_MPROG_MAX).
    const ALL: usize = 63;
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = source(&lab, FAR_V4);
    rules.write("50-test.toml", &limited(&format!("port = {port}")));
    let ifindex = if_nametoindex("gwv").unwrap();
    let attach = |_| tcx::attach(program_that_returns(-1).as_fd(), ifindex, TcxHook::Ingress).unwrap();
    let others: Vec<_> = (0..ALL).map(attach).collect();
    let daemon = start(&rules);
    until("it is told of", || {
        let reasons = daemon.status()["downloads"]["reasons"].to_string();
        reasons.contains("gwv") && !limiting(&daemon)
    });
    drop(others);
    until("what arrives is limited", || limiting(&daemon));
}

#[test]
fn datagrams_in_fragments_arrive_whole_beside_a_limit() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let near = UdpSocket::bind((NEAR_V4, 0)).unwrap();
    near.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let far = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    rules.write(
        "50-test.toml",
        &limited(&format!("local_port = {}", near.local_addr().unwrap().port())),
    );
    let daemon = start(&rules);
    until("what arrives is limited", || limiting(&daemon));
    near.send_to(b"x", far.local_addr().unwrap()).unwrap();
    let to = near.local_addr().unwrap();
    for size in [4000, 100] {
        for _ in 0..100 {
            far.send_to(&vec![0; size], to).unwrap();
            assert_eq!(near.recv(&mut [0; 8000]).unwrap(), size);
        }
    }
}

/// What arrives for it is for another address when giveway sees it.
#[test]
fn an_own_flow_whose_address_is_translated_is_not_limited_and_that_is_said() {
    const OTHER_V4: &str = "10.99.0.9";
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = source(&lab, FAR_V4);
    run(&format!("ip address add {OTHER_V4}/24 dev gwv"));
    run("nft add table ip gwtest");
    run("nft add chain ip gwtest out { type nat hook postrouting priority 100; }");
    run(&format!(
        "nft add rule ip gwtest out oifname gwv tcp dport {port} snat to {OTHER_V4}"
    ));
    rules.write("50-test.toml", &limited(&format!("port = {port}")));
    let daemon = start(&rules);
    let received = Received::over_tcp(FAR_V4, port);
    until("it is said", || {
        let status = daemon.status();
        let said = status["not_enforced"].as_array().unwrap();
        said.iter().any(|one| one["cause"] == "passes_by")
    });
    assert!(received.is_free(), "as it is said");
    run("nft flush chain ip gwtest out");
    let other = Received::over_tcp(FAR_V4, port);
    until("one that is not translated is limited", || other.is_held());
}

#[test]
fn the_limit_of_a_command_outlives_its_daemon_whatever_starts_meanwhile() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = source(&lab, FAR_V4);
    let mut daemon = start(&rules);
    let file = Scratch::new("received", "");
    let script = format!("cat < /dev/tcp/{FAR_V4}/{port} > {}", file.path());
    let _command = exec(&["--down", "4mbit"], &["bash", "-c", &script]);
    until("it is limited", || size_of(&file) > 0 && limiting(&daemon));
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        daemon.signal(signal);
        await_some("the daemon ends", || daemon.0.try_wait().unwrap());
        // It looks for what other namespaces have left behind.
        let elsewhere = Command::new("unshare").args(["-n", &program(), "revert"]).output();
        assert!(elsewhere.unwrap().status.success());
        until("nothing holds it", || mbit_of(|| size_of(&file), WINDOW) > FREE_MBIT);
        daemon = start(&rules);
        until("its limit holds again", || limiting(&daemon));
        thread::sleep(Duration::from_secs(1));
        // By what leaves the limit's device: a file grows in leaps where the machine is busy.
        held("its limit holds", HELD_MBIT, || passed_mbit(WINDOW));
    }
}

/// As one that shows video does: it has sent once, before anything limited it.
#[test]
fn a_udp_socket_that_only_receives_has_the_limit_that_comes_later() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let _daemon = start(&rules);
    let near = UdpSocket::bind((NEAR_V4, 0)).unwrap();
    near.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let far = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    near.send_to(b"x", far.local_addr().unwrap()).unwrap();
    let to = near.local_addr().unwrap();
    let received = Received::by(move || near.recv(&mut [0; 2000]));
    let stop = Arc::clone(&received.stop);
    let sender = thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let _ = far.send_to(&[0; 1000], to);
            thread::sleep(Duration::from_micros(300));
        }
    });
    until("it comes", || received.mbit(WINDOW) > 2.0 * MOST_MBIT);
    rules.write("50-test.toml", &limited(&format!("local_port = {}", to.port())));
    reload();
    until("it is limited", || received.mbit(WINDOW) < MOST_MBIT);
    let mbit = received.mbit(WINDOW);
    assert!((LEAST_MBIT..MOST_MBIT).contains(&mbit), "{mbit} Mbit/s");
    drop(received);
    sender.join().unwrap();
}
