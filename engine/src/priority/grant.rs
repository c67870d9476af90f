// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests of users other than root at run time. Bounds a user's rule by the grants of the configuration, or says why
//! it is refused.

use super::{Policy, PriorityRule};

/// The prefix of names of `giveway exec` rules; the uid follows.
pub const LAUNCHED: &str = "giveway exec by uid ";

/// The grant of a user, or of each member of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// Neither: everybody.
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub max_priority: u32,
    pub max_tasks: u32,
    pub budget_percent: u32,
}

/// All grants; the first that matches a user counts.
#[derive(Clone, Debug, Default)]
pub struct Grants(pub Vec<Grant>);

impl Grants {
    /// This user's grant; root needs none.
    ///
    /// # Errors
    /// Without a grant.
    pub fn of(&self, uid: u32, gids: &[u32]) -> Result<Option<&Grant>, String> {
        if uid == 0 {
            return Ok(None);
        }
        let matches = |grant: &&Grant| {
            grant.uid.is_none_or(|granted| granted == uid) && grant.gid.is_none_or(|granted| gids.contains(&granted))
        };
        let none = || {
            format!(
                "no [[grant]] of the configuration allows uid {uid} real-time priority; an administrator may add one"
            )
        };
        self.0.iter().find(matches).map(Some).ok_or_else(none)
    }

    /// Bounds a rule by its user's grant; root's only by the limits over all.
    pub(super) fn bound(
        &self,
        rule: &mut PriorityRule,
        uid: u32,
        gids: &[u32],
        max_priority: u32,
    ) -> Result<(), String> {
        let Some(grant) = self.of(uid, gids)? else {
            return priority_within(rule, max_priority, "max_priority in [priority_limits]");
        };
        if matches!(rule.schedule.policy, Policy::Deadline { .. }) {
            return Err("only root may ask for the deadline policy".to_owned());
        }
        priority_within(rule, grant.max_priority.min(max_priority), "the grant of this user")?;
        if rule.matcher.uid.is_some_and(|wanted| wanted != uid) {
            return Err("a user may name only processes of their own".to_owned());
        }
        rule.matcher.uid = Some(uid);
        rule.max_tasks = rule.max_tasks.min(grant.max_tasks);
        rule.budget_percent = rule.budget_percent.min(grant.budget_percent);
        Ok(())
    }
}

fn priority_within(rule: &PriorityRule, most: u32, by: &str) -> Result<(), String> {
    match rule.schedule.policy {
        Policy::Fifo { priority } | Policy::RoundRobin { priority } if !(1..=most).contains(&priority) => Err(format!(
            "priority {priority} is not from 1 to {most}, which is the most by {by}"
        )),
        _ => Ok(()),
    }
}
