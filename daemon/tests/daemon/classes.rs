// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Classes of open sockets: by rule, read again while the daemon runs, and by what Linux knows of their processes.

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Priority;
use serde_json::Value;
use socket2::SockRef;
use tempfile::TempDir;

use crate::support::lab::{FAR_V4, FAR_V6, Lab, run};
use crate::support::process::{Copy, Daemon, KillOnDrop, backend, failure, giveway};
use crate::support::scratch::Scratch;
use crate::support::wait::{await_some, until};

/// A folder of rules.
struct Rules(TempDir);

impl Rules {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.0.path().join(name);
        fs::write(&file, text).unwrap();
        file
    }
}

fn rule(condition: &str, class: &str) -> String {
    format!("[[rule]]\n{condition}\nclass = \"{class}\"\n")
}

/// The flow to this port, as `status` shows it.
fn flow_to(daemon: &Daemon, port: u16) -> Value {
    let remote = format!("{FAR_V4}:{port}");
    let status = daemon.status();
    let mut flows = status["flows"].as_array().unwrap().iter();
    flows.find(|flow| flow["remote"] == remote).cloned().unwrap_or_default()
}

fn has_class(daemon: &Daemon, port: u16, class: &str) -> bool {
    flow_to(daemon, port)["class"] == class
}

fn port_of(stream: &TcpStream) -> u16 {
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

    let why = String::from_utf8(giveway(&["why", &port.to_string()]).stdout).unwrap();
    assert!(why.contains("class bulk -> background; rule"), "{why}");
    assert!(why.contains(&place), "{why}");
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
    let degraded = daemon.status()["degraded"].to_string();
    assert!(degraded.contains("60-broken.toml:2"), "{degraded}");

    fs::remove_file(broken).unwrap();
    assert!(giveway(&["reload"]).status.success());
    until("the rules are read", || has_class(&daemon, port, "stream"));
    assert!(!daemon.status()["degraded"].to_string().contains("60-broken"));
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
    assert!(daemon.status()["degraded"].to_string().contains("40-broken.toml:1"));
}

/// A program that sends a line ten times a second to this port.
fn talker(port: u16, words: &str) -> KillOnDrop {
    let script = format!("exec 3<>/dev/tcp/{FAR_V4}/{port}; while echo x >&3; do sleep 0.1 3>&-; done");
    let mut command = Command::new("bash");
    command
        .args(["-c", &script, words])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    KillOnDrop::spawn(&mut command)
}

/// Something at the far end that reads whatever comes; returns its port.
fn reader(lab: &Lab) -> u16 {
    let listener = lab.far_listener(FAR_V4);
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        while stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
    });
    port
}

#[test]
fn a_process_that_is_put_to_nice_19_is_background_within_two_seconds_and_back_again() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let port = reader(&lab);
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
    marked(FAR_V4, "DSCP CS1", &|socket| {
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
    let ports = [reader(&lab), reader(&lab)];
    let _talkers = [talker(ports[0], "--give-way"), talker(ports[1], "--whatever")];
    until("both have their classes", || {
        has_class(&daemon, ports[0], "background") && has_class(&daemon, ports[1], "bulk")
    });
}

#[test]
fn the_queue_serves_a_flow_by_its_class() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let config = format!("[link]\nrate_mbit = 10.0\n[queue]\nbackend = \"{}\"\n", backend());
    let config = Scratch::new("classes.toml", &config);
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let daemon = Daemon::start(&arguments);
    until("the queue is in force", || {
        !daemon.status()["queue"]["in_force"].is_null()
    });
    let port = reader(&lab);
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

#[test]
fn only_root_has_the_rules_read_again() {
    let (_lab, rules) = (Lab::enter(), Rules::new());
    let _daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let copy = Copy::new("reload");
    let (line, code) = failure(&copy.as_nobody(&["reload"]));
    assert!(line.contains("only root may change rules"), "{line}");
    assert_eq!(code, 1);
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
    assert_eq!((output.status.code(), lines.len()), (Some(2), 2), "{told}");
    assert!(lines[0].contains("bad.toml:2: `cap`: does not belong"), "{told}");
    assert!(
        lines[1].contains("giveway.toml:3: unknown key `cap.capacity`"),
        "{told}"
    );
    assert!(giveway(&["config", "check", paths[0]]).status.success());
}

#[test]
fn the_vendors_rules_are_right() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/rules.d/50-background.toml");
    let output = giveway(&["config", "check", file]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
