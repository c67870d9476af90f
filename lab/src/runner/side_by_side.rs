// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several variants at once, each in a process of its own, with the same results as one lab. Input: the selected
//! variants, how many at once. Output: the results of all rounds, and below `OUT/labs` the files of each. Variants that
//! follow each other in the plan run together. Judges nothing.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::guests::RESULTS_FILE;
use crate::interrupt::{self, wait_for};
use crate::outcome::Results;
use crate::parameters::Parameters;
use crate::process::Process;
use crate::progress::Progress;
use crate::scenario::Variant;

/// A day is the longest that a scenario may measure.
const LASTS_AT_MOST: Duration = Duration::from_secs(100_000);
/// An interrupted lab takes down what it created.
const TAKES_DOWN_WITHIN: Duration = Duration::from_secs(20);

/// A lab at work on one round of one variant.
struct Lab<'a> {
    variant: &'a str,
    process: Process,
    out: PathBuf,
}

pub fn run(scenario: &str, variants: &[&Variant], parameters: &Parameters, jobs: usize, out: &Path) -> Result<Results> {
    let rounds = parameters.count("repeats");
    let turns = super::turns(variants, rounds);
    let total_s = turns.iter().map(|(_, variant)| variant.estimated_s).sum::<f64>() / jobs.min(turns.len()) as f64;
    let mut progress = Progress::new(turns.len(), total_s);
    let mut waiting = turns.into_iter();
    let mut at_work: Vec<Lab> = Vec::new();
    let mut results = Results::default();
    loop {
        while at_work.len() < jobs
            && let Some((round, variant)) = waiting.next()
        {
            progress.begin(format!("{} (round {})", variant.name, round + 1));
            at_work.push(Lab::start(scenario, variant, parameters, round, out)?);
        }
        if at_work.is_empty() {
            break;
        }
        let done = wait_for("a variant", LASTS_AT_MOST, || {
            progress.tick(&format!("{} at work", at_work.len()));
            for (index, lab) in at_work.iter_mut().enumerate() {
                if let Some(status) = lab.process.exit()? {
                    return Ok(Some((index, status)));
                }
            }
            Ok(None)
        });
        let (index, status) = done?;
        let lab = at_work.remove(index);
        if status.success() {
            let of_lab = lab.results()?;
            for line in &of_lab.failed {
                eprintln!("giveway-lab: {line} ({})", lab.out.join("log").display());
            }
            results.merge(of_lab);
        } else {
            interrupt::check()?;
            results.fail(lab.variant, &anyhow!(lab.last_words()));
        }
    }
    progress.finish();
    Ok(results)
}

impl<'a> Lab<'a> {
    fn start(scenario: &str, variant: &'a Variant, parameters: &Parameters, round: u64, out: &Path) -> Result<Self> {
        let name = format!("{}-{}", variant.name.replace('/', "-"), round + 1);
        let out = out.join("labs").join(name);
        std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
        let seed = parameters.count("seed").wrapping_add(round);
        let settings = parameters.settings().into_iter();
        let settings = settings.filter(|setting| !setting.starts_with("variants="));
        let settings = settings.chain(["repeats=1".into(), format!("seed={seed}")]);
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["run", scenario, "--exactly", &variant.name, "--out"])
            .arg(&out)
            .args(settings.flat_map(|setting| ["--set".into(), OsString::from(setting)]))
            .env_remove("KEEP")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(out.join("log"))?);
        Ok(Self {
            variant: &variant.name,
            process: Process::spawn(command)?,
            out,
        })
    }

    fn results(&self) -> Result<Results> {
        let file = self.out.join(RESULTS_FILE);
        let read = File::open(&file).with_context(|| format!("variant {} left no {}", self.variant, file.display()))?;
        serde_json::from_reader(BufReader::new(read)).with_context(|| format!("cannot read {}", file.display()))
    }

    fn last_words(&self) -> String {
        let said = std::fs::read_to_string(self.out.join("log")).unwrap_or_default();
        let last = said.lines().last().unwrap_or("it said nothing");
        format!("{last} (all that it said is in {})", self.out.join("log").display())
    }
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        // A lab that has to be killed leaves namespaces, which the next run removes.
        let _ = self.process.stop(TAKES_DOWN_WITHIN);
    }
}
