// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cost of giveway's slack test, whatever the queue's length, against P3's scan over the queue; and whether both
//! decide alike.

pub mod enqueue;
mod exact_scan;
mod random_cases;
mod slack;

use anyhow::Result;

use crate::experiment::Run;
use crate::giveway::Daemon;
use crate::guest::Guest;
use crate::link::wire::{Wire, queue_configuration};
use crate::outcome::Outcome;
use crate::parameters::{Parameter, Parameters};
use crate::role::Role;
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use crate::statistics::{mean, percentile};
use enqueue::{Enqueue, EnqueueCost};

pub const SCENARIO: Scenario = Scenario {
    name: "admission-cost",
    about: "Instructions of admitting one more packet with a deadline, by the number of packets queued, and a million random cases against an exact decision",
    seconds: 1,
    warmup_s: 0,
    parameters: &[
        Parameter::range("cases", 1_000_000, 1, 100_000_000, "random cases against an exact scan"),
        Parameter::range(
            "packets",
            100,
            1,
            100_000_000,
            "measured behind each number of queued ones",
        ),
    ],
    plan: &plan,
};

const QUEUED: [u64; 4] = [10, 100, 1_000, 4_000];
/// Such that 4,000 packets of 1,442 bytes are 192 ms of promised work, within the 268 ms that admission looks ahead.
const RATE_MBIT: u64 = 300;
const INSTRUCTIONS: f64 = 2_500.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let (cases, packets) = (parameters.count("cases"), parameters.count("packets"));
    let random = "random-cases";
    let enqueue = "enqueue";
    let mut checks = vec![
        Check::metric(random, "cases", Relation::AtLeast(cases as f64)).always(),
        Check::metric(random, "admitted_wrongly", Relation::Exactly(0.0)).always(),
        Check::metric(random, "refused_wrongly_percent", Relation::Below(1.0)).always(),
        Check::metric(enqueue, "instructions_max_over_min", Relation::AtMost(1.5)).always(),
    ];
    let points = QUEUED.map(|queued| format!("{enqueue}/{queued}"));
    checks.extend(points.map(|point| Check::metric(&point, "instructions", Relation::AtMost(INSTRUCTIONS)).always()));
    Ok(Plan {
        variants: vec![
            Variant::new(random, None, ESTIMATED_S, move |run| try_cases(run, cases)),
            Variant::new(enqueue, Some(Guest::VIRTUAL), ESTIMATED_S, move |run| {
                queue_packets(run, packets)
            }),
        ],
        checks,
        plots: Vec::new(),
        columns: "instructions tree_instructions scan_instructions admitted_wrongly refused_wrongly_percent",
    })
}

/// The link's timer interrupts some of the measured packets; its instructions are not theirs, and affect the mean and
/// the maximum only. Undisturbed packets differ by a few instructions.
const UNDISTURBED_PERCENT: f64 = 25.0;

const ESTIMATED_S: f64 = 5.0;

/// giveway's slack test against the exact scan.
fn try_cases(run: &Run, cases: u64) -> Result<Outcome> {
    run.progress.tick("random cases");
    let mut outcome = Outcome::default();
    outcome.set_fields(run.name, &random_cases::run(cases, run.seed)?)?;
    Ok(outcome)
}

/// The cost of a whole enqueue behind so many packets; each number is a point.
fn queue_packets(run: &Run, packets: u64) -> Result<Outcome> {
    let wire = Wire::create()?;
    let configuration = queue_configuration(RATE_MBIT, true);
    let mut daemon = Daemon::launch(&wire.sender, &configuration, &run.file(""))?;
    daemon.wait_until_queueing(&wire.sender)?;
    run.progress.tick("packets behind others");
    let what = Enqueue {
        queued: QUEUED.into(),
        packets,
        seed: run.seed,
    };
    let costs: Vec<EnqueueCost> = Role::spawn(&wire.sender, "realtime-enqueue", &what)?.finish()?;
    run.keep(&costs)?;
    let mut outcome = Outcome::default();
    tell_costs(&mut outcome, run.name, &costs);
    daemon.stop()?;
    Ok(outcome)
}

fn tell_costs(outcome: &mut Outcome, name: &str, costs: &[EnqueueCost]) {
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
        outcome.set(&point, "scan_instructions", cost.scan_ns);
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

/// Less the kernel's clock for the same packet.
fn less_clock(took_ns: &[u64], clock_ns: &[u64]) -> Vec<f64> {
    let took = took_ns.iter().zip(clock_ns);
    took.map(|(took, clock)| took.saturating_sub(*clock) as f64).collect()
}
