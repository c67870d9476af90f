// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In virtual time: a machine that carries out every action.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::change::{Changes, Latest};
use crate::matcher::Matcher;
use crate::model::Protocol;

mod chain;
mod donation;
mod parts;
mod pause;
mod rules;

const WINDOW_OF_ALL: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(100);
const SERVICE: Service = Service {
    protocol: Protocol::Udp,
    local_port: 5005,
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn rule(name: &str, exe: &str) -> PriorityRule {
    PriorityRule {
        name: name.to_owned(),
        matcher: Matcher {
            exe: Some(exe.to_owned()),
            ..Matcher::default()
        },
        schedule: fifo(20),
        budget_percent: 80,
        max_tasks: 4,
        added_by: None,
    }
}

fn fifo(priority: u32) -> Schedule {
    Schedule {
        policy: Policy::Fifo { priority },
        cpus: Vec::new(),
    }
}

fn limits() -> PriorityLimits {
    PriorityLimits {
        max_priority: CEILING,
        max_tasks: 10,
        total_percent: 80,
        window: WINDOW_OF_ALL,
        longest_wait: ms(400),
        cpus: 2,
    }
}

fn process(exe: &str) -> Process {
    Process {
        exe: exe.to_owned(),
        executables: vec![exe.to_owned()],
        trusted: vec![exe.to_owned()],
        cmdline: exe.to_owned(),
        uid: 1000,
        euid: 1000,
        cgroup: "/".to_owned(),
        ..Process::default()
    }
}

fn started(pid: u32, process: Process, cpu: Duration) -> StartedProcess {
    StartedProcess {
        id: id(pid),
        process,
        tasks: 1,
        cpu,
    }
}

fn id(pid: u32) -> ProcessId {
    ProcessId { pid, start_ns: 1 }
}

/// A machine on which the kernel grants everything.
struct Machine {
    priority: Priority,
    now: Duration,
    log: Changes,
    /// CPU time of each granted process.
    granted: BTreeMap<ProcessId, Duration>,
    grants: usize,
    /// CPU time of each thread that a chain has raised.
    raised: BTreeMap<u32, Duration>,
    /// Until when no requests are reported.
    suspended: Duration,
    is_napi_raised: bool,
    napi_cpu: Duration,
}

impl Machine {
    fn new(rules: Vec<PriorityRule>, grants: Vec<Grant>) -> Self {
        Self::with(Priority::new(limits(), Grants(grants), rules, false))
    }

    fn with(priority: Priority) -> Self {
        let now = Duration::from_secs(100);
        let terms = ChainLimits {
            priority: 40,
            share_percent: 50,
        };
        Self {
            priority: priority.with_chains(now, [(SERVICE, terms)]),
            now,
            log: Changes::default(),
            granted: BTreeMap::new(),
            grants: 0,
            raised: BTreeMap::new(),
            suspended: Duration::ZERO,
            is_napi_raised: false,
            napi_cpu: Duration::ZERO,
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Grant { id, .. } => {
                    assert!(self.raised.keys().all(|tid| tid / 10 != id.pid), "two parts at once");
                    self.granted.insert(id, Duration::ZERO);
                    self.grants += 1;
                    let given = GrantedTasks {
                        tasks: 1,
                        old: "OTHER".to_owned(),
                    };
                    let outcome = Ok(given);
                    self.give_input(Input::Outcome { id, outcome });
                }
                Action::Revoke { id } => assert!(self.granted.remove(&id).is_some(), "revoked twice"),
                Action::Record(change) => self.log.note(self.now, *change),
                Action::RaiseNapi { .. } => {
                    self.is_napi_raised = true;
                    let cpu = self.napi_cpu;
                    self.give_input(Input::NapiRaised {
                        cpu,
                        refused: Vec::new(),
                    });
                }
                Action::LowerNapi => self.is_napi_raised = false,
                Action::Raise { tid, .. } => {
                    let cpu = *self.raised.entry(tid).or_default();
                    self.give_input(Input::Raised { tid, outcome: Ok(cpu) });
                }
                Action::Lower { tid } => {
                    let cpu = self.raised.remove(&tid);
                    self.give_input(Input::Lowered { tid, cpu });
                }
                Action::Bar { until, .. } => self.suspended = until,
                Action::GrantTask { .. } | Action::ScanProcesses => {}
            }
        }
    }

    fn give_input(&mut self, input: Input) {
        let actions = self.priority.step(self.now, input);
        self.carry_out(actions);
    }

    fn start(&mut self, pid: u32, exe: &str) -> bool {
        self.start_as(pid, process(exe))
    }

    fn start_as(&mut self, pid: u32, process: Process) -> bool {
        let cpu = self.granted.get(&id(pid)).copied().unwrap_or_default();
        let rule = first_match(&self.priority.rules(), &process);
        let started = started(pid, process, cpu);
        self.give_input(Input::Started {
            started: started.into(),
            rule,
        });
        self.granted.contains_key(&id(pid))
    }

    /// A request for this thread, of the process numbered a tenth of it.
    fn request(&mut self, tid: u32) -> bool {
        if !self.raised.contains_key(&tid) && self.now >= self.suspended {
            self.give_input(Input::Request {
                tid,
                pid: tid / 10,
                service: SERVICE,
            });
        }
        self.raised.contains_key(&tid)
    }

    fn find_napi(&mut self) {
        self.give_input(Input::NapiThreads {
            threads: vec![id(9)],
            priority: 39,
        });
        assert!(self.is_napi_raised);
    }

    /// Each granted process uses this share of each tick.
    fn compute(&mut self, ticks: usize, share: impl Fn(u32) -> f64) {
        for _ in 0..ticks {
            self.run(TICK, &share, 0.0, 0.0);
            self.report_usage();
        }
    }

    /// Everything with real-time priority uses these shares of a CPU, processes by number.
    fn run(&mut self, time: Duration, share: &impl Fn(u32) -> f64, chains: f64, napi: f64) {
        self.now += time;
        for (id, cpu) in &mut self.granted {
            *cpu += time.mul_f64(share(id.pid));
        }
        for cpu in self.raised.values_mut() {
            *cpu += time.mul_f64(chains);
        }
        if self.is_napi_raised {
            self.napi_cpu += time.mul_f64(napi);
        }
    }

    /// Reports the CPU time so far.
    fn report_usage(&mut self) {
        let until = Some(self.now + ms(1));
        let seen = |(tid, cpu): (&u32, &Duration)| HandlerSample {
            tid: *tid,
            until,
            is_awake: true,
            cpu: *cpu,
        };
        let seen = self.raised.iter().map(seen).collect();
        self.give_input(Input::Handlers(seen));
        let usage = self.granted.iter().map(|(id, cpu)| Usage {
            id: *id,
            cpu: *cpu,
            tasks: 1,
            found: None,
        });
        let (processes, napi) = (usage.collect(), self.napi_cpu);
        self.give_input(Input::Usage { processes, napi });
    }

    fn starve(&mut self, waited: Duration) {
        self.give_input(Input::Starvation { cpu: 1, waited });
    }

    fn changes(&self) -> Vec<Latest> {
        self.log.to_vec()
    }

    /// The reason for the process's latest change.
    fn reason(&self, pid: u32) -> String {
        let of_process = |latest: &&Latest| latest.change.subject == crate::change::Subject::Process { id: id(pid) };
        self.changes().iter().rfind(of_process).unwrap().change.reason.clone()
    }

    fn pids(&self) -> Vec<u32> {
        self.granted.keys().map(|id| id.pid).collect()
    }
}
