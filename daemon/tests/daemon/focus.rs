// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is active: by root's word and users', and by the sessions at the seats. Bulk elsewhere is background meanwhile.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use giveway::kernel::cgroup::CgroupRoot;
use giveway::kernel::own_netns;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::caller;
use crate::support::held::Held;
use crate::support::lab::{FAR_V4, Lab};
use crate::support::process::{Copy, Daemon, KillOnDrop, failure, giveway};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::wait::until;

/// A cgroup that is removed at the end of the test, with all below, and those above that were made for it.
pub(super) struct Group {
    root: CgroupRoot,
    pub path: String,
    made: PathBuf,
}

impl Group {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self::at(&format!("/gw-active-{}-{number}", std::process::id()))
    }

    pub fn at(path: &str) -> Self {
        caller::forget();
        let root = CgroupRoot::open().unwrap();
        let mut group = Self {
            root,
            path: path.to_owned(),
            made: PathBuf::new(),
        };
        let folder = group.folder("");
        let new = folder.ancestors().take_while(|above| !above.exists());
        group.made = new.last().unwrap().to_owned();
        fs::create_dir_all(folder).unwrap();
        group
    }

    pub fn folder(&self, below: &str) -> PathBuf {
        let root = format!("/proc/{}/fd/{}", std::process::id(), self.root.directory.as_raw_fd());
        PathBuf::from(format!("{root}{}{below}", self.path))
    }

    /// A cgroup below; returns its path.
    fn below(&self, name: &str) -> String {
        fs::create_dir_all(self.folder(name)).unwrap();
        format!("{}{name}", self.path)
    }

    fn id(&self, below: &str) -> u64 {
        fs::metadata(self.folder(below)).unwrap().ino()
    }

    pub fn give(&self, below: &str, uid: u32) {
        chown(self.folder(below), Some(uid), None).unwrap();
    }

    pub fn put(&self, below: &str, pid: u32) {
        fs::write(self.folder(below).join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// A command of this user in there from its start.
    fn command(&self, below: &str, uid: u32, words: &[&OsStr]) -> Command {
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec setpriv --reuid {uid} --regid {uid} --clear-groups \"$@\"",
            self.folder(below).display()
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script, "bash"]).args(words);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        until("its processes have ended", || remove(&self.made));
    }
}

fn remove(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return true };
    let below = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for entry in below {
        remove(&entry.path());
    }
    fs::remove_dir(folder).is_ok()
}

/// A daemon by whose rules everything is bulk, and two uploads: in the cgroup `/doing`, and in `/else`.
struct Uploads {
    daemon: Daemon,
    ports: [u16; 2],
    talkers: [KillOnDrop; 2],
    group: Group,
    _rules: Scratch,
    _lab: Lab,
}

impl Uploads {
    fn of(uid: u32) -> Self {
        Self::in_group(Group::new(), uid, &[])
    }

    fn in_group(group: Group, uid: u32, arguments: &[&str]) -> Self {
        let lab = Lab::enter();
        let rule = format!("[[rule]]\naddress = \"{FAR_V4}\"\nclass = \"bulk\"\n");
        let rules = Scratch::new("active.toml", &rule);
        let folder = rules.0.parent().unwrap().to_str().unwrap().to_owned();
        let given = ["--rules", &folder, "--interface", "gwv"];
        let daemon = Daemon::start(&[&given[..], arguments].concat());
        let uploads = ["/doing", "/else"].map(|name| {
            group.below(name);
            let port = lab.reader();
            (port, talker(&group, name, port, uid))
        });
        let [(doing, first), (other, second)] = uploads;
        Self {
            daemon,
            ports: [doing, other],
            talkers: [first, second],
            group,
            _rules: rules,
            _lab: lab,
        }
    }

    fn flows(&self) -> [Value; 2] {
        let status = self.daemon.status();
        self.ports.map(|port| {
            let mut flows = status["flows"].as_array().unwrap().iter();
            let flow = flows.find(|flow| flow["remote"] == format!("{FAR_V4}:{port}"));
            flow.cloned().unwrap_or_default()
        })
    }

    /// Waits until both are known, with these classes; returns how long that took.
    #[track_caller]
    fn become_classes(&self, expected: [&str; 2]) -> Duration {
        let names = ["/doing", "/else"].map(|name| format!("{}{name}", self.group.path));
        until(&format!("the classes are {expected:?}"), || {
            let flows = self.flows();
            let is_known = |(flow, name): (&Value, &String)| flow["cgroup"].as_str().is_some_and(|path| path == name);
            flows.iter().zip(&names).all(is_known) && flows.map(|flow| flow["class"].clone()) == expected
        })
    }

    #[track_caller]
    fn stay_bulk(&self) {
        self.become_classes(["bulk", "bulk"]);
        thread::sleep(Duration::from_millis(1500));
        assert_eq!(self.flows().map(|flow| flow["class"].clone()), ["bulk", "bulk"]);
    }
}

fn talker(group: &Group, below: &str, port: u16, uid: u32) -> KillOnDrop {
    let script = format!("exec 3<>/dev/tcp/{FAR_V4}/{port}; while echo x >&3; do sleep 0.1 3>&-; done");
    let mut command = group.command(below, uid, &["bash", "-c", &script].map(OsStr::new));
    KillOnDrop::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// What root says.
fn focus(arguments: &[&str]) -> String {
    let output = giveway(&[&["focus"], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    text(output.stdout)
}

fn ask(request: &Value) -> Value {
    let mut stream = UnixStream::connect(format!("/run/giveway/netns-{}/control", own_netns().unwrap())).unwrap();
    stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn bulk_outside_of_what_root_names_is_background_within_a_second_and_until_it_is_revoked() {
    let uploads = Uploads::of(NOBODY);
    uploads.become_classes(["bulk", "bulk"]);
    let doing = format!("{}/doing", uploads.group.path);
    assert_eq!(focus(&["set", &doing]), format!("{doing} (giveway focus by uid 0)\n"));
    let took = uploads.become_classes(["bulk", "background"]);
    assert!(took < Duration::from_secs(1), "{took:?}");
    let reason = text(giveway(&["why", &uploads.ports[1].to_string()]).stdout);
    assert!(
        reason.contains("outside of the focus") && reason.contains(&doing),
        "{reason}"
    );
    let status = text(giveway(&["status"]).stdout);
    let is_shown = |line: &str| line.starts_with("focus ") && line.contains(&doing);
    assert!(status.lines().any(is_shown), "{status}");
    assert!(focus(&["clear"]).contains("no focus is set"));
    let took = uploads.become_classes(["bulk", "bulk"]);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn one_line_on_the_control_socket_says_it_and_it_ends_with_its_time_and_with_the_cgroup() {
    let uploads = Uploads::of(NOBODY);
    let id = uploads.group.id("/doing");
    let answer = ask(&json!({"request": "focus", "cgroup": id, "for_s": 2}));
    let shown = &answer["ok"]["focus"][0];
    assert_eq!((&shown["uid"], &shown["left_s"]), (&json!(0), &json!(2)), "{answer}");
    uploads.become_classes(["bulk", "background"]);
    uploads.become_classes(["bulk", "bulk"]);

    let short = uploads.group.below("/short");
    focus(&["set", &short]);
    uploads.become_classes(["background", "background"]);
    fs::remove_dir(uploads.group.folder("/short")).unwrap();
    uploads.become_classes(["bulk", "bulk"]);
    let (line, _) = failure(&giveway(&["focus", "set", &short]));
    assert!(line.contains("cannot find the cgroup"), "{line}");
    let gone = ask(&json!({"request": "focus", "cgroup": u64::MAX}));
    assert!(gone["error"].as_str().unwrap().contains("no such cgroup"), "{gone}");
}

#[test]
fn a_unit_is_found_by_its_name() {
    let slice = Group::at(&format!("/gwactive{}.slice", std::process::id()));
    let name = format!("gw-robot-{}.service", std::process::id());
    let path = slice.below(&format!("/gwactive-sub.slice/{name}"));
    let uploads = Uploads::of(NOBODY);
    assert_eq!(focus(&["set", &name]), format!("{path} (giveway focus by uid 0)\n"));
    drop(uploads);
    let (line, code) = failure(&giveway(&["focus", "set", "gw-nonexistent.service"]));
    assert!(code == 1 && line.contains("no running unit"), "{line}");
}

#[test]
fn a_user_names_own_cgroups_only_and_for_own_flows_only() {
    let uploads = Uploads::of(NOBODY);
    let copy = Copy::new("active");
    let [doing, other] = ["/doing", "/else"].map(|name| format!("{}{name}", uploads.group.path));
    uploads.group.give("/doing", NOBODY);
    let (line, code) = failure(&copy.as_nobody(&["focus", "set", &other]));
    assert!(code == 1 && line.contains("belongs to uid 0"), "{line}");
    let output = copy.as_nobody(&["focus", "set", &doing]);
    assert_eq!(
        text(output.stdout),
        format!("{doing} (giveway focus by uid {NOBODY})\n")
    );
    uploads.become_classes(["bulk", "background"]);
    let (line, code) = failure(&giveway(&["focus", "clear"]));
    assert!(code == 1 && line.contains("you have set no focus"), "{line}");
    thread::sleep(Duration::from_millis(500));
    uploads.become_classes(["bulk", "background"]);
    assert!(copy.as_nobody(&["focus", "clear"]).status.success());
    uploads.become_classes(["bulk", "bulk"]);
}

#[test]
fn what_a_user_names_changes_nothing_for_others() {
    let uploads = Uploads::of(0);
    let copy = Copy::new("others");
    uploads.group.below("/theirs");
    uploads.group.give("/theirs", NOBODY);
    let theirs = format!("{}/theirs", uploads.group.path);
    assert!(copy.as_nobody(&["focus", "set", &theirs]).status.success());
    uploads.stay_bulk();
}

#[test]
fn a_user_may_name_the_cgroup_of_anothers_that_the_asking_process_is_in() {
    let uploads = Uploads::of(NOBODY);
    let copy = Copy::new("within");
    let doing = format!("{}/doing", uploads.group.path);
    let client = copy.command(&[]);
    let words = [
        client.get_program(),
        OsStr::new("focus"),
        OsStr::new("set"),
        OsStr::new(&doing),
    ];
    let output = uploads.group.command("/doing", NOBODY, &words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    uploads.become_classes(["bulk", "background"]);
}

/// systemd's folder, with a session of this user at a seat.
struct Sessions(tempfile::TempDir);

impl Sessions {
    fn of(uid: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let sessions = Self(folder);
        for name in ["seats", "sessions"] {
            fs::create_dir(sessions.0.path().join(name)).unwrap();
        }
        sessions.write_session(uid);
        sessions
    }

    fn write_session(&self, uid: u32) {
        let session = format!("UID={uid}\nACTIVE=1\nCLASS=user\nSCOPE=session-2.scope\n");
        self.write("sessions/2", session.as_bytes());
        self.write("seats/seat0", b"IS_SEAT0=1\nACTIVE=2\n");
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.path().join(name), bytes).unwrap();
    }
}

/// Nobody else's.
fn uid_of_test() -> u32 {
    2_000_000_000 + std::process::id()
}

#[test]
fn bulk_outside_of_the_session_at_the_seat_is_background_whoevers_it_is() {
    let uid = uid_of_test();
    let sessions = Sessions::of(uid);
    let user = Group::at(&format!("/user.slice/user-{uid}.slice/user@{uid}.service/app.slice"));
    let uploads = Uploads::in_group(user, NOBODY, &["--sessions", sessions.path()]);
    uploads.become_classes(["bulk", "bulk"]);
    uploads.group.below("/background.slice");
    uploads.group.put("/background.slice", uploads.talkers[1].id());
    until("what is in a background.slice is background", || {
        uploads.flows()[1]["class"] == "background"
    });
    let shown = focus(&["show"]);
    assert!(
        shown.contains(&format!("session-2.scope (session of uid {uid} at seat0)")),
        "{shown}"
    );
    sessions.write("sessions/2", b"ACTIVE=0\n");
    until("nothing is active", || focus(&["show"]).contains("no focus is set"));
    sessions.write_session(uid + 1);
    until("both are outside", || {
        uploads.flows().map(|flow| flow["class"].clone()) == ["background", "background"]
    });
}

#[test]
fn whatever_is_in_the_files_of_sessions_the_daemon_goes_on_and_says_what_is_wrong() {
    let sessions = Sessions::of(1000);
    let uploads = Uploads::in_group(Group::new(), NOBODY, &["--sessions", sessions.path()]);
    let hostile: [(&str, Vec<u8>); 5] = [
        ("seats/seat0", b"ACTIVE=../../../etc/passwd\n".to_vec()),
        ("seats/seat0", vec![0xff; 3 << 20]),
        ("sessions/2", b"UID=-1\nACTIVE=1\nCLASS=user\n".to_vec()),
        (
            "sessions/2",
            b"UID=0\nACTIVE=1\nCLASS=user\nSCOPE=../x.scope\n".to_vec(),
        ),
        ("sessions/2", vec![b'\n'; 3 << 20]),
    ];
    for (name, bytes) in hostile {
        sessions.write_session(1000);
        uploads.become_classes(["background", "background"]);
        sessions.write(name, &bytes);
        let is_told = || uploads.daemon.status()["warnings"].to_string().contains(name);
        if bytes[0] != b'\n' {
            until("it is told of", is_told);
        }
        uploads.become_classes(["bulk", "bulk"]);
    }
}

#[test]
fn a_folder_of_sessions_that_never_answers_keeps_nobody_waiting() {
    let sessions = Sessions::of(1000);
    let held = Held::directory(sessions.0.path().join("seats"));
    let mut uploads = Uploads::in_group(Group::new(), NOBODY, &["--sessions", sessions.path()]);
    uploads.stay_bulk();
    focus(&["set", &format!("{}/doing", uploads.group.path)]);
    uploads.become_classes(["bulk", "background"]);
    uploads.daemon.signal(Signal::SIGTERM);
    let took = until("the daemon has ended", || {
        uploads.daemon.0.try_wait().unwrap().is_some()
    });
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(held);
}

#[test]
fn sessions_are_followed_only_if_configured() {
    let sessions = Sessions::of(1000);
    let _lab = Lab::enter();
    let config = Scratch::new("none.toml", "[classes]\nfollow_sessions = false\n");
    let arguments = [
        "--config",
        config.path(),
        "--interface",
        "gwv",
        "--sessions",
        sessions.path(),
    ];
    let _daemon = Daemon::start(&arguments);
    thread::sleep(Duration::from_millis(2500));
    assert!(focus(&["show"]).contains("no focus is set"));
}
