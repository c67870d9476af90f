// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conditions between several keys of a configuration whose keys are valid each. Returns the first violation.

use crate::model::Protocol;
use std::collections::BTreeSet;
use std::time::Duration;

use super::{
    CapPolicyName, Conditions, Config, ConfigError, MOST_LINKS, PrioritySection, SchedPolicyName, UplinkSection, wrong,
};
use crate::matcher::{Glob, Matcher};

/// The share of one CPU for all chains together: other processes need the rest.
const CHAINS_PERCENT: u64 = 80;
/// The most rules of each table, as the kernel's tables have it.
const RULES: usize = 256;
/// The most `[[deadline]]`s, and `[[background]]`s.
pub const MOST_FLOWS: usize = 1024;
/// In all files together.
pub const CLASS_RULES: usize = 1024;
/// Bytes of a rule's name.
const LONGEST_NAME: usize = 128;
const LONGEST_REASON: usize = 200;

fn require(holds: bool, key: &str, problem: &str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(wrong(key, problem)) }
}

fn is_twice<T: Ord>(all: &[T]) -> bool {
    all.iter().collect::<BTreeSet<_>>().len() < all.len()
}

impl Config {
    pub(super) fn check_together(&self) -> Result<(), ConfigError> {
        let (cap, limits) = (&self.cap, &self.priority_limits);
        require(
            cap.policy != CapPolicyName::Fixed || cap.capacity_mbit.is_some() || cap.fixed_segments.is_some(),
            "cap.policy",
            "\"fixed\" needs cap.capacity_mbit, what the access point really carries, or cap.fixed_segments",
        )?;
        self.check_lists()?;
        self.check_links()?;
        for background in &self.background {
            require(
                !background.address().is_unspecified(),
                "background.address",
                "must be one address: the kernel looks background flows up by their exact address; write one \
                 [[background]] for each",
            )?;
        }
        self.check_rules()?;
        self.check_class_rules()?;
        self.check_ports()?;
        require(
            self.grant.iter().all(|g| g.user.is_some() || g.group.is_some()),
            "grant.user",
            "must be given, or else group",
        )?;
        let priorities = [
            ("priority.priority", self.priority.iter().map(|r| r.priority).max()),
            ("grant.max_priority", self.grant.iter().map(|g| g.max_priority).max()),
            ("chain.priority", self.chain.iter().map(|c| c.priority).max()),
        ];
        for (key, highest) in priorities {
            require(
                highest.is_none_or(|highest| highest <= limits.max_priority),
                key,
                "must be from 1 to priority_limits.max_priority",
            )?;
        }
        require(
            self.chain.iter().map(|c| u64::from(c.share_percent)).sum::<u64>() <= CHAINS_PERCENT,
            "chain.share_percent",
            "must be at most 80 percent of a CPU in all [[chain]]s together",
        )
    }

    fn check_lists(&self) -> Result<(), ConfigError> {
        let lists = [
            ("deadline", self.deadline.len(), MOST_FLOWS),
            ("background", self.background.len(), MOST_FLOWS),
            ("priority", self.priority.len(), RULES),
            ("grant", self.grant.len(), RULES),
            ("chain", self.chain.len(), RULES),
            ("uplink", self.uplink.len(), RULES),
            ("rule", self.rule.len(), CLASS_RULES),
        ];
        for (key, given, most) in lists {
            require(given <= most, key, &format!("must be given at most {most} times"))?;
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), ConfigError> {
        let several = &self.interfaces;
        require(
            several.is_empty() || self.interface.is_none(),
            "interfaces",
            "must not be given beside `interface`: name all of them here, and leave `interface` out",
        )?;
        require(
            several.len() <= MOST_LINKS,
            "interfaces",
            &format!("must be at most {MOST_LINKS} interfaces"),
        )?;
        require(
            !is_twice(&several.iter().collect::<Vec<_>>()),
            "interfaces",
            "must name each only once",
        )?;
        for (key, is_given) in [
            ("link.rate_mbit", self.link.rate_mbit.is_some()),
            ("link.download_rate_mbit", self.link.download_rate_mbit.is_some()),
        ] {
            require(
                several.len() < 2 || !is_given,
                key,
                "is the rate of one link, and `interfaces` names several: give each its own, in [[uplink]]",
            )?;
        }
        require(
            self.uplink.iter().all(|own| own.interface.is_some()),
            "uplink.interface",
            "must be given",
        )?;
        require(
            !is_twice(&self.uplink.iter().map(|own| &own.interface).collect::<Vec<_>>()),
            "uplink.interface",
            "must be named by one [[uplink]] only",
        )
    }

    /// Not for `--interface`, which may name fewer links than the file.
    pub(super) fn check_uplinks_are_named(&self) -> Result<(), ConfigError> {
        let named: Vec<&String> = self.interface.iter().chain(&self.interfaces).collect();
        let is_named = |own: &UplinkSection| own.interface.as_ref().is_none_or(|name| named.contains(&name));
        require(
            named.is_empty() || self.uplink.iter().all(is_named),
            "uplink.interface",
            "is not among the managed interfaces: name all of them in `interfaces`, in place of `interface`",
        )
    }

    /// The kernel looks each up by protocol and port.
    fn check_ports(&self) -> Result<(), ConfigError> {
        let deadlines = self.deadline.iter().map(|rule| &rule.conditions);
        let deadlines: Vec<_> = deadlines.map(|c| (c.protocol(), c.port())).collect();
        require(
            !is_twice(&deadlines),
            "deadline.port",
            "must be named by one [[deadline]] of its protocol only",
        )?;
        let chains = self.chain.iter().map(|chain| &chain.conditions);
        let chains: Vec<_> = chains.map(|c| (c.protocol(), c.local_port())).collect();
        require(
            !is_twice(&chains),
            "chain.local_port",
            "must be named by one [[chain]] of its protocol only",
        )
    }

    fn check_rules(&self) -> Result<(), ConfigError> {
        for rule in &self.priority {
            let conditions = &rule.conditions;
            require(
                conditions.exe.as_ref().is_none_or(|exe| exe.starts_with('/')),
                "priority.exe",
                "must be an absolute path",
            )?;
            require(
                conditions.exe.is_some() || conditions.user.is_some(),
                "priority.exe",
                "must be given, or else user: only root may decide what gets real-time priority",
            )?;
            require(
                rule.name.as_ref().is_none_or(|name| name.len() <= LONGEST_NAME),
                "priority.name",
                &format!("must be at most {LONGEST_NAME} bytes long"),
            )?;
            let patterns = [
                ("priority.cmdline", &conditions.cmdline),
                ("priority.unit", &conditions.unit),
                ("priority.cgroup", &conditions.cgroup),
            ];
            for (key, pattern) in patterns {
                pattern.as_ref().map_or(Ok(()), |pattern| {
                    Glob::check(pattern).map_err(|problem| wrong(key, problem))
                })?;
            }
            if rule.policy == SchedPolicyName::Deadline {
                rule.deadline_times()?;
            }
        }
        Ok(())
    }
}

impl Config {
    fn check_class_rules(&self) -> Result<(), ConfigError> {
        for rule in &self.rule {
            let conditions = &rule.conditions;
            let known = "must be \"realtime\", \"stream\", \"standard\", \"bulk\" or \"background\"";
            require(rule.class.is_some(), "rule.class", known)?;
            require(
                *conditions != Conditions::default(),
                "rule.class",
                "has no condition, so that it would match every flow: give it one",
            )?;
            let asks_only_packet = Matcher::new(conditions, None).asks_only_packet() && conditions.user.is_none();
            require(
                conditions.protocol != Some(Protocol::Udp) || asks_only_packet,
                "rule.protocol",
                "can be \"udp\" only beside conditions on the packet: leave it out, and a rule on the process covers its UDP too",
            )?;
            require(
                conditions.exe.as_ref().is_none_or(|exe| exe.starts_with('/')),
                "rule.exe",
                "must be an absolute path",
            )?;
            require(
                rule.reason.as_ref().is_none_or(|reason| reason.len() <= LONGEST_REASON),
                "rule.reason",
                &format!("must be at most {LONGEST_REASON} bytes long"),
            )?;
            let patterns = [
                ("rule.cmdline", &conditions.cmdline),
                ("rule.unit", &conditions.unit),
                ("rule.cgroup", &conditions.cgroup),
            ];
            for (key, pattern) in patterns {
                pattern.as_ref().map_or(Ok(()), |pattern| {
                    Glob::check(pattern).map_err(|problem| wrong(key, problem))
                })?;
            }
        }
        Ok(())
    }
}

impl PrioritySection {
    /// Runtime, deadline and period, for the policy "deadline".
    ///
    /// # Errors
    /// If one is missing, or they are inconsistent.
    pub fn deadline_times(&self) -> Result<[Duration; 3], ConfigError> {
        let (Some(runtime), Some(period)) = (self.runtime_us, self.period_us) else {
            return Err(wrong("priority.policy", "\"deadline\" needs runtime_us and period_us"));
        };
        let deadline = self.deadline_us.unwrap_or(period);
        if !(runtime <= deadline && deadline <= period) {
            let problem = "must be at most deadline_us, and that at most period_us";
            return Err(wrong("priority.runtime_us", problem));
        }
        Ok([runtime, deadline, period].map(|us| Duration::from_micros(us.into())))
    }
}
