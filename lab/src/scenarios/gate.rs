// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P0, section 3: packet work of a background upload must not take the processor from a program that computes, even
//! though that program sends nothing. One processor, an upload at 100 Mbit/s, and a program that only computes.

use anyhow::Result;

use crate::guest::{Clock, Flavour, Guest};
use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::foreground::{Background, Gate, Queue, Shape};
use crate::scenario::{Check, Experiment, Plan, Quantity, Relation, Scenario, Variant};
use crate::uplink::PACKET_BYTES;

pub const SCENARIO: Scenario = Scenario {
    name: "gate",
    about: "a program that computes beside an upload's packet work",
    stations: None,
    seconds: 1,
    warmup_s: 3,
    parameters: &[
        Parameter {
            name: "runs",
            kind: Kind::Count {
                default: 5,
                least: 1,
                most: 1_000,
            },
            about: "how often the program runs",
        },
        Parameter {
            name: "steps_m",
            kind: Kind::Count {
                default: 100,
                least: 1,
                most: 100_000,
            },
            about: "what it computes each time, in millions",
        },
    ],
    plan,
};

/// The upload's far end works on the same processor: its share is in the run time of every variant without a gate.
const GUEST: Guest = Guest {
    kernel: Flavour::Stock,
    cpus: 1,
    clock: Clock::Virtual,
    preemption: None,
};
const RATE_KBIT: u64 = 100_000;
const RTT_MS: u64 = 10;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let variant = |name: &str, queue, background| Variant {
        name: name.into(),
        guest: Some(GUEST),
        experiment: Experiment::Gate(Gate {
            shape: Shape {
                up_kbit: RATE_KBIT,
                down_kbit: RATE_KBIT,
                rtt_ms: RTT_MS,
                queue,
                driver_bytes: PACKET_BYTES,
            },
            background,
            steps: parameters.count("steps_m") * 1_000_000,
            repetitions: parameters.count("runs"),
            warmup_s: parameters.count("warmup_s") as f64,
        }),
    };
    let giveway = |gate, ingress| Queue::Giveway { gate, ingress };
    let (upload, download) = (Some(Background::Upload), Some(Background::Download));
    let beside_alone = |name: &str, most| {
        let (variant, over, metric) = (name.into(), "alone".into(), "run_time_mean_s");
        let quantity = Quantity::Ratio { variant, over, metric };
        Check::of(format!("{name} {metric} / alone"), quantity, Relation::AtMost(most))
    };
    Ok(Plan {
        variants: vec![
            variant("alone", Queue::Fifo, None),
            variant("plain", Queue::Fifo, upload),
            variant("giveway", giveway(true, false), upload),
            variant("giveway-without-gate", giveway(false, false), upload),
            variant("download", giveway(true, false), download),
            variant("download-deferred", giveway(true, true), download),
        ],
        checks: vec![
            beside_alone("giveway", 1.01),
            // It takes its place in `[queue] ingress` only if it gains something and loses nothing.
            Check::of(
                "download-deferred / download run_time_mean_s".into(),
                Quantity::Ratio {
                    variant: "download-deferred".into(),
                    over: "download".into(),
                    metric: "run_time_mean_s",
                },
                Relation::Below(1.0),
            )
            .goal(),
            Check::of(
                "download-deferred / download background_goodput_mbit".into(),
                Quantity::Ratio {
                    variant: "download-deferred".into(),
                    over: "download".into(),
                    metric: "background_goodput_mbit",
                },
                Relation::AtLeast(0.99),
            )
            .goal(),
            // The gate is worth something only where an upload disturbs.
            Check::metric("giveway", "background_between_mbit", Relation::AtLeast(80.0)).goal(),
        ],
        plots: vec![],
        columns: &[
            "run_time_mean_s",
            "run_time_max_s",
            "background_goodput_mbit",
            "background_between_mbit",
        ],
    })
}
