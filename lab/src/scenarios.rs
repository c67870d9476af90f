// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scenarios by name: each a file with its plan, and a folder with what only it runs.

pub mod abuse;
pub mod admission_cost;
mod app_mix;
mod auto_rate;
mod chain;
mod contention;
mod cooperative;
mod deadline;
mod demand;
mod downlink;
mod download_limit;
pub mod fails_open;
pub mod faults;
mod foreground;
mod foreground_down;
mod gate;
mod join_leave;
mod liar;
mod lift;
pub mod limit_cost;
mod line_rate;
mod links;
pub mod marking;
mod mixed;
mod monitor_cost;
mod no_numbers;
mod qdisc_cost;
mod rate_limit;
pub mod reach;
mod readme;
mod rtt_mix;
mod rules_cost;
pub mod runaway;
mod shares;
mod single_cap;
mod soak;
mod starts;
mod starve;
mod step_rate;
mod strangers;
pub mod switch_cost;
pub mod targets;
mod turmoil;
mod wakeup;
mod work;
mod yielding;

use anyhow::Result;

use crate::scenario::Scenario;
use crate::usage::{nearest, usage};

pub const ALL: &[Scenario] = &[
    abuse::SCENARIO,
    admission_cost::SCENARIO,
    app_mix::SCENARIO,
    auto_rate::SCENARIO,
    chain::SCENARIO,
    contention::SCENARIO,
    cooperative::SCENARIO,
    deadline::SCENARIO,
    demand::SCENARIO,
    download_limit::SCENARIO,
    downlink::SCENARIO,
    fails_open::SCENARIO,
    faults::SCENARIO,
    foreground::SCENARIO,
    foreground_down::SCENARIO,
    gate::SCENARIO,
    join_leave::SCENARIO,
    liar::SCENARIO,
    lift::SCENARIO,
    limit_cost::SCENARIO,
    line_rate::SCENARIO,
    links::SCENARIO,
    marking::SCENARIO,
    mixed::SCENARIO,
    monitor_cost::SCENARIO,
    no_numbers::SCENARIO,
    qdisc_cost::SCENARIO,
    rate_limit::SCENARIO,
    reach::SCENARIO,
    readme::SCENARIO,
    rtt_mix::SCENARIO,
    rules_cost::SCENARIO,
    runaway::SCENARIO,
    shares::SCENARIO,
    single_cap::SCENARIO,
    soak::SCENARIO,
    starts::SCENARIO,
    starve::SCENARIO,
    step_rate::SCENARIO,
    strangers::SCENARIO,
    switch_cost::SCENARIO,
    targets::SCENARIO,
    turmoil::SCENARIO,
    wakeup::SCENARIO,
    work::SCENARIO,
    yielding::SCENARIO,
];

pub fn find(name: &str) -> Result<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name).ok_or_else(|| {
        let hint = nearest(name, ALL.iter().map(|scenario| scenario.name));
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
    fn each_check_is_about_variants_of_its_scenario_and_these_differ_by_name() {
        for scenario in ALL {
            let parameters = Parameters::new(&scenario.all_parameters(), &[]).unwrap();
            let plan = (scenario.plan)(&parameters).unwrap();
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
