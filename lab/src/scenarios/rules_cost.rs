// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ten thousand processes that start and end within a minute, under 200 rules: whether each that connects has the class
//! that its rule gives, how soon, and what the rules cost.

use anyhow::Result;
use serde_json::{Value, json};

use crate::applicant::{self, Starts};
use crate::experiment::Run;
use crate::giveway::Daemon;
use crate::meter::Meter;
use crate::network::{PEER_ADDRESS, raise_pair};
use crate::outcome::Outcome;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Variant};
use crate::traffic::endless::start_sink;

pub const SCENARIO: Scenario = Scenario {
    name: "rules-cost",
    about: "classes of ten thousand processes a minute under 200 rules",
    stations: None,
    seconds: 60,
    warmup_s: 0,
    parameters: &[
        Parameter::range("per_s", 167, 1, 5_000, "processes that start each second"),
        Parameter::range("one_in", 10, 1, 1_000, "of so many one connects and has a rule"),
        Parameter::range("limit_ms", 1_000, 5, 10_000, "for which such a one lives"),
        Parameter::range("rules", 200, 1, 5_000, "of which the last one counts"),
    ],
    plan: &plan,
};

const PORT: u16 = 5_530;
/// Of one processor.
const MORE_PERCENT: f64 = 1.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let per_s = parameters.count("per_s");
    let starts = Starts {
        per_s,
        count: per_s * parameters.count("seconds"),
        one_in: parameters.count("one_in"),
        limit_ms: parameters.count("limit_ms"),
    };
    let variant = |name: &str, rules| {
        let estimated_s = parameters.count("seconds") as f64 + 3.0;
        Variant::new(name, None, estimated_s, move |run| observe(starts, rules, run))
    };
    let metric = |metric, holds| Check::metric("rules", metric, holds).always();
    Ok(Plan {
        variants: vec![variant("without", 0), variant("rules", parameters.count("rules"))],
        checks: vec![
            metric("missed", Relation::Exactly(0.0)),
            metric("matched", Relation::Exactly(starts.matching() as f64)),
            metric("ended_well", Relation::Exactly(starts.count as f64)),
            // What cannot keep its pace did not show it.
            metric("starts_per_s", Relation::AtLeast(0.98 * per_s as f64)),
            Check::difference(
                "rules cpu_percent - without".to_owned(),
                "rules",
                "without",
                "cpu_percent",
                Relation::AtMost(MORE_PERCENT),
            )
            .goal(),
        ],
        plots: vec![Plot::distribution(
            "class",
            "From exec to class",
            ("time, ms", "connections that have it, %"),
            ["rules"],
        )],
        columns: "starts_per_s class_p50_ms class_p99_ms class_max_ms missed cpu_percent cpu_percent_bpf",
    })
}

fn observe(starts: Starts, rules: u64, run: &Run) -> Result<Outcome> {
    let (name, label) = (run.name, run.label());
    let (device, peer) = raise_pair()?;
    let matched = applicant::install(run.raw, &format!("{label}-matched"))?;
    let other = applicant::install(run.raw, &format!("{label}-other"))?;
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
        all.push(json!({"exe": matched.exe, "class": "background"}));
    }
    let configuration = json!({"cap": {"policy": "none"}, "queue": {"backend": "none"}, "rule": all});
    let mut daemon = Daemon::launch(&device, &configuration, &run.file(""))?;
    daemon.wait_until_up(&device)?;
    let meter = Meter::of(&daemon)?;
    run.progress.tick("starting processes");
    let before = meter.read()?;
    let task = ["reach", PEER_ADDRESS, &PORT.to_string()];
    let said = starts.run(&device, &matched, &task, &other)?;
    let spent = meter.read()? - before;
    daemon.stop()?;
    drop(sink);
    let mut outcome = Outcome::default();
    outcome.set(name, "ended_well", said.ended_well as f64);
    outcome.set(name, "matched", (said.waited_ms.len() as u64 + said.missed) as f64);
    outcome.set(name, "starts_per_s", starts.count as f64 / said.elapsed_s);
    outcome.percentiles(name, "class_*_ms", &said.waited_ms, &[50, 99, 100]);
    if rules > 0 {
        outcome.set(name, "missed", said.missed as f64);
    }
    let percent = |ns: f64| 100.0 * ns / spent.elapsed_ns;
    outcome.set(name, "cpu_percent", percent(spent.daemon_ns + spent.programs_ns));
    outcome.set(name, "cpu_percent_bpf", percent(spent.programs_ns));
    outcome.samples.insert(name.into(), said.waited_ms);
    Ok(outcome)
}
