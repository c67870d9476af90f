// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon's whole life with one uploading connection: it caps, it explains, and however it ends, within a
//! second no cap is left.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use giveway::actuate::sockets::cap::{CapActuator, CapResult};
use giveway::kernel::flow_monitor::FlowMonitor;
use giveway::kernel::{own_netns, own_netns_cookie};
use giveway_engine::model::Cookie;
use libbpf_rs::MapHandle;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::support::lab::{FAR_V4, FAR_V6, Lab, run};
use crate::support::process::{Daemon, PAPER, failure, giveway, program};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::tcp::scanned;
use crate::support::wait::until;

/// Hirai et al.: one sender at 20 Mbit/s and 256 ms, 120 kB of margin.
const ALONE: u64 = 346;

/// A connection whose queue never empties, because its peer reads nothing.
fn upload(lab: &Lab) -> (TcpStream, TcpStream) {
    let listener = lab.far_listener(FAR_V4);
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 65_536]).is_ok() {}
    (near, far)
}

/// Sockets of this namespace whose cwnd the kernel holds below anything, by a look of the test's own.
fn clamped(monitor: &mut FlowMonitor) -> usize {
    monitor
        .scan()
        .unwrap()
        .iter()
        .filter(|flow| flow.clamp.is_some())
        .count()
}

fn capping_daemon(name: &str) -> (Daemon, Scratch) {
    let config = Scratch::new(name, PAPER);
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    until("the sender is capped", || {
        daemon.status()["flows"]
            .as_array()
            .unwrap()
            .iter()
            .any(|f| f["cap"] == ALONE)
    });
    (daemon, config)
}

fn signal(daemon: &Daemon, signal: Signal) {
    kill(Pid::from_raw(daemon.0.id() as i32), signal).unwrap();
}

fn kill_both(daemon: Daemon) {
    daemon.kill_both();
}

/// Of this namespace.
fn state_folder() -> PathBuf {
    format!("/run/giveway/netns-{}", own_netns().unwrap()).into()
}

#[test]
fn why_tells_rule_and_evidence_of_a_cap() {
    let lab = Lab::enter();
    let (near, _far) = upload(&lab);
    let (_daemon, _config) = capping_daemon("why.toml");
    // The connection was there before the daemon: whose it is, it learns in its own time.
    let mut text = String::new();
    until("it is known whose connection it is", || {
        let answer = giveway(&["why", &std::process::id().to_string()]);
        text = String::from_utf8(answer.stdout).unwrap();
        answer.status.success() && text.contains("cwnd cap")
    });
    assert!(
        text.contains("cwnd cap none -> 346 segments; rule fixed: ") && text.contains("20 Mbit/s x 256 ms"),
        "{text}"
    );
    let port = near.peer_addr().unwrap().port().to_string();
    assert!(text.contains(&port), "of which connection? {text}");
}

#[test]
fn the_engine_knows_whose_a_flow_is() {
    let lab = Lab::enter();
    let (near, _far) = upload(&lab);
    let daemon = Daemon::start(&["--interface", "gwv"]);
    let local = near.local_addr().unwrap().to_string();
    let own = std::fs::read_link("/proc/self/exe").unwrap();
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
    let expected = [json!(std::process::id()), json!(0), json!(own), json!(cgroup)];
    let mut found = json!(null);
    let read = std::panic::AssertUnwindSafe(|| {
        until("the owner is read", || {
            let flows = daemon.status()["flows"].as_array().unwrap().clone();
            found = json!(flows.iter().find(|flow| flow["local"] == local));
            ["pid", "uid", "exe", "cgroup"].map(|key| found[key].clone()) == expected
        })
    });
    assert!(std::panic::catch_unwind(read).is_ok(), "{expected:?}: {found}");
}

#[test]
fn a_dry_run_explains_and_changes_nothing() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let config = Scratch::new("dry.toml", PAPER);
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv", "--dry-run"]);
    until("it would cap", || {
        daemon.status()["changes"].as_array().is_some_and(|c| !c.is_empty())
    });
    let passes = || daemon.status()["polls"]["count"].as_u64().unwrap();
    let enough = passes() + 5;
    until("some polls more", || passes() >= enough);
    let status = daemon.status();
    let changes = status["changes"].as_array().unwrap();
    assert!(changes.iter().all(|change| change["made"] == false), "{status}");
    assert!(!status["changes"].to_string().contains("another tool"), "{status}");
    assert!(
        status["flows"].as_array().unwrap().iter().all(|f| f["clamp"].is_null()),
        "{status}"
    );
}

#[test]
fn sigterm_undoes_everything_and_exits_0() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (mut daemon, _config) = capping_daemon("term.toml");
    assert_eq!(clamped(&mut monitor), 1);
    signal(&daemon, Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(clamped(&mut monitor), 0);
}

#[test]
fn sigkill_leaves_no_cap_within_a_second() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (daemon, _config) = capping_daemon("kill.toml");
    assert_eq!(clamped(&mut monitor), 1);
    let took = daemon.kill();
    assert_eq!(clamped(&mut monitor), 0);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// As a daemon of an earlier version left it under umask 0, and a user then wrote it.
#[test]
fn a_cookie_that_others_could_write_keeps_nothing_from_being_restore() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (daemon, _config) = capping_daemon("cookie.toml");
    kill_both(daemon);
    assert_eq!(clamped(&mut monitor), 1);
    let cookie = state_folder().join("cookie");
    fs::set_permissions(&cookie, fs::Permissions::from_mode(0o666)).unwrap();
    super::limits::as_user(NOBODY, || fs::write(&cookie, "1\n")).unwrap();
    let told = String::from_utf8(giveway(&["revert"]).stdout).unwrap();
    assert_eq!(clamped(&mut monitor), 0, "{told}");
    assert!(told.contains("1 left-over socket restored"), "{told}");
}

#[test]
fn with_the_watchdog_killed_too_the_next_start_undoes_it() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (daemon, _config) = capping_daemon("both.toml");
    kill_both(daemon);
    assert_eq!(clamped(&mut monitor), 1, "nobody is left to clear it");
    let _next = Daemon::start(&["--interface", "gwv"]);
    assert_eq!(clamped(&mut monitor), 0);
}

#[test]
fn revert_ends_a_running_daemon_and_undoes_its_work() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (mut daemon, _config) = capping_daemon("revert.toml");
    assert!(giveway(&["revert"]).status.success());
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(clamped(&mut monitor), 0);
}

#[test]
fn a_record_is_read_back_and_drawn() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let (_daemon, _config) = capping_daemon("record.toml");
    let record = Scratch::new("record.jsonl", "");
    let picture = Scratch::new("record.svg", "");
    let mut recording = std::process::Command::new(program())
        .args(["record", record.path()])
        .spawn()
        .unwrap();
    let _more = upload(&lab);
    until("some lines are there", || {
        std::fs::read_to_string(&record.0).unwrap().lines().count() > 50
    });
    kill(Pid::from_raw(recording.id() as i32), Signal::SIGINT).unwrap();
    assert!(recording.wait().unwrap().success());
    let drawn = giveway(&["plot", record.path(), "-o", picture.path()]);
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    assert!(
        std::fs::read_to_string(&picture.0)
            .unwrap()
            .contains("smoothed RTT, ms")
    );
}

/// A connection whose clamp is a locked metric of its route, which is what giveway sets on the others.
fn routed_clamp(lab: &Lab, monitor: &mut FlowMonitor) -> (TcpStream, TcpStream) {
    run(&format!("ip -6 route replace {FAR_V6} dev gwv cwnd lock {ALONE}"));
    let mut kept = None;
    // The kernel takes a route's metrics over when the first connection to a host ends.
    until("the route's clamp", || {
        let (near, far) = lab.connect(FAR_V6);
        let is_clamped = scanned(monitor, &near).clamp == Some(ALONE as u32);
        near.shutdown(std::net::Shutdown::Write).unwrap();
        kept = is_clamped.then(|| lab.connect(FAR_V6));
        drop(far);
        is_clamped
    });
    kept.unwrap()
}

#[test]
fn a_clamp_of_anothers_that_equals_ours_survives_the_daemons_death_and_revert() {
    let lab = Lab::enter();
    let mut monitor = lab.monitor();
    let anothers = routed_clamp(&lab, &mut monitor);
    let ours = upload(&lab);
    let clamps = |monitor: &mut FlowMonitor| [&anothers, &ours].map(|(near, _)| scanned(monitor, near).clamp);
    let both = Some(ALONE as u32);
    for watchdog_dies in [false, true] {
        let (daemon, _config) = capping_daemon("equal.toml");
        assert_eq!(clamps(&mut monitor), [both, both]);
        if watchdog_dies {
            kill_both(daemon);
            assert_eq!(clamps(&mut monitor), [both, both], "nobody is left to clear it");
            assert!(giveway(&["revert"]).status.success());
        } else {
            signal(&daemon, Signal::SIGKILL);
            until("the watchdog clears the cap", || clamps(&mut monitor)[1].is_none());
        }
        assert_eq!(clamps(&mut monitor), [both, None]);
    }
}

#[test]
fn what_is_mounted_and_pinned_is_gone_at_the_end_and_is_for_root_alone() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let (shared, own) = pins();
    let pinned = || {
        [&shared, &own]
            .into_iter()
            .find(|folder| folder.join("gw_saved_socks").exists())
    };
    for end in [Signal::SIGTERM, Signal::SIGKILL] {
        let (mut daemon, _config) = capping_daemon("pins.toml");
        let folder = pinned().expect("marks are pinned");
        assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(
            fs::metadata(state_folder()).unwrap().permissions().mode() & 0o777,
            0o711
        );
        signal(&daemon, end);
        daemon.0.wait().unwrap();
        until("nothing is left", || !shared.exists() && !own.exists());
    }
}

#[test]
fn should_the_pin_be_removed_the_watchdog_still_holds_the_marks() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (daemon, _config) = capping_daemon("held.toml");
    until("the watchdog holds the marks", || {
        let held = fs::read_dir(format!("/proc/{}/fdinfo", daemon.watchdog())).unwrap();
        // BPF_MAP_TYPE_SK_STORAGE
        let is_storage = |text: String| text.lines().any(|line| line == "map_type:\t24");
        held.flatten()
            .any(|fd| fs::read_to_string(fd.path()).is_ok_and(is_storage))
    });
    let (shared, own) = pins();
    let pin = [shared, own].map(|folder| folder.join("gw_saved_socks")).into_iter();
    pin.filter(|pin| pin.exists())
        .for_each(|pin| fs::remove_file(pin).unwrap());
    signal(&daemon, Signal::SIGKILL);
    until("the watchdog clears the cap", || clamped(&mut monitor) == 0);
}

/// Where marks can be pinned: in the machine's BPF file system, and in one of giveway's own.
fn pins() -> (PathBuf, PathBuf) {
    let shared = format!("/sys/fs/bpf/giveway-netns-{}", own_netns().unwrap());
    (shared.into(), state_folder().join("bpf"))
}

#[test]
fn where_marks_cannot_be_pinned_caps_are_undone_by_value_and_status_says_so() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (shared, own) = pins();
    fs::create_dir_all(state_folder()).unwrap();
    // Neither folder can be made where something else has its name.
    fs::write(&own, "").unwrap();
    let _ = symlink("/nowhere", &shared);
    let (daemon, _config) = capping_daemon("value.toml");
    let warnings = daemon.status()["warnings"].to_string();
    assert!(warnings.contains("cleared by value"), "{warnings}");
    let journal = fs::read_to_string(state_folder().join("sockets")).unwrap();
    assert!(journal.contains(&format!("{{\"value\":{ALONE}}}")), "{journal}");
    signal(&daemon, Signal::SIGKILL);
    until("the watchdog clears the cap", || clamped(&mut monitor) == 0);
    drop(daemon);
    let (daemon, _config) = capping_daemon("value.toml");
    kill_both(daemon);
    assert!(giveway(&["revert"]).status.success());
    assert_eq!(clamped(&mut monitor), 0);
    for path in [own, shared] {
        let _ = fs::remove_file(path);
    }
}

/// Another owner of clamps.
fn clamp_as_another(cookie: Cookie, cap: u32) {
    let mut actuator = CapActuator::open(own_netns().unwrap()).unwrap();
    assert!(matches!(
        actuator.write([(cookie, Some(cap))]).unwrap()[0].result,
        CapResult::Applied { .. }
    ));
}

#[test]
fn what_a_namespace_that_is_gone_left_behind_is_not_restore_here() {
    let lab = Lab::enter();
    let mut monitor = lab.monitor();
    let (near, _far) = lab.connect(FAR_V4);
    let cookie = scanned(&mut monitor, &near).cookie;
    clamp_as_another(cookie, 77);
    let own = own_netns_cookie().unwrap();
    let folder = state_folder();
    fs::create_dir_all(&folder).unwrap();
    for (of, clamp) in [(own + 1, Some(77)), (own, None)] {
        fs::write(folder.join("cookie"), format!("{of}\n")).unwrap();
        fs::write(folder.join("sockets"), "{\"value\":77}\n").unwrap();
        let found = giveway(&["revert", "--dry-run", "--json"]).stdout;
        let found: serde_json::Value = serde_json::from_slice(&found).unwrap();
        assert_eq!(found["sockets_found"], u64::from(clamp.is_none()), "{found}");
        assert!(giveway(&["revert"]).status.success());
        assert_eq!(scanned(&mut monitor, &near).clamp, clamp);
        assert!(!folder.join("sockets").exists());
        assert_eq!(fs::read_to_string(folder.join("cookie")).unwrap(), format!("{own}\n"));
    }
}

#[test]
fn others_folders_are_cleared_where_nobody_holds_them_and_nothing_is_journalled() {
    let _lab = Lab::enter();
    let folder = |name: &str, journal: &str| {
        // No namespace has such a number.
        let path = PathBuf::from(format!("/run/giveway/netns-{}{name}", std::process::id() % 1000));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("lock"), "1\n").unwrap();
        fs::write(path.join("queue"), journal).unwrap();
        path
    };
    let (empty, journalled, held) = (folder("01", ""), folder("02", "{}\n"), folder("03", ""));
    let lock = fs::File::open(held.join("lock")).unwrap();
    lock.lock().unwrap();
    assert!(giveway(&["revert"]).status.success());
    assert_eq!(
        [&empty, &journalled, &held].map(|path| path.exists()),
        [false, true, true]
    );
    drop(lock);
    fs::write(journalled.join("queue"), "").unwrap();
    assert!(giveway(&["revert"]).status.success());
    assert_eq!([&empty, &journalled, &held].map(|path| path.exists()), [false; 3]);
}

#[test]
fn what_both_left_behind_of_a_namespace_that_is_gone_is_cleared_by_the_next_revert_anywhere() {
    let _lab = Lab::enter();
    // The namespace goes with its thread.
    let dying = std::thread::spawn(|| {
        let lab = Lab::enter();
        let _ends = upload(&lab);
        let (daemon, _config) = capping_daemon("gone.toml");
        kill_both(daemon);
        state_folder()
    });
    let folder = dying.join().unwrap();
    assert!(folder.join("sockets").exists());
    until("it is cleared", || {
        assert!(giveway(&["revert"]).status.success());
        !folder.exists()
    });
    let mounts = fs::read_to_string("/proc/1/mounts").unwrap();
    assert!(!mounts.contains(folder.to_str().unwrap()), "{mounts}");
}

#[test]
fn a_journal_that_cannot_be_read_keeps_nothing_from_being_undone() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (daemon, _config) = capping_daemon("garbage.toml");
    kill_both(daemon);
    let folder = state_folder();
    fs::write(folder.join("realtime"), "garbage\n").unwrap();
    fs::create_dir(folder.join("queue")).unwrap();
    let reverted = giveway(&["revert", "--json"]);
    assert_eq!(reverted.status.code(), Some(1));
    let told: serde_json::Value = serde_json::from_slice(&reverted.stdout).unwrap();
    assert_eq!(
        (&told["sockets_restored"], told["failed"].as_array().unwrap().len()),
        (&1.into(), 2),
        "{told}"
    );
    assert_eq!(clamped(&mut monitor), 0);
    let next = Daemon::start(&["--interface", "gwv"]);
    let warnings = next.status()["warnings"].to_string();
    assert!(
        warnings.contains("queue: it is not a regular file") && !warnings.contains("garbage"),
        "{warnings}"
    );
    drop(next);
    fs::remove_dir(folder.join("queue")).unwrap();
    assert!(giveway(&["revert"]).status.success());
}

#[test]
fn revert_fails_once_where_the_marks_are_lost_and_caps_stay() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (daemon, _config) = capping_daemon("lost.toml");
    let journal = fs::read_to_string(state_folder().join("sockets")).unwrap();
    let id = journal
        .split("\"map_id\":")
        .nth(1)
        .and_then(|rest| rest.split('}').next());
    let id: u32 = id.and_then(|id| id.parse().ok()).expect(&journal);
    kill_both(daemon);
    let (shared, own) = pins();
    let lost = [shared, own].map(|pins| fs::remove_file(pins.join("gw_saved_socks")).is_ok());
    assert_eq!(lost.iter().filter(|lost| **lost).count(), 1, "pinned in one of the two");
    // The kernel frees it late; as long as it is there, `revert` finds it.
    until("the marks are gone", || MapHandle::from_map_id(id).is_err());
    let (reason, code) = failure(&giveway(&["revert"]));
    assert!(
        code == 1 && reason.contains("the saved state of sockets is gone"),
        "{code}: {reason}"
    );
    assert_eq!(clamped(&mut monitor), 1);
    assert!(
        giveway(&["revert"]).status.success(),
        "nothing can be done about it again"
    );
}

#[test]
fn revert_undoes_where_nothing_can_be_written() {
    let lab = Lab::enter();
    let _ends = upload(&lab);
    let mut monitor = lab.monitor();
    let (daemon, _config) = capping_daemon("full.toml");
    kill_both(daemon);
    fs::remove_file(state_folder().join("cookie")).unwrap();
    fs::create_dir(state_folder().join("cookie.new")).unwrap();
    assert!(giveway(&["revert"]).status.success());
    assert_eq!(clamped(&mut monitor), 0);
    // Another namespace may get this number.
    fs::remove_dir(state_folder().join("cookie.new")).unwrap();
}

#[test]
fn a_dry_run_leaves_the_folder_of_a_namespace_that_is_gone() {
    let _lab = Lab::enter();
    let folder = state_folder();
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("cookie"), format!("{}\n", own_netns_cookie().unwrap() + 1)).unwrap();
    fs::write(folder.join("sockets"), "{\"value\":77}\n").unwrap();
    drop(Daemon::start(&["--dry-run"]));
    assert!(folder.join("sockets").exists());
    assert!(giveway(&["revert"]).status.success());
}

#[test]
fn revert_takes_a_daemon_that_ends_without_an_answer_for_dead() {
    let _lab = Lab::enter();
    let folder = state_folder();
    fs::create_dir_all(&folder).unwrap();
    let listener = UnixListener::bind(folder.join("control")).unwrap();
    let dying = std::thread::spawn(move || drop(listener.accept()));
    let reverted = giveway(&["revert"]);
    assert!(
        reverted.status.success(),
        "{}",
        String::from_utf8_lossy(&reverted.stderr)
    );
    dying.join().unwrap();
}
