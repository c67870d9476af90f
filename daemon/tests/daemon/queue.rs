// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The managed link's queue through a daemon's life: it is put up where the rate is known, and however the daemon
//! ends, what was there before is there again. What somebody else put there is left alone.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{Daemon, Scratch, backend, giveway, until};
use crate::lab::{Lab, run};

/// A slow link with this backend.
fn slow_link(backend: &str) -> String {
    format!("[link]\nrate_mbit = 20\n[queue]\nbackend = \"{backend}\"\n")
}

/// The near end's qdiscs, as tc shows them, leaves included.
fn qdiscs() -> String {
    run("tc qdisc show dev gwv")
}

fn gso_max_segs() -> String {
    let link = run("ip -details link show dev gwv");
    let mut words = link.split_whitespace().skip_while(|word| *word != "gso_max_segs");
    words.nth(1).unwrap().to_owned()
}

fn queueing_daemon(name: &str) -> (Daemon, Scratch) {
    daemon_with(name, &backend())
}

fn daemon_with(name: &str, backend: &str) -> (Daemon, Scratch) {
    let config = Scratch::new(name, &slow_link(backend));
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the queue is up", || !daemon.status()["queue"]["in_force"].is_null());
    (daemon, config)
}

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal).unwrap();
}

fn guardian_of(daemon: &Daemon) -> u32 {
    let children = format!("/proc/{0}/task/{0}/children", daemon.0.id());
    std::fs::read_to_string(children).unwrap().trim().parse().unwrap()
}

/// Both die at once: nobody is left to undo anything.
fn kill_both(daemon: &Daemon) {
    let guardian = guardian_of(daemon);
    signal(guardian, Signal::SIGSTOP);
    signal(daemon.0.id(), Signal::SIGKILL);
    signal(guardian, Signal::SIGKILL);
}

#[test]
fn the_three_bands_stand_with_their_rates() {
    let _lab = Lab::enter();
    let (daemon, _config) = daemon_with("bands.toml", "htb");
    let classes = run("tc class show dev gwv");
    for (class, rates) in [
        ("6777:1 root", "rate 20Mbit ceil 20Mbit"),
        ("6777:10 parent 6777:1", "prio 0 rate 16Mbit ceil 16Mbit"),
        ("6777:20 parent 6777:1", "prio 1 rate 4Mbit ceil 20Mbit"),
        ("6777:30 parent 6777:1", "prio 2 rate 8bit ceil 20Mbit"),
    ] {
        let line = classes.lines().find(|line| line.contains(&format!("htb {class} ")));
        assert!(
            line.is_some_and(|line| line.contains(rates)),
            "no {class} {rates} in {classes}"
        );
    }
    assert_eq!(gso_max_segs(), "1");
    let why = giveway(&["why", "queue"]);
    let why = String::from_utf8(why.stdout).unwrap();
    assert!(why.contains("noqueue (not ours) -> htb at 20000 kbit/s"), "{why}");
    assert!(why.contains("by rate_mbit in [link]"), "{why}");
    drop(daemon);
}

#[test]
fn sigterm_puts_the_kernels_default_back() {
    let _lab = Lab::enter();
    let (before, segments) = (qdiscs(), gso_max_segs());
    let (mut daemon, _config) = queueing_daemon("term.toml");
    assert_ne!(qdiscs(), before);
    signal(daemon.0.id(), Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!((qdiscs(), gso_max_segs()), (before, segments));
}

#[test]
fn sigkill_puts_it_back_within_a_second() {
    let _lab = Lab::enter();
    let (before, segments) = (qdiscs(), gso_max_segs());
    let (daemon, _config) = queueing_daemon("kill.toml");
    signal(daemon.0.id(), Signal::SIGKILL);
    let took = until("the guardian puts the qdisc back", || {
        qdiscs() == before && gso_max_segs() == segments
    });
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn revert_puts_it_back_after_both_have_died() {
    let _lab = Lab::enter();
    let (before, segments) = (qdiscs(), gso_max_segs());
    let (daemon, _config) = queueing_daemon("both.toml");
    kill_both(&daemon);
    drop(daemon);
    let found = giveway(&["revert", "--dry-run"]);
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(found.contains("qdisc of gwv back to noqueue"), "{found}");
    assert_ne!(qdiscs(), before, "a dry run changes nothing");
    assert!(giveway(&["revert"]).status.success());
    assert_eq!((qdiscs(), gso_max_segs()), (before, segments));
}

#[test]
fn the_next_start_puts_it_back_too() {
    let _lab = Lab::enter();
    let before = qdiscs();
    let (daemon, _config) = queueing_daemon("next.toml");
    kill_both(&daemon);
    drop(daemon);
    let config = Scratch::new("none.toml", &slow_link("none"));
    let next = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    assert_eq!(qdiscs(), before);
    drop(next);
}

#[test]
fn an_administrators_qdisc_comes_back_with_its_handle_and_options() {
    for qdisc in ["handle 5: pfifo limit 77", "handle 9: bfifo limit 33000"] {
        let _lab = Lab::enter();
        run(&format!("tc qdisc replace dev gwv root {qdisc}"));
        let before = qdiscs();
        let (daemon, _config) = queueing_daemon("administrator.toml");
        assert!(!qdiscs().contains("fifo 5:") && !qdiscs().contains("fifo 9:"));
        signal(daemon.0.id(), Signal::SIGKILL);
        until("the guardian puts the qdisc back", || qdiscs() == before);
    }
}

#[test]
fn a_classful_qdisc_is_left_alone_and_said_to_be() {
    let lab = Lab::enter();
    lab.narrow(10, 30_000);
    let before = qdiscs();
    let config = Scratch::new("classful.toml", &slow_link(&backend()));
    let mut daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("it says why", || {
        let why = daemon.status()["queue"]["why"].to_string();
        why.contains("tbf") && why.contains("left alone")
    });
    assert_eq!(qdiscs(), before);
    signal(daemon.0.id(), Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(qdiscs(), before);
}

#[test]
fn a_qdisc_that_another_tool_puts_in_our_place_stays() {
    let _lab = Lab::enter();
    let segments = gso_max_segs();
    let (daemon, _config) = queueing_daemon("replaced.toml");
    run("tc qdisc replace dev gwv root handle 7: pfifo limit 55");
    let theirs = qdiscs();
    until("it steps back", || {
        let why = daemon.status()["queue"]["why"].to_string();
        why.contains("another tool")
    });
    assert_eq!(
        (qdiscs(), gso_max_segs()),
        (theirs.clone(), segments),
        "the rest of ours is undone"
    );
    let guardian = format!("/proc/{}", guardian_of(&daemon));
    signal(daemon.0.id(), Signal::SIGKILL);
    until("the guardian is done", || !std::path::Path::new(&guardian).exists());
    assert_eq!(qdiscs(), theirs);
}

#[test]
fn without_a_rate_nothing_is_changed_and_the_reason_is_said() {
    let _lab = Lab::enter();
    let before = qdiscs();
    let config = Scratch::new("no-rate.toml", "[queue]\nbackend = \"htb\"\n");
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("it says why", || {
        daemon.status()["queue"]["why"]
            .to_string()
            .contains("has no known rate")
    });
    assert_eq!(qdiscs(), before);
}

#[test]
fn a_dry_run_explains_and_changes_nothing() {
    let _lab = Lab::enter();
    let before = qdiscs();
    let config = Scratch::new("dry.toml", &slow_link(&backend()));
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv", "--dry-run"]);
    until("it would change the queue", || {
        let changes = daemon.status()["queue_changes"].clone();
        changes
            .as_array()
            .is_some_and(|c| c.len() == 1 && c[0]["made"] == false)
    });
    assert_eq!(qdiscs(), before);
}

#[test]
fn a_new_mtu_is_followed_and_the_link_may_go_down_and_up() {
    let _lab = Lab::enter();
    let (daemon, _config) = queueing_daemon("mtu.toml");
    let packet = || daemon.status()["queue"]["in_force"]["max_packet_bytes"].clone();
    run("ip link set gwv mtu 1000");
    until("the new MTU counts", || packet() == 1014);
    run("ip link set gwv down");
    until("there is no interface", || daemon.status()["interface"].is_null());
    run("ip link set gwv up");
    until("there is one again", || !daemon.status()["interface"].is_null());
    assert!(qdiscs().contains(" 6777: root"), "{}", qdiscs());
    assert_eq!(daemon.status()["queue_changes"].as_array().unwrap().len(), 2);
}

#[test]
fn a_link_that_vanishes_leaves_nothing_to_undo() {
    let _lab = Lab::enter();
    let (mut daemon, _config) = queueing_daemon("vanish.toml");
    run("ip link del gwv");
    until("there is no interface", || daemon.status()["interface"].is_null());
    signal(daemon.0.id(), Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
}
