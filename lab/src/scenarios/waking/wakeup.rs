// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How late a timer wakes up beside loads: on this machine and on three kernels in the guest, with priority by a rule and without.

mod cyclictest;
mod experiment;

use anyhow::Result;

use crate::giveway::jitter::Timers;
use crate::guest::{Flavour, Guest, Preemption};
use crate::parameters::Parameters;
use crate::scenario::{Check, Plot, Relation, Variant};
use experiment::Priority;

const PERIOD_US: u64 = 30_000;
/// Of all rounds together.
const WAKEUPS: f64 = 10_000.0;
/// In the guest, where a second takes long.
const THREADS: u64 = 10;
const LOADS: &[&str] = &["cpu", "icmp"];

const LAZY: Guest = guest(Flavour::Stock, Some(Preemption::Lazy));
const FULL: Guest = guest(Flavour::Stock, Some(Preemption::Full));
const REALTIME: Guest = guest(Flavour::Realtime, None);
const TRIALS: [(&str, Option<Guest>, Priority); 9] = [
    ("host/normal", None, Priority::Normal),
    ("host/rule", None, Priority::Rule),
    ("host/reference", None, Priority::Reference),
    ("lazy/normal", Some(LAZY), Priority::Normal),
    ("lazy/rule", Some(LAZY), Priority::Rule),
    ("full/normal", Some(FULL), Priority::Normal),
    ("full/rule", Some(FULL), Priority::Rule),
    ("rt/normal", Some(REALTIME), Priority::Normal),
    ("rt/rule", Some(REALTIME), Priority::Rule),
];

const fn guest(kernel: Flavour, preemption: Option<Preemption>) -> Guest {
    Guest {
        kernel,
        preemption,
        ..Guest::VIRTUAL
    }
}

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let variant = |(name, guest, priority): (&str, Option<Guest>, _)| {
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
    Ok(TRIALS.map(variant).into())
}

pub fn figures(names: &[String]) -> Vec<Plot> {
    let figure = |file: &str, is_host: bool| Plot::Tail {
        file: file.into(),
        title: format!(
            "Wake-ups of {} ms timers under CPU and ICMP load: {file}",
            PERIOD_US / 1_000
        ),
        points: names
            .iter()
            .filter(|name| name.starts_with("host/") == is_host)
            .cloned()
            .collect(),
    };
    vec![figure("host", true), figure("guest", false)]
}

pub fn bounds() -> Vec<Check> {
    let mut checks = Vec::new();
    for (name, _, who) in TRIALS {
        checks.push(Check::metric(name, "wakeups", Relation::AtLeast(WAKEUPS)));
        if who != Priority::Reference {
            let percent = if who == Priority::Rule { 100.0 } else { 0.0 };
            let installed = Relation::Exactly(percent);
            checks.push(Check::metric(name, "priority_at_end_percent", installed).always());
        }
    }
    for (name, ..) in TRIALS.iter().filter(|(_, guest, _)| guest.is_some()) {
        checks.push(Check::metric(name, "kernel_as_asked", Relation::Exactly(1.0)).always());
    }
    checks.extend([
        Check::metric("host/rule", "wakeup_p999_us", Relation::AtMost(1_000.0)),
        Check::over("host/rule", "host/reference", "wakeup_p999_us", Relation::AtMost(1.5)).goal(),
        Check::metric("full/rule", "wakeup_max_us", Relation::AtMost(1_000.0)).goal(),
        Check::metric("rt/rule", "wakeup_max_us", Relation::AtMost(200.0)).goal(),
    ]);
    checks
}
