// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many short-lived processes, some of which a rule means.
//! In: how many a second. Out: how long each that is meant waited for its priority, from just before it called exec
//! until it saw that it has it; how many never had it, by their own word and by the daemon's count; what the daemon
//! spent, its programs in the kernel included.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use super::Run;
use super::cost::meter::Meter;
use crate::applicant;
use crate::giveway::jitter::start_load;
use crate::giveway::realtime::{self, Rule, start_daemon};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::process::Process;
use crate::scenario::response::Starts;
use crate::statistics::percentile;

/// What the processes said.
#[derive(Default)]
struct Said {
    waited_ms: Vec<f64>,
    missed: u64,
    raised_wrongly: u64,
    ended_well: u64,
    elapsed_s: f64,
}

pub fn run(starts: &Starts, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let label = name.replace('/', "-");
    let place = Namespace::create("starts")?;
    let matched = applicant::install(raw, &format!("{label}-matched"))?;
    let other = applicant::install(raw, &format!("{label}-other"))?;
    let rule = Rule {
        exe: matched.exe.clone(),
        cmdline: None,
    };
    let mut daemon = start_daemon(&place, &[rule], raw, &label)?;
    let load = starts.is_busy.then(|| start_load(&place, "cpu")).transpose()?;
    let meter = Meter::of(&daemon)?;
    run.progress.tick("starting processes");
    let before = meter.read()?;
    let mut command = place.command(&other.exe)?;
    command
        .arg("start")
        .args([starts.per_s, starts.count, starts.one_in].map(|number| number.to_string()))
        .args([&matched.exe, &other.exe])
        .arg(starts.limit_ms.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let said = listen(Process::spawn(command)?)?;
    let spent = meter.read()? - before;
    drop(load);

    let counters = realtime::status(&place)?.counters;
    let meant = starts.count.div_ceil(starts.one_in);
    let mut outcome = Outcome::default();
    outcome.set(name, "started", said.ended_well as f64);
    outcome.set(name, "matched", (said.waited_ms.len() as u64 + said.missed) as f64);
    outcome.set(name, "starts_per_s", starts.count as f64 / said.elapsed_s);
    for (metric, percent) in [("p50", 50.0), ("p99", 99.0), ("max", 100.0)] {
        let metric = format!("priority_{metric}_ms");
        outcome.set(name, &metric, percentile(&said.waited_ms, percent));
    }
    outcome.set(name, "missed", said.missed as f64);
    outcome.set(name, "raised_wrongly", said.raised_wrongly as f64);
    outcome.set(name, "granted", counters.granted as f64);
    outcome.set(name, "miscounted", counters.granted.abs_diff(meant) as f64);
    let percent = |ns: f64| 100.0 * ns / spent.elapsed_ns;
    outcome.set(name, "cpu_percent", percent(spent.daemon_ns + spent.programs_ns));
    outcome.set(name, "cpu_percent_bpf", percent(spent.programs_ns));
    outcome.samples.insert(name.clone(), said.waited_ms);
    daemon.stop()?;
    Ok(outcome)
}

/// Until the last of them has ended.
fn listen(mut starter: Process) -> Result<Said> {
    let output = starter.pipes().stdout.take().context("the starter has no output")?;
    let mut said = Said::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["raised", ns] => said.waited_ms.push(ns.parse::<f64>()? / 1e6),
            ["missed"] => said.missed += 1,
            ["wrong"] => said.raised_wrongly += 1,
            ["started", well, ns] => {
                said.ended_well = well.parse()?;
                said.elapsed_s = ns.parse::<f64>()? / 1e9;
            }
            _ => bail!("a process said `{line}`"),
        }
    }
    if said.elapsed_s == 0.0 {
        bail!("the starter ended before it had started all");
    }
    Ok(said)
}
