// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The watch over processes: what is asked about is told, and nothing else.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::os::linux::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use giveway::kernel::own_netns;
use giveway::kernel::process::Handle;
use giveway::kernel::task_watch::{TaskChange, TaskEvent, TaskWatch};
use giveway::kernel::tasks::{FileName, Tasks};

use crate::support::lab::Lab;
use crate::support::process::KillOnDrop;
use crate::support::scratch::Scratch;
use crate::support::wait::await_some;

fn inode(file: &Scratch) -> u64 {
    std::fs::metadata(&file.0).unwrap().st_ino()
}

/// Of an exec: what the program was started with.
fn text(event: &TaskEvent) -> &str {
    match &event.what {
        TaskChange::Exec(arguments) => arguments.text.as_deref().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Everything up to the first event that is looked for.
fn until(watch: &mut TaskWatch, what: &str, is_it: impl Fn(&TaskEvent) -> bool) -> Vec<TaskEvent> {
    let mut events = Vec::new();
    await_some(what, || {
        events.extend(watch.events().unwrap());
        events.iter().any(&is_it).then_some(())
    });
    events
}

#[test]
fn only_the_starts_of_watched_files_are_told() {
    let _lab = Lab::enter();
    let mut watch = TaskWatch::open(own_netns().unwrap()).unwrap();
    let watched = Scratch::copy_of("/bin/true", "files");
    watch.watch(BTreeSet::from([inode(&watched)]), BTreeSet::new()).unwrap();
    for _ in 0..50 {
        assert!(Command::new("/bin/true").status().unwrap().success());
    }
    let mut child = Command::new(&watched.0).spawn().unwrap();
    let events = until(&mut watch, "the start", |event| event.id.pid == child.id());
    child.wait().unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(text(&events[0]), watched.path());
    assert_eq!(watch.lost_events().unwrap(), 0);

    watch.watch(BTreeSet::new(), BTreeSet::new()).unwrap();
    assert!(Command::new(&watched.0).status().unwrap().success());
    assert_eq!(watch.events().unwrap(), [], "and no longer");
}

#[test]
fn all_starts_of_a_watched_user_are_told_and_by_the_real_one() {
    let _lab = Lab::enter();
    let mut watch = TaskWatch::open(own_netns().unwrap()).unwrap();
    const USER: u32 = 54_321;
    watch.watch(BTreeSet::new(), BTreeSet::from([USER])).unwrap();
    assert!(Command::new("/bin/true").status().unwrap().success());
    let mut child = Command::new("/bin/true").uid(USER).spawn().unwrap();
    let events = until(&mut watch, "the start", |event| event.id.pid == child.id());
    child.wait().unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
}

#[test]
fn arguments_are_told_as_they_were_and_cut_where_they_are_long() {
    let _lab = Lab::enter();
    let mut watch = TaskWatch::open(own_netns().unwrap()).unwrap();
    let watched = Scratch::copy_of("/bin/true", "arguments");
    watch.watch(BTreeSet::from([inode(&watched)]), BTreeSet::new()).unwrap();
    let long = "x".repeat(10_000);
    for (arguments, expected) in [
        (vec!["a b", "", "c"], format!("{} a b  c", watched.path())),
        (vec![&*long], format!("{} {long}", watched.path())[..4096].to_owned()),
    ] {
        let mut child = Command::new(&watched.0).args(&arguments).spawn().unwrap();
        let events = until(&mut watch, "the start", |event| event.id.pid == child.id());
        child.wait().unwrap();
        assert_eq!(text(&events[0]), expected);
    }
}

#[test]
fn another_namespaces_starts_are_not_told() {
    let lab = Lab::enter();
    let mut watch = TaskWatch::open(own_netns().unwrap()).unwrap();
    let watched = Scratch::copy_of("/bin/true", "netns");
    watch.watch(BTreeSet::from([inode(&watched)]), BTreeSet::new()).unwrap();
    assert!(lab.far(|| Command::new(&watched.0).status().unwrap().success()));
    let mut child = Command::new(&watched.0).spawn().unwrap();
    let events = until(&mut watch, "the start here", |event| event.id.pid == child.id());
    child.wait().unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
}

#[test]
fn of_a_held_process_execs_threads_and_the_end_are_told_with_its_cpu_time() {
    let _lab = Lab::enter();
    let mut watch = TaskWatch::open(own_netns().unwrap()).unwrap();
    let script = "echo ready; read; i=0; while ((i < 300000)); do ((++i)); done; exec /bin/sleep 0.01";
    let mut command = Command::new("bash");
    command
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = KillOnDrop::spawn(&mut command);
    let handle = Handle::open(child.id()).unwrap();
    // Spawning returns before the tracepoint of the exec: that one is over when the program speaks.
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    watch.hold(child.id()).unwrap();
    drop(child.stdin.take());
    let is_end = |event: &TaskEvent| event.id.pid == handle.pid && matches!(event.what, TaskChange::Exit { .. });
    let events = until(&mut watch, "the end", is_end);
    // Until it is waited for, its clock can be read.
    let used = handle.cpu();
    child.wait().unwrap();
    assert_eq!(events.len(), 2, "nobody else: {events:?}");
    assert_eq!(text(&events[0]), "/bin/sleep 0.01");
    assert_eq!(
        events[0].id, events[1].id,
        "an exec does not make another process of it"
    );
    let TaskChange::Exit { cpu } = events[1].what else {
        panic!("{events:?}")
    };
    let least = used - used / 10;
    assert!(
        used > Duration::from_millis(50) && (least..=used).contains(&cpu),
        "{cpu:?} of {used:?}"
    );
    assert!(events.is_sorted_by_key(|event| event.at));
}

#[test]
fn more_files_than_can_be_watched_leave_the_watch_as_good_as_before() {
    let _lab = Lab::enter();
    let mut watch = TaskWatch::open(own_netns().unwrap()).unwrap();
    let watched = Scratch::copy_of("/bin/true", "full");
    let wanted = BTreeSet::from([inode(&watched)]);
    for too_many in [1..=10_000, 5_000..=20_000] {
        watch.watch(too_many.collect(), BTreeSet::new()).unwrap_err();
    }
    watch.watch(wanted, BTreeSet::new()).unwrap();
    let mut child = Command::new(&watched.0).spawn().unwrap();
    until(&mut watch, "the start", |event| event.id.pid == child.id());
    child.wait().unwrap();
}

#[test]
fn an_executable_that_was_replaced_is_told_by_the_place_that_it_had() {
    let _lab = Lab::enter();
    let tasks = Tasks::load(own_netns().unwrap()).unwrap();
    let program = Scratch::copy_of("/bin/sleep", "replaced");
    let folder = std::fs::metadata(program.0.parent().unwrap()).unwrap().st_ino();
    let child = KillOnDrop::spawn(Command::new(&program.0).arg("60"));
    let facts = await_some("it is executed", || {
        let facts = tasks.process(child.id()).unwrap()?;
        (facts.file.inode == inode(&program)).then_some(facts)
    });
    let name = FileName {
        directory: folder,
        name: "replaced".to_owned(),
        is_gone: false,
    };
    assert_eq!(facts.file_name, name);
    let new = format!("{}.new", program.path());
    std::fs::copy(&program.0, &new).unwrap();
    std::fs::rename(new, &program.0).unwrap();
    let after = tasks.process(child.id()).unwrap().unwrap();
    assert_eq!(after.file_name, FileName { is_gone: true, ..name });
    assert_eq!(
        (after.image, after.execs, after.file),
        (facts.image, facts.execs, facts.file)
    );
    let listed = tasks.processes().unwrap();
    let listed = listed.iter().find(|listed| listed.pid == child.id()).unwrap();
    assert_eq!(listed.gone_from, Some(folder));
}
