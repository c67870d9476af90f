// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What fails for a while fails for that while only. Here: a daemon that can open nothing more, as where its file table
//! is full, goes on, makes up for it when it can again, and leaves nothing behind if it ends meanwhile.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use giveway::actuate::thread::attributes::Attributes;
use giveway::kernel::own_netns;
use giveway::kernel::process::Handle;
use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::support::lab::Lab;
use crate::support::process::{Daemon, KillOnDrop, giveway, watchdog_of};
use crate::support::scratch::Scratch;
use crate::support::wait::until;

/// While it lives, a process can open nothing more.
struct FullTable {
    pid: Pid,
    before: Rlimit,
}

impl FullTable {
    fn of(pid: u32) -> Self {
        // What is open only now leaves no gap in another look.
        let first_free = (0..20)
            .map(|_| (0..).find(|fd| !is_open(pid, *fd)).unwrap())
            .min()
            .unwrap();
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        let limit = Rlimit {
            current: Some(first_free),
            ..prlimit_of(pid)
        };
        let before = prlimit(Some(pid), Resource::Nofile, limit).unwrap();
        Self { pid, before }
    }
}

impl Drop for FullTable {
    fn drop(&mut self) {
        let _ = prlimit(Some(self.pid), Resource::Nofile, self.before);
    }
}

fn prlimit_of(pid: Pid) -> Rlimit {
    let text = fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_nonzero())).unwrap();
    let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    Rlimit {
        current: numbers.next(),
        maximum: numbers.next(),
    }
}

fn is_open(pid: u32, fd: u64) -> bool {
    fs::symlink_metadata(format!("/proc/{pid}/fd/{fd}")).is_ok()
}

/// How often a thread of this name has slept.
fn sleeps(pid: u32, name: &str) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let of_name = |status: &String| {
        status
            .lines()
            .next()
            .is_some_and(|line| line.ends_with(&format!("\t{name}")))
    };
    let status = status.into_iter().find(of_name).expect("the daemon has ended");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

fn shown(pid: u32) -> String {
    Attributes::of(pid).map_or_else(|errno| errno.to_string(), |found| found.shown())
}

/// A daemon with a rule for a program of the test's own.
struct Stage {
    _lab: Lab,
    program: Scratch,
    _config: Scratch,
    daemon: Daemon,
}

impl Stage {
    fn set(name: &str) -> Self {
        let lab = Lab::enter();
        let program = Scratch::copy_of("/bin/sleep", name);
        let config = Scratch::new(
            &format!("{name}.toml"),
            &format!("[[priority]]\nexe = \"{}\"\npriority = 7\n", program.path()),
        );
        let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
        Self {
            _lab: lab,
            program,
            _config: config,
            daemon,
        }
    }

    fn start(&self) -> KillOnDrop {
        KillOnDrop::spawn(Command::new(self.program.path()).arg("1000"))
    }

    fn start_raised(&self) -> KillOnDrop {
        let process = self.start();
        until("the rule's process is raised", || shown(process.id()) == "FIFO 7");
        process
    }
}

#[test]
fn while_nothing_can_be_opened_it_goes_on_and_then_makes_up_for_it() {
    let mut stage = Stage::set("gw-full-table");
    let first = stage.start_raised();
    let pid = stage.daemon.0.id();
    let handle = Handle::open(pid).unwrap();
    let table = FullTable::of(pid);
    let (second, _client) = (
        stage.start(),
        // Waits to be accepted.
        UnixStream::connect(format!("/run/giveway/netns-{}/control", own_netns().unwrap())).unwrap(),
    );
    let (begun, cpu) = (Instant::now(), handle.cpu());
    let (realtime, main) = (sleeps(pid, "giveway-rt"), sleeps(pid, "giveway"));
    until("both threads have gone round some times", || {
        assert_eq!(stage.daemon.0.try_wait().unwrap(), None, "the daemon has ended");
        sleeps(pid, "giveway-rt") > realtime + 3 && sleeps(pid, "giveway") > main + 20
    });
    let used = (handle.cpu() - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    assert!(used < 0.3, "{used:.2} of a CPU while nothing can be done");
    assert_eq!(shown(first.id()), "FIFO 7", "nothing is taken for ended");
    drop(table);
    until("the second one is raised, too", || shown(second.id()) == "FIFO 7");
    let third = stage.start_raised();
    until("nothing is missing any more", || {
        let warnings = stage.daemon.status().to_string();
        !warnings.contains("EMFILE") && !warnings.contains("Too many open files")
    });
    stage.daemon.signal(Signal::SIGTERM);
    assert!(stage.daemon.0.wait().unwrap().success());
    for process in [first, second, third] {
        assert_eq!(shown(process.id()), "OTHER (nice 0)");
    }
}

#[test]
fn ended_while_nothing_can_be_opened_it_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut stage = Stage::set("gw-full-table-end");
        let raised = stage.start_raised();
        let table = FullTable::of(stage.daemon.0.id());
        stage.daemon.signal(signal);
        stage.daemon.0.wait().unwrap();
        drop(table);
        let took = until("it has no real time any more", || {
            shown(raised.id()) == "OTHER (nice 0)"
        });
        assert!(took < Duration::from_secs(1), "{took:?}");
        until("nothing is left", || {
            let found = giveway(&["revert", "--dry-run", "--json"]).stdout;
            let found: serde_json::Value = serde_json::from_slice(&found).unwrap_or_default();
            found["found"].as_array().is_some_and(Vec::is_empty) && found["failed"] == serde_json::json!([])
        });
    }
}

#[test]
fn a_watchdog_that_cannot_be_replaced_at_once_is_replaced_later() {
    let mut stage = Stage::set("gw-full-table-watchdog");
    let watchdog = stage.daemon.watchdog();
    let pid = stage.daemon.0.id();
    let table = FullTable::of(pid);
    crate::support::process::signal(watchdog, Signal::SIGKILL);
    let main = sleeps(pid, "giveway");
    until("its death is seen", || {
        assert_eq!(stage.daemon.0.try_wait().unwrap(), None, "the daemon has ended");
        sleeps(pid, "giveway") > main + 20
    });
    drop(table);
    until("there is another", || {
        watchdog_of(pid).is_some_and(|now| now != watchdog)
    });
    let raised = stage.start_raised();
    stage.daemon.signal(Signal::SIGKILL);
    until("it does its work", || shown(raised.id()) == "OTHER (nice 0)");
}
