// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the class background does to the CPU and the disk: real processes, with threads and children, however the daemon
//! ends.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, setsid};
use tempfile::TempDir;

use crate::support::lab::{FAR_V4, Lab, run};
use crate::support::process::{Daemon, KillOnDrop, children, giveway, program};
use crate::support::wait::{await_some, until};

pub(super) const NICE: (i32, &str) = (19, "idle");
pub(super) const ORDINARY: (i32, &str) = (0, "none");

/// A folder of rules, and a shell of its own, whose file no rule of anybody else's names.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.rules()).unwrap();
        let copied = Command::new("cp").arg("/bin/bash").arg(place.shell()).status();
        assert!(copied.unwrap().success());
        place
    }

    fn rules(&self) -> PathBuf {
        self.0.path().join("rules")
    }

    fn shell(&self) -> PathBuf {
        self.0.path().join("shell")
    }

    fn start(&self) -> Daemon {
        Daemon::start(&["--rules", self.rules().to_str().unwrap(), "--interface", "gwv"])
    }

    fn rule(&self, class: &str) {
        let rule = format!("[[rule]]\nexe = \"{}\"\nclass = \"{class}\"\n", self.shell().display());
        fs::write(self.rules().join("50-test.toml"), rule).unwrap();
    }

    fn no_rule(&self) {
        fs::remove_file(self.rules().join("50-test.toml")).unwrap();
    }

    /// With all that it starts in a group of its own.
    fn script(&self, script: &str) -> Group {
        Group::spawn(Command::new(self.shell()).args(["-c", script]))
    }
}

/// Killed with all that it has started. A session of its own: where the kernel schedules by session, a nice process waits for
/// the others of its session, not for all that runs here.
pub(super) struct Group(KillOnDrop);

impl Group {
    pub fn spawn(command: &mut Command) -> Self {
        let quiet = command.stdin(Stdio::null()).stderr(Stdio::null());
        // SAFETY: what runs between fork and exec is one system call.
        unsafe { quiet.pre_exec(|| Ok(setsid().map(drop)?)) };
        Self(KillOnDrop::spawn(quiet))
    }

    fn chosen(words: &[&str]) -> Self {
        let choice = ["exec", "--class", "background", "--"];
        Self::spawn(Command::new(program()).args(choice).args(words).stdout(Stdio::piped()))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whatever of it lives.
    fn threads(&self) -> Vec<u32> {
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
        let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(number);
        let is_own = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after_name = stat
                .rsplit_once(')')
                .map(|(_, after)| after.to_owned())
                .unwrap_or_default();
            after_name.split_ascii_whitespace().nth(2) == Some(&self.id().to_string())
        };
        let threads = |pid: u32| {
            let tasks = fs::read_dir(format!("/proc/{pid}/task"))
                .into_iter()
                .flatten()
                .flatten();
            tasks.filter_map(number).collect::<Vec<_>>()
        };
        processes.filter(is_own).flat_map(threads).collect()
    }

    fn are_all(&self, wanted: (i32, &str)) -> bool {
        self.threads().iter().all(|tid| is(*tid, wanted))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.id().cast_signed()), Signal::SIGKILL);
    }
}

/// Nice value and I/O class of a thread; None once it has ended.
pub(super) fn niceness(tid: u32) -> Option<(i32, String)> {
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    let nice = stat
        .rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(16)?
        .parse()
        .ok()?;
    let class = Command::new("ionice").args(["-p", &tid.to_string()]).output().ok()?;
    let class = String::from_utf8(class.stdout).ok()?;
    Some((nice, class.split(':').next()?.trim().to_owned()))
}

/// Or it has ended.
pub(super) fn is(tid: u32, (nice, class): (i32, &str)) -> bool {
    niceness(tid).is_none_or(|found| found == (nice, class.to_owned()) || found.1.is_empty())
}

pub(super) fn reason(pid: u32) -> String {
    String::from_utf8(giveway(&["why", &pid.to_string()]).stdout).unwrap()
}

#[test]
fn a_process_by_rule_is_nice_with_what_it_starts_until_the_rule_is_gone() {
    let (_lab, place) = (Lab::enter(), Place::new());
    place.rule("background");
    let daemon = place.start();
    let shell = place.script("while :; do sleep 0.2; done");
    until("it is nice", || is(shell.id(), NICE));
    // No rule names what it starts.
    let nice = |pid: &u32| niceness(*pid) == Some((19, "idle".to_owned()));
    await_some("what it starts is nice", || children(shell.id()).into_iter().find(nice));
    let told = reason(shell.id());
    assert!(
        told.contains("nice 0, I/O class none -> nice 19, idle I/O class"),
        "{told}"
    );
    assert!(told.contains("50-test.toml:1"), "{told}");
    until("status counts it", || {
        daemon.status()["reniced_processes"].as_u64() > Some(0)
    });

    place.no_rule();
    assert!(giveway(&["reload"]).status.success());
    until("it is back, with what it has started", || shell.are_all(ORDINARY));
    until("that is explained", || {
        reason(shell.id()).contains("nice 19, idle I/O class -> nice 0")
    });
}

#[test]
fn what_a_process_has_started_is_restored_when_another_rule_says_otherwise() {
    let (_lab, place) = (Lab::enter(), Place::new());
    place.rule("background");
    let _daemon = place.start();
    let shell = place.script("until [ $(nice) = 19 ]; do sleep 0.1; done; sleep 1000 & wait");
    until("it is nice", || is(shell.id(), NICE));
    let lasting = || {
        let lasting = children(shell.id());
        lasting.into_iter().find(|pid| {
            let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.contains("1000")
        })
    };
    let child = await_some("it starts what lasts", lasting);
    assert!(is(child, NICE));
    place.rule("standard");
    assert!(giveway(&["reload"]).status.success());
    until("both are back", || is(shell.id(), ORDINARY) && is(child, ORDINARY));
}

const THREADS: &str = "
import threading, time
def sleep(): time.sleep(1000)
for n in range(3): threading.Thread(target=sleep, daemon=True).start()
while True:
    time.sleep(0.2)
    if threading.active_count() < 40: threading.Thread(target=sleep, daemon=True).start()
";

#[test]
fn all_threads_of_a_process_are_nice_later_ones_too_and_a_dead_daemon_leaves_none() {
    let (_lab, place) = (Lab::enter(), Place::new());
    let daemon = place.start();
    let rule = "[[rule]]\ncmdline = \"*gwnice-threads*\"\nclass = \"background\"\n";
    fs::write(place.rules().join("50-test.toml"), rule).unwrap();
    let python = Group::spawn(Command::new("python3").args(["-c", THREADS, "gwnice-threads"]));
    until("it has threads", || python.threads().len() > 4);
    assert!(giveway(&["reload"]).status.success());
    until("all are nice", || python.are_all(NICE));
    let before = python.threads().len();
    until("more have come", || python.threads().len() > before + 3);
    assert!(python.are_all(NICE));
    let took = daemon.kill();
    assert!(python.are_all(ORDINARY));
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_command_by_choice_is_nice_from_its_start_and_revert_puts_it_back_when_both_have_died() {
    let (_lab, place) = (Lab::enter(), Place::new());
    let daemon = place.start();
    let mut command = Group::chosen(&["sh", "-c", "nice; exec sleep 1000"]);
    let mut first = [0; 3];
    command.0.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"19\n");
    assert!(is(command.id(), NICE));
    daemon.kill_both();
    assert!(is(command.id(), NICE));
    let reverted = giveway(&["revert"]);
    assert!(reverted.status.success());
    assert!(is(command.id(), ORDINARY));
}

#[test]
fn what_somebody_else_has_set_is_what_a_process_is_said_to_have_when_its_rule_is_gone() {
    let (_lab, place) = (Lab::enter(), Place::new());
    place.rule("background");
    let _daemon = place.start();
    let shell = place.script("sleep 1000; :");
    until("it is nice", || is(shell.id(), NICE));
    run(&format!("renice -n 3 -p {}", shell.id()));
    until("it is noticed", || reason(shell.id()).contains("and not overridden"));
    place.no_rule();
    assert!(giveway(&["reload"]).status.success());
    until("the I/O class is back", || is(shell.id(), (3, "none")));
    until("that is explained", || {
        reason(shell.id()).contains("-> nice 3, I/O class none")
    });
}

#[test]
fn what_somebody_else_sets_later_is_left_alone() {
    let (_lab, place) = (Lab::enter(), Place::new());
    let daemon = place.start();
    let command = Group::chosen(&["sleep", "1000"]);
    until("it is nice", || is(command.id(), NICE));
    run(&format!("renice -n 7 -p {}", command.id()));
    until("it is noticed", || reason(command.id()).contains("and not overridden"));
    daemon.kill();
    assert_eq!(
        niceness(command.id()),
        Some((7, "none".to_owned())),
        "the I/O class was still giveway's"
    );
}

#[test]
fn who_is_nice_already_or_has_real_time_is_left_as_it_is() {
    let (_lab, place) = (Lab::enter(), Place::new());
    place.rule("background");
    let daemon = place.start();
    let nice = place.script("renice -n 19 -p $$; ionice -c 3 -p $$; while :; do sleep 0.2; done");
    let fifo = place.script("chrt -f -p 1 $$; while :; do sleep 0.2; done");
    for (shell, said) in [(&nice, "at nice 19"), (&fifo, "real-time priority")] {
        until("it is left", || {
            reason(shell.id()).contains(&format!(
                "not changed: it {}",
                match said {
                    "at nice 19" => "is at nice 19",
                    _ => "has real-time priority",
                }
            ))
        });
    }
    daemon.kill();
    assert!(is(nice.id(), NICE) && is(fifo.id(), ORDINARY));
}

#[test]
fn a_storm_of_forks_leaves_nobody_nice() {
    let (_lab, place) = (Lab::enter(), Place::new());
    let daemon = place.start();
    let storm = "for i in 1 2 3; do (while :; do sleep 1000 & (sleep 0.001) ; done) & done; wait";
    let storm = Group::chosen(&["bash", "-c", storm]);
    until("it rages", || storm.threads().len() > 100);
    let took = daemon.kill();
    let left: Vec<u32> = storm
        .threads()
        .into_iter()
        .filter(|tid| niceness(*tid).is_some_and(|n| n.0 == 19))
        .collect();
    assert!(
        left.is_empty(),
        "{} of {} are still nice",
        left.len(),
        storm.threads().len()
    );
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// Each of them loses its parent at once, which alone could say otherwise what it had.
#[test]
fn a_storm_of_orphans_leaves_nobody_nice() {
    let (_lab, place) = (Lab::enter(), Place::new());
    let daemon = place.start();
    let storm = "for i in 1 2 3 4; do (for j in {1..250}; do (sleep 1000 &); done; sleep 1000) & done; wait";
    let storm = Group::chosen(&["bash", "-c", storm]);
    // At nice 19, on a machine that is busy.
    until("half of it is over", || storm.threads().len() >= 500);
    until("it is over", || storm.threads().len() >= 1000);
    daemon.kill();
    let left = storm.threads().into_iter().filter(|tid| !is(*tid, ORDINARY)).count();
    assert_eq!(left, 0, "are still nice");
}

/// As rtkit gives threads a negative nice value.
#[test]
fn what_a_process_starts_gets_no_negative_nice_value_that_it_would_not_have_had() {
    let (_lab, place) = (Lab::enter(), Place::new());
    let daemon = place.start();
    let choice = ["exec", "--class", "background", "--"];
    let mut command = Command::new(program());
    command.args(choice).args(["bash", "-c", "sleep 1000 & wait"]);
    let raise = || {
        let none = libc::sched_param { sched_priority: 0 };
        // SAFETY: `none` lives through the call, which only reads it.
        Errno::result(unsafe {
            libc::sched_setscheduler(0, libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, &raw const none)
        })?;
        // SAFETY: takes no pointers.
        Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -11) })?;
        Ok(())
    };
    // SAFETY: system calls alone.
    unsafe { command.pre_exec(raise) };
    let group = Group::spawn(&mut command);
    let child = await_some("it starts another", || {
        children(group.id()).into_iter().find(|pid| is(*pid, NICE))
    });
    daemon.kill();
    assert_eq!(niceness(group.id()), Some((-11, "none".to_owned())));
    assert_eq!(niceness(child), Some((0, "none".to_owned())));
}

#[test]
fn an_io_class_that_others_share_is_left_alone() {
    const BEST_EFFORT: &str = "best-effort";
    let (_lab, place) = (Lab::enter(), Place::new());
    let daemon = place.start();
    let choice = ["exec", "--class", "background", "--"];
    let mut command = Command::new(program());
    command.args(choice).args(["sleep", "1000"]);
    let share = || {
        // SAFETY: takes no pointers.
        Errno::result(unsafe { libc::syscall(libc::SYS_ioprio_set, 1, 0, 2 << 13 | 4) })?;
        let flags = i64::from(libc::CLONE_IO) & 0xffff_ffff | i64::from(libc::SIGCHLD);
        // SAFETY: like fork(): on a copy of this stack, and the child does nothing but wait for its end.
        if Errno::result(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })? == 0 {
            // Who starts the command waits for the end of a pipe that this one would hold, too.
            // SAFETY: takes no pointers; nothing in this process uses a file again.
            unsafe { libc::close_range(0, libc::c_uint::MAX, 0) };
            loop {
                // SAFETY: takes no pointers.
                unsafe { libc::pause() };
            }
        }
        Ok(())
    };
    // SAFETY: system calls alone.
    unsafe { command.pre_exec(share) };
    let group = Group::spawn(&mut command);
    until("it is nice", || niceness(group.id()).is_some_and(|has| has.0 == 19));
    let child = await_some("it has the other", || children(group.id()).into_iter().next());
    assert!(is(group.id(), (19, BEST_EFFORT)) && is(child, (0, BEST_EFFORT)));
    daemon.kill();
    assert!(is(group.id(), (0, BEST_EFFORT)) && is(child, (0, BEST_EFFORT)));
}

const ZOMBIES: &str = "
import os, time
for n in range(300):
    if not os.fork(): os._exit(0)
print('done', flush=True)
time.sleep(1000)
";

#[test]
fn nothing_is_restored_of_what_has_ended() {
    let (_lab, place) = (Lab::enter(), Place::new());
    let daemon = place.start();
    let mut command = Group::chosen(&["python3", "-c", ZOMBIES]);
    // Open to the end: where Python does not buffer, it writes the end of the line later.
    let mut said = command.0.stdout.take().unwrap();
    said.read_exact(&mut [0; 4]).unwrap();
    until("it is nice", || is(command.id(), NICE));
    daemon.kill_both();
    let reverted = giveway(&["revert"]);
    let told = String::from_utf8(reverted.stdout).unwrap();
    assert!(
        told.contains("1 background process back"),
        "those that nobody has waited for cost the undo nothing: {told}"
    );
    assert!(is(command.id(), ORDINARY));
}

#[test]
fn what_giveway_has_set_is_no_evidence() {
    let (lab, place) = (Lab::enter(), Place::new());
    place.rule("background\"\nchildren = false\nreason = \"a test");
    let daemon = place.start();
    let (own, port) = (lab.reader(), lab.reader());
    // It sends itself, as its rule says, and so does what it starts, of which the rule says nothing.
    let talk = |port| format!("exec 3<>/dev/tcp/{FAR_V4}/{port}; while echo x >&3; do sleep 0.1 3>&-; done");
    let go = place.0.path().join("go");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
    let script = format!("{wait}; bash -c '{}' & {}", talk(port), talk(own));
    let shell = place.script(&script);
    until("it is nice", || is(shell.id(), NICE));
    fs::write(go, "").unwrap();
    let class_of = |port: u16| {
        let status = daemon.status();
        let flows = status["flows"].as_array().unwrap().clone();
        let remote = format!("{FAR_V4}:{port}");
        let flow = flows.into_iter().find(|flow| flow["remote"] == remote)?;
        flow["class"].as_str().map(str::to_owned)
    };
    until("what the rule names is background", || {
        class_of(own).as_deref() == Some("background")
    });
    let child = await_some("it has started another", || {
        children(shell.id()).into_iter().find(|pid| {
            is(*pid, NICE) && {
                let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                words.contains(&port.to_string())
            }
        })
    });
    until("its flow is seen", || class_of(port).is_some());
    until("what the kernel has handed on is restored", || {
        assert_eq!(class_of(port).as_deref(), Some("standard"));
        is(child, ORDINARY)
    });
    // The user's own word counts.
    run(&format!("renice -n 19 -p {child}"));
    until("it is background by its own word", || {
        class_of(port).as_deref() == Some("background")
    });
}
