// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the plan of a scenario. Input: a plan, its parameters, a folder. Output: the results of every selected variant,
//! interleaved over the rounds; those that need a guest run in the guest, and several at once run in a lab of their own
//! each. Progress goes to stderr.

pub mod guests;
mod side_by_side;

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::experiment::Run;
use crate::namespace::sweep;
use crate::outcome::Results;
use crate::parameters::Parameters;
use crate::progress::Progress;
use crate::scenario::{Plan, Variant};
use crate::usage::{nearest, usage};
use crate::{giveway, interrupt};

/// `jobs`: how many of this machine's variants at once.
pub fn run(scenario: &str, plan: &Plan, parameters: &Parameters, jobs: u8, out: &Path) -> Result<Results> {
    let selected = select(plan, parameters.list("variants"))?;
    let (here, groups) = guests::split(&selected);
    let mut results = if here.is_empty() {
        Results::default()
    } else {
        check_machine(&here)?;
        sweep()?;
        match jobs {
            1 => run_here(&here, parameters, out)?,
            _ => side_by_side::run(scenario, &here, parameters, jobs.into(), out)?,
        }
    };
    for group in &groups {
        results.merge(guests::run(scenario, group, parameters, out)?);
    }
    Ok(results)
}

/// Each round of each variant; all variants of a round before the next one.
fn turns<'a>(selected: &[&'a Variant], rounds: u64) -> Vec<(u64, &'a Variant)> {
    let most = selected.iter().map(|variant| variant.rounds(rounds)).max().unwrap_or(0);
    let round = |round| {
        let has = move |variant: &&&'a Variant| round < variant.rounds(rounds);
        selected.iter().filter(has).map(move |variant| (round, *variant))
    };
    (0..most).flat_map(round).collect()
}

fn run_here(selected: &[&Variant], parameters: &Parameters, out: &Path) -> Result<Results> {
    let raw = out.join("raw");
    std::fs::create_dir_all(&raw).with_context(|| format!("cannot create {}", raw.display()))?;
    let rounds = parameters.count("repeats");
    let turns = turns(selected, rounds);
    let total_s = turns.iter().map(|(_, variant)| variant.estimated_s).sum();
    let mut progress = Progress::new(turns.len(), total_s);
    let mut results = Results::of_kernel(nix::sys::utsname::uname()?.release());
    for (turn, (round, variant)) in turns.iter().enumerate() {
        progress.begin(match &variant.access_point {
            Some(access_point) => format!("{} ({})", variant.name, access_point.medium),
            None => variant.name.clone(),
        });
        let run = Run {
            name: &variant.name,
            guest: variant.guest,
            seed: parameters.count("seed").wrapping_add(*round),
            progress: &progress,
            raw: &raw,
            is_last: turn + 1 == turns.len(),
        };
        match (variant.run)(&run) {
            Ok(outcome) => results.add(&variant.name, outcome),
            // The results of the others are not lost.
            Err(error) => {
                interrupt::check()?;
                results.fail(&variant.name, &error);
            }
        }
    }
    progress.finish();
    Ok(results)
}

/// Whether a point or variant is requested: it is one of the words, below one, or above one.
pub fn is_selected(name: &str, words: &[String]) -> bool {
    let is_below = |name: &str, above: &str| {
        name.strip_prefix(above)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    words.is_empty() || words.iter().any(|word| is_below(name, word) || is_below(word, name))
}

fn select<'a>(plan: &'a Plan, words: &[String]) -> Result<Vec<&'a Variant>> {
    let is_known = |word: &String| {
        plan.variants
            .iter()
            .any(|v| is_selected(&v.name, std::slice::from_ref(word)))
    };
    if let Some(word) = words.iter().find(|word| !is_known(word)) {
        let hint = nearest(word, plan.variants.iter().map(|variant| variant.name.as_str()));
        let all: Vec<_> = plan.variants.iter().map(|variant| variant.name.as_str()).collect();
        return Err(usage(format!(
            "unknown variant `{word}`{hint}; there are: {}",
            all.join(", ")
        )));
    }
    let selected = plan.variants.iter().filter(|variant| is_selected(&variant.name, words));
    Ok(selected.collect())
}

/// One clear line now, instead of an obscure one in the middle of a run.
fn check_machine(variants: &[&Variant]) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("the lab needs root for its network namespaces: run it through sudo");
    }
    for program in ["ip", "tc", "ethtool", "iperf3", "sysctl"] {
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
    let mut access_points = variants.iter().filter_map(|variant| variant.access_point);
    if access_points.any(|access_point| access_point.giveway.is_some()) {
        giveway::binary()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_selects_itself_ancestors_and_descendants() {
        let words = ["tcp".to_string(), "converge/start".into()];
        assert!(is_selected("tcp/2", &words));
        assert!(is_selected("tcp", &words));
        assert!(is_selected("converge", &words));
        assert!(!is_selected("tcpdump", &words));
        assert!(!is_selected("converge/stop", &words));
        assert!(is_selected("anything", &[]));
    }
}
