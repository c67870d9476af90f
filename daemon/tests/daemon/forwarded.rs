// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is forwarded for containers has the class of its cgroup, though its sockets are in another namespace.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use giveway::kernel::cgroup::CgroupRoot;
use serde_json::Value;

use super::classes::{Rules, daemon_with_queue, rule};
use super::download::{mbit_of, source};
use crate::support::lab::{FAR_V4, FAR_V6, Lab, NEAR_V4, carried, run};
use crate::support::process::{Daemon, KillOnDrop, giveway};
use crate::support::wait::{held, until};

/// A network namespace behind a veth pair, with a program in a cgroup of its own that sends what it is told to.
struct Container {
    netns: String,
    root: CgroupRoot,
    cgroup: String,
    program: Child,
    words: ChildStdin,
    done: BufReader<ChildStdout>,
}

impl Container {
    /// It sends datagrams when it is told to.
    fn start(lab: &Lab) -> Self {
        Self::running(
            lab,
            "while read n to; do for i in $(seq $n); do echo x > /dev/udp/$to; done; echo done; done",
        )
    }

    /// Behind the near end of this lab, which forwards for it. `script`: of bash.
    fn running(lab: &Lab, script: &str) -> Self {
        let netns = format!("{}c", lab.near);
        run(&format!("ip netns add {netns}"));
        run(&format!("ip link add gwc type veth peer name gwc netns {netns}"));
        run("ip address add 10.97.0.1/24 dev gwc");
        run("ip address add fd97::1/64 dev gwc nodad");
        run("ip link set gwc up");
        run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        run(&format!("ip -n {netns} address add 10.97.0.2/24 dev gwc"));
        run(&format!("ip -n {netns} address add fd97::2/64 dev gwc nodad"));
        run(&format!("ip -n {netns} link set gwc up"));
        run(&format!("ip -n {netns} route add default via 10.97.0.1"));
        run(&format!("ip -n {netns} -6 route add default via fd97::1"));
        let root = CgroupRoot::open().unwrap();
        let cgroup = format!("gw-container-{}", netns);
        fs::create_dir(path_of(&root, &cgroup)).unwrap();
        let mut program = Command::new("ip");
        program.args(["netns", "exec", &netns, "bash", "-c", script]);
        let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        fs::write(path_of(&root, &cgroup).join("cgroup.procs"), program.id().to_string()).unwrap();
        let (words, done) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
        Self {
            netns,
            root,
            cgroup,
            program,
            words,
            done: BufReader::new(done),
        }
    }

    /// Another program in it.
    fn beside(&self, script: &str) -> KillOnDrop {
        let mut program = Command::new("ip");
        program.args(["netns", "exec", &self.netns, "bash", "-c"]);
        let mut program = KillOnDrop::spawn(program.arg(format!("read is_there; {script}")).stdin(Stdio::piped()));
        fs::write(
            path_of(&self.root, &self.cgroup).join("cgroup.procs"),
            program.id().to_string(),
        )
        .unwrap();
        writeln!(program.stdin.take().unwrap(), "yes").unwrap();
        program
    }

    /// So many datagrams.
    fn send(&mut self, count: u32, address: &str, port: u16) {
        writeln!(self.words, "{count} {address}/{port}").unwrap();
        let mut line = String::new();
        self.done.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
        let _ = Command::new("ip").args(["netns", "del", &self.netns]).status();
        until("the container's cgroup is empty", || {
            fs::remove_dir(path_of(&self.root, &self.cgroup)).is_ok()
        });
    }
}

fn path_of(root: &CgroupRoot, cgroup: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", root.directory.as_raw_fd())).join(cgroup)
}

fn background(daemon: &Daemon) -> u64 {
    daemon.counted("/bands/background/classified")
}

/// Sends until it is so, as a container that goes on sending would: all of them, or none.
fn until_sent_as(daemon: &Daemon, container: &mut Container, port: u16, is_background: bool) {
    let wanted = if is_background { 10 } else { 0 };
    until("the container's packets have their class", || {
        let before = background(daemon);
        container.send(10, FAR_V4, port);
        thread::sleep(Duration::from_millis(200));
        background(daemon) - before == wanted
    });
}

fn forwarded(daemon: &Daemon) -> Value {
    daemon.status()["forwarded"].clone()
}

#[test]
fn a_containers_packets_have_the_class_of_its_cgroup() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let sink = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    let port = sink.local_addr().unwrap().port();
    let mut container = Container::start(&lab);
    let path = format!("/{}", container.cgroup);
    rules.write("50-test.toml", &rule(&format!("cgroup = \"{path}\""), "background"));
    let daemon = daemon_with_queue(&rules);
    until_sent_as(&daemon, &mut container, port, true);
    assert_eq!(forwarded(&daemon)[0]["cgroup"], path);

    let before = background(&daemon);
    container.send(10, FAR_V6, port);
    let own = UdpSocket::bind("0.0.0.0:0").unwrap();
    for _ in 0..10 {
        assert_eq!(own.send_to(b"x", (FAR_V4, port)).unwrap(), 1);
    }
    // The first ones wait for the peer's address.
    until("those over IPv6 have left", || background(&daemon) - before >= 10);
    // Time in which this program's own would be counted.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(
        background(&daemon) - before,
        10,
        "those over IPv6, and not this program's own"
    );

    let reason = String::from_utf8(giveway(&["why", &path]).stdout).unwrap();
    let wanted = format!("what is forwarded for {path}: class standard -> background");
    assert!(
        reason.contains(&wanted) && reason.contains("50-test.toml:1"),
        "{reason}"
    );
    let status = String::from_utf8(giveway(&["status"]).stdout).unwrap();
    assert!(status.contains(&container.cgroup), "{status}");

    rules.write("50-test.toml", "");
    assert!(giveway(&["reload"]).status.success());
    until_sent_as(&daemon, &mut container, port, false);
}

/// The first rule that matches counts, also where one asks for the packet and the other for the cgroup.
#[test]
fn a_rule_for_packets_counts_before_one_for_the_cgroup_where_it_stands_before() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let sink = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    let port = sink.local_addr().unwrap().port();
    let mut container = Container::start(&lab);
    let of_cgroup = rule(&format!("cgroup = \"/{}\"", container.cgroup), "background");
    let of_packets = rule(&format!("port = {port}"), "standard");
    rules.write("50-test.toml", &format!("{of_packets}{of_cgroup}"));
    let daemon = daemon_with_queue(&rules);
    until_sent_as(&daemon, &mut container, port + 1, true);
    until_sent_as(&daemon, &mut container, port, false);
    rules.write("50-test.toml", &format!("{of_cgroup}{of_packets}"));
    assert!(giveway(&["reload"]).status.success());
    until_sent_as(&daemon, &mut container, port, true);
}

#[test]
fn a_container_that_is_started_later_is_known_too() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let sink = lab.far(|| UdpSocket::bind((FAR_V4, 0)).unwrap());
    let port = sink.local_addr().unwrap().port();
    rules.write("50-test.toml", &rule("cgroup = \"/gw-container-*\"", "background"));
    let daemon = daemon_with_queue(&rules);
    let mut container = Container::start(&lab);
    until_sent_as(&daemon, &mut container, port, true);
}

/// That its device here has passed on to the container, Mbit/s.
fn download_mbit(time: Duration) -> f64 {
    mbit_of(|| carried("gwc").1, time)
}

/// A container that downloads from the remote host as fast as it may, over IPv4.
fn downloading(lab: &Lab) -> Container {
    lab.far(|| run(&format!("ip route add 10.97.0.0/24 via {NEAR_V4}")));
    let port = source(lab, FAR_V4);
    // A socket stays in the cgroup that it was made in.
    let script = format!("read is_there; exec cat < /dev/tcp/{FAR_V4}/{port} > /dev/null");
    let mut container = Container::running(lab, &script);
    writeln!(container.words, "yes").unwrap();
    container
}

/// Whether a filter of giveway's stands at the egress of the container's device.
fn is_filtered() -> bool {
    run("tc filter show dev gwc egress").contains("giveway")
}

#[test]
fn what_a_container_receives_is_limited_by_its_cgroup_and_not_what_the_host_sends_it() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let container = downloading(&lab);
    let daemon = daemon_with_queue(&rules);
    until("it downloads", || download_mbit(Duration::from_millis(300)) > 40.0);
    assert!(!is_filtered());
    let limit = format!("cgroup = \"/{}\"\ndownload_limit_mbit = 4", container.cgroup);
    rules.write("50-test.toml", &rule(&limit, "standard"));
    assert!(giveway(&["reload"]).status.success());
    until("it is limited", || download_mbit(Duration::from_millis(400)) < 6.0);
    held("its limit holds", 3.4..4.4, || download_mbit(Duration::from_secs(2)));
    let passed = || {
        let status = daemon.status();
        status["limits"][0]["download"]["queue"]["passed_bytes"].as_u64()
    };
    until("what has passed is told", || passed() > Some(500_000));
    held("that is told", 3.4..4.4, || {
        let passing = daemon.status()["limits"][0]["download"]["queue"]["throughput_mbit"].as_f64();
        passing.unwrap()
    });

    let own = TcpListener::bind("10.97.0.1:0").unwrap();
    let port = own.local_addr().unwrap().port();
    let beside = container.beside(&format!("exec cat < /dev/tcp/10.97.0.1/{port} > /dev/null"));
    let (mut stream, _) = own.accept().unwrap();
    let sender = thread::spawn(move || while stream.write_all(&[0; 16 * 1024]).is_ok() {});
    until("what the host sends comes unlimited", || {
        download_mbit(Duration::from_millis(300)) > 20.0
    });
    drop(beside);
    sender.join().unwrap();

    rules.write("50-test.toml", "");
    assert!(giveway(&["reload"]).status.success());
    until("it is free", || download_mbit(Duration::from_millis(300)) > 40.0);
    until("nothing is left", || {
        !is_filtered() && !run("ip link").contains("giveway-down")
    });
}

#[test]
fn where_a_class_is_set_for_a_container_it_is_said_that_what_it_receives_is_not_ordered() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let container = downloading(&lab);
    let _daemon = daemon_with_queue(&rules);
    let cgroup = format!("/{}", container.cgroup);
    assert!(giveway(&["link", "set", "gwv", "--down", "100mbit"]).status.success());
    let unordered = "are not ordered by class";
    until("it is said", || {
        let set = giveway(&["class", "set", &cgroup, "bulk"]);
        set.status.success() && String::from_utf8_lossy(&set.stderr).contains(unordered)
    });
    let listed = giveway(&["class", "list"]).stdout;
    assert!(String::from_utf8_lossy(&listed).contains(unordered));
    assert!(giveway(&["class", "clear", &cgroup]).status.success());
}

#[test]
fn a_container_downloads_freely_again_when_the_daemon_is_killed_and_nothing_is_left() {
    let (lab, rules) = (Lab::enter(), Rules::new());
    let container = downloading(&lab);
    let limit = format!("cgroup = \"/{}\"\ndownload_limit_mbit = 4", container.cgroup);
    rules.write("50-test.toml", &rule(&limit, "standard"));
    let daemon = daemon_with_queue(&rules);
    until("it is limited", || {
        is_filtered() && download_mbit(Duration::from_millis(400)) < 6.0
    });
    daemon.kill();
    let mbit = download_mbit(Duration::from_secs(1));
    assert!(mbit > 20.0, "{mbit} Mbit/s");
    assert!(!is_filtered() && !run("ip link").contains("giveway-down"));
}
