// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From wire to process, from outside: a request's deadline gives its handler priority and goes on to the answer;
//! nobody else gets anything; however the daemon ends, everything is as it was. Handlers here only wait and answer.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use giveway::actuate::schedule::attributes::Attributes;
use giveway::kernel::napi;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{Daemon, Scratch, backend, giveway, until};
use crate::lab::{Lab, NEAR_V4, run};

const BUDGET: Duration = Duration::from_millis(100);
const NOBODY: u32 = 65_534;

/// A service of this user's in the near namespace, which answers what it gets: a thread of the test.
struct Service {
    address: SocketAddr,
    tid: u32,
    lasts: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    fn start(uid: u32) -> Self {
        let (tell, told) = std::sync::mpsc::channel();
        let lasts = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&lasts);
        let thread = thread::spawn(move || {
            // SAFETY: takes no pointers; of this thread alone.
            unsafe { libc::setfsuid(uid) };
            let socket = UdpSocket::bind((NEAR_V4, 0)).unwrap();
            // Now and then it is woken by something else.
            socket.set_read_timeout(Some(4 * BUDGET)).unwrap();
            tell.send((socket.local_addr().unwrap(), nix::unistd::gettid().as_raw() as u32))
                .unwrap();
            let mut packet = [0; 64];
            while goes_on.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut packet) {
                    socket.send_to(&packet[..length], from).unwrap();
                }
            }
        });
        let (address, tid) = told.recv().unwrap();
        Self {
            address,
            tid,
            lasts,
            thread: Some(thread),
        }
    }

    fn priority(&self) -> String {
        Attributes::of(self.tid).unwrap().shown()
    }

    fn is_raised(&self) -> bool {
        self.priority() == "FIFO 40"
    }

    fn rule(&self, more: &str) -> String {
        let (port, budget_ms) = (self.address.port(), BUDGET.as_millis());
        format!("[[chain]]\nlocal_port = {port}\nbudget_ms = {budget_ms}\n{more}\n")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.lasts.store(false, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Requests from the far side, each answered before the next.
fn ask(lab: &Lab, service: &Service, requests: usize) {
    let far = lab.far(|| UdpSocket::bind(("0.0.0.0", 0)).unwrap());
    far.connect(service.address).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for _ in 0..requests {
        far.send(b"request").unwrap();
        assert_eq!(far.recv(&mut [0; 64]).unwrap(), b"request".len());
    }
}

fn daemon(name: &str, configuration: &str) -> (Daemon, Scratch) {
    let config = Scratch::new(name, &format!("[cap]\npolicy = \"none\"\n{configuration}"));
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the interface is managed", || !daemon.status()["interface"].is_null());
    (daemon, config)
}

fn kill_with(daemon: &Daemon, signal: Signal) {
    kill(Pid::from_raw(daemon.0.id() as i32), signal).unwrap();
}

#[test]
fn a_request_raises_its_handler_and_something_else_lowers_it() {
    let lab = Lab::enter();
    let service = Service::start(0);
    let (_daemon, _config) = daemon(
        "chain.toml",
        &format!("[queue]\nbackend = \"none\"\n{}", service.rule("")),
    );
    until("a request raises it", || {
        ask(&lab, &service, 2);
        service.is_raised()
    });
    let why = String::from_utf8(giveway(&["why", &service.tid.to_string()]).stdout).unwrap();
    assert!(
        why.contains("FIFO 40") && why.contains("a request with a deadline came"),
        "{why}"
    );
    until("its own timer wakes it, after the deadline", || !service.is_raised());
    let why = String::from_utf8(giveway(&["why", &service.tid.to_string()]).stdout).unwrap();
    assert!(why.contains("as it was"), "{why}");
}

#[test]
fn a_port_that_somebody_else_has_taken_gets_nobody_a_priority() {
    let lab = Lab::enter();
    let (others, own) = (Service::start(NOBODY), Service::start(NOBODY));
    let rules = format!("{}{}", others.rule(""), own.rule(&format!("user = \"{NOBODY}\"")));
    let (daemon, _config) = daemon("chain-user.toml", &format!("[queue]\nbackend = \"none\"\n{rules}"));
    until("the rule that names its user means it", || {
        ask(&lab, &others, 2);
        ask(&lab, &own, 2);
        own.is_raised()
    });
    assert!(others.priority().starts_with("ordinary"), "{}", others.priority());
    let handlers = &daemon.status()["receive"]["handlers"];
    assert_eq!(handlers.as_array().unwrap().len(), 1, "{handlers}");
}

#[test]
fn an_answer_has_what_is_left_of_its_requests_deadline() {
    let lab = Lab::enter();
    let service = Service::start(0);
    let queue = format!(
        "[link]\nrate_mbit = 20\n[queue]\nbackend = \"{}\"\n{}",
        backend(),
        service.rule("")
    );
    let (daemon, _config) = daemon("chain-answer.toml", &queue);
    until("the queue is up", || !daemon.status()["queue"]["in_force"].is_null());
    let admitted = || daemon.status()["queue"]["counters"]["admitted"].as_u64().unwrap_or(0);
    let before = admitted();
    ask(&lab, &service, 20);
    let after = admitted();
    // One of them may have waited for longer than its budget, on a machine with much to do.
    assert!((19..=20).contains(&(after - before)), "{before} -> {after}");
}

#[test]
fn whoever_dies_nobody_keeps_a_priority() {
    let lab = Lab::enter();
    let service = Service::start(0);
    // So long a deadline that only the end of the daemon can be what lowers it.
    let rule = service.rule("").replace("budget_ms = 100", "budget_ms = 9000");
    let config = format!("[queue]\nbackend = \"none\"\n{rule}");
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let (mut daemon, _config) = daemon("chain-end.toml", &config);
        until("a request raises it", || {
            ask(&lab, &service, 2);
            service.is_raised()
        });
        kill_with(&daemon, signal);
        daemon.0.wait().unwrap();
        until("it is ordinary again", || !service.is_raised());
        // The guardian of a killed one ends what it has begun.
        until("nothing is left", || {
            let found = giveway(&["revert", "--dry-run", "--json"]).stdout;
            let found: serde_json::Value = serde_json::from_slice(&found).unwrap_or_default();
            found["received_found"].as_array().is_some_and(Vec::is_empty)
        });
    }
}

#[test]
fn threads_take_packets_in_for_as_long_as_the_daemon_lives() {
    let lab = Lab::enter();
    run("ethtool -K gwv gro on");
    let threads = || napi::threads(lab.ifindex).unwrap();
    assert!(threads().is_empty(), "softirqs do it at first");
    let configuration = "[queue]\nbackend = \"none\"\n[receive]\nthreaded_napi = true\nnapi_priority = 12\n";
    let (mut daemon, _config) = daemon("receive.toml", configuration);
    until("threads do it", || !threads().is_empty());
    for tid in threads() {
        assert_eq!(Attributes::of(tid).unwrap().shown(), "FIFO 12");
    }
    let why = String::from_utf8(giveway(&["why", "receive"]).stdout).unwrap();
    assert!(why.contains("threaded: 0 -> 1"), "{why}");
    kill_with(&daemon, Signal::SIGKILL);
    daemon.0.wait().unwrap();
    until("softirqs do it again", || threads().is_empty());
}
