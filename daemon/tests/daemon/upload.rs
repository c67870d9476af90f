// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is sent is held to its limit also where no queue of giveway's serves the link: the link keeps the queue that it has, and
//! only what is limited takes a detour. Whatever happens to that, traffic goes on.

use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use giveway::kernel::tcx::{self, TcxHook};
use nix::net::if_::if_nametoindex;
use nix::sys::signal::Signal;

use super::classes::{Rules, rule};
use super::download::{mbit_of, program_that_returns};
use crate::support::lab::{FAR_V4, Lab, carried, run};
use crate::support::process::{Daemon, KillOnDrop, giveway, program};
use crate::support::scratch::Scratch;
use crate::support::wait::{held, until};

const DEVICE: &str = "giveway-up";

fn arrived(lab: &Lab) -> serde_json::Value {
    let shown = run(&format!("ip -n {} -s -j link show dev gwv", lab.far));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    shown[0]["stats64"]["rx"].clone()
}

fn upload_mbit(lab: &Lab, time: Duration) -> f64 {
    lab.far(|| mbit_of(|| carried("gwv").0, time))
}

/// Packets that a firewall's chain at the remote host's ingress has counted.
fn seen_by_filter(lab: &Lab) -> u64 {
    let shown = lab.far(|| run("nft list chain netdev gwtest seen"));
    let mut words = shown.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).unwrap().parse().unwrap()
}

/// Runs for as long as the test takes.
fn sender(exec: &[&str], script: &str) -> KillOnDrop {
    let mut command = match exec {
        [] => Command::new("setpriv"),
        _ => {
            let mut command = Command::new(program());
            command.arg("exec").args(exec).args(["--require", "--", "setpriv"]);
            command
        }
    };
    command.args(["--pdeathsig", "KILL", "bash", "-c", script]);
    KillOnDrop::spawn(command.stdin(Stdio::null()).stderr(Stdio::null()))
}

/// A command that sends as much as it may, and to which port.
fn sends_at_most_4_mbit(lab: &Lab) -> (KillOnDrop, u16) {
    let port = lab.reader();
    let script = format!("exec 3>/dev/tcp/{FAR_V4}/{port}; exec cat /dev/zero >&3");
    (sender(&["--up", "4mbit"], &script), port)
}

fn assert_held(lab: &Lab, what: &str) {
    held(what, 3.4..4.3, || upload_mbit(lab, Duration::from_secs(2)));
}

fn is_clean() -> bool {
    run("ip link show type ifb").is_empty() && !run("tc qdisc show dev gwv").contains("clsact")
}

fn limiting(daemon: &Daemon) -> bool {
    !daemon.status()["uploads"]["links"].as_array().is_none_or(Vec::is_empty)
}

/// A link that giveway has no queue on.
fn start(rules: &Rules) -> (Daemon, Scratch) {
    let config = Scratch::new("no-queue.toml", "[queue]\nbackend = \"none\"\n");
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let daemon = Daemon::start(&arguments);
    until("the link is managed", || {
        !daemon.status()["links"].as_array().is_none_or(Vec::is_empty)
    });
    (daemon, config)
}

/// By this class of htb.
fn sent_by(class: &str) -> u64 {
    let shown = run(&format!("tc -s class show dev gwv classid {class}"));
    let (_, sent) = shown.split_once("Sent ").unwrap();
    sent.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn what_is_limited_keeps_its_priority_in_the_links_own_queue() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    run("tc qdisc add dev gwv root handle 7: htb default 1");
    for class in ["7:1", "7:10"] {
        run(&format!(
            "tc class add dev gwv parent 7: classid {class} htb rate 100mbit"
        ));
    }
    let (_daemon, _config) = start(&rules);
    // htb serves a packet in the class that its priority names; any other one in the default class.
    let script = format!(
        "exec python3 -c 'import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 0x70010); \
         s.connect((\"{FAR_V4}\", {})); s.sendall(bytes(100_000_000))'",
        lab.reader()
    );
    let _command = sender(&["--up", "4mbit"], &script);
    until("it sends", || sent_by("7:1") + sent_by("7:10") > 500_000);
    let [default, own] = ["7:1", "7:10"].map(sent_by);
    assert!(own > 400_000 && default < 50_000, "{own}, {default} by default");
}

/// What is redirected to the intermediate device has no socket any more.
#[test]
fn what_is_limited_keeps_its_band_and_mark_in_giveways_queue() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = lab.reader();
    let limited = format!("port = {port}\nupload_limit_mbit = 4");
    rules.write("50-test.toml", &rule(&limited, "background"));
    let config = Scratch::new("bands.toml", "[link]\nrate_mbit = 20\n[queue]\nbackend = \"htb\"\n");
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let daemon = Daemon::start(&arguments);
    until("the limit holds", || limiting(&daemon));
    lab.far(|| {
        run("nft add table netdev gwtest");
        run("nft add chain netdev gwtest seen { type filter hook ingress device gwv priority 0; }");
        run("nft add rule netdev gwtest seen ip dscp cs1 counter");
    });
    let connect = format!("exec 3>/dev/tcp/{FAR_V4}/{port}");
    let _sender = sender(&[], &format!("{connect}; exec cat /dev/zero >&3"));
    until("it sends", || sent_by("6777:20") + sent_by("6777:30") > 100_000);
    let (before, marked) = (sent_by("6777:20"), seen_by_filter(&lab));
    thread::sleep(Duration::from_secs(2));
    let [best_effort, background] = ["6777:20", "6777:30"].map(sent_by);
    assert!(
        best_effort - before < 20_000 && background > 800_000,
        "{best_effort}, {background}"
    );
    assert!(seen_by_filter(&lab) - marked > 500, "marked");
}

#[test]
fn a_command_sends_no_more_than_its_limit_by_a_link_that_keeps_its_own_queue() {
    for root in ["noqueue", "tbf rate 40mbit burst 5000 limit 200000", "pfifo"] {
        let (lab, rules) = (Lab::enter(), Rules::new());
        if root != "noqueue" {
            run(&format!("tc qdisc add dev gwv root handle 7: {root}"));
        }
        lab.far(|| {
            run("nft add table netdev gwtest");
            run("nft add chain netdev gwtest seen { type filter hook ingress device gwv priority 0; }");
            run("nft add rule netdev gwtest seen counter");
        });
        let before = run("tc qdisc show dev gwv");
        let (_daemon, _config) = start(&rules);
        let (command, port) = sends_at_most_4_mbit(&lab);
        until("something arrives", || {
            upload_mbit(&lab, Duration::from_millis(100)) > 0.5
        });
        assert_held(&lab, root);
        // What comes next is no part of the detour: it sees every packet.
        let came = arrived(&lab)["packets"].as_u64().unwrap();
        let seen = seen_by_filter(&lab);
        assert!(seen + 20 > came && came > 300, "{seen} of {came}");
        let kind = root.split(' ').next().unwrap();
        assert!(
            run("tc qdisc show dev gwv root").contains(&format!("qdisc {kind}")),
            "{root}"
        );
        let reason = String::from_utf8(giveway(&["why", &port.to_string()]).stdout).unwrap();
        assert!(
            reason.contains("its upload limit of 4 Mbit/s is enforced by gwv"),
            "{reason}"
        );
        let status = String::from_utf8(giveway(&["status"]).stdout).unwrap();
        assert!(status.contains("upload limits are enforced on gwv"), "{status}");
        // What has no limit goes the way that it always went.
        let port = lab.reader();
        let free = sender(&[], &format!("exec 3>/dev/tcp/{FAR_V4}/{port}; exec cat /dev/zero >&3"));
        until("others are free", || {
            upload_mbit(&lab, Duration::from_millis(200)) > 30.0
        });
        drop(free);
        drop(command);
        until("nothing is left", is_clean);
        assert_eq!(run("tc qdisc show dev gwv"), before);
    }
}

/// No filter behind it sees what it lets pass at once.
#[test]
fn a_program_of_another_tool_that_decides_behind_giveways_is_told_of() {
    const TCX_PASS: i32 = 0;
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (daemon, _config) = start(&rules);
    let _command = sends_at_most_4_mbit(&lab);
    until("what is sent is limited", || limiting(&daemon));
    let reasons = || daemon.status()["uploads"]["reasons"].to_string();
    assert_eq!(reasons(), "[]");
    let (program, ifindex) = (program_that_returns(TCX_PASS), if_nametoindex("gwv").unwrap());
    let behind = tcx::attach(program.as_fd(), ifindex, TcxHook::Egress).unwrap();
    until("it is told of", || {
        reasons().contains("tcx programs of other tools run at the egress: 1")
    });
    drop(behind);
    until("it is gone", || reasons() == "[]");
    assert_held(&lab, "");
}

#[test]
fn where_another_tool_filters_what_is_sent_the_limit_is_said_not_to_hold_also_when_it_comes_later() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (daemon, _config) = start(&rules);
    let _command = sends_at_most_4_mbit(&lab);
    until("what is sent is limited", || limiting(&daemon));
    // Its verdict is final: nothing that comes after it is asked.
    run("tc filter add dev gwv egress prio 1 protocol ip u32 match u32 0 0 classid 1:1");
    until("it is said", || {
        let reasons = daemon.status()["uploads"]["reasons"].to_string();
        !limiting(&daemon) && reasons.contains("tc filters at the egress of gwv")
    });
    run("tc filter del dev gwv egress prio 1");
    until("what is sent is limited again", || limiting(&daemon));
    assert_held(&lab, "");
}

#[test]
fn a_command_that_sends_udp_and_does_not_slow_down_sends_no_more_than_its_limit() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (_daemon, _config) = start(&rules);
    let sink = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    let port = sink.local_addr().unwrap().port();
    // 20 Mbit/s, also where it is late.
    let script = format!(
        "exec python3 -c '
import socket, time
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to.connect((\"{FAR_V4}\", {port}))
due = time.monotonic()
while True:
    to.send(bytes(1200))
    due = max(due, time.monotonic() - 1) + 1200 * 8 / 20e6
    time.sleep(max(0, due - time.monotonic()))
'"
    );
    let free = sender(&[], &script);
    until("it sends", || upload_mbit(&lab, Duration::from_secs(1)) > 10.0);
    drop(free);
    let _command = sender(&["--up", "4mbit"], &script);
    until("something arrives", || {
        upload_mbit(&lab, Duration::from_millis(100)) > 0.5
    });
    assert_held(&lab, "");
}

#[test]
fn whatever_happens_to_the_detour_of_what_is_sent_traffic_goes_on_and_nothing_is_left() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = lab.reader();
    let limit = format!("port = {port}\nupload_limit_mbit = 4.0");
    rules.write("50-test.toml", &rule(&limit, "standard"));
    let (mut daemon, _config) = start(&rules);
    until("what is sent is limited", || limiting(&daemon));
    let _sender = sender(&[], &format!("exec 3>/dev/tcp/{FAR_V4}/{port}; exec cat /dev/zero >&3"));
    let is_held = || upload_mbit(&lab, Duration::from_millis(400)) < 6.0;
    let is_free = || upload_mbit(&lab, Duration::from_millis(200)) > 40.0;
    for command in [format!("ip link set {DEVICE} down"), format!("ip link del {DEVICE}")] {
        until("what is sent is limited", || limiting(&daemon) && is_held());
        run(&command);
        let begun = Instant::now();
        until("everything is sent", is_free);
        assert!(
            begun.elapsed() < Duration::from_secs(1),
            "{command}: {:?}",
            begun.elapsed()
        );
    }
    until("what is sent is limited", || limiting(&daemon) && is_held());
    daemon.kill();
    until("everything is sent", is_free);
    daemon.0.wait().unwrap();
    assert!(is_clean());
    (daemon, _) = start(&rules);
    until("what is sent is limited", || limiting(&daemon) && is_held());
    for _ in 0..2 {
        daemon.kill_both();
        until("everything is sent", is_free);
        daemon.0.wait().unwrap();
        (daemon, _) = start(&rules);
        until("what is sent is limited", || limiting(&daemon) && is_held());
    }
    daemon.kill_both();
    daemon.0.wait().unwrap();
    assert!(giveway(&["revert"]).status.success());
    assert!(is_clean());
    let (daemon, _) = start(&rules);
    until("what is sent is limited", || limiting(&daemon));
    daemon.signal(Signal::SIGTERM);
    until("nothing is left", is_clean);
}
