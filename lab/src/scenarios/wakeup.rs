// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P4: how late a timer of 30 ms wakes up while processes compute and ICMP floods in; with priority that giveway gives
//! by a rule, and without. The paper's worst: 12.0 ms as shipped, 10.2 on a preemptible kernel, 3.1 with priority.

use anyhow::Result;

use crate::guest::{Clock, Flavour, Guest, Preemption};
use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::response::{Timers, Wakeup, Who};
use crate::scenario::{Check, Experiment, Plan, Plot, Quantity, Relation, Scenario, Variant};

pub const SCENARIO: Scenario = Scenario {
    name: "wakeup",
    about: "how late timers wake up under load (P4: 12.0, 10.2, 3.1 ms at worst)",
    stations: None,
    seconds: 60,
    warmup_s: 0,
    parameters: &[
        Parameter {
            name: "repeats",
            kind: Kind::Count {
                default: 5,
                least: 1,
                most: 100,
            },
            about: "rounds; percentiles are of the wake-ups of all of them",
        },
        Parameter {
            name: "causes",
            kind: Kind::Choice { of: &["named"] },
            about: "of the worst wake-ups, in the raw results",
        },
    ],
    plan,
};

const PERIOD_US: u64 = 30_000;
/// Of all rounds together.
const WAKEUPS: f64 = 10_000.0;
/// In the guest, where a second takes long.
const THREADS: u64 = 10;
const LOADS: &[&str] = &["cpu", "icmp"];

const HOST: [(&str, Who); 3] = [
    ("host/normal", Who::Normal),
    ("host/rule", Who::Rule),
    ("host/reference", Who::Reference),
];
const LAZY: Guest = guest(Flavour::Stock, Some(Preemption::Lazy));
const FULL: Guest = guest(Flavour::Stock, Some(Preemption::Full));
const REALTIME: Guest = guest(Flavour::Realtime, None);
const GUESTS: [(&str, Guest, Who); 6] = [
    ("lazy/normal", LAZY, Who::Normal),
    ("lazy/rule", LAZY, Who::Rule),
    ("full/normal", FULL, Who::Normal),
    ("full/rule", FULL, Who::Rule),
    ("rt/normal", REALTIME, Who::Normal),
    ("rt/rule", REALTIME, Who::Rule),
];

const fn guest(kernel: Flavour, preemption: Option<Preemption>) -> Guest {
    Guest {
        kernel,
        cpus: 1,
        clock: Clock::Virtual,
        preemption,
    }
}

fn plan(parameters: &Parameters) -> Result<Plan> {
    let variant = |name: &str, guest: Option<Guest>, who| {
        let timers = Timers {
            period_us: PERIOD_US,
            threads: if guest.is_some() { THREADS } else { 1 },
            wakeups: parameters.count("seconds") * 1_000_000 / PERIOD_US,
            loads: LOADS,
            causes: parameters.choice("causes").is_some(),
        };
        Variant {
            name: name.into(),
            guest,
            experiment: Experiment::Wakeup(Wakeup { timers, who }),
        }
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
        columns: &[
            "wakeups",
            "wakeup_p50_us",
            "wakeup_p99_us",
            "wakeup_p999_us",
            "wakeup_max_us",
            "steal_ms",
        ],
    })
}

fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    let guests = GUESTS.iter().map(|(name, _, who)| (*name, *who));
    for (name, who) in HOST.into_iter().chain(guests) {
        checks.push(Check::metric(name, "wakeups", Relation::AtLeast(WAKEUPS)));
        if who != Who::Reference {
            let percent = if who == Who::Rule { 100.0 } else { 0.0 };
            let in_force = Relation::Exactly(percent);
            checks.push(Check::metric(name, "priority_at_end_percent", in_force).always());
        }
    }
    for (name, _, _) in GUESTS {
        checks.push(Check::metric(name, "kernel_as_asked", Relation::Exactly(1.0)).always());
    }
    let beside = Quantity::Ratio {
        variant: "host/rule".into(),
        over: "host/reference".into(),
        metric: "wakeup_p999_us",
    };
    let name = "host/rule over host/reference, wakeup_p999_us";
    checks.extend([
        Check::metric("host/rule", "wakeup_p999_us", Relation::AtMost(1_000.0)),
        Check::of(name.into(), beside, Relation::AtMost(1.5)).goal(),
        Check::metric("full/rule", "wakeup_max_us", Relation::AtMost(1_000.0)).goal(),
        Check::metric("rt/rule", "wakeup_max_us", Relation::AtMost(200.0)).goal(),
    ]);
    checks
}
