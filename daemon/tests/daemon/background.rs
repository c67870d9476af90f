// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Background connections get the congestion control that yields, and have their own back when they are background no
//! longer, and however the daemon ends.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use giveway::actuate::sockets::scavenger::{Scavenger, name};
use giveway::kernel::own_netns;
use nix::sys::signal::Signal;
use nix::sys::socket::sockopt::TcpCongestion;
use nix::sys::socket::{getsockopt, setsockopt};
use tempfile::TempDir;

use crate::support::lab::{FAR_V4, FAR_V6, Lab};
use crate::support::process::{Daemon, giveway};
use crate::support::scratch::Scratch;
use crate::support::tcp::{Transfer, pair};
use crate::support::wait::until;

/// Beside the kernel's default.
const CHOSEN: &str = "reno";

/// The congestion control that the kernel has on the socket.
fn control(stream: &TcpStream) -> String {
    let name = getsockopt(stream, TcpCongestion).unwrap();
    name.to_string_lossy().trim_end_matches('\0').to_owned()
}

fn yields(stream: &TcpStream) -> bool {
    control(stream) == name(own_netns().unwrap())
}

/// A connection that sends.
struct Sender {
    near: TcpStream,
    _transfer: Transfer,
}

impl Sender {
    fn start((near, far): (TcpStream, TcpStream)) -> Self {
        setsockopt(&near, TcpCongestion, &CHOSEN.into()).unwrap();
        let transfer = Transfer::start(&near, far);
        Self {
            near,
            _transfer: transfer,
        }
    }

    fn port(&self) -> u16 {
        self.near.peer_addr().unwrap().port()
    }
}

struct Rules(TempDir);

impl Rules {
    fn for_background(ports: &[u16]) -> Self {
        let rules = Self(tempfile::tempdir().unwrap());
        rules.write(ports);
        rules
    }

    fn write(&self, ports: &[u16]) {
        let rule = |port| format!("[[rule]]\nport = {port}\nclass = \"background\"\nreason = \"a test\"\n");
        let text: String = ports.iter().map(rule).collect();
        fs::write(self.0.path().join("50-test.toml"), text).unwrap();
    }

    fn daemon(&self) -> Daemon {
        self.daemon_with(&[])
    }

    fn daemon_with(&self, words: &[&str]) -> Daemon {
        let all = [
            &["--rules", self.0.path().to_str().unwrap(), "--interface", "gwv"],
            words,
        ]
        .concat();
        Daemon::start(&all)
    }
}

/// A connection that yields by now, and the daemon that made it.
struct Stage {
    lab: Lab,
    sender: Sender,
    rules: Rules,
    daemon: Daemon,
}

impl Stage {
    fn set() -> Self {
        let lab = Lab::enter();
        let sender = Sender::start(lab.connect(FAR_V4));
        let rules = Rules::for_background(&[sender.port()]);
        let daemon = rules.daemon();
        until("it yields", || yields(&sender.near));
        Self {
            lab,
            sender,
            rules,
            daemon,
        }
    }

    fn reason(&self) -> String {
        String::from_utf8(giveway(&["why", &self.sender.port().to_string()]).stdout).unwrap()
    }
}

/// Long enough for whatever a poll would change.
fn passes(daemon: &Daemon) {
    let count = || daemon.status()["polls"]["count"].as_u64().unwrap();
    let before = count();
    until("some polls", || count() > before + 4);
}

/// Long enough for a connection to be background, and for whatever follows from that.
fn passes_with_background(daemon: &Daemon) {
    let flows = || daemon.status()["flows"].to_string();
    until("it is background", || flows().contains("\"class\":\"background\""));
    passes(daemon);
}

#[test]
fn a_background_connection_yields_and_others_keep_their_congestion_control() {
    let lab = Lab::enter();
    let senders = [FAR_V4, FAR_V6, FAR_V4].map(|to| Sender::start(lab.connect(to)));
    let loopback = Sender::start(pair(&TcpListener::bind(("127.0.0.1", 0)).unwrap()));
    let rules = Rules::for_background(&[senders[0].port(), senders[1].port(), loopback.port()]);
    let daemon = rules.daemon();
    until("both yield", || senders[..2].iter().all(|one| yields(&one.near)));
    passes(&daemon);
    assert_eq!(control(&senders[2].near), CHOSEN);
    assert_eq!(control(&loopback.near), CHOSEN, "there is nobody to yield to");
    let shown = String::from_utf8(giveway(&["status"]).stdout).unwrap();
    assert!(shown.contains("; yields by gw_lbe_"), "{shown}");
}

#[test]
fn why_tells_what_it_had_and_by_which_rule_it_yields() {
    let stage = Stage::set();
    let reason = stage.reason();
    let change = format!("congestion control {CHOSEN} -> gw_lbe_");
    let line = reason
        .lines()
        .find(|line| line.contains(&change))
        .unwrap_or_else(|| panic!("{reason}"));
    assert!(line.contains("50-test.toml:1: it is background: a test"), "{line}");
}

#[test]
fn a_connection_that_is_background_no_longer_has_its_own_back() {
    let stage = Stage::set();
    stage.rules.write(&[]);
    stage.daemon.signal(Signal::SIGHUP);
    until("it has its own back", || control(&stage.sender.near) == CHOSEN);
    until("why says so", || {
        stage.reason().contains(&format!("-> {CHOSEN}; rule default"))
    });
}

#[test]
fn a_connection_has_its_own_back_at_the_end() {
    let mut stage = Stage::set();
    stage.daemon.signal(Signal::SIGTERM);
    assert!(stage.daemon.0.wait().unwrap().success());
    assert_eq!(control(&stage.sender.near), CHOSEN);
}

#[test]
fn a_connection_has_its_own_back_within_a_second_of_a_kill() {
    let stage = Stage::set();
    let took = stage.daemon.kill();
    assert_eq!(control(&stage.sender.near), CHOSEN);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn the_next_start_puts_back_what_nobody_could() {
    let stage = Stage::set();
    stage.daemon.kill_both();
    assert!(yields(&stage.sender.near), "it keeps it for as long as nobody acts");
    stage.rules.write(&[]);
    let _daemon = stage.rules.daemon();
    assert_eq!(control(&stage.sender.near), CHOSEN);
}

#[test]
fn what_somebody_has_set_meanwhile_is_left_alone() {
    let mut stage = Stage::set();
    setsockopt(&stage.sender.near, TcpCongestion, &"cubic".into()).unwrap();
    until("why says so", || {
        stage.reason().contains("-> cubic; rule") && stage.reason().contains("does not override it")
    });
    stage.rules.write(&[]);
    stage.daemon.signal(Signal::SIGHUP);
    passes(&stage.daemon);
    assert_eq!(control(&stage.sender.near), "cubic");
    stage.daemon.signal(Signal::SIGTERM);
    assert!(stage.daemon.0.wait().unwrap().success());
    assert_eq!(control(&stage.sender.near), "cubic");
}

#[test]
fn it_can_be_switched_off() {
    let lab = Lab::enter();
    let sender = Sender::start(lab.connect(FAR_V4));
    let rules = Rules::for_background(&[sender.port()]);
    let off = "[classes]\ncongestion_control = false\nreceive_window = false\n";
    let config = Scratch::new("no-control.toml", off);
    let daemon = rules.daemon_with(&["--config", config.path()]);
    passes_with_background(&daemon);
    assert_eq!(control(&sender.near), CHOSEN);
    assert!(!window_yields(&daemon));
}

/// A background connection that receives, whose window yields by now.
struct Download {
    near: TcpStream,
    _transfer: Transfer,
    rules: Rules,
    daemon: Daemon,
    _lab: Lab,
}

impl Download {
    fn start() -> Self {
        let lab = Lab::enter();
        let (near, far) = lab.connect(FAR_V4);
        let rules = Rules::for_background(&[near.peer_addr().unwrap().port()]);
        let transfer = Transfer::start(&far, near.try_clone().unwrap());
        let daemon = rules.daemon();
        until("its window yields", || window_yields(&daemon));
        passes(&daemon);
        Self {
            near,
            _transfer: transfer,
            rules,
            daemon,
            _lab: lab,
        }
    }
}

fn window_yields(daemon: &Daemon) -> bool {
    daemon.status()["flows"].to_string().contains("\"receive_yields\":true")
}

#[test]
fn what_a_background_connection_receives_yields_and_why_says_so() {
    let download = Download::start();
    let port = download.near.peer_addr().unwrap().port().to_string();
    let reason = String::from_utf8(giveway(&["why", &port]).stdout).unwrap();
    let line = reason.lines().find(|line| line.contains("receive window"));
    assert!(line.is_some_and(|line| line.contains("yields; rule")), "{reason}");
    download.rules.write(&[]);
    download.daemon.signal(Signal::SIGHUP);
    until("it does no longer", || !window_yields(&download.daemon));
}

#[test]
fn a_receive_window_is_restored_within_a_second_of_a_kill() {
    let download = Download::start();
    let took = download.daemon.kill();
    assert!(took < Duration::from_secs(1), "{took:?}");
    let left = String::from_utf8(giveway(&["revert", "--dry-run"]).stdout).unwrap();
    assert!(!left.contains("window") && !left.contains("callback"), "{left}");
}

#[test]
fn revert_puts_a_receive_window_back_after_both_have_died() {
    let download = Download::start();
    download.daemon.kill_both();
    let done = String::from_utf8(giveway(&["revert"]).stdout).unwrap();
    // The window itself may be the kernel's again by then: with both dead, its autotuning goes on.
    assert!(
        done.contains("congestion control restored, callback restored"),
        "{done}"
    );
    let left = String::from_utf8(giveway(&["revert", "--dry-run"]).stdout).unwrap();
    assert!(!left.contains("window") && !left.contains("callback"), "{left}");
}

#[test]
fn where_the_kernel_does_not_take_it_everything_else_goes_on_and_status_says_so() {
    let lab = Lab::enter();
    let sender = Sender::start(lab.connect(FAR_V4));
    let rules = Rules::for_background(&[sender.port()]);
    let _taken = Scavenger::register(&name(own_netns().unwrap()), None).unwrap();
    let daemon = rules.daemon();
    passes_with_background(&daemon);
    assert_eq!(control(&sender.near), CHOSEN);
    let warnings = daemon.status()["warnings"].to_string();
    assert!(
        warnings.contains("background connections keep their congestion control: cannot register"),
        "{warnings}"
    );
}

#[test]
fn where_the_kernel_takes_windows_back_downloads_are_left_alone_and_status_says_so() {
    let _lab = Lab::enter();
    fs::write("/proc/sys/net/ipv4/tcp_shrink_window", "1").unwrap();
    let daemon = Rules::for_background(&[]).daemon();
    let warnings = daemon.status()["warnings"].to_string();
    assert!(
        warnings.contains("net.ipv4.tcp_shrink_window is 1, by which the kernel revokes windows"),
        "{warnings}"
    );
}

#[test]
fn the_end_of_one_daemon_takes_nothing_from_another() {
    let mut first = Stage::set();
    let (told, wait) = mpsc::channel();
    let (ready, is_ready) = mpsc::channel();
    let other = thread::spawn(move || {
        let stage = Stage::set();
        ready.send(()).unwrap();
        wait.recv().unwrap();
        passes(&stage.daemon);
        assert!(yields(&stage.sender.near), "what yielded still does");
        let new = Sender::start(stage.lab.connect(FAR_V4));
        stage.rules.write(&[stage.sender.port(), new.port()]);
        stage.daemon.signal(Signal::SIGHUP);
        until("a new one yields, too", || yields(&new.near));
        stage.daemon.kill();
        assert_eq!([&stage.sender, &new].map(|one| control(&one.near)), [CHOSEN; 2]);
    });
    is_ready.recv().unwrap();
    assert!(yields(&first.sender.near));
    first.daemon.signal(Signal::SIGTERM);
    assert!(first.daemon.0.wait().unwrap().success());
    assert_eq!(control(&first.sender.near), CHOSEN);
    told.send(()).unwrap();
    other.join().unwrap();
}
