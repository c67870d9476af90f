// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real time by rule, from outside: who gets it, who does not, who loses it, and that however the daemon ends nobody
//! keeps it. Every process that could compute without end is bounded by its own limits.

use std::any::Any;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use giveway::actuate::thread::attributes::{Attributes, cpus_of};
use giveway::kernel::process::Handle;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::lab::{Lab, NEAR_V4, run};
use crate::support::process::{Copy, Daemon, failure, giveway};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::wait::{First, until};

mod donation;

/// A file of the test's own, which no other test's rule matches.
struct Program {
    directory: PathBuf,
    path: String,
}

impl Program {
    fn copy_of(original: &str, name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("giveway-rt-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(name).to_str().unwrap().to_owned();
        // By a child: a file that this process has open for writing may be open in another test's child, and cannot run.
        run(&format!("cp {original} {path}"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory, path }
    }

    fn example(name: &str) -> Self {
        Self::example_as(name, name)
    }

    fn example_as(name: &str, own: &str) -> Self {
        let test = std::env::current_exe().unwrap();
        let example = test.ancestors().nth(2).unwrap().join("examples").join(name);
        let built = "`cargo build -p giveway --examples` makes it";
        assert!(example.exists(), "{}: {built}", example.display());
        Self::copy_of(example.to_str().unwrap(), own)
    }

    fn shell(name: &str) -> Self {
        Self::copy_of("/bin/bash", name)
    }

    /// Runs it as a shell; within seconds it is ended by its limits, if not by the test.
    fn run(&self, script: &str) -> Running {
        Running::start(Command::new(&self.path).args(["-c", &format!("ulimit -t 5; {script}")]))
    }

    fn rule(&self, more: &str) -> String {
        format!("[[priority]]\nname = \"test\"\nexe = \"{}\"\n{more}\n", self.path)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends its `read`.
    fn go_on(&mut self) {
        writeln!(self.0.stdin.as_mut().unwrap()).unwrap();
    }

    fn lines(&mut self) -> impl Iterator<Item = String> {
        BufReader::new(self.0.stdout.as_mut().unwrap())
            .lines()
            .map(Result::unwrap)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn shown(pid: u32) -> String {
    Attributes::of(pid).map_or_else(|errno| errno.to_string(), |found| found.shown())
}

/// What the test itself has, and all that it starts.
pub(super) fn not_raised() -> String {
    shown(0)
}

#[track_caller]
pub(super) fn becomes(pid: u32, wanted: &str) -> Duration {
    until(&format!("process {pid} becomes {wanted}"), || shown(pid) == wanted)
}

/// A daemon in a network namespace of its own: it does not mind other tests' processes.
struct Watched {
    daemon: Option<Daemon>,
    _config: Scratch,
    _lab: Lab,
    _turn: Box<dyn Any>,
}

/// A spinner keeps other work waiting, the canaries of other tests' daemons too: a test that spins is alone.
static SPINNING: RwLock<()> = RwLock::new(());

fn watched(program: &Program, more: &str) -> Watched {
    watched_by(&program.rule(more), program, &[])
}

fn watched_by(config: &str, program: &Program, arguments: &[&str]) -> Watched {
    let turn = SPINNING.read().unwrap_or_else(PoisonError::into_inner);
    started(config, program, arguments, Box::new(turn))
}

fn watched_alone(config: &str, program: &Program) -> Watched {
    let turn = SPINNING.write().unwrap_or_else(PoisonError::into_inner);
    started(config, program, &[], Box::new(turn))
}

fn started(config: &str, program: &Program, arguments: &[&str], turn: Box<dyn Any>) -> Watched {
    let lab = Lab::enter();
    let name = program.directory.file_name().unwrap().to_str().unwrap();
    let config = Scratch::new(&format!("{name}.toml"), config);
    let daemon = Daemon::start(&[&["--config", config.path(), "--interface", "gwv"], arguments].concat());
    Watched {
        daemon: Some(daemon),
        _config: config,
        _lab: lab,
        _turn: turn,
    }
}

impl Watched {
    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    /// How often this has happened so far.
    fn counter(&self, name: &str) -> u64 {
        self.daemon().status()["priority"]["counters"][name].as_u64().unwrap()
    }

    fn signal(&self, signal: Signal) {
        let daemon = self.daemon.as_ref().unwrap();
        kill(Pid::from_raw(daemon.0.id() as i32), signal).unwrap();
    }
}

/// The daemon has judged everything that was started before: it has found this one, which comes after.
fn settle(program: &Program) {
    becomes(program.run("read").pid(), "FIFO 20");
}

#[test]
fn what_a_rule_matches_gets_what_the_rule_says_within_10_ms_of_its_start() {
    let program = Program::shell("start");
    let _watched = watched(&program, "priority = 17\ncpus = [0]");
    let _first = First::of_all();
    let mut took: Vec<Duration> = (0..21)
        .map(|_| {
            let running = program.run("read");
            let start = Instant::now();
            while shown(running.pid()) != "FIFO 17" {
                assert!(start.elapsed() < Duration::from_secs(5), "never");
                std::thread::sleep(Duration::from_micros(100));
            }
            assert_eq!(cpus_of(running.pid()).unwrap(), [0]);
            start.elapsed()
        })
        .collect();
    took.sort_unstable();
    assert!(took[10] < Duration::from_millis(10), "{took:?}");
}

#[test]
fn its_threads_get_it_too_and_those_that_come_later() {
    let program = Program::example("threads");
    let _watched = watched(&program, "");
    let mut running = Running::start(&mut Command::new(&program.path));
    for line in running.lines().take(3).collect::<Vec<_>>() {
        assert!(line.starts_with("FIFO 20 "), "{line}");
    }
    let mut took_us: Vec<u64> = (0..21)
        .map(|_| {
            running.go_on();
            let line = running.lines().next().unwrap();
            line.strip_prefix("FIFO 20 ")
                .expect("what the others have")
                .parse()
                .unwrap()
        })
        .collect();
    took_us.sort_unstable();
    assert!(took_us[10] < 10_000, "microseconds: {took_us:?}");
}

#[test]
fn threads_that_got_nothing_take_no_place_from_others() {
    let (program, theirs) = (Program::shell("place"), Program::example_as("threads", "theirs"));
    let limits = "[priority_limits]\nmax_tasks = 4\n";
    let grant = format!("[[grant]]\nuser = \"{NOBODY}\"\nmax_priority = 5\nmax_tasks = 2\n");
    let _watched = watched_by(&format!("{}{limits}{grant}", program.rule("")), &program, &[]);
    let copy = Copy::new("place");
    let mut command = copy.command(&["exec", "--priority", "5", "--require", "--", &theirs.path]);
    let running = Running::start(&mut command);
    let threads = format!("/proc/{}/task", running.pid());
    until("it has five threads", || {
        fs::read_dir(&threads).is_ok_and(|all| all.count() == 5)
    });
    // They are counted every 100 ms.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(shown(running.pid()), "FIFO 5");
    let of_root = program.run("read");
    becomes(of_root.pid(), "FIFO 20");
}

#[test]
fn what_runs_already_gets_it_when_the_daemon_starts() {
    let program = Program::shell("early");
    let _lab = Lab::enter();
    let running = program.run("read");
    let config = Scratch::new("early.toml", &program.rule(""));
    let _daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    assert_eq!(shown(running.pid()), "FIFO 20");
}

#[test]
fn a_process_that_executes_something_else_loses_it() {
    let program = Program::shell("loses");
    let _watched = watched(&program, "");
    let mut running = program.run("read; exec /bin/sleep 30");
    becomes(running.pid(), "FIFO 20");
    running.go_on();
    becomes(running.pid(), &not_raised());
}

#[test]
fn children_do_not_inherit_it() {
    let program = Program::shell("parent");
    let _watched = watched(&program, "");
    let mut running = program.run("read; /bin/sleep 30 & echo $!; read; kill $!");
    becomes(running.pid(), "FIFO 20");
    running.go_on();
    let child: u32 = running.lines().next().unwrap().parse().unwrap();
    until("the child runs sleep", || {
        fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|exe| exe.ends_with("sleep"))
    });
    // Not even its niceness, which the kernel resets with the rest.
    assert_eq!(shown(child), "OTHER (nice 0)");
    running.go_on();
}

#[test]
fn a_file_of_the_same_name_elsewhere_is_another_file() {
    let program = Program::shell("named");
    let _watched = watched(&program, "");
    // In a mount namespace of its own, another file stands at the rule's path.
    let script = format!("mount --bind /bin/bash {0}; exec {0} -c 'echo up; read'", program.path);
    let mut elsewhere = Running::start(Command::new("unshare").args(["-m", "bash", "-c", &script]));
    assert_eq!(elsewhere.lines().next().as_deref(), Some("up"));
    let copy = Program::copy_of(&program.path, "copy");
    let copied = copy.run("read");
    settle(&program);
    assert_eq!(
        (shown(elsewhere.pid()), shown(copied.pid())),
        (not_raised(), not_raised())
    );
}

#[test]
fn another_network_namespaces_processes_are_another_daemons() {
    let program = Program::shell("apart");
    let watched = watched(&program, "");
    let far = watched._lab.far.clone();
    let mut elsewhere =
        Running::start(Command::new("ip").args(["netns", "exec", &far, &program.path, "-c", "echo up; read"]));
    assert_eq!(elsewhere.lines().next().as_deref(), Some("up"));
    settle(&program);
    assert_eq!(shown(elsewhere.pid()), not_raised());
}

#[test]
fn a_user_who_could_write_the_executable_must_be_named_by_the_rule() {
    let program = Program::shell("writable");
    let root = Program::shell("roots");
    chown(&program.path, Some(12345), None).unwrap();
    let _watched = watched_by(
        &format!("{}{}", program.rule(""), root.rule("").replace("test", "two")),
        &program,
        &[],
    );
    let untrusted = program.run("read");
    settle(&root);
    assert_eq!(shown(untrusted.pid()), not_raised());
}

#[test]
fn an_executable_of_anybodys_is_good_enough_for_a_rule_that_names_the_user() {
    let program = Program::shell("users");
    fs::set_permissions(&program.path, fs::Permissions::from_mode(0o777)).unwrap();
    let _watched = watched(&program, "user = \"root\"");
    becomes(program.run("read").pid(), "FIFO 20");
}

#[test]
fn an_executable_that_is_replaced_on_disk_still_matches() {
    let program = Program::shell("replaced");
    let _watched = watched(&program, "");
    let new = format!("{}.new", program.path);
    run(&format!("cp /bin/bash {new}"));
    fs::rename(&new, &program.path).unwrap();
    becomes(program.run("read").pid(), "FIFO 20");
}

#[test]
fn a_spinner_loses_it_within_a_second_and_is_not_granted_again() {
    let program = Program::shell("spins");
    let _watched = watched_alone(&program.rule(""), &program);
    let mut spinner = program.run("read; while :; do :; done");
    becomes(spinner.pid(), "FIFO 20");
    let (not_raised, first) = (not_raised(), First::of_all());
    spinner.go_on();
    let took = becomes(spinner.pid(), &not_raised);
    drop(first);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn what_keeps_other_work_from_a_cpu_loses_it_whatever_its_budget() {
    let program = Program::shell("starves");
    // A budget of ten CPUs over ten seconds: nothing but the starvation_detector can end it.
    let limits = "[priority_limits]\ntotal_percent = 95\nwindow_ms = 10000\nstarvation_ms = 300\n";
    let config = format!("{}{limits}", program.rule("budget_percent = 1000\ncpus = [1]"));
    let watched = watched_alone(&config, &program);
    let mut spinner = program.run("read; while :; do :; done");
    becomes(spinner.pid(), "FIFO 20");
    let (not_raised, first) = (not_raised(), First::of_all());
    spinner.go_on();
    let took = becomes(spinner.pid(), &not_raised);
    drop(first);
    assert!(took < Duration::from_secs(1), "{took:?}");
    let status = watched.daemon.as_ref().unwrap().status();
    assert_eq!(status["priority"]["counters"]["starved"], 1, "{}", status["priority"]);
    let reason = String::from_utf8(giveway(&["why", &spinner.pid().to_string()]).stdout).unwrap();
    // On a machine that is busy the other CPU's may have waited as long.
    assert!(reason.contains("starvation on CPU"), "{reason}");
}

#[test]
fn what_another_tool_sets_is_left_alone() {
    let program = Program::shell("stepped");
    let mut watched = watched(&program, "");
    let running = program.run("read");
    becomes(running.pid(), "FIFO 20");
    let pid = running.pid().to_string();
    assert!(
        Command::new("chrt")
            .args(["-r", "-p", "7", &pid])
            .status()
            .unwrap()
            .success()
    );
    // The daemon looks once a second; ending it sets back only what is its own.
    until("the daemon sees it", || watched.counter("conflict") == 1);
    assert_eq!(shown(running.pid()), "RR 7");
    watched.signal(Signal::SIGTERM);
    watched.daemon.as_mut().unwrap().0.wait().unwrap();
    assert_eq!(shown(running.pid()), "RR 7");
}

#[test]
fn sigterm_sets_everything_back() {
    let program = Program::shell("term");
    let mut watched = watched(&program, "cpus = [1]");
    let running = program.run("read");
    becomes(running.pid(), "FIFO 20");
    watched.signal(Signal::SIGTERM);
    assert!(watched.daemon.as_mut().unwrap().0.wait().unwrap().success());
    assert_eq!(shown(running.pid()), not_raised());
    assert!(cpus_of(running.pid()).unwrap().len() > 1, "and its CPUs");
}

#[test]
fn cpus_that_another_tool_chose_among_ours_are_left_alone() {
    let cpus = cpus_of(0).unwrap();
    let [first, .., last] = cpus[..] else {
        panic!("it takes two CPUs");
    };
    let program = Program::copy_of("/bin/sleep", "gw-cpus");
    let mut watched = watched(&program, &format!("cpus = [{first}, {last}]"));
    let [ours, theirs] = [(), ()].map(|()| Running::start(Command::new(&program.path).arg("100")));
    for running in [&ours, &theirs] {
        becomes(running.pid(), "FIFO 20");
    }
    run(&format!("taskset -p -c {last} {}", theirs.pid()));
    watched.signal(Signal::SIGTERM);
    assert!(watched.daemon.as_mut().unwrap().0.wait().unwrap().success());
    assert_eq!(cpus_of(theirs.pid()).unwrap(), [last]);
    assert_eq!(cpus_of(ours.pid()).unwrap(), cpus);
    assert_eq!([shown(ours.pid()), shown(theirs.pid())], [not_raised(), not_raised()]);
}

#[test]
fn sigkill_sets_everything_back_within_a_second_whatever_spins() {
    let program = Program::shell("kill");
    // No budget that would end it before.
    let config = format!(
        "{}[priority_limits]\ntotal_percent = 95\nwindow_ms = 10000\nstarvation_ms = 10000\n",
        program.rule("budget_percent = 1000")
    );
    let watched = watched_alone(&config, &program);
    // One on each of two CPUs; their limits end them within seconds, should the watchdog not.
    let mut spinners = [(); 2].map(|()| program.run("read; while :; do :; done"));
    for spinner in &mut spinners {
        becomes(spinner.pid(), "FIFO 20");
    }
    let (not_raised, _first) = (not_raised(), First::of_all());
    let used = |spinner: &Running| Handle::open(spinner.pid()).unwrap().cpu();
    let before = spinners.each_ref().map(used);
    spinners.iter_mut().for_each(Running::go_on);
    until("both spin", || {
        let mut each = spinners.iter().zip(before);
        each.all(|(spinner, before)| used(spinner) > before + Duration::from_millis(20))
    });
    watched.signal(Signal::SIGKILL);
    let start = Instant::now();
    for spinner in &spinners {
        becomes(spinner.pid(), &not_raised);
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn with_the_watchdog_killed_too_revert_sets_everything_back() {
    let program = Program::shell("both");
    let watched = watched(&program, "");
    let running = program.run("read");
    becomes(running.pid(), "FIFO 20");
    let daemon = watched.daemon.as_ref().unwrap();
    for pid in [daemon.watchdog(), daemon.0.id()] {
        kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
    }
    drop(watched.daemon);
    assert_eq!(shown(running.pid()), "FIFO 20", "nobody is there to set it back");
    let found = giveway(&["revert", "--dry-run", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found["found"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!(shown(running.pid()), "FIFO 20", "a dry run changes nothing");
    assert!(giveway(&["revert"]).status.success());
    assert_eq!(shown(running.pid()), not_raised());
}

#[test]
fn a_rule_that_is_added_matches_what_runs_already_and_takes_all_back_when_it_goes() {
    let program = Program::shell("added");
    let _watched = watched_by("", &program, &[]);
    let running = program.run("read");
    let add = [
        "priority",
        "add",
        "--exe",
        &program.path,
        "--priority",
        "11",
        "--name",
        "mine",
    ];
    let added = giveway(&add);
    assert!(added.status.success(), "{added:?}");
    assert_eq!(shown(running.pid()), "FIFO 11", "when the answer comes it is done");
    let later = program.run("read");
    becomes(later.pid(), "FIFO 11");
    assert!(giveway(&["priority", "remove", "mine"]).status.success());
    assert_eq!((shown(running.pid()), shown(later.pid())), (not_raised(), not_raised()));
    assert!(!giveway(&["priority", "remove", "mine"]).status.success());
}

#[test]
fn what_a_rule_gave_counts_though_the_rule_goes() {
    let (kept, program) = (Program::shell("kept"), Program::shell("gone"));
    let watched = watched_alone(&kept.rule(""), &kept);
    let computes = "i=0; while ((i < 15000)); do ((++i)); done; echo done";
    let mut running = program.run(&format!("while read; do {computes}; done"));
    let handle = Handle::open(running.pid()).unwrap();
    let mut rule = vec!["priority", "add", "--name", "gone"];
    rule.extend(["--exe", &program.path, "--priority", "20"]);
    for _ in 0..5 {
        assert!(giveway(&rule).status.success());
        becomes(running.pid(), "FIFO 20");
        // What it used before is out of the window then.
        thread::sleep(Duration::from_millis(600));
        let before = handle.cpu();
        running.go_on();
        running.lines().next();
        assert!(giveway(&["priority", "remove", "gone"]).status.success());
        let used = handle.cpu() - before;
        let status = watched.daemon().status();
        let counted = status["priority"]["budget"]["used_by_rules_ms"].as_u64().unwrap();
        let counted = Duration::from_millis(counted);
        assert!(counted + Duration::from_millis(5) > used, "{counted:?} of {used:?}");
    }
}

#[test]
fn a_rule_takes_a_handler_of_requests_over_from_its_chain_and_gives_it_back() {
    let program = Program::example("service");
    let lab = Lab::enter();
    let mut service = Running::start(&mut Command::new(&program.path));
    let port: u16 = service.lines().next().unwrap().parse().unwrap();
    // So long a deadline that it stays raised by itself.
    let chain = format!("[[chain]]\nlocal_port = {port}\nbudget_ms = 9000\n");
    let config = Scratch::new("both.toml", &format!("[queue]\nbackend = \"none\"\n{chain}"));
    let daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    let far = lab.far(|| UdpSocket::bind(("0.0.0.0", 0)).unwrap());
    far.connect((NEAR_V4, port)).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let request = || {
        far.send(b"request").unwrap();
        assert_eq!(far.recv(&mut [0; 64]).unwrap(), b"request".len());
    };
    let is_raised = || shown(service.pid()) == "FIFO 40";
    until("a request raises it", || {
        request();
        is_raised()
    });
    let (exe, more) = (&*program.path, ["--priority", "11", "--name", "mine"]);
    assert!(
        giveway(&[&["priority", "add", "--exe", exe], &more[..]].concat())
            .status
            .success()
    );
    becomes(service.pid(), "FIFO 11");
    (0..20).for_each(|_| request());
    assert_eq!(shown(service.pid()), "FIFO 11", "a rule stands above a chain");
    assert!(giveway(&["priority", "remove", "mine"]).status.success());
    becomes(service.pid(), &not_raised());
    until("a request raises it again", || {
        request();
        is_raised()
    });
    let counters = daemon.status()["priority"]["counters"].take();
    assert!(counters["granted"] == 1 && counters["conflict"] == 0, "{counters}");
}

#[test]
fn processes_in_crowds_get_no_more_than_the_budget_of_all() {
    let program = Program::shell("bomb");
    let watched = watched(&program, "max_tasks = 3");
    let crowd: Vec<Running> = (0..8).map(|_| program.run("read")).collect();
    let having = || crowd.iter().filter(|one| shown(one.pid()) == "FIFO 20").count();
    until("all of them are judged", || {
        watched.counter("granted") == 3 && watched.counter("refused") == 5
    });
    assert_eq!(having(), 3);
}

#[test]
fn a_dry_run_gives_nothing() {
    let program = Program::shell("dry");
    let watched = watched_by(&program.rule(""), &program, &["--dry-run"]);
    let mut running = program.run("echo up; read");
    assert_eq!(running.lines().next().as_deref(), Some("up"));
    let mut change = serde_json::Value::Null;
    until("it would have got it", || {
        let changes = watched.daemon().status()["changes"].clone();
        let of_it = |change: &&serde_json::Value| change["pid"] == running.pid();
        change = changes
            .as_array()
            .unwrap()
            .iter()
            .find(of_it)
            .cloned()
            .unwrap_or_default();
        !change.is_null()
    });
    assert!(change["made"] == false && change["new"] == "FIFO 20", "{change}");
    assert_eq!(shown(running.pid()), not_raised());
}

#[test]
fn a_user_that_does_not_exist_is_refused_at_the_start() {
    let config = Scratch::new("nobody.toml", "[[priority]]\nuser = \"nosuchuser\"\n");
    let (line, code) = failure(&giveway(&["run", "--config", config.path()]));
    assert!(
        code == 2 && line.contains("nosuchuser") && line.contains("nothing was changed"),
        "{line}"
    );
}
