// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Classes of open sockets: by rule, read again while the daemon runs, and by what Linux knows of their processes.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use giveway::kernel::cgroup::CgroupRoot;
use nix::sys::signal::Signal;
use nix::sys::socket::sockopt::{Priority, RcvBufForce, SndBufForce, TcpMaxSeg};
use nix::sys::socket::{getsockopt, setsockopt};
use serde_json::{Value, json};
use socket2::SockRef;
use tempfile::TempDir;

use crate::support::lab::{FAR_V4, FAR_V6, Lab, run};
use crate::support::process::{Copy, Daemon, KillOnDrop, PAPER, backend, failure, giveway, program};
use crate::support::scratch::Scratch;
use crate::support::wait::{await_some, until};

/// A folder of rules.
pub(super) struct Rules(TempDir);

impl Rules {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.0.path().join(name);
        fs::write(&file, text).unwrap();
        file
    }
}

pub(super) fn rule(condition: &str, class: &str) -> String {
    format!("[[rule]]\n{condition}\nclass = \"{class}\"\n")
}

/// The flow to this port, as `status` shows it.
pub(super) fn flow_to(daemon: &Daemon, port: u16) -> Value {
    let remote = format!("{FAR_V4}:{port}");
    let status = daemon.status();
    let mut flows = status["flows"].as_array().unwrap().iter();
    flows.find(|flow| flow["remote"] == remote).cloned().unwrap_or_default()
}

pub(super) fn has_class(daemon: &Daemon, port: u16, class: &str) -> bool {
    flow_to(daemon, port)["class"] == class
}

pub(super) fn port_of(stream: &TcpStream) -> u16 {
    stream.peer_addr().unwrap().port()
}

#[test]
fn an_open_socket_has_the_class_of_its_rule_and_sighup_changes_it() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (near, _far) = lab.connect(FAR_V4);
    let port = port_of(&near);
    let condition = format!("port = {port}");
    let file = rules.write("50-test.toml", &rule(&condition, "bulk"));
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    until("the rule gives its class", || has_class(&daemon, port, "bulk"));
    let place = format!("{}:1", file.display());
    assert_eq!(flow_to(&daemon, port)["class_rule"], place);

    fs::write(&file, rule(&condition, "background")).unwrap();
    daemon.signal(Signal::SIGHUP);
    until("the new rule gives its class", || {
        has_class(&daemon, port, "background")
    });

    let reason = String::from_utf8(giveway(&["why", &port.to_string()]).stdout).unwrap();
    assert!(reason.contains("class bulk -> background; rule"), "{reason}");
    assert!(reason.contains(&place), "{reason}");
}

#[test]
fn a_broken_file_keeps_the_old_rules_and_is_told_of_with_its_line() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (near, _far) = lab.connect(FAR_V4);
    let port = port_of(&near);
    let file = rules.write("50-test.toml", &rule(&format!("port = {port}"), "bulk"));
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    until("the rule gives its class", || has_class(&daemon, port, "bulk"));

    let broken = rules.write("60-broken.toml", &rule("prt = 5", "bulk"));
    fs::write(&file, rule(&format!("port = {port}"), "stream")).unwrap();
    let (line, code) = failure(&giveway(&["reload"]));
    assert!(
        line.contains(&format!("{}:2: unknown key `rule.prt`", broken.display())),
        "{line}"
    );
    assert_eq!(code, 1);
    assert!(
        has_class(&daemon, port, "bulk"),
        "a rule beside the broken file was taken over"
    );
    let warnings = daemon.status()["warnings"].to_string();
    assert!(warnings.contains("60-broken.toml:2"), "{warnings}");
    assert!(warnings.contains("the rules read before stay active"), "{warnings}");

    fs::remove_file(broken).unwrap();
    assert!(giveway(&["reload"]).status.success());
    until("the rules are read", || has_class(&daemon, port, "stream"));
    assert!(!daemon.status()["warnings"].to_string().contains("60-broken"));
}

#[test]
fn a_broken_file_at_the_start_costs_its_own_rules_only() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (near, _far) = lab.connect(FAR_V4);
    let port = port_of(&near);
    rules.write("50-test.toml", &rule(&format!("port = {port}"), "bulk"));
    rules.write("40-broken.toml", "[[rule]]\n");
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    until("the rule gives its class", || has_class(&daemon, port, "bulk"));
    assert!(daemon.status()["warnings"].to_string().contains("40-broken.toml:1"));
}

/// A script that sends a line ten times a second to this port.
pub(super) fn talk(port: u16) -> String {
    format!("exec 3<>/dev/tcp/{FAR_V4}/{port}; while echo x >&3; do sleep 0.1 3>&-; done")
}

fn talker(port: u16, words: &str) -> KillOnDrop {
    let script = talk(port);
    let mut command = Command::new("bash");
    command
        .args(["-c", &script, words])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    KillOnDrop::spawn(&mut command)
}

#[test]
fn a_process_that_is_put_to_nice_19_is_background_within_two_seconds_and_back_again() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let port = lab.reader();
    let talker = talker(port, "talker");
    until("it sends", || has_class(&daemon, port, "standard"));
    for (nice, class) in [("19", "background"), ("0", "standard")] {
        run(&format!("renice -n {nice} -p {}", talker.id()));
        let took = until("its class follows", || has_class(&daemon, port, class));
        assert!(took < Duration::from_secs(2), "{class} after {took:?}");
    }
}

#[test]
fn what_an_application_says_of_its_socket_is_seen_over_both_protocols() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let mut sockets = Vec::new();
    let mut marked = |to: &str, rule: &'static str, mark: &dyn Fn(&TcpStream)| {
        let (near, far) = lab.connect(to);
        mark(&near);
        sockets.push((near.local_addr().unwrap().to_string(), rule, near, far));
    };
    // As OpenSSH marks a `git push`: nobody's word that it can wait.
    marked(FAR_V4, "default", &|socket| {
        SockRef::from(socket).set_tos_v4(0x20).unwrap()
    });
    marked(FAR_V6, "DSCP LE", &|socket| {
        SockRef::from(socket).set_tclass_v6(0x04).unwrap()
    });
    for to in [FAR_V4, FAR_V6] {
        marked(to, "SO_PRIORITY 1", &|socket| setsockopt(socket, Priority, &1).unwrap());
        marked(to, "default", &|_| ());
    }
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let flows = await_some("all are shown", || {
        let flows = daemon.status()["flows"].as_array()?.clone();
        (flows.len() >= sockets.len()).then_some(flows)
    });
    for (local, rule, ..) in &sockets {
        let flow = flows.iter().find(|flow| flow["local"] == *local).unwrap();
        assert_eq!(flow["class_rule"], *rule, "{local}");
    }
}

#[test]
fn a_program_is_told_by_its_file_and_by_its_arguments() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let bash = fs::canonicalize("/bin/bash").unwrap();
    let exe = format!("exe = \"{}\"", bash.display());
    let both = format!("{exe}\ncmdline = \"*--give-way\"");
    rules.write("50-test.toml", &(rule(&both, "background") + &rule(&exe, "bulk")));
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let ports = [lab.reader(), lab.reader()];
    let _talkers = [talker(ports[0], "--give-way"), talker(ports[1], "--whatever")];
    until("both have their classes", || {
        has_class(&daemon, ports[0], "background") && has_class(&daemon, ports[1], "bulk")
    });
}

#[test]
fn a_reload_names_the_sections_that_it_does_not_read() {
    let (_lab, rules) = (Lab::enter(), Rules::new());
    let config = Scratch::new("unread.toml", PAPER);
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let _daemon = Daemon::start(&arguments);
    let reload = || String::from_utf8(giveway(&["reload"]).stdout).unwrap();
    assert_eq!(reload(), "active: 0 rules for classes\n");
    fs::write(config.path(), rule("port = 873", "background")).unwrap();
    let told = reload();
    assert!(
        told.starts_with("active: 1 rule for classes\nwarning: cap has changed"),
        "{told}"
    );
}

#[test]
fn the_queue_serves_a_flow_by_its_class() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let config = format!("[link]\nrate_mbit = 10.0\n[queue]\nbackend = \"{}\"\n", backend());
    let config = Scratch::new("classes.toml", &config);
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let daemon = Daemon::start(&arguments);
    until("the queue is active", || {
        !daemon.status()["queue"]["installed"].is_null()
    });
    let port = lab.reader();
    let _talker = talker(port, "talker");
    until("it sends", || has_class(&daemon, port, "standard"));
    let background = || daemon.counted("/bands/background/classified");
    assert_eq!(background(), 0);
    rules.write("50-test.toml", &rule(&format!("port = {port}"), "background"));
    assert!(giveway(&["reload"]).status.success());
    until("its packets are background", || background() > 5);
    rules.write("50-test.toml", &rule(&format!("port = {port}"), "standard"));
    assert!(giveway(&["reload"]).status.success());
    let before = background();
    thread::sleep(Duration::from_secs(1));
    assert!(background() - before <= 1, "its packets are background still");
}

/// Bytes that have left the near side, headers included.
pub(super) fn sent_bytes() -> u64 {
    let shown = run("ip -j -s link show dev gwv");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    shown.pointer("/0/stats64/tx/bytes").unwrap().as_u64().unwrap()
}

/// Sends as much as it is let, until it is told to stop.
fn flood(stop: &Arc<AtomicBool>, mut send: impl FnMut() -> std::io::Result<usize> + Send + 'static) {
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            // A full buffer is what is to be expected.
            let _ = send();
        }
    });
}

#[test]
fn a_rate_limit_holds_for_all_sockets_of_its_rule_over_tcp_and_udp() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let limit = format!("address = \"{FAR_V4}\"\nupload_limit_mbit = 8.0");
    rules.write("50-test.toml", &rule(&limit, "bulk"));
    let config = Scratch::new("limit.toml", "[link]\nrate_mbit = 50.0\n[queue]\nbackend = \"htb\"\n");
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let daemon = Daemon::start(&arguments);
    until("the queue is active", || {
        !daemon.status()["queue"]["installed"].is_null()
    });
    let stop = Arc::new(AtomicBool::new(false));
    let patience = Some(Duration::from_millis(100));
    let _sinks: Vec<UdpSocket> = (0..2)
        .map(|_| {
            let mut tcp = TcpStream::connect((FAR_V4, lab.reader())).unwrap();
            tcp.set_write_timeout(patience).unwrap();
            flood(&stop, move || tcp.write(&[0; 16 * 1024]));
            let sink = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
            let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
            udp.connect(sink.local_addr().unwrap()).unwrap();
            udp.set_write_timeout(patience).unwrap();
            // Who names a flow lifts no limit by it.
            let named = format!("{FAR_V4}:{}", sink.local_addr().unwrap().port());
            assert!(giveway(&["class", "set", &named, "background"]).status.success());
            flood(&stop, move || udp.send(&[0; 1000]));
            sink
        })
        .collect();
    thread::sleep(Duration::from_secs(1));
    let (before, began) = (sent_bytes(), Instant::now());
    thread::sleep(Duration::from_secs(4));
    let mbit = (sent_bytes() - before) as f64 * 8e-6 / began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    assert!((7.6..8.4).contains(&mbit), "{mbit} Mbit/s");
}

#[test]
fn a_command_has_a_rate_limit_for_all_that_it_sends() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let config = format!("[link]\nrate_mbit = 50.0\n[queue]\nbackend = \"{}\"\n", backend());
    let config = Scratch::new("command-limit.toml", &config);
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let daemon = Daemon::start(&arguments);
    until("the queue is active", || {
        !daemon.status()["queue"]["installed"].is_null()
    });
    let ports = [lab.reader(), lab.reader()];
    let [one, other] = ports.map(|port| format!("/dev/tcp/{FAR_V4}/{port}"));
    let send = "while head -c 50000 /dev/zero";
    // Both end with the test: a shell's child would go on sending into nothing for ever.
    let child = "setpriv --pdeathsig KILL bash -c";
    let script = format!("{child} 'exec 3>{one}; {send} >&3; do :; done' & exec 3>{other}; {send} >&3; do :; done");
    let copy = Copy::new("command-limit");
    let limited = ["exec", "--class", "bulk", "--up", "4mbit", "--require", "--"];
    // What has ended leaves its limit to the next one.
    for _ in 0..6 {
        let ran = copy.as_nobody(&[&limited[..], &["true"]].concat());
        assert!(ran.status.success(), "{ran:?}");
    }
    let mut command = Command::new(program());
    command
        .args(limited)
        .args(["bash", "-c", &script])
        .stderr(Stdio::null());
    let _sender = KillOnDrop::spawn(&mut command);
    until("both have the class", || {
        ports.iter().all(|port| has_class(&daemon, *port, "bulk"))
    });
    thread::sleep(Duration::from_secs(1));
    let (before, began) = (sent_bytes(), Instant::now());
    thread::sleep(Duration::from_secs(4));
    let mbit = (sent_bytes() - before) as f64 * 8e-6 / began.elapsed().as_secs_f64();
    assert!((3.8..4.2).contains(&mbit), "{mbit} Mbit/s");
    let reason = flow_to(&daemon, ports[0])["class_reason"].to_string();
    assert!(
        reason.contains("all its flows together send at most 4 Mbit/s"),
        "{reason}"
    );
}

/// The numbers of the rate limits that the queue knows.
fn limits(daemon: &Daemon) -> Vec<u64> {
    let limits = daemon.status()["uploads"]["limits"].clone();
    let numbers = limits.as_array().unwrap().iter();
    numbers.map(|limit| limit["number"].as_u64().unwrap()).collect()
}

#[test]
fn a_commands_rate_limit_is_nobody_elses_while_a_socket_has_it_and_only_root_lifts_roots() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let config = format!("[link]\nrate_mbit = 50.0\n[queue]\nbackend = \"{}\"\n", backend());
    let config = Scratch::new("kept-limit.toml", &config);
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let daemon = Daemon::start(&arguments);
    until("the queue is active", || {
        !daemon.status()["queue"]["installed"].is_null()
    });
    let copy = Scratch::copy_of(&program(), "kept-limit");
    let limited = ["exec", "--class", "bulk", "--up", "4mbit", "--require", "--"];
    // The shell makes the connection, and its child, which has another choice, keeps it.
    let other = format!("{} exec --class bulk --require -- sleep 10", program());
    let port = lab.reader();
    let script = format!("exec 3>/dev/tcp/{FAR_V4}/{port}; {other} & for n in {{1..40}}; do echo >&3; sleep 0.1; done");
    let mut keeper = Command::new(program());
    keeper.args(limited).args(["bash", "-c", &script]);
    let mut keeper = KillOnDrop::spawn(&mut keeper);
    until("it has the class", || has_class(&daemon, port, "bulk"));
    let [kept] = limits(&daemon)[..] else {
        panic!("{:?}", limits(&daemon))
    };
    until("the command has ended", || keeper.try_wait().unwrap().is_some());
    for _ in 0..20 {
        assert!(giveway(&[&limited[..], &["true"]].concat()).status.success());
        let known = limits(&daemon);
        // Its own is over as soon as that is seen.
        assert!(known.len() <= 2 && known.contains(&kept), "{known:?} beside {kept}");
    }
    // What root limits is not for its user to lift.
    let lift = format!("{} exec --class bulk --require -- true", copy.path());
    let lifted = giveway(
        &[
            &limited[..],
            &["setpriv", "--reuid", "65534", "--clear-groups", "sh", "-c", &lift],
        ]
        .concat(),
    );
    // Behind what the outer command says of its own.
    let said = String::from_utf8_lossy(&lifted.stderr);
    let refused = said.lines().last().unwrap_or_default();
    assert_eq!(lifted.status.code(), Some(125), "{said}");
    assert!(refused.contains("root has chosen a rate limit"), "{said}");
}

/// The device of limits for what is sent.
const TAKEN: &str = "giveway-up";

#[test]
fn a_rate_limit_for_a_command_that_cannot_be_held_is_refused() {
    let (_lab, rules) = (Lab::enter(), Rules::new());
    run(&format!("ip link add {TAKEN} type veth peer name gwx"));
    let config = Scratch::new("no-queue.toml", "[queue]\nbackend = \"none\"\n");
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let _daemon = Daemon::start(&arguments);
    let limited = |mbit| giveway(&["exec", "--class", "bulk", "--up", mbit, "--require", "--", "true"]);
    let (line, code) = failure(&limited("1mbit"));
    assert!(
        code == 125 && line.contains(&format!("there is an interface {TAKEN} that is not giveway's")),
        "{line}"
    );
    for nonsense in ["0", "1", "1e9", "nan", "fast"] {
        assert_eq!(limited(nonsense).status.code(), Some(2), "{nonsense}");
    }
}

#[test]
fn a_rate_limit_that_nothing_enforces_is_told_of() {
    let (_lab, rules) = (Lab::enter(), Rules::new());
    run(&format!("ip link add {TAKEN} type veth peer name gwx"));
    rules.write("50-test.toml", &rule("port = 1\nupload_limit_mbit = 2.0", "bulk"));
    let config = Scratch::new("no-queue.toml", "[queue]\nbackend = \"none\"\n");
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let daemon = Daemon::start(&arguments);
    let warnings = daemon.status()["warnings"].to_string();
    assert!(
        warnings.contains("upload limits of rules are not enforced on any link"),
        "{warnings}"
    );
}

#[test]
fn a_packet_of_udp_is_background_by_a_rule_on_its_port() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let sink = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    let port = sink.local_addr().unwrap().port();
    let config = format!("[link]\nrate_mbit = 10.0\n[queue]\nbackend = \"{}\"\n", backend());
    let config = Scratch::new("udp.toml", &config);
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let daemon = Daemon::start(&arguments);
    until("the queue is active", || {
        !daemon.status()["queue"]["installed"].is_null()
    });
    let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
    let background = || daemon.counted("/bands/background/classified");
    let send = || udp.send_to(b"x", (FAR_V4, port)).unwrap();
    (0..5).for_each(|_| assert_eq!(send(), 1));
    thread::sleep(Duration::from_millis(500));
    assert_eq!(background(), 0);
    rules.write(
        "50-test.toml",
        &rule(&format!("protocol = \"udp\"\nport = {port}"), "background"),
    );
    assert!(giveway(&["reload"]).status.success());
    until("its packets are background", || {
        send();
        background() > 5
    });
}

/// No rate is known of this link, so on a kernel without the BPF qdisc there is no queue either.
#[test]
fn packets_of_background_are_marked_without_any_configuration_and_as_long_as_the_daemon_lives() {
    const EXPEDITED: i32 = 46 << 2 | 1;
    let (lab, rules) = (Lab::enter(), Rules::new());
    let sink = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    sink.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    SockRef::from(&sink).set_recv_tos_v4(true).unwrap();
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    until("packets are marked", || daemon.status()["queue"]["marks"] != json!([]));
    let to = sink.local_addr().unwrap();
    let tos_of = |priority: i32| {
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        SockRef::from(&udp).set_tos_v4(EXPEDITED as u32).unwrap();
        setsockopt(&udp, Priority, &priority).unwrap();
        udp.send_to(b"x", to).unwrap();
        tos_received(&sink)
    };
    let (lower_effort, own) = (1 << 2 | 1, EXPEDITED as u8);
    assert_eq!((tos_of(1), tos_of(0)), (lower_effort, own));
    let status = String::from_utf8(giveway(&["status"]).stdout).unwrap();
    assert!(status.contains("marks         background LE"), "{status}");

    daemon.kill();
    until("nothing is marked any more", || tos_of(1) == own);
}

/// Of the next datagram.
fn tos_received(sink: &UdpSocket) -> u8 {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};
    let (mut data, mut control) = ([0; 16], nix::cmsg_space!(u8));
    let mut into = [std::io::IoSliceMut::new(&mut data)];
    let flags = MsgFlags::empty();
    let message = recvmsg::<SockaddrStorage>(sink.as_raw_fd(), &mut into, Some(&mut control), flags).unwrap();
    let told = message.cmsgs().unwrap().find_map(|told| match told {
        ControlMessageOwned::Ipv4Tos(tos) => Some(tos),
        _ => None,
    });
    told.expect("the socket asks for it")
}

#[test]
fn an_open_socket_is_shown_with_its_mark() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (near, _far) = lab.connect(FAR_V4);
    let port = port_of(&near);
    rules.write("50-test.toml", &rule(&format!("port = {port}"), "background"));
    let _daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let reason = || String::from_utf8(giveway(&["why", &port.to_string()]).stdout).unwrap();
    until("its mark is told", || reason().contains("DSCP LE"));
}

/// A daemon with these rules and a queue of 10 Mbit/s.
pub(super) fn daemon_with_queue(rules: &Rules) -> Daemon {
    let config = format!("[link]\nrate_mbit = 10.0\n[queue]\nbackend = \"{}\"\n", backend());
    // Read again by each `reload`; no file of rules, by its name.
    let config = rules.write("configuration", &config);
    let config = config.to_str().unwrap();
    let daemon = Daemon::start(&["--config", config, "--rules", rules.path(), "--interface", "gwv"]);
    until("the queue is active", || {
        !daemon.status()["queue"]["installed"].is_null()
    });
    daemon
}

/// Who has a port of UDP may be another user than who has the same port of TCP.
#[test]
fn what_a_connection_is_does_not_rub_off_on_udp_of_the_same_ports() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (near, _far) = lab.connect(FAR_V4);
    let port = port_of(&near);
    rules.write(
        "50-test.toml",
        &rule(&format!("protocol = \"tcp\"\nport = {port}"), "background"),
    );
    let daemon = daemon_with_queue(&rules);
    until("the connection is background", || {
        has_class(&daemon, port, "background")
    });
    let _sink = lab.far(|| UdpSocket::bind((FAR_V4, port)).unwrap());
    let udp = UdpSocket::bind(("0.0.0.0", near.local_addr().unwrap().port())).unwrap();
    let background = || daemon.counted("/bands/background/classified");
    let before = background();
    (0..20).for_each(|_| assert_eq!(udp.send_to(b"x", (FAR_V4, port)).unwrap(), 1));
    thread::sleep(Duration::from_millis(500));
    assert_eq!(background() - before, 0);
}

/// Nobody listens at that port, so its connection is one packet.
#[test]
fn a_connection_has_the_class_of_its_process_before_its_syn() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = lab.far(|| TcpListener::bind((FAR_V4, 0)).unwrap().local_addr().unwrap().port());
    rules.write("50-test.toml", &rule("cmdline = \"*--give-way\"", "background"));
    let daemon = daemon_with_queue(&rules);
    let background = || daemon.counted("/bands/background/classified");
    let connect = |wait: Duration| {
        let script = format!("read; exec 3<>/dev/tcp/{FAR_V4}/{port}");
        let mut command = Command::new("bash");
        command.args(["-c", &script, "--give-way"]).stderr(Stdio::null());
        let mut process = command.stdin(Stdio::piped()).spawn().unwrap();
        thread::sleep(wait);
        let before = background();
        process.stdin.take().unwrap().write_all(b"\n").unwrap();
        process.wait().unwrap();
        background() - before
    };
    assert_eq!(connect(Duration::from_millis(3500)), 1);
    assert_eq!(
        connect(Duration::ZERO),
        0,
        "one that has just been started is not known yet"
    );
}

/// 80 packets wait, 67 ms of the link's time and as many as a plain FIFO holds, when 80 of a stream come.
#[test]
fn a_stream_goes_before_what_waits_and_leaves_it_a_tenth() {
    const BUFFER: usize = 16 << 20;
    let (lab, rules) = (Lab::enter(), Rules::new());
    let far = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    setsockopt(&far, RcvBufForce, &BUFFER).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let [plain, stream] = [(); 2].map(|()| {
        let near = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        setsockopt(&near, SndBufForce, &BUFFER).unwrap();
        near
    });
    let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
    let condition = format!("protocol = \"udp\"\nlocal_port = {}", port(&stream));
    rules.write("50-test.toml", &rule(&condition, "stream"));
    let daemon = daemon_with_queue(&rules);
    for (socket, packets) in [(&plain, 80), (&stream, 80)] {
        (0..packets).for_each(|_| assert_eq!(socket.send(&[0; 1000]).unwrap(), 1000));
    }
    assert!(daemon.counted("/bands/stream/classified") >= 80);

    let (mut streamed, mut between) = (0, 0);
    while streamed < 72 {
        let (_, from) = far.recv_from(&mut [0; 1000]).unwrap();
        if from.port() == port(&stream) {
            streamed += 1;
        } else if streamed > 0 {
            between += 1;
        }
    }
    assert!((5..=12).contains(&between), "{between} beside {streamed}");
}

/// Of 1 Mbit/s. Both ends' segments: each says in its SYN what it takes.
#[test]
fn background_connects_with_short_segments_where_the_link_is_slow() {
    let lab = Lab::enter();
    let config = format!("[link]\nrate_mbit = 1\n[queue]\nbackend = \"{}\"\n", backend());
    let config = Scratch::new("slow.toml", &config);
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the queue is active", || {
        !daemon.status()["queue"]["installed"].is_null()
    });
    let listener = lab.far(|| TcpListener::bind((FAR_V4, 0)).unwrap());
    let segments_at_nice = |nice: i32, listener: &TcpListener| {
        let far = listener.local_addr().unwrap();
        let connect = || {
            // Of the calling thread alone.
            rustix::process::setpriority_process(None, nice).unwrap();
            TcpStream::connect(far).unwrap()
        };
        let near = thread::scope(|scope| scope.spawn(connect).join().unwrap());
        let (accepted, _) = listener.accept().unwrap();
        [near, accepted].map(|socket| getsockopt(&socket, TcpMaxSeg).unwrap())
    };
    assert_eq!(segments_at_nice(0, &listener), [1448; 2]);
    assert_eq!(segments_at_nice(19, &listener), [642; 2]);
    // Which does not leave by the slow link.
    let here = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    assert_eq!(segments_at_nice(19, &here), segments_at_nice(0, &here));
}

/// The UDP socket of this local port, as `status` shows it.
fn datagrams_of(daemon: &Daemon, local_port: u16) -> Value {
    let local = format!(":{local_port}");
    let status = daemon.status();
    let mut all = status["datagrams"].as_array().unwrap().iter();
    let found = all.find(|flow| flow["local"].as_str().is_some_and(|address| address.ends_with(&local)));
    found.cloned().unwrap_or_default()
}

#[test]
fn a_udp_socket_has_the_class_of_its_process_for_as_long_as_it_is_there() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let sink = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    let port = sink.local_addr().unwrap().port();
    rules.write("50-test.toml", &rule("cmdline = \"*--give-way\"", "background"));
    let daemon = daemon_with_queue(&rules);
    let script = talk(port).replace("/dev/tcp", "/dev/udp");
    let mut command = Command::new("bash");
    command.args(["-c", &script, "--give-way"]).stderr(Stdio::null());
    let talker = KillOnDrop::spawn(&mut command);
    let remote = format!("{FAR_V4}:{port}");
    let shown = || {
        let status = daemon.status();
        let mut all = status["datagrams"].as_array().unwrap().iter();
        all.find(|flow| flow["remote"] == remote).cloned().unwrap_or_default()
    };
    let took = until("it has the class", || shown()["class"] == "background");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(shown()["pid"], talker.id());
    let background = || daemon.counted("/bands/background/classified");
    until("its packets are background", || background() > 5);
    let reason = String::from_utf8(giveway(&["why", &port.to_string()]).stdout).unwrap();
    assert!(reason.contains("class background, rule "), "{reason}");
    drop(talker);
    until("it is forgotten", || shown().is_null());
}

#[test]
fn where_a_udp_socket_sends_to_anyone_a_rule_on_the_remote_host_decides_by_packet() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let sinks = [(); 2].map(|()| lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap()));
    let ports = sinks.each_ref().map(|sink| sink.local_addr().unwrap().port());
    let exe = std::env::current_exe().unwrap();
    let of_program = rule(&format!("exe = \"{}\"", exe.display()), "background");
    let first = rule(&format!("protocol = \"udp\"\nport = {}", ports[0]), "standard");
    rules.write("50-test.toml", &of_program);
    // It is read again, too.
    let config = format!("[link]\nrate_mbit = 10.0\n[queue]\nbackend = \"{}\"\n", backend());
    let config = Scratch::new("anyone.toml", &config);
    let daemon = Daemon::start(&["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"]);
    until("the queue is active", || {
        !daemon.status()["queue"]["installed"].is_null()
    });
    let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = udp.local_addr().unwrap().port();
    let send = |port| assert_eq!(udp.send_to(b"x", (FAR_V4, port)).unwrap(), 1);
    let rule_of = || datagrams_of(&daemon, own)["class_rule"].to_string();
    let background = || daemon.counted("/bands/background/classified");
    send(ports[0]);
    until("the program's rule holds", || rule_of().contains("50-test.toml:1"));
    until("for all that it sends", || {
        send(ports[0]);
        background() > 5
    });
    rules.write("50-test.toml", &(first + &of_program));
    assert!(giveway(&["reload"]).status.success());
    until("each packet is judged", || {
        datagrams_of(&daemon, own)["class_reason"]
            .to_string()
            .contains("decided per packet")
    });
    let before = background();
    (0..10).for_each(|_| send(ports[0]));
    thread::sleep(Duration::from_millis(500));
    assert_eq!(background() - before, 0);
}

#[test]
fn a_class_that_is_chosen_for_a_command_holds_for_udp() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let sink = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    let port = sink.local_addr().unwrap().port();
    let daemon = daemon_with_queue(&rules);
    let script = talk(port).replace("/dev/tcp", "/dev/udp");
    let mut command = Command::new(program());
    command
        .args([
            "exec",
            "--class",
            "background",
            "--require",
            "--",
            "bash",
            "-c",
            &script,
        ])
        .stderr(Stdio::null());
    let _talker = KillOnDrop::spawn(&mut command);
    until("its packets are background", || {
        daemon.counted("/bands/background/classified") > 5
    });
}

/// Only the first one has the ports that a rule asks for.
#[test]
fn all_fragments_of_a_datagram_are_what_its_rule_says() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    for far in [FAR_V4, FAR_V6] {
        let sink = lab.far(|| UdpSocket::bind((far, 0)).unwrap());
        let port = sink.local_addr().unwrap().port();
        rules.write(
            "50-test.toml",
            &rule(&format!("protocol = \"udp\"\nport = {port}"), "background"),
        );
        let daemon = daemon_with_queue(&rules);
        let unspecified = if far == FAR_V4 { "0.0.0.0:0" } else { "[::]:0" };
        let udp = UdpSocket::bind(unspecified).unwrap();
        let background = || daemon.counted("/bands/background/classified");
        let before = background();
        (0..10).for_each(|_| assert_eq!(udp.send_to(&[0; 4_000], (far, port)).unwrap(), 4_000));
        thread::sleep(Duration::from_millis(500));
        assert_eq!(background() - before, 30, "{far}: ten datagrams of three fragments");
    }
}

/// Whoever may make cgroups may nest them.
#[test]
fn a_process_in_a_cgroup_that_is_nested_too_deep_is_in_those_above_it() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let name = format!("gw-deep-{}", std::process::id());
    rules.write("50-test.toml", &rule(&format!("cgroup = \"/{name}/*\""), "background"));
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let root = CgroupRoot::open().unwrap();
    let top = PathBuf::from(format!("/proc/self/fd/{}", root.directory.as_raw_fd())).join(&name);
    let deep = top.join(["d"; 40].join("/"));
    fs::create_dir_all(&deep).unwrap();
    let port = lab.reader();
    let talker = talker(port, "talker");
    fs::write(deep.join("cgroup.procs"), talker.id().to_string()).unwrap();
    let took = until("its class follows", || has_class(&daemon, port, "background"));
    drop(talker);
    until("the cgroups are empty", || {
        deep.ancestors()
            .take(41)
            .all(|group| fs::remove_dir(group).is_ok() || !group.exists())
    });
    assert!(took < Duration::from_secs(4), "after {took:?}");
}

/// Its main thread ends, and another one sends ten times a second to the port that is its argument.
const WITHOUT_MAIN_THREAD: &str = r#"
#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static void *talk(void *port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	int to_there = socket(AF_INET, SOCK_STREAM, 0);

	sleep(1);
	inet_pton(AF_INET, "10.99.0.2", &to.sin_addr);
	if (!connect(to_there, (void *)&to, sizeof(to)))
		while (write(to_there, "x", 1) == 1)
			usleep(100000);
	return NULL;
}

int main(int count, char **words)
{
	pthread_t talker;

	pthread_create(&talker, NULL, talk, words[1]);
	pthread_exit(NULL);
}
"#;

#[test]
fn a_process_without_its_main_thread_is_still_known() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let source = rules.write("talk.c", WITHOUT_MAIN_THREAD);
    let program = source.with_extension("");
    run(&format!("cc -pthread -o {} {}", program.display(), source.display()));
    rules.write(
        "50-test.toml",
        &rule(&format!("exe = \"{}\"", program.display()), "background"),
    );
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let port = lab.reader();
    let _talker = KillOnDrop::spawn(Command::new(&program).arg(port.to_string()));
    until("its flow has the class of its rule", || {
        has_class(&daemon, port, "background")
    });
}

#[test]
fn only_root_has_the_rules_read_again() {
    let (_lab, rules) = (Lab::enter(), Rules::new());
    let _daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let copy = Copy::new("reload");
    let (line, code) = failure(&copy.as_nobody(&["reload"]));
    assert!(line.contains("only root may change rules"), "{line}");
    assert_eq!(code, 1);
}

/// The arguments of `giveway exec` for a shell that leaves this script behind as an orphan in a session of its own.
fn orphan_of(class: &str, script: &str) -> Vec<String> {
    let quoted = format!("setsid bash -c '{script}' >/dev/null 2>&1 & exit 0");
    ["exec", "--class", class, "--", "bash", "-c", &quoted]
        .map(str::to_owned)
        .to_vec()
}

fn run_by(copy: &Copy, arguments: &[String]) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = copy.as_nobody(&arguments);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_class_that_a_user_chooses_holds_for_orphans_too_and_for_nothing_else() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let copy = Copy::new("choose");
    let ports = [lab.reader(), lab.reader()];
    run_by(&copy, &orphan_of("bulk", &talk(ports[0])));
    let _other = talker(ports[1], "talker");
    until("the orphan's flow has its class", || {
        has_class(&daemon, ports[0], "bulk")
    });
    until("the other one is seen", || has_class(&daemon, ports[1], "standard"));
    let flow = flow_to(&daemon, ports[0]);
    assert_eq!(flow["class_rule"], "giveway exec");
    run(&format!("kill {}", flow["pid"]));
}

#[test]
fn what_is_chosen_wins_over_rules() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let port = lab.reader();
    rules.write("50-test.toml", &rule(&format!("port = {port}"), "bulk"));
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let mut command = Command::new(program());
    let arguments = ["exec", "--class", "stream", "--", "bash", "-c"];
    command.args(arguments).arg(talk(port)).stderr(Stdio::null());
    let _talker = KillOnDrop::spawn(&mut command);
    until("it has the class that root chose", || {
        has_class(&daemon, port, "stream")
    });
}

#[test]
fn users_choose_only_what_the_configuration_lets_them() {
    let (_lab, rules) = (Lab::enter(), Rules::new());
    let config = Scratch::new("choose.toml", "[classes]\nusers_may_choose = [\"bulk\"]\n");
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let _daemon = Daemon::start(&arguments);
    let copy = Copy::new("may-choose");
    let choose = |class| copy.as_nobody(&["exec", "--class", class, "--require", "--", "true"]);
    assert!(choose("bulk").status.success());
    let (line, code) = failure(&choose("background"));
    assert!(code == 125 && line.contains("users may choose: bulk"), "{line}");
    let ran = copy.as_nobody(&["exec", "--class", "background", "--", "sh", "-c", "exit 7"]);
    let (line, code) = failure(&ran);
    assert!(code == 7 && line.contains("running the command without it"), "{line}");
}

#[test]
fn files_are_checked_without_a_daemon() {
    let rules = Rules::new();
    let folder = rules.0.path().join("rules.d");
    fs::create_dir(&folder).unwrap();
    let good = rules.write("rules.d/good.toml", &rule("port = 873", "bulk"));
    let bad = rules.write("rules.d/bad.toml", "\n[cap]\ncapacity_mbit = 20\n");
    let worse = rules.write("giveway.toml", "[cap]\n\ncapacity = 20\n");
    let paths = [&good, &bad, &worse].map(|path| path.to_str().unwrap());
    let output = giveway(&["config", "check", paths[0], paths[1], paths[2]]);
    let told = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!((output.status.code(), lines.len()), (Some(2), 3), "{told}");
    assert!(lines[2].contains("a running daemon keeps its configuration"), "{told}");
    assert!(lines[0].contains("bad.toml:2: `cap`: does not belong"), "{told}");
    assert!(
        lines[1].contains("giveway.toml:3: unknown key `cap.capacity`"),
        "{told}"
    );
    assert!(giveway(&["config", "check", paths[0]]).status.success());
}

#[test]
fn a_check_names_the_rules_that_do_nothing() {
    let rules = Rules::new();
    let script = rules.write("backup", "#!/bin/sh\n");
    let text = [
        rule("port = 873", "bulk"),
        rule("port = 873\nprotocol = \"tcp\"", "background"),
        rule("exe = \"/nowhere/program\"", "bulk"),
        rule(&format!("exe = {script:?}"), "bulk"),
        rule("cgroup = \"system.slice/*\"", "bulk"),
        rule("unit = \"backup\"", "bulk"),
        rule("interface = \"wlan7\"", "bulk"),
        rule(&format!("cmdline = {script:?}"), "bulk"),
    ];
    let file = rules.write("giveway.toml", &text.concat());
    let output = giveway(&["config", "check", file.to_str().unwrap()]);
    let told = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = told.lines().take_while(|line| *line != "this machine:").collect();
    assert_eq!((output.status.code(), lines.len()), (Some(0), 8), "{told}");
    assert!(
        lines[7].ends_with("whose arguments begin with its interpreter; write \"*/backup*\""),
        "{told}"
    );
    assert!(lines[4].contains("a cgroup path begins with /"), "{told}");
    assert!(lines[5].contains("a unit name has a suffix"), "{told}");
    assert!(lines[6].contains("no interface wlan7"), "{told}");
    assert!(
        lines[3].contains("is a script, whose executable is its interpreter"),
        "{told}"
    );
    assert!(lines[1].contains(":4: unreachable: shadowed by the rule at "), "{told}");
    assert!(lines[2].contains("/nowhere/program does not exist"), "{told}");
}

#[test]
fn a_check_names_the_keys_that_do_nothing() {
    let rules = Rules::new();
    let key = "[group]\nkey_file = \"/etc/giveway/group.key\"\n";
    let found = |more: &str| format!("[cap]\npolicy = \"estimated\"\n{more}\n{key}");
    for (text, told) in [
        ("[cap]\npolicy = \"estimated\"\n".to_owned(), "estimates a share alone"),
        ("[cap]\nprefer = \"delay\"\n".to_owned(), "prefer has no effect"),
        (
            "[link]\nrate_mbit = \"auto\"\n[queue]\nbackend = \"htb\"\n".to_owned(),
            "excludes",
        ),
        (
            "[[uplink]]\ninterface = \"lo\"\nrate_mbit = \"auto\"\n[queue]\nbackend = \"none\"\n".to_owned(),
            "[[uplink]] rate_mbit = \"auto\" has no effect",
        ),
        ("[cap]\nfloor_mbit = 2\n".to_owned(), "floor_mbit has no effect"),
        (format!("[cap]\nrtt_ms = 100\n{key}"), "rtt_ms has no effect"),
        (format!("[link]\nrate_mbit = \"auto\"\n{key}"), "is untested"),
        (found("fixed_segments = 30"), "fixed_segments has no effect"),
        (found("rtt_ms = 100"), "rtt_ms has no effect"),
        (found("margin_bytes = 1500"), "margin_bytes has no effect"),
        (found("floor_mbit = 1e5"), "caps never apply"),
        (found("floor_mbit = 20\n[link]\nrate_mbit = 20"), "caps never apply"),
        (found("[monitor]\npolls_per_second = 1"), "it reacts late"),
        (found("floor_mbit = 2\n[link]\nrate_mbit = 20"), "giveway.toml: ok\n"),
        (found("prefer = \"delay\""), "giveway.toml: ok\n"),
    ] {
        let file = rules.write("giveway.toml", &text);
        let output = giveway(&["config", "check", file.to_str().unwrap()]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.contains(told), "{text}: {said}");
    }
}

#[test]
fn the_vendors_rules_are_right() {
    let file = |class: &str| format!("{}/../packaging/rules.d/50-{class}.toml", env!("CARGO_MANIFEST_DIR"));
    let output = giveway(&["config", "check", &file("background"), &file("bulk")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
