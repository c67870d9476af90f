// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scenarios by name: rows of tables, and others that are a file with their plan and a folder of their own.

pub mod abuse;
pub mod admission_cost;
mod chain;
pub mod fails_open;
pub mod faults;
pub mod limit_cost;
mod links;
pub mod marking;
mod monitor_cost;
mod queues;
pub mod reach;
mod readme;
pub mod runaway;
mod shared_channel;
mod shares;
mod soak;
pub mod switch_cost;
mod table;
pub mod targets;
mod turmoil;
mod waking;
mod work;

use anyhow::Result;

use crate::scenario::Scenario;
use crate::usage::{nearest, usage};

/// Scenarios that are no rows.
const OWN: &[Scenario] = &[
    abuse::SCENARIO,
    admission_cost::SCENARIO,
    chain::SCENARIO,
    fails_open::SCENARIO,
    faults::SCENARIO,
    limit_cost::SCENARIO,
    links::SCENARIO,
    marking::SCENARIO,
    monitor_cost::SCENARIO,
    reach::SCENARIO,
    readme::SCENARIO,
    runaway::SCENARIO,
    shares::SCENARIO,
    soak::SCENARIO,
    switch_cost::SCENARIO,
    targets::SCENARIO,
    turmoil::SCENARIO,
    work::SCENARIO,
];

/// By name.
pub fn all() -> Vec<&'static Scenario> {
    let mut all: Vec<_> = [
        shared_channel::papers::ROWS,
        shared_channel::sharing::ROWS,
        queues::ROWS,
        waking::ROWS,
        OWN,
    ]
    .into_iter()
    .flatten()
    .collect();
    all.sort_by_key(|scenario| scenario.name);
    all
}

pub fn find(name: &str) -> Result<&'static Scenario> {
    let all = all();
    all.iter()
        .find(|scenario| scenario.name == name)
        .copied()
        .ok_or_else(|| {
            let hint = nearest(name, all.iter().map(|scenario| scenario.name));
            usage(format!(
                "unknown scenario `{name}`{hint} (`giveway-lab list` names all)"
            ))
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::parameters::Parameters;

    #[test]
    fn checks_name_existing_variants_and_names_are_unique() {
        for scenario in all() {
            let parameters = Parameters::new(&scenario.all_parameters(), &[]).unwrap();
            let plan = scenario.plan.at(&parameters).unwrap();
            let names: Vec<_> = plan.variants.iter().map(|variant| variant.name.as_str()).collect();
            let different: BTreeSet<_> = names.iter().collect();
            assert_eq!(different.len(), names.len(), "{}: {names:?}", scenario.name);
            for check in &plan.checks {
                for point in check.of.variants() {
                    let is_below = |name: &&str| point == *name || point.starts_with(&format!("{name}/"));
                    assert!(names.iter().any(is_below), "{}: {}", scenario.name, check.name);
                }
            }
            assert!(plan.variants.iter().all(|variant| variant.estimated_s > 0.0));
        }
    }
}
