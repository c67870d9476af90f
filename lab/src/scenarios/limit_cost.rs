// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cost of limits for unlimited traffic: its throughput and the run time of giveway's programs for its packets,
//! while one limit exists and while none does. And a thousand limits at once.

pub mod flows;
mod many;
mod passing;
mod place;

use anyhow::Result;

use crate::guest::Guest;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use crate::traffic::Direction;
use many::Many;
use passing::{Passing, STATES};

pub const SCENARIO: Scenario = Scenario {
    name: "limit-cost",
    about: "What limits cost traffic that has none (throughput beside a limit over throughput without), and a thousand limits at once",
    seconds: 20,
    warmup_s: 8,
    parameters: &[
        Parameter::range("rounds", 10, 1, 1_000, "of throughput without a limit and beside one"),
        Parameter::range("limits", 1_000, 1, 1_000, "at once"),
        Parameter::range("active", 20, 2, 100, "of these, how many have traffic"),
    ],
    plan: &plan,
};

const MANY: &str = "thousand-limits";
const CONNECTIONS: [usize; 2] = [1, 16];
const WINDOW_S: f64 = 1.0;
/// Virtual time: an emulated processor that is never idle takes thirty times as long as a real one.
const GUEST_WINDOW_S: f64 = 0.3;
const GUEST_SLOWER: f64 = 30.0;

/// Of the throughput without a limit.
const THROUGHPUT: f64 = 0.95;
const TOLERANCE: f64 = 0.05;
/// In the guest a nanosecond is an instruction.
const INSTRUCTIONS: f64 = 1_000.0;
const INSTALL_S: f64 = 5.0;
const IDLE_PERCENT: f64 = 1.0;
const IDLE_MB: f64 = 40.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let (mut variants, mut checks) = (Vec::new(), Vec::new());
    for (place, guest) in [("host", None), ("guest", Some(Guest::VIRTUAL))] {
        for (way, gro, connections) in cells() {
            let words = [
                place,
                if way == Direction::Up { "up" } else { "down" },
                if gro { "gro" } else { "no-gro" },
            ];
            let name = format!("{}/{connections}", words.join("/"));
            let passing = Passing {
                way,
                gro,
                connections,
                rounds: if guest.is_none() { parameters.count("rounds") } else { 0 },
                window_s: if guest.is_none() { WINDOW_S } else { GUEST_WINDOW_S },
            };
            checks.extend(checks_of(&name, guest.is_some()));
            variants.push(variant(name, guest, passing));
        }
    }
    let many = Many {
        limits: parameters.count("limits"),
        active: parameters.count("active"),
        warmup_s: parameters.count("warmup_s") as f64,
        seconds: parameters.count("seconds") as f64,
    };
    let estimated_s = 30.0 + many.warmup_s + many.seconds;
    variants.push(Variant::new(MANY, None, estimated_s, move |run| many.run(run)));
    checks.extend(checks_of_many(many.limits));
    Ok(Plan {
        variants,
        checks,
        plots: Vec::new(),
        columns: "mbit ratio_p25 ratio_p50 ratio_p75 limits_ns_per_packet gw_redirect_ns gw_admit_ns gw_leaves_ns attached \
                  up_of_limit_min up_of_limit_max down_of_limit_min down_of_limit_max install_s cpu_percent rss_mb",
    })
}

fn cells() -> impl Iterator<Item = (Direction, bool, usize)> {
    let ways = [Direction::Down, Direction::Up].into_iter();
    ways.flat_map(|way| [true, false].map(|gro| (way, gro)))
        .flat_map(|(way, gro)| CONNECTIONS.map(|connections| (way, gro, connections)))
}

fn variant(name: String, guest: Option<Guest>, passing: Passing) -> Variant {
    let slower = if guest.is_some() { GUEST_SLOWER } else { 1.0 };
    let windows = 2.0 * (passing.rounds as f64 + 1.0);
    let estimated_s = slower * (2.0 + windows * (passing.window_s + 0.3));
    Variant::new(name, guest, estimated_s, move |run| passing.run(run))
}

fn checks_of(name: &str, is_guest: bool) -> Vec<Check> {
    let [no_limit, one_limit] = STATES.map(|(state, _)| format!("{name}/{state}"));
    let metric = |point: &str, metric, holds| Check::metric(point, metric, holds).always();
    let mut checks = vec![
        metric(&no_limit, "attached", Relation::Exactly(0.0)),
        metric(&no_limit, "limits_ns_per_packet", Relation::Exactly(0.0)),
        // Otherwise it would test nothing.
        metric(&one_limit, "limits_runs_per_packet", Relation::AtLeast(0.01)),
    ];
    checks.push(if is_guest {
        metric(&one_limit, "limits_ns_per_packet", Relation::AtMost(INSTRUCTIONS)).goal()
    } else {
        metric(name, "ratio_p50", Relation::AtLeast(THROUGHPUT)).goal()
    });
    checks
}

fn checks_of_many(limits: u64) -> Vec<Check> {
    let near = Relation::Between(1.0 - TOLERANCE, 1.0 + TOLERANCE);
    let of_limit = [
        "up_of_limit_min",
        "up_of_limit_max",
        "down_of_limit_min",
        "down_of_limit_max",
    ];
    let held = ["held_up", "held_down"].map(|metric| (metric, Relation::Exactly(limits as f64)));
    let bounds = of_limit.into_iter().map(|metric| (metric, near)).chain(held);
    let bounds = bounds.chain([("left_attached", Relation::Exactly(0.0))]);
    let bounds = bounds.map(|(metric, holds)| Check::metric(MANY, metric, holds).always());
    let goals = [
        ("install_s", INSTALL_S),
        ("cpu_percent", IDLE_PERCENT),
        ("rss_mb", IDLE_MB),
    ];
    let goals = goals.map(|(metric, most)| Check::metric(MANY, metric, Relation::AtMost(most)).goal());
    bounds.chain(goals).collect()
}
