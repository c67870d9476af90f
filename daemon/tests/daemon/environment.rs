// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What giveway inherits from whoever starts it: standard files that are closed, full or without a reader, the mask of new
//! files' modes, signals that are blocked or ignored, files that somebody else could open. None of it changes what giveway
//! does, and the command of `exec` has all of it as it was.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use clap::CommandFactory as _;
use giveway::cli::Cli;
use giveway::kernel::own_netns;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::stat::{Mode, umask};

use super::limits::as_user;
use crate::support::lab::Lab;
use crate::support::process::{Daemon, KillOnDrop, failure, giveway, program};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::wait::until;

/// What becomes of what a command prints.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reader {
    Reads,
    Closed,
    Full,
    Gone,
}

impl Reader {
    /// Gives a command this standard file.
    fn put(self, command: &mut Command, number: i32) {
        let to = match self {
            Self::Reads => Stdio::null(),
            Self::Full => File::options().write(true).open("/dev/full").unwrap().into(),
            Self::Gone => std::io::pipe().unwrap().1.into(),
            Self::Closed => {
                // SAFETY: what runs between fork and exec is one system call.
                unsafe {
                    command.pre_exec(move || {
                        libc::close(number);
                        Ok(())
                    })
                };
                return;
            }
        };
        match number {
            1 => command.stdout(to),
            _ => command.stderr(to),
        };
    }
}

/// The exit code of a command with such outputs; a signal or a panic fails the test.
fn code(arguments: &[&str], out: Reader, err: Reader) -> i32 {
    let mut command = Command::new(program());
    command.args(arguments).stdin(Stdio::null());
    out.put(&mut command, 1);
    err.put(&mut command, 2);
    let status = command.status().unwrap();
    let code = status
        .code()
        .unwrap_or_else(|| panic!("{arguments:?}, {out:?}, {err:?}: signal {:?}", status.signal()));
    assert_ne!(code, 101, "{arguments:?}, {out:?}, {err:?}: it panicked");
    code
}

#[test]
fn no_command_loses_its_exit_code_to_an_output_that_is_closed_full_or_unread() {
    let _lab = Lab::enter();
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    let record = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/compatibility/record-1.jsonl");
    let (svg, key, toml) = (
        Scratch::new("picture.svg", ""),
        Scratch::new("a.key", ""),
        Scratch::new("giveway.toml", ""),
    );
    const TRIES: [&str; 9] = [
        "try",
        "--peer",
        "127.0.0.1:1",
        "--pairs",
        "20",
        "--interval",
        "200ms",
        "--settle",
        "100ms",
    ];
    // How each is called, its exit code, and whether its output is what it is for.
    let calls: &[(&[&str], i32, bool)] = &[
        (&["run", "--interface", "gwv"], 1, false),
        (&["status"], 0, true),
        (&["status", "--json"], 0, true),
        (&["top", "--once"], 0, true),
        (&["why"], 0, true),
        (&["web", "--listen", "127.0.0.9:1", "--host", "localhost"], 2, false),
        (&["doctor"], 0, true),
        (&["record", "/nowhere/record"], 1, false),
        (&TRIES, 1, false),
        (&["try", "--serve", "192.0.2.99:1"], 1, false),
        (&["jitter", "--wakeups", "5", "--no-causes"], 0, true),
        (&["jitter", "--wakeups", "5", "--no-causes", "--json"], 0, true),
        (&["plot", record, "-o", svg.path()], 0, true),
        (&["focus", "show"], 0, true),
        (&["class", "list"], 0, true),
        (&["class", "set", "192.0.2.7:873", "background"], 0, true),
        (&["limit", "list"], 0, true),
        (&["link", "show"], 0, true),
        (&["pause", "--for", "1s"], 0, true),
        (&["resume"], 0, true),
        (&["limit", "set", "192.0.2.7:873", "--up", "2.5"], 2, false),
        (&["exec", "--", "sh", "-c", "exit 7"], 7, false),
        (&["priority", "list"], 0, true),
        (&["priority", "remove", "none"], 1, false),
        (&["reload"], 0, true),
        (&["completions", "bash"], 0, true),
        (&["config", "default"], 0, true),
        (&["config", "show"], 0, true),
        (&["config", "check", toml.path()], 0, true),
        (&["watchdog"], 1, false),
        (&["revert", "--dry-run"], 0, true),
        (&["--help"], 0, true),
        (&["--version"], 0, true),
        (&["yield"], 2, false),
    ];
    let is_called = |name: &str| calls.iter().any(|(words, ..)| words[0] == name);
    for command in Cli::command().get_subcommands() {
        // Those are tested apart: a load ends with its input, a look-up has sockets for standard files, a key is made once.
        let name = command.get_name();
        assert!(
            is_called(name) || ["jitter-load", "look-up", "key", "help"].contains(&name),
            "{name}"
        );
    }
    // A second time: while four ask at a time, the daemon may take longer than a client waits.
    let has_code = |arguments: &[&str], out, err, expected| {
        let first = code(arguments, out, err);
        let is_right = first == expected || code(arguments, out, err) == expected;
        assert!(is_right, "{arguments:?}, {out:?}, {err:?}: {first}, not {expected}");
    };
    let keeps_its_code = |(arguments, expected, is_output): &(&[&str], i32, bool)| {
        for err in [Reader::Closed, Reader::Full] {
            has_code(arguments, Reader::Reads, err, *expected);
        }
        for out in [Reader::Closed, Reader::Full, Reader::Gone] {
            let is_lost = *is_output && out != Reader::Gone;
            has_code(arguments, out, Reader::Full, if is_lost { 1 } else { *expected });
        }
    };
    thread::scope(|scope| {
        for some in calls.chunks(calls.len().div_ceil(4)) {
            scope.spawn(move || some.iter().for_each(keeps_its_code));
        }
    });
    for out in [Reader::Closed, Reader::Full, Reader::Gone] {
        fs::remove_file(&key.0).unwrap();
        code(&["key", "new", key.path()], out, Reader::Closed);
        assert!(fs::read_to_string(&key.0).unwrap().starts_with("giveway-key-1:"));
        code(&["jitter-load", "cpu", "--seconds", "1"], out, Reader::Full);
    }
    let told = Command::new(program())
        .arg("status")
        .stdout(File::options().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    let (line, _) = failure(&told);
    assert!(
        line.contains("cannot write to standard output: No space left"),
        "{line}"
    );
}

#[test]
fn exec_runs_its_command_whatever_its_own_outputs_are() {
    let _lab = Lab::enter();
    let outputs = [Reader::Closed, Reader::Full, Reader::Gone];
    for (out, err) in outputs.iter().flat_map(|out| outputs.map(|err| (*out, err))) {
        for asked in [&["exec", "--"][..], &["exec", "--class", "background", "--"]] {
            let ran = Scratch::new("ran", "");
            let script = format!("touch {0}.done; exit 7", ran.path());
            let arguments = [asked, &["sh", "-c", &script]].concat();
            assert_eq!(code(&arguments, out, err), 7, "{asked:?}, {out:?}, {err:?}");
            assert!(
                fs::exists(format!("{}.done", ran.path())).unwrap(),
                "{out:?}, {err:?}: the command did not run"
            );
        }
    }
}

/// Gives a command what a careless caller gives: modes for all, a blocked SIGTERM, ignored signals, no standard input.
fn carelessly(command: &mut Command) -> &mut Command {
    let careless = || {
        umask(Mode::empty());
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTERM);
        blocked.add(Signal::SIGUSR2);
        blocked.thread_block()?;
        for ignored in [Signal::SIGUSR1, Signal::SIGPIPE, Signal::SIGXFSZ, Signal::SIGCHLD] {
            // SAFETY: ignoring a signal installs no handler.
            unsafe { signal(ignored, SigHandler::SigIgn) }?;
        }
        // SAFETY: takes no pointers.
        unsafe { libc::close(0) };
        Ok(())
    };
    // SAFETY: what runs between fork and exec is system calls.
    unsafe { command.pre_exec(careless) }
}

#[test]
fn the_command_of_exec_has_the_callers_umask_signals_and_closed_descriptors() {
    let _lab = Lab::enter();
    // Each tells of itself: a shell blocks signals of its own while it waits for what it has started.
    let signals = ["grep", "-E", "^(Umask|SigBlk|SigIgn):", "/proc/self/status"];
    let input = ["sh", "-c", "test -e /proc/$$/fd/0 || echo closed"];
    let shown = |words: &[&str]| {
        let ran = carelessly(Command::new(words[0]).args(&words[1..])).output().unwrap();
        String::from_utf8(ran.stdout).unwrap()
    };
    let shown = |before: &[&str]| {
        [&signals[..], &input]
            .map(|words| shown(&[before, words].concat()))
            .concat()
    };
    let without = shown(&[]);
    let with = shown(&[program().as_str(), "exec", "--"]);
    assert!(
        without.contains("Umask:\t0000") && without.ends_with("closed\n"),
        "{without}"
    );
    assert_eq!(with, without);
}

/// The state folder of the calling thread's namespace.
fn state() -> PathBuf {
    format!("/run/giveway/netns-{}", own_netns().unwrap()).into()
}

fn mode(name: &str) -> u32 {
    fs::metadata(state().join(name)).unwrap().mode() & 0o7777
}

/// A daemon in the calling thread's namespace whose caller is careless.
fn careless_daemon(arguments: &[&str]) -> Daemon {
    let mut command = Command::new(program());
    command.arg("run").args(arguments).stderr(Stdio::null());
    let daemon = Daemon(KillOnDrop::spawn(carelessly(&mut command)));
    until("the daemon answers", || giveway(&["status", "--json"]).status.success());
    daemon
}

#[test]
fn what_the_daemon_makes_under_umask_0_is_for_root_alone() {
    let _lab = Lab::enter();
    let config = Scratch::new("rate.toml", "[link]\nrate_mbit = 20\n[queue]\nbackend = \"htb\"\n");
    let mut daemon = careless_daemon(&["--interface", "gwv", "--config", config.path()]);
    until("a queue is journalled", || state().join("queue").exists());
    let others = |name: &str| mode(name) & 0o077;
    assert_eq!((mode("."), others("lock"), others("cookie")), (0o711, 0, 0));
    assert_eq!((others("queue"), others("control-root")), (0, 0));
    daemon.signal(Signal::SIGTERM);
    until("a SIGTERM that the caller had blocked ends it", || {
        daemon.0.try_wait().unwrap().is_some()
    });
}

#[test]
fn nobody_else_can_open_a_new_lock_at_any_moment() {
    let _lab = Lab::enter();
    let (lock, is_over, opened) = (state().join("lock"), AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            as_user(NOBODY, || {
                while !is_over.load(Ordering::Relaxed) {
                    if File::open(&lock).is_ok() {
                        opened.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        });
        for _ in 0..60 {
            let _ = fs::remove_file(&lock);
            assert!(giveway(&["revert"]).status.success());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(opened.into_inner(), 0, "times that nobody had the new lock open");
}

#[test]
fn a_lock_that_somebody_else_holds_keeps_nobody_from_running_or_reverting() {
    let _lab = Lab::enter();
    assert!(giveway(&["revert"]).status.success());
    let lock = state().join("lock");
    let take = || {
        // As an earlier version made it, for a moment.
        let _ = fs::remove_file(&lock);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&lock)
            .unwrap();
        as_user(NOBODY, || {
            Flock::lock(File::open(&lock).unwrap(), FlockArg::LockExclusive).unwrap()
        })
    };
    let _held = take();
    let reverted = giveway(&["revert"]);
    assert!(reverted.status.success(), "{reverted:?}");
    let _also_held = take();
    let daemon = Daemon::start(&["--interface", "gwv"]);
    assert_eq!(
        (daemon.status()["pid"].as_u64(), mode("lock")),
        (Some(daemon.0.id().into()), 0o600)
    );
}

#[test]
fn a_live_daemons_lock_is_taken_from_it_by_no_mode() {
    let _lab = Lab::enter();
    let daemon = Daemon::start(&["--interface", "gwv"]);
    fs::set_permissions(state().join("lock"), fs::Permissions::from_mode(0o644)).unwrap();
    let (line, code) = failure(&giveway(&["run", "--interface", "gwv"]));
    assert!(code == 1 && line.contains("already runs"), "{line}");
    assert_eq!(daemon.status()["pid"], daemon.0.id());
}

#[test]
fn limits_of_the_caller_end_no_daemon_that_has_something_to_write_down() {
    let _lab = Lab::enter();
    let mut command = Command::new(program());
    command.args(["run", "--interface", "gwv"]).stderr(Stdio::null());
    let limited = || {
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: the limit is on this function's stack.
        match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const none) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: what runs between fork and exec is one system call.
    let mut daemon = Daemon(KillOnDrop::spawn(unsafe { command.pre_exec(limited) }));
    until("it answers or has ended", || {
        daemon.0.try_wait().unwrap().is_some() || giveway(&["status"]).status.success()
    });
    assert_eq!(daemon.0.try_wait().unwrap(), None);
    let lock = fs::read_to_string(state().join("lock")).unwrap();
    assert!(
        lock.starts_with(&daemon.0.id().to_string()),
        "the lock names nobody: {lock:?}"
    );
}

#[test]
fn what_others_own_or_can_replace_configures_nothing() {
    let _lab = Lab::enter();
    let file = Scratch::new("giveway.toml", "");
    let folder = file.0.parent().unwrap().to_owned();
    let refused = |arguments: &[&str], reason: &str| {
        let (line, code) = failure(&giveway(arguments));
        assert!(
            code == 2 && line.contains(reason) && line.contains(file.path()),
            "{line}"
        );
    };
    let run: &[&str] = &["run", "--interface", "gwv", "--config", file.path()];
    std::os::unix::fs::chown(&file.0, Some(NOBODY), None).unwrap();
    refused(run, "belongs to uid 65534");
    let check = giveway(&["config", "check", file.path()]);
    let said = String::from_utf8(check.stdout).unwrap();
    assert!(
        check.status.success() && said.contains("belongs to uid 65534"),
        "{said}"
    );
    std::os::unix::fs::chown(&file.0, Some(0), None).unwrap();
    fs::set_permissions(&file.0, fs::Permissions::from_mode(0o646)).unwrap();
    refused(run, "may be written by others (mode 0646)");
    fs::set_permissions(&file.0, fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    refused(run, "who could replace the file");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let key = Scratch::new("a.key", &format!("giveway-key-1:{}\n", "5a".repeat(32)));
    fs::set_permissions(&key.0, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&key.0, Some(NOBODY), None).unwrap();
    fs::write(&file.0, format!("[group]\nkey_file = \"{}\"\n", key.path())).unwrap();
    let (line, code) = failure(&giveway(run));
    assert!(code == 2 && line.contains("a.key: it belongs to uid 65534"), "{line}");
    std::os::unix::fs::chown(&key.0, Some(0), None).unwrap();
    let daemon = Daemon::start(&run[1..]);
    assert_eq!(daemon.status()["pid"], daemon.0.id());
}

/// Output is left as it is where it has a reader: nothing is lost of a long answer that a slow pipe takes.
#[test]
fn an_answer_is_whole_though_the_caller_left_its_pipe_without_waiting() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    // Full but for a page.
    // SAFETY: takes no pointers.
    unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
    let mut child = Command::new(program())
        .args(["config", "default"])
        .stdout(writer)
        .spawn()
        .unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(text.as_bytes(), giveway(&["config", "default"]).stdout);
}
