// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread's scheduling policy: set for the calling thread, read of any. Does not decide which thread should have which.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use giveway_engine::priority;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::unistd::Pid;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use super::args::WantedPolicy;
use crate::actuate::thread::attributes::Attributes;
use crate::kernel::calls;

/// A deadline thread may compute for this share of each period, and for no longer than [`LONGEST_BUDGET`].
const BUDGET_SHARE: u32 = 10;
const LONGEST_BUDGET: Duration = Duration::from_millis(1);

/// The kernel's own measure of priority, in which less is more (include/linux/sched/prio.h): deadline below 0, FIFO and
/// RR from 99 downwards to 0, others by nice value around 120.
pub const REALTIME_PRIORITIES: i32 = 100;
const NICE_ZERO: i32 = 120;

/// By the kernel's numbers (include/uapi/linux/sched.h).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Policy(pub u32);

impl Policy {
    pub const OTHER: Self = Self(calls::SCHED_OTHER as u32);
    pub const FIFO: Self = Self(calls::SCHED_FIFO as u32);
    pub const RR: Self = Self(calls::SCHED_RR as u32);
    pub const DEADLINE: Self = Self(calls::SCHED_DEADLINE as u32);

    pub fn name(self) -> &'static str {
        match i32::try_from(self.0) {
            Ok(calls::SCHED_OTHER) => "other",
            Ok(calls::SCHED_FIFO) => "fifo",
            Ok(calls::SCHED_RR) => "rr",
            Ok(calls::SCHED_BATCH) => "batch",
            Ok(calls::SCHED_IDLE) => "idle",
            Ok(calls::SCHED_DEADLINE) => "deadline",
            Ok(7) => "ext",
            _ => "unknown",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SCHED_{}", self.name().to_uppercase())
    }
}

/// As its name.
impl JsonSchema for Policy {
    fn schema_name() -> Cow<'static, str> {
        "Policy".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A policy with its priority: of FIFO and RR 1 to 99, of the others the nice value.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Scheduling {
    pub policy: Policy,
    pub priority: i32,
}

impl Scheduling {
    /// `priority` is the kernel's own measure.
    pub fn from_kernel(policy: Policy, priority: i32) -> Self {
        let priority = match policy {
            Policy::FIFO | Policy::RR => REALTIME_PRIORITIES - 1 - priority,
            Policy::DEADLINE => 0,
            _ => priority - NICE_ZERO,
        };
        Self { policy, priority }
    }
}

/// In the kernel's own measure.
pub fn kernel_priority(scheduling: Scheduling) -> i32 {
    match scheduling.policy {
        Policy::DEADLINE => -1,
        Policy::FIFO | Policy::RR => REALTIME_PRIORITIES - 1 - scheduling.priority,
        _ => NICE_ZERO + scheduling.priority,
    }
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.policy {
            Policy::FIFO | Policy::RR => write!(f, "{} {}", self.policy, self.priority),
            Policy::OTHER if self.priority != 0 => write!(f, "{} nice {}", self.policy, self.priority),
            policy => write!(f, "{policy}"),
        }
    }
}

/// Gives the calling thread the policy that was asked for.
pub fn set_own(wanted: WantedPolicy, priority: u8, period: Duration) -> Result<()> {
    let priority = priority.into();
    let policy = match wanted {
        WantedPolicy::Other => return Ok(()),
        WantedPolicy::Fifo => priority::Policy::Fifo { priority },
        WantedPolicy::Rr => priority::Policy::RoundRobin { priority },
        WantedPolicy::Deadline => priority::Policy::Deadline {
            runtime: (period / BUDGET_SHARE).min(LONGEST_BUDGET),
            deadline: period,
            period,
        },
    };
    let attributes = Attributes::for_policy(policy);
    attributes.set(0).map_err(|errno| {
        let reason = match errno {
            Errno::EPERM => "it takes root, or an RLIMIT_RTPRIO that allows it",
            Errno::EBUSY => "it would take more of the CPUs than sched_rt_runtime_us allows",
            errno => errno.desc(),
        };
        anyhow!("cannot make a thread {}: {reason}", Policy(attributes.policy))
    })
}

/// The policy of a thread as it is now.
pub fn of(thread: Pid) -> Result<Scheduling> {
    let attributes = Attributes::of(thread.as_raw().cast_unsigned())
        .with_context(|| format!("cannot ask for the policy of thread {thread}"))?;
    let policy = Policy(attributes.policy);
    Ok(Scheduling {
        policy,
        priority: match policy {
            Policy::FIFO | Policy::RR => attributes.priority.cast_signed(),
            _ => attributes.nice,
        },
    })
}

/// By how much the kernel may put off the calling thread's timers; it is left as it is, as cyclictest does.
pub fn own_slack_ns(own: Scheduling) -> u64 {
    if kernel_priority(own) < REALTIME_PRIORITIES {
        return 0;
    }
    prctl::get_timerslack().map_or(0, |slack_ns| slack_ns.unsigned_abs().into())
}
