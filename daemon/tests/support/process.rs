// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The built program: run once to its end, or as a daemon. Whatever a test starts is killed when the test ends.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use giveway::kernel::now;
use giveway::kernel::process::Handle;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::scratch::NOBODY;
use super::wait::{First, await_some, until};

/// The program; in a guest, which has no build folder, GIVEWAY says where it is.
pub fn program() -> String {
    std::env::var("GIVEWAY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_giveway").to_owned())
}

/// What orders the packets: htb, which every kernel has, unless QUEUE_BACKEND names another.
pub fn backend() -> String {
    std::env::var("QUEUE_BACKEND").unwrap_or_else(|_| "htb".to_owned())
}

/// What the paper's access point takes (Hirai et al., section 2.3).
pub const PAPER: &str = "[cap]\ncapacity_mbit = 20.0\nmargin_bytes = 120000\nrtt_ms = 256\n";

pub fn giveway(arguments: &[&str]) -> Output {
    Command::new(program())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The one clear line of a failure, and the exit code.
pub fn failure(output: &Output) -> (String, i32) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.trim_end().lines().count(), 1, "not one line: {text}");
    (text, output.status.code().unwrap())
}

/// The program where every user can reach it.
pub struct Copy(PathBuf);

impl Copy {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("giveway-test-{}-{name}", std::process::id()));
        // By a process of its own: a file that another test's child still has open for writing cannot be run.
        assert!(Command::new("cp").arg(program()).arg(&path).status().unwrap().success());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.0);
        command.args(arguments).uid(NOBODY).gid(NOBODY);
        command
    }

    pub fn as_nobody(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A child process that is killed when it goes out of scope.
pub struct KillOnDrop(Option<Child>);

impl KillOnDrop {
    pub fn spawn(command: &mut Command) -> Self {
        let name = command.get_program().to_owned();
        Self(Some(
            command.spawn().unwrap_or_else(|e| panic!("{}: {e}", name.display())),
        ))
    }

    /// Waits for its end and collects what it wrote.
    pub fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Deref for KillOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().unwrap()
    }
}

impl DerefMut for KillOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The watchdog of the daemon of this number, as the daemon's lock names it.
pub fn watchdog_of(daemon: u32) -> Option<u32> {
    let places = fs::read_dir("/run/giveway").ok()?.flatten();
    let locks = places.filter_map(|place| fs::read_to_string(place.path().join("lock")).ok());
    let named = |lock: String| {
        let mut pids = lock.lines().map(|line| line.split(' ').next()?.parse::<u32>().ok());
        (pids.next()? == Some(daemon)).then(|| pids.next()?)?
    };
    locks.filter_map(named).next()
}

/// The children of a process's main thread.
pub fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// By which the kernel schedules a process now, inherited or not: 120 is ordinary, 79 is FIFO 20.
pub fn effective_priority(pid: u32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let priority: i32 = after_name.split_ascii_whitespace().nth(15).unwrap().parse().unwrap();
    priority + 100
}

pub fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
}

pub struct Daemon(pub KillOnDrop);

impl Daemon {
    /// Starts a daemon in the calling thread's namespace and waits until it answers.
    pub fn start(arguments: &[&str]) -> Self {
        Self::run(&mut Self::command(arguments))
    }

    /// The same, and it ends with the calling thread: where the test is killed, what is the machine's is restored all
    /// the same.
    pub fn start_with_this_thread(arguments: &[&str]) -> Self {
        let mut command = Self::command(arguments);
        // SAFETY: what runs between fork and exec is one system call.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGTERM)?)) };
        Self::run(&mut command)
    }

    /// Without this capability.
    pub fn start_without(capability: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", &format!("-{capability}"), "--", &program(), "run"]);
        command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
        Self::run(&mut command)
    }

    fn command(arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .arg("run")
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn run(command: &mut Command) -> Self {
        let daemon = Self(KillOnDrop::spawn(command));
        until("the daemon answers", || giveway(&["status", "--json"]).status.success());
        daemon
    }

    /// While it loads its BPF programs on a busy machine, it may take longer than a client waits.
    pub fn status(&self) -> serde_json::Value {
        await_some("the daemon answers", || {
            let answer = giveway(&["status", "--json"]);
            answer
                .status
                .success()
                .then(|| serde_json::from_slice(&answer.stdout).unwrap())
        })
    }

    pub fn signal(&self, wanted: Signal) {
        signal(self.0.id(), wanted);
    }

    /// The process that undoes everything when the daemon has died.
    pub fn watchdog(&self) -> u32 {
        watchdog_of(self.0.id()).expect("the lock names the watchdog")
    }

    /// Kills it, and waits until its watchdog has undone everything and ended; returns how long that took.
    pub fn kill(&self) -> Duration {
        let watchdog = Handle::open(self.watchdog()).unwrap();
        let _first = First::of_all();
        self.signal(Signal::SIGKILL);
        until("the watchdog is done", || !watchdog.is_alive())
    }

    /// It and its watchdog die at once: nobody is left to undo anything.
    pub fn kill_both(&self) {
        let watchdog = self.watchdog();
        signal(watchdog, Signal::SIGSTOP);
        self.signal(Signal::SIGKILL);
        signal(watchdog, Signal::SIGKILL);
    }

    /// What the queue has counted (`path` is a JSON pointer) by the first poll after this call.
    pub fn counted(&self, path: &str) -> u64 {
        let asked_ns = now().as_nanos() as u64;
        await_some("a poll counts", || {
            let queue = &self.status()["queue"];
            let is_new = queue["counted_t_ns"].as_u64()? > asked_ns;
            queue["counters"].pointer(path)?.as_u64().filter(|_| is_new)
        })
    }
}
