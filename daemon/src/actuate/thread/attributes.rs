// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the kernel schedules one thread: read, written, and compared with what was given. It decides nothing.

use giveway_engine::priority::{Policy, Schedule};
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::kernel::calls::{
    self, NO_SCHEDULING, SCHED_BATCH, SCHED_DEADLINE, SCHED_FIFO, SCHED_IDLE, SCHED_OTHER, SCHED_RR,
    SchedulingAttributes,
};

/// Children have no real time: it is given to a process, not to what it starts.
const RESET_ON_FORK: u64 = 1;

/// sched(7), as in `struct sched_attr`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Attributes {
    pub policy: u32,
    flags: u64,
    pub nice: i32,
    pub priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// What any thread starts with.
impl Default for Attributes {
    fn default() -> Self {
        Self {
            policy: SCHED_OTHER.cast_unsigned(),
            flags: RESET_ON_FORK,
            nice: 0,
            priority: 0,
            runtime_ns: 0,
            deadline_ns: 0,
            period_ns: 0,
        }
    }
}

impl Attributes {
    /// Of a thread; 0 is the calling one.
    pub fn of(tid: u32) -> Result<Self, Errno> {
        let raw = calls::scheduling(tid)?;
        Ok(Self {
            policy: raw.sched_policy,
            flags: raw.sched_flags & RESET_ON_FORK,
            nice: raw.sched_nice,
            priority: raw.sched_priority,
            runtime_ns: raw.sched_runtime,
            deadline_ns: raw.sched_deadline,
            period_ns: raw.sched_period,
        })
    }

    pub fn set(&self, tid: u32) -> Result<(), Errno> {
        let raw = SchedulingAttributes {
            sched_policy: self.policy,
            sched_flags: self.flags,
            sched_nice: self.nice,
            sched_priority: self.priority,
            sched_runtime: self.runtime_ns,
            sched_deadline: self.deadline_ns,
            sched_period: self.period_ns,
            ..NO_SCHEDULING
        };
        calls::set_scheduling(tid, &raw)
    }

    /// The same, which threads that are started by it have too.
    pub fn for_children_too(self) -> Self {
        Self { flags: 0, ..self }
    }

    /// What a policy is to the kernel.
    pub fn for_policy(policy: Policy) -> Self {
        let by_turns = |policy: i32, priority| Self {
            policy: policy.cast_unsigned(),
            priority,
            ..Self::default()
        };
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        match policy {
            Policy::Fifo { priority } => by_turns(SCHED_FIFO, priority),
            Policy::RoundRobin { priority } => by_turns(SCHED_RR, priority),
            Policy::Deadline {
                runtime,
                deadline,
                period,
            } => Self {
                runtime_ns: ns(runtime),
                deadline_ns: ns(deadline),
                period_ns: ns(period),
                ..by_turns(SCHED_DEADLINE, 0)
            },
        }
    }

    /// What the kernel gives to a child of one that has real time and resets it.
    pub fn is_reset(&self) -> bool {
        let flags = self.flags;
        *self
            == Self {
                flags,
                ..Self::default()
            }
    }

    /// Newer kernels show the slice of a thread without real time as its runtime, and take one that is set for a wish.
    pub fn without_slice(self, usual_ns: u64) -> Self {
        let is_usual = !self.is_realtime() && self.runtime_ns == usual_ns;
        Self {
            runtime_ns: if is_usual { 0 } else { self.runtime_ns },
            ..self
        }
    }

    /// The slice of a thread without real time.
    pub fn slice_ns(&self) -> u64 {
        if self.is_realtime() { 0 } else { self.runtime_ns }
    }

    pub fn is_deadline(&self) -> bool {
        self.policy == SCHED_DEADLINE.cast_unsigned()
    }

    pub fn is_realtime(&self) -> bool {
        [SCHED_FIFO, SCHED_RR, SCHED_DEADLINE].contains(&self.policy.cast_signed())
    }

    /// Whether what this thread has is what was given to it, or what it made of that by itself: a thread may lower its own
    /// priority, but only with CAP_SYS_NICE clear the flag. So with the flag it is ours to take back, without it another
    /// tool's.
    pub fn is_still(&self, given: &Self) -> bool {
        let by_turns = |a: &Self| [SCHED_FIFO, SCHED_RR].contains(&a.policy.cast_signed());
        let is_lowered = self.flags & RESET_ON_FORK != 0 && self.priority <= given.priority;
        self.is_same_as(given) || (by_turns(self) && by_turns(given) && is_lowered)
    }

    /// Whether it says the same of a thread; a nice value and flags say nothing beside real time.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let what_counts = |a: &Self| (a.policy, a.priority, a.runtime_ns, a.deadline_ns, a.period_ns);
        what_counts(self) == what_counts(other)
    }

    /// In a few words, as `why` shows it.
    pub fn shown(&self) -> String {
        match self.policy.cast_signed() {
            SCHED_FIFO => format!("FIFO {}", self.priority),
            SCHED_RR => format!("RR {}", self.priority),
            SCHED_DEADLINE => format!(
                "DEADLINE {}/{}/{} us",
                self.runtime_ns / 1000,
                self.deadline_ns / 1000,
                self.period_ns / 1000
            ),
            SCHED_OTHER => format!("OTHER (nice {})", self.nice),
            SCHED_BATCH => format!("BATCH (nice {})", self.nice),
            SCHED_IDLE => "IDLE".to_owned(),
            other => format!("policy {other}"),
        }
    }
}

/// The CPUs on which a thread may run; 0 is the calling one.
pub fn cpus_of(tid: u32) -> Result<Vec<u32>, Errno> {
    let set = sched_getaffinity(pid(tid)?)?;
    let is_set = |cpu: &usize| set.is_set(*cpu).unwrap_or_default();
    Ok((0..CpuSet::count()).filter(is_set).map(|cpu| cpu as u32).collect())
}

pub fn set_cpus(tid: u32, cpus: &[u32]) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu as usize)?;
    }
    sched_setaffinity(pid(tid)?, &set)
}

/// The CPUs of a schedule in the kernel's order, each once.
pub fn cpus_in_order(schedule: &Schedule) -> Vec<u32> {
    let mut cpus = schedule.cpus.clone();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

fn pid(tid: u32) -> Result<Pid, Errno> {
    i32::try_from(tid).map(Pid::from_raw).map_err(|_| Errno::ESRCH)
}
