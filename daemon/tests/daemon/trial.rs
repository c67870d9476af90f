// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway try`: while a pause holds nothing of giveway's is left, and afterwards everything is back, however the trial
//! ends; what is planted between the two is found, by the real daemon, peer and link.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use giveway::control::client;
use giveway::kernel::own_netns;
use giveway::place::Place;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::TcpCongestion;
use tempfile::TempDir;

use crate::support::lab::{FAR_V4, Lab, run};
use crate::support::planted::{Link, Peer, Planted, answer};
use crate::support::process::{Copy, Daemon, KillOnDrop, effective_priority, failure, giveway, program, signal};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::tcp::Transfer;
use crate::support::wait::until;

const ORDINARY: i32 = 120;
const NICE_19: i32 = 139;
const FIFO_20: i32 = 79;

/// A daemon that has one of everything active: a queue, a cap, a congestion control, a nice and a real-time process.
struct Stage {
    background: TcpStream,
    capped: TcpStream,
    _transfers: [Transfer; 2],
    nice: KillOnDrop,
    realtime: KillOnDrop,
    before: String,
    daemon: Daemon,
    lab: Lab,
    _files: (TempDir, [Scratch; 3]),
}

impl Stage {
    fn set() -> Self {
        let lab = Lab::enter();
        let [(background, far), (capped, other)] = [(); 2].map(|()| lab.connect(FAR_V4));
        // In the order in which they end: what background has written leaves when the other no longer sends.
        let transfers = [Transfer::start(&capped, other), Transfer::start(&background, far)];
        let [for_nice, for_realtime] = ["gw-try-nice", "gw-try-rt"].map(|name| Scratch::copy_of("/bin/sleep", name));
        let start = |file: &Scratch| KillOnDrop::spawn(Command::new(file.path()).arg("1000"));
        let (nice, realtime) = (start(&for_nice), start(&for_realtime));
        let rules = tempfile::tempdir().unwrap();
        let port = background.peer_addr().unwrap().port();
        let rule = format!(
            "[[rule]]\nport = {port}\nclass = \"background\"\n[[rule]]\nexe = \"{}\"\nclass = \"background\"\n",
            for_nice.path()
        );
        fs::write(rules.path().join("50-test.toml"), rule).unwrap();
        let config = Scratch::new(
            "try.toml",
            &format!(
                "[link]\nrate_mbit = 20\n[queue]\nbackend = \"htb\"\n[cap]\nfixed_segments = 20\n[[priority]]\nexe = \
                 \"{}\"\npriority = 20\n",
                for_realtime.path()
            ),
        );
        let before = run("tc qdisc show dev gwv");
        let rules_path = rules.path().to_str().unwrap().to_owned();
        let words = ["--config", config.path(), "--rules", &rules_path, "--interface", "gwv"];
        let daemon = Daemon::start(&words);
        let stage = Self {
            background,
            capped,
            _transfers: transfers,
            nice,
            realtime,
            before,
            daemon,
            lab,
            _files: (rules, [for_nice, for_realtime, config]),
        };
        stage.comes_into_force();
        stage
    }

    fn control(&self) -> String {
        let name = getsockopt(&self.background, TcpCongestion).unwrap();
        name.to_string_lossy().trim_end_matches('\0').to_owned()
    }

    /// As the kernel has it on the other connection.
    fn clamp(&self) -> Option<u64> {
        let remote = self.capped.peer_addr().unwrap().to_string();
        let status = self.daemon.status();
        let flows = status["flows"].as_array().unwrap();
        flows.iter().find(|flow| flow["remote"] == remote)?["clamp"].as_u64()
    }

    fn priorities(&self) -> (i32, i32) {
        (
            effective_priority(self.nice.id()),
            effective_priority(self.realtime.id()),
        )
    }

    #[track_caller]
    fn comes_into_force(&self) -> Duration {
        let begun = Instant::now();
        until("the queue is up", || run("tc qdisc show dev gwv").contains("htb"));
        until("background yields", || self.control().starts_with("gw"));
        until("the other is capped", || self.clamp() == Some(20));
        until("one process is nice, one has real time", || {
            self.priorities() == (NICE_19, FIFO_20)
        });
        begun.elapsed()
    }

    #[track_caller]
    fn is_as_before(&self) -> Duration {
        let begun = Instant::now();
        until("the queue is as before", || run("tc qdisc show dev gwv") == self.before);
        until("background does not yield", || !self.control().starts_with("gw"));
        until("nothing is capped", || self.clamp().is_none());
        until("the processes are ordinary", || {
            self.priorities() == (ORDINARY, ORDINARY)
        });
        begun.elapsed()
    }

    fn is_paused(&self) -> bool {
        self.daemon.status()["paused"].is_object()
    }
}

#[test]
fn a_pause_takes_everything_back_and_its_end_brings_it_back() {
    let stage = Stage::set();
    let place = Place::here().unwrap();
    for _ in 0..3 {
        let pause = client::pause(&place, 60).unwrap();
        assert!(pause.holds());
        let took = stage.is_as_before();
        println!("as before {took:?} after the pause was granted");
        let own = std::process::id();
        let status = String::from_utf8(giveway(&["status"]).stdout).unwrap();
        assert!(status.contains(&format!("paused by uid 0 (pid {own})")), "{status}");
        let reason = String::from_utf8(giveway(&["why"]).stdout).unwrap();
        assert!(
            reason.contains("paused by uid 0") && reason.contains("all changes are undone for now"),
            "{reason}"
        );
        let error = client::pause(&place, 60).err().unwrap().to_string();
        assert!(
            error.contains("paused by uid 0") && error.contains("already"),
            "{error}"
        );
        drop(pause);
        let took = stage.comes_into_force();
        println!("active {took:?} after its end");
        assert!(!stage.is_paused());
    }
}

#[test]
fn a_pause_ends_by_itself_and_the_daemon_dies_in_one_without_a_trace() {
    let stage = Stage::set();
    let place = Place::here().unwrap();
    let pause = client::pause(&place, 1).unwrap();
    stage.comes_into_force();
    assert!(!pause.holds());
    let error = client::pause(&place, 301).err().unwrap().to_string();
    assert!(error.contains("1 to 300 s"), "{error}");
    let pause = client::pause(&place, 60).unwrap();
    stage.is_as_before();
    stage.daemon.kill();
    assert_eq!(run("tc qdisc show dev gwv"), stage.before);
    assert_eq!(stage.priorities(), (ORDINARY, ORDINARY));
    assert!(!pause.holds());
}

#[test]
fn everything_is_back_at_once_after_ctrl_c_and_after_sigkill() {
    let stage = Stage::set();
    let peer = Peer::start(&stage.lab);
    for ends in [Signal::SIGINT, Signal::SIGKILL] {
        let mut command = Command::new(program());
        let words = [
            "try",
            "--peer",
            &peer.address,
            "--pairs",
            "20",
            "--interval",
            "30s",
            "--settle",
            "500ms",
            "--seed",
        ];
        // By this seed the first interval is one without giveway.
        let seed = (0..)
            .find(|seed| !giveway_engine::trial::orders(seed + 1, 1)[0])
            .unwrap();
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Whoever started these tests in the background of a script has SIGINT ignored, and so would this have.
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: what runs between fork and exec is one system call, and the default runs nothing of ours.
        unsafe { quiet.pre_exec(move || Ok(sigaction(Signal::SIGINT, &default).map(drop)?)) };
        let mut trial = KillOnDrop::spawn(quiet.args(words).arg(seed.to_string()));
        until("it is paused", || stage.is_paused());
        stage.is_as_before();
        signal(trial.id(), ends);
        let status = trial.wait().unwrap();
        assert!(!status.success(), "{status}");
        let took = stage.comes_into_force();
        println!("active {took:?} after {ends}");
        assert!(!stage.is_paused());
    }
}

#[test]
fn only_root_tries_and_without_a_daemon_or_peer_it_says_so() {
    let lab = Lab::enter();
    let (line, code) = failure(&giveway(&["try", "--pairs", "20"]));
    assert!(line.contains("no giveway daemon runs") && code == 1, "{line}");
    let copy = Copy::new("try");
    let (line, code) = failure(&copy.as_nobody(&["try"]));
    assert!(line.contains("which only root may do") && code == 2, "{line}");
    let (line, code) = failure(&giveway(&["try", "--max-time", "5m"]));
    assert!(line.contains("20 pairs and 6 of the dry run") && code == 2, "{line}");
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    let place = Place::here().unwrap();
    let asks = thread::spawn(move || {
        // SAFETY: takes no pointers; of the system call itself only the calling thread is concerned, which ends soon.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        assert_eq!(changed, 0);
        let mut stream = UnixStream::connect(place.control_socket()).unwrap();
        stream.write_all(b"{\"request\":\"pause\",\"for_s\":5}\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let refused = asks.join().unwrap();
    assert!(refused.contains("only root may pause"), "{refused}");
    let address = lab.far_listener(FAR_V4).local_addr().unwrap().to_string();
    let output = giveway(&[
        "try",
        "--peer",
        &address,
        "--interval",
        "200ms",
        "--settle",
        "100ms",
        "--pairs",
        "20",
    ]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("does `giveway try --serve` run there?"), "{text}");
}

#[test]
fn a_peer_is_bounded_and_says_nothing_to_strangers() {
    let lab = Lab::enter();
    let peer = Peer::start(&lab);
    let says = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(&peer.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let closed = stream.read_to_end(&mut answer);
        assert!(
            !closed.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
            "it stays open"
        );
        answer
    };
    assert!(says(b"GET / HTTP/1.1\r\n\r\n").is_empty());
    let begun = Instant::now();
    assert!(says(b"gwt").is_empty());
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(
        says(b"gwtry1u\x01\x00\x02\x00\x00").is_empty(),
        "a question of a wrong length"
    );
    let mut open: Vec<TcpStream> = Vec::new();
    let turned_away = (0..80).filter(|_| {
        let mut stream = TcpStream::connect(&peer.address).unwrap();
        let asked = stream.write_all(&[&b"gwtry1p"[..], &[7; 16]].concat());
        let answered = asked.is_ok() && stream.read_exact(&mut [0; 16]).is_ok();
        open.push(stream);
        !answered
    });
    assert_eq!(turned_away.count(), 80 - 64);
}

#[test]
fn a_planted_gain_is_found_and_nothing_is_claimed_of_what_was_not_planted() {
    assert_ne!(own_netns().unwrap(), 0);
    let link = Link::new();
    let planted = Planted {
        with: 10.0,
        without: 5.0,
    };
    let words = [
        "--pairs",
        // Four more than the least, for a busy machine may keep an interval from measuring anything.
        "24",
        "--interval",
        "400ms",
        // Until the queue of the interval before has gone.
        "--settle",
        "400ms",
        "--seed",
        "3",
        "--streams",
        "1",
    ];
    let report = link.try_it(planted, &words);
    let goodput = answer(&report, "goodput_up_mbit");
    assert_eq!(goodput["verdict"], "better", "{report}");
    assert!(goodput["ratio"].as_f64().unwrap() > 1.3, "{goodput}");
    assert_eq!(report["intervals"].as_array().unwrap().len(), 48);
    let wakeups = &answer(&report, "wakeup_p99_us")["verdict"];
    assert_eq!(wakeups, "no_difference", "{report}");
}
