// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway try`: while a pause holds nothing of giveway's is left, and afterwards everything is back, however the trial
//! ends; what is planted between the two is found, by the real daemon, peer and link.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use giveway::control::client;
use giveway::kernel::own_netns;
use giveway::place::Place;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::TcpCongestion;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::lab::{FAR_V4, Lab, run, visit};
use crate::support::process::{Copy, Daemon, KillOnDrop, effective_priority, failure, giveway, program, signal};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::tcp::Transfer;
use crate::support::wait::{await_some, until};

const NICE_19: i32 = 139;
const FIFO_20: i32 = 79;

/// A daemon that has one of everything in force: a queue, a cap, a congestion control, a nice and a real-time process.
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
                "[link]\nrate_mbit = 20\n[queue]\nbackend = \"htb\"\n[cap]\nfixed_segments = 20\n[[realtime]]\nexe = \
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
        until("background gives way", || self.control().starts_with("gw"));
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
        until("background does not give way", || !self.control().starts_with("gw"));
        until("nothing is capped", || self.clamp().is_none());
        until("the processes are ordinary", || {
            self.priorities() == (ordinary(), ordinary())
        });
        begun.elapsed()
    }

    fn is_paused(&self) -> bool {
        self.daemon.status()["paused"].is_object()
    }
}

/// What a process has that a test starts: whoever runs the tests may have lowered them.
fn ordinary() -> i32 {
    effective_priority(std::process::id())
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
        let why = String::from_utf8(giveway(&["why"]).stdout).unwrap();
        assert!(
            why.contains("paused by uid 0") && why.contains("nothing is in force"),
            "{why}"
        );
        let error = client::pause(&place, 60).err().unwrap().to_string();
        assert!(
            error.contains("paused by uid 0") && error.contains("already"),
            "{error}"
        );
        drop(pause);
        let took = stage.comes_into_force();
        println!("in force {took:?} after its end");
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
    assert_eq!(stage.priorities(), (ordinary(), ordinary()));
    assert!(!pause.holds());
}

/// A peer in the far namespace, on a port of the kernel's choice.
struct Peer {
    _process: KillOnDrop,
    address: String,
}

impl Peer {
    fn start(lab: &Lab) -> Self {
        let far = format!("/run/netns/{}", lab.far);
        let listener = lab.far_listener(FAR_V4);
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={far}")).arg(program());
        let quiet = command.stdin(Stdio::null()).stderr(Stdio::null());
        let process = KillOnDrop::spawn(quiet.args(["peer", "--listen", &address]));
        until("the peer listens", || TcpStream::connect(&address).is_ok());
        Self {
            _process: process,
            address,
        }
    }
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
            "30",
            "--settle",
            "0.5",
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
        println!("in force {took:?} after {ends}");
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
    assert!(line.contains("only root may pause") && code == 2, "{line}");
    let (line, code) = failure(&giveway(&["try", "--minutes", "5"]));
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
        "0.2",
        "--settle",
        "0.1",
        "--pairs",
        "20",
    ]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("does `giveway peer` run there?"), "{text}");
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

/// The rate of the way to the peer in each kind of interval, Mbit/s: what is planted.
#[derive(Clone, Copy)]
struct Planted {
    with: f64,
    without: f64,
}

/// A daemon that changes nothing of this traffic, a peer, and a link of which the rate follows the intervals: the lab asks
/// the daemon a hundred times a second whether it is paused.
struct Link {
    lab: Lab,
    peer: Peer,
    _daemon: Daemon,
    _config: Scratch,
}

impl Link {
    fn new() -> Self {
        let lab = Lab::enter();
        lab.far(|| run("tc qdisc replace dev gwv root tbf rate 20mbit burst 5000 limit 100000"));
        let config = Scratch::new("try-link.toml", "[queue]\nbackend = \"none\"\n");
        let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
        let peer = Peer::start(&lab);
        Self {
            lab,
            peer,
            _daemon: daemon,
            _config: config,
        }
    }

    fn shape(mbit: f64) {
        let kbit = (mbit * 1000.0).round();
        // Room for what a short interval sends: a first packet that is lost costs a second, in which nothing moves.
        run(&format!(
            "tc qdisc replace dev gwv root tbf rate {kbit}kbit burst 5000 limit 300000"
        ));
    }

    /// What the trial finds, as JSON.
    fn try_it(&self, planted: Planted, words: &[&str]) -> Value {
        let ends = AtomicBool::new(false);
        let near = self.lab.near.clone();
        Self::shape(planted.with);
        let (ready, readied) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                visit(&near);
                let place = Place::here().unwrap();
                ready.send(()).unwrap();
                let mut was_paused = false;
                while !ends.load(Ordering::Relaxed) {
                    // It may be too busy for a moment.
                    let is_paused = client::status(&place).map_or(was_paused, |status| status.daemon.paused.is_some());
                    if is_paused != was_paused {
                        Self::shape(if is_paused { planted.without } else { planted.with });
                        was_paused = is_paused;
                    }
                    thread::sleep(Duration::from_millis(10));
                }
            });
            readied.recv().unwrap();
            let output = giveway(&[&["try", "--peer", &self.peer.address, "--json"], words].concat());
            ends.store(true, Ordering::Relaxed);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            serde_json::from_slice(&output.stdout).unwrap()
        })
    }
}

fn answer<'a>(report: &'a Value, question: &str) -> &'a Value {
    let mut answers = report["answers"].as_array().unwrap().iter();
    answers.find(|answer| answer["question"]["name"] == question).unwrap()
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
        "0.4",
        // Until the queue of the interval before has gone.
        "--settle",
        "0.4",
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

/// Three trials each of a planted gain, a planted loss and neither, sized by their own dry runs; and 200 intervals of
/// neither, with TRY_RECORD. Writes them where TRY_OUT says. Takes an hour; run by hand (`docs/try.md`).
#[test]
#[ignore = "an hour"]
fn live_trials() {
    let out = std::env::var("TRY_OUT").expect("TRY_OUT names a folder");
    let length = std::env::var("TRY_INTERVAL").unwrap_or_else(|_| "1".to_owned());
    let (gain, loss) = (1.1, 0.9);
    let link = Link::new();
    let plain = ["--interval", &length, "--settle", "0.5"];
    let record = |name: &str, ratio: f64, words: &[&str]| {
        let planted = Planted {
            with: 10.0 * ratio,
            without: 10.0,
        };
        let report = link.try_it(planted, &[&plain[..], words].concat());
        let answers = report["answers"].as_array().unwrap();
        for answer in answers {
            let (question, verdict) = (&answer["question"]["name"], &answer["verdict"]);
            println!(
                "{name}: {question} {verdict} {} [{}, {}]",
                answer["ratio"], answer["low"], answer["high"]
            );
        }
        await_some("it is written", || {
            fs::write(Path::new(&out).join(name), report.to_string()).ok()
        });
    };
    if std::env::var_os("TRY_RECORD").is_some() {
        return record("real-intervals.json", 1.0, &["--pairs", "110"]);
    }
    for number in 1..=3 {
        for (name, ratio) in [("gain", gain), ("loss", loss), ("none", 1.0)] {
            record(&format!("{name}-{number}.json"), ratio, &["--minutes", "6"]);
        }
    }
}
