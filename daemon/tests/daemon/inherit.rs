// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a program starts belongs to its class: real processes, however they are started, whoever they become, and across a
//! restart of the daemon.

use giveway_engine::model::ProcessId;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use giveway::kernel::inherit::{Inheritance, InheritingProcess};
use giveway::kernel::own_netns;
use giveway::kernel::tasks::Tasks;
use libbpf_rs::{MapHandle, MapType};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::nice::{Group, NICE, ORDINARY, is, niceness, reason};
use crate::support::lab::{FAR_V4, Lab};
use crate::support::process::{Daemon, KillOnDrop, backend, giveway, program};
use crate::support::scratch::NOBODY;
use crate::support::wait::{await_some, until};

const BACKGROUND: &str = "class = \"background\"";

/// A folder of rules, and two programs that no rule of anybody else's names: each is a shell.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("rules")).unwrap();
        for shell in ["backup", "helper"] {
            let copied = Command::new("cp").arg("/bin/bash").arg(place.path(shell)).status();
            assert!(copied.unwrap().success());
        }
        nix::unistd::mkfifo(&place.path("never"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn rules(&self, text: &str) {
        fs::write(self.path("rules/50-test.toml"), text).unwrap();
    }

    /// The only rule; of one of the programs.
    fn rule(&self, program: &str, more: &str) {
        self.rules(&self.rule_of(program, more));
    }

    fn rule_of(&self, program: &str, more: &str) -> String {
        format!("[[rule]]\nexe = \"{}\"\n{more}\n", self.path(program).display())
    }

    fn start(&self) -> Daemon {
        Daemon::start(&["--rules", self.path("rules").to_str().unwrap(), "--interface", "gwv"])
    }

    /// The same; it has looked for the file of the program that is background. That has ended.
    fn start_knowing(&self) -> Daemon {
        let daemon = self.start();
        let first = self.waits();
        until("the program is background", || {
            niceness(first.id()).is_some_and(|has| has.0 == 19)
        });
        daemon
    }

    /// The program, which starts nothing.
    fn waits(&self) -> Group {
        self.runs(&format!("read <>{}", self.path("never").display()))
    }

    fn runs(&self, script: &str) -> Group {
        Group::spawn(Command::new(self.path("backup")).args(["-c", script]))
    }
}

/// A shell's script that sends a line ten times a second to this port; for a minute, since nobody ends an orphan.
fn talk(port: u16) -> String {
    format!("exec 3<>/dev/tcp/{FAR_V4}/{port}; for n in {{1..600}}; do echo x >&3; sleep 0.1 3>&-; done")
}

/// The flow to this port, as `status` shows it; null where there is none.
fn flow_to(daemon: &Daemon, port: u16) -> Value {
    let remote = format!("{FAR_V4}:{port}");
    let status = daemon.status();
    let mut flows = status["flows"].as_array().unwrap().iter();
    flows.find(|flow| flow["remote"] == remote).cloned().unwrap_or_default()
}

/// Waits for it.
fn becomes(daemon: &Daemon, port: u16, class: &str) -> Value {
    await_some(&format!("what sends is {class}"), || {
        let flow = flow_to(daemon, port);
        (flow["class"] == class).then_some(flow)
    })
}

/// Who sends.
fn pid_of(flow: &Value) -> u32 {
    let pid = flow["pid"].as_u64().unwrap_or_else(|| panic!("{flow}"));
    u32::try_from(pid).unwrap()
}

#[test]
fn what_a_program_starts_at_once_through_a_shell_that_ends_belongs_to_its_class() {
    let (lab, place) = (Lab::enter(), Place::new());
    place.rule("backup", BACKGROUND);
    let daemon = place.start_knowing();
    let port = lab.reader();
    // The talker is an orphan with a session of its own before anybody has looked.
    let middle = format!("setsid bash -c '{}' gwtalk & exit 0", talk(port));
    let backup = place.runs(&format!("/bin/bash -c \"{middle}\"; sleep 1000; :"));
    let flow = becomes(&daemon, port, "background");
    let said = flow["class_reason"].as_str().unwrap();
    let from = format!("inherited from backup ({}): exe ", backup.id());
    assert!(said.starts_with(&from), "{said}");
    assert!(
        flow["class_rule"].as_str().unwrap().ends_with("50-test.toml:1"),
        "{flow}"
    );
    let talker = pid_of(&flow);
    until("it is nice", || is(talker, NICE));
    until("that is explained", || reason(talker).contains(&from));

    // A rule that is gone counts no more.
    place.rules("");
    assert!(giveway(&["reload"]).status.success());
    becomes(&daemon, port, "standard");
    until("it is back", || is(talker, ORDINARY));
}

#[test]
fn a_daemon_that_a_program_becomes_by_two_forks_belongs_to_its_class_by_a_rule_on_arguments_too() {
    let (lab, place) = (Lab::enter(), Place::new());
    place.rules(&format!("[[rule]]\ncmdline = \"*gwinherit-borg*\"\n{BACKGROUND}\n"));
    let daemon = place.start();
    let port = lab.reader();
    let forks = format!("(setsid /bin/bash -c '{}' gwtalk &)", talk(port));
    let wait = "until [ $(nice) = 19 ]; do sleep 0.1; done";
    let _backup = Group::spawn(Command::new("bash").args(["-c", &format!("{wait}; {forks}"), "gwinherit-borg"]));
    let flow = becomes(&daemon, port, "background");
    assert!(
        flow["class_reason"]
            .as_str()
            .unwrap()
            .starts_with("inherited from bash ("),
        "{flow}"
    );
}

#[test]
fn what_ran_before_the_daemon_belongs_to_the_class_of_what_started_it() {
    let (lab, place) = (Lab::enter(), Place::new());
    place.rule("backup", BACKGROUND);
    let port = lab.reader();
    let script = format!("/bin/bash -c \"/bin/bash -c '{}' gwtalk; :\"; :", talk(port));
    let _backup = place.runs(&script);
    let daemon = place.start();
    let flow = becomes(&daemon, port, "background");
    let talker = pid_of(&flow);
    until("it is nice", || is(talker, NICE));
}

#[test]
fn background_goes_with_a_change_of_user_and_a_stream_ends_there() {
    for (class, expected) in [("background", "background"), ("stream", "standard")] {
        let (lab, place) = (Lab::enter(), Place::new());
        place.rule("backup", &format!("class = \"{class}\""));
        let daemon = place.start();
        let (own, other) = (lab.reader(), lab.reader());
        let as_nobody = format!(
            "setpriv --reuid {NOBODY} --clear-groups bash -c '{}' gwtalk",
            talk(other)
        );
        let script = format!("bash -c '{}' gwtalk & {as_nobody} & wait", talk(own));
        let _backup = place.runs(&script);
        becomes(&daemon, own, class);
        becomes(&daemon, other, expected);
    }
}

#[test]
fn what_has_a_rule_of_its_own_is_judged_by_it_with_all_that_it_starts() {
    let (lab, place) = (Lab::enter(), Place::new());
    place.rules(&(place.rule_of("backup", BACKGROUND) + &place.rule_of("helper", "class = \"bulk\"")));
    let daemon = place.start_knowing();
    let (own, below) = (lab.reader(), lab.reader());
    let helper = place.path("helper");
    let helper = format!(
        "{} -c \"/bin/bash -c '{}' & {}\"",
        helper.display(),
        talk(below),
        talk(own)
    );
    let _backup = place.runs(&format!("{helper} & wait"));
    for port in [own, below] {
        let flow = becomes(&daemon, port, "bulk");
        until("the kernel's inheritance of nice 19 is restored", || {
            is(pid_of(&flow), ORDINARY)
        });
    }
}

/// A wrapper's script often ends in `exec`: the program that it was counts, not the one that started the wrapper.
#[test]
fn what_a_program_becomes_by_exec_keeps_its_class_below_a_parent_with_a_rule_of_its_own() {
    let (lab, place) = (Lab::enter(), Place::new());
    place.rules(&(place.rule_of("backup", BACKGROUND) + &place.rule_of("helper", "class = \"stream\"")));
    let daemon = place.start_knowing();
    let port = lab.reader();
    let becomes_another = format!("exec /bin/bash -c '{}' gwtalk", talk(port));
    let script = format!("{} -c \"{becomes_another}\" & wait", place.path("backup").display());
    let _parent = Group::spawn(Command::new(place.path("helper")).args(["-c", &script]));
    let talker = pid_of(&becomes(&daemon, port, "background"));
    until("it is nice", || is(talker, NICE));
    // The tree of processes is followed once a second.
    for _ in 0..30 {
        assert_eq!(flow_to(&daemon, port)["class"], "background");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// What a shell has started belongs to what the shell was, not to the program that it becomes.
#[test]
fn what_was_started_before_an_exec_inherits_nothing_from_the_program_that_is_executed() {
    let (lab, place) = (Lab::enter(), Place::new());
    place.rule("backup", BACKGROUND);
    let daemon = place.start_knowing();
    let (before, after) = (lab.reader(), lab.reader());
    let started = format!("/bin/bash -c '{}' gwtalk & sleep 0.3", talk(before));
    let own = format!("exec {} -c '{}' gwtalk", place.path("backup").display(), talk(after));
    let _shell = Group::spawn(Command::new("bash").args(["-c", &format!("{started}; {own}")]));
    becomes(&daemon, after, "background");
    let talker = pid_of(&becomes(&daemon, before, "standard"));
    for _ in 0..30 {
        assert_eq!(flow_to(&daemon, before)["class"], "standard");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(is(talker, ORDINARY), "it is not nice");
}

#[test]
fn a_rule_for_the_program_alone_says_nothing_of_what_it_starts() {
    let (lab, place) = (Lab::enter(), Place::new());
    place.rule("backup", &format!("{BACKGROUND}\nchildren = false"));
    let daemon = place.start_knowing();
    let (own, child) = (lab.reader(), lab.reader());
    let backup = place.runs(&format!("/bin/bash -c '{}' & {}", talk(child), talk(own)));
    becomes(&daemon, own, "background");
    let talker = pid_of(&becomes(&daemon, child, "standard"));
    until("the program is nice", || is(backup.id(), NICE));
    until("what it has started is not", || is(talker, ORDINARY));
    assert_eq!(flow_to(&daemon, child)["class"], "standard");
}

#[test]
fn a_program_that_another_rule_names_from_now_on_takes_what_it_has_started_with_it() {
    let (lab, place) = (Lab::enter(), Place::new());
    place.rule("backup", BACKGROUND);
    let daemon = place.start_knowing();
    let port = lab.reader();
    // An orphan.
    let backup = place.runs(&format!(
        "(setsid /bin/bash -c '{}' gwtalk &); sleep 1000; :",
        talk(port)
    ));
    becomes(&daemon, port, "background");
    place.rule("backup", "class = \"bulk\"");
    assert!(giveway(&["reload"]).status.success());
    let flow = becomes(&daemon, port, "bulk");
    until("it is back", || {
        is(pid_of(&flow), ORDINARY) && is(backup.id(), ORDINARY)
    });
}

/// The numbers of the rate limits that the queue knows.
fn limits(daemon: &Daemon) -> Vec<u64> {
    let limits = daemon.status()["uploads"]["limits"].clone();
    let numbers = limits.as_array().into_iter().flatten();
    numbers.map(|limit| limit["number"].as_u64().unwrap()).collect()
}

#[test]
fn a_commands_class_and_rate_limit_are_there_again_after_a_restart_of_the_daemon() {
    const LIMITED: [&str; 7] = ["exec", "--class", "background", "--up", "4mbit", "--require", "--"];
    let (lab, place) = (Lab::enter(), Place::new());
    let config = place.path("giveway.toml");
    let text = format!("[link]\nrate_mbit = 50.0\n[queue]\nbackend = \"{}\"\n", backend());
    fs::write(&config, text).unwrap();
    let start = || {
        let rules = place.path("rules");
        let paths = [&config, &rules].map(|path| path.to_str().unwrap());
        Daemon::start(&["--config", paths[0], "--rules", paths[1], "--interface", "gwv"])
    };
    let mut daemon = start();
    until("the queue is active", || {
        !daemon.status()["queue"]["installed"].is_null()
    });
    let port = lab.reader();
    let script = format!("bash -c '{}' gwtalk & wait", talk(port));
    let command = Group::spawn(Command::new(program()).args(LIMITED).args(["bash", "-c", &script]));
    becomes(&daemon, port, "background");
    let [number] = limits(&daemon)[..] else {
        panic!("{:?}", limits(&daemon))
    };
    for end in [Signal::SIGTERM, Signal::SIGKILL] {
        match end {
            Signal::SIGKILL => drop(daemon.kill()),
            end => daemon.signal(end),
        }
        daemon.0.wait().unwrap();
        assert!(is(command.id(), ORDINARY), "nothing is nice without a daemon");
        daemon = start();
        let flow = becomes(&daemon, port, "background");
        let said = flow["class_reason"].as_str().unwrap().to_owned();
        assert!(
            said.contains("chosen by uid 0") && said.contains("at most 4 Mbit/s"),
            "{said}"
        );
        until("its limit is active", || limits(&daemon) == [number]);
        until("it is nice again", || is(command.id(), NICE));
        // Nobody else is given its number.
        let other = Group::spawn(Command::new(program()).args(LIMITED).args(["sleep", "1000"]));
        until("another command has a limit of its own", || limits(&daemon).len() == 2);
        drop(other);
        until("that is over", || limits(&daemon) == [number]);
    }
    assert!(giveway(&["revert"]).status.success());
    daemon.0.wait().unwrap();
    daemon = start();
    becomes(&daemon, port, "standard");
    assert!(limits(&daemon).is_empty());
}

/// Where records are pinned: in the machine's BPF file system, or in one of giveway's own.
fn pins() -> [PathBuf; 2] {
    let netns = giveway::kernel::own_netns().unwrap();
    let folders = [
        format!("/sys/fs/bpf/giveway-netns-{netns}"),
        format!("/run/giveway/netns-{netns}/bpf"),
    ];
    folders.map(|folder| PathBuf::from(folder).join("gw_records"))
}

fn is_pinned() -> bool {
    pins().iter().any(|pin| pin.exists())
}

#[test]
fn records_of_another_version_are_dropped_and_the_log_says_so() {
    let (_lab, place) = (Lab::enter(), Place::new());
    place.rule("backup", BACKGROUND);
    let mut daemon = place.start_knowing();
    let pin = pins().into_iter().find(|pin| pin.exists());
    let pin = pin.expect("records are pinned");
    let backup = place.waits();
    daemon.signal(Signal::SIGTERM);
    daemon.0.wait().unwrap();
    fs::remove_file(&pin).unwrap();
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let other = MapHandle::create(MapType::Hash, Some("gw_records_0"), 4, 8, 1, &options);
    other.unwrap().pin(&pin).unwrap();
    let log = place.path("log");
    let mut command = Command::new(program());
    command
        .args(["run", "--interface", "gwv", "--rules"])
        .arg(place.path("rules"));
    let file = fs::File::create(&log).unwrap();
    let _daemon = KillOnDrop::spawn(command.stdin(Stdio::null()).stderr(file));
    let said = "was written by another version (gw_records_0) and is forgotten: start such a command again";
    until("the log says so", || fs::read_to_string(&log).unwrap().contains(said));
    until("the program is background again", || {
        niceness(backup.id()).is_some_and(|has| has.0 == 19)
    });
}

#[test]
fn records_end_with_revert_and_with_the_last_process_that_has_one() {
    let (_lab, place) = (Lab::enter(), Place::new());
    place.rule("backup", BACKGROUND);
    for is_left in [false, true] {
        let mut daemon = place.start_knowing();
        let backup = is_left.then(|| place.waits());
        assert!(is_pinned());
        daemon.signal(Signal::SIGTERM);
        daemon.0.wait().unwrap();
        assert_eq!(is_pinned(), is_left);
        drop(backup);
    }
    assert!(giveway(&["revert"]).status.success());
    assert!(!is_pinned());
}

#[test]
fn more_processes_than_are_named_at_once_are_all_named() {
    let _lab = Lab::enter();
    let tasks = Tasks::load(own_netns().unwrap()).unwrap();
    let inheritance = Inheritance::open(&tasks, own_netns().unwrap(), None).unwrap();
    let sleep = Group::spawn(Command::new("sleep").arg("60"));
    let facts = tasks.process(sleep.id()).unwrap().unwrap();
    let named = |process, image, rule| InheritingProcess { process, image, rule };
    let gone = |n: u32| ProcessId {
        pid: (1 << 30) + n,
        start_ns: 0,
    };
    for (rule, expected) in [(Some(7), 1), (None, 0)] {
        let mut all: Vec<InheritingProcess> = (0..10_000).map(|n| named(gone(n), 1, Some(5))).collect();
        all.push(named(facts.id, facts.image, rule));
        inheritance.hand_down(&all).unwrap();
        assert_eq!(inheritance.inheriting().unwrap(), expected);
    }
}
