// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why the kernel refuses real time: it says no more than EPERM. From what stands around the thread follows the reason,
//! and what to do, in words. It changes nothing.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;

use giveway_engine::priority::Policy;
use nix::errno::Errno;

use super::attributes::cpus_of;
use crate::kernel::calls::{CapabilitySet, effective_capabilities};
use crate::kernel::online_cpus;
use crate::kernel::tasks::RealtimeGroup;

/// What takes a path to find out, or to open.
struct SchedulerLimits {
    rt_runtime_us: Option<File>,
    online_cpus: usize,
    own_share: Option<RealtimeGroup>,
}

static MACHINE: OnceLock<SchedulerLimits> = OnceLock::new();

/// What decides whether a thread may have real time; None where this kernel has no such thing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GrantConditions {
    pub may_set: bool,
    /// sched_rt_runtime_us; -1 is no limit.
    pub rt_runtime_us: Option<i64>,
    /// The thread's group, where that is not the root of cgroup v2.
    pub share: Option<RealtimeGroup>,
    /// The CPUs that it may use, and those that are online.
    pub cpus: (usize, usize),
}

impl GrantConditions {
    /// Of a thread with this share, as they are now. After [`prepare`] it opens no file.
    pub fn of(tid: u32, share: Option<RealtimeGroup>) -> Self {
        let machine = machine(|| None);
        Self {
            may_set: effective_capabilities().is_ok_and(|held| held.contains(CapabilitySet::SYS_NICE)),
            rt_runtime_us: machine.rt_runtime_us.as_ref().and_then(number),
            share,
            cpus: (cpus_of(tid).map_or(0, |cpus| cpus.len()), machine.online_cpus),
        }
    }

    /// Of this process.
    pub fn own() -> Self {
        let own_share = machine(|| None).own_share.clone();
        Self::of(std::process::id(), own_share)
    }
}

/// Call it before this thread comes before others. `own_share`: of this process.
pub fn prepare(own_share: impl FnOnce() -> Option<RealtimeGroup>) {
    machine(own_share);
}

fn machine(own_share: impl FnOnce() -> Option<RealtimeGroup>) -> &'static SchedulerLimits {
    MACHINE.get_or_init(|| SchedulerLimits {
        rt_runtime_us: File::open("/proc/sys/kernel/sched_rt_runtime_us").ok(),
        online_cpus: online_cpus(),
        own_share: own_share(),
    })
}

fn number(file: &File) -> Option<i64> {
    let mut text = [0; 32];
    let read = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..read]).ok()?.trim().parse().ok()
}

/// The refusal of a policy, in words.
pub fn explain(errno: Errno, policy: Policy, around: &GrantConditions) -> String {
    let is_deadline = matches!(policy, Policy::Deadline { .. });
    let reason = match errno {
        Errno::ESRCH => "it has ended".to_owned(),
        Errno::EPERM => not_permitted(is_deadline, around),
        Errno::EBUSY if is_deadline => {
            "the kernel has not enough CPU time left to promise this runtime in each period (sched_rt_runtime_us, \
             other deadline threads); ask for less runtime or a longer period"
                .to_owned()
        }
        Errno::EBUSY => "a thread under the deadline policy cannot be bound to some CPUs".to_owned(),
        Errno::EINVAL if is_deadline => {
            "the kernel takes no such runtime, deadline and period (sched_deadline_period_min_us and \
             sched_deadline_period_max_us bound the period), or none of these CPUs"
                .to_owned()
        }
        Errno::EINVAL => {
            "none of these CPUs is one on which it may run (its cpuset), or there is no such priority".to_owned()
        }
        Errno::E2BIG | Errno::ENOSYS => format!("this kernel has no such policy ({errno})"),
        other => other.desc().to_owned(),
    };
    format!("the kernel refused it: {reason}")
}

fn not_permitted(is_deadline: bool, around: &GrantConditions) -> String {
    if !around.may_set {
        return "giveway has no CAP_SYS_NICE; run it as root, or give its service AmbientCapabilities=CAP_SYS_NICE"
            .to_owned();
    }
    if around.rt_runtime_us == Some(0) {
        return "real time is switched off on this machine (`sysctl kernel.sched_rt_runtime_us` is 0; usual is 950000)"
            .to_owned();
    }
    if is_deadline && around.cpus.0 < around.cpus.1 {
        return format!(
            "the deadline policy needs a thread that may run on all CPUs, and it may use {} of {}; leave out `cpus`, and \
             look for a cpuset or a taskset",
            around.cpus.0, around.cpus.1
        );
    }
    match &around.share {
        Some(RealtimeGroup::V1 { group, runtime_us: 0 }) => format!(
            "its group {group} of cgroup v1 has no real-time CPU time (RT_GROUP_SCHED); write some into its \
             cpu.rt_runtime_us and into those above it, or boot with rt_group_sched=0"
        ),
        Some(RealtimeGroup::V2 { group }) => format!(
            "this kernel is built with RT_GROUP_SCHED, under which only the root group of cgroup v2's `cpu` controller \
             may have real time, and it is in {group}; boot with rt_group_sched=0, or switch the controller off there"
        ),
        _ => "a security policy of this machine forbids it (seccomp, SELinux, AppArmor), or RT_GROUP_SCHED does"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FIFO: Policy = Policy::Fifo { priority: 20 };
    const DEADLINE: Policy = Policy::Deadline {
        runtime: Duration::from_millis(2),
        deadline: Duration::from_millis(10),
        period: Duration::from_millis(10),
    };

    fn usual() -> GrantConditions {
        GrantConditions {
            may_set: true,
            rt_runtime_us: Some(950_000),
            share: None,
            cpus: (2, 2),
        }
    }

    #[track_caller]
    fn says(errno: Errno, policy: Policy, around: &GrantConditions, word: &str) {
        let line = explain(errno, policy, around);
        assert!(line.contains(word) && !line.contains('\n'), "{line}");
    }

    #[test]
    fn a_missing_capability_is_named() {
        let around = GrantConditions {
            may_set: false,
            ..usual()
        };
        says(Errno::EPERM, FIFO, &around, "CAP_SYS_NICE");
    }

    #[test]
    fn a_group_of_version_1_without_real_time_is_named() {
        let around = GrantConditions {
            share: Some(RealtimeGroup::V1 {
                group: "/robot".to_owned(),
                runtime_us: 0,
            }),
            ..usual()
        };
        says(Errno::EPERM, FIFO, &around, "/robot of cgroup v1");
        says(Errno::EPERM, FIFO, &around, "cpu.rt_runtime_us");
    }

    #[test]
    fn a_group_of_version_2_that_can_have_none_is_named() {
        let around = GrantConditions {
            share: Some(RealtimeGroup::V2 {
                group: "/system.slice".to_owned(),
            }),
            ..usual()
        };
        says(Errno::EPERM, FIFO, &around, "it is in /system.slice");
    }

    #[test]
    fn real_time_that_is_switched_off_is_named() {
        let around = GrantConditions {
            rt_runtime_us: Some(0),
            ..usual()
        };
        says(Errno::EPERM, FIFO, &around, "sched_rt_runtime_us` is 0");
    }

    #[test]
    fn a_deadline_on_some_cpus_only_is_named() {
        let around = GrantConditions {
            cpus: (1, 2),
            ..usual()
        };
        says(Errno::EPERM, DEADLINE, &around, "1 of 2");
        says(Errno::EBUSY, FIFO, &around, "cannot be bound");
    }

    #[test]
    fn a_deadline_that_is_not_admitted_or_not_possible_is_named() {
        says(Errno::EBUSY, DEADLINE, &usual(), "not enough CPU time left");
        says(Errno::EINVAL, DEADLINE, &usual(), "sched_deadline_period_min_us");
        says(Errno::EINVAL, FIFO, &usual(), "cpuset");
        says(Errno::ESRCH, FIFO, &usual(), "it has ended");
    }
}
