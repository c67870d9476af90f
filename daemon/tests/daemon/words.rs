// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Foreign words: users choose names of programs, and root may have been misled in that of a link. Whatever shows them shows no
//! character that a terminal acts upon, that turns the text around it, or that cannot be seen.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use giveway::words::misleads;
use nix::sys::signal::Signal;

use super::web::{Web, get};
use crate::support::lab::{FAR_V4, Lab, run};
use crate::support::process::{Daemon, KillOnDrop, giveway, program, signal};
use crate::support::scratch::Scratch;
use crate::support::wait::until;

const LINK: &str = "gw\u{1b}[1m\u{202e}v";
const PROGRAM: &str = "\u{202e}\u{1b}[2J\u{9b}1ma\u{200b}";

/// What one place shows.
struct Shown(&'static str, String);

fn printed(arguments: &'static [&'static str]) -> Shown {
    let output = giveway(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    Shown(arguments[0], String::from_utf8(output.stdout).unwrap())
}

#[test]
fn no_foreign_word_is_shown_logged_recorded_or_drawn_as_it_is() {
    let lab = Lab::enter();
    run("ip link set gwv down");
    run(&format!("ip link set gwv name {LINK}"));
    run(&format!("ip link set {LINK} up"));
    let (log, record, svg) = (
        Scratch::new("log", ""),
        Scratch::new("record", ""),
        Scratch::new("picture.svg", ""),
    );
    let mut command = Command::new(program());
    command.args(["run", "--interface", LINK]).env("GIVEWAY_LOG", "debug");
    let _daemon = Daemon(KillOnDrop::spawn(command.stderr(File::create(&log.0).unwrap())));
    let bash = Scratch::copy_of("/bin/bash", PROGRAM);
    let script = format!(
        "exec 3<>/dev/tcp/{FAR_V4}/{}; while echo x >&3; do sleep 0.1 3>&-; done",
        lab.reader()
    );
    let mut command = Command::new(&bash.0);
    let _talker = KillOnDrop::spawn(command.args(["-c", &script]).stderr(Stdio::null()));
    until("the talker is seen", || {
        let status: Option<serde_json::Value> = serde_json::from_slice(&giveway(&["status", "--json"]).stdout).ok();
        status.is_some_and(|status| status["flows"].to_string().contains("a\u{200b}"))
    });
    let mut recorder = KillOnDrop::spawn(
        Command::new(program())
            .args(["record", "-"])
            .stdout(File::create(&record.0).unwrap())
            .stderr(Stdio::null()),
    );
    let recorded = || fs::read_to_string(&record.0).unwrap();
    until("the talker is recorded", || {
        recorded().matches("\"kind\":\"flow\"").count() > 3
    });
    signal(recorder.id(), Signal::SIGINT);
    recorder.wait().unwrap();
    let drawn = Command::new(program())
        .args(["plot", record.path(), "-o", svg.path()])
        .output()
        .unwrap();
    assert!(drawn.status.success(), "{drawn:?}");
    let _web = Web::start(&[]);
    let mut shown = vec![
        printed(&["status"]),
        printed(&["status", "--json"]),
        printed(&["why"]),
        printed(&["top", "--once"]),
        printed(&["doctor"]),
        Shown("record", recorded()),
        Shown("plot", fs::read_to_string(&svg.0).unwrap()),
        Shown("web /state", get("/state").body),
        Shown("web /metrics", get("/metrics").body),
        Shown("log", fs::read_to_string(&log.0).unwrap()),
    ];
    // Whoever parses it finds the very name.
    let status: serde_json::Value = serde_json::from_str(&shown[1].1).unwrap();
    assert_eq!(status["interface"]["name"], LINK);
    shown.sort_by_key(|Shown(place, _)| *place);
    let misled: Vec<&str> = shown
        .iter()
        .filter(|Shown(_, text)| text.contains(misleads))
        .map(|Shown(place, _)| *place)
        .collect();
    assert_eq!(misled, [""; 0], "places that show foreign characters as they are");
    for Shown(place, text) in shown {
        let names_it = text.contains("gw") || place == "why";
        assert!(names_it, "{place} shows nothing of it: {text}");
    }
}
