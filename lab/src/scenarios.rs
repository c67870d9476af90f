// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scenarios by name, one file each.

mod admission_cost;
mod chain;
mod contention;
mod cooperative;
mod deadline;
mod fails_open;
mod foreground;
mod gate;
mod join_leave;
mod lift;
mod monitor_cost;
mod qdisc_cost;
mod runaway;
mod single_cap;
mod starts;
mod switch_cost;
mod turmoil;
mod wakeup;

use anyhow::Result;

use crate::scenario::Scenario;
use crate::usage::{nearest, usage};

pub const ALL: &[Scenario] = &[
    admission_cost::SCENARIO,
    chain::SCENARIO,
    contention::SCENARIO,
    cooperative::SCENARIO,
    deadline::SCENARIO,
    fails_open::SCENARIO,
    foreground::SCENARIO,
    gate::SCENARIO,
    join_leave::SCENARIO,
    lift::SCENARIO,
    monitor_cost::SCENARIO,
    qdisc_cost::SCENARIO,
    runaway::SCENARIO,
    single_cap::SCENARIO,
    starts::SCENARIO,
    switch_cost::SCENARIO,
    turmoil::SCENARIO,
    wakeup::SCENARIO,
];

pub fn find(name: &str) -> Result<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name).ok_or_else(|| {
        let hint = nearest(name, ALL.iter().map(|scenario| scenario.name));
        usage(format!(
            "unknown scenario `{name}`{hint} (`giveway-lab list` names all)"
        ))
    })
}
