// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P0, table 1, today: what it costs to hand packet work to a softirq, and to a thread for each priority. P0 counted
//! 2,177 and 5,484 cycles of its phone's processor; here it is instructions, in virtual time.

pub mod handover;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::experiment::{Run, pause};
use crate::guest::Guest;
use crate::namespace::Namespace;
use crate::network::{End, add_pair};
use crate::outcome::{Metrics, Outcome};
use crate::parameters::{Parameter, Parameters};
use crate::role::Role;
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use crate::uplink::queue::work_in_threads;
use handover::{FROM, HandOver, TO};

pub const SCENARIO: Scenario = Scenario {
    name: "switch-cost",
    about: "Instructions of handing packets to a softirq, to a NAPI thread and to a cpumap thread (P0, table 1)",
    seconds: 1,
    // A guest that has just booted is busy with itself: 4,000 instructions a packet, where nothing else shows it.
    warmup_s: 5,
    parameters: &[Parameter::range(
        "packets",
        30_000,
        100,
        10_000_000,
        "handed over in each way",
    )],
    plan: &plan,
};

/// P0's share: 2,177 of 5,484.
const PAPERS_SHARE: f64 = 0.397;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let packets = u32::try_from(parameters.count("packets"))?;
    let warmup_s = parameters.count("warmup_s") as f64;
    let variant = |name: &str, to| {
        let estimated_s = warmup_s + f64::from(packets) * 4e-5;
        let trial = HandOver { to, packets };
        Variant::new(name, Some(Guest::VIRTUAL), estimated_s, move |run| {
            hand_over(run, trial, warmup_s)
        })
    };
    let beside = |over: &str| {
        let metric = "switch_instructions";
        let holds = Relation::AtMost(PAPERS_SHARE);
        Check::ratio(format!("softirq {metric} / {over}"), "softirq", over, metric, holds).goal()
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
        columns: "switch_instructions hand_over_instructions packet_instructions",
    })
}

#[derive(Clone, Copy, Deserialize, PartialEq, Serialize)]
pub enum Worker {
    /// The device's NAPI instance, in a softirq.
    Softirq,
    /// The same NAPI instance, in a kernel thread of its own.
    NapiThread,
    /// A kernel thread to which XDP passes packets in the softirq.
    CpumapThread,
    /// No packets: two tasks that yield to each other.
    Task,
}

/// Packets handed from a task to the worker that handles them, one at a time, by a process of its own in a namespace
/// with a pair of devices. One nanosecond is one instruction.
fn hand_over(run: &Run, trial: HandOver, warmup_s: f64) -> Result<Outcome> {
    ensure!(run.has_virtual_time(), "instructions are counted in virtual time only");
    let place = Namespace::create("switch")?;
    wire(&place)?;
    if trial.to == Worker::NapiThread {
        work_in_threads(&place, TO)?;
    }
    run.progress.tick("warming up");
    pause(warmup_s)?;
    run.progress.tick("handing packets over");
    let metrics: Metrics = Role::spawn(&place, "hand-over", &trial)?.finish()?;
    let mut outcome = Outcome::default();
    outcome.points.insert(run.name.into(), metrics);
    Ok(outcome)
}

/// What goes into the one end comes to the other, through NAPI as in a real device.
fn wire(place: &Namespace) -> Result<()> {
    let from = End::new(place, FROM, "02:00:00:00:09:01", &["10.79.0.1/24"]);
    let to = End::new(place, TO, "02:00:00:00:09:02", &[]);
    add_pair([from, to], 1)?;
    place.ip(&format!("link set {TO} up"))?;
    // Whose address it is does not matter: nothing gets that far.
    from.set_up(&[("10.79.0.2", "02:00:00:00:00:01")])?;
    // Only then does a pair of devices work through NAPI, and not through the backlog.
    place.run("ethtool", &format!("-K {FROM} tso off"))?;
    place.run("ethtool", &format!("-K {TO} gro on")).map(drop)
}
