// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of the conditions ([`super::conditions`]) a table of rules can enforce.

use super::ConfigError;

/// Those of [`super::conditions::Conditions`] that are about the process; the others are about the ends of its packets.
const OF_PROCESSES: [&str; 5] = ["exe", "cmdline", "user", "unit", "cgroup"];

/// Whether a table's rules must have a condition.
pub enum Presence {
    Must,
    May,
    /// This value counts where it is not given.
    Else(&'static str),
}

/// Which conditions a table can enforce.
pub struct Matching {
    pub accepts: &'static [(&'static str, Presence)],
    /// Why it can enforce no others.
    pub reason: &'static str,
    /// What to do in place of a condition on the process, and on the ends of its packets.
    pub instead_of_process: &'static str,
    pub instead_of_ends: &'static str,
}

impl Matching {
    /// The refusal of a condition that exists, in this table.
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
