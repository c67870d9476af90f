// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one interpreter of scenarios.
//! In: a scenario, its parameters, a folder. Out: the results of every selected variant, interleaved
//! over the rounds, each in a place of its own that is gone afterwards; those that need a guest in the guest. Progress
//! goes to stderr.

pub mod admission_cost;
mod chain;
mod converge;
mod convergence;
mod cost;
mod crash;
mod deadline;
mod foreground;
mod gate;
pub mod guests;
mod lift;
mod progress;
mod qdisc_cost;
mod runaway;
mod starts;
pub mod switch_cost;
mod transfer;
mod turmoil;
mod wakeup;

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cell::Cell;
use crate::giveway;
use crate::namespace::{keep, sweep};
use crate::outcome::{Outcome, Results};
use crate::parameters::Parameters;
use crate::scenario::{AccessPoint, Experiment, OnAir, Plan, Variant};
use crate::usage::{nearest, usage};
use progress::Progress;

/// A variant's surroundings during its run.
pub struct Run<'a> {
    pub variant: &'a Variant,
    pub seed: u64,
    pub progress: &'a Progress,
}

pub fn run(scenario: &str, plan: &Plan, parameters: &Parameters, out: &Path) -> Result<Results> {
    let selected = select(plan, parameters.list("variants"))?;
    let (here, groups) = guests::split(&selected);
    let mut results = if here.is_empty() {
        Results::default()
    } else {
        run_here(&here, parameters, out)?
    };
    for group in &groups {
        results.merge(guests::run(scenario, group, parameters, out)?);
    }
    Ok(results)
}

fn run_here(selected: &[&Variant], parameters: &Parameters, out: &Path) -> Result<Results> {
    check_machine(selected)?;
    sweep()?;
    let raw = out.join("raw");
    std::fs::create_dir_all(&raw).with_context(|| format!("cannot create {}", raw.display()))?;
    let rounds = parameters.count("repeats");
    let turns = (0..rounds).flat_map(|round| selected.iter().map(move |variant| (round, *variant)));
    let turns: Vec<_> = turns.collect();
    let mut progress = Progress::new(turns.iter().map(|(_, variant)| *variant));
    let mut results = Results::of_kernel(nix::sys::utsname::uname()?.release());
    for (turn, (round, variant)) in turns.iter().enumerate() {
        progress.begin(variant);
        let seed = parameters.count("seed").wrapping_add(*round);
        let run = Run {
            variant,
            seed,
            progress: &progress,
        };
        let is_last = turn + 1 == turns.len();
        let outcome = run_variant(&run, &raw, is_last).with_context(|| format!("variant {}", variant.name))?;
        results.add(&variant.name, outcome);
    }
    progress.finish();
    Ok(results)
}

fn run_variant(run: &Run, raw: &Path, is_last: bool) -> Result<Outcome> {
    match &run.variant.experiment {
        Experiment::OnAir(access_point, what) => on_air(access_point, what, run, raw, is_last),
        Experiment::Cost(cost) => cost::run(cost, run, raw),
        Experiment::Chain(chain) => chain::run(chain, run, raw),
        Experiment::Deadline(deadline) => deadline::run(deadline, run, raw),
        Experiment::Foreground(foreground) => foreground::run(foreground, run, raw),
        Experiment::AdmissionCost(cost) => admission_cost::run(cost, run, raw),
        Experiment::QdiscCost(cost) => qdisc_cost::run(cost, run, raw),
        Experiment::Turmoil(turmoil) => turmoil::run(turmoil, run, raw),
        Experiment::Gate(gate) => gate::run(gate, run, raw),
        Experiment::SwitchCost(cost) => switch_cost::run(cost, run),
        Experiment::Wakeup(wakeup) => wakeup::run(wakeup, run, raw),
        Experiment::Starts(starts) => starts::run(starts, run, raw),
        Experiment::Runaway(runaway) => runaway::run(runaway, run, raw),
    }
}

fn on_air(access_point: &AccessPoint, what: &OnAir, run: &Run, raw: &Path, is_last: bool) -> Result<Outcome> {
    let mut cell = Cell::raise(access_point, &run.variant.name, run.seed, raw)?;
    let outcome = match what {
        OnAir::Transfer(transfer) => transfer::run(&mut cell, transfer, run),
        OnAir::Converge(converge) => converge::run(&mut cell, converge, run),
        OnAir::Crash(crash) => crash::run(&mut cell, crash, run),
        OnAir::Lift(lift) => lift::run(&mut cell, lift, run),
    };
    if keep() && (is_last || outcome.is_err()) {
        eprintln!("{}", cell.stay()?);
    } else {
        let stopped = cell.stop_daemons();
        if outcome.is_ok() {
            stopped?;
        }
    }
    outcome
}

/// Whether a point or variant is asked for: it is one of the words, below one, or above one.
pub fn is_selected(name: &str, words: &[String]) -> bool {
    let is_below = |name: &str, above: &str| {
        name.strip_prefix(above)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    words.is_empty() || words.iter().any(|word| is_below(name, word) || is_below(word, name))
}

fn select<'a>(plan: &'a Plan, words: &[String]) -> Result<Vec<&'a Variant>> {
    for word in words {
        if !plan
            .variants
            .iter()
            .any(|v| is_selected(&v.name, std::slice::from_ref(word)))
        {
            let hint = nearest(word, plan.variants.iter().map(|variant| variant.name.as_str()));
            return Err(usage(format!("unknown variant `{word}`{hint}")));
        }
    }
    Ok(plan
        .variants
        .iter()
        .filter(|variant| is_selected(&variant.name, words))
        .collect())
}

/// One clear line now, instead of an obscure one in the middle of a run.
fn check_machine(variants: &[&Variant]) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("the lab needs root for its network namespaces: run it through sudo");
    }
    for program in ["ip", "tc", "ethtool", "iperf3", "sysctl", "bpftool"] {
        let package = match program {
            "ip" | "tc" => "iproute2",
            "sysctl" => "procps",
            other => other,
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
            bail!("`{program}` is missing, which the lab needs: apt-get install {package}");
        }
    }
    let access_points = variants.iter().filter_map(|variant| variant.access_point());
    if access_points
        .into_iter()
        .any(|access_point| access_point.giveway.is_some())
    {
        giveway::binary()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_selects_itself_what_is_below_and_what_is_above() {
        let words = ["tcp".to_string(), "converge/start".into()];
        assert!(is_selected("tcp/2", &words));
        assert!(is_selected("tcp", &words));
        assert!(is_selected("converge", &words));
        assert!(!is_selected("tcpdump", &words));
        assert!(!is_selected("converge/stop", &words));
        assert!(is_selected("anything", &[]));
    }
}
