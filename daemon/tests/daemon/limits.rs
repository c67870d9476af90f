// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one user can take of the daemon: a share of its control socket, of its tables and of its time, and never so much
//! that others get nothing. Users are threads of the test with another user's number.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use giveway::actuate::thread::attributes::Attributes;
use giveway::kernel::own_netns;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::lab::{FAR_V4, Lab, run};
use crate::support::process::{Daemon, KillOnDrop, giveway, program};
use crate::support::scratch::Scratch;
use crate::support::wait::{await_some, until};

/// Debian's `nobody` and `nogroup`.
const NOBODY: u32 = 65_534;
const SOMEBODY_ELSE: u32 = 65_533;

/// Does this as another user.
pub(super) fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        // SAFETY: take no pointers; the system calls themselves change this thread alone.
        unsafe {
            libc::syscall(libc::SYS_setresgid, uid, uid, uid);
            libc::syscall(libc::SYS_setresuid, uid, uid, uid);
        }
        what()
    };
    thread::scope(|scope| scope.spawn(become_user).join().unwrap())
}

fn connect() -> UnixStream {
    let path = format!("/run/giveway/netns-{}/control", own_netns().unwrap());
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// The answer's first line; null where there is none.
fn answer(stream: &UnixStream) -> Value {
    let mut line = String::new();
    let _ = BufReader::new(stream).read_line(&mut line);
    serde_json::from_str(&line).unwrap_or_default()
}

pub(super) fn ask(request: &Value) -> Value {
    let mut stream = connect();
    // A refusal may come before.
    let _ = stream.write_all(format!("{request}\n").as_bytes());
    answer(&stream)
}

fn error_of(answer: &Value) -> &str {
    let said = answer["error"].as_str().or(answer["busy"].as_str());
    said.unwrap_or_default()
}

/// The daemon's thread of this name, and the CPU time that it has used.
fn cpu_of(daemon: &Daemon, thread: &str) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.0.id())).unwrap();
    let of_name = |task: &std::path::PathBuf| fs::read_to_string(task.join("comm")).unwrap().trim() == thread;
    let task = tasks.map(|task| task.unwrap().path()).find(of_name).unwrap();
    let schedstat = fs::read_to_string(task.join("schedstat")).unwrap();
    Duration::from_nanos(schedstat.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn idle_connections_of_one_user_keep_no_other_from_asking() {
    let _lab = Lab::enter();
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    let idle: Vec<UnixStream> = as_user(NOBODY, || (0..100).map(|_| connect()).collect());
    let refused = answer(idle.last().unwrap());
    assert!(error_of(&refused).contains("uid 65534 has 8 connections"), "{refused}");
    let other = as_user(SOMEBODY_ELSE, || ask(&json!({"request": "status"})));
    assert!(error_of(&other).contains("only root and the members"), "{other}");
    assert!(ask(&json!({"request": "status"}))["ok"].is_object());
    // Who asks nothing is disconnected: its share is free again.
    assert!(answer(&idle[0]).is_null());
    let again = as_user(NOBODY, || ask(&json!({"request": "status"})));
    assert!(error_of(&again).contains("only root and the members"), "{again}");
}

/// As many answers as this user gets in this time, and none of them without a connection of its own.
fn turned_away(time: Duration) -> u64 {
    let (begun, count) = (Instant::now(), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                as_user(NOBODY, || {
                    while begun.elapsed() < time {
                        let refused = answer(&connect());
                        assert!(error_of(&refused).contains("has 8 connections"), "{refused}");
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
        // Everybody else has a turn soon.
        let begun = Instant::now();
        assert!(ask(&json!({"request": "status"}))["ok"].is_object());
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    });
    count.into_inner()
}

#[test]
fn who_is_turned_away_again_and_again_takes_little_of_the_daemon() {
    const TIME: Duration = Duration::from_secs(2);
    let _lab = Lab::enter();
    let daemon = Daemon::start(&["--interface", "gwv"]);
    let _idle: Vec<UnixStream> = as_user(NOBODY, || (0..8).map(|_| connect()).collect());
    let before = cpu_of(&daemon, "giveway");
    let answers = turned_away(TIME);
    let cpu = cpu_of(&daemon, "giveway") - before;
    // 64 in 20 ms at most; how many come together depends on how fast the machine is.
    let most = 3200 * TIME.as_secs();
    assert!(
        answers <= most && cpu < TIME / 15,
        "{answers} in {TIME:?}, which took {cpu:?} of a CPU"
    );
}

/// Whoever else stands in the row: root has one of its own.
#[test]
fn root_is_answered_at_once_beside_a_crowd() {
    const CROWD: usize = 600;
    let _lab = Lab::enter();
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    let is_over = AtomicBool::new(false);
    let times: Vec<Duration> = thread::scope(|scope| {
        for _ in 0..CROWD {
            scope.spawn(|| {
                as_user(NOBODY, || {
                    while !is_over.load(Ordering::Relaxed) {
                        drop(connect());
                    }
                });
            });
        }
        thread::sleep(Duration::from_millis(500));
        let ask = |_| {
            let begun = Instant::now();
            let status = giveway(&["status"]);
            assert!(status.status.success(), "{status:?}");
            begun.elapsed()
        };
        let times = (0..3).map(ask).collect();
        is_over.store(true, Ordering::Relaxed);
        times
    });
    assert!(times.iter().all(|time| *time < Duration::from_secs(1)), "{times:?}");
}

#[test]
fn who_may_have_no_real_time_takes_none_of_its_threads() {
    let _lab = Lab::enter();
    let daemon = Daemon::start(&["--interface", "gwv"]);
    let launch = json!({"request": "launch", "policy": "fifo", "priority": 5, "cpus": []});
    let before = cpu_of(&daemon, "giveway-rt");
    as_user(NOBODY, || {
        let remove = json!({"request": "priority_remove", "name": "somebody's"});
        for request in [&launch, &remove].into_iter().cycle().take(100) {
            let refused = ask(request);
            assert!(
                error_of(&refused).contains("allows uid 65534 real-time priority"),
                "{refused}"
            );
        }
    });
    let used = cpu_of(&daemon, "giveway-rt") - before;
    assert!(used < Duration::from_millis(3), "{used:?} for 100 requests");
}

#[test]
fn a_granted_user_lists_what_is_their_own_and_nobody_else_does() {
    let _lab = Lab::enter();
    let of_root = Scratch::copy_of("/bin/sleep", "gw-of-root");
    let rule = format!("[[priority]]\nname = \"of root\"\nexe = \"{}\"\n", of_root.path());
    let config = Scratch::new(
        "list.toml",
        &format!("{rule}[[grant]]\nuser = \"{NOBODY}\"\nmax_priority = 5\n"),
    );
    let _daemon = Daemon::start(&["--interface", "gwv", "--config", config.path()]);
    let list = || ask(&json!({"request": "priority_list"}));
    // What is told of root's rules names their paths.
    fs::set_permissions(&of_root.0, fs::Permissions::from_mode(0o777)).unwrap();
    let is_told = |status: Value| status.to_string().contains("others than root may write to");
    until("root is told that others may write to it", || is_told(list()));
    assert!(!is_told(as_user(NOBODY, list)));
    fs::set_permissions(&of_root.0, fs::Permissions::from_mode(0o755)).unwrap();
    let _held = KillOnDrop::spawn(Command::new(of_root.path()).arg("60"));
    let own = json!({"name": "own", "exe": "/bin/sleep", "user": NOBODY.to_string(), "priority": 5});
    let names = |list: &Value, of: &str, name: &str| -> Vec<String> {
        let all = list["ok"][of].as_array().unwrap_or_else(|| panic!("{list}"));
        all.iter().map(|one| one[name].as_str().unwrap().to_owned()).collect()
    };
    let added = as_user(NOBODY, || ask(&json!({"request": "priority_add", "rule": own})));
    assert!(added["error"].is_null(), "{added}");
    until("root sees everything", || {
        let all = list();
        names(&all, "rules", "name") == ["of root", "own"] && names(&all, "processes", "rule") == ["of root"]
    });
    let of_user = as_user(NOBODY, list);
    assert_eq!(names(&of_user, "rules", "name"), ["own"]);
    assert_eq!(names(&of_user, "processes", "rule"), Vec::<String>::new());
    let refused = as_user(SOMEBODY_ELSE, list);
    assert!(
        error_of(&refused).contains("allows uid 65533 real-time priority"),
        "{refused}"
    );
}

#[test]
fn requests_that_make_much_work_come_one_after_another_over_whatever_connections() {
    let _lab = Lab::enter();
    let config = Scratch::new("turns.toml", &format!("[[grant]]\nuser = \"{NOBODY}\"\n"));
    let _daemon = Daemon::start(&["--interface", "gwv", "--config", config.path()]);
    let ask_four = || {
        for _ in 0..4 {
            let listed = ask(&json!({"request": "priority_list"}));
            assert!(listed["error"].is_null(), "{listed}");
        }
    };
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| as_user(NOBODY, ask_four));
        }
    });
    // One in 200 ms.
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(23 * 200), "{took:?}");
}

#[test]
fn a_class_for_a_command_which_looks_at_all_tasks_is_much_work() {
    let _lab = Lab::enter();
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    // The second is refused, as there is no queue: that counts as well.
    for request in [
        json!({"request": "choose", "class": "stream"}),
        json!({"request": "choose", "class": "bulk", "upload_limit_mbit": 1.0}),
    ] {
        let begun = Instant::now();
        as_user(NOBODY, || (0..6).for_each(|_| drop(ask(&request))));
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(5 * 200), "{request}: {took:?}");
    }
}

/// Whoever asks who is in a group waits here for good, for as long as the file lives.
fn stuck_groups(daemon: &Daemon) -> Scratch {
    let fifo = Scratch::new("groups", "");
    fs::remove_file(&fifo.0).unwrap();
    run(&format!("mkfifo {}", fifo.path()));
    let pid = daemon.0.id();
    run(&format!("nsenter -t {pid} -m mount --bind {} /etc/group", fifo.path()));
    fifo
}

/// Whether a thread of such a name waits for a file to be opened.
fn is_opening(daemon: &Daemon, name: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.0.id())).unwrap().flatten();
    let call = format!("{} ", libc::SYS_openat);
    let says =
        |file: std::path::PathBuf, start: &str| fs::read_to_string(file).is_ok_and(|text| text.starts_with(start));
    tasks
        .map(|task| task.path())
        .any(|task| says(task.join("comm"), name) && says(task.join("syscall"), &call))
}

#[test]
fn groups_that_nobody_tells_keep_neither_root_nor_the_end_waiting() {
    let _lab = Lab::enter();
    // In a mount namespace of its own.
    let mut command = Command::new("unshare");
    command.args(["-m", &program(), "run", "--interface", "gwv"]);
    let mut daemon = Daemon(KillOnDrop::spawn(command.stderr(Stdio::null())));
    until("the daemon answers", || giveway(&["status"]).status.success());
    let _fifo = stuck_groups(&daemon);
    let mut asks = as_user(NOBODY, connect);
    writeln!(asks, "{}", json!({"request": "status"})).unwrap();
    // A file that can be opened once somebody writes to it: nobody does.
    until("its groups are asked for", || is_opening(&daemon, "tokio"));
    assert!(ask(&json!({"request": "status"}))["ok"].is_object(), "root's are not");
    daemon.signal(Signal::SIGTERM);
    let ended = await_some("the daemon ends", || daemon.0.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
}

/// Starts a program of this user's, whose arguments are long.
fn start(arguments: &[&str]) -> KillOnDrop {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "read x"]).args(arguments).uid(NOBODY).gid(NOBODY);
    KillOnDrop::spawn(command.stdin(Stdio::piped()))
}

#[test]
fn a_users_rules_cost_little_whatever_they_say() {
    let _lab = Lab::enter();
    let config = Scratch::new(
        "patterns.toml",
        &format!("[[grant]]\nuser = \"{NOBODY}\"\nmax_priority = 5\n"),
    );
    let daemon = Daemon::start(&["--interface", "gwv", "--config", config.path()]);
    let add = |number: usize, pattern: &str| {
        let rule = json!({"name": format!("r{number}"), "cmdline": pattern, "user": NOBODY.to_string(), "priority": 5});
        as_user(NOBODY, || ask(&json!({"request": "priority_add", "rule": rule})))
    };
    let marker = json!({"name": "marker", "exe": "/bin/sleep", "user": NOBODY.to_string(), "priority": 5});
    let added = as_user(NOBODY, || ask(&json!({"request": "priority_add", "rule": marker})));
    assert!(added["error"].is_null(), "{added}");
    // It nearly fits everywhere in what is started.
    let pattern = format!("*{}b*", "a".repeat(60));
    let answers: Vec<Value> = (0..31).map(|number| add(number, &pattern)).collect();

    let before = cpu_of(&daemon, "giveway-rt");
    let argument = "a".repeat(4090);
    let started: Vec<KillOnDrop> = (0..50).map(|_| start(&[&argument])).collect();
    // It comes after them, so they have been judged when it has what it may have.
    let last = KillOnDrop::spawn(Command::new("/bin/sleep").arg("60").uid(NOBODY).gid(NOBODY));
    until("the last one is judged", || {
        Attributes::of(last.id()).unwrap().shown() == "FIFO 5"
    });
    let each = (cpu_of(&daemon, "giveway-rt") - before) / started.len() as u32;
    assert!(each < Duration::from_micros(1500), "{each:?} for each start");

    let refused = answers.iter().map(error_of).position(|reason| !reason.is_empty());
    assert_eq!(refused, Some(16), "{answers:?}");
    let wanted = "have 16 patterns already (cmdline, unit, cgroup); 16 are the most";
    assert!(error_of(&answers[16]).contains(wanted), "{}", answers[16]);
    let too_long = add(99, &"a".repeat(3000));
    let wanted = "`priority.cmdline`: must be at most 256 bytes";
    assert!(error_of(&too_long).contains(wanted), "{too_long}");
}

#[test]
fn a_connection_that_comes_and_goes_does_not_wake_the_daemon() {
    const CONNECTIONS: u64 = 1000;
    let lab = Lab::enter();
    let daemon = Daemon::start(&["--interface", "gwv"]);
    let listener = lab.far_listener(FAR_V4);
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().for_each(drop));
    let wake_ups = || {
        let status = fs::read_to_string(format!("/proc/{0}/task/{0}/status", daemon.0.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let (before, begun) = (wake_ups(), Instant::now());
    (0..CONNECTIONS).for_each(|_| drop(TcpStream::connect(address).unwrap()));
    let (woken, took) = (wake_ups() - before, begun.elapsed());
    // Ten polls a second, and what else it does each second.
    let passes = 20 * took.as_millis() as u64 / 1000;
    assert!(woken < passes + CONNECTIONS / 4, "{woken} in {took:?}");
}

#[test]
fn a_number_that_no_command_would_send_is_refused() {
    let _lab = Lab::enter();
    let daemon = Daemon::start(&["--interface", "gwv"]);
    for (request, reason) in [
        (
            json!({"request": "pause_for", "for_s": u64::MAX}),
            "a pause is for 1s to 30d",
        ),
        (json!({"request": "pause_for", "for_s": 0}), "a pause is for 1s to 30d"),
        (
            json!({"request": "link_rate", "name": "gwv", "rates": {"up": -1.0}}),
            "less than that",
        ),
        (
            json!({"request": "link_rate", "name": "gwv", "rates": {"down": 1e300}}),
            "more than that",
        ),
    ] {
        let answer = ask(&request);
        assert!(error_of(&answer).contains(reason), "{request}: {answer}");
    }
    assert!(daemon.status()["paused"].is_null());
}
