// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets with deadlines beside a flood, over a link of 100 Mbit/s: under each queue of the kernel, and giveway's with and without
//! admission; and over a link whose rate nobody has told.

mod unknown;

use anyhow::Result;

use crate::guest::Guest;
use crate::link::wire::{self, Marking, WireQueue};
use crate::parameters::Parameters;
use crate::scenario::{Check, Plot, Relation, Variant};
use crate::testbed::probe::deadlines::{Deadlines, RealtimeFlow, floods};
use crate::testbed::{Testbed, Topology};

const RATE_MBIT: u64 = 100;
/// What admission leaves to traffic without deadlines (giveway's `realtime_percent`), as goodput, less a twentieth: a packet of
/// 1,400 bytes is one of 1,442 on the wire.
const BEST_EFFORT_MBIT: f64 = 0.95 * 20.0 * 1_400.0 / 1_442.0;

/// P3, section 5, at a tenth of its 1 Gbit/s: every time is ten times the paper's. A deadline 10 ms, 30 packets each
/// 3 ms; B 1 ms, 10 packets each 3 ms.
const PAPER: [RealtimeFlow; 2] = [
    flow("A", 30, 30_000, 0, (100_000, 100_000)),
    flow("B", 10, 30_000, 500, (10_000, 10_000)),
];
/// B's 120 packets are 13.8 ms of work: they cannot all be in time, and those of A that still wait must let them by.
const TIGHT: [RealtimeFlow; 2] = [
    flow("A", 30, 30_000, 0, (100_000, 100_000)),
    flow("B", 120, 30_000, 500, (10_000, 10_000)),
];
/// Four senders, together 1.3 times the link: 4 x 10 packets of 115.36 us each 3,550 us.
const OVERLOAD: [RealtimeFlow; 4] = [
    flow("R", 10, 3_550, 0, (1_000, 50_000)),
    flow("S", 10, 3_550, 900, (1_000, 50_000)),
    flow("T", 10, 3_550, 1_800, (1_000, 50_000)),
    flow("U", 10, 3_550, 2_700, (1_000, 50_000)),
];

const fn flow(name: &'static str, burst: u64, every_us: u64, after_us: u64, deadline_us: (u64, u64)) -> RealtimeFlow {
    RealtimeFlow {
        name,
        burst,
        every_us,
        after_us,
        deadline_us,
    }
}

/// The link's back pressure for queues that do not pace: one packet at a time, at the link's rate.
fn paced(marking: Marking, children: &[&str]) -> WireQueue {
    let lines = std::iter::once(wire::paced(RATE_MBIT)).chain(children.iter().map(|line| line.to_string()));
    let lines = lines.collect();
    WireQueue::Kernel { lines, marking }
}

fn queues() -> Vec<(&'static str, WireQueue)> {
    let by_priority = "parent 1: handle 10: prio";
    let by_deadline = "parent 10:1 handle 20: etf clockid CLOCK_TAI delta 0 deadline_mode";
    let cake = format!("root handle 1: cake bandwidth {RATE_MBIT}mbit diffserv4");
    let giveway = |admission| WireQueue::Giveway { admission };
    vec![
        ("pfifo_fast", paced(Marking::None, &["parent 1: handle 10: pfifo_fast"])),
        ("prio", paced(Marking::Classes, &[by_priority])),
        ("fq_codel", paced(Marking::Classes, &["parent 1: handle 10: fq_codel"])),
        (
            "cake",
            WireQueue::Kernel {
                lines: vec![cake],
                marking: Marking::Classes,
            },
        ),
        ("etf", paced(Marking::ClassesAndTai, &[by_priority, by_deadline])),
        ("edf-without-admission", giveway(false)),
        ("giveway", giveway(true)),
    ]
}

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let mut variants = Vec::new();
    let loads: [(&str, &[RealtimeFlow]); 3] = [("paper", &PAPER), ("tight", &TIGHT), ("overload", &OVERLOAD)];
    for (load, flows) in loads {
        let guest = Guest {
            // Only four senders need more than one to get in each other's way.
            cpus: if flows.len() > 2 { 2 } else { 1 },
            ..Guest::VIRTUAL
        };
        let guest = parameters.choice("kernel").is_none().then_some(guest);
        for (queue_name, queue) in queues() {
            let name = format!("{queue_name}/{load}");
            let is_ours = queue_name == "giveway";
            let packets = parameters.count(if is_ours { "packets" } else { "packets_others" });
            let mut checks = vec![Check::metric(&name, "sent", Relation::AtLeast(packets as f64)).always()];
            if is_ours {
                checks.extend(promises(&name));
            }
            let deadlines = Deadlines {
                flows: flows.to_vec(),
                packets,
            };
            let testbed = Testbed {
                topology: Topology::Wire {
                    rate_mbit: RATE_MBIT,
                    queue,
                },
                loads: floods(),
                warmup_s: 0.0,
                probes: vec![Box::new(deadlines)],
            };
            variants.push(testbed.variant(name, guest).expect(checks));
        }
    }
    variants.extend(unknown::variants());
    Ok(variants)
}

pub fn bounds() -> Vec<Check> {
    inversion().into_iter().chain(unknown::bounds()).collect()
}

pub fn figures() -> Vec<Plot> {
    vec![figure("paper", "/B"), figure("tight", "/B"), figure("overload", "")]
}

fn figure(load: &str, flow: &str) -> Plot {
    Plot::distribution(
        load,
        &format!("Until the last bit had left: load {load}"),
        ("ms after it was made", "packets that have left, %"),
        queues().iter().map(|(queue, _)| format!("{queue}/{load}{flow}")),
    )
}

/// What giveway promises under every load, however short.
fn promises(name: &str) -> Vec<Check> {
    let zero = |metric| Check::metric(name, metric, Relation::Exactly(0.0)).always();
    let share = Relation::AtLeast(BEST_EFFORT_MBIT);
    vec![
        zero("late"),
        zero("refused_unnotified"),
        zero("refused_miscounted"),
        Check::metric(name, "best_effort_goodput_mbit", share).always(),
    ]
}

/// P3 could not show it: B, whose deadline is nearer, is earlier than A when both wait.
fn inversion() -> Vec<Check> {
    let [a, b] = ["giveway/tight/A", "giveway/tight/B"];
    let overtakes = Relation::AtLeast(90.0);
    let name = "giveway/tight B over A, total_mean_us";
    vec![
        Check::ratio(name.into(), b, a, "total_mean_us", Relation::Below(1.0)).always(),
        Check::metric("giveway/tight/B", "overtook_percent", overtakes).always(),
    ]
}
