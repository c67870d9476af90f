// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From wire to process, from outside: a request's deadline gives its handler priority and goes on to the answer;
//! no other thread gets anything; however the daemon ends, everything is as it was. Handlers here only wait and answer.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use giveway::actuate::thread::attributes::Attributes;
use giveway::kernel::own_netns;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::lab::{Lab, NEAR_V4};
use crate::support::process::{Daemon, backend, giveway};
use crate::support::scratch::Scratch;
use crate::support::wait::until;

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
    let reason = String::from_utf8(giveway(&["why", &service.tid.to_string()]).stdout).unwrap();
    assert!(
        reason.contains("FIFO 40") && reason.contains("a request with a deadline came"),
        "{reason}"
    );
    until("its own timer wakes it, after the deadline", || !service.is_raised());
    let reason = String::from_utf8(giveway(&["why", &service.tid.to_string()]).stdout).unwrap();
    assert!(reason.contains("FIFO 40 -> as it was"), "{reason}");
    let reason = String::from_utf8(giveway(&["why", &service.address.port().to_string()]).stdout).unwrap();
    assert!(
        reason.contains("FIFO 40 -> as it was"),
        "found by its port too: {reason}"
    );
}

#[test]
fn a_port_that_another_user_has_taken_gives_no_priority() {
    let lab = Lab::enter();
    let (others, own) = (Service::start(NOBODY), Service::start(NOBODY));
    let rules = format!("{}{}", others.rule(""), own.rule(&format!("user = \"{NOBODY}\"")));
    let (daemon, _config) = daemon("chain-user.toml", &format!("[queue]\nbackend = \"none\"\n{rules}"));
    until("the rule that names its user matches", || {
        ask(&lab, &others, 2);
        ask(&lab, &own, 2);
        own.is_raised()
    });
    assert!(others.priority().starts_with("OTHER"), "{}", others.priority());
    let chains = daemon.status()["priority"]["chains"].take();
    let threads = |chain: &serde_json::Value| chain["threads"].as_array().unwrap().len();
    let threads: Vec<usize> = chains.as_array().unwrap().iter().map(threads).collect();
    assert_eq!(threads.iter().sum::<usize>(), 1, "{chains}");
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
    until("the queue is up", || !daemon.status()["queue"]["installed"].is_null());
    let admitted = || daemon.counted("/admitted");
    let before = admitted();
    ask(&lab, &service, 20);
    let after = admitted();
    // One of them may have waited for longer than its budget, on a machine with much to do.
    assert!((19..=20).contains(&(after - before)), "{before} -> {after}");
}

#[test]
fn however_the_daemon_ends_no_thread_keeps_a_priority() {
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
        until("it is as it was", || !service.is_raised());
        // The watchdog of a killed one ends what it has begun.
        until("nothing is left", || {
            let found = giveway(&["revert", "--dry-run", "--json"]).stdout;
            let found: serde_json::Value = serde_json::from_slice(&found).unwrap_or_default();
            found["found"].as_array().is_some_and(Vec::is_empty)
        });
    }
}

/// A service that answers each connection in a thread of its own, which ends with the connection.
fn thread_per_connection() -> SocketAddr {
    let listener = TcpListener::bind((NEAR_V4, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut packet = [0; 64];
                while let Ok(length @ 1..) = stream.read(&mut packet) {
                    stream.write_all(&packet[..length]).unwrap();
                }
            });
        }
    });
    address
}

#[test]
fn threads_that_have_ended_leave_neither_records_nor_lines_nor_descriptors() {
    let lab = Lab::enter();
    let port = thread_per_connection().port();
    let rule = format!("[[chain]]\nlocal_port = {port}\nprotocol = \"tcp\"\nbudget_ms = 100\n");
    let (daemon, _config) = daemon("chain-ends.toml", &format!("[queue]\nbackend = \"none\"\n{rule}"));
    let pid = daemon.0.id();
    let descriptors = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let records = || {
        daemon.status()["priority"]["chains"][0]["threads"]
            .as_array()
            .unwrap()
            .len()
    };
    let before = descriptors();
    lab.far(|| {
        for _ in 0..600 {
            let mut stream = TcpStream::connect((NEAR_V4, port)).unwrap();
            for _ in 0..3 {
                stream.write_all(b"request").unwrap();
                stream.read_exact(&mut [0; 7]).unwrap();
            }
        }
    });
    let journal = format!("/run/giveway/netns-{}/chains", own_netns().unwrap());
    let lines = fs::read_to_string(&journal).unwrap_or_default().lines().count();
    assert!((1..=260).contains(&lines), "{lines} lines in {journal}");
    until("no record is left", || records() == 0);
    // A status has some of its own.
    until("no descriptor is left", || descriptors() <= before + 2);
}
