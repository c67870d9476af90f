// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway exec`: the command is the process, and gets no more than its user may have.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::lab::Lab;
use crate::support::process::{Copy, Daemon, failure, giveway};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::wait::until;

/// Prints the shell's own policy and priority, and its limit of real time.
const SHOW: &str = "chrt -p $$; ulimit -R 2>/dev/null || prlimit --rttime --noheadings -o SOFT,HARD -p $$";

#[test]
fn the_exit_code_is_the_commands_own() {
    assert_eq!(giveway(&["exec", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
}

#[test]
fn a_signal_ends_the_command_and_nothing_stands_between() {
    for number in [15, 13] {
        let killed = giveway(&["exec", "--", "sh", "-c", &format!("kill -{number} $$")]);
        assert_eq!(killed.status.signal(), Some(number));
    }
    let same = giveway(&["exec", "--", "sh", "-c", "trap 'exit 9' USR1; kill -USR1 $$; exit 1"]);
    assert_eq!(same.status.code(), Some(9));
}

#[test]
fn what_cannot_be_run_has_the_codes_of_env() {
    for (command, code) in [("/nonexistent/command", 127), ("/dev/null", 126)] {
        let ran = giveway(&["exec", "--", command]);
        let said = String::from_utf8_lossy(&ran.stderr);
        let [nothing_asked, refused] = said.lines().collect::<Vec<_>>()[..] else {
            panic!("not two lines: {said}");
        };
        assert!(nothing_asked.ends_with("so the command runs as it is"), "{said}");
        let expected = format!("giveway: cannot run `{command}`: E");
        assert!(refused.starts_with(&expected), "{said}");
        assert_eq!(ran.status.code(), Some(code));
    }
}

#[test]
fn without_a_daemon_the_command_runs_and_a_line_says_what_it_lacks() {
    let _lab = Lab::enter();
    let ran = giveway(&["exec", "--priority", "10", "--", "sh", "-c", "exit 7"]);
    let (line, code) = failure(&ran);
    assert!(
        code == 7 && line.contains("running the command without it") && line.contains("giveway run"),
        "{line}"
    );
    let (line, code) = failure(&giveway(&["exec", "--priority", "10", "--require", "--", "true"]));
    assert!(code == 125 && line.contains("command not run"), "{line}");
}

#[test]
fn root_gets_the_priority_with_a_limit_and_children_do_not_inherit_it() {
    let lab = Lab::enter();
    let daemon = Daemon::start(&["--interface", "gwv"]);
    let ran = giveway(&[
        "exec",
        "--priority",
        "10",
        "--require",
        "--",
        "sh",
        "-c",
        &format!("{SHOW}; sh -c 'chrt -p $$'"),
    ]);
    let text = shown(&ran);
    let mut policies = text.lines().filter(|line| line.contains("policy"));
    assert!(
        policies.next().is_some_and(|line| line.contains("SCHED_FIFO")),
        "{text}"
    );
    assert!(
        policies.next().is_some_and(|line| line.contains("SCHED_OTHER")),
        "{text}"
    );
    assert!(text.contains("priority: 10") && text.contains("1000000"), "{text}");
    let reason = String::from_utf8(giveway(&["why"]).stdout).unwrap();
    assert!(reason.contains("-> FIFO 10; rule giveway exec by uid 0"), "{reason}");
    drop((daemon, lab));
}

#[test]
fn a_user_gets_what_the_configuration_grants_and_no_more() {
    let lab = Lab::enter();
    let config = Scratch::new(
        "grant.toml",
        &format!("[[grant]]\nuser = \"{NOBODY}\"\nmax_priority = 5\n"),
    );
    let daemon = Daemon::start(&["--interface", "gwv", "--config", config.path()]);
    let copy = Copy::new("granted");
    let within = copy.as_nobody(&["exec", "--priority", "5", "--require", "--", "sh", "-c", SHOW]);
    assert!(shown(&within).contains("SCHED_FIFO"), "{within:?}");
    let (line, code) = failure(&copy.as_nobody(&["exec", "--priority", "6", "--require", "--", "true"]));
    assert!(code == 125 && line.contains("from 1 to 5"), "{line}");
    let (line, _) =
        failure(&copy.as_nobody(&["priority", "add", "--exe", "/bin/sh", "--user", "0", "--priority", "5"]));
    assert!(line.contains("processes of their own"), "{line}");
    let listed = copy.as_nobody(&["priority", "list"]);
    assert!(listed.status.success(), "what is the user's own: {listed:?}");
    let (line, _) = failure(&copy.as_nobody(&["status"]));
    assert!(line.contains("only root and the members of the group"), "{line}");
    drop((daemon, lab));
}

#[test]
fn who_lowers_what_it_was_given_has_not_escaped() {
    let lab = Lab::enter();
    let grant = format!("[[grant]]\nuser = \"{NOBODY}\"\nmax_priority = 5\n");
    let config = Scratch::new("lower.toml", &grant);
    let daemon = Daemon::start(&["--interface", "gwv", "--config", config.path()]);
    let copy = Copy::new("lower");
    let script = "chrt -R -f -p 4 $$; read x";
    let arguments = ["exec", "--priority", "5", "--require", "--", "sh", "-c", script];
    let mut command = copy.command(&arguments);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let policy = || {
        let output = Command::new("chrt")
            .args(["-p", &child.id().to_string()])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    until("it lowers itself", || policy().contains("priority: 4"));
    kill(Pid::from_raw(daemon.0.id() as i32), Signal::SIGTERM).unwrap();
    until("it is ordinary", || policy().contains("SCHED_OTHER"));
    drop(child.stdin.take());
    child.wait().unwrap();
    drop((daemon, lab));
}

#[test]
fn who_asks_again_for_what_cannot_be_had_keeps_nothing() {
    let lab = Lab::enter();
    let grant = format!("[[grant]]\nuser = \"{NOBODY}\"\nmax_priority = 5\n");
    let config = Scratch::new("again.toml", &grant);
    let daemon = Daemon::start(&["--interface", "gwv", "--config", config.path()]);
    let copy = Copy::new("again");
    let first = ["exec", "--priority", "5", "--require", "--", "/proc/self/exe"];
    let no_such_cpu = ["exec", "--priority", "5", "--cpus", "8000", "--"];
    let arguments = [&first[..], &no_such_cpu, &["sh", "-c", SHOW]].concat();
    let again = copy.as_nobody(&arguments);
    assert!(shown(&again).contains("SCHED_OTHER"), "{again:?}");
    drop((daemon, lab));
}

fn shown(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
