// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules, limits and grants from the configuration. The caller looks up names.

use std::time::Duration;

use super::{Grant, Grants, Policy, Priority, PriorityLimits, PriorityRule, Schedule};
use crate::config::{CEILING, Config, ConfigError, PrioritySection, SchedPolicyName, wrong};
use crate::matcher::Matcher;

/// Looks up names; None: no such user or group.
pub struct Names<'a> {
    pub user: &'a dyn Fn(&str) -> Option<u32>,
    pub group: &'a dyn Fn(&str) -> Option<u32>,
}

impl Priority {
    /// From a configuration, on a machine with this many CPUs. Chains follow with [`Self::with_chains`].
    ///
    /// # Errors
    /// The first impossible rule or grant: an unknown user, a missing CPU.
    pub fn from_config(config: &Config, cpus: u32, names: &Names<'_>, dry_run: bool) -> Result<Self, ConfigError> {
        let limits = &config.priority_limits;
        let number = |of: &dyn Fn(&str) -> Option<u32>, key: &str, name: &Option<String>| {
            let Some(name) = name else { return Ok(None) };
            of(name)
                .map(Some)
                .ok_or_else(|| wrong(key, format!("there is no `{name}` on this machine")))
        };
        let mut rules: Vec<PriorityRule> = Vec::new();
        for (at, rule) in config.priority.iter().enumerate() {
            let uid = number(names.user, "realtime.user", &rule.conditions.user)?;
            if let Some(cpu) = rule.cpus.iter().find(|cpu| **cpu >= cpus) {
                return Err(wrong("priority.cpus", format!("there is no CPU {cpu} on this machine")));
            }
            let name = rule.name.clone().unwrap_or_else(|| format!("realtime {}", at + 1));
            if rules.iter().any(|known| known.name == name) {
                return Err(wrong("priority.name", format!("`{name}` is given twice")));
            }
            rules.push(PriorityRule::from_config(name, rule, uid)?);
        }
        let grants = config.grant.iter().map(|grant| {
            Ok(Grant {
                uid: number(names.user, "grant.user", &grant.user)?,
                gid: number(names.group, "grant.group", &grant.group)?,
                max_priority: grant.max_priority,
                max_tasks: grant.max_tasks,
                budget_percent: grant.budget_percent,
            })
        });
        let grants = Grants(grants.collect::<Result<_, ConfigError>>()?);
        let limits = PriorityLimits {
            max_priority: limits.max_priority.min(CEILING),
            max_tasks: limits.max_tasks,
            total_percent: limits.total_percent,
            window: Duration::from_millis(limits.window_ms.into()),
            longest_wait: Duration::from_millis(limits.starvation_ms.into()),
            cpus,
        };
        Ok(Self::new(limits, grants, rules, dry_run))
    }
}

impl PriorityRule {
    /// From `rule`, with this name, for this user.
    ///
    /// # Errors
    /// If the deadline policy lacks its times, or they are inconsistent.
    pub fn from_config(name: String, rule: &PrioritySection, uid: Option<u32>) -> Result<Self, ConfigError> {
        Ok(Self {
            name,
            matcher: Matcher::new(&rule.conditions, uid),
            schedule: Schedule {
                policy: policy(rule)?,
                cpus: rule.cpus.clone(),
            },
            budget_percent: rule.budget_percent,
            max_tasks: rule.max_tasks,
            added_by: None,
        })
    }
}

fn policy(rule: &PrioritySection) -> Result<Policy, ConfigError> {
    let priority = rule.priority;
    Ok(match rule.policy {
        SchedPolicyName::Fifo => Policy::Fifo { priority },
        SchedPolicyName::Rr => Policy::RoundRobin { priority },
        SchedPolicyName::Deadline => {
            let [runtime, deadline, period] = rule.deadline_times()?;
            Policy::Deadline {
                runtime,
                deadline,
                period,
            }
        }
    })
}
