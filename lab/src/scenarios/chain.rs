// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P3 and P4 together: a request with a deadline crosses the network, is handled and answered, beside computing
//! processes, floods of pings and bulk TCP on both ends. The effect of each part of giveway alone, and of all.

mod experiment;
mod fate;

use anyhow::Result;

use crate::guest::Guest;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Variant};
use experiment::{Chain, EVERY_US, Parts};

pub const SCENARIO: Scenario = Scenario {
    name: "chain",
    about: "A request with a deadline crosses the network, is handled and answered, beside load on both ends, with each part of giveway alone and with all of them (P3, P4)",
    seconds: 1,
    warmup_s: 0,
    parameters: &[
        Parameter::count("requests", 10_000, "with everything on"),
        Parameter::range(
            "napi_priority",
            39,
            1,
            48,
            "of the threads that take packets in; the service has 40",
        ),
    ],
    plan: &plan,
};

/// In each variant without all parts.
const REQUESTS_OTHERS: u64 = 2_000;

/// P3, table 1: the longest that a packet took from the network to the process.
const PAPER_DELIVERY_US: f64 = 928.0;

/// Each part of giveway alone, and what two of them reach together.
const VARIANTS: [&str; 8] = [
    "none",
    "queue",
    "priority",
    "receive",
    "wake",
    "queue+priority",
    "queue+wake",
    ALL,
];
/// With `wake` the service need not be real-time all the time.
const ALL: &str = "all";

fn parts(name: &str) -> Parts {
    let is_on = |part| name == ALL || name.split('+').any(|word| word == part);
    Parts {
        queue: is_on("queue"),
        priority: is_on("priority") && name != ALL,
        receive: is_on("receive"),
        wake: is_on("wake"),
    }
}

fn plan(parameters: &Parameters) -> Result<Plan> {
    let mut checks = Vec::new();
    let mut variants = Vec::new();
    for name in VARIANTS {
        let requests = if name == ALL {
            parameters.count("requests")
        } else {
            REQUESTS_OTHERS
        };
        checks.push(Check::metric(name, "requests", Relation::AtLeast(requests as f64)).always());
        let chain = Chain {
            requests: u32::try_from(requests)?,
            napi_priority: u32::try_from(parameters.count("napi_priority"))?,
            parts: parts(name),
        };
        let estimated_s = 4.0 + (requests * EVERY_US) as f64 / 1e6;
        variants.push(Variant::new(name, Some(Guest::VIRTUAL), estimated_s, move |run| {
            chain.run(run)
        }));
    }
    checks.extend([
        Check::metric(ALL, "late", Relation::Exactly(0.0)).always(),
        Check::metric(ALL, "warnings", Relation::Exactly(0.0)).always(),
        Check::metric(ALL, "refused_unnotified", Relation::Exactly(0.0)).always(),
        // A queue that refuses everything is never late.
        Check::metric(ALL, "admitted_percent", Relation::AtLeast(90.0)).always(),
        Check::metric(ALL, "delivery_max_us", Relation::AtMost(PAPER_DELIVERY_US))
            .always()
            .goal(),
    ]);
    Ok(Plan {
        variants,
        checks,
        plots: vec![Plot::distribution(
            "chain",
            "From making a request to having its answer",
            ("ms after it was made", "requests that are answered, %"),
            VARIANTS,
        )],
        columns: "requests admitted refused refused_notified late completion_p50_ms completion_p99_ms completion_max_ms \
                  delivery_p50_us delivery_max_us",
    })
}
