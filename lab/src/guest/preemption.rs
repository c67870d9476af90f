// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a kernel may take a processor away from what runs in it.
//! In: a model by the kernel's own word for it. Out: the same word for its command line, and the model that the kernel
//! of this machine says is in force.

use std::fmt;

use anyhow::{Context, Result};
use clap::ValueEnum;

/// `(full)` among the models that this kernel can do.
const IN_FORCE: &str = "/sys/kernel/debug/sched/preempt";

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, ValueEnum)]
pub enum Preemption {
    /// At the next tick where the task is an ordinary one, at once for a real-time one
    Lazy,
    /// At once
    Full,
}

impl fmt::Display for Preemption {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(match self {
            Preemption::Lazy => "lazy",
            Preemption::Full => "full",
        })
    }
}

impl Preemption {
    pub fn is_in_force(self) -> Result<bool> {
        let said = std::fs::read_to_string(IN_FORCE).with_context(|| format!("cannot read {IN_FORCE}"))?;
        Ok(in_force(&said) == Some(&self.to_string()))
    }
}

fn in_force(said: &str) -> Option<&str> {
    said.split_once('(')?.1.split_once(')').map(|(model, _)| model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_in_brackets_is_the_one_in_force() {
        assert_eq!(in_force("none voluntary (full) lazy \n"), Some("full"));
        assert_eq!(in_force("full lazy"), None);
    }
}
