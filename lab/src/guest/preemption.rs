// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The preemption model of a kernel. Input: a model by the kernel's own word for it. Output: the same word for its
//! command line, and the model that this machine's kernel reports as active.

use anyhow::{Context, Result};
use clap::ValueEnum;
use strum::Display;

/// `(full)` among the models that this kernel offers.
const INSTALLED: &str = "/sys/kernel/debug/sched/preempt";

#[derive(Clone, Copy, Debug, Display, Eq, Hash, PartialEq, ValueEnum)]
#[strum(serialize_all = "lowercase")]
pub enum Preemption {
    /// At the next tick where the task has no real-time priority, at once for a real-time one
    Lazy,
    /// At once
    Full,
}

impl Preemption {
    pub fn is_installed(self) -> Result<bool> {
        let said = std::fs::read_to_string(INSTALLED).with_context(|| format!("cannot read {INSTALLED}"))?;
        Ok(installed(&said) == Some(&self.to_string()))
    }
}

fn installed(said: &str) -> Option<&str> {
    said.split_once('(')?.1.split_once(')').map(|(model, _)| model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_in_brackets_is_the_one_installed() {
        assert_eq!(installed("none voluntary (full) lazy \n"), Some("full"));
        assert_eq!(installed("full lazy"), None);
    }
}
