// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs with real-time priority that would freeze the machine.
//! Input: what they do. Output: how long until they had lost their priority, how long a shell on their CPU did not
//! answer, how much priority they had in all, and whether giveway says who was to blame; the worst of all times that
//! it was tried. The programs end by themselves, whatever giveway does.

use std::fs::{File, read_to_string};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::shell::{Answers, Shell};
use crate::applicant::{self, Applicant};
use crate::giveway::answers::{self, Change, PriorityStatus, RuleStatus};
use crate::giveway::realtime::{rule, start_daemon};
use crate::interrupt::{pause_until, wait_for};
use crate::namespace::Namespace;
use crate::outcome::Metrics;
use crate::process::Process;
use crate::statistics::percentile;
use crate::traffic::realtime::monotonic_ns;

/// Before the programs start, so that there are answers of a machine at rest.
const CALM: Duration = Duration::from_millis(500);
/// After the time at which they should all have ended.
const PATIENCE_S: u64 = 10;
/// Of each period, for programs that together leave nothing: less than a rule's budget each.
const NIBBLE: &str = "9000 20000";

/// In which the program counts what it computed with priority.
const SLOT_MS: f64 = 500.0;
/// Between two looks of giveway at what was used: what is over by then was not seen yet.
const LOOK_MS: f64 = 100.0;

#[derive(Clone, Copy)]
pub enum RunawayKind {
    /// Computes without end on the CPU of the shell.
    SpinnerOne,
    /// On every CPU.
    SpinnerAll,
    /// So many processes that each start the program anew.
    ForkBomb { processes: u64 },
    /// Programs that each keep to their rule's budget and together leave nothing of the shell's CPU.
    Together { programs: u64 },
}

/// Without a rule for them the programs have no priority, and there is no daemon.
pub fn one_time(kind: RunawayKind, seconds: u64, has_rule: bool, raw: &Path, label: &str) -> Result<Metrics> {
    let place = Namespace::create("runaway")?;
    let installed = install(kind, raw, label)?;
    let programs: Vec<_> = installed.iter().map(|program| program.exe.clone()).collect();
    let rules: Vec<_> = programs.iter().map(|exe| rule(exe)).collect();
    let mut daemon = has_rule.then(|| start_daemon(&place, &rules, raw, label)).transpose()?;
    let last_cpu = available_parallelism()?.get() - 1;
    let shell = Shell::start(last_cpu, &programs)?;
    pause_until(Instant::now() + CALM)?;
    let start = |program: &PathBuf| {
        let mut command = place.command(program)?;
        command
            .args(line(kind, seconds, last_cpu)?.split(' '))
            .stdin(Stdio::null());
        command.stdout(File::create(said_by(program))?);
        Process::spawn(command)
    };
    let running: Vec<_> = programs.iter().map(start).collect::<Result<_>>()?;
    let pids: Vec<_> = running.iter().map(Process::id).collect();
    let limit = Duration::from_secs(seconds + PATIENCE_S);
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
    describe(&mut metrics, seconds, &said.concat(), &answers)?;
    if let Some(daemon) = &mut daemon {
        compare(&mut metrics, &answers::realtime(&place)?)?;
        let is_blamed = is_blamed(kind, &place, &programs, &pids)?;
        metrics.insert("not_blamed".into(), f64::from(u8::from(!is_blamed)));
        daemon.stop()?;
    }
    Ok(metrics)
}

/// One executable for each rule.
fn install(kind: RunawayKind, raw: &Path, label: &str) -> Result<Vec<Applicant>> {
    let count = match kind {
        RunawayKind::Together { programs } => programs,
        _ => 1,
    };
    let install = |number| applicant::install(raw, &format!("{label}-{number}"));
    (1..=count).map(install).collect()
}

fn said_by(program: &Path) -> PathBuf {
    program.with_extension("said")
}

fn line(kind: RunawayKind, seconds: u64, last_cpu: usize) -> Result<String> {
    Ok(match kind {
        RunawayKind::SpinnerOne => format!("spin {seconds} {last_cpu}"),
        RunawayKind::SpinnerAll => {
            let cpus: String = (0..=last_cpu).map(|cpu| format!(" {cpu}")).collect();
            format!("spin {seconds}{cpus}")
        }
        RunawayKind::ForkBomb { processes } => {
            format!("bomb {processes} {}", monotonic_ns()? + seconds * 1_000_000_000)
        }
        RunawayKind::Together { .. } => format!("nibble {NIBBLE} {seconds} {last_cpu}"),
    })
}

fn describe(metrics: &mut Metrics, seconds: u64, said: &str, answers: &Answers) -> Result<()> {
    let mut set = |metric: &str, value: f64| metrics.insert(metric.into(), value);
    set("priority_tasks_max", answers.priority_tasks_max as f64);
    for (metric, percent) in [("shell_p50_ms", 50.0), ("shell_max_ms", 100.0)] {
        let ms = percentile(&answers.ms(), percent);
        set(metric, ms.context("the shell was never asked")?);
    }
    let mut threads = Vec::new();
    let mut slots_ms: Vec<f64> = Vec::new();
    for line in said.lines() {
        let mut words = line.split(' ');
        let what = words.next();
        let numbers: Vec<f64> = words.map(str::parse).collect::<Result<_, _>>()?;
        match (what, &numbers[..]) {
            (Some("bombed"), spent) => {
                slots_ms.resize(slots_ms.len().max(spent.len()), 0.0);
                slots_ms.iter_mut().zip(spent).for_each(|(all, its)| *all += its);
            }
            (Some("spun"), &[_cpu, raised_ms, demoted_ms, _computed_ms]) => threads.push((raised_ms, demoted_ms)),
            _ => bail!("a program said `{line}`"),
        }
    }
    set("ended", said.lines().count() as f64);
    if let Some(busiest_ms) = percentile(&slots_ms, 100.0) {
        set("priority_cpu_percent", 100.0 * busiest_ms / SLOT_MS);
        let all_ms: f64 = slots_ms.iter().sum();
        set("priority_cpu_mean_percent", all_ms / (seconds as f64 * 10.0));
    }
    let never = threads.iter().filter(|(raised_ms, _)| *raised_ms < 0.0).count();
    // A thread that never lost it had it to the end.
    let until_demoted = |(_, ms): &(f64, f64)| if *ms < 0.0 { seconds as f64 * 1e3 } else { *ms };
    let demoted: Vec<_> = threads.iter().map(until_demoted).collect();
    if let Some(last_ms) = percentile(&demoted, 100.0) {
        set("never_raised", never as f64);
        set("demoted_ms", last_ms);
    }
    Ok(())
}

/// With what giveway says that it allows, and did.
fn compare(metrics: &mut Metrics, said: &PriorityStatus) -> Result<()> {
    let over = |metric: &str, most: fn(&RuleStatus) -> u32| {
        let value = metrics.get(metric)?;
        Some((value - f64::from(most(said.rules.first()?))).max(0.0))
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
fn is_blamed(kind: RunawayKind, place: &Namespace, programs: &[PathBuf], pids: &[i32]) -> Result<bool> {
    let names: Vec<_> = programs.iter().map(|program| program.to_string_lossy()).collect();
    let is_ours = |text: &str| names.iter().any(|name| text.contains(&**name));
    let has_starved_others = |reason: &str| reason.contains("could not run") && is_ours(reason);
    let is_reason = |reason: &str| match kind {
        // Whichever is noticed first.
        RunawayKind::SpinnerOne | RunawayKind::SpinnerAll => reason.contains("budget") || has_starved_others(reason),
        RunawayKind::ForkBomb { .. } => reason.contains("budget") || reason.contains("tasks"),
        RunawayKind::Together { .. } => has_starved_others(reason),
    };
    let is_blame = |change: &Change| is_ours(&change.name) && answers::is_demotion(change) && is_reason(&change.reason);
    let subjects: Vec<_> = match kind {
        // One of its processes had to wait, whichever.
        RunawayKind::ForkBomb { .. } => vec![None],
        _ => pids.iter().copied().map(Some).collect(),
    };
    for subject in subjects {
        if !answers::scheduling_changes(place, subject)?.iter().any(is_blame) {
            return Ok(false);
        }
    }
    Ok(true)
}
