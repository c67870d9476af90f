// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Variants that need another kernel or clock than this machine's. Input: the selected variants, the scenario's name
//! and parameters. Output: the results of the same binary and scenario in a guest, one boot for all variants that share
//! it. Judges nothing.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, stderr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::guest::{self, Clock, Errand, Guest};
use crate::outcome::Results;
use crate::parameters::Parameters;
use crate::scenario::Variant;

/// The results of `giveway-lab run --exactly`, in its folder.
pub const RESULTS_FILE: &str = "results.json";
/// Emulated, a second of traffic takes five to ten of the host's.
const SLOWDOWN: f64 = 20.0;
const BOOT_LIMIT_S: f64 = 300.0;

/// A guest with the variants that need it, in the order of the first of each.
pub type GuestGroup<'a> = (Guest, Vec<&'a Variant>);

/// The variants for this machine, and those for guests; in a guest all are for this machine.
pub fn split<'a>(variants: &[&'a Variant]) -> (Vec<&'a Variant>, Vec<GuestGroup<'a>>) {
    let mut here = Vec::new();
    let mut groups: Vec<GuestGroup> = Vec::new();
    for &variant in variants {
        match variant.guest.filter(|_| !guest::is_inside()) {
            None => here.push(variant),
            Some(guest) => match groups.iter_mut().find(|(of, _)| *of == guest) {
                Some((_, group)) => group.push(variant),
                None => groups.push((guest, vec![variant])),
            },
        }
    }
    (here, groups)
}

pub fn run(scenario: &str, (guest, variants): &GuestGroup, parameters: &Parameters, out: &Path) -> Result<Results> {
    let out = out.join(guest.to_string());
    let errand = Errand {
        command: &command(scenario, variants, parameters),
        programs: &programs(variants)?,
        limit: limit(guest, variants, parameters),
        out: &out,
    };
    let ended = guest.run(&errand, &mut stderr(), &mut stderr())?;
    if ended.code != 0 {
        bail!("the run in the guest failed; its reason is above");
    }
    let file = out.join(RESULTS_FILE);
    let read = File::open(&file).with_context(|| format!("the guest left no {}", file.display()))?;
    let mut results: Results =
        serde_json::from_reader(BufReader::new(read)).with_context(|| format!("cannot read {}", file.display()))?;
    for variant in variants {
        // Of the whole guest: a warning cannot be attributed to one variant.
        results.set(&variant.name, "kernel_warnings", ended.complaints.len() as f64);
    }
    Ok(results)
}

fn programs(variants: &[&Variant]) -> Result<Vec<PathBuf>> {
    let names: BTreeSet<_> = variants.iter().flat_map(|variant| variant.programs).collect();
    names.into_iter().map(|name| guest::find(name)).collect()
}

fn command(scenario: &str, variants: &[&Variant], parameters: &Parameters) -> Vec<OsString> {
    let settings = parameters.settings();
    // Already chosen here, and some words may name none of the variants there.
    let settings = settings.iter().filter(|setting| !setting.starts_with("variants="));
    let settings = settings.flat_map(|setting| ["--set", setting]);
    let names = variants.iter().flat_map(|variant| ["--exactly", &variant.name]);
    let words = ["giveway-lab", "run", scenario, "--out", "/out"];
    words.into_iter().chain(settings).chain(names).map(Into::into).collect()
}

fn limit(guest: &Guest, variants: &[&Variant], parameters: &Parameters) -> Duration {
    let round: f64 = variants.iter().map(|variant| variant.estimated_s).sum();
    let slowdown = if guest.clock == Clock::Virtual { SLOWDOWN } else { 2.0 };
    Duration::from_secs_f64(BOOT_LIMIT_S + slowdown * round * parameters.count("repeats") as f64)
}
