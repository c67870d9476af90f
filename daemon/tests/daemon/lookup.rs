// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whatever users do to their own directories and processes, nobody else waits for them: not the threads that give
//! real-time priority, not `status`, not `revert`, and not what undoes everything after a SIGKILL.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use giveway::actuate::thread::attributes::Attributes;
use giveway::place::Place;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::freezer::Frozen;
use crate::support::held::Held;
use crate::support::lab::{Lab, run};
use crate::support::process::{Copy, Daemon, KillOnDrop, giveway, program, signal};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::wait::until;

fn shown(pid: u32) -> String {
    Attributes::of(pid).map_or_else(|errno| errno.to_string(), |found| found.shown())
}

#[track_caller]
fn becomes(pid: u32, wanted: &str) -> Duration {
    until(&format!("process {pid} becomes {wanted}"), || shown(pid) == wanted)
}

/// A shell that waits, of a file that no other test runs.
fn shell(name: &str) -> Scratch {
    Scratch::copy_of("/bin/bash", name)
}

fn waiting(shell: &Scratch, uid: u32) -> KillOnDrop {
    KillOnDrop::spawn(
        Command::new(&shell.0)
            .args(["-c", "read", "a-word"])
            .uid(uid)
            .stdin(Stdio::piped()),
    )
}

fn rule(shell: &Scratch, more: &str) -> String {
    format!("[[priority]]\nexe = \"{}\"\n{more}\n", shell.path())
}

fn daemon_with(config: &Scratch) -> Daemon {
    Daemon::start(&["--config", config.path(), "--interface", "gwv"])
}

/// Its output; it fails where the command takes longer than the patience of tests.
#[track_caller]
fn ended(command: &mut Command) -> (Output, Duration) {
    let start = Instant::now();
    let piped = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = KillOnDrop::spawn(piped);
    until("the command ends", || child.try_wait().unwrap().is_some());
    (child.output(), start.elapsed())
}

#[track_caller]
fn status_answers_in_time() -> serde_json::Value {
    let (output, took) = ended(Command::new(program()).args(["status", "--json"]));
    assert!(
        output.status.success() && took < Duration::from_secs(2),
        "{took:?}: {output:?}"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_users_rule_for_a_path_that_never_answers_keeps_nobody_waiting() {
    let _lab = Lab::enter();
    let program_of_roots = shell("roots");
    let theirs = Scratch::new("file", "");
    let folder = theirs.0.parent().unwrap();
    chown(folder, Some(NOBODY), None).unwrap();
    let grant = format!("[[grant]]\nuser = \"{NOBODY}\"\nmax_priority = 5\n");
    let config = Scratch::new("held.toml", &format!("{}{grant}", rule(&program_of_roots, "")));
    let mut daemon = daemon_with(&config);
    let ordinary = shown(0);
    let copy = Copy::new("held");
    let held = Held::directory(folder);
    for name in ["one", "two", "three"] {
        let path = folder.join(name).display().to_string();
        let add = ["priority", "add", "--exe", &path, "--priority", "5"];
        let (refused, _) = ended(&mut copy.command(&add));
        let line = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && line.contains("a directory on the way, does not answer"),
            "{line}"
        );
    }
    let running = waiting(&program_of_roots, 0);
    becomes(running.id(), "FIFO 20");
    status_answers_in_time();
    // Another user's rule is looked up meanwhile, and root's.
    let more = shell("more");
    let add = ["priority", "add", "--exe", more.path(), "--priority", "11"];
    let (added, _) = ended(Command::new(program()).args(add));
    assert!(added.status.success(), "{added:?}");
    let later = waiting(&more, 0);
    becomes(later.id(), "FIFO 11");
    daemon.signal(Signal::SIGKILL);
    until("the daemon has ended", || daemon.0.try_wait().unwrap().is_some());
    becomes(running.id(), &ordinary);
    becomes(later.id(), &ordinary);
    drop(held);
}

#[test]
fn paths_of_roots_that_a_user_keeps_from_answering_keep_no_other_of_roots_waiting() {
    let _lab = Lab::enter();
    let theirs = Scratch::new("file", "");
    let folder = theirs.0.parent().unwrap();
    chown(folder, Some(NOBODY), None).unwrap();
    let of = |name: &str| {
        let path = folder.join(name);
        format!("[[priority]]\nexe = \"{}\"\nuser = \"{NOBODY}\"\n", path.display())
    };
    let config = Scratch::new("theirs.toml", &["one", "two", "three"].map(of).concat());
    let held = Held::directory(folder);
    let _daemon = daemon_with(&config);
    until("the status names all three", || {
        let warnings = status_answers_in_time()["priority"]["warnings"].to_string();
        warnings.matches("a directory on the way, does not answer").count() == 3
    });
    let more = shell("others");
    let add = ["priority", "add", "--exe", more.path(), "--priority", "11"];
    let (added, _) = ended(Command::new(program()).args(add));
    assert!(added.status.success(), "{added:?}");
    becomes(waiting(&more, 0).id(), "FIFO 11");
    drop(held);
}

#[test]
fn revert_ends_while_a_users_path_does_not_answer() {
    let _lab = Lab::enter();
    let (known, theirs) = (shell("known"), Scratch::new("file", ""));
    let folder = theirs.0.parent().unwrap();
    let held = Held::directory(folder);
    // Root's own configuration names a path that does not answer.
    let silent = rule(&known, "").replace(known.path(), folder.join("silent").to_str().unwrap());
    let config = Scratch::new("silent.toml", &format!("{}{silent}", rule(&known, "")));
    let mut daemon = daemon_with(&config);
    let ordinary = shown(0);
    let running = waiting(&known, 0);
    becomes(running.id(), "FIFO 20");
    until("the status names it", || {
        status_answers_in_time()["priority"]["warnings"]
            .to_string()
            .contains("a directory on the way, does not answer")
    });
    let (reverted, _) = ended(Command::new(program()).arg("revert"));
    assert!(reverted.status.success(), "{reverted:?}");
    until("the daemon has ended", || daemon.0.try_wait().unwrap().is_some());
    assert_eq!(shown(running.id()), ordinary);
    drop(held);
}

#[test]
fn a_start_does_not_wait_for_a_folder_of_rules_that_a_user_holds_and_reads_it_later() {
    let _lab = Lab::enter();
    let rules = Scratch::new("50-test.toml", "[[rule]]\nport = 873\nclass = \"background\"\n");
    let folder = rules.0.parent().unwrap();
    let held = Held::directory(folder);
    let begun = Instant::now();
    let daemon = Daemon::start(&["--interface", "gwv", "--rules", folder.to_str().unwrap()]);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    let status = status_answers_in_time();
    assert!(status["warnings"].to_string().contains("does not answer"), "{status}");
    drop(held);
    until("its rule is active", || {
        let status = daemon.status();
        status["class_rules"] == 1 && !status["warnings"].to_string().contains("does not answer")
    });
}

#[test]
fn a_process_whose_folder_in_proc_is_held_gets_what_it_may_have_and_loses_it() {
    let _lab = Lab::enter();
    let service = shell("service");
    let config = Scratch::new("proc.toml", &rule(&service, &format!("user = \"{NOBODY}\"")));
    let running = waiting(&service, NOBODY);
    let pid = running.id();
    let exe = format!("/proc/{pid}/exe");
    until("it runs", || fs::read_link(&exe).is_ok_and(|exe| exe == service.0));
    let ordinary = shown(pid);
    let threads = Held::directory(format!("/proc/{pid}/task"));
    let held = Held::directory(format!("/proc/{pid}"));
    let mut daemon = daemon_with(&config);
    becomes(pid, "FIFO 20");
    status_answers_in_time();
    daemon.signal(Signal::SIGKILL);
    let took = becomes(pid, &ordinary);
    assert!(took < Duration::from_secs(1), "{took:?}");
    until("the daemon has ended", || daemon.0.try_wait().unwrap().is_some());
    drop((held, threads));
}

/// The process that looks up for a daemon, and lives.
fn broker_of(daemon: u32) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{daemon}/task")).unwrap().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|pids| {
            pids.split_whitespace()
                .map(|pid| pid.parse().unwrap())
                .collect::<Vec<_>>()
        })
        .collect();
    children.into_iter().find(|child| is_broker(*child))
}

fn is_broker(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.contains("look-up"))
}

#[test]
fn who_adds_a_rule_is_told_before_they_give_up() {
    let _lab = Lab::enter();
    let (named, more) = (shell("first"), shell("second"));
    let config = Scratch::new("told.toml", &rule(&named, ""));
    let daemon = daemon_with(&config);
    let broker = broker_of(daemon.0.id()).expect("a rule names a path");
    let add = ["priority", "add", "--exe", more.path(), "--priority", "11"];
    signal(broker, Signal::SIGSTOP);
    let (refused, _) = ended(Command::new(program()).args(add));
    let line = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && line.contains("a directory on the way, does not answer"),
        "{line}"
    );
    assert!(
        !status_answers_in_time()["priority"]["rules"]
            .to_string()
            .contains(more.path())
    );
    signal(broker, Signal::SIGCONT);
    until("it is added", || {
        ended(Command::new(program()).args(add)).0.status.success()
    });
    becomes(waiting(&more, 0).id(), "FIFO 11");
}

#[test]
fn what_looks_up_ends_with_a_daemon_whose_thread_never_does() {
    let _lab = Lab::enter();
    let named = shell("named");
    let config = Scratch::new("left.toml", &rule(&named, ""));
    let mut daemon = daemon_with(&config);
    let broker = broker_of(daemon.0.id()).expect("a rule names a path");
    let frozen = Frozen::new(daemon.0.id(), Some("giveway-rt"));
    daemon.signal(Signal::SIGKILL);
    until("the broker has ended", || !is_broker(broker));
    assert!(daemon.0.try_wait().unwrap().is_none(), "a thread of it waits for good");
    drop(frozen);
    until("the daemon has ended", || daemon.0.try_wait().unwrap().is_some());
}

#[test]
fn a_daemon_that_hangs_is_ended_though_its_folder_in_proc_is_held() {
    let _lab = Lab::enter();
    let service = shell("stopped");
    let config = Scratch::new("stopped.toml", &rule(&service, ""));
    let mut daemon = daemon_with(&config);
    let ordinary = shown(0);
    let running = waiting(&service, 0);
    becomes(running.id(), "FIFO 20");
    let held = [daemon.0.id(), daemon.watchdog()].map(|pid| Held::directory(format!("/proc/{pid}")));
    // What the kernel remembers of names needs no lock.
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    daemon.signal(Signal::SIGSTOP);
    becomes(running.id(), &ordinary);
    drop(held);
    until("the daemon has ended", || daemon.0.try_wait().unwrap().is_some());
}

#[test]
fn who_holds_the_daemons_own_folder_in_proc_keeps_nothing_from_being_undone() {
    let _lab = Lab::enter();
    let service = shell("guarded");
    let config = Scratch::new("guarded.toml", &rule(&service, ""));
    let mut daemon = daemon_with(&config);
    let ordinary = shown(0);
    let running = waiting(&service, 0);
    becomes(running.id(), "FIFO 20");
    let pid = daemon.0.id();
    let held = ["task", ""].map(|folder| Held::directory(format!("/proc/{pid}/{folder}")));
    daemon.signal(Signal::SIGKILL);
    let took = becomes(running.id(), &ordinary);
    assert!(took < Duration::from_secs(1), "{took:?}");
    drop(held);
    until("the daemon has ended", || daemon.0.try_wait().unwrap().is_some());
}

#[test]
fn arguments_that_one_user_keeps_from_being_read_keep_no_other_users_waiting() {
    let _lab = Lab::enter();
    let service = shell("words");
    let by_user = |uid: u32, name: &str| {
        rule(
            &service,
            &format!("name = \"{name}\"\nuser = \"{uid}\"\ncmdline = \"*a-word\""),
        )
    };
    let config = Scratch::new(
        "words.toml",
        &format!("{}{}", by_user(NOBODY, "theirs"), by_user(0, "roots")),
    );
    let crowd: Vec<KillOnDrop> = (0..12).map(|_| waiting(&service, NOBODY)).collect();
    let running = waiting(&service, 0);
    let all = crowd.iter().chain([&running]);
    for one in all {
        let exe = format!("/proc/{}/exe", one.id());
        until("it runs", || fs::read_link(&exe).is_ok_and(|exe| exe == service.0));
    }
    let held: Vec<Held> = crowd
        .iter()
        .map(|one| Held::directory(format!("/proc/{}", one.id())))
        .collect();
    let _daemon = daemon_with(&config);
    becomes(running.id(), "FIFO 20");
    // A new process of the same user is told of with its arguments: nothing has to be read.
    becomes(waiting(&service, NOBODY).id(), "FIFO 20");
    status_answers_in_time();
    drop(held);
    for one in &crowd {
        becomes(one.id(), "FIFO 20");
    }
}

#[test]
fn a_user_who_adds_a_pattern_takes_nothing_from_whose_arguments_cannot_be_read() {
    let _lab = Lab::enter();
    let service = shell("before");
    let grant = format!("[[grant]]\nuser = \"{NOBODY}\"\nmax_priority = 5\n");
    let config = Scratch::new("pattern.toml", &format!("{}{grant}", rule(&service, "")));
    let running = waiting(&service, 0);
    let exe = format!("/proc/{}/exe", running.id());
    until("it runs", || fs::read_link(&exe).is_ok_and(|exe| exe == service.0));
    let _daemon = daemon_with(&config);
    becomes(running.id(), "FIFO 20");
    let held = Held::directory(format!("/proc/{}", running.id()));
    let copy = Copy::new("pattern");
    let add = [
        "priority",
        "add",
        "--exe",
        service.path(),
        "--cmdline",
        "*x*",
        "--priority",
        "5",
    ];
    let (added, _) = ended(&mut copy.command(&add));
    assert!(added.status.success(), "{added:?}");
    // A look-up is given up after a second.
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(shown(running.id()), "FIFO 20");
    drop(held);
}

#[test]
fn no_folder_that_giveway_writes_in_can_be_listed_by_others() {
    let _lab = Lab::enter();
    // As an earlier version left it.
    fs::create_dir_all("/run/giveway").unwrap();
    fs::set_permissions("/run/giveway", Permissions::from_mode(0o755)).unwrap();
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    let state = Place::here().unwrap().control_socket();
    let state = state.parent().unwrap();
    for folder in [Path::new("/run/giveway"), state] {
        let about = fs::metadata(folder).unwrap();
        assert_eq!((about.uid(), about.mode() & 0o777), (0, 0o711), "{}", folder.display());
        let listed = Command::new("ls").arg(folder).uid(NOBODY).gid(NOBODY).output().unwrap();
        assert!(!listed.status.success(), "{listed:?}");
    }
    let pins = state.join("bpf");
    assert!(
        fs::metadata(&pins).is_ok_and(|about| about.mode() & 0o777 == 0o700),
        "{}",
        pins.display()
    );
    // All the same, everybody may ask.
    let copy = Copy::new("asks");
    let refused = copy.as_nobody(&["status"]);
    let line = String::from_utf8_lossy(&refused.stderr);
    assert!(line.contains("only root and the members"), "{line}");
}

/// An access list that gives a user all rights: version 2; owner, the user, group, mask, others.
fn give_all_rights(path: &Path) {
    let entries: [(u16, u16, u32); 5] = [
        (1, 7, u32::MAX),
        (2, 7, NOBODY),
        (4, 5, u32::MAX),
        (16, 7, u32::MAX),
        (32, 5, u32::MAX),
    ];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    rustix::fs::setxattr(path, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty())
        .expect("the file system has access lists");
}

#[test]
fn who_may_write_to_an_executable_or_its_folder_by_an_access_list_must_be_named() {
    let _lab = Lab::enter();
    let (closed, file, folder) = (shell("closed"), shell("file"), shell("folder"));
    give_all_rights(&file.0);
    give_all_rights(folder.0.parent().unwrap());
    let rules = [&closed, &file, &folder].map(|shell| rule(shell, ""));
    let config = Scratch::new("acl.toml", &rules.concat());
    let _daemon = daemon_with(&config);
    let ordinary = shown(0);
    let untrusted = [waiting(&file, 0), waiting(&folder, 0)];
    // It comes after the others, so these are judged.
    becomes(waiting(&closed, 0).id(), "FIFO 20");
    for running in &untrusted {
        assert_eq!(shown(running.id()), ordinary);
    }
    let warnings = status_answers_in_time()["priority"]["warnings"].to_string();
    for path in [file.path(), folder.path()] {
        assert!(
            warnings.contains(&format!("others than root may write to {path}")),
            "{warnings}"
        );
    }
    assert!(giveway(&["revert"]).status.success());
}

/// A daemon for names (nscd) that never answers who asks for a user by name. It knows nobody else, and is there for
/// this thread and what it starts alone.
struct SlowNames {
    asked: Arc<AtomicBool>,
    _folder: TempDir,
}

const OF_NAMES: &str = "/run/nscd";
/// nscd/nscd-client.h of glibc: a user by name, by number; and that there is none.
const BY_NAME: i32 = 0;
const BY_NUMBER: i32 = 1;
const NONE: [i32; 9] = [2, 0, 0, 0, 0, 0, 0, 0, 0];

impl SlowNames {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        run("mount --make-rprivate /");
        fs::create_dir_all(OF_NAMES).unwrap();
        run(&format!("mount --bind {} {OF_NAMES}", folder.path().display()));
        let listener = UnixListener::bind(format!("{OF_NAMES}/socket")).unwrap();
        let asked = Arc::new(AtomicBool::new(false));
        let is_asked = Arc::clone(&asked);
        thread::spawn(move || {
            let mut unanswered = Vec::new();
            for mut client in listener.incoming().flatten() {
                let mut header = [0; 12];
                let kind = client.read_exact(&mut header).ok();
                match kind.map(|()| i32::from_ne_bytes(header[4..8].try_into().unwrap())) {
                    Some(BY_NAME) => {
                        is_asked.store(true, Ordering::Release);
                        unanswered.push(client);
                    }
                    Some(BY_NUMBER) => {
                        let _ = client.write_all(&NONE.map(i32::to_ne_bytes).concat());
                    }
                    _ => {}
                }
            }
        });
        Self { asked, _folder: folder }
    }
}

impl Drop for SlowNames {
    fn drop(&mut self) {
        run(&format!("umount --lazy {OF_NAMES}"));
        fs::remove_dir(OF_NAMES).unwrap();
    }
}

#[test]
fn a_name_of_a_user_that_takes_long_to_look_up_keeps_nobody_waiting() {
    let lab = Lab::enter();
    let names = SlowNames::start();
    let daemon = Daemon::start(&["--interface", "gwv"]);
    let add = ["priority", "add", "--exe", "/bin/true", "--user", "somebody"];
    let adding = KillOnDrop::spawn(Command::new(program()).args(add).stderr(Stdio::null()));
    until("the name is looked up", || names.asked.load(Ordering::Acquire));
    status_answers_in_time();
    drop((adding, daemon, names, lab));
}
