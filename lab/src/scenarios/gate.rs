// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P0, section 3: packet work of a background upload must not take the processor from a program that computes, even
//! though that program sends nothing. One processor, an upload at 100 Mbit/s, and a program that only computes.

use anyhow::Result;

use crate::guest::Guest;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Relation, Scenario};
use crate::testbed::probe::computing::Computing;
use crate::testbed::{Load, Testbed, Topology};
use crate::uplink::{PACKET_BYTES, Queue, Shape};

pub const SCENARIO: Scenario = Scenario {
    name: "gate",
    about: "a program that computes beside an upload's packet work",
    stations: None,
    seconds: 1,
    warmup_s: 3,
    parameters: &[
        Parameter::range("runs", 5, 1, 1_000, "how often the program runs"),
        Parameter::range("steps_m", 100, 1, 100_000, "what it computes each time, in millions"),
    ],
    plan: &plan,
};

/// The upload's far end works on the same processor: its share is in the run time of every variant without a gate.
const GUEST: Guest = Guest::VIRTUAL;
const RATE_KBIT: u64 = 100_000;
const RTT_MS: u64 = 10;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let variant = |name: &str, queue, background: Option<Load>| {
        let computing = Computing {
            steps: parameters.count("steps_m") * 1_000_000,
            repetitions: parameters.count("runs"),
        };
        let testbed = Testbed {
            topology: Topology::Uplink(Shape {
                up_kbit: RATE_KBIT,
                down_kbit: RATE_KBIT,
                rtt_ms: RTT_MS,
                queue,
                driver_bytes: PACKET_BYTES,
            }),
            loads: background.into_iter().collect(),
            warmup_s: parameters.count("warmup_s") as f64,
            probes: vec![Box::new(computing)],
        };
        testbed.variant(name, Some(GUEST))
    };
    let giveway = |gate| Queue::Giveway { gate, short: false };
    let upload = || Some(Load::upload("cubic"));
    // Half of the link.
    let download = || Some(Load::Download { mbit: 50 });
    let run_time = "run_time_mean_s";
    Ok(Plan {
        variants: vec![
            variant("alone", Queue::Fifo, None),
            variant("plain", Queue::Fifo, upload()),
            variant("giveway", giveway(true), upload()),
            variant("giveway-without-gate", giveway(false), upload()),
            variant("download", giveway(true), download()),
        ],
        checks: vec![
            Check::ratio(
                format!("giveway {run_time} / alone"),
                "giveway",
                "alone",
                run_time,
                Relation::AtMost(1.01),
            ),
            // The gate is worth something only where an upload disturbs.
            Check::metric("giveway", "background_between_mbit", Relation::AtLeast(80.0)).goal(),
        ],
        plots: vec![],
        columns: "run_time_mean_s run_time_max_s background_goodput_mbit background_between_mbit",
    })
}
