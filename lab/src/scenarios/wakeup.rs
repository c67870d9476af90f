// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P4: how late a timer of 30 ms wakes up while processes compute and ICMP floods in; with priority that giveway gives
//! by a rule, and without. The paper's worst: 12.0 ms as shipped, 10.2 on a preemptible kernel, 3.1 with priority.

mod cyclictest;
mod experiment;

use anyhow::Result;

use crate::giveway::jitter::Timers;
use crate::guest::{Flavour, Guest, Preemption};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Variant};
use experiment::Priority;

pub const SCENARIO: Scenario = Scenario {
    name: "wakeup",
    about: "how late timers wake up under load (P4: 12.0, 10.2, 3.1 ms at worst)",
    stations: None,
    seconds: 60,
    warmup_s: 0,
    parameters: &[
        Parameter::range(
            "repeats",
            5,
            1,
            100,
            "rounds; percentiles are of the wake-ups of all of them",
        ),
        Parameter::choice("causes", &["named"], "of the worst wake-ups, in the raw results"),
    ],
    plan: &plan,
};

const PERIOD_US: u64 = 30_000;
/// Of all rounds together.
const WAKEUPS: f64 = 10_000.0;
/// In the guest, where a second takes long.
const THREADS: u64 = 10;
const LOADS: &[&str] = &["cpu", "icmp"];

const HOST: [(&str, Priority); 3] = [
    ("host/normal", Priority::Normal),
    ("host/rule", Priority::Rule),
    ("host/reference", Priority::Reference),
];
const LAZY: Guest = guest(Flavour::Stock, Some(Preemption::Lazy));
const FULL: Guest = guest(Flavour::Stock, Some(Preemption::Full));
const REALTIME: Guest = guest(Flavour::Realtime, None);
const GUESTS: [(&str, Guest, Priority); 6] = [
    ("lazy/normal", LAZY, Priority::Normal),
    ("lazy/rule", LAZY, Priority::Rule),
    ("full/normal", FULL, Priority::Normal),
    ("full/rule", FULL, Priority::Rule),
    ("rt/normal", REALTIME, Priority::Normal),
    ("rt/rule", REALTIME, Priority::Rule),
];

const fn guest(kernel: Flavour, preemption: Option<Preemption>) -> Guest {
    Guest {
        kernel,
        preemption,
        ..Guest::VIRTUAL
    }
}

fn plan(parameters: &Parameters) -> Result<Plan> {
    let variant = |name: &str, guest: Option<Guest>, priority| {
        let timers = Timers {
            period_us: PERIOD_US,
            threads: if guest.is_some() { THREADS } else { 1 },
            wakeups: parameters.count("seconds") * 1_000_000 / PERIOD_US,
            loads: LOADS,
            causes: parameters.choice("causes").is_some(),
            fifo: None,
        };
        let estimated_s = (timers.wakeups.div_ceil(timers.threads) * PERIOD_US) as f64 / 1e6 + 3.0;
        Variant::new(name, guest, estimated_s, move |run| {
            experiment::run(run, &timers, priority)
        })
    };
    let here = HOST.iter().map(|(name, who)| variant(name, None, *who));
    let there = GUESTS
        .iter()
        .map(|(name, guest, who)| variant(name, Some(*guest), *who));
    let variants: Vec<_> = here.chain(there).collect();
    let names = || variants.iter().map(|variant| variant.name.clone());
    let figure = |file: &str, of: &dyn Fn(&String) -> bool| Plot::Tail {
        file: file.into(),
        title: format!(
            "Wake-ups of {} ms timers under CPU and ICMP load: {file}",
            PERIOD_US / 1_000
        ),
        points: names().filter(of).collect(),
    };
    let is_host = |name: &String| name.starts_with("host/");
    let plots = vec![figure("host", &is_host), figure("guest", &|name| !is_host(name))];
    Ok(Plan {
        checks: checks(),
        plots,
        variants,
        columns: "wakeups wakeup_p50_us wakeup_p99_us wakeup_p999_us wakeup_max_us steal_ms",
    })
}

fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    let guests = GUESTS.iter().map(|(name, _, who)| (*name, *who));
    for (name, who) in HOST.into_iter().chain(guests) {
        checks.push(Check::metric(name, "wakeups", Relation::AtLeast(WAKEUPS)));
        if who != Priority::Reference {
            let percent = if who == Priority::Rule { 100.0 } else { 0.0 };
            let in_force = Relation::Exactly(percent);
            checks.push(Check::metric(name, "priority_at_end_percent", in_force).always());
        }
    }
    for (name, _, _) in GUESTS {
        checks.push(Check::metric(name, "kernel_as_asked", Relation::Exactly(1.0)).always());
    }
    let name = "host/rule over host/reference, wakeup_p999_us";
    let (rule, reference, at_most) = ("host/rule", "host/reference", Relation::AtMost(1.5));
    let beside = Check::ratio(name.into(), rule, reference, "wakeup_p999_us", at_most);
    checks.extend([
        Check::metric("host/rule", "wakeup_p999_us", Relation::AtMost(1_000.0)),
        beside.goal(),
        Check::metric("full/rule", "wakeup_max_us", Relation::AtMost(1_000.0)).goal(),
        Check::metric("rt/rule", "wakeup_max_us", Relation::AtMost(200.0)).goal(),
    ]);
    checks
}
