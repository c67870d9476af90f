// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner of a connection is the process that uses it, whoever made it and whoever else has its descriptor: its class is
//! that of its user.

use std::fs;
use std::io::{IoSlice, Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use socket2::{Domain, Protocol, Socket, Type};

use crate::daemon::classes::{Rules, flow_to, has_class, port_of, rule, sent_bytes};
use crate::support::lab::{FAR_V4, Lab, run};
use crate::support::process::{Daemon, KillOnDrop, backend};
use crate::support::scratch::Scratch;
use crate::support::wait::{await_some, until};

const IPPROTO_MPTCP: i32 = 262;

/// A program that is told by its file, and its class.
fn program(of: &str, name: &str, class: &str) -> (Scratch, String) {
    let original = fs::canonicalize(of).unwrap();
    let program = Scratch::copy_of(original.to_str().unwrap(), name);
    let rule = rule(&format!("exe = \"{}\"", program.path()), class);
    (program, rule)
}

fn shell(name: &str, class: &str) -> (Scratch, String) {
    program("/bin/bash", name, class)
}

fn start(program: &Scratch, arguments: &[&str], stdin: Stdio) -> KillOnDrop {
    let mut command = Command::new(program.path());
    command
        .args(arguments)
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    KillOnDrop::spawn(&mut command)
}

/// Sends a line by its standard input, again and again.
fn user(program: &Scratch, socket: OwnedFd, every_s: f32) -> KillOnDrop {
    let script = format!("while echo x >&0; do read -t {every_s} -u 9; done 9<> <(:)");
    start(program, &["-c", &script], Stdio::from(socket))
}

/// This process sends, ten times a second, until it is told to stop.
fn use_it(mut socket: TcpStream, stop: &Arc<AtomicBool>) {
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) && socket.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
    });
}

#[test]
fn a_connection_that_a_child_uses_has_the_childs_class_while_the_parent_keeps_a_copy() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (child, rule) = shell("gw-child", "background");
    rules.write("50-test.toml", &rule);
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let mut took: Vec<Duration> = (0..3)
        .map(|_| {
            let (mut near, _far) = lab.connect(FAR_V4);
            near.write_all(b"x").unwrap();
            let port = port_of(&near);
            until("it is the parent's", || has_class(&daemon, port, "standard"));
            let copy = near.try_clone().unwrap();
            let child = user(&child, copy.into(), 0.1);
            let took = until("it has the child's class", || has_class(&daemon, port, "background"));
            assert_eq!(flow_to(&daemon, port)["pid"], child.id());
            // It is the parent's again when the parent uses it and the child does so no more.
            drop(child);
            let stop = Arc::new(AtomicBool::new(false));
            use_it(near, &stop);
            until("it has the parent's class", || has_class(&daemon, port, "standard"));
            stop.store(true, Ordering::Relaxed);
            took
        })
        .collect();
    took.sort_unstable();
    assert!(took[1] < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_connection_that_is_passed_over_a_unix_socket_has_the_receivers_class() {
    const RECEIVE: &str = "import socket, time\n\
        passed = socket.recv_fds(socket.socket(fileno=0), 1, 1)[1][0]\n\
        connection = socket.socket(fileno=passed)\n\
        while True: connection.send(b'x'); time.sleep(0.1)";
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (receiver, rule) = program("/usr/bin/python3", "gw-receiver", "background");
    rules.write("50-test.toml", &rule);
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let (mut near, mut far) = lab.connect(FAR_V4);
    near.write_all(b"x").unwrap();
    let port = port_of(&near);
    until("it is the sender's", || has_class(&daemon, port, "standard"));
    let (here, there) = UnixStream::pair().unwrap();
    let receiver = start(&receiver, &["-c", RECEIVE], Stdio::from(OwnedFd::from(there)));
    let fds = [near.as_raw_fd()];
    let passed = [ControlMessage::ScmRights(&fds)];
    sendmsg::<()>(
        here.as_raw_fd(),
        &[IoSlice::new(b"x")],
        &passed,
        MsgFlags::empty(),
        None,
    )
    .unwrap();
    // Python takes a while to start: what it sends arrives behind the sender's byte.
    far.read_exact(&mut [0; 2]).unwrap();
    let took = until("it has the receiver's class", || has_class(&daemon, port, "background"));
    assert!(took < Duration::from_secs(1), "after {took:?}");
    assert_eq!(flow_to(&daemon, port)["pid"], receiver.id());
}

#[test]
fn two_processes_that_share_a_connection_do_not_take_it_from_each_other_again_and_again() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (one, first) = shell("gw-master", "bulk");
    let (other, second) = shell("gw-client", "background");
    rules.write("50-test.toml", &(first + &second));
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    for every_s in [0.1, 0.7] {
        let (near, _far) = lab.connect(FAR_V4);
        let port = port_of(&near);
        let _one = user(&one, near.try_clone().unwrap().into(), every_s);
        until("it has the first user's class", || has_class(&daemon, port, "bulk"));
        thread::sleep(Duration::from_secs_f32(every_s / 2.0));
        let _other = user(&other, near.into(), every_s);
        let (begun, mut classes) = (Instant::now(), Vec::new());
        while begun.elapsed() < Duration::from_secs(8) {
            classes.push(flow_to(&daemon, port)["class"].to_string());
            thread::sleep(Duration::from_millis(50));
        }
        classes.dedup();
        let most = if every_s < 0.3 { 0 } else { 3 };
        assert!(classes.len() <= 1 + most, "each {every_s} s: {classes:?}");
    }
}

#[test]
fn udp_has_the_class_of_the_process_that_sends() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (child, rule) = shell("gw-datagrams", "background");
    rules.write("50-test.toml", &rule);
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let sink = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    let near = UdpSocket::bind("0.0.0.0:0").unwrap();
    near.connect(sink.local_addr().unwrap()).unwrap();
    let port = sink.local_addr().unwrap().port();
    near.send(b"x").unwrap();
    let has_class = |class: &str| {
        let remote = format!("{FAR_V4}:{port}");
        let status = daemon.status();
        let mut sockets = status["datagrams"].as_array().unwrap().iter();
        sockets.any(|socket| socket["remote"] == remote && socket["class"] == class)
    };
    until("it is the parent's", || has_class("standard"));
    let _child = user(&child, near.try_clone().unwrap().into(), 0.1);
    let took = until("it has the child's class", || has_class("background"));
    assert!(took < Duration::from_secs(3), "after {took:?}");
}

#[test]
fn what_mptcp_sends_on_another_path_has_its_parents_owner_class_and_limit() {
    const OTHER_PATH: &str = "10.99.1.2";
    let (lab, rules) = (Lab::enter(), Rules::new());
    let (client, rule) = program("/usr/bin/python3", "gw-mptcp", "bulk");
    rules.write("50-test.toml", &(rule + "rate_limit_mbit = 8.0\n"));
    for (netns, address) in [(&lab.near, "10.99.1.1"), (&lab.far, OTHER_PATH)] {
        run(&format!("ip -n {netns} address add {address}/24 dev gwv"));
        run(&format!(
            "ip -n {netns} mptcp limits set subflows 2 add_addr_accepted 2"
        ));
    }
    run(&format!(
        "ip -n {} mptcp endpoint add {OTHER_PATH} dev gwv signal",
        lab.far
    ));
    let config = format!("[link]\nrate_mbit = 50.0\n[queue]\nbackend = \"{}\"\n", backend());
    let config = Scratch::new("mptcp.toml", &config);
    let arguments = ["--config", config.path(), "--rules", rules.path(), "--interface", "gwv"];
    let daemon = Daemon::start(&arguments);
    until("the queue is active", || {
        !daemon.status()["queue"]["installed"].is_null()
    });
    let listener = lab.far(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::from(IPPROTO_MPTCP))).unwrap();
        let address: std::net::SocketAddr = "0.0.0.0:0".parse().unwrap();
        socket.bind(&address.into()).unwrap();
        socket.listen(1).unwrap();
        std::net::TcpListener::from(socket)
    });
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        while stream.read(&mut [0; 64 * 1024]).is_ok_and(|read| read > 0) {}
    });
    let send = format!(
        "import socket\n\
         connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, {IPPROTO_MPTCP})\n\
         connection.connect(('{FAR_V4}', {port}))\n\
         while True: connection.sendall(bytes(65536))"
    );
    let client = start(&client, &["-c", &send], Stdio::null());
    let by = |address: &str| {
        let remote = format!("{address}:{port}");
        let status = daemon.status();
        let mut flows = status["flows"].as_array().unwrap().iter();
        flows.find(|flow| flow["remote"] == remote).cloned().unwrap_or_default()
    };
    for address in [FAR_V4, OTHER_PATH] {
        until(&format!("what goes to {address} has the program's class"), || {
            by(address)["class"] == "bulk"
        });
        assert_eq!(by(address)["pid"], client.id(), "{address}");
    }
    thread::sleep(Duration::from_secs(1));
    let (before, began) = (sent_bytes(), Instant::now());
    thread::sleep(Duration::from_secs(4));
    let mbit = (sent_bytes() - before) as f64 * 8e-6 / began.elapsed().as_secs_f64();
    assert!((7.0..8.4).contains(&mbit), "{mbit} Mbit/s");
}

#[test]
fn who_has_executed_another_program_is_shown_by_its_name() {
    let lab = Lab::enter();
    let daemon = Daemon::start(&["--interface", "gwv"]);
    let remote = format!("{FAR_V4}:{}", lab.reader());
    let shows = |command| {
        let status = daemon.status();
        let mut flows = status["flows"].as_array().unwrap().iter();
        flows.any(|flow| flow["remote"] == remote && flow["command"] == command)
    };
    let connect = format!("exec 3>/dev/tcp/{}; echo x >&3; read x", remote.replace(':', "/"));
    let script = format!("{connect}; exec cat /dev/zero >&3");
    let mut shell = KillOnDrop::spawn(Command::new("bash").args(["-c", &script]).stdin(Stdio::piped()));
    until("it is the shell's", || shows("bash"));
    writeln!(shell.stdin.take().unwrap()).unwrap();
    until("it is the other program's", || shows("cat"));
}

#[test]
fn a_connection_that_nobody_uses_is_the_oldest_processs_that_has_it() {
    // After the last number come the first again: the search meets the child before its parent.
    const LAST: &str = "/proc/sys/kernel/ns_last_pid";
    let lab = Lab::enter();
    let (near, _far) = lab.connect(FAR_V4);
    let parent = std::process::id();
    let child = await_some("a child has a lower number", || {
        fs::write(LAST, parent.saturating_sub(1000).max(2).to_string()).unwrap();
        let mut sleeps = Command::new("sleep");
        let child = KillOnDrop::spawn(sleeps.arg("1000").stdin(OwnedFd::from(near.try_clone().unwrap())));
        (child.id() < parent).then_some(child)
    });
    let daemon = Daemon::start(&["--interface", "gwv"]);
    let port = port_of(&near);
    until("its owner is found", || !flow_to(&daemon, port)["pid"].is_null());
    assert_eq!(flow_to(&daemon, port)["pid"], parent);
    drop(child);
}
