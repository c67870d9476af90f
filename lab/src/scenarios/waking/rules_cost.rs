// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ten thousand processes that start and end within a minute, under 200 rules: whether each that connects has the class
//! that its rule gives, how soon, and what the rules cost.

use anyhow::Result;
use serde_json::{Value, json};

use super::from_exec::{StartedPrograms, keeps_pace, starts};
use crate::applicant::Starts;
use crate::experiment::Run;
use crate::giveway::Daemon;
use crate::network::{PEER_ADDRESS, raise_pair};
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::scenario::{Check, Relation, Variant};
use crate::traffic::endless::start_sink;

const PORT: u16 = 5_530;
const PER_S: u64 = 167;
const LIMIT_MS: u64 = 1_000;
/// Of which the last one counts.
const RULES: u64 = 200;
/// Of one processor.
const MORE_PERCENT: f64 = 1.0;

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let starts = starts(parameters, PER_S, LIMIT_MS);
    let variant = |name: &str, rules| {
        let estimated_s = parameters.seconds("seconds") + 3.0;
        Variant::new(name, None, estimated_s, move |run| observe(starts, rules, run))
    };
    let exactly = |metric, value: u64| Check::metric("rules", metric, Relation::Exactly(value as f64)).always();
    Ok(vec![
        variant("without", 0),
        variant("rules", RULES).expect([
            exactly("missed", 0),
            exactly("matched", starts.matching()),
            exactly("ended_well", starts.count),
            keeps_pace("rules", starts).always(),
        ]),
    ])
}

pub fn bounds() -> Vec<Check> {
    let (rules, without, metric) = ("rules", "without", "cpu_percent");
    let name = format!("{rules} {metric} - {without}");
    let holds = Relation::AtMost(MORE_PERCENT);
    vec![Check::difference(name, rules, without, metric, holds).goal()]
}

fn observe(starts: Starts, rules: u64, run: &Run) -> Result<Outcome> {
    let (device, peer) = raise_pair()?;
    let programs = StartedPrograms::install(run)?;
    let sink = start_sink(&peer, &[PORT])?;
    // Of several kinds, and none means anything that runs here.
    let idle = |number: u64| match number % 4 {
        0 => json!({"exe": format!("/opt/vendor-{number}/bin/agent"), "class": "bulk"}),
        1 => json!({"cmdline": format!("*--backup-{number} *"), "class": "background"}),
        2 => json!({"unit": format!("vendor-{number}@*.service"), "class": "stream"}),
        _ => json!({"cgroup": format!("/vendor-{number}.slice/*"), "protocol": "tcp", "class": "bulk"}),
    };
    let mut all: Vec<Value> = (1..rules).map(idle).collect();
    if rules > 0 {
        all.push(json!({"exe": programs.matched.exe, "class": "background"}));
    }
    let configuration = json!({"cap": {"policy": "none"}, "queue": {"backend": "none"}, "rule": all});
    let mut daemon = Daemon::raise(&device, &configuration, &run.file(""))?;
    let task = ["reach", PEER_ADDRESS, &PORT.to_string()];
    let (said, mut outcome) = programs.start(starts, &task, (&device, &daemon), "class_*_ms", run)?;
    daemon.stop()?;
    drop(sink);
    outcome.set(run.name, "ended_well", said.ended_well as f64);
    if rules > 0 {
        outcome.set(run.name, "missed", said.missed as f64);
    }
    Ok(outcome)
}
