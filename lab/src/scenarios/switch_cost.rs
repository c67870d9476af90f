// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P0, table 1, today: what it costs to hand packet work to a softirq, and to a thread for each priority. P0 counted
//! 2,177 and 5,484 cycles of its phone's processor; here it is instructions, in virtual time.

use anyhow::Result;

use crate::guest::{Clock, Flavour, Guest};
use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::switch_cost::{SwitchCost, Worker};
use crate::scenario::{Check, Experiment, Plan, Quantity, Relation, Scenario, Variant};

pub const SCENARIO: Scenario = Scenario {
    name: "switch-cost",
    about: "packet work handed to a softirq, and to a thread",
    stations: None,
    seconds: 1,
    // A guest that has just booted is busy with itself: 4,000 instructions a packet, where nothing else shows it.
    warmup_s: 5,
    parameters: &[Parameter {
        name: "packets",
        kind: Kind::Count {
            default: 30_000,
            least: 100,
            most: 10_000_000,
        },
        about: "handed over in each way",
    }],
    plan,
};

const GUEST: Guest = Guest {
    kernel: Flavour::Stock,
    cpus: 1,
    clock: Clock::Virtual,
    preemption: None,
};
/// P0's share: 2,177 of 5,484.
const PAPERS_SHARE: f64 = 0.397;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let packets = u32::try_from(parameters.count("packets"))?;
    let warmup_s = parameters.count("warmup_s") as f64;
    let variant = |name: &str, to| Variant {
        name: name.into(),
        guest: Some(GUEST),
        experiment: Experiment::SwitchCost(SwitchCost { to, packets, warmup_s }),
    };
    let beside = |over: &str| {
        let (variant, metric) = ("softirq".into(), "switch_instructions");
        let name = format!("softirq {metric} / {over}");
        let over = over.into();
        let quantity = Quantity::Ratio { variant, over, metric };
        Check::of(name, quantity, Relation::AtMost(PAPERS_SHARE)).goal()
    };
    Ok(Plan {
        variants: vec![
            variant("softirq", Worker::Softirq),
            variant("napi-thread", Worker::NapiThread),
            variant("cpumap-thread", Worker::CpumapThread),
            variant("task", Worker::Task),
        ],
        checks: vec![beside("napi-thread"), beside("cpumap-thread")],
        plots: vec![],
        columns: &["switch_instructions", "hand_over_instructions", "packet_instructions"],
    })
}
