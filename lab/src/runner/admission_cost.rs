// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What deciding about one more packet with a deadline costs, and whether the decision is right.
//! In: how many random cases; or how many packets wait already. Out: how often giveway's slack test and the exact walk
//! differ; or the instructions of a whole enqueue (admission and queue), and of either decision alone. For instructions the
//! clock has to be the virtual one.

pub mod slack;
mod trial;
pub mod walk;

use std::path::Path;

use anyhow::{Context, Result};

use super::Run;
use crate::giveway::{self, Daemon};
use crate::link::wire::Wire;
use crate::outcome::Outcome;
use crate::scenario::deadline::AdmissionCost;
use crate::statistics::{mean, percentile};
use crate::traffic::realtime::enqueue::{self, Cost, Enqueue};

/// The link's timer interrupts some of the measured packets; its instructions are not theirs, and stand in the mean
/// and in the largest only. Undisturbed packets differ by a few instructions.
const UNDISTURBED_PERCENT: f64 = 25.0;
/// The default.
const GUARD_US: u64 = 100;

pub fn run(cost: &AdmissionCost, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let mut outcome = Outcome::default();
    match cost {
        AdmissionCost::Trial { cases } => {
            run.progress.tick("random cases");
            tell_trial(&mut outcome, name, &trial::run(*cases, run.seed)?);
        }
        AdmissionCost::Enqueue {
            rate_mbit,
            queued,
            packets,
        } => {
            let wire = Wire::create()?;
            let file = raw.join("enqueue.toml");
            giveway::write_queue_configuration(&file, *rate_mbit, true, GUARD_US)?;
            let mut daemon = Daemon::start(&wire.sender, &file, raw.join("enqueue.log"))?;
            daemon.wait_until_queueing(&wire.sender)?;
            run.progress.tick("packets behind others");
            let what = Enqueue {
                queued: queued.clone(),
                packets: *packets,
                seed: run.seed,
            };
            let costs = enqueue::run_in(&wire.sender, &what)?;
            let kept = raw.join(format!("{name}.json"));
            std::fs::write(&kept, serde_json::to_string(&costs)?)
                .with_context(|| format!("cannot write {}", kept.display()))?;
            tell_costs(&mut outcome, name, &costs);
            daemon.stop()?;
        }
    }
    Ok(outcome)
}

fn tell_trial(outcome: &mut Outcome, point: &str, found: &trial::Found) {
    for (metric, value) in [
        ("cases", found.cases as f64),
        ("admitted", found.admitted as f64),
        ("admitted_wrongly", found.admitted_wrongly as f64),
        ("refused_wrongly", found.refused_wrongly as f64),
        ("refused_wrongly_percent", found.refused_wrongly_percent()),
        ("queued_mean", found.queued_mean()),
        ("queued_max", found.queued_most as f64),
    ] {
        outcome.set(point, metric, value);
    }
}

fn tell_costs(outcome: &mut Outcome, name: &str, costs: &[Cost]) {
    let mut wholes = Vec::new();
    for cost in costs {
        let point = format!("{name}/{}", cost.queued);
        let [admission, queue] = [&cost.admission_ns, &cost.enqueue_ns].map(|took| less_clock(took, &cost.clock_ns));
        let whole: Vec<f64> = admission.iter().zip(&queue).map(|(a, q)| a + q).collect();
        let undisturbed = |took: &[f64]| percentile(took, UNDISTURBED_PERCENT);
        outcome.set(&point, "instructions", undisturbed(&whole));
        outcome.set(&point, "instructions_mean", mean(&whole));
        outcome.set(&point, "instructions_max", percentile(&whole, 100.0));
        outcome.set(&point, "admission_instructions", undisturbed(&admission));
        outcome.set(&point, "enqueue_instructions", undisturbed(&queue));
        outcome.set(&point, "clock_instructions", mean_of(&cost.clock_ns));
        outcome.set(&point, "walk_instructions", cost.walk_ns);
        outcome.set(&point, "tree_instructions", cost.tree_ns);
        wholes.extend(undisturbed(&whole));
    }
    let largest = wholes.iter().copied().reduce(f64::max);
    let smallest = wholes.iter().copied().reduce(f64::min);
    let spread = largest.zip(smallest).map(|(largest, smallest)| largest / smallest);
    outcome.set(name, "instructions_max_over_min", spread);
}

fn mean_of(took_ns: &[u64]) -> Option<f64> {
    mean(&took_ns.iter().map(|ns| *ns as f64).collect::<Vec<_>>())
}

/// Without what the kernel's reading of its clock took for the same packet.
fn less_clock(took_ns: &[u64], clock_ns: &[u64]) -> Vec<f64> {
    let took = took_ns.iter().zip(clock_ns);
    took.map(|(took, clock)| took.saturating_sub(*clock) as f64).collect()
}
