// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which changes concern a subject, and how they are shown.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use giveway_engine::change::{Change, Value};
use giveway_engine::queue::traffic::RefusalReason;

use super::*;

fn latest(subject: Subject, setting: Setting) -> Latest {
    Latest {
        t_ns: 1_500_000_000,
        times: 1,
        change: Change {
            subject,
            name: String::new(),
            setting,
            old: Value::default(),
            new: "background".into(),
            rule: "giveway class set by uid 0".to_owned(),
            reason: "the user has asked for it".to_owned(),
            made: true,
        },
    }
}

#[test]
fn a_change_is_found_by_its_subject_and_by_its_rule() {
    let remote: SocketAddr = "192.0.2.1:873".parse().unwrap();
    let id = ProcessId { pid: 77, start_ns: 5 };
    let name = "eth0".to_owned();
    let destination = Subject::Destination {
        remote,
        local_port: None,
    };
    let cases = [
        (latest(destination, Setting::Class), vec!["192.0.2.1:873"]),
        (latest(Subject::Process { id }, Setting::Scheduling), vec!["77"]),
        (
            latest(Subject::Interface { name }, Setting::Queue),
            vec!["eth0", "queue"],
        ),
    ];
    for (latest, subjects) in cases {
        for subject in subjects.into_iter().chain(["giveway class set by uid 0"]) {
            assert!(concerns(subject, &latest, &[]), "{subject}");
        }
        assert!(!concerns("78", &latest, &[]));
    }
}

#[test]
fn a_closed_connection_is_found_by_its_ends_and_its_process() {
    let mut latest = latest(Subject::Socket { cookie: Cookie(5) }, Setting::Class);
    latest.change.name = "iperf3 (77) to 192.0.2.1:873".to_owned();
    for subject in ["5", "77", "iperf3", "873", "192.0.2.1", "192.0.2.1:873"] {
        assert!(concerns(subject, &latest, &[]), "{subject}");
    }
    for subject in ["7", "73", "iperf", "192.0.2", "2.1:873"] {
        assert!(!concerns(subject, &latest, &[]), "{subject}");
    }
}

#[test]
fn a_process_without_a_socket_is_found_by_the_name_of_its_executable() {
    let id = ProcessId { pid: 77, start_ns: 5 };
    let mut latest = latest(Subject::Process { id }, Setting::Niceness);
    latest.change.name = "/usr/bin/rsync".to_owned();
    for subject in ["77", "rsync", "/usr/bin/rsync"] {
        assert!(concerns(subject, &latest, &[]), "{subject}");
    }
    for subject in ["", "sync", "bin", "bin/rsync", "rsyncd"] {
        assert!(!concerns(subject, &latest, &[]), "{subject}");
    }
}

#[test]
fn a_script_that_runs_is_found_by_its_own_name() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["gw-backup.sh", "gw-backup-of-everything.sh"] {
        let script = folder.path().join(name);
        fs::write(&script, "#!/bin/sh\nread line\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = Command::new(&script).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let start_ns = thread_start(pid, pid).unwrap().unwrap();
        let [this, another] = [start_ns, start_ns + 1_000_000_000].map(|start_ns| {
            let id = ProcessId { pid, start_ns };
            let mut latest = latest(Subject::Process { id }, Setting::Niceness);
            latest.change.name = "/usr/bin/dash".to_owned();
            latest
        });
        assert!(concerns(name, &this, &[]) && concerns("dash", &this, &[]), "{name}");
        assert!(!concerns("gw-back", &this, &[]));
        assert!(!concerns(name, &another, &[]), "the number is another process's now");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!concerns(name, &this, &[]), "it has ended");
    }
}

#[test]
fn what_is_not_found_is_answered_with_what_is_near_it() {
    let near_to = |subject| {
        let known = [("rsync", "rsync (77)"), ("rsyncd", "rsyncd (78)"), ("wlan0", "wlan0")];
        near(subject, known.into_iter().map(|(name, shown)| (name, shown.to_owned())))
    };
    assert_eq!(near_to("RSYNC"), ["rsync (77)", "rsyncd (78)"]);
    assert_eq!(near_to("/usr/bin/rsync"), ["rsync (77)"]);
    assert_eq!(near_to("wlan"), ["wlan0"]);
    assert!(near_to("s").is_empty() && near_to("4242").is_empty());
}

#[test]
fn refusals_that_differ_in_time_only_are_one_line() {
    let refusal = |t_ns, reason| Refusal {
        t_ns,
        deadline_t_ns: t_ns + 9_000_000,
        work_ns: 1_000_000,
        reason,
        cookie: None,
        protocol: 17,
        local: None,
        remote: None,
    };
    let (own, late) = (RefusalReason::Own, RefusalReason::Late);
    let refusals = [refusal(1, own), refusal(2, late), refusal(3, own)];
    let found: Vec<_> = alike(&refusals.each_ref())
        .into_iter()
        .map(|(latest, times)| (latest.t_ns, times))
        .collect();
    assert_eq!(found, [(3, 2), (2, 1)]);
}

#[test]
fn a_change_is_one_line() {
    let mut latest = latest(Subject::Kernel, Setting::File("/proc/x".to_owned()));
    latest.times = 3;
    let line = change_line(&latest, false);
    let (at, rest) = line.split_once(" ago ").unwrap();
    assert!(
        at.contains(':') && at.contains(", "),
        "the time of day, and how long ago: {at}"
    );
    assert_eq!(
        rest,
        "(latest of 3): the kernel: /proc/x none -> background; \
         rule giveway class set by uid 0: the user has asked for it"
    );
    latest.change.made = false;
    assert!(change_line(&latest, false).contains("none -> background (failed); rule"));
    assert!(change_line(&latest, true).contains("none -> background (not made); rule"));
}

#[test]
fn a_chosen_socket_or_process_is_not_taken_for_a_port_or_cookie_of_that_number() {
    let socket = latest(Subject::Socket { cookie: Cookie(5) }, Setting::Class);
    let id = ProcessId { pid: 5, start_ns: 1 };
    let process = latest(Subject::Process { id }, Setting::Niceness);
    let (of_socket, of_process) = (About::Socket(Cookie(5)), About::Process(5));
    assert!(of_socket.concerns(&socket, &[]) && !of_socket.concerns(&process, &[]));
    assert!(of_process.concerns(&process, &[]) && !of_process.concerns(&socket, &[]));
    assert!(
        of_process.concerns(&socket, &[Cookie(5)]),
        "the socket is the process's"
    );
}
