// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs whose file is replaced while they run, as each package upgrade does: what they were when they were executed
//! counts until they execute anew. Each test's program is a shell in a folder of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::daemon::classes::{Rules, flow_to, has_class, rule, talk};
use crate::daemon::realtime::{becomes, not_raised, shown};
use crate::support::lab::{FAR_V4, Lab, run};
use crate::support::process::{Daemon, KillOnDrop};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::wait::until;

/// A process and the path that led to it are looked at once a second.
const LOOKED_TWICE: Duration = Duration::from_millis(2500);

fn shell(name: &str) -> Scratch {
    Scratch::copy_of("/bin/bash", name)
}

fn replace(program: &Scratch) {
    let path = program.path();
    run(&format!("cp /bin/bash {path}.new"));
    run(&format!("mv {path}.new {path}"));
}

fn replace_and_keep_aside(program: &Scratch) -> String {
    let aside = format!("{}.old", program.path());
    run(&format!("mv {} {aside}", program.path()));
    run(&format!("cp /bin/bash {}", program.path()));
    aside
}

fn start(program: &str, script: &str) -> KillOnDrop {
    let mut command = Command::new(program);
    command.args(["-c", script]).stdout(Stdio::null()).stderr(Stdio::null());
    KillOnDrop::spawn(&mut command)
}

/// Sleeps, and executes nothing for it.
fn waiter(program: &Scratch) -> KillOnDrop {
    start(program.path(), "coproc { read; }; read -t 60 -u ${COPROC[0]}")
}

#[track_caller]
fn keeps(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while start.elapsed() < LOOKED_TWICE {
        assert!(condition(), "no longer after {:?}: {what}", start.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
}

#[track_caller]
fn assert_deleted(process: &KillOnDrop) {
    let exe = fs::read_link(format!("/proc/{}/exe", process.id())).unwrap();
    assert!(exe.to_str().unwrap().ends_with(" (deleted)"), "{}", exe.display());
}

fn exe_rule(program: &Scratch) -> String {
    rule(&format!("exe = \"{}\"", program.path()), "bulk")
}

fn realtime_config(program: &Scratch) -> Scratch {
    let rule = format!("[[priority]]\nname = \"test\"\nexe = \"{}\"\n", program.path());
    Scratch::new("realtime.toml", &rule)
}

#[test]
fn a_program_keeps_its_class_while_its_file_is_replaced() {
    let (lab, rules, program) = (Lab::enter(), Rules::new(), shell("gw-upgraded"));
    rules.write("50-test.toml", &exe_rule(&program));
    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    let [port, second, third, aside_port] = [(); 4].map(|()| lab.reader());
    let first = start(program.path(), &talk(port));
    until("the first version has its class", || has_class(&daemon, port, "bulk"));
    replace(&program);
    assert_deleted(&first);
    let _second = start(program.path(), &talk(second));
    until("the second version has it", || has_class(&daemon, second, "bulk"));
    keeps("the first version has it", || has_class(&daemon, port, "bulk"));

    let aside = replace_and_keep_aside(&program);
    let _third = start(program.path(), &talk(third));
    let _aside = start(&aside, &talk(aside_port));
    until("the third version has its class", || has_class(&daemon, third, "bulk"));
    keeps("the first and second have it", || {
        has_class(&daemon, port, "bulk") && has_class(&daemon, second, "bulk")
    });
    assert_eq!(
        flow_to(&daemon, aside_port)["class"],
        "standard",
        "it was executed by another name"
    );
}

#[test]
fn a_program_that_was_replaced_before_the_daemon_started_has_its_class_until_it_executes_another() {
    let (lab, rules, program) = (Lab::enter(), Rules::new(), shell("gw-before"));
    let next = shell("gw-next");
    let of_next = rule(&format!("exe = \"{}\"", next.path()), "stream");
    rules.write("50-test.toml", &(exe_rule(&program) + &of_next));
    let arguments = ["--rules", rules.path(), "--interface", "gwv"];
    let port = lab.reader();
    let goes_on = format!("{}.goes-on", program.path());
    let first =
        format!("exec 3<>/dev/tcp/{FAR_V4}/{port}; until [ -e {goes_on} ]; do echo x >&3; sleep 0.1 3>&-; done");
    let then = format!("exec {} -c 'while echo x >&3; do sleep 0.1 3>&-; done'", next.path());
    let process = start(program.path(), &format!("{first}; {then}"));
    replace(&program);
    assert_deleted(&process);
    for start in ["first", "second"] {
        let daemon = Daemon::start(&arguments);
        until(&format!("it has its class at the {start} start"), || {
            has_class(&daemon, port, "bulk")
        });
        daemon.kill();
    }
    let daemon = Daemon::start(&arguments);
    until("it has its class", || has_class(&daemon, port, "bulk"));
    fs::write(goes_on, "").unwrap();
    until("what it executes has its own", || has_class(&daemon, port, "stream"));
}

#[test]
fn a_deleted_file_of_the_same_path_is_another_program_in_anybody_elses_folder_or_of_another_owner() {
    let (lab, rules, program) = (Lab::enter(), Rules::new(), shell("gw-alike"));
    rules.write("50-test.toml", &exe_rule(&program));
    let folder = program.0.parent().unwrap().to_str().unwrap().to_owned();
    let name = program.0.file_name().unwrap().to_str().unwrap();
    let ports = [(); 4].map(|()| lab.reader());
    let as_nobody = |path: &str, port: u16| {
        let mut command = Command::new(path);
        command.args(["-c", &talk(port)]).uid(NOBODY).gid(NOBODY);
        KillOnDrop::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))
    };
    let mut processes = Vec::new();
    // Of a user who may write to the folder of the path, where it was before root's came there.
    chown(program.path(), Some(NOBODY), None).unwrap();
    processes.push(as_nobody(program.path(), ports[0]));
    until("it runs", || runs_from(&processes[0], program.path()));
    fs::remove_file(program.path()).unwrap();
    run(&format!("cp /bin/bash {}", program.path()));
    // Their own, and one of root's, in a folder of theirs that they have mounted over the path's.
    for (port, owner) in [(ports[1], NOBODY), (ports[2], 0)] {
        let theirs = shell(name);
        let directory = theirs.0.parent().unwrap();
        chown(directory, Some(NOBODY), None).unwrap();
        chown(theirs.path(), Some(owner), None).unwrap();
        let talk = talk(port);
        let script = format!(
            "mount --bind {} {folder}; exec setpriv --reuid {NOBODY} --clear-groups {} -c '{talk}'",
            directory.display(),
            program.path()
        );
        let mut command = Command::new("unshare");
        command
            .args(["-m", "bash", "-c", &script])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = KillOnDrop::spawn(&mut command);
        until("it runs", || runs_from(&process, program.path()));
        fs::remove_file(theirs.path()).unwrap();
        processes.push(process);
    }
    // The rule's own, replaced.
    processes.push(start(program.path(), &talk(ports[3])));
    until("it runs", || runs_from(&processes[3], program.path()));
    replace(&program);
    processes.iter().for_each(assert_deleted);

    let daemon = Daemon::start(&["--rules", rules.path(), "--interface", "gwv"]);
    until("the rule's own has its class", || has_class(&daemon, ports[3], "bulk"));
    keeps("the others have none", || {
        ports[..3].iter().all(|port| has_class(&daemon, *port, "standard"))
    });
}

fn runs_from(process: &KillOnDrop, path: &str) -> bool {
    fs::read_link(format!("/proc/{}/exe", process.id())).is_ok_and(|exe| exe == Path::new(path))
}

#[test]
fn a_program_keeps_real_time_priority_while_its_file_is_replaced_and_has_it_after_it_executes_the_new_one() {
    let (_lab, program) = (Lab::enter(), shell("gw-control-loop"));
    let config = realtime_config(&program);
    let _daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    let goes_on = format!("{}.goes-on", program.path());
    let again = format!(
        "exec {} -c 'coproc {{ read; }}; read -t 60 -u ${{COPROC[0]}}'",
        program.path()
    );
    let script = format!("until [ -e {goes_on} ]; do sleep 0.05; done; {again}");
    let [first, other] = [(); 2].map(|()| start(program.path(), &script));
    becomes(first.id(), "FIFO 20");
    becomes(other.id(), "FIFO 20");
    replace(&program);
    assert_deleted(&first);
    // The daemon knows of the new file by then.
    becomes(waiter(&program).id(), "FIFO 20");
    keeps("it has real-time priority", || shown(first.id()) == "FIFO 20");
    let aside = replace_and_keep_aside(&program);
    let second = waiter(&program);
    becomes(second.id(), "FIFO 20");
    let by_another_name = start(&aside, "coproc { read; }; read -t 60 -u ${COPROC[0]}");
    keeps("it has real-time priority", || shown(first.id()) == "FIFO 20");
    assert_eq!(shown(by_another_name.id()), not_raised());
    fs::write(goes_on, "").unwrap();
    until("it executes the new file", || runs_from(&first, program.path()));
    becomes(first.id(), "FIFO 20");
}

#[test]
fn a_program_that_was_replaced_before_the_daemon_started_gets_real_time_priority() {
    let (_lab, program) = (Lab::enter(), shell("gw-loop-before"));
    let config = realtime_config(&program);
    let running = waiter(&program);
    replace(&program);
    assert_deleted(&running);
    for _ in 0..2 {
        let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
        becomes(running.id(), "FIFO 20");
        daemon.kill();
        becomes(running.id(), &not_raised());
    }
}

#[test]
fn a_deleted_file_of_a_users_gets_no_real_time_priority() {
    let (_lab, program) = (Lab::enter(), shell("gw-loop-alike"));
    let config = realtime_config(&program);
    // Everybody may put files there, as in /tmp.
    fs::set_permissions(program.0.parent().unwrap(), Permissions::from_mode(0o1777)).unwrap();
    chown(program.path(), Some(NOBODY), None).unwrap();
    let theirs = waiter(&program);
    until("it runs", || runs_from(&theirs, program.path()));
    fs::remove_file(program.path()).unwrap();
    run(&format!("cp /bin/bash {}", program.path()));
    let roots = waiter(&program);
    until("it runs", || runs_from(&roots, program.path()));
    replace(&program);
    assert_deleted(&theirs);
    assert_deleted(&roots);
    let _daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    becomes(roots.id(), "FIFO 20");
    assert_eq!(shown(theirs.id()), not_raised());
}
