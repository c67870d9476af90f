// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process that waits for a lock with priority inheritance donates its priority to the owner, and through it to whoever that
//! one waits for. What they compute costs whom the priority comes from.

use giveway::actuate::thread::attributes::set_cpus;

use super::*;
use crate::support::process::effective_priority;

/// Processes that share locks, of a program that a rule names, and of one that none does.
struct Locks {
    granted: Program,
    ordinary: Program,
    file: Scratch,
}

impl Locks {
    fn new(test: &str) -> Self {
        let program = |own| Program::example_as("locks", &format!("{test}-{own}"));
        Self {
            granted: program("granted"),
            ordinary: program("ordinary"),
            file: Scratch::new("locks", ""),
        }
    }

    fn start(&self, program: &Program, does: &str) -> Running {
        let mut command = Command::new(&program.path);
        Running::start(command.arg(self.file.path()).args(does.split_whitespace()))
    }

    /// One that has done this when it says so, and does the rest when it is told.
    fn ready(&self, program: &Program, first: &str, then: &str) -> Running {
        let mut running = self.start(program, &format!("{first} say:ready read {then}"));
        assert_eq!(running.lines().next().as_deref(), Some("ready"));
        running
    }

    /// One of the rule's, which waits for lock 0 from now on.
    fn donor(&self) -> Running {
        let mut donor = self.ready(&self.granted, "", "lock:0 say:has unlock:0 read");
        donor.go_on();
        donor
    }
}

impl Running {
    #[track_caller]
    fn inherits(&self, priority: i32) {
        until("it has the priority", || effective_priority(self.pid()) == priority);
    }
}

fn waits_for_a_lock(running: &Running) -> bool {
    let call = fs::read_to_string(format!("/proc/{}/syscall", running.pid())).unwrap_or_default();
    call.split(' ').next() == Some(libc::SYS_futex.to_string().as_str())
}

fn reason(running: &Running) -> String {
    String::from_utf8(giveway(&["why", &running.pid().to_string()]).stdout).unwrap()
}

fn donated_to(owner: &Running) -> String {
    format!(
        "its priority was inherited through a futex by process {} (",
        owner.pid()
    )
}

#[track_caller]
fn loses_it_for(donor: &Running, owner: &Running) {
    let (not_raised, first) = (not_raised(), First::of_all());
    let took = becomes(donor.pid(), &not_raised);
    drop(first);
    assert!(took < Duration::from_secs(1), "{took:?}");
    // The kernel revokes what was donated with it.
    assert_eq!(effective_priority(owner.pid()), 120);
    let reason = reason(donor);
    assert!(reason.contains(&donated_to(owner)), "{reason}");
}

#[test]
fn who_waits_for_a_lock_pays_for_what_its_owner_computes() {
    let locks = Locks::new("owner");
    let _watched = watched_alone(&locks.granted.rule(""), &locks.granted);
    let mut owner = locks.ready(&locks.ordinary, "lock:0", "compute:60000");
    let donor = locks.donor();
    owner.inherits(79);
    owner.go_on();
    loses_it_for(&donor, &owner);
}

#[test]
fn an_owner_that_computes_already_is_seen_too() {
    let locks = Locks::new("already");
    let _watched = watched_alone(&locks.granted.rule(""), &locks.granted);
    let mut owner = locks.ready(&locks.ordinary, "lock:0", "compute:60000");
    let mut donor = locks.ready(&locks.granted, "", "lock:0");
    becomes(donor.pid(), "FIFO 20");
    owner.go_on();
    donor.go_on();
    loses_it_for(&donor, &owner);
}

#[test]
fn along_a_row_of_locks_the_first_pays_for_the_last() {
    let locks = Locks::new("row");
    let _watched = watched_alone(&locks.granted.rule(""), &locks.granted);
    let mut last = locks.ready(&locks.ordinary, "lock:2", "compute:60000");
    let between: Vec<Running> = [1, 0]
        .into_iter()
        .map(|n| locks.ready(&locks.ordinary, &format!("lock:{n}"), &format!("lock:{}", n + 1)))
        .map(|mut one| {
            one.go_on();
            one
        })
        .collect();
    let donor = locks.donor();
    last.inherits(79);
    between.iter().for_each(|one| one.inherits(79));
    last.go_on();
    loses_it_for(&donor, &last);
}

#[test]
fn when_a_starvation_detector_waits_for_what_was_donated_only_the_donor_loses_it() {
    let locks = Locks::new("starvation_detector");
    // A budget of ten CPUs over ten seconds: nothing but the starvation_detector can end it.
    let limits = "[priority_limits]\ntotal_percent = 95\nwindow_ms = 10000\nstarvation_ms = 300\n";
    let innocent = Program::shell("innocent");
    let other = innocent.rule("").replacen("test", "other", 1);
    let config = format!("{}{other}{limits}", locks.granted.rule("budget_percent = 1000"));
    let watched = watched_alone(&config, &locks.granted);
    let bystander = innocent.run("read");
    becomes(bystander.pid(), "FIFO 20");
    let mut owner = locks.ready(&locks.ordinary, "lock:0", "compute:60000");
    let donor = locks.donor();
    owner.inherits(79);
    // Elsewhere it would go from one CPU to the other, and starve none of them.
    set_cpus(owner.pid(), &[1]).unwrap();
    owner.go_on();
    loses_it_for(&donor, &owner);
    assert!(reason(&donor).contains("could not run for"), "{}", reason(&donor));
    let counters = watched.daemon().status()["priority"]["counters"].take();
    assert!(counters["starved"] == 1 && counters["demoted"] == 1, "{counters}");
    assert_eq!(shown(bystander.pid()), "FIFO 20");
}

/// The kernel tells of changes of the priority alone: there is none when the owner loses its own, and keeps the same.
#[test]
fn an_owner_that_has_lost_its_own_priority_has_one_that_is_donated() {
    let locks = Locks::new("lost");
    let second = Program::example_as("locks", "lost-second");
    let other = second.rule("").replacen("test", "other", 1);
    let limits = "[priority_limits]\nstarvation_ms = 10000\n";
    let _watched = watched_alone(&format!("{}{other}{limits}", locks.granted.rule("")), &locks.granted);
    let mut owner = locks.ready(&second, "lock:0", "compute:60000");
    becomes(owner.pid(), "FIFO 20");
    let donor = locks.donor();
    becomes(donor.pid(), "FIFO 20");
    owner.go_on();
    becomes(owner.pid(), &not_raised());
    loses_it_for(&donor, &owner);
}

#[test]
fn what_is_donated_within_the_budget_is_counted_and_costs_nothing() {
    counts_what_is_donated("within", false);
}

/// The kernel tells of it at the moment of the grant, and never again.
#[test]
fn who_waits_for_a_lock_when_it_is_granted_donates_from_the_first_moment() {
    counts_what_is_donated("at-once", true);
}

fn counts_what_is_donated(test: &str, waits_first: bool) {
    let locks = Locks::new(test);
    let limits = "[priority_limits]\nwindow_ms = 10000\n";
    let watched = watched_alone(limits, &locks.granted);
    let mut owner = locks.ready(
        &locks.ordinary,
        "lock:0",
        "compute:200 unlock:0 compute:500 say:done read",
    );
    let grant = || {
        assert!(
            giveway(&["priority", "add", "--exe", &locks.granted.path, "--priority", "20"])
                .status
                .success()
        )
    };
    let mut donor;
    if waits_first {
        donor = locks.donor();
        until("it waits for the lock", || waits_for_a_lock(&donor));
        grant();
    } else {
        grant();
        donor = locks.donor();
    }
    owner.inherits(79);
    owner.go_on();
    assert_eq!(donor.lines().next().as_deref(), Some("has"));
    // What it computes afterwards is its own.
    assert_eq!(owner.lines().next().as_deref(), Some("done"));
    let used = || watched.daemon().status()["priority"]["budget"]["used_by_rules_ms"].as_u64();
    let mut seen = None;
    until("it is counted", || {
        seen = used();
        seen.is_some_and(|ms| ms >= 200)
    });
    let status = watched.daemon().status();
    assert!(seen.is_some_and(|ms| ms < 300), "{seen:?} ms");
    assert_eq!(shown(donor.pid()), "FIFO 20");
    assert_eq!(status["priority"]["counters"]["demoted"], 0);
}

#[test]
fn a_handler_of_requests_that_waits_for_a_lock_costs_its_chain() {
    let locks = Locks::new("chain");
    let _turn = SPINNING.write().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::enter();
    let mut handler = locks.start(&locks.ordinary, "serve lock:0 read");
    let port: u16 = handler.lines().next().unwrap().parse().unwrap();
    // So long a deadline that it stays raised by itself.
    let chain = format!("[[chain]]\nlocal_port = {port}\nbudget_ms = 9000\nshare_percent = 30\n");
    let config = format!("[queue]\nbackend = \"none\"\n{chain}[priority_limits]\nstarvation_ms = 10000\n");
    let config = Scratch::new("chain.toml", &config);
    let _daemon = Daemon::start(&["--config", config.path(), "--interface", "gwv"]);
    let far = lab.far(|| UdpSocket::bind(("0.0.0.0", 0)).unwrap());
    far.connect((NEAR_V4, port)).unwrap();
    let mut owner = locks.ready(&locks.ordinary, "lock:0", "compute:60000");
    until("a request raises it", || {
        far.send(b"request").unwrap();
        shown(handler.pid()) == "FIFO 40"
    });
    far.send(b"go").unwrap();
    owner.inherits(59);
    let (not_raised, first) = (not_raised(), First::of_all());
    owner.go_on();
    let took = becomes(handler.pid(), &not_raised);
    drop(first);
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(effective_priority(owner.pid()), 120);
    let reason = reason(&handler);
    assert!(
        reason.contains("30% of a CPU") && reason.contains(&donated_to(&owner)),
        "{reason}"
    );
}
