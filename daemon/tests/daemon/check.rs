// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway config check` says what files come to on this machine, beside a running daemon and without one; and a daemon
//! says the same at its start.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Output;

use crate::support::lab::{Lab, run};
use crate::support::process::{Daemon, giveway};
use crate::support::scratch::Scratch;
use crate::support::wait::until;

fn check(config: &Scratch, options: &[&str]) -> Output {
    giveway(&[&["config", "check", config.path()], options].concat())
}

fn told(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

const LIFTED: &str = "its rate limit does not apply to unconnected UDP sockets";
const A_LIFTED_LIMIT: &str = "[[rule]]\nport = 5005\nclass = \"stream\"\n\
                              [[rule]]\nuser = \"root\"\nclass = \"bulk\"\nrate_limit_mbit = 2\n";

#[test]
fn a_check_beside_a_running_daemon_tells_what_serves_each_link() {
    let _lab = Lab::enter();
    let text = "interface = \"gwv\"\n[link]\nrate_mbit = 20\n[queue]\nbackend = \"htb\"\n";
    let config = Scratch::new("check.toml", text);
    let daemon = Daemon::start(&["--config", config.path()]);
    until("the queue is up", || run("tc qdisc show dev gwv").contains("htb 6777:"));
    let before = run("tc qdisc show dev gwv");
    let output = check(&config, &["--strict"]);
    println!("{:?} {}", output.status.code(), told(&output));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = "gwv: htb at 20000 kbit/s: backend = \"htb\"; gwv has 20 Mbit/s";
    assert!(told(&output).contains(line), "{}", told(&output));
    assert_eq!(run("tc qdisc show dev gwv"), before);
    assert!(!daemon.status().is_null());
}

#[test]
fn a_check_tells_what_does_not_hold_and_strict_makes_it_an_error() {
    let _lab = Lab::enter();
    let cases = [
        // Of the files.
        (A_LIFTED_LIMIT.to_owned(), LIFTED, 2),
        (
            "[[rule]]\ncmdline = \"rsync\"\nclass = \"background\"\n".to_owned(),
            "matches only `rsync` without arguments",
            2,
        ),
        // Of this machine.
        (
            "interface = \"gwv\"\n[link]\nlocal = \"unlimited\"\n".to_owned(),
            "local = \"unlimited\" has no effect on gwv: it needs htb with a known rate",
            1,
        ),
        (
            "interface = \"gwv\"\n[[uplink]]\ninterface = \"gwv\"\nlocal = \"unlimited\"\n".to_owned(),
            "local = \"unlimited\" has no effect on gwv: it needs htb with a known rate",
            1,
        ),
        (
            "[[uplink]]\ninterface = \"gwv\"\nrate_mbit = 20\n".to_owned(),
            "the [[uplink]] of gwv does nothing: gwv is not managed",
            1,
        ),
        (
            "interface = \"gwv\"\n[link]\ndownload_rate_mbit = 20\n[[uplink]]\ninterface = \"gwv\"\nrate_mbit = 5\n"
                .to_owned(),
            "[link] download_rate_mbit has no effect on gwv, which has an [[uplink]]",
            1,
        ),
        (
            "interface = \"gwv\"\n[[rule]]\nuser = \"no-such-user\"\nclass = \"bulk\"\n".to_owned(),
            "never matches here: there is no user `no-such-user`",
            1,
        ),
        (
            "interface = \"gwv\"\n[queue]\nbackend = \"htb\"\n[[deadline]]\nport = 5005\ndeadline_ms = 10\n".to_owned(),
            "[[deadline]] guarantees nothing on gwv",
            1,
        ),
        (
            "interface = \"gwv\"\n[[rule]]\nunit = \"no-such-unit.service\"\nclass = \"bulk\"\n".to_owned(),
            "unit no-such-unit.service does not exist",
            1,
        ),
        (
            "interface = \"gwv\"\n[[priority]]\nuser = \"no-such-user\"\n".to_owned(),
            "no-such-user",
            1,
        ),
        (
            "interface = \"gwv\"\n[[rule]]\ninterface = \"lo\"\nclass = \"bulk\"\nrate_limit_mbit = 2\n".to_owned(),
            "neither class nor limit is enforced: lo is not managed",
            1,
        ),
        ("interface = \"lo\"\n".to_owned(), "`lo` is never managed", 1),
        (
            "interface = \"wlan7\"\n".to_owned(),
            "interface `wlan7` does not exist",
            1,
        ),
        (
            "interface = \"gwv\"\n[group]\nkey_file = \"/nowhere/group.key\"\n".to_owned(),
            "/nowhere/group.key",
            1,
        ),
    ];
    let mut wrong = Vec::new();
    for (text, expected, code) in cases {
        let config = Scratch::new("strict.toml", &text);
        let plain = check(&config, &[]);
        let strict = check(&config, &["--strict"]).status.code();
        let offline = check(&config, &["--strict", "--offline"]).status.code();
        let is_told = plain.status.success() && told(&plain).contains(expected);
        if (is_told, strict, offline) != (true, Some(code), Some(if code == 2 { 2 } else { 0 })) {
            wrong.push((text, told(&plain), strict, offline));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_daemon_tells_at_its_start_what_a_check_would() {
    let _lab = Lab::enter();
    let uplink = "[[uplink]]\ninterface = \"gwv\"\nrate_mbit = 20\n";
    let config = Scratch::new("start.toml", &format!("{uplink}{A_LIFTED_LIMIT}"));
    let daemon = Daemon::start(&["--config", config.path()]);
    until("status tells of both", || {
        let warnings = daemon.status()["warnings"].to_string();
        warnings.contains(LIFTED) && warnings.contains("the [[uplink]] of gwv does nothing")
    });
}

#[test]
fn a_check_warns_of_a_rule_whose_executable_is_a_link_to_a_file_that_runs_under_other_names() {
    let files = Scratch::copy_of("/bin/true", "snap");
    let folder = files.0.parent().unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    let link = |name: &str, to: &str| symlink(to, folder.join(name)).unwrap();
    link("rclone", "snap");
    for name in ["tool3.11", "nano"] {
        fs::copy(&files.0, folder.join(name)).unwrap();
    }
    link("tool", "tool3");
    link("tool3", "tool3.11");
    link("editor", "alternative");
    link("alternative", "nano");
    fs::create_dir_all(folder.join("venv/bin")).unwrap();
    fs::write(folder.join("venv/pyvenv.cfg"), "").unwrap();
    link("venv/bin/tool", "../../tool3.11");
    let told_of = |name: &str, more: &str| {
        let text = format!("{}\nexe = \"{}\"\n{more}", "[[rule]]\nclass = \"bulk\"", at(name));
        let check_of = |text: &str| told(&check(&Scratch::new("link.toml", text), &[]));
        let found = check_of(&text);
        println!("{name} {more:?}: {found}");
        found
            .lines()
            .find(|line| line.contains("matches everything"))
            .map(str::to_owned)
    };
    for (name, file) in [("rclone", "snap"), ("editor", "nano"), ("venv/bin/tool", "tool3.11")] {
        let reason = format!(
            "matches everything that runs {} ({} is a link to it): use cmdline or unit",
            at(file),
            at(name)
        );
        assert!(told_of(name, "").is_some_and(|line| line.ends_with(&reason)), "{name}");
    }
    for name in ["snap", "tool", "tool3", "tool3.11"] {
        assert_eq!(told_of(name, ""), None);
    }
    for narrower in ["cmdline = \"*rclone*\"\n", "unit = \"backup.service\"\n"] {
        assert_eq!(told_of("rclone", narrower), None);
    }
    let text = format!("[[priority]]\nuser = \"root\"\nexe = \"{}\"\n", at("rclone"));
    let output = told(&check(&Scratch::new("realtime.toml", &text), &[]));
    assert!(output.contains("rclone matches everything that runs"), "{output}");
}
