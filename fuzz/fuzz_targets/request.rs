// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A line that anybody may write to the control socket.
//!
//! Checked: what is understood is the same when it is written and read again; a rule is refused, or it can be checked
//! anew, made into one of the engine's, and held against a process.
#![no_main]

use giveway::control::Request;
use giveway_engine::config::{Config, PrioritySection};
use giveway_engine::model::Process;
use giveway_engine::priority::PriorityRule;
use libfuzzer_sys::fuzz_target;

fn try_rule(rule: PrioritySection) {
    let config = Config {
        priority: vec![rule],
        ..Config::default()
    };
    if config.check().is_err() {
        return;
    }
    config.check().expect("what was accepted once");
    let Ok(rule) = PriorityRule::from_config("fuzzed".to_owned(), &config.priority[0], Some(1000)) else {
        return;
    };
    rule.matcher.matches(&Process {
        exe: "/usr/bin/python3".to_owned(),
        executables: rule.matcher.exe.iter().cloned().collect(),
        cmdline: "python3 camera.py --rate 30".repeat(8),
        uid: 1000,
        euid: 1000,
        cgroup: "/system.slice/camera.service".to_owned(),
        ..Process::default()
    });
}

fuzz_target!(|line: &str| {
    let Ok(request) = serde_json::from_str::<Request>(line) else {
        return;
    };
    let written = serde_json::to_string(&request).expect("a request is written");
    assert_eq!(
        serde_json::from_str::<Request>(&written).expect("what was written"),
        request
    );
    if let Request::PriorityAdd { rule } = request {
        try_rule(*rule);
    }
});
