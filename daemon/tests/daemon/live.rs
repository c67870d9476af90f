// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is set by hand while it runs: classes and limits of processes with what they start, units, cgroups and flows, before
//! and during a transfer, by what arrives at the receiver; who may set what, and when it ends.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::download::{mbit_of, passed_mbit, source};
use super::focus::Group as Cgroup;
use super::limits::{as_user, ask};
use super::nice::{Group, NICE, ORDINARY, is};
use crate::support::lab::{FAR_V4, Lab, run};
use crate::support::process::{Copy, Daemon, KillOnDrop, failure, giveway, program};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::wait::{First, await_some, held, until};

const LINK_MBIT: f64 = 40.0;
/// "Active within a second."
const SECOND: Duration = Duration::from_secs(1);
/// Over which a rate is judged.
const WINDOW: Duration = Duration::from_secs(2);
/// In which it is seen whether there is a limit at all.
const MOMENT: Duration = Duration::from_millis(300);

/// A daemon with a queue on a link, and a remote host that counts what arrives.
struct Stage {
    lab: Lab,
    daemon: Option<Daemon>,
    config: Scratch,
    received: Arc<AtomicU64>,
    port: u16,
}

impl Stage {
    fn set() -> Self {
        let lab = Lab::enter();
        let text = format!("[link]\nrate_mbit = {LINK_MBIT}\n[queue]\nbackend = \"htb\"\n");
        let config = Scratch::new("live.toml", &text);
        let listener = lab.far_listener(FAR_V4);
        let port = listener.local_addr().unwrap().port();
        let received = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&received);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, count) = (stream.unwrap(), Arc::clone(&count));
                thread::spawn(move || {
                    // What it reads late would count where it does not belong.
                    let _first = First::of_all();
                    let mut buffer = vec![0; 64 * 1024];
                    while let Ok(read @ 1..) = stream.read(&mut buffer) {
                        count.fetch_add(read as u64, Ordering::Relaxed);
                    }
                });
            }
        });
        let mut stage = Self {
            lab,
            daemon: None,
            config,
            received,
            port,
        };
        stage.start();
        stage
    }

    fn start(&mut self) {
        let daemon = Daemon::start(&["--config", self.config.path(), "--interface", "gwv"]);
        until("the queue is active", || {
            !daemon.status()["queue"]["installed"].is_null()
        });
        self.daemon = Some(daemon);
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    /// A shell that waits for its file, connects, waits for another, and sends by a child as much as it can.
    fn sender(&self, files: &Sends) -> Group {
        Group::spawn(Command::new("bash").args(["-c", &files.script(self.port)]))
    }

    /// Over the window.
    fn mbit(&self) -> f64 {
        mbit_of(|| self.received.load(Ordering::Relaxed), WINDOW)
    }

    fn is_above(&self, mbit: f64) -> bool {
        mbit_of(|| self.received.load(Ordering::Relaxed), MOMENT) > mbit
    }

    /// Those of the flows to the remote host.
    fn classes(&self) -> Vec<String> {
        let remote = format!("{FAR_V4}:{}", self.port);
        let status = self.daemon().status();
        let flows = status["flows"].as_array().unwrap().iter();
        let own = flows.filter(|flow| flow["remote"] == remote);
        own.map(|flow| flow["class"].as_str().unwrap().to_owned()).collect()
    }

    fn is_class(&self, class: &str) -> bool {
        let classes = self.classes();
        !classes.is_empty() && classes.iter().all(|one| one == class)
    }

    fn flow(&self) -> String {
        format!("{FAR_V4}:{}", self.port)
    }
}

/// By which a sender is told to go on.
struct Sends(Scratch);

impl Sends {
    fn new() -> Self {
        Self(Scratch::new("connect", ""))
    }

    fn file(&self, name: &str) -> String {
        self.0.0.with_file_name(name).to_str().unwrap().to_owned()
    }

    fn script(&self, port: u16) -> String {
        let (go, send) = (self.file("go"), self.file("send"));
        let wait = |file: &str| format!("until [ -e {file} ]; do sleep 0.05; done");
        let connect = format!("exec 3<>/dev/tcp/{FAR_V4}/{port}");
        format!(
            "{}; {connect}; echo x >&3; {}; cat /dev/zero >&3; :",
            wait(&go),
            wait(&send)
        )
    }

    fn go(&self, name: &str) {
        fs::write(self.file(name), "").unwrap();
    }
}

#[track_caller]
fn done(arguments: &[&str]) -> String {
    let output = giveway(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn by_hand() -> Vec<Value> {
    let listed: Value = serde_json::from_str(&done(&["class", "list", "--json"])).unwrap();
    assert_eq!(listed["schema"], 1);
    let limited: Value = serde_json::from_str(&done(&["limit", "list", "--json"])).unwrap();
    let all = |of: &Value| of["by_hand"].as_array().unwrap().clone();
    [all(&listed), all(&limited)].concat()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Process,
    Unit,
    Cgroup,
    Flow,
}

const KINDS: [Kind; 4] = [Kind::Process, Kind::Unit, Kind::Cgroup, Kind::Flow];

/// A sender, and how it is named.
struct Target {
    name: String,
    sends: Sends,
    sender: Group,
    /// Removed after its processes.
    _cgroup: Option<Cgroup>,
}

impl Target {
    fn of(kind: Kind, stage: &Stage) -> Self {
        let sends = Sends::new();
        Self::around(kind, stage.sender(&sends), sends, stage.flow())
    }

    fn around(kind: Kind, sender: Group, sends: Sends, flow: String) -> Self {
        let cgroup = match kind {
            Kind::Unit => Some(Cgroup::at(&format!(
                "/gw-live-{}.slice/gw-live-{}.scope",
                sender.id(),
                sender.id()
            ))),
            Kind::Cgroup => Some(Cgroup::new()),
            Kind::Process | Kind::Flow => None,
        };
        if let Some(cgroup) = &cgroup {
            cgroup.put("", sender.id());
        }
        let name = match kind {
            Kind::Process => sender.id().to_string(),
            Kind::Unit => format!("gw-live-{}.scope", sender.id()),
            Kind::Cgroup => cgroup.as_ref().unwrap().path.clone(),
            Kind::Flow => flow,
        };
        Self {
            name,
            sends,
            sender,
            _cgroup: cgroup,
        }
    }

    /// It sends, and is known to the daemon.
    fn send(&self, stage: &Stage) {
        let before = stage.received.load(Ordering::Relaxed);
        self.sends.go("go");
        self.sends.go("send");
        until("it sends", || {
            stage.received.load(Ordering::Relaxed) > before + 1_000_000
        });
    }

    /// Before it sends: a flow is there by then, since it is what is named.
    fn prepare(&self, kind: Kind, stage: &Stage) {
        if kind == Kind::Flow {
            self.sends.go("go");
            until("the flow is known", || !stage.classes().is_empty());
        }
    }
}

#[test]
fn each_target_has_its_class_before_and_during_a_transfer_and_loses_it_when_it_is_cleared() {
    let stage = Stage::set();
    for kind in KINDS {
        for is_before in [true, false] {
            let target = Target::of(kind, &stage);
            if is_before {
                target.prepare(kind, &stage);
            } else {
                target.send(&stage);
                until("its class is known", || stage.is_class("standard"));
            }
            let told = done(&["class", "set", &target.name, "background"]);
            assert!(told.contains("background from now on"), "{told}");
            if is_before {
                target.send(&stage);
            }
            let took = until("its flow is background", || stage.is_class("background"));
            assert!(is_before || took < SECOND, "{kind:?}: {took:?}");
            if kind != Kind::Flow {
                until("its processes are nice", || is(target.sender.id(), NICE));
            }
            let listed = by_hand();
            assert_eq!(
                (listed.len(), &listed[0]["class"]),
                (1, &json!("background")),
                "{listed:?}"
            );
            let shown = done(&["status"]);
            assert!(
                shown.contains("by hand") && shown.contains("background (by uid 0"),
                "{shown}"
            );
            let reason = done(&["why", &stage.flow()]);
            assert!(reason.contains("giveway class set by uid 0"), "{reason}");
            done(&["class", "clear", &target.name]);
            let took = until("its flow is standard", || stage.is_class("standard"));
            assert!(took < SECOND, "{kind:?}: {took:?}");
            until("its processes are as they were", || is(target.sender.id(), ORDINARY));
            assert_eq!(by_hand(), Vec::<Value>::new());
            drop(target);
            until("its flow has ended", || stage.classes().is_empty());
        }
    }
}

#[test]
fn each_target_keeps_its_limit_before_and_during_a_transfer_by_what_arrives() {
    const MBIT: f64 = 4.0;
    let stage = Stage::set();
    for kind in KINDS {
        for is_before in [true, false] {
            let target = Target::of(kind, &stage);
            match is_before {
                true => target.prepare(kind, &stage),
                false => target.send(&stage),
            }
            let told = done(&["limit", "set", &target.name, "--up", "4mbit"]);
            assert!(
                told.contains("limited to send at most 4 Mbit/s in total from now on"),
                "{told}"
            );
            if is_before {
                target.send(&stage);
            }
            thread::sleep(SECOND);
            // What was sent before stands in no queue of the limit.
            let what = format!("{kind:?}, before: {is_before}");
            held(&what, 0.8 * MBIT..1.05 * MBIT, || stage.mbit());
            held(&what, 0.5 * MBIT..1.5 * MBIT, || {
                by_hand()[0]["upload_mbit"].as_f64().unwrap()
            });
            done(&["limit", "clear", &target.name]);
            until("its limit is over", || stage.is_above(3.0 * MBIT));
            drop(target);
            until("its flow has ended", || stage.classes().is_empty());
        }
    }
}

/// A shell that waits for its file, connects, waits for another, and receives by a child as much as it can.
fn receiver(files: &Sends, port: u16) -> Group {
    let (go, send) = (files.file("go"), files.file("send"));
    let wait = |file: &str| format!("until [ -e {file} ]; do sleep 0.05; done");
    let connect = format!("exec 3<>/dev/tcp/{FAR_V4}/{port}");
    let script = format!("{}; {connect}; {}; cat <&3 >/dev/null; :", wait(&go), wait(&send));
    Group::spawn(Command::new("bash").args(["-c", &script]))
}

#[test]
fn each_target_keeps_its_limit_before_and_during_a_transfer_by_what_it_receives() {
    const MBIT: f64 = 4.0;
    let stage = Stage::set();
    for kind in KINDS {
        for is_before in [true, false] {
            let port = source(&stage.lab, FAR_V4);
            let (files, flow) = (Sends::new(), format!("{FAR_V4}:{port}"));
            let target = Target::around(kind, receiver(&files, port), files, flow.clone());
            // What has arrived in order; the program may come later to it.
            let arrived = || {
                let status = stage.daemon().status();
                let flows = status["flows"].as_array().unwrap().iter();
                let mut own = flows.filter(|known| known["remote"] == flow);
                own.next().map(|known| known["received_bytes"].as_u64().unwrap())
            };
            let is_known = || arrived().is_some();
            let receive = || {
                target.sends.go("go");
                target.sends.go("send");
                until("it receives", || arrived().is_some_and(|bytes| bytes > 500_000));
            };
            if !is_before {
                receive();
            } else if kind == Kind::Flow {
                target.sends.go("go");
                until("the flow is known", is_known);
            }
            let told = done(&["limit", "set", &target.name, "--down", "4mbit"]);
            assert!(told.contains("limited to receive at most 4 Mbit/s"), "{told}");
            if is_before {
                receive();
            }
            thread::sleep(SECOND);
            // By what leaves the limit's device: what the program has comes in leaps, as lost packets are repaired.
            let what = format!("{kind:?}, before: {is_before}");
            held(&what, 0.75 * MBIT..1.06 * MBIT, || passed_mbit(WINDOW));
            held(&what, 0.5 * MBIT..1.5 * MBIT, || {
                by_hand()[0]["download_mbit"].as_f64().unwrap()
            });
            done(&["limit", "clear", &target.name]);
            until("its limit is over", || {
                mbit_of(|| arrived().unwrap(), 2 * MOMENT) > 3.0 * MBIT
            });
            drop(target);
            until("its flow has ended", || !is_known());
        }
    }
}

#[test]
fn a_limit_that_is_changed_holds_at_once_and_two_processes_of_one_share_it() {
    let stage = Stage::set();
    let (one, other) = (Sends::new(), Sends::new());
    let script = format!(
        "({}) & ({}) & wait; :",
        one.script(stage.port),
        other.script(stage.port)
    );
    let both = Group::spawn(Command::new("bash").args(["-c", &script]));
    let pid = both.id().to_string();
    for sends in [&one, &other] {
        sends.go("go");
        sends.go("send");
    }
    until("both send", || stage.classes().len() == 2);
    for (rate, mbit) in [("3mbit", 3.0), ("8mbit", 8.0)] {
        done(&["limit", "set", &pid, "--up", rate]);
        thread::sleep(SECOND);
        held(rate, 0.8 * mbit..1.05 * mbit, || stage.mbit());
    }
    let listed = by_hand();
    assert_eq!((listed.len(), &listed[0]["flows"]), (1, &json!(2)), "{listed:?}");
}

#[test]
fn a_daemon_that_is_restarted_or_killed_has_it_all_again() {
    let mut stage = Stage::set();
    let process = Target::of(Kind::Process, &stage);
    process.send(&stage);
    done(&["class", "set", &process.name, "background"]);
    done(&["limit", "set", &process.name, "--up", "4mbit"]);
    let cgroup = Cgroup::new();
    done(&["class", "set", &cgroup.path, "bulk"]);
    done(&["class", "set", &stage.flow(), "background"]);
    done(&["link", "set", "gwv", "--up", "30mbit"]);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut daemon = stage.daemon.take().unwrap();
        daemon.signal(signal);
        await_some("the daemon ends", || daemon.0.try_wait().unwrap());
        // It looks for what other namespaces have left behind.
        let elsewhere = Command::new("unshare").args(["-n", &program(), "revert"]).output();
        assert!(elsewhere.unwrap().status.success());
        stage.start();
        let listed = by_hand();
        assert_eq!(listed.len(), 4, "{signal}: {listed:?}");
        until("its flow is background", || stage.is_class("background"));
        let mut mbit = 0.0;
        let took = until("its limit holds again", || {
            mbit = stage.mbit();
            (3.0..4.3).contains(&mbit)
        });
        assert!(took < Duration::from_secs(5), "{signal}: after {took:?}: {mbit}");
        let links: Value = serde_json::from_str(&done(&["link", "show", "--json"])).unwrap();
        assert_eq!(links["links"][0]["rate_mbit"], 30.0, "{signal}: {links}");
    }
    for target in [&process.name, &stage.flow()] {
        done(&["class", "clear", target]);
    }
    until("its flow is standard", || stage.is_class("standard"));
}

#[test]
fn it_ends_with_what_it_was_set_for() {
    let stage = Stage::set();
    let process = Target::of(Kind::Process, &stage);
    process.send(&stage);
    until("its flow is known", || !stage.classes().is_empty());
    let cgroup = Cgroup::new();
    for target in [&process.name, &cgroup.path, &stage.flow()] {
        done(&["class", "set", target, "bulk"]);
        done(&["limit", "set", target, "--up", "20mbit"]);
    }
    assert_eq!(by_hand().len(), 6);
    drop((process, cgroup));
    until("all of it has ended", || by_hand().is_empty());
    let place = format!("/run/giveway/netns-{}/by-hand", giveway::kernel::own_netns().unwrap());
    assert!(!fs::exists(&place).unwrap(), "nothing is kept");
    until("its limits are over", || {
        stage.daemon().status()["uploads"]["limits"] == json!([])
    });
    assert!(!failure(&giveway(&["class", "set", "4194303", "bulk"])).0.is_empty());
}

fn shell_of_nobody(script: &str) -> Group {
    let user = NOBODY.to_string();
    let as_nobody = [
        "--reuid",
        &user,
        "--regid",
        &user,
        "--clear-groups",
        "bash",
        "-c",
        script,
    ];
    Group::spawn(Command::new("setpriv").args(as_nobody))
}

/// A command of nobody's that waits.
fn waits(uid: u32) -> KillOnDrop {
    let mut command = Command::new("setpriv");
    let user = uid.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "sleep", "1000"]);
    KillOnDrop::spawn(command.stdin(Stdio::null()))
}

#[test]
fn a_user_sets_what_is_their_own_and_only_what_they_may_choose() {
    let stage = Stage::set();
    let copy = Copy::new("live-own");
    let (own, roots, cgroup) = (waits(NOBODY), waits(0), Cgroup::new());
    until("it is nobody's", || {
        fs::read_to_string(format!("/proc/{}/comm", own.id())).is_ok_and(|name| name.trim() == "sleep")
    });
    let [own, roots] = [own.id(), roots.id()].map(|pid| pid.to_string());
    let set = |target: &str, class: &str| copy.as_nobody(&["class", "set", target, class]);
    assert!(set(&own, "background").status.success());
    let (line, code) = failure(&set(&own, "stream"));
    assert!(
        code == 1 && line.contains("only root may choose the class stream"),
        "{line}"
    );
    let (line, _) = failure(&set(&roots, "background"));
    assert!(
        line.contains("belongs to uid 0: users set this for processes of their own"),
        "{line}"
    );
    let (line, _) = failure(&set(&cgroup.path, "background"));
    assert!(
        line.contains("belongs to uid 0: users name cgroups of their own"),
        "{line}"
    );
    cgroup.give("", NOBODY);
    assert!(set(&cgroup.path, "background").status.success());
    let (line, _) = failure(&copy.as_nobody(&["link", "set", "gwv", "--up", "1mbit"]));
    assert!(line.contains("only root may set a link's rate"), "{line}");
    for command in ["pause", "resume"] {
        let (line, _) = failure(&copy.as_nobody(&[command]));
        assert!(line.contains("only root may pause"), "{line}");
    }
    // They see their own, and clear no other's.
    done(&["class", "set", &roots, "bulk"]);
    let listed = String::from_utf8(copy.as_nobody(&["class", "list"]).stdout).unwrap();
    assert!(listed.contains(&own) && !listed.contains(&roots), "{listed}");
    let (line, _) = failure(&copy.as_nobody(&["class", "clear", &roots]));
    assert!(line.contains("belongs to uid 0"), "{line}");
    drop(stage);
}

#[test]
fn a_user_lifts_neither_roots_class_nor_roots_limit() {
    let stage = Stage::set();
    let copy = Copy::new("live-lifts");
    let sends = Sends::new();
    let sender = shell_of_nobody(&sends.script(stage.port));
    sends.go("go");
    sends.go("send");
    until("its class is known", || stage.is_class("standard"));
    let pid = sender.id().to_string();
    done(&["class", "set", &pid, "background"]);
    done(&["limit", "set", &pid, "--up", "4mbit"]);
    let (line, _) = failure(&copy.as_nobody(&["class", "set", &pid, "bulk"]));
    assert!(line.contains("users can only lower that"), "{line}");
    let (line, _) = failure(&copy.as_nobody(&["limit", "set", &pid, "--up", "30mbit"]));
    assert!(line.contains("only root changes"), "{line}");
    for what in ["class", "limit"] {
        let (line, _) = failure(&copy.as_nobody(&[what, "clear", &pid]));
        assert!(line.contains("only that user and root clear it"), "{line}");
    }
    // Nor by another target that is closer.
    let flow = stage.flow();
    assert!(copy.as_nobody(&["class", "set", &flow, "bulk"]).status.success());
    assert!(
        copy.as_nobody(&["limit", "set", &flow, "--up", "30mbit"])
            .status
            .success()
    );
    thread::sleep(SECOND);
    let mbit = stage.mbit();
    assert!(stage.is_class("background") && mbit < 4.3, "{mbit}");
    // What is root's is cleared by root, and then the user's own holds.
    done(&["class", "clear", &pid]);
    until("its flow is bulk", || stage.is_class("bulk"));
}

/// Each transfer is a new process, which has what it is told as it connects.
#[test]
fn a_user_who_limits_the_other_direction_lifts_nothing_of_roots_for_short_processes() {
    const ROOTS_MBIT: f64 = 4.0;
    let stage = Stage::set();
    let copy = Copy::new("live-short");
    let port = source(&stage.lab, FAR_V4);
    let received = Scratch::new("received", "");
    fs::set_permissions(&received.0, fs::Permissions::from_mode(0o666)).unwrap();
    let script = format!(
        "while :; do head -c 200000 < /dev/tcp/{FAR_V4}/{port} >> {}; done",
        received.path()
    );
    let receiver = shell_of_nobody(&script);
    let mbit = || {
        let size = || fs::metadata(&received.0).unwrap().len();
        let (before, began) = (size(), Instant::now());
        thread::sleep(WINDOW);
        (size() - before) as f64 * 8e-6 / began.elapsed().as_secs_f64()
    };
    until("it receives", || mbit() > 3.0 * ROOTS_MBIT);
    let pid = receiver.id().to_string();
    done(&["limit", "set", &pid, "--down", "4mbit"]);
    thread::sleep(SECOND);
    let alone = mbit();
    assert!(
        copy.as_nobody(&["limit", "set", &pid, "--up", "30mbit"])
            .status
            .success()
    );
    let [beside, later] = [mbit(), mbit()];
    assert!(copy.as_nobody(&["limit", "clear", &pid]).status.success());
    let cleared = mbit();
    for held in [alone, beside, later, cleared] {
        assert!(held < 1.1 * ROOTS_MBIT, "{:?}", [alone, beside, later, cleared]);
    }
}

/// A small file system. Unmounted when dropped.
struct Small(String);

impl Small {
    fn at(folder: String) -> Self {
        fs::create_dir_all(&folder).unwrap();
        run(&format!("mount -t tmpfs -o size=256k,mode=0711 gwtest {folder}"));
        Self(folder)
    }

    /// Until nothing more has room.
    fn fill(&self) -> fs::File {
        let mut filler = fs::File::create(format!("{}/filler", self.0)).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
        filler
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-R", "-l", &self.0]).status();
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn what_cannot_be_kept_is_not_set_and_what_was_set_before_stays() {
    let mut stage = Stage::set();
    let mut daemon = stage.daemon.take().unwrap();
    daemon.signal(Signal::SIGTERM);
    await_some("the daemon ends", || daemon.0.try_wait().unwrap());
    let folder = format!("/run/giveway/netns-{}", giveway::kernel::own_netns().unwrap());
    let small = Small::at(folder.clone());
    stage.start();
    let process = Target::of(Kind::Process, &stage);
    process.send(&stage);
    done(&["limit", "set", &process.name, "--up", "4mbit"]);
    let filler = small.fill();
    let (line, _) = failure(&giveway(&["limit", "set", &process.name, "--up", "30mbit"]));
    assert!(line.contains("No space left"), "{line}");
    assert_eq!(by_hand()[0]["upload_limit_mbit"], 4.0);
    thread::sleep(SECOND);
    let mbit = stage.mbit();
    assert!(mbit < 4.3, "{mbit}");
    drop(filler);
    fs::remove_file(format!("{folder}/filler")).unwrap();
    done(&["limit", "set", &process.name, "--up", "30mbit"]);
    until("the other limit holds", || stage.is_above(8.0));
    drop(stage);
}

#[test]
fn each_user_has_a_part_and_what_is_set_and_cleared_without_end_keeps_nothing() {
    let stage = Stage::set();
    let flow = |port: u16| json!({"flow": {"address": "192.0.2.1", "port": port, "local_port": null}});
    let set = |port: u16| ask(&json!({"request": "set", "target": flow(port), "class": "background"}));
    let clear = |port: u16| ask(&json!({"request": "clear", "target": flow(port), "what": "class"}));
    let of_user = as_user(NOBODY, || (1..).map(set).position(|answer| answer["ok"].is_null()));
    assert_eq!(of_user, Some(16));
    let of_root = (1..).map(set).position(|answer| answer["ok"].is_null());
    assert_eq!(of_root, Some(256 - 16));
    // Of whomever.
    for port in 1..=256 {
        assert!(clear(port)["ok"]["changed"] == true || port > 240, "{port}");
    }
    assert!(by_hand().is_empty());
    let sleeps: Vec<KillOnDrop> = (0..4).map(|_| waits(0)).collect();
    let process = |child: &KillOnDrop| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let ticks: u64 = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_ascii_whitespace()
            .nth(19)
            .unwrap()
            .parse()
            .unwrap();
        json!({"process": {"pid": child.id(), "start_ns": ticks * 10_000_000}})
    };
    let round = |n: usize| {
        let target = process(&sleeps[n % sleeps.len()]);
        let set = ask(
            &json!({"request": "set", "target": target, "class": "bulk", "upload_limit_mbit": 1.0 + n as f64 / 1000.0}),
        );
        assert!(set["ok"]["changed"] == true, "{set}");
        for what in ["class", "limit"] {
            let cleared = ask(&json!({"request": "clear", "target": target, "what": what}));
            assert!(cleared["ok"]["changed"] == true, "{cleared}");
        }
    };
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", stage.daemon().0.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap()
            .trim();
        line.trim_end_matches(" kB").trim().parse::<u64>().unwrap()
    };
    (0..100).for_each(round);
    let before = resident();
    (0..300).for_each(round);
    let grown = resident().saturating_sub(before);
    assert!(grown < 1024, "{grown} kB more after 300 rounds");
    assert!(by_hand().is_empty());
}

#[test]
fn a_process_is_named_by_its_start_and_no_other_of_its_number_is_taken_for_it() {
    let _stage = Stage::set();
    let sleeps = waits(0);
    let target = json!({"process": {"pid": sleeps.id(), "start_ns": 10_000_000}});
    let refused = ask(&json!({"request": "set", "target": target, "class": "bulk"}));
    let reason = refused["error"].as_str().unwrap();
    assert!(reason.contains("another has its number"), "{reason}");
    let init = json!({"process": {"pid": 1, "start_ns": 0}});
    let refused = ask(&json!({"request": "set", "target": init, "class": "bulk"}));
    assert!(
        refused["error"].as_str().unwrap().contains("has started everything"),
        "{refused}"
    );
    for (arguments, said) in [
        (
            vec!["limit", "set", "gw-none.service", "--up", "1mbit"],
            "no running unit",
        ),
        (
            vec!["link", "set", "none0", "--up", "1mbit", "--down", "9mbit"],
            "no link that giveway manages",
        ),
    ] {
        let (line, code) = failure(&giveway(&arguments));
        assert!(code == 1 && line.contains(said), "{arguments:?}: {line}");
    }
}

#[test]
fn a_pause_takes_everything_back_until_it_is_over_or_ended() {
    let stage = Stage::set();
    let target = Target::of(Kind::Process, &stage);
    target.send(&stage);
    done(&["limit", "set", &target.name, "--up", "4mbit"]);
    let is_paused = || stage.daemon().status()["paused"].is_object();
    let told = done(&["pause"]);
    assert!(told.contains("until `giveway resume`") && is_paused(), "{told}");
    until("nothing is limited", || stage.is_above(12.0));
    let shown = done(&["status"]);
    assert!(shown.contains("nothing is active, until `giveway resume`"), "{shown}");
    assert_eq!(done(&["resume"]), "resumed: all changes are active again\n");
    until("it is limited again", || stage.mbit() < 4.3);
    assert_eq!(done(&["resume"]), "not paused\n");
    done(&["pause", "--for", "2s"]);
    assert!(is_paused());
    until("its time is over", || !is_paused());
    assert_eq!(giveway(&["pause", "--for", "10"]).status.code(), Some(2));
}

#[test]
fn a_links_rate_is_set_and_goes_back_to_what_is_configured() {
    let stage = Stage::set();
    let rate = || {
        stage.daemon().status()["queue"]["installed"]["rate_bytes_per_s"]
            .as_f64()
            .unwrap()
            / 125_000.0
    };
    let told = done(&["link", "set", "gwv", "--up", "10mbit"]);
    assert_eq!(told, "gwv: rate 10 Mbit/s up from now on\n");
    until("the queue has it", || (rate() - 10.0).abs() < 0.1);
    let target = Target::of(Kind::Process, &stage);
    target.send(&stage);
    held("the link's rate", 8.0..10.2, || stage.mbit());
    let shown = done(&["link", "show"]);
    assert!(shown.contains("gwv: 10 Mbit/s up (giveway link set)"), "{shown}");
    done(&["link", "clear", "gwv"]);
    until("the queue has the configured one", || (rate() - LINK_MBIT).abs() < 0.1);
    assert!(!stage.lab.near.is_empty());
}

#[test]
fn where_the_limit_of_a_rule_holds_in_place_of_a_users_own_that_is_said() {
    let stage = Stage::set();
    let copy = Copy::new("live-rule");
    let rule = format!("[[rule]]\nuser = \"{NOBODY}\"\nclass = \"standard\"\nupload_limit_mbit = 8\n");
    fs::write(&stage.config.0, fs::read_to_string(&stage.config.0).unwrap() + &rule).unwrap();
    done(&["reload"]);
    let in_place = "shared by all its flows, applies instead";
    let exec = copy.as_nobody(&["exec", "--up", "2mbit", "--", "true"]);
    let said = String::from_utf8_lossy(&exec.stderr);
    assert!(exec.status.success() && said.contains(in_place), "{said}");
    assert!(!said.contains("sends at most"), "{said}");
    let sends = Sends::new();
    let sender = shell_of_nobody(&sends.script(stage.port));
    sends.go("go");
    sends.go("send");
    until("its class is known", || stage.is_class("standard"));
    let pid = sender.id().to_string();
    until("it is said where it is set", || {
        let set = copy.as_nobody(&["limit", "set", &pid, "--up", "2mbit"]);
        assert!(set.status.success(), "{set:?}");
        String::from_utf8_lossy(&set.stderr).contains(in_place)
    });
}
