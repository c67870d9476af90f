// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one interpreter of scenarios.
//! In: a scenario, its parameters, a folder. Out: the results of every selected variant, interleaved
//! over the rounds, each in a cell of its own that is gone afterwards. Progress goes to stderr.

mod converge;
mod convergence;
mod cost;
mod crash;
mod lift;
mod progress;
mod transfer;

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cell::Cell;
use crate::giveway;
use crate::namespace::{keep, sweep};
use crate::outcome::{Outcome, Results};
use crate::parameters::Parameters;
use crate::scenario::{Experiment, Plan, Variant};
use crate::usage::{nearest, usage};
use progress::Progress;

/// A variant's surroundings during its run.
pub struct Run<'a> {
    pub variant: &'a Variant,
    pub seed: u64,
    pub progress: &'a Progress,
}

pub fn run(plan: &Plan, parameters: &Parameters, out: &Path) -> Result<Results> {
    let selected = select(plan, parameters.list("variants"))?;
    check_machine(&selected)?;
    sweep()?;
    let raw = out.join("raw");
    std::fs::create_dir_all(&raw).with_context(|| format!("cannot create {}", raw.display()))?;
    let rounds = parameters.count("repeats");
    let turns = (0..rounds).flat_map(|round| selected.iter().map(move |variant| (round, *variant)));
    let turns: Vec<_> = turns.collect();
    let mut progress = Progress::new(turns.iter().map(|(_, variant)| *variant));
    let mut results = Results::default();
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
        Experiment::Transfer(transfer) => on_air(run, raw, is_last, |cell| transfer::run(cell, transfer, run)),
        Experiment::Converge(converge) => on_air(run, raw, is_last, |cell| converge::run(cell, converge, run)),
        Experiment::Crash(crash) => on_air(run, raw, is_last, |cell| crash::run(cell, crash, run)),
        Experiment::Lift(lift) => on_air(run, raw, is_last, |cell| lift::run(cell, lift, run)),
        Experiment::Cost(cost) => cost::run(cost, run, raw),
    }
}

fn on_air(
    run: &Run,
    raw: &Path,
    is_last: bool,
    experiment: impl FnOnce(&mut Cell) -> Result<Outcome>,
) -> Result<Outcome> {
    let mut cell = Cell::raise(run.variant, run.seed, raw)?;
    let outcome = experiment(&mut cell);
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
    if variants.iter().any(|variant| variant.giveway.is_some()) {
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
