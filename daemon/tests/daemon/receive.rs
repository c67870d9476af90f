// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `[receive]` from outside, in namespaces of the test's own and in the one that it was started in: packets are taken in
//! as configured for as long as the daemon lives, whatever becomes of the link meanwhile.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use giveway::actuate::thread::attributes::Attributes;
use giveway::kernel::tasks::Tasks;
use giveway::kernel::{napi, own_netns};
use nix::sys::signal::Signal;

use crate::support::host::HostLink;
use crate::support::lab::{Lab, NEAR_V6, run};
use crate::support::process::{Daemon, giveway};
use crate::support::scratch::Scratch;
use crate::support::wait::until;

const NAPI: &str = "[receive]\nthreaded_napi = true\nnapi_priority = 12\n";
const BUSY_POLL: [&str; 2] = ["/proc/sys/net/core/busy_read", "/proc/sys/net/core/busy_poll"];

fn daemon(name: &str, interface: &str, configuration: &str) -> (Daemon, Scratch) {
    let nothing_else = "[cap]\npolicy = \"none\"\n[queue]\nbackend = \"none\"\n";
    let config = Scratch::new(name, &format!("{nothing_else}{configuration}"));
    let daemon = Daemon::start_with_this_thread(&["--config", config.path(), "--interface", interface]);
    until("the interface is managed", || !daemon.status()["interface"].is_null());
    (daemon, config)
}

fn threads(ifindex: u32) -> Vec<u32> {
    let tasks = Tasks::load(own_netns().unwrap()).unwrap();
    let threads = napi::threads(ifindex, &tasks).unwrap();
    threads.iter().map(|thread| thread.pid).collect()
}

fn scheduled(tid: u32) -> String {
    Attributes::of(tid).map_or_else(|errno| errno.to_string(), |found| found.shown())
}

/// Whether there are threads, and each has what the configuration says.
fn are_raised(ifindex: u32) -> bool {
    let threads = threads(ifindex);
    !threads.is_empty() && threads.into_iter().all(|tid| scheduled(tid) == "FIFO 12")
}

fn busy_poll() -> [String; 2] {
    BUSY_POLL.map(|path| fs::read_to_string(path).unwrap())
}

fn why_receive() -> String {
    String::from_utf8(giveway(&["why", "receive"]).stdout).unwrap()
}

#[test]
fn threads_take_packets_in_for_as_long_as_the_daemon_lives() {
    let lab = Lab::enter();
    run("ethtool -K gwv gro on");
    assert!(threads(lab.ifindex).is_empty(), "softirqs do it at first");
    let (mut daemon, _config) = daemon("receive.toml", "gwv", NAPI);
    until("threads do it, with real time", || are_raised(lab.ifindex));
    let status = daemon.status();
    assert!(status["priority"]["napi"]["raised"] == true, "{}", status["priority"]);
    let reason = why_receive();
    assert!(
        reason.contains("threaded 0 -> 1") && reason.contains("OTHER -> FIFO 12"),
        "{reason}"
    );
    daemon.signal(Signal::SIGKILL);
    daemon.0.wait().unwrap();
    until("softirqs do it again", || threads(lab.ifindex).is_empty());
}

/// Of a device of the near side, as one sees it who is there.
fn in_sysfs(lab: &Lab, script: &str) -> String {
    let mut command = Command::new("ip");
    let output = command
        .args(["netns", "exec", &lab.near, "sh", "-ec", script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_was_set_is_restored_on_the_device_that_had_it_and_on_none_of_its_name() {
    let lab = Lab::enter();
    run("ethtool -K gwv gro on");
    let (daemon, _config) = daemon("receive-renamed.toml", "gwv", NAPI);
    until("threads do it, with real time", || are_raised(lab.ifindex));
    daemon.kill_both();
    drop(daemon);
    run("ip link set gwv name gwrenamed");
    run("ip link add gwv type veth peer name gwother");
    run("ethtool -K gwv gro on");
    ["gwv", "gwother"]
        .iter()
        .for_each(|end| drop(run(&format!("ip link set {end} up"))));
    in_sysfs(&lab, "echo 1 > /sys/class/net/gwv/threaded");
    assert!(giveway(&["revert"]).status.success());
    let threaded = in_sysfs(&lab, "cd /sys/class/net; cat gwrenamed/threaded gwv/threaded");
    assert_eq!(threaded, "0\n1\n");
}

#[test]
fn a_device_that_moved_to_another_namespace_has_no_threads_once_the_daemon_ends() {
    let lab = Lab::enter();
    run("ethtool -K gwv gro on");
    let (mut daemon, _config) = daemon("receive-moved.toml", "gwv", NAPI);
    until("threads do it, with real time", || are_raised(lab.ifindex));
    let elsewhere = format!("{}-else", lab.near);
    run(&format!("ip netns add {elsewhere}"));
    run(&format!("ip link set gwv netns {elsewhere}"));
    run(&format!("ip -n {elsewhere} link set gwv up"));
    let threaded = || run(&format!("ip netns exec {elsewhere} cat /sys/class/net/gwv/threaded"));
    assert_eq!(threaded(), "1\n");
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(threaded(), "0\n");
    run(&format!("ip netns del {elsewhere}"));
}

#[test]
fn it_works_in_the_namespace_in_which_a_machine_starts() {
    let link = HostLink::make();
    let ifindex = nix::net::if_::if_nametoindex(link.near.as_str()).unwrap();
    let before = busy_poll();
    let everything = format!("{NAPI}irq_cpus = [0]\nbusy_poll_us = 37\n");
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let (mut daemon, _config) = daemon("receive-host.toml", &link.near, &everything);
        until("threads do it, with real time", || are_raised(ifindex));
        assert_eq!(busy_poll(), ["37\n", "37\n"].map(str::to_owned));
        let warnings = daemon.status()["warnings"].to_string();
        let irqs = format!("the interrupts of {}: the device has none of its own", link.near);
        assert!(warnings.contains(&irqs), "it was looked at: {warnings}");
        daemon.signal(signal);
        let ended = daemon.0.wait().unwrap();
        assert!(signal == Signal::SIGKILL || ended.success(), "{ended}");
        until("everything is as it was", || {
            threads(ifindex).is_empty() && busy_poll() == before
        });
    }
    // The watchdog of the killed one holds the namespace until it is done.
    until("nothing is left", || {
        let found = giveway(&["revert", "--dry-run", "--json"]).stdout;
        let found: serde_json::Value = serde_json::from_slice(&found).unwrap_or_default();
        found["found"].as_array().is_some_and(Vec::is_empty) && found["failed"] == serde_json::json!([])
    });
    assert!(giveway(&["revert"]).status.success());
}

#[test]
fn what_cannot_be_restored_blocks_no_start_and_is_told() {
    let _lab = Lab::enter();
    let file = "/proc/sys/net/ipv4/ip_forward";
    let found = fs::read_to_string(file).unwrap();
    let folder = format!("/run/giveway/netns-{}", own_netns().unwrap());
    fs::create_dir_all(&folder).unwrap();
    let before = "nothing that it could be";
    let entry = serde_json::json!({ "path": file, "before": before, "ours": found.trim() });
    fs::write(format!("{folder}/settings"), format!("{entry}\n")).unwrap();
    for _ in 0..2 {
        let (mut daemon, _config) = daemon("receive-left.toml", "gwv", "");
        let warnings = daemon.status()["warnings"].to_string();
        assert!(warnings.contains("is not undone: cannot write nothing"), "{warnings}");
        let watchdog = format!("/proc/{}", daemon.watchdog());
        daemon.signal(Signal::SIGKILL);
        daemon.0.wait().unwrap();
        until("the watchdog is done", || !Path::new(&watchdog).exists());
    }
    // As soon as that can be done it is.
    let entry = serde_json::json!({ "path": file, "before": found.trim(), "ours": found.trim() });
    fs::write(format!("{folder}/settings.left"), format!("{entry}\n")).unwrap();
    assert!(giveway(&["revert"]).status.success());
}

/// Small datagrams to the near side, as fast as one thread can, until it is dropped.
fn flood<T>(lab: &Lab, during: impl FnOnce() -> T) -> T {
    let socket = lab.far(|| UdpSocket::bind(("::", 0)).unwrap());
    socket.connect((NEAR_V6, 9)).unwrap();
    let lasts = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            while lasts.load(Ordering::Relaxed) {
                // Refused by the near side, or by its own queue.
                let _ = socket.send(&[0; 18]);
            }
        });
        let _end = Ended(&lasts);
        during()
    })
}

struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn a_new_address_leaves_the_bound_of_a_flood() {
    let lab = Lab::enter();
    run("ethtool -K gwv gro on");
    // Only then does what is sent go through NAPI at the other end.
    run(&format!("ip netns exec {} ethtool -K gwv tso off", lab.far));
    // So little that any flood is above it, on any machine.
    let limited = format!("{NAPI}[priority_limits]\ntotal_percent = 1\n");
    let (daemon, _config) = daemon("receive-address.toml", "gwv", &limited);
    until("they are raised", || are_raised(lab.ifindex));
    let lowered = || {
        daemon.status()["priority"]["counters"]["parts_lowered"]
            .as_u64()
            .unwrap()
    };
    let is_lowered = || {
        threads(lab.ifindex)
            .into_iter()
            .all(|tid| scheduled(tid) == "OTHER (nice 0)")
    };
    flood(&lab, || {
        until("the flood lowers them", || lowered() > 0 && is_lowered())
    });
    until("they are raised again", || are_raised(lab.ifindex));
    for address in ["10.99.0.7", "10.99.0.8"] {
        run("ip address flush dev gwv scope global");
        until("the address has gone", || {
            daemon.status()["interface"]["ipv4"].is_null()
        });
        run(&format!("ip address add {address}/24 dev gwv"));
        run(&format!("ip address add {NEAR_V6}/64 dev gwv nodad"));
        until("the new address is seen", || {
            daemon.status()["interface"]["ipv4"] == address
        });
        until("they are raised still", || are_raised(lab.ifindex));
        let before = lowered();
        flood(&lab, || {
            until("a flood lowers them still", || lowered() > before && is_lowered())
        });
        until("and they are raised again", || are_raised(lab.ifindex));
    }
}

#[test]
fn the_threads_of_a_link_that_went_down_and_up_are_raised_too() {
    let lab = Lab::enter();
    run("ethtool -K gwv gro on");
    let (mut daemon, _config) = daemon("receive-updown.toml", "gwv", NAPI);
    until("they are raised", || are_raised(lab.ifindex));
    let before = threads(lab.ifindex);
    // Too short for a look each second to see it.
    run("ip link set gwv down");
    run("ip link set gwv up");
    until("others are raised", || {
        are_raised(lab.ifindex) && threads(lab.ifindex) != before
    });
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert!(threads(lab.ifindex).is_empty(), "softirqs do it again");
}
