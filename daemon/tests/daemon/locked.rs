// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A socket whose lock somebody keeps, as any user can of their own: the kernel's scans over sockets wait for it, beyond
//! SIGKILL. That hangs nothing of giveway's, and all is well again when the lock is let go.

use std::fs;
use std::io::Write as _;
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use giveway::kernel::flow_monitor::FlowMonitor;
use nix::sys::signal::Signal;

use crate::support::held::Held;
use crate::support::lab::{FAR_V4, Lab};
use crate::support::process::{Daemon, PAPER, children, failure, giveway, watchdog_of};
use crate::support::scratch::Scratch;
use crate::support::wait::{await_some, until};

/// The watchdog takes a main loop without a sign of life for dead after 5 s at most.
const LONGER_THAN_A_HANG: Duration = Duration::from_secs(7);
/// Clients give up after 2 s.
const ANSWER: Duration = Duration::from_secs(2);
/// An end takes a moment, and one more scan that is given up after a second.
const END: Duration = Duration::from_secs(4);

/// Connections whose queue never empties, because their peer reads nothing.
fn uploads(lab: &Lab, count: usize) -> Vec<(TcpStream, TcpStream)> {
    let listener = lab.far_listener(FAR_V4);
    let upload = |_| {
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65_536]).is_ok() {}
        (near, far)
    };
    (0..count).map(upload).collect()
}

fn start(name: &str) -> (Daemon, Scratch) {
    let config = Scratch::new(name, PAPER);
    (
        Daemon::start(&["--config", config.path(), "--interface", "gwv"]),
        config,
    )
}

/// How many connections have a cap of giveway's, by its own word.
fn capped(daemon: &Daemon) -> usize {
    let status = daemon.status();
    let flows = status["flows"].as_array().unwrap();
    flows.iter().filter(|flow| flow["cap"].is_u64()).count()
}

/// By the kernel's.
fn clamped(monitor: &mut FlowMonitor) -> usize {
    let flows = monitor.scan().unwrap();
    flows.iter().filter(|flow| flow.clamp.is_some()).count()
}

fn says(daemon: &Daemon, what: &str) -> bool {
    let status = daemon.status();
    let mut lines = status["warnings"].as_array().unwrap().iter();
    lines.any(|line| line.as_str().unwrap().contains(what))
}

/// Processes of the daemon's that wait for a lock.
fn stuck(daemon: u32) -> usize {
    let is_stuck = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains("(giveway-scan) D")
    };
    children(daemon).iter().filter(|pid| is_stuck(pid)).count()
}

#[test]
fn a_daemon_goes_on_beside_a_locked_socket_and_sees_all_when_it_is_let_go() {
    let lab = Lab::enter();
    let mut all = uploads(&lab, 2);
    let (mut daemon, _config) = start("locked.toml");
    until("both are capped", || capped(&daemon) == 2);
    let (victim, _far) = lab.connect(FAR_V4);
    let held = Held::socket(&victim);
    until("it says so", || says(&daemon, "keeps a TCP socket locked"));
    assert_eq!(stuck(daemon.0.id()), 1);
    let (pid, since) = (daemon.0.id(), Instant::now());
    while since.elapsed() < LONGER_THAN_A_HANG {
        let asked = Instant::now();
        assert_eq!(daemon.status()["pid"], pid);
        assert!(asked.elapsed() < ANSWER, "{:?}", asked.elapsed());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(daemon.0.try_wait().unwrap().is_none());
    assert_eq!(stuck(pid), 1, "no more than one waits");
    assert_eq!(capped(&daemon), 2, "what it knew it knows");
    all.extend(uploads(&lab, 1));
    drop(held);
    let took = until("all are capped", || {
        capped(&daemon) == 3 && !says(&daemon, "socket locked")
    });
    assert!(took < END, "{took:?}");
    assert_eq!((stuck(pid), clamped(&mut lab.monitor())), (0, 3));
}

#[test]
fn a_locked_udp_socket_keeps_nobody_from_looking_at_connections() {
    let lab = Lab::enter();
    let mut all = uploads(&lab, 1);
    let (daemon, _config) = start("udp.toml");
    until("it is capped", || capped(&daemon) == 1);
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect((FAR_V4, 9)).unwrap();
    let _held = Held::socket(&socket);
    // Some kernels go from mark to mark, and wait for nobody.
    let since = Instant::now();
    while since.elapsed() < LONGER_THAN_A_HANG && !says(&daemon, "keeps a UDP socket locked") {
        std::thread::sleep(Duration::from_millis(100));
    }
    all.extend(uploads(&lab, 1));
    until("the new one is capped too", || capped(&daemon) == 2);
    assert!(!says(&daemon, "TCP socket"));
}

/// What is set on connections would stay, and a trial would compare with itself.
#[test]
fn a_daemon_is_not_paused_beside_a_locked_socket() {
    let lab = Lab::enter();
    let (daemon, _config) = start("paused.toml");
    let (victim, _far) = lab.connect(FAR_V4);
    let _held = Held::socket(&victim);
    until("it says so", || says(&daemon, "keeps a TCP socket locked"));
    let tried = giveway(&["try", "--pairs", "20", "--interval", "100ms", "--settle", "100ms"]);
    let told = String::from_utf8_lossy(&tried.stderr);
    assert_eq!(tried.status.code(), Some(1), "{told}");
    assert!(told.contains("cannot be undone now"), "{told}");
    assert!(daemon.status()["paused"].is_null());
}

#[test]
fn an_end_beside_a_locked_socket_is_in_time_and_the_watchdog_undoes_when_it_is_let_go() {
    let lab = Lab::enter();
    let _all = uploads(&lab, 2);
    let (mut daemon, _config) = start("end.toml");
    until("both are capped", || capped(&daemon) == 2);
    let watchdog = daemon.watchdog();
    let (victim, _far) = lab.connect(FAR_V4);
    let held = Held::socket(&victim);
    daemon.signal(Signal::SIGTERM);
    let asked = Instant::now();
    let status = await_some("it ends", || daemon.0.try_wait().unwrap());
    assert!(asked.elapsed() < END, "{:?}", asked.elapsed());
    assert_eq!(status.code(), Some(1), "not everything was undone");
    until("the watchdog waits for the lock, too", || stuck(watchdog) == 1);
    drop(held);
    let mut monitor = lab.monitor();
    let took = until("all are restored", || clamped(&mut monitor) == 0);
    assert!(took < END, "{took:?}");
}

#[test]
fn a_start_and_a_revert_beside_a_locked_socket_say_what_is_left_and_hang_nowhere() {
    let lab = Lab::enter();
    let _all = uploads(&lab, 2);
    let (mut first, _config) = start("left.toml");
    until("both are capped", || capped(&first) == 2);
    let (victim, _far) = lab.connect(FAR_V4);
    let held = Held::socket(&victim);
    first.kill_both();
    await_some("it is dead", || first.0.try_wait().unwrap());
    let asked = Instant::now();
    let (line, code) = failure(&giveway(&["revert"]));
    assert!(
        code == 1 && line.contains("keeps a TCP socket locked"),
        "{code}: {line}"
    );
    assert!(asked.elapsed() < END, "{:?}", asked.elapsed());
    let (daemon, _config) = start("next.toml");
    until("it says so", || says(&daemon, "change is not undone"));
    assert!(watchdog_of(daemon.0.id()).is_some());
    drop(held);
    until("sockets are monitored", || {
        !daemon.status()["flows"].as_array().unwrap().is_empty()
    });
    drop(daemon);
    until("everything can be restored", || giveway(&["revert"]).status.success());
    assert_eq!(clamped(&mut lab.monitor()), 0);
}
