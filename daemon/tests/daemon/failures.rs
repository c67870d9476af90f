// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each thing that can be wrong gets one clear line: what failed, why, what still works, what to do. Exit
//! code 2 for usage and configuration, 1 for the rest.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::support::lab::Lab;
use crate::support::process::{Copy, Daemon, KillOnDrop, failure, giveway, program};
use crate::support::scratch::Scratch;
use crate::support::wait::until;

fn refused_configuration(name: &str, text: &str) -> String {
    let config = Scratch::new(name, text);
    let (line, code) = failure(&giveway(&["run", "--config", config.path()]));
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("nothing was changed"), "{line}");
    line
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_one() {
    let line = refused_configuration("unknown.toml", "[monitor]\npases_per_second = 10\n");
    assert!(
        line.contains("`monitor.pases_per_second`; did you mean `polls_per_second`?"),
        "{line}"
    );
}

#[test]
fn a_wrong_unit_is_named_with_the_right_one() {
    let line = refused_configuration("unit.toml", "[cap]\ncapacity_kbit = 20000\n");
    assert!(line.contains("did you mean `capacity_mbit`?"), "{line}");
}

#[test]
fn a_configuration_that_is_not_toml_is_refused_in_one_line() {
    let line = refused_configuration("syntax.toml", "[cap\ncapacity_mbit = \n");
    assert!(line.contains("syntax.toml:1: not TOML"), "{line}");
}

/// Who may see nothing must not be told that there is nothing.
#[test]
fn whoever_cannot_see_what_was_changed_is_told_nothing_of_it() {
    let copy = Copy::new("revert");
    for arguments in [&["revert", "--dry-run"][..], &["revert"]] {
        let (line, code) = failure(&copy.as_nobody(arguments));
        assert!(code == 1 && line.contains("only root"), "{line}");
    }
}

#[test]
fn a_configuration_that_is_not_there_is_a_usage_error() {
    let (line, code) = failure(&giveway(&["run", "--config", "/nonexistent/giveway.toml"]));
    assert!(code == 2 && line.contains("/nonexistent/giveway.toml"), "{line}");
}

#[test]
fn an_unknown_command_is_a_usage_error() {
    assert_eq!(giveway(&["yield"]).status.code(), Some(2));
}

#[test]
fn a_key_that_others_can_read_is_refused_and_not_shown() {
    let key = Scratch::new("open.key", &format!("giveway-key-1:{}\n", "5a".repeat(32)));
    fs::set_permissions(&key.0, fs::Permissions::from_mode(0o644)).unwrap();
    let line = refused_configuration(
        "key.toml",
        &format!("[group]\nkey_file = \"{}\"\n", key.path()).replace("\\", "/"),
    );
    assert!(
        line.contains("others may read it (mode 0644)") && !line.contains("5a5a"),
        "{line}"
    );
}

#[test]
fn a_key_that_is_made_is_for_its_owner_only_and_never_printed() {
    let key = Scratch::new("new.key", "");
    fs::remove_file(&key.0).unwrap();
    let made = giveway(&["key", "new", key.path()]);
    assert!(made.status.success());
    let secret = fs::read_to_string(&key.0).unwrap();
    assert_eq!(fs::metadata(&key.0).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!String::from_utf8_lossy(&made.stdout).contains(secret.trim()));
    assert!(
        giveway(&["key", "new", key.path()]).status.success(),
        "a second key, for the change"
    );
    assert!(
        fs::read_to_string(&key.0).unwrap().starts_with(&secret),
        "the first key goes on sealing"
    );
    assert!(!giveway(&["key", "new", key.path()]).status.success(), "never a third");
}

#[test]
fn a_missing_interface_is_named() {
    let _lab = Lab::enter();
    let (line, code) = failure(&giveway(&["run", "--interface", "wlan7"]));
    assert!(
        code == 1 && line.contains("no interface `wlan7`") && line.contains("nothing was changed"),
        "{line}"
    );
}

#[test]
fn the_loopback_is_never_managed() {
    let (line, code) = failure(&giveway(&["run", "--interface", "lo"]));
    assert!(code == 2 && line.contains("`lo` is never managed"), "{line}");
}

#[test]
fn a_second_daemon_in_a_namespace_is_told_who_the_first_one_is() {
    let _lab = Lab::enter();
    let first = Daemon::start(&["--interface", "gwv"]);
    let (line, code) = failure(&giveway(&["run", "--interface", "gwv"]));
    assert!(
        code == 1 && line.contains("already runs") && line.contains(&format!("pid {}", first.0.id())),
        "{line}"
    );
    assert_eq!(first.status()["pid"], first.0.id(), "the first one goes on unharmed");
}

#[test]
fn asking_where_no_daemon_runs_says_how_to_start_one() {
    let _lab = Lab::enter();
    let (line, code) = failure(&giveway(&["status"]));
    assert!(code == 1 && line.contains("`giveway run`"), "{line}");
}

#[test]
fn asking_while_one_starts_says_so() {
    let _lab = Lab::enter();
    let starting = KillOnDrop::spawn(
        Command::new(program())
            .args(["run", "--interface", "gwv"])
            .stderr(Stdio::null()),
    );
    let told = format!("giveway (pid {}) is starting or stopping", starting.id());
    let mut lines = Vec::new();
    // The programs that it loads first take longer than a question.
    until("it answers", || {
        let output = giveway(&["status"]);
        let answers = output.status.success();
        if !answers {
            lines.push(failure(&output).0);
        }
        answers
    });
    assert!(lines.iter().any(|line| line.contains(&told)), "{lines:?}");
}

#[test]
fn without_privileges_it_says_which_are_missing() {
    let copy = Scratch::new("giveway", "");
    fs::copy(program(), &copy.0).unwrap();
    fs::set_permissions(&copy.0, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            copy.path(),
            "run",
        ])
        .output()
        .unwrap();
    let (line, code) = failure(&output);
    assert!(
        code == 1 && line.contains("CAP_BPF") && line.contains("run as root"),
        "{line}"
    );
}

#[test]
fn without_btf_it_says_what_the_kernel_lacks() {
    let _lab = Lab::enter();
    let empty = Scratch::new("no-btf", "");
    let script = format!(
        "mount --bind {} /sys/kernel/btf/vmlinux && exec {} run --interface gwv",
        empty.path(),
        program()
    );
    let (line, code) = failure(
        &Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .output()
            .unwrap(),
    );
    assert!(
        code == 1 && line.contains("BTF") && line.contains("nothing can be watched or changed"),
        "{line}"
    );
}
