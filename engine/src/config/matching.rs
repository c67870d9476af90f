// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which conditions ([`super::conditions`]) a table of rules can enforce.

use super::ConfigError;

/// The process conditions of [`super::conditions::Conditions`]; the others are packet conditions.
const OF_PROCESSES: [&str; 5] = ["exe", "cmdline", "user", "unit", "cgroup"];

/// Whether a condition is required.
pub enum Presence {
    Must,
    May,
    /// Its default.
    Else(&'static str),
}

/// The conditions that a table can enforce.
pub struct Matching {
    pub accepts: &'static [(&'static str, Presence)],
    /// Why it cannot enforce the others.
    pub reason: &'static str,
    /// What to do instead of a process condition, and of a packet condition.
    pub instead_of_process: &'static str,
    pub instead_of_ends: &'static str,
}

impl Matching {
    /// The refusal of a known condition in this table.
    pub fn refusal(&self, table: &'static str, condition: &str) -> ConfigError {
        let instead = if OF_PROCESSES.contains(&condition) {
            self.instead_of_process
        } else {
            self.instead_of_ends
        };
        ConfigError::CannotMatch {
            table,
            condition: condition.to_owned(),
            reason: self.reason,
            instead,
        }
    }
}
