// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon's whole life with one uploading connection: it caps, it explains, and however it ends, within a
//! second no cap is left.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use giveway::kernel::flow_monitor::FlowMonitor;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{Daemon, PAPER, Scratch, giveway, until};
use crate::lab::{FAR_V4, Lab};

/// Hirai et al.: one sender at 20 Mbit/s and 256 ms, 120 kB of margin.
const ALONE: u64 = 346;

/// A connection whose queue never empties, because its peer reads nothing.
fn upload(lab: &Lab) -> (TcpStream, TcpStream) {
    let listener = lab.far_listener(FAR_V4);
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 65_536]).is_ok() {}
    (near, far)
}

/// Sockets of this namespace whose cwnd the kernel holds below anything, by a look of the test's own.
fn clamped(monitor: &mut FlowMonitor) -> usize {
    monitor
        .walk()
        .unwrap()
        .iter()
        .filter(|flow| flow.clamp.is_some())
        .count()
}

fn capping_daemon(name: &str) -> (Daemon, Scratch) {
    let config = Scratch::new(name, PAPER);
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the sender is capped", || {
        daemon.status()["flows"]
            .as_array()
            .unwrap()
            .iter()
            .any(|f| f["cap"] == ALONE)
    });
    (daemon, config)
}

fn signal(daemon: &Daemon, signal: Signal) {
    kill(Pid::from_raw(daemon.0.id() as i32), signal).unwrap();
}

#[test]
fn why_tells_rule_and_evidence_of_a_cap() {
    let lab = Lab::enter();
    let ends = upload(&lab);
    let (_daemon, _config) = capping_daemon("why.toml");
    let answer = giveway(&["why", &std::process::id().to_string()]);
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(
        text.contains("cap none -> 346, rule fixed") && text.contains("20 Mbit/s x 256 ms"),
        "{text}"
    );
    assert!(ends.0.as_raw_fd() >= 0);
}

#[test]
fn a_dry_run_explains_and_changes_nothing() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let config = Scratch::new("dry.toml", PAPER);
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv", "--dry-run"]);
    until("it would cap", || {
        daemon.status()["changes"].as_array().is_some_and(|c| !c.is_empty())
    });
    let passes = || daemon.status()["passes"]["count"].as_u64().unwrap();
    let enough = passes() + 5;
    until("some passes more", || passes() >= enough);
    let status = daemon.status();
    let changes = status["changes"].as_array().unwrap();
    assert!(changes.iter().all(|change| change["made"] == false), "{status}");
    assert!(!status["changes"].to_string().contains("another tool"), "{status}");
    assert!(
        status["flows"].as_array().unwrap().iter().all(|f| f["clamp"].is_null()),
        "{status}"
    );
}

#[test]
fn sigterm_undoes_everything_and_exits_0() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (mut daemon, _config) = capping_daemon("term.toml");
    assert_eq!(clamped(&mut monitor), 1);
    signal(&daemon, Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(clamped(&mut monitor), 0);
}

#[test]
fn sigkill_leaves_no_cap_within_a_second() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (daemon, _config) = capping_daemon("kill.toml");
    assert_eq!(clamped(&mut monitor), 1);
    signal(&daemon, Signal::SIGKILL);
    let took = until("the guardian lifts the cap", || clamped(&mut monitor) == 0);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn with_the_guardian_killed_too_the_next_start_undoes_it() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (daemon, _config) = capping_daemon("both.toml");
    let children = format!("/proc/{0}/task/{0}/children", daemon.0.id());
    let guardian: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    kill(Pid::from_raw(guardian), Signal::SIGSTOP).unwrap();
    signal(&daemon, Signal::SIGKILL);
    kill(Pid::from_raw(guardian), Signal::SIGKILL).unwrap();
    assert_eq!(clamped(&mut monitor), 1, "nobody is left to lift it");
    drop(daemon);
    let _next = Daemon::start(&["--interface", "gwv"]);
    assert_eq!(clamped(&mut monitor), 0);
}

#[test]
fn revert_ends_a_running_daemon_and_undoes_its_work() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (mut daemon, _config) = capping_daemon("revert.toml");
    assert!(giveway(&["revert"]).status.success());
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(clamped(&mut monitor), 0);
}

#[test]
fn a_record_is_read_back_and_drawn() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let (_daemon, _config) = capping_daemon("record.toml");
    let record = Scratch::new("record.jsonl", "");
    let picture = Scratch::new("record.svg", "");
    let mut recording = std::process::Command::new(super::process::program())
        .args(["record", record.path()])
        .spawn()
        .unwrap();
    let _more = upload(&lab);
    until("some lines are there", || {
        std::fs::read_to_string(&record.0).unwrap().lines().count() > 50
    });
    kill(Pid::from_raw(recording.id() as i32), Signal::SIGINT).unwrap();
    assert!(recording.wait().unwrap().success());
    let drawn = giveway(&["plot", record.path(), "-o", picture.path()]);
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    assert!(
        std::fs::read_to_string(&picture.0)
            .unwrap()
            .contains("smoothed RTT, ms")
    );
}
