// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs with real-time priority that would freeze the machine.
//! In: what they do. Out: how long until they had lost their priority, how long a shell on their CPU did not answer,
//! how much priority they had in all, and whether giveway says who was to blame; the worst of all times that it was
//! tried. The programs end by themselves, whatever giveway does.

mod shell;

use std::fs::{File, read_to_string};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Run;
use crate::applicant::{self, Applicant};
use crate::giveway::realtime::{self, Change, Realtime, Rule, RuleInForce, start_daemon};
use crate::interrupt::{pause_until, wait_for};
use crate::namespace::Namespace;
use crate::outcome::{Metrics, Outcome};
use crate::process::Process;
use crate::scenario::response::{Kind, Runaway};
use crate::statistics::percentile;
use crate::traffic::realtime::monotonic_ns;
use shell::{Answers, Shell};

/// Before the programs start, so that there are answers of a machine at rest.
const CALM: Duration = Duration::from_millis(500);
/// After the time at which they should all have ended.
const PATIENCE_S: u64 = 10;
/// Of each period, for programs that together leave nothing: less than a rule's budget each.
const NIBBLE: [&str; 2] = ["9000", "20000"];

/// In which the program counts what it computed with priority.
const SLOT_MS: f64 = 500.0;
/// Between two looks of giveway at what was used: what is over by then was not seen yet.
const LOOK_MS: f64 = 100.0;

pub fn run(runaway: &Runaway, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let mut worst = Metrics::new();
    for time in 1..=runaway.times {
        run.progress.tick(&format!("{time} of {} times", runaway.times));
        let label = format!("{}-{time}", name.replace('/', "-"));
        for (metric, value) in one_time(runaway, raw, &label)? {
            let known = worst.entry(metric).or_insert(value);
            *known = known.max(value);
        }
    }
    let mut outcome = Outcome::default();
    outcome.points.insert(name.clone(), worst);
    Ok(outcome)
}

fn one_time(runaway: &Runaway, raw: &Path, label: &str) -> Result<Metrics> {
    let place = Namespace::create("runaway")?;
    let installed = install(runaway.kind, raw, label)?;
    let programs: Vec<_> = installed.iter().map(|program| program.exe.clone()).collect();
    let rule = |exe: &PathBuf| Rule {
        exe: exe.clone(),
        cmdline: None,
    };
    let rules: Vec<_> = programs.iter().map(rule).collect();
    let mut daemon = runaway
        .has_rule
        .then(|| start_daemon(&place, &rules, raw, label))
        .transpose()?;
    let last_cpu = available_parallelism()?.get() - 1;
    let shell = Shell::start(last_cpu, &programs)?;
    pause_until(Instant::now() + CALM)?;
    let start = |program: &PathBuf| {
        let mut command = place.command(program)?;
        command.args(words(runaway, last_cpu)?).stdin(Stdio::null());
        command.stdout(File::create(said_by(program))?);
        Process::spawn(command)
    };
    let running: Vec<_> = programs.iter().map(start).collect::<Result<_>>()?;
    let pids: Vec<_> = running.iter().map(Process::id).collect();
    let limit = Duration::from_secs(runaway.seconds + PATIENCE_S);
    for mut program in running {
        // Its children end before it does.
        wait_for("the program to end", limit, || program.exit())?;
    }
    let answers = shell.finish()?;
    let kept = raw.join(format!("{label}-shell.json"));
    std::fs::write(&kept, serde_json::to_string(&answers)?)?;
    let said = programs.iter().map(|program| read_to_string(said_by(program)));
    let said: Vec<_> = said.collect::<Result<_, _>>()?;
    let mut metrics = Metrics::new();
    describe(&mut metrics, runaway, &said.concat(), &answers)?;
    if let Some(daemon) = &mut daemon {
        compare(&mut metrics, &realtime::status(&place)?)?;
        let is_blamed = is_blamed(runaway.kind, &place, &programs, &pids)?;
        metrics.insert("not_blamed".into(), f64::from(u8::from(!is_blamed)));
        daemon.stop()?;
    }
    Ok(metrics)
}

/// One executable for each rule.
fn install(kind: Kind, raw: &Path, label: &str) -> Result<Vec<Applicant>> {
    let count = if let Kind::Together { programs } = kind {
        programs
    } else {
        1
    };
    (1..=count)
        .map(|number| applicant::install(raw, &format!("{label}-{number}")))
        .collect()
}

fn said_by(program: &Path) -> PathBuf {
    program.with_extension("said")
}

fn words(runaway: &Runaway, last_cpu: usize) -> Result<Vec<String>> {
    let seconds = runaway.seconds.to_string();
    Ok(match runaway.kind {
        Kind::SpinnerOne => vec!["spin".into(), seconds, last_cpu.to_string()],
        Kind::SpinnerAll => {
            let cpus = (0..=last_cpu).map(|cpu| cpu.to_string());
            ["spin".into(), seconds].into_iter().chain(cpus).collect()
        }
        Kind::ForkBomb { processes } => {
            let until_ns = monotonic_ns()? + runaway.seconds * 1_000_000_000;
            vec!["bomb".into(), processes.to_string(), until_ns.to_string()]
        }
        Kind::Together { .. } => {
            let [burst, period] = NIBBLE.map(String::from);
            vec!["nibble".into(), burst, period, seconds, last_cpu.to_string()]
        }
    })
}

fn describe(metrics: &mut Metrics, runaway: &Runaway, said: &str, answers: &Answers) -> Result<()> {
    let mut set = |metric: &str, value: f64| metrics.insert(metric.into(), value);
    set("priority_tasks_max", answers.priority_tasks_max as f64);
    for (metric, percent) in [("shell_p50_ms", 50.0), ("shell_max_ms", 100.0)] {
        set(
            metric,
            percentile(&answers.ms(), percent).context("the shell was never asked")?,
        );
    }
    let mut threads = Vec::new();
    let mut slots_ms: Vec<f64> = Vec::new();
    for line in said.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let numbers = |from| {
            words[from..]
                .iter()
                .map(|word| word.parse::<f64>())
                .collect::<Result<Vec<_>, _>>()
        };
        match words.first() {
            Some(&"bombed") => {
                let spent = numbers(1)?;
                slots_ms.resize(slots_ms.len().max(spent.len()), 0.0);
                slots_ms.iter_mut().zip(spent).for_each(|(all, its)| *all += its);
            }
            Some(&"spun") if words.len() == 5 => threads.push(numbers(2)?),
            _ => bail!("a program said `{line}`"),
        }
    }
    set("ended", said.lines().count() as f64);
    if let Some(busiest_ms) = percentile(&slots_ms, 100.0) {
        set("priority_cpu_percent", 100.0 * busiest_ms / SLOT_MS);
        let all_ms: f64 = slots_ms.iter().sum();
        set("priority_cpu_mean_percent", all_ms / (runaway.seconds as f64 * 10.0));
    }
    let never = threads.iter().filter(|thread| thread[0] < 0.0).count();
    // Who never lost it had it to the end.
    let until_demoted = |thread: &Vec<f64>| match thread[1] {
        ms if ms < 0.0 => runaway.seconds as f64 * 1e3,
        ms => ms,
    };
    let demoted: Vec<_> = threads.iter().map(until_demoted).collect();
    if let Some(last_ms) = percentile(&demoted, 100.0) {
        set("never_raised", never as f64);
        set("demoted_ms", last_ms);
    }
    Ok(())
}

/// With what giveway says that it allows, and did.
fn compare(metrics: &mut Metrics, said: &Realtime) -> Result<()> {
    let over = |metric: &str, most: fn(&RuleInForce) -> f64| {
        let value = metrics.get(metric)?;
        Some((value - most(said.rules.first()?)).max(0.0))
    };
    let tasks = over("priority_tasks_max", |rule| rule.max_tasks);
    let unseen_percent = 100.0 * available_parallelism()?.get() as f64 * LOOK_MS / SLOT_MS;
    let peak = over("priority_cpu_percent", |rule| rule.budget_percent).map(|over| (over - unseen_percent).max(0.0));
    let mean = over("priority_cpu_mean_percent", |rule| rule.budget_percent);
    for (metric, value) in [("tasks", tasks), ("cpu_percent", peak), ("cpu_mean_percent", mean)] {
        metrics.extend(value.map(|value| (format!("priority_{metric}_over"), value)));
    }
    metrics.insert("demoted".into(), said.counters.demoted as f64);
    metrics.insert("starved".into(), said.counters.starved as f64);
    Ok(())
}

/// Whether `why` has a reason for each program, which names who was to blame where that was not it alone.
fn is_blamed(kind: Kind, place: &Namespace, programs: &[PathBuf], pids: &[i32]) -> Result<bool> {
    let is_ours = |text: &str| {
        programs
            .iter()
            .any(|program| text.contains(&*program.to_string_lossy()))
    };
    let has_starved_others = |why: &str| why.contains("could not run") && is_ours(why);
    let is_reason = |why: &str| match kind {
        // Whichever is noticed first.
        Kind::SpinnerOne | Kind::SpinnerAll => why.contains("budget") || has_starved_others(why),
        Kind::ForkBomb { .. } => why.contains("budget") || why.contains("tasks at most"),
        Kind::Together { .. } => has_starved_others(why),
    };
    let is_blame = |change: &Change| is_ours(&change.exe) && change.new == "ordinary" && is_reason(&change.why);
    let subjects: Vec<_> = match kind {
        // One of its processes had to wait, whichever.
        Kind::ForkBomb { .. } => vec![None],
        _ => pids.iter().copied().map(Some).collect(),
    };
    for subject in subjects {
        if !realtime::why(place, subject)?.iter().any(is_blame) {
            return Ok(false);
        }
    }
    Ok(true)
}
