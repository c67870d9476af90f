// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The managed link's queue through a daemon's life: it is installed where the rate is known, and however the daemon
//! ends, what was there before is there again. What somebody else put there is left alone.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::admission::{pair, with_deadline};
use crate::support::lab::{FAR_V4, Lab, run};
use crate::support::process::{Daemon, backend, giveway};
use crate::support::scratch::Scratch;
use crate::support::wait::until;

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
    until("the queue is up", || !daemon.status()["queue"]["installed"].is_null());
    (daemon, config)
}

fn queue_changes(daemon: &Daemon) -> Vec<serde_json::Value> {
    let mut status = daemon.status();
    let changes = status["changes"].as_array_mut().unwrap();
    changes.extract_if(.., |change| change["setting"] == "queue").collect()
}

#[test]
fn the_four_bands_stand_with_their_rates() {
    let _lab = Lab::enter();
    let (daemon, _config) = daemon_with("bands.toml", "htb");
    let classes = run("tc class show dev gwv");
    for (class, rates) in [
        ("6777:1 root", "rate 20Mbit ceil 20Mbit"),
        ("6777:10 parent 6777:1", "prio 0 rate 16Mbit ceil 16Mbit"),
        ("6777:18 parent 6777:1", "prio 1 rate 1950Kbit ceil 20Mbit"),
        ("6777:20 parent 6777:1", "prio 2 rate 1950Kbit ceil 20Mbit"),
        ("6777:30 parent 6777:1", "prio 3 rate 100Kbit ceil 20Mbit"),
    ] {
        let line = classes.lines().find(|line| line.contains(&format!("htb {class} ")));
        assert!(
            line.is_some_and(|line| line.contains(rates)),
            "no {class} {rates} in {classes}"
        );
    }
    assert_eq!(gso_max_segs(), "1");
    let reason = giveway(&["why", "queue"]);
    let reason = String::from_utf8(reason.stdout).unwrap();
    assert!(
        reason.contains("noqueue (not giveway's) -> htb at 20000 kbit/s"),
        "{reason}"
    );
    assert!(reason.contains("(rate_mbit in [link])"), "{reason}");
    drop(daemon);
}

#[test]
fn a_deadline_that_nothing_promises_is_told() {
    let _lab = Lab::enter();
    let deadline = "[[deadline]]\nport = 5005\ndeadline_ms = 10\n";
    let start = |rate: &str| {
        let config = Scratch::new("deadline.toml", &format!("{rate}{deadline}"));
        (
            Daemon::start(&["--config", config.path(), "--interface", "gwv"]),
            config,
        )
    };
    let told = |daemon: &Daemon| {
        daemon.status()["warnings"]
            .to_string()
            .contains("[[deadline]] guarantees nothing")
    };
    let (daemon, _config) = start("");
    until("it is told", || told(&daemon));
    drop(daemon);
    let (daemon, _config) = start(&slow_link("htb"));
    until("a rate is known", || !told(&daemon));
}

#[test]
fn a_queue_that_is_in_no_journal_is_taken_off_by_revert_and_by_the_next_start() {
    let _lab = Lab::enter();
    // As it is left where the folder of the journals goes with the daemon and the watchdog.
    let leave = || run("tc qdisc replace dev gwv root handle 6777: htb");
    let before = qdiscs();
    leave();
    let revert = giveway(&["revert"]);
    let said = String::from_utf8(revert.stdout).unwrap();
    assert!(
        said.contains("left over: qdisc of gwv, which no journal had, back to the kernel's default"),
        "{said}"
    );
    assert_eq!(qdiscs(), before);
    leave();
    let (daemon, _config) = daemon_with("no-journal.toml", "htb");
    drop(daemon);
    assert_eq!(qdiscs(), before);
}

/// Bytes and packets that the near end has sent.
fn sent() -> [u64; 2] {
    let links: serde_json::Value = serde_json::from_str(&run("ip -json -statistics link show dev gwv")).unwrap();
    ["bytes", "packets"].map(|what| links[0]["stats64"]["tx"][what].as_u64().unwrap())
}

#[test]
fn open_connections_follow_the_limit_of_segments() {
    let lab = Lab::enter();
    let mut stream = TcpStream::connect((FAR_V4, lab.reader())).unwrap();
    let mut bytes_a_packet = || {
        let before = sent();
        stream.write_all(&[0; 500_000]).unwrap();
        until("most of it is sent", || sent()[0] > before[0] + 400_000);
        let after = sent();
        (after[0] - before[0]) / (after[1] - before[1])
    };
    assert!(bytes_a_packet() > 3000);
    let (_daemon, _config) = daemon_with("segments.toml", "htb");
    until("segments are limited", || gso_max_segs() == "1");
    // What was made before may still wait.
    bytes_a_packet();
    assert!(bytes_a_packet() <= 1514);
}

#[test]
fn segments_follow_the_links_rate_and_what_somebody_sets_afterwards_outlives_a_killed_daemon() {
    let _lab = Lab::enter();
    let before = gso_max_segs();
    let config = Scratch::new("whole.toml", "[link]\nrate_mbit = 1000\n[queue]\nbackend = \"htb\"\n");
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the queue is up", || !daemon.status()["queue"]["installed"].is_null());
    assert_eq!(gso_max_segs(), before);

    assert!(giveway(&["link", "set", "gwv", "--up", "20mbit"]).status.success());
    until("segments are limited", || gso_max_segs() == "1");
    assert!(giveway(&["link", "set", "gwv", "--up", "1gbit"]).status.success());
    until("they are as before", || gso_max_segs() == before);

    run("ip link set dev gwv gso_max_segs 1");
    daemon.kill();
    assert_eq!(gso_max_segs(), "1");
}

#[test]
fn sigterm_puts_the_kernels_default_back() {
    let _lab = Lab::enter();
    let (before, segments) = (qdiscs(), gso_max_segs());
    let (mut daemon, _config) = queueing_daemon("term.toml");
    assert_ne!(qdiscs(), before);
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!((qdiscs(), gso_max_segs()), (before, segments));
}

#[test]
fn sigkill_puts_it_back_within_a_second() {
    let _lab = Lab::enter();
    let (before, segments) = (qdiscs(), gso_max_segs());
    let (daemon, _config) = queueing_daemon("kill.toml");
    let took = daemon.kill();
    assert_eq!((qdiscs(), gso_max_segs()), (before, segments));
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn revert_puts_it_back_after_both_have_died() {
    let _lab = Lab::enter();
    let (before, segments) = (qdiscs(), gso_max_segs());
    let (daemon, _config) = queueing_daemon("both.toml");
    daemon.kill_both();
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
    daemon.kill_both();
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
        daemon.signal(Signal::SIGKILL);
        until("the watchdog puts the qdisc back", || qdiscs() == before);
    }
}

#[test]
fn segments_that_another_tool_has_limited_stay_so() {
    let _lab = Lab::enter();
    let fast = format!("[link]\nrate_mbit = 1000\n[queue]\nbackend = \"{}\"\n", backend());
    let config = Scratch::new("fast.toml", &fast);
    let before = (qdiscs(), gso_max_segs());
    let mut daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the queue is up", || !daemon.status()["queue"]["installed"].is_null());
    assert_eq!(gso_max_segs(), before.1, "a fast link needs no limit");
    run("ip link set dev gwv gso_max_segs 1");
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!((qdiscs(), gso_max_segs()), (before.0, "1".to_owned()));
}

#[test]
fn a_classful_qdisc_is_left_alone_and_said_to_be() {
    let lab = Lab::enter();
    lab.narrow(10, 30_000);
    let before = qdiscs();
    let config = Scratch::new("classful.toml", &slow_link(&backend()));
    let mut daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("it says why", || {
        let reason = daemon.status()["queue"]["reason"].to_string();
        reason.contains("tbf") && reason.contains("not replaced")
    });
    assert_eq!(qdiscs(), before);
    daemon.signal(Signal::SIGTERM);
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
        let reason = daemon.status()["queue"]["reason"].to_string();
        reason.contains("another tool")
    });
    assert_eq!(
        (qdiscs(), gso_max_segs()),
        (theirs.clone(), segments),
        "the rest of ours is undone"
    );
    let watchdog = format!("/proc/{}", daemon.watchdog());
    daemon.signal(Signal::SIGKILL);
    until("the watchdog is done", || !std::path::Path::new(&watchdog).exists());
    assert_eq!(qdiscs(), theirs);
}

#[test]
fn without_a_rate_nothing_is_changed_and_the_reason_is_said() {
    let _lab = Lab::enter();
    let before = qdiscs();
    let config = Scratch::new("no-rate.toml", "[queue]\nbackend = \"htb\"\n");
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("it says why", || {
        daemon.status()["queue"]["reason"].to_string().contains("is unknown")
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
        let changes = queue_changes(&daemon);
        changes.len() == 1 && changes[0]["made"] == false
    });
    assert_eq!(qdiscs(), before);
}

#[test]
fn a_new_mtu_is_followed_and_the_link_may_go_down_and_up() {
    let _lab = Lab::enter();
    let (daemon, _config) = queueing_daemon("mtu.toml");
    let packet = || daemon.status()["queue"]["installed"]["max_packet_bytes"].clone();
    run("ip link set gwv mtu 1000");
    until("the new MTU counts", || packet() == 1014);
    run("ip link set gwv down");
    until("there is no interface", || daemon.status()["interface"].is_null());
    run("ip link set gwv up");
    until("there is one again", || !daemon.status()["interface"].is_null());
    assert!(qdiscs().contains(" 6777: root"), "{}", qdiscs());
    let changes = queue_changes(&daemon);
    assert_eq!(
        (changes.len(), &changes[0]["times"]),
        (1, &1.into()),
        "neither puts the queue up again"
    );
}

#[test]
fn a_link_that_vanishes_leaves_nothing_to_undo() {
    let _lab = Lab::enter();
    let (mut daemon, _config) = queueing_daemon("vanish.toml");
    run("ip link del gwv");
    until("there is no interface", || daemon.status()["interface"].is_null());
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
}

/// A qdisc of this number and another kind cannot be replaced: what the daemon asks for fails.
fn stand_in_the_way() {
    run("tc qdisc replace dev gwv root handle 6777: pfifo limit 10");
}

fn reason(daemon: &Daemon) -> String {
    daemon.status()["queue"]["reason"].as_str().unwrap().to_owned()
}

#[test]
fn a_queue_that_could_not_be_install_is_tried_again() {
    let _lab = Lab::enter();
    stand_in_the_way();
    let config = Scratch::new("again.toml", &slow_link(&backend()));
    let mut daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("it says when it is tried again, and why", || {
        let reason = reason(&daemon);
        reason.contains("tried again in ") && reason.contains("could not be installed")
    });
    run("tc qdisc replace dev gwv root handle 7: pfifo limit 11");
    let before = qdiscs();
    until("the queue is up", || !daemon.status()["queue"]["installed"].is_null());
    assert!(!reason(&daemon).contains("tried again"), "{}", reason(&daemon));
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(qdiscs(), before);
}

#[test]
fn a_link_that_comes_back_has_its_queue_at_once() {
    let lab = Lab::enter();
    stand_in_the_way();
    let config = Scratch::new("back.toml", &slow_link(&backend()));
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("it waits for longer and longer", || {
        let reason = reason(&daemon);
        let wait = reason
            .strip_prefix("tried again in ")
            .and_then(|rest| rest.split(' ').next());
        wait.is_some_and(|seconds| seconds.parse().is_ok_and(|seconds: u32| seconds >= 4))
    });
    run("ip link del gwv");
    run(&format!("ip link add gwv type veth peer name gwv netns {}", lab.far));
    run("ip link set gwv up");
    let took = until("the queue is up", || !daemon.status()["queue"]["installed"].is_null());
    assert!(
        took < Duration::from_secs(3),
        "{took:?}: it was not the link that brought it"
    );
}

/// Another tool deletes the root qdisc, as often as it finds one of giveway's.
fn reset() {
    if qdiscs().contains(" 6777: root") {
        run("tc qdisc del dev gwv root");
    }
}

fn stands() -> bool {
    qdiscs().contains(" 6777: root")
}

#[test]
fn a_qdisc_that_a_network_manager_resets_once_is_back_within_thirty_seconds() {
    let _lab = Lab::enter();
    let (daemon, _config) = queueing_daemon("reset-once.toml");
    reset();
    until("it is told", || {
        reason(&daemon).contains("restored soon (1 of 3 times in ten minutes)")
    });
    let took = until("it is back", || {
        stands() && !daemon.status()["queue"]["installed"].is_null()
    });
    println!("reset once: back after {:.1} s", took.as_secs_f64());
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!(gso_max_segs(), "1");
}

#[test]
fn a_fight_over_the_root_is_lost_until_the_link_was_down() {
    let _lab = Lab::enter();
    let (daemon, _config) = queueing_daemon("fight.toml");
    let (began, mut stood) = (Instant::now(), Vec::new());
    for n in 0..7u64 {
        while began.elapsed() < Duration::from_secs(10 * n) {
            thread::sleep(Duration::from_millis(100));
        }
        stood.push(stands());
        reset();
    }
    until("it is told", || {
        reason(&daemon).contains("not restored until giveway is restarted or the link was down")
    });
    println!(
        "reset every 10 s for a minute: giveway's queue stood at each: {stood:?}; {}",
        reason(&daemon)
    );
    assert_eq!(
        stood.iter().filter(|stood| **stood).count(),
        4,
        "three times it came back"
    );
    assert!(!stands());
    assert_ne!(gso_max_segs(), "1");
    run("ip link set gwv down");
    run("ip link set gwv up");
    until("the link was down, and has its queue", stands);
}

#[test]
fn what_another_tool_configures_in_a_fight_is_never_replaced() {
    let _lab = Lab::enter();
    let (daemon, _config) = queueing_daemon("configured.toml");
    reset();
    until("it is told", || reason(&daemon).contains("restored soon"));
    run("tc qdisc replace dev gwv root handle 7: pfifo limit 55");
    let theirs = qdiscs();
    let end = Instant::now() + Duration::from_secs(6);
    while Instant::now() < end {
        assert_eq!(qdiscs(), theirs);
        thread::sleep(Duration::from_millis(50));
    }
    let told = reason(&daemon);
    assert!(told.contains("another tool has put the qdisc pfifo"), "{told}");
    run("tc qdisc del dev gwv root");
    until("the place is free, and giveway's queue is back", stands);
}

/// Beyond the link's own subnet, at its remote host.
const BEYOND: &str = "10.97.0.1";

/// What arrives at each of these, Mbit/s, while as much as can be is sent to all of them.
fn arrives_mbit<const N: usize>(lab: &Lab, to: [&str; N]) -> [f64; N] {
    let to = to.map(|ip| SocketAddr::new(ip.parse().unwrap(), 7_123));
    let sinks = to.map(|to| lab.far(move || UdpSocket::bind(to).unwrap()));
    let (stop, arrived) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; N]);
    let (stop, arrived) = (&stop, &arrived);
    let so_far = || arrived.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
    thread::scope(|scope| {
        for (n, sink) in sinks.into_iter().enumerate() {
            sink.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            scope.spawn(move || {
                let mut bytes = [0; 2_000];
                while !stop.load(Ordering::Relaxed) {
                    let length = sink.recv(&mut bytes).unwrap_or(0) as u64;
                    arrived[n].fetch_add(length, Ordering::Relaxed);
                }
            });
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&[0; 1_400], to[n]);
                }
            });
        }
        thread::sleep(Duration::from_secs(1));
        let (before, began) = (so_far(), Instant::now());
        thread::sleep(Duration::from_secs(3));
        let (after, seconds) = (so_far(), began.elapsed().as_secs_f64());
        stop.store(true, Ordering::Relaxed);
        std::array::from_fn(|n| (after[n] - before[n]) as f64 * 8e-6 / seconds)
    })
}

/// The remote host has an address beyond the link's own subnet.
fn with_a_way_beyond() -> Lab {
    let lab = Lab::enter();
    run(&format!("ip -n {} address add {BEYOND}/32 dev lo", lab.far));
    run(&format!("ip route add {BEYOND} via {FAR_V4}"));
    lab
}

#[test]
fn local_traffic_has_no_part_in_the_rate_where_that_is_the_modems() {
    let lab = with_a_way_beyond();
    let text = slow_link("htb").replace("rate_mbit = 20\n", "rate_mbit = 20\nlocal = \"unlimited\"\n");
    let config = Scratch::new("local.toml", &text);
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the queue is up", || !daemon.status()["queue"]["installed"].is_null());
    let [beyond] = arrives_mbit(&lab, [BEYOND]);
    let [local] = arrives_mbit(&lab, [FAR_V4]);
    let [with_local, beside] = arrives_mbit(&lab, [BEYOND, FAR_V4]);
    println!(
        "rate 20 Mbit/s: beyond {beyond:.1}, local {local:.1}; at once: beyond {with_local:.1}, local {beside:.1} Mbit/s"
    );
    assert!((17.0..20.5).contains(&beyond) && local > 100.0 && beside > 60.0);
    assert!(with_local > 0.9 * beyond, "local traffic takes nothing from the link");
}

#[test]
fn local_traffic_shares_the_rate_unless_it_is_said_otherwise() {
    let lab = with_a_way_beyond();
    let (_daemon, _config) = daemon_with("local-limited.toml", "htb");
    let [with_local, beside] = arrives_mbit(&lab, [BEYOND, FAR_V4]);
    println!("rate 20 Mbit/s, local limited; at once: beyond {with_local:.1}, local {beside:.1} Mbit/s");
    assert!((16.0..20.5).contains(&(with_local + beside)));
}

#[test]
fn the_own_subnets_follow_the_links_addresses() {
    let lab = with_a_way_beyond();
    let text = slow_link("htb").replace("rate_mbit = 20\n", "rate_mbit = 20\nlocal = \"unlimited\"\n");
    let config = Scratch::new("local-follows.toml", &text);
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the queue is up", || !daemon.status()["queue"]["installed"].is_null());
    run("ip address add 10.97.0.9/24 dev gwv");
    until("what was beyond is local", || arrives_mbit(&lab, [BEYOND])[0] > 100.0);
    run("ip address del 10.97.0.9/24 dev gwv");
    until("it is beyond again", || arrives_mbit(&lab, [BEYOND])[0] < 25.0);
}

/// Packets that the class with this number has sent.
fn packets_of(minor: &str) -> u64 {
    let classes = run("tc -s class show dev gwv");
    let mut lines = classes.lines();
    let is_it = |line: &&str| {
        line.split(' ')
            .nth(2)
            .is_some_and(|handle| handle.ends_with(&format!(":{minor}")))
    };
    lines
        .find(is_it)
        .unwrap_or_else(|| panic!("no class {minor}: {classes}"));
    let mut words = lines.next().unwrap().split_whitespace();
    words.nth(3).unwrap().parse().unwrap()
}

#[test]
fn a_deadline_that_anybody_may_ask_for_puts_no_local_traffic_before_others() {
    const FIRST: &str = "40";
    let lab = Lab::enter();
    let (anybodys, _at_anybodys) = pair(&lab, FAR_V4);
    let (granted, _at_granted) = pair(&lab, FAR_V4);
    let port = granted.peer_addr().unwrap().port();
    let deadline = format!("local = \"unlimited\"\n[[deadline]]\nport = {port}\ndeadline_ms = 20.0\n");
    let text = format!("[queue]\nbackend = \"htb\"\n[link]\nrate_mbit = 20\n{deadline}");
    let config = Scratch::new("local-deadlines.toml", &text);
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the queue is up", || !daemon.status()["queue"]["installed"].is_null());
    let before = packets_of(FIRST);
    for _ in 0..50 {
        with_deadline(&anybodys, Duration::from_millis(100)).unwrap();
    }
    let by_anybody = packets_of(FIRST) - before;
    until("what is granted goes first", || {
        granted.send(&[0; 1000]).unwrap();
        packets_of(FIRST) > before
    });
    println!("sent first: {by_anybody} of 50 by anybody");
    assert_eq!(by_anybody, 0);
}
