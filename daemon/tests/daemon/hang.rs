// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hang is a death: a daemon that is stopped or stuck is ended and undone, by its watchdog or by `giveway revert`; a watchdog
//! that is stopped or dead is replaced; who asks is told in time. Not even a thread that SIGKILL cannot end keeps anything
//! active, or the next daemon from starting.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use giveway::actuate::thread::attributes::Attributes;
use giveway::journal::register::JournalFile;
use giveway::kernel::flow_monitor::FlowMonitor;
use giveway::kernel::process::Handle;
use giveway::place::Place;
use libbpf_rs::query::{LinkInfo, LinkInfoIter, LinkTypeInfo};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::freezer::Frozen;
use crate::support::held::Held;
use crate::support::lab::{FAR_V4, Lab, run};
use crate::support::process::{
    Copy, Daemon, KillOnDrop, PAPER, children, failure, giveway, program, signal, watchdog_of,
};
use crate::support::scratch::Scratch;
use crate::support::turn::Turn;
use crate::support::wait::{await_some, until};

/// What is promised of a hang, and of a watchdog that is stopped.
const HANG: Duration = Duration::from_secs(6);
/// What is promised of a death.
const DEATH: Duration = Duration::from_secs(1);
/// Clients give up after 2 s; on a busy machine it takes a moment more to start them.
const ANSWER: Duration = Duration::from_secs(5);

/// A daemon with a cap, a queue and a raised process active, and a thread for each of what it does.
struct Installed {
    daemon: Daemon,
    raised: KillOnDrop,
    monitor: FlowMonitor,
    _files: [Scratch; 2],
    _ends: (TcpStream, TcpStream),
    _lab: Lab,
}

impl Installed {
    fn start(name: &str) -> Self {
        let lab = Lab::enter();
        let shell = Scratch::copy_of("/bin/bash", name);
        let config = Scratch::new(
            "hang.toml",
            &format!(
                "{PAPER}[link]\nrate_mbit = 20\n[queue]\nbackend = \"htb\"\n\
                 [[chain]]\nlocal_port = 5005\nbudget_ms = 100\n[[priority]]\nexe = \"{}\"\npriority = 20\n",
                shell.path()
            ),
        );
        let listener = lab.far_listener(FAR_V4);
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65_536]).is_ok() {}
        let raised = KillOnDrop::spawn(Command::new(shell.path()).args(["-c", "read x"]).stdin(Stdio::piped()));
        let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
        let monitor = lab.monitor();
        let mut this = Self {
            daemon,
            raised,
            monitor,
            _files: [shell, config],
            _ends: (near, far),
            _lab: lab,
        };
        until("everything is active", || this.installed().len() == 3);
        this
    }

    fn installed(&mut self) -> Vec<&'static str> {
        let is_capped = self.monitor.scan().unwrap().iter().any(|flow| flow.clamp.is_some());
        let is_queueing = run("tc qdisc show dev gwv").contains("6777:");
        let is_raised = Attributes::of(self.raised.id()).unwrap().shown() == "FIFO 20";
        let all = [(is_capped, "cap"), (is_queueing, "queue"), (is_raised, "priority")];
        all.into_iter().filter(|(is, _)| *is).map(|(_, what)| what).collect()
    }

    #[track_caller]
    fn is_undone_within(&mut self, limit: Duration) {
        let start = Instant::now();
        until("nothing is left active", || self.installed().is_empty());
        assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    }

    #[track_caller]
    fn is_killed(&mut self) {
        let status = await_some("the daemon is dead", || self.daemon.0.try_wait().unwrap());
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    }

    /// BPF links that the daemon holds and that can be detached by number.
    fn links(&self) -> Vec<u32> {
        let held = fs::read_dir(format!("/proc/{}/fdinfo", self.daemon.0.id()))
            .unwrap()
            .flatten();
        let link = |text: String| {
            text.lines()
                .find_map(|line| line.strip_prefix("link_id:")?.trim().parse().ok())
        };
        let held: Vec<u32> = held
            .filter_map(|fd| fs::read_to_string(fd.path()).ok().and_then(link))
            .collect();
        LinkInfoIter::default()
            .filter(|link| held.contains(&link.id) && is_attached(link))
            .map(|link| link.id)
            .collect()
    }
}

/// How long a process may compute with real-time priority.
fn bound_of_real_time(pid: u32) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let bound = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max realtime timeout"));
    bound.unwrap().trim().to_owned()
}

/// False where it is not, or is of a kind that nobody but its holder can detach.
fn is_attached(link: &LinkInfo) -> bool {
    match &link.info {
        LinkTypeInfo::Cgroup(cgroup) => cgroup.cgroup_id != 0,
        LinkTypeInfo::Tcx(tcx) => tcx.ifindex != 0,
        LinkTypeInfo::StructOps(map) => map.map_id != 0,
        _ => false,
    }
}

/// Runs the program, but not for ever.
fn bounded(arguments: &[&str]) -> (Output, Duration) {
    let start = Instant::now();
    let output = Command::new("timeout")
        .args(["--kill-after=1", "30", &program()])
        .args(arguments)
        .output();
    (output.unwrap(), start.elapsed())
}

#[test]
fn a_stopped_daemon_is_killed_and_everything_is_undone() {
    let mut all = Installed::start("stopped");
    all.daemon.signal(Signal::SIGSTOP);
    all.is_undone_within(HANG);
    all.is_killed();
}

#[test]
fn a_stuck_thread_ends_the_daemon_and_keeps_neither_anything_installed_nor_the_next_one_away() {
    // None: all of them.
    for stuck in [Some("giveway-rt"), Some("giveway-chain"), None] {
        let mut all = Installed::start("stuck");
        let links = all.links();
        assert!(links.len() >= 4, "cap, admission, arrival and avoidance: {links:?}");
        let frozen = Frozen::new(all.daemon.0.id(), stuck);
        all.is_undone_within(HANG);
        assert!(
            all.daemon.0.try_wait().unwrap().is_none(),
            "a thread of it waits for good"
        );
        until("all links are detached that can be", || {
            LinkInfoIter::default().all(|link| !links.contains(&link.id) || !is_attached(&link))
        });
        another_starts();
        drop(frozen);
        all.is_killed();
    }
}

/// Whatever the last one has left behind.
#[track_caller]
fn another_starts() {
    let next = Daemon::start(&["--interface", "gwv"]);
    assert_eq!(next.status()["pid"], next.0.id());
}

#[test]
fn a_stuck_thread_does_not_hide_the_daemons_death() {
    let mut all = Installed::start("hidden");
    let frozen = Frozen::new(all.daemon.0.id(), Some("giveway-chain"));
    all.daemon.signal(Signal::SIGKILL);
    all.is_undone_within(DEATH);
    drop(frozen);
    all.is_killed();
}

#[test]
fn a_watchdog_that_is_stopped_or_killed_is_replaced_and_the_new_one_undoes() {
    for end in [Signal::SIGSTOP, Signal::SIGKILL] {
        let mut all = Installed::start("replaced");
        let (daemon, first) = (all.daemon.0.id(), all.daemon.watchdog());
        let bounds = bound_of_real_time(first);
        signal(first, end);
        let took = until("another watchdog", || {
            !children(daemon).contains(&first) && watchdog_of(daemon).is_some_and(|watchdog| watchdog != first)
        });
        assert!(took < HANG, "{took:?}");
        until("it may compute as the first one may", || {
            bound_of_real_time(all.daemon.watchdog()) == bounds
        });
        all.daemon.signal(Signal::SIGKILL);
        all.is_undone_within(ANSWER);
    }
}

#[test]
fn who_asks_a_daemon_that_hangs_is_told_so_and_exec_runs_its_command() {
    let mut all = Installed::start("asked");
    // Otherwise it would end the daemon.
    signal(all.daemon.watchdog(), Signal::SIGSTOP);
    all.daemon.signal(Signal::SIGSTOP);
    let questions = [
        "status",
        "why",
        "class list",
        "priority list",
        "record -",
        "exec --priority 10 --require -- true",
        "exec --priority 10 -- sh -c true",
    ];
    let asking = questions.map(|question| thread::spawn(move || bounded(&question.split(' ').collect::<Vec<_>>())));
    for (question, asked) in questions.iter().zip(asking) {
        let (output, took) = asked.join().unwrap();
        let (line, code) = failure(&output);
        let expected = if !question.starts_with("exec") {
            1
        } else if question.contains("require") {
            125
        } else {
            0
        };
        assert!(
            code == expected && took < ANSWER,
            "{question}: {code} after {took:?}: {line}"
        );
        assert!(
            line.contains("did not answer") && line.contains("giveway revert"),
            "{question}: {line}"
        );
    }
    assert_eq!(all.installed().len(), 3, "nobody has ended it");
    let (reverted, took) = bounded(&["revert"]);
    let text = String::from_utf8_lossy(&reverted.stdout).into_owned();
    assert!(
        reverted.status.success() && text.contains("killed: it did not answer"),
        "{took:?}: {reverted:?}"
    );
    assert_eq!(all.installed(), Vec::<&str>::new());
    all.is_killed();
}

#[test]
fn revert_undoes_and_run_starts_where_the_daemon_cannot_even_be_killed() {
    let mut all = Installed::start("unkillable");
    let watchdog = all.daemon.watchdog();
    let frozen = Frozen::new(all.daemon.0.id(), None);
    signal(watchdog, Signal::SIGKILL);
    let (reverted, took) = bounded(&["revert"]);
    assert!(reverted.status.success(), "{took:?}: {reverted:?}");
    assert_eq!(all.installed(), Vec::<&str>::new());
    another_starts();
    drop(frozen);
    all.is_killed();
}

#[test]
fn a_watchdog_that_goes_on_after_the_next_start_changes_nothing() {
    let mut all = Installed::start("late");
    let watchdog = all.daemon.watchdog();
    signal(watchdog, Signal::SIGSTOP);
    all.daemon.signal(Signal::SIGKILL);
    all.is_killed();
    let next = Daemon::start(&["--interface", "gwv"]);
    assert_eq!(all.installed(), Vec::<&str>::new());
    let state = fs::read_to_string(format!("/proc/{watchdog}/stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "it lives: {state}");
    drop(next);
}

#[test]
fn a_daemon_of_another_pid_namespace_is_left_alone() {
    let _lab = Lab::enter();
    let mut command = Command::new("unshare");
    // Its number is 1 there.
    command.args([
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        &program(),
        "run",
        "--interface",
        "gwv",
    ]);
    let mut daemon = KillOnDrop::spawn(command.stderr(Stdio::null()));
    until("the daemon answers", || giveway(&["status"]).status.success());
    let (refused, _) = bounded(&["run", "--interface", "gwv"]);
    let (line, code) = failure(&refused);
    assert!(code == 1 && line.contains("already runs"), "{code}: {line}");
    assert!(giveway(&["status"]).status.success(), "the first one lives");
    let (reverted, _) = bounded(&["revert"]);
    assert!(reverted.status.success(), "{reverted:?}");
    until("it has ended", || daemon.try_wait().unwrap().is_some());
}

#[test]
fn what_is_still_being_undone_keeps_a_daemon_from_starting() {
    let _lab = Lab::enter();
    let (silent, place) = (Scratch::new("silent", ""), Place::here().unwrap());
    fs::remove_file(&silent.0).unwrap();
    // What opens it waits for a writer.
    mkfifo(&silent.0, Mode::S_IRWXU).unwrap();
    let journal = place.journal(JournalFile::Settings);
    let folder = journal.parent().unwrap();
    fs::create_dir_all(folder).unwrap();
    // The kernel uses numbers of namespaces again: an earlier one's would have the line thrown away.
    let _ = fs::remove_file(folder.join("cookie"));
    let line = serde_json::json!({ "path": silent.path(), "before": "0", "ours": "1" });
    fs::write(&journal, format!("{line}\n")).unwrap();
    let mut command = Command::new(program());
    command.args(["run", "--interface", "gwv"]).stderr(Stdio::piped());
    let mut started = KillOnDrop::spawn(&mut command);
    until("it does not start", || started.try_wait().unwrap().is_some());
    let (line, code) = failure(&started.output());
    assert!(code == 1 && line.contains("still being undone"), "{code}: {line}");
    fs::remove_file(&silent.0).unwrap();
    let daemon = Daemon::start(&["--interface", "gwv"]);
    assert_eq!(daemon.status()["pid"], daemon.0.id());
    assert!(!journal.exists());
}

#[test]
fn a_dry_run_ends_no_watchdog_that_is_still_at_work() {
    let mut all = Installed::start("dry");
    let watchdog = all.daemon.watchdog();
    signal(watchdog, Signal::SIGSTOP);
    all.daemon.signal(Signal::SIGKILL);
    all.is_killed();
    let (refused, _) = bounded(&["run", "--dry-run", "--interface", "gwv"]);
    let (line, code) = failure(&refused);
    assert!(
        code == 1 && line.contains(&format!("(pid {watchdog}) is not done")),
        "{code}: {line}"
    );
    assert_eq!(all.installed().len(), 3, "nothing changed");
    signal(watchdog, Signal::SIGCONT);
    all.is_undone_within(ANSWER);
}

#[test]
fn a_log_that_nobody_reads_keeps_nothing_waiting() {
    let _lab = Lab::enter();
    let (mut log, writer) = io::pipe().unwrap();
    let end = format!("/proc/self/fd/{}", writer.as_raw_fd());
    // Another file of the same pipe, so that the daemon's own still waits.
    let mut filler = fs::File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(end)
        .unwrap();
    while filler.write(&[b'\n'; 4096]).is_ok() {}
    drop(filler);
    let mut command = Command::new(program());
    command
        .args(["run", "--interface", "gwv"])
        .stdin(Stdio::null())
        .stderr(writer);
    let mut daemon = Daemon(KillOnDrop::spawn(&mut command));
    drop(command);
    until("the daemon answers", || giveway(&["status"]).status.success());
    until("passes go on", || {
        daemon.status()["uptime_s"].as_f64().is_some_and(|s| s > 6.0)
    });
    let reading = thread::spawn(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    });
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    let text = reading.join().unwrap();
    assert!(
        text.contains("managing gwv") && text.contains("no change of giveway is left"),
        "{text}"
    );
}

#[test]
fn a_record_without_lines_goes_on() {
    let _lab = Lab::enter();
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    let file = Scratch::new("quiet.jsonl", "");
    let mut recording = KillOnDrop::spawn(Command::new(program()).args(["record", file.path()]));
    let start = Instant::now();
    until("longer than a first answer may take", || {
        start.elapsed() > Duration::from_millis(2500)
    });
    assert!(recording.try_wait().unwrap().is_none());
}

#[test]
fn the_service_manager_is_told_when_everything_is_installed_and_that_all_threads_live() {
    let _lab = Lab::enter();
    let place = Scratch::new("notify", "");
    fs::remove_file(&place.0).unwrap();
    let manager = UnixDatagram::bind(&place.0).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut command = Command::new(program());
    // A dry run has no watchdog, which would end it.
    command
        .args(["run", "--interface", "gwv", "--dry-run"])
        .stderr(Stdio::null())
        .env("NOTIFY_SOCKET", place.path())
        .env("WATCHDOG_USEC", "60000000");
    let daemon = Daemon(KillOnDrop::spawn(&mut command));
    let mut bytes = [0; 64];
    let mut told = || {
        let length = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let first: Vec<String> = std::iter::repeat_with(&mut told).take(3).collect();
    assert!(
        first.contains(&"READY=1".to_owned()) && first.contains(&"WATCHDOG=1".to_owned()),
        "{first:?}"
    );
    assert_eq!(daemon.status()["interface"]["name"], "gwv");
    let _frozen = Frozen::new(daemon.0.id(), Some("giveway-rt"));
    manager.set_nonblocking(true).unwrap();
    let mut silent_since = Instant::now();
    until("nothing is told any more", || {
        if manager.recv(&mut bytes).is_ok() {
            silent_since = Instant::now();
        }
        silent_since.elapsed() > Duration::from_secs(3)
    });
    let listed = giveway(&["class", "list"]);
    assert!(listed.status.success(), "the main loop lives: {listed:?}");
}

#[test]
fn no_core_dump_is_written_of_what_holds_the_key() {
    let _lab = Lab::enter();
    let place = Scratch::new("here", "");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c unlimited; exec \"$0\" run --interface gwv", &program()]);
    command.current_dir(place.0.parent().unwrap()).stderr(Stdio::null());
    let mut daemon = Daemon(KillOnDrop::spawn(&mut command));
    until("the daemon answers", || giveway(&["status"]).status.success());
    daemon.signal(Signal::SIGABRT);
    let status = daemon.0.wait().unwrap();
    assert!(
        status.signal() == Some(Signal::SIGABRT as i32) && !status.core_dumped(),
        "{status:?}"
    );
}

#[test]
fn who_holds_the_lock_of_devices_gets_no_daemon_killed_and_keeps_no_queue_installed() {
    // It is one lock for the devices of all namespaces.
    let _turn = Turn::alone();
    let mut this = Installed::start("devices");
    let watchdog = Handle::open(this.daemon.watchdog()).unwrap();
    let held = Held::devices();
    thread::sleep(HANG + DEATH);
    assert!(this.daemon.0.try_wait().unwrap().is_none(), "it waits, and lives");
    this.daemon.signal(Signal::SIGKILL);
    // By then the watchdog has waited for as long as it says nothing.
    thread::sleep(Duration::from_secs(10));
    drop(held);
    until("nothing is left active", || this.installed().is_empty());
    until("the watchdog is done", || !watchdog.is_alive());
}

/// Gives the calling thread, and what it starts, a /proc that nobody else looks into: the machine's is not to be held.
fn enter_own_proc() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), none).unwrap();
}

#[test]
fn who_holds_the_folder_of_routes_keeps_the_main_loop_from_nothing() {
    let _lab = Lab::enter();
    run(&format!("ip route add default via {FAR_V4}"));
    let daemon = Daemon::start(&[]);
    let interface = || daemon.status()["interface"]["name"].clone();
    until("it manages the device of the default route", || interface() == "gwv");
    let (pid, watchdog) = (daemon.0.id(), daemon.watchdog());
    let held = Held::forgotten(format!("/proc/{pid}/net"));
    let start = Instant::now();
    run("ip route del default");
    until("it has seen the route go", || interface().is_null());
    run(&format!("ip route add default via {FAR_V4}"));
    until("it has seen the route come, and goes on for longer than a hang", || {
        interface() == "gwv" && start.elapsed() > HANG
    });
    assert_eq!(daemon.watchdog(), watchdog);
    drop(held);
}

#[test]
fn who_holds_the_setting_that_flushes_routes_keeps_no_queue_waiting() {
    let _lab = Lab::enter();
    let config = Scratch::new("flush.toml", "[link]\nrate_mbit = 20\n[queue]\nbackend = \"htb\"\n");
    let held = Held::directory("/proc/sys/net/ipv4/route");
    let mut daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the queue is up", || !daemon.status()["queue"]["installed"].is_null());
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    drop(held);
}

#[test]
fn who_holds_the_watchdogs_threads_in_proc_keeps_nothing_installed() {
    let mut all = Installed::start("threads");
    let held = Held::forgotten(format!("/proc/{}/task", all.daemon.watchdog()));
    all.daemon.signal(Signal::SIGKILL);
    all.is_undone_within(DEATH);
    drop(held);
}

#[test]
fn who_holds_proc_keeps_nobody_from_asking_from_being_guarded_or_from_undoing() {
    enter_own_proc();
    let mut all = Installed::start("proc");
    let watchdog = all.daemon.watchdog();
    let held = Held::forgotten("/proc");
    let (told, took) = bounded(&["status", "--json"]);
    assert!(told.status.success() && took < ANSWER, "{took:?}: {told:?}");
    signal(watchdog, Signal::SIGKILL);
    until("it has another one", || {
        watchdog_of(all.daemon.0.id()) != Some(watchdog)
    });
    let start = Instant::now();
    until("it goes on for longer than a hang", || {
        let (told, took) = bounded(&["status"]);
        if !told.status.success() {
            eprintln!("{took:?}: {told:?}");
        }
        told.status.success() && start.elapsed() > HANG
    });
    let (reverted, took) = bounded(&["revert"]);
    // `tc` reads what is in /proc.
    drop(held);
    assert!(reverted.status.success(), "{took:?}: {reverted:?}");
    assert_eq!(all.installed(), Vec::<&str>::new());
}

#[test]
fn who_holds_proc_keeps_no_daemon_from_starting() {
    let _lab = Lab::enter();
    enter_own_proc();
    let held = Held::forgotten("/proc");
    let mut command = Command::new(program());
    command.args(["run", "--interface", "gwv"]).stderr(Stdio::null());
    let mut daemon = KillOnDrop::spawn(&mut command);
    until("it answers", || bounded(&["status"]).0.status.success());
    let (reverted, took) = bounded(&["revert"]);
    assert!(reverted.status.success(), "{took:?}: {reverted:?}");
    assert!(daemon.wait().unwrap().success());
    drop(held);
}

#[test]
fn a_user_is_answered_though_proc_is_held() {
    let _lab = Lab::enter();
    enter_own_proc();
    let copy = Copy::new("reader");
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    let held = Held::forgotten("/proc");
    let start = Instant::now();
    let (told, took) = (copy.as_nobody(&["status"]), start.elapsed());
    drop(held);
    let (line, _) = failure(&told);
    assert!(
        line.contains("group") && took < ANSWER,
        "the daemon says who may ask: {took:?}: {line}"
    );
}
