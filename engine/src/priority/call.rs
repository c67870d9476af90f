// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Direct calls of the engine, as the corpus records them.
// What only records reads nothing.
#![cfg_attr(not(test), allow(dead_code))]

use super::{ChainLimits, PriorityRule, Schedule, Service, StartedProcess};

/// A call that is not an input.
pub enum Call {
    Chains(Vec<(Service, ChainLimits)>),
    AddRule {
        rule: PriorityRule,
        uid: u32,
        gids: Vec<u32>,
    },
    RemoveRule {
        name: String,
        uid: u32,
    },
    Launch {
        asking: StartedProcess,
        schedule: Schedule,
        gids: Vec<u32>,
    },
    Pause,
    Resume,
}

#[cfg(feature = "corpus")]
impl Call {
    pub fn add_rule(rule: &PriorityRule, uid: u32, gids: &[u32]) -> Self {
        let (rule, gids) = (rule.clone(), gids.to_vec());
        Self::AddRule { rule, uid, gids }
    }

    pub fn remove_rule(name: &str, uid: u32) -> Self {
        let name = name.to_owned();
        Self::RemoveRule { name, uid }
    }

    pub fn launch(asking: &StartedProcess, schedule: &Schedule, gids: &[u32]) -> Self {
        Self::Launch {
            asking: asking.clone(),
            schedule: schedule.clone(),
            gids: gids.to_vec(),
        }
    }
}
