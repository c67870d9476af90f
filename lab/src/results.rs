// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway-lab results`: the results that the repository keeps, below `bench/results`.
//! Input: a folder for each result with its `result.json`. Output: a README.md and a plot beside each, and an index; with
//! `add`, the folder of a run is taken in, its raw data thinned and in one archive. Measures nothing.

mod archive;
mod page;
mod stored;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

pub use stored::Origin;
use stored::Stored;

const PAGE: &str = "README.md";
const RESULT: &str = "result.json";

#[derive(Args)]
pub struct ResultsArguments {
    /// Where they are
    #[arg(long, value_name = "DIR", default_value = "bench/results", global = true)]
    results: PathBuf,
    /// Write nothing; name the files that are not as they would be written
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    command: Option<ResultsCommand>,
}

#[derive(Subcommand)]
enum ResultsCommand {
    /// Take in what `giveway-lab run --out DIR` has left, and write the pages anew
    Add {
        /// The folder of the run
        dir: PathBuf,
        /// SCENARIO or SCENARIO-SETTING [default: the scenario's name]
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
    },
}

/// Whether all is as it should be.
pub fn command(arguments: &ResultsArguments) -> Result<bool> {
    if let Some(ResultsCommand::Add { dir, name }) = &arguments.command {
        add(&arguments.results, dir, name.as_deref())?;
    }
    let written = pages(&arguments.results)?;
    let mut stale = Vec::new();
    for (path, text) in &written {
        if fs::read_to_string(path).ok() == *text {
            continue;
        }
        if arguments.check {
            stale.push(path.display().to_string());
            continue;
        }
        let done = match text {
            Some(text) => fs::write(path, text),
            None => fs::remove_file(path),
        };
        done.with_context(|| format!("cannot write {}", path.display()))?;
    }
    for path in &stale {
        eprintln!("giveway-lab: {path} is not what `giveway-lab results` writes");
    }
    Ok(stale.is_empty())
}

/// All files that are made from the results, with their texts; none: there is to be no such file.
fn pages(results: &Path) -> Result<BTreeMap<PathBuf, Option<String>>> {
    let mut files = BTreeMap::new();
    let mut all = Vec::new();
    let entries = fs::read_dir(results).with_context(|| format!("cannot read {}", results.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| results.join(name).is_dir())
        .collect();
    names.sort();
    for name in names {
        let folder = results.join(&name);
        let stored = Stored::read(&folder.join(RESULT))?;
        let page = page::Page::new(&name, &stored)?;
        let plot = page.plot()?;
        files.insert(folder.join(PAGE), Some(page.text(plot.is_some())));
        files.insert(folder.join(page::PLOT), plot);
        all.push(page.row());
    }
    files.insert(results.join(PAGE), Some(page::index(&all)));
    Ok(files)
}

fn add(results: &Path, run: &Path, name: Option<&str>) -> Result<()> {
    let file = run.join(RESULT);
    let mut stored = Stored::read(&file)?;
    let name = name.unwrap_or(&stored.scenario).to_owned();
    if !name.starts_with(&stored.scenario) {
        bail!(
            "{name}: the name of a result begins with its scenario's, {}",
            stored.scenario
        );
    }
    let folder = results.join(&name);
    // What the setting is about was said by somebody who knew.
    if let Ok(before) = Stored::read(&folder.join(RESULT)) {
        stored.origin.about = before.origin.about;
    }
    fs::create_dir_all(&folder)?;
    stored.origin.raw = archive::pack(run, &folder)?;
    fs::write(folder.join(RESULT), format!("{}\n", serde_json::to_string(&stored)?))?;
    Ok(())
}
