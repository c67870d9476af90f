// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything at once: hostile packets, other tools, flapping links, killed daemons. Afterwards the kernel has not
//! complained, nothing is lost, nothing is left, and the network works.

mod experiment;
mod leaks;
mod operations;
mod stage;

use anyhow::Result;

use crate::guest::{Clock, Guest};
use crate::parameters::Parameters;
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};

pub const SCENARIO: Scenario = Scenario {
    name: "turmoil",
    about: "Ten minutes of random operations and hostile packets in a guest: no kernel warning, no leak, a working network at the end",
    seconds: 600,
    warmup_s: 0,
    parameters: &[],
    plan: &plan,
};

const NAME: &str = "guest";

fn plan(parameters: &Parameters) -> Result<Plan> {
    let always = |metric, holds| Check::metric(NAME, metric, holds).always();
    let none = Relation::Exactly(0.0);
    let guest = Guest {
        // Two that really run at the same time, which virtual time does not have.
        cpus: 2,
        clock: Clock::Real,
        ..Guest::VIRTUAL
    };
    let seconds = parameters.count("seconds") as f64;
    Ok(Plan {
        variants: vec![Variant::new(NAME, Some(guest), seconds + 60.0, move |run| {
            experiment::run(run, seconds)
        })],
        checks: vec![
            always("kernel_warnings", none),
            always("leaked_packets", none),
            always("leaked_maps_programs", none),
            always("daemon_deaths", none),
            always("network_works", Relation::Exactly(1.0)),
            // Else there was no turmoil.
            Check::metric(NAME, "operations_rarest", Relation::AtLeast(1.0)),
            Check::metric(NAME, "queued_packets", Relation::AtLeast(1_000.0)),
            Check::metric(NAME, "ours_percent", Relation::AtLeast(30.0)),
        ],
        plots: vec![],
        columns: "operations hostile_frames queued_packets leaked_packets kernel_warnings",
    })
}
