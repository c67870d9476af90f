// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One giveway for a network namespace, and nothing of it after `giveway revert`: whatever moment of a start that meets,
//! whatever is mounted at /run, after the machine was started anew, and where the journals were removed.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use giveway::kernel::process::end::ProcessIdentity;
use giveway::kernel::{own_netns, own_netns_cookie};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use nix::sys::socket::{UnixAddr, bind};

use crate::support::lab::{Lab, run};
use crate::support::process::{Daemon, KillOnDrop, failure, giveway, program, signal, watchdog_of};
use crate::support::scratch::Scratch;
use crate::support::wait::until;

const SLOW_LINK: &str = "[link]\nrate_mbit = 20\n[queue]\nbackend = \"htb\"\n";

fn state_folder() -> PathBuf {
    format!("/run/giveway/netns-{}", own_netns().unwrap()).into()
}

fn gso_max_segs() -> String {
    let link = run("ip -details link show dev gwv");
    let mut words = link.split_whitespace().skip_while(|word| *word != "gso_max_segs");
    words.nth(1).unwrap().to_owned()
}

fn has_queue() -> bool {
    run("tc qdisc show dev gwv").contains("htb 6777:")
}

fn queueing_daemon(config: &Scratch) -> Daemon {
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the queue is up", || has_queue() && gso_max_segs() == "1");
    daemon
}

/// A moment of a start: its name, and whether the start of this process has come to it.
type Moment = (&'static str, fn(u32) -> bool);

const MOMENTS: [Moment; 7] = [
    ("it has read nothing yet", |pid| {
        fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1)
    }),
    ("it has made the state folder", |_| state_folder().exists()),
    ("it has the lock", |pid| {
        fs::read_to_string(state_folder().join("lock")).is_ok_and(|lock| lock.starts_with(&format!("{pid} ")))
    }),
    ("it has claimed the folder", |_| state_folder().join("cookie").exists()),
    ("it has a watchdog", |pid| watchdog_of(pid).is_some()),
    ("it has pinned something", |_| {
        let pins = [
            state_folder().join("bpf"),
            format!("/sys/fs/bpf/giveway-netns-{}", own_netns().unwrap()).into(),
        ];
        pins.iter()
            .any(|folder| fs::read_dir(folder).is_ok_and(|pins| pins.count() > 0))
    }),
    ("it has a control socket", |_| {
        state_folder().join("control-root").exists()
    }),
];

fn start_and_stop_at(moment: &Moment, config: &Scratch) -> KillOnDrop {
    let mut command = Command::new(program());
    command.args(["run", "--config", config.path(), "--interface", "gwv"]);
    let mut start = KillOnDrop::spawn(command.stdin(Stdio::null()).stderr(Stdio::null()));
    let begun = Instant::now();
    while !(moment.1)(start.id()) {
        assert!(start.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(20));
        std::hint::spin_loop();
    }
    signal(start.id(), Signal::SIGSTOP);
    start
}

/// What `revert` said, and what is active afterwards, all told.
fn outcome(start: &mut KillOnDrop, reverted: &std::process::Output) -> String {
    let ended = until_ended(start);
    let found = giveway(&["revert", "--dry-run", "--json"]).stdout;
    let found: serde_json::Value = serde_json::from_slice(&found).unwrap_or_default();
    let runs = giveway(&["status"]).status.success();
    format!(
        "revert {:?}, the start ended {ended}, a daemon answers {runs}, a queue {}, found {}{}",
        reverted.status.code(),
        has_queue(),
        found["found"],
        if reverted.status.success() {
            String::new()
        } else {
            String::from_utf8_lossy(&reverted.stderr).into_owned()
        },
    )
}

fn until_ended(start: &mut KillOnDrop) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        if start.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

const NOTHING: &str = "revert Some(0), the start ended true, a daemon answers false, a queue false, found []";

#[test]
fn a_start_that_is_reverted_at_any_moment_ends_and_leaves_nothing() {
    let mut wrong = Vec::new();
    for moment in &MOMENTS {
        let _lab = Lab::enter();
        let config = Scratch::new("starting.toml", SLOW_LINK);
        let mut start = start_and_stop_at(moment, &config);
        let mut revert = Command::new(program());
        let revert = revert.arg("revert").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut revert = KillOnDrop::spawn(revert);
        // Either it is done, or it waits for the start.
        let begun = Instant::now();
        while revert.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(10));
        }
        signal(start.id(), Signal::SIGCONT);
        let outcome = outcome(&mut start, &revert.output());
        println!("{}: {outcome}", moment.0);
        if outcome != NOTHING {
            wrong.push((moment.0, outcome));
        }
    }
    assert_eq!(wrong, []);
}

#[test]
fn a_start_that_is_stopped_and_reverted_is_killed_and_leaves_nothing() {
    let mut wrong = Vec::new();
    for moment in MOMENTS
        .iter()
        .filter(|(name, _)| name.contains("lock") || name.contains("watchdog"))
    {
        let _lab = Lab::enter();
        let config = Scratch::new("stopped.toml", SLOW_LINK);
        let mut start = start_and_stop_at(moment, &config);
        let outcome = outcome(&mut start, &giveway(&["revert"]));
        if outcome != NOTHING {
            wrong.push((moment.0, outcome));
        }
    }
    assert_eq!(wrong, []);
}

#[test]
fn a_start_after_a_revert_runs() {
    let _lab = Lab::enter();
    let config = Scratch::new("after.toml", SLOW_LINK);
    for _ in 0..2 {
        assert!(giveway(&["revert"]).status.success());
        drop(queueing_daemon(&config));
    }
    assert!(giveway(&["revert"]).status.success());
}

/// A command in this network namespace whose /run is another one.
fn with_another_run(arguments: &str) -> std::process::Output {
    let script = format!("mount -t tmpfs none /run && exec timeout 10 {} {arguments}", program());
    Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output()
        .unwrap()
}

#[test]
fn a_second_daemon_with_another_run_is_refused_and_touches_nothing() {
    let _lab = Lab::enter();
    let config = Scratch::new("another-run.toml", SLOW_LINK);
    let first = queueing_daemon(&config);
    let told = format!("another giveway runs in this network namespace (pid {})", first.0.id());
    for arguments in [
        format!("run --config {} --interface gwv", config.path()),
        "revert".to_owned(),
    ] {
        let output = with_another_run(&arguments);
        assert!(has_queue(), "the first one's queue is gone after `{arguments}`");
        let (line, code) = failure(&output);
        println!("{arguments}: {code}: {line}");
        assert!(code == 1 && line.contains(&told), "{code}: {line}");
    }
    let (line, _) = failure(&with_another_run("status"));
    assert!(line.contains(&told), "{line}");
    assert_eq!(first.status()["pid"], first.0.id());
    assert_eq!(gso_max_segs(), "1");
}

#[test]
fn whoever_is_not_root_keeps_no_daemon_out() {
    let _lab = Lab::enter();
    let own = ProcessIdentity::own()
        .unwrap()
        .to_words()
        .map(|word| format!("{word:x}"))
        .join(" ");
    let names = (0..200).map(move |n| format!("giveway/daemon {own} 1 2 {n:x}"));
    let hostile = std::thread::spawn(move || {
        // SAFETY: of this thread alone; takes no pointers.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        let bound = |name: String| UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        names.map(bound).collect::<Vec<_>>()
    });
    let _theirs = hostile.join().unwrap();
    let config = Scratch::new("hostile.toml", SLOW_LINK);
    drop(queueing_daemon(&config));
    assert!(giveway(&["revert"]).status.success());
}

/// A user's process that binds a socket which root has made, as a service's standard output is one.
fn hold_a_roots_socket(name: &str) -> KillOnDrop {
    let socket = UnixDatagram::unbound().unwrap();
    let (fd, address) = (socket.as_raw_fd(), UnixAddr::new_abstract(name.as_bytes()).unwrap());
    let mut command = Command::new("sleep");
    command.arg("1000").uid(65534).gid(65534);
    let take = move || {
        // SAFETY: takes no pointers.
        let left_open = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        assert_eq!(left_open, 0);
        Ok(bind(fd, &address)?)
    };
    // SAFETY: two system calls, of what was made before.
    unsafe { command.pre_exec(take) };
    KillOnDrop::spawn(&mut command)
}

/// A daemon of another network namespace, with the device that it has there.
fn daemon_elsewhere(config: &Scratch) -> KillOnDrop {
    let script = format!(
        "ip link set lo up && ip link add gwo type veth peer name gwp && ip link set gwp up && ip link set gwo up && \
         exec {} run --config {} --interface gwo",
        program(),
        config.path()
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &script]);
    let daemon = KillOnDrop::spawn(command.stdin(Stdio::null()).stderr(Stdio::null()));
    until("it has a watchdog", || watchdog_of(daemon.id()).is_some());
    daemon
}

#[test]
fn whoever_holds_a_socket_that_root_has_made_keeps_no_daemon_out_and_gets_nobody_killed() {
    let _lab = Lab::enter();
    let none = Scratch::new("elsewhere.toml", "[queue]\nbackend = \"none\"\n");
    let mut elsewhere = daemon_elsewhere(&none);
    let watchdog = watchdog_of(elsewhere.id()).unwrap();
    fs::create_dir_all(state_folder()).unwrap();
    let about = fs::metadata(state_folder()).unwrap();
    let here = format!("{:x} {:x}", about.dev(), about.ino());
    let words = |pid: u32| ProcessIdentity::of(pid).unwrap().unwrap().to_words();
    let text = |words: [u64; 4]| words.map(|word| format!("{word:x}")).join(" ");
    let [pid, namespace, kind, mark] = words(elsewhere.id());
    let theirs = text([pid, namespace, kind, mark]);
    let names = [
        format!("giveway/daemon {theirs} 1 2 a"),
        format!("giveway/daemon {theirs} {here} b"),
        format!("giveway/watchdog {} {here} c", text(words(watchdog))),
        format!("giveway/daemon {} 1 2 d", text([pid, namespace + 1, kind, mark])),
        format!("giveway/revert {} {here} e", text(words(1))),
    ];
    let config = Scratch::new("holder.toml", SLOW_LINK);
    let mut wrong = Vec::new();
    for name in &names {
        let mut holder = hold_a_roots_socket(name);
        let mut start = Command::new(program());
        start.args(["run", "--config", config.path(), "--interface", "gwv"]);
        let mut start = KillOnDrop::spawn(start.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()));
        let begun = Instant::now();
        while start.try_wait().unwrap().is_none() && !has_queue() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let runs = has_queue();
        // What it did is left to `revert`: its watchdog is stopped, and dies of nothing else.
        if let Some(own) = watchdog_of(start.id()) {
            signal(own, Signal::SIGSTOP);
        }
        start.kill().unwrap();
        start.wait().unwrap();
        let reverted = giveway(&["revert"]);
        let lives = |process: &mut KillOnDrop| process.try_wait().unwrap().is_none();
        let outcome = format!(
            "runs {runs}, revert {:?}, a queue {}, the holder lives {}, the daemon elsewhere lives {}, its watchdog is {} {}",
            reverted.status.code(),
            has_queue(),
            lives(&mut holder),
            lives(&mut elsewhere),
            if watchdog_of(elsewhere.id()) == Some(watchdog) {
                "the same"
            } else {
                "another"
            },
            if reverted.status.success() {
                String::new()
            } else {
                failure(&reverted).0
            },
        );
        println!("{name}: {outcome}");
        let right = "runs true, revert Some(0), a queue false, the holder lives true, the daemon elsewhere lives true, its \
                     watchdog is the same ";
        if outcome != right {
            wrong.push((name, outcome));
        }
    }
    assert_eq!(wrong, []);
    signal(elsewhere.id(), Signal::SIGTERM);
    elsewhere.wait().unwrap();
}

/// As on a disk, after the machine was started anew: the numbers are those of others now.
#[test]
fn a_lock_and_journals_of_an_earlier_boot_name_nobody_and_undo_nothing() {
    let _lab = Lab::enter();
    let other = KillOnDrop::spawn(Command::new("sleep").arg("1000"));
    let words = ProcessIdentity::of(other.id()).unwrap().unwrap().to_words();
    let words = words.map(|word| word.to_string()).join(" ");
    let boot = "6f2c8a1e-0000-4000-8000-000000000000";
    let folder = state_folder();
    fs::create_dir_all(&folder).unwrap();
    run("ip link set dev gwv gso_max_segs 1");
    let ifindex = nix::net::if_::if_nametoindex("gwv").unwrap();
    let before = format!(
        "{{\"ifindex\":{ifindex},\"name\":\"gwv\",\"qdisc\":{{\"kind\":\"noqueue\",\"handle\":0,\"options\":null}},\
         \"gso_max_segments\":77,\"limits_segments\":true}}\n"
    );
    // Whatever starts elsewhere removes a folder that nobody holds.
    let held = || {
        fs::create_dir_all(&folder).unwrap();
        let mut options = File::options();
        let lock = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join("lock"));
        Flock::lock(lock.unwrap(), FlockArg::LockExclusive).unwrap()
    };
    let leave = || {
        let _held = held();
        fs::write(folder.join("lock"), format!("{words}\n{words}\nboot {boot}\n")).unwrap();
        fs::write(folder.join("boot"), format!("{boot}\n")).unwrap();
        fs::write(folder.join("cookie"), format!("{}\n", own_netns_cookie().unwrap())).unwrap();
        fs::write(folder.join("queue"), &before).unwrap();
    };
    leave();
    let reverted = giveway(&["revert"]);
    assert!(
        reverted.status.success(),
        "{}",
        String::from_utf8_lossy(&reverted.stderr)
    );
    assert_eq!(gso_max_segs(), "1", "another device has that number now");
    assert!(!folder.join("queue").exists());
    leave();
    let config = Scratch::new("boot.toml", "[queue]\nbackend = \"none\"\n");
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    let own = ["boot", "cookie"].map(|name| (name, fs::read_to_string(folder.join(name)).unwrap()));
    assert_ne!(own[0].1.trim(), boot);
    // And its watchdog has ended.
    daemon.kill();
    assert_eq!(gso_max_segs(), "1");
    // Of this boot it is undone.
    let lock = held();
    for (name, text) in &own {
        fs::write(folder.join(name), text).unwrap();
    }
    fs::write(folder.join("queue"), &before).unwrap();
    drop(lock);
    assert!(giveway(&["revert"]).status.success());
    assert_eq!(gso_max_segs(), "77");
}

#[test]
fn journals_that_are_removed_while_it_runs_are_written_anew_and_everything_is_restored() {
    let _lab = Lab::enter();
    let before = gso_max_segs();
    let config = Scratch::new("removed.toml", SLOW_LINK);
    for end in [Signal::SIGTERM, Signal::SIGKILL] {
        for waits in [false, true] {
            let mut daemon = queueing_daemon(&config);
            // The watchdog looks once a second.
            std::thread::sleep(Duration::from_millis(2200));
            let journal = state_folder().join("queue");
            let held = fs::read_to_string(&journal).unwrap();
            fs::remove_file(&journal).unwrap();
            if waits {
                until("it is written anew", || {
                    fs::read_to_string(&journal).is_ok_and(|now| now == held)
                });
            }
            daemon.signal(end);
            daemon.0.wait().unwrap();
            until("the queue is gone", || !has_queue());
            let begun = Instant::now();
            while gso_max_segs() != before && begun.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(gso_max_segs(), before, "after {end}, written anew: {waits}");
            assert!(giveway(&["revert"]).status.success());
        }
    }
}

#[test]
fn a_daemon_whose_state_folder_is_emptied_or_removed_keeps_the_namespace_and_is_reverted() {
    let _lab = Lab::enter();
    let before = gso_max_segs();
    let config = Scratch::new("folder.toml", SLOW_LINK);
    for (revert, is_removed) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut daemon = queueing_daemon(&config);
        let pid = daemon.0.id();
        // The watchdog looks once a second.
        std::thread::sleep(Duration::from_millis(2200));
        for entry in fs::read_dir(state_folder()).unwrap().flatten() {
            // Pins may be in a mount.
            let _ = fs::remove_file(entry.path());
        }
        if is_removed {
            // Where there is such a mount.
            let _ = Command::new("umount")
                .arg("-q")
                .arg(state_folder().join("bpf"))
                .status();
            fs::remove_dir_all(state_folder()).unwrap();
        }
        for arguments in [&["status"][..], &["exec", "--require", "--class", "bulk", "--", "true"]] {
            let (line, code) = failure(&giveway(arguments));
            println!("{}: {code}: {line}", arguments[0]);
            let told = format!(
                "giveway (pid {pid}) runs in this network namespace, but its state folder {} was removed",
                state_folder().display()
            );
            assert!(line.contains(&told) && line.contains("`giveway revert`"), "{line}");
        }
        let (line, code) = failure(&giveway(&["run", "--interface", "gwv"]));
        assert!(
            code == 1 && line.contains("another giveway runs") && line.contains("`giveway revert`") && has_queue(),
            "{line}"
        );
        if revert {
            let reverted = giveway(&["revert"]);
            let said = String::from_utf8(reverted.stdout).unwrap();
            println!("revert: {said}");
            assert!(reverted.status.success() && !has_queue() && gso_max_segs() == before);
            let told =
                format!("daemon (pid {pid}) killed: its state folder was removed, so it could not be asked to stop");
            let by_watchdog = said.lines().find(|line| line.starts_with("restored by its watchdog: "));
            assert!(
                said.contains(&told) && by_watchdog.is_some_and(|line| line.contains("gwv")),
                "{said}"
            );
        } else {
            daemon.signal(Signal::SIGKILL);
        }
        daemon.0.wait().unwrap();
        until("everything is restored", || !has_queue() && gso_max_segs() == before);
    }
}
