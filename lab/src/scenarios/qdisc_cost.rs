// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What giveway's queue costs traffic that wants nothing of it, beside the kernel's own queues: where packets wait for
//! a link, and where nothing ever waits.

use anyhow::Result;

use crate::guest::{Clock, Flavour, Guest};
use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::deadline::{Marking, QdiscCost, Queue};
use crate::scenario::{Check, Experiment, Plan, Quantity, Relation, Scenario, Variant};

pub const SCENARIO: Scenario = Scenario {
    name: "qdisc-cost",
    about: "instructions of each queue for a plain packet",
    stations: None,
    seconds: 1,
    warmup_s: 0,
    parameters: &[Parameter {
        name: "bursts",
        kind: Kind::Count {
            default: 50,
            least: 1,
            most: 10_000,
        },
        about: "of 64 packets, one each 10 ms",
    }],
    plan,
};

const RATE_MBIT: u64 = 100;

/// What stands at the device: where it has to hold packets back for the link, and where it has not.
fn queues(paced: bool) -> Vec<(&'static str, Queue)> {
    let kernel = |lines: Vec<String>| Queue::Kernel {
        lines,
        marking: Marking::None,
    };
    // As in `deadline`: the kernel's shaper keeps at most one packet below, as giveway and cake do.
    let plain = |kind: &str| {
        kernel(if paced {
            vec![
                format!("root handle 1: tbf rate {RATE_MBIT}mbit burst 1514 limit 10000000"),
                format!("parent 1: handle 10: {kind}"),
            ]
        } else {
            vec![format!("root handle 1: {kind}")]
        })
    };
    let bandwidth = if paced { format!("{RATE_MBIT}mbit") } else { "0".into() };
    vec![
        ("pfifo_fast", plain("pfifo_fast")),
        ("fq_codel", plain("fq_codel")),
        (
            "cake",
            kernel(vec![format!("root handle 1: cake bandwidth {bandwidth}")]),
        ),
        (
            "giveway",
            Queue::Giveway {
                admission: true,
                guard_us: 100,
            },
        ),
    ]
}

fn plan(parameters: &Parameters) -> Result<Plan> {
    let guest = Guest {
        kernel: Flavour::Stock,
        cpus: 1,
        clock: Clock::Virtual,
        preemption: None,
    };
    let mut variants = Vec::new();
    let mut checks = Vec::new();
    for (load, rate_mbit) in [("paced", Some(RATE_MBIT)), ("unpaced", None)] {
        for (name, queue) in queues(rate_mbit.is_some()) {
            variants.push(Variant {
                name: format!("{name}/{load}"),
                guest: Some(guest),
                experiment: Experiment::QdiscCost(QdiscCost {
                    queue,
                    rate_mbit,
                    bursts: parameters.count("bursts"),
                }),
            });
        }
        let of = Quantity::Ratio {
            variant: format!("giveway/{load}"),
            over: format!("fq_codel/{load}"),
            metric: "instructions_per_packet",
        };
        let check = format!("giveway over fq_codel, {load}");
        checks.push(Check::of(check, of, Relation::AtMost(1.0)).goal().always());
    }
    Ok(Plan {
        variants,
        checks,
        plots: Vec::new(),
        columns: &[
            "instructions_per_packet",
            "path_instructions_per_packet",
            "noqueue_instructions_per_packet",
            "timer_interrupts_per_packet",
        ],
    })
}
