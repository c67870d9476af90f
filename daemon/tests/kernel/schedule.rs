// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real time given and taken back on real threads. They sleep: nothing here computes at a real-time priority.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use giveway::actuate::schedule::ScheduleActuator;
use giveway::actuate::thread::attributes::{Attributes, cpus_of};
use giveway::kernel::own_netns;
use giveway::kernel::process::Handle;
use giveway::kernel::tasks::Tasks;
use giveway::place::{Lock, Place};
use giveway::undo::undo;
use giveway_engine::model::ProcessId;
use giveway_engine::priority::{Policy, Schedule};

use crate::support::lab::Lab;
use crate::support::process::KillOnDrop;
use crate::support::wait::until;

const FIFO: Policy = Policy::Fifo { priority: 7 };
const RR: Policy = Policy::RoundRobin { priority: 3 };
const DEADLINE: Policy = Policy::Deadline {
    runtime: Duration::from_micros(1500),
    deadline: Duration::from_millis(40),
    period: Duration::from_millis(100),
};

struct Sleeper(KillOnDrop);

impl Sleeper {
    /// Niceness 7.
    fn start() -> Self {
        let child = KillOnDrop::spawn(Command::new("nice").args(["-n", "7", "sleep", "60"]));
        let exe = format!("/proc/{}/exe", child.id());
        until("sleep runs", || {
            fs::read_link(&exe).is_ok_and(|exe| exe.ends_with("sleep"))
        });
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn id(&self) -> ProcessId {
        ProcessId {
            pid: self.pid(),
            start_ns: tasks().threads.thread(self.pid()).unwrap().unwrap().start_ns,
        }
    }

    fn shown(&self) -> String {
        Attributes::of(self.pid()).unwrap().shown()
    }

    fn set(&self, policy: &str, priority: &str) {
        let pid = self.pid().to_string();
        let mut command = Command::new("chrt");
        assert!(command.args([policy, "-p", priority, &pid]).status().unwrap().success());
    }
}

fn tasks() -> Arc<Tasks> {
    Arc::new(Tasks::load(own_netns().unwrap()).unwrap())
}

struct Bench {
    actuator: ScheduleActuator,
    place: Place,
    _lock: Lock,
    _lab: Lab,
}

impl Bench {
    fn new() -> Self {
        let lab = Lab::enter();
        let place = Place::here().unwrap();
        Self {
            _lock: place.lock().unwrap(),
            actuator: ScheduleActuator::open(&place, tasks()),
            place,
            _lab: lab,
        }
    }

    fn give(&mut self, sleeper: &Sleeper, policy: Policy, cpus: &[u32]) -> Result<String, String> {
        let schedule = Schedule {
            policy,
            cpus: cpus.to_vec(),
        };
        let handle = Handle::open(sleeper.pid()).unwrap();
        let given = self
            .actuator
            .apply(handle, sleeper.id(), &schedule)
            .map_err(|error| format!("{error:#}"))?;
        assert_eq!(given.tasks, 1);
        Ok(given.old)
    }
}

#[test]
fn what_is_given_is_there_and_what_was_comes_back() {
    let mut bench = Bench::new();
    let sleeper = Sleeper::start();
    let all = cpus_of(sleeper.pid()).unwrap();
    let before = Attributes::of(sleeper.pid()).unwrap();
    for (policy, shown) in [
        (FIFO, "FIFO 7"),
        (RR, "RR 3"),
        (DEADLINE, "DEADLINE 1500/40000/100000 us"),
    ] {
        assert_eq!(bench.give(&sleeper, policy, &[]).unwrap(), before.shown());
        assert_eq!(sleeper.shown(), shown);
        assert_eq!(bench.actuator.check(sleeper.id()), None);
        assert!(bench.actuator.revert(sleeper.id()));
        assert_eq!(Attributes::of(sleeper.pid()).unwrap(), before);
    }
    bench.give(&sleeper, FIFO, &[1]).unwrap();
    assert_eq!(cpus_of(sleeper.pid()).unwrap(), [1]);
    bench.actuator.revert(sleeper.id());
    assert_eq!(cpus_of(sleeper.pid()).unwrap(), all);
}

#[test]
fn what_is_given_twice_comes_back_as_it_was_before_both() {
    let mut bench = Bench::new();
    let sleeper = Sleeper::start();
    let before = Attributes::of(sleeper.pid()).unwrap();
    bench.give(&sleeper, FIFO, &[0]).unwrap();
    bench.give(&sleeper, RR, &[]).unwrap();
    assert_eq!(sleeper.shown(), "RR 3");
    assert_eq!(bench.actuator.revert_all().unwrap(), 1);
    assert_eq!(Attributes::of(sleeper.pid()).unwrap(), before);
    assert!(cpus_of(sleeper.pid()).unwrap().len() > 1);
}

#[test]
fn what_another_tool_has_changed_is_seen_and_left_alone() {
    let mut bench = Bench::new();
    let sleeper = Sleeper::start();
    bench.give(&sleeper, FIFO, &[]).unwrap();
    sleeper.set("-r", "9");
    assert_eq!(bench.actuator.check(sleeper.id()).as_deref(), Some("RR 9"));
    assert!(!bench.actuator.revert(sleeper.id()));
    assert_eq!(sleeper.shown(), "RR 9");
}

#[test]
fn what_a_dead_daemon_gave_is_found_by_the_journal() {
    let mut bench = Bench::new();
    let (kept, changed, ended) = (Sleeper::start(), Sleeper::start(), Sleeper::start());
    let before = Attributes::of(kept.pid()).unwrap();
    for sleeper in [&kept, &changed, &ended] {
        bench.give(sleeper, FIFO, &[]).unwrap();
    }
    changed.set("-f", "2");
    drop(ended);
    bench.actuator = ScheduleActuator::open(&bench.place, tasks());
    assert_eq!(undo(&bench.place, true).lines.len(), 1);
    assert_eq!(kept.shown(), "FIFO 7", "a dry run only finds it");
    let undone = undo(&bench.place, false).lines;
    assert!(
        undone.len() == 1 && undone[0].contains(&kept.pid().to_string()),
        "{undone:?}"
    );
    assert_eq!(Attributes::of(kept.pid()).unwrap(), before);
    assert_eq!(changed.shown(), "FIFO 2");
    assert_eq!(undo(&bench.place, false).lines, [""; 0]);
}

#[test]
fn a_refusal_says_why_and_leaves_nothing() {
    let mut bench = Bench::new();
    let sleeper = Sleeper::start();
    let impossible = Policy::Deadline {
        runtime: Duration::from_millis(99),
        deadline: Duration::from_millis(100),
        period: Duration::from_millis(100),
    };
    let reason = bench.give(&sleeper, DEADLINE, &[0]).unwrap_err();
    assert!(reason.contains("1 of "), "{reason}");
    assert!(cpus_of(sleeper.pid()).unwrap().len() > 1, "its CPUs are what they were");
    let mut others = Vec::new();
    let reason = (0..8).find_map(|_| {
        others.push(Sleeper::start());
        bench.give(others.last().unwrap(), impossible, &[]).err()
    });
    assert!(
        reason
            .as_deref()
            .is_some_and(|reason| reason.contains("not enough CPU time left")),
        "{reason:?}"
    );
    assert_eq!(bench.actuator.revert_all().unwrap(), others.len() - 1);
}

#[test]
fn a_group_without_real_time_is_named_where_this_machine_has_such_groups() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let is_cpu = |row: &&str| row.contains(" cgroup ") && row.split(' ').nth(3).unwrap().split(',').any(|o| o == "cpu");
    let root = mounts.lines().find(is_cpu).and_then(|row| row.split(' ').nth(1));
    let Some(root) = root.filter(|root| fs::exists(format!("{root}/cpu.rt_runtime_us")).unwrap()) else {
        eprintln!("SKIP: no cgroup v1 with RT_GROUP_SCHED here");
        return;
    };
    let mut bench = Bench::new();
    let group = format!("{root}/giveway-test-{}", std::process::id());
    fs::create_dir(&group).unwrap();
    let sleeper = Sleeper::start();
    fs::write(format!("{group}/cgroup.procs"), sleeper.pid().to_string()).unwrap();
    let refused = bench.give(&sleeper, FIFO, &[]);
    fs::write(format!("{root}/cgroup.procs"), sleeper.pid().to_string()).unwrap();
    fs::remove_dir(&group).unwrap();
    let reason = refused.unwrap_err();
    assert!(
        reason.contains("giveway-test-") && reason.contains("cpu.rt_runtime_us"),
        "{reason}"
    );
    bench
        .give(&sleeper, FIFO, &[])
        .expect("outside of it nothing is refused");
}
