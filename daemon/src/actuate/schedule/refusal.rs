// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why the kernel refuses real time: it says no more than EPERM. In comes the refusal and what stands around the
//! thread, out goes the reason and what to do, in words. It changes nothing.

use std::fs;
use std::path::Path;

use giveway_engine::realtime::Policy;
use nix::errno::Errno;

use super::attributes::cpus_of;
use crate::kernel::online_cpus;

const CAP_SYS_NICE: u32 = 23;

/// What decides whether a thread may have real time; None where this kernel has no such thing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Surroundings {
    pub may_set: bool,
    /// sched_rt_runtime_us; -1 is no limit.
    pub rt_runtime_us: Option<i64>,
    /// Of the thread's group in cgroup v1's `cpu` controller, with its path.
    pub group_runtime_us: Option<(String, i64)>,
    /// The thread's group in cgroup v2, where that has the `cpu` controller and is not the root.
    pub group_v2: Option<String>,
    /// The CPUs that it may use, and those that are online.
    pub cpus: (usize, usize),
}

impl Surroundings {
    /// As they are now.
    pub fn of(tid: u32) -> Self {
        let cgroups = fs::read_to_string(format!("/proc/{tid}/cgroup")).unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        Self {
            may_set: has_capability(&fs::read_to_string("/proc/thread-self/status").unwrap_or_default()),
            rt_runtime_us: number("/proc/sys/kernel/sched_rt_runtime_us"),
            group_runtime_us: group_v1(&cgroups, &mounts),
            group_v2: group_v2(&cgroups, &mounts),
            cpus: (cpus_of(tid).map_or(0, |cpus| cpus.len()), online_cpus()),
        }
    }
}

/// The refusal of a policy, in words.
pub fn explain(errno: Errno, policy: Policy, around: &Surroundings) -> String {
    let is_deadline = matches!(policy, Policy::Deadline { .. });
    let why = match errno {
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
    format!("the kernel refused it: {why}")
}

fn not_permitted(is_deadline: bool, around: &Surroundings) -> String {
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
    match (&around.group_runtime_us, &around.group_v2) {
        (Some((group, 0)), _) => format!(
            "its group {group} of cgroup v1 has no real-time CPU time (RT_GROUP_SCHED); write some into its \
             cpu.rt_runtime_us and into those above it, or boot with rt_group_sched=0"
        ),
        (_, Some(group)) => format!(
            "this kernel is built with RT_GROUP_SCHED, under which only the root group of cgroup v2's `cpu` controller \
             may have real time, and it is in {group}; boot with rt_group_sched=0, or switch the controller off there"
        ),
        _ => "a security policy of this machine forbids it (seccomp, SELinux, AppArmor), or RT_GROUP_SCHED does"
            .to_owned(),
    }
}

fn has_capability(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|set| set & (1 << CAP_SYS_NICE) != 0)
}

fn number(path: impl AsRef<Path>) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The mount of a hierarchy: its kind, and for v1 the controller that it must have.
fn mount_of(mounts: &str, kind: &str, controller: Option<&str>) -> Option<String> {
    let mut rows = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let row = rows.find(|row| {
        row.get(2) == Some(&kind) && controller.is_none_or(|c| row.get(3).is_some_and(|o| o.split(',').any(|o| o == c)))
    })?;
    row.get(1).map(|&path| path.to_owned())
}

fn group_v1(cgroups: &str, mounts: &str) -> Option<(String, i64)> {
    let has_cpu = |line: &&str| line.split(':').nth(1).is_some_and(|c| c.split(',').any(|c| c == "cpu"));
    let group = cgroups.lines().find(has_cpu)?.splitn(3, ':').nth(2)?;
    let mount = mount_of(mounts, "cgroup", Some("cpu"))?;
    let runtime_us = number(format!("{mount}{group}/cpu.rt_runtime_us"))?;
    Some((group.to_owned(), runtime_us))
}

/// The innermost group on the way up that has the controller: that is the scheduler's group.
fn group_v2(cgroups: &str, mounts: &str) -> Option<String> {
    let group = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mount_of(mounts, "cgroup2", None)?;
    let has_cpu = |group: &&Path| {
        let kept = fs::read_to_string(format!("{mount}{}/cgroup.controllers", group.display())).unwrap_or_default();
        kept.split_ascii_whitespace().any(|controller| controller == "cpu")
    };
    let scheduled_as = Path::new(group).ancestors().find(has_cpu)?;
    (scheduled_as != Path::new("/")).then(|| scheduled_as.display().to_string())
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

    fn usual() -> Surroundings {
        Surroundings {
            may_set: true,
            rt_runtime_us: Some(950_000),
            group_runtime_us: None,
            group_v2: None,
            cpus: (2, 2),
        }
    }

    #[track_caller]
    fn says(errno: Errno, policy: Policy, around: &Surroundings, word: &str) {
        let line = explain(errno, policy, around);
        assert!(line.contains(word) && !line.contains('\n'), "{line}");
    }

    #[test]
    fn a_missing_capability_is_named() {
        let around = Surroundings {
            may_set: false,
            ..usual()
        };
        says(Errno::EPERM, FIFO, &around, "CAP_SYS_NICE");
        assert!(has_capability("CapEff:\t000001fffeffffff\n"));
        assert!(!has_capability("CapEff:\t0000000000000000\n"));
    }

    #[test]
    fn a_group_of_version_1_without_real_time_is_named() {
        let around = Surroundings {
            group_runtime_us: Some(("/robot".to_owned(), 0)),
            ..usual()
        };
        says(Errno::EPERM, FIFO, &around, "/robot of cgroup v1");
        says(Errno::EPERM, FIFO, &around, "cpu.rt_runtime_us");
    }

    #[test]
    fn a_group_of_version_2_that_can_have_none_is_named() {
        let around = Surroundings {
            group_v2: Some("/system.slice".to_owned()),
            ..usual()
        };
        says(Errno::EPERM, FIFO, &around, "it is in /system.slice");
    }

    #[test]
    fn real_time_that_is_switched_off_is_named() {
        let around = Surroundings {
            rt_runtime_us: Some(0),
            ..usual()
        };
        says(Errno::EPERM, FIFO, &around, "sched_rt_runtime_us` is 0");
    }

    #[test]
    fn a_deadline_on_some_cpus_only_is_named() {
        let around = Surroundings {
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

    #[test]
    fn mounts_are_found_by_kind_and_controller() {
        let mounts =
            "cgroup /c/cpuacct cgroup rw,cpuacct 0 0\ncgroup /c/cpu cgroup rw,cpu 0 0\ncgroup2 /c/u cgroup2 rw 0 0\n";
        assert_eq!(mount_of(mounts, "cgroup", Some("cpu")).as_deref(), Some("/c/cpu"));
        assert_eq!(mount_of(mounts, "cgroup2", None).as_deref(), Some("/c/u"));
        assert_eq!(mount_of(mounts, "cgroup", Some("memory")), None);
    }
}
