// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The test program for rules (`c/applicant.c`), static, so that it starts as fast as a program can and runs in any
//! guest. Input: a folder and a name. Output: the program there, as an executable of its own that a rule can name;
//! removed when dropped. Also: programs that start continually, some of which match a rule, and their reports.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Stdio};

use anyhow::{Context, Result, bail};

use crate::namespace::Namespace;
use crate::process::Process;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/applicant"));

pub struct Applicant {
    /// Its whole path.
    pub exe: PathBuf,
}

pub fn install(folder: &Path, name: &str) -> Result<Applicant> {
    let exe = folder.canonicalize()?.join(name);
    // A new inode: a running executable cannot be written to.
    if exe.exists() {
        fs::remove_file(&exe)?;
    }
    fs::write(&exe, PROGRAM).with_context(|| format!("cannot write {}", exe.display()))?;
    fs::set_permissions(&exe, fs::Permissions::from_mode(0o755))?;
    Ok(Applicant { exe })
}

impl Drop for Applicant {
    fn drop(&mut self) {
        // A file that cannot be removed harms nothing.
        let _ = fs::remove_file(&self.exe);
    }
}

/// Programs that start continually, some of which match a rule.
#[derive(Clone, Copy)]
pub struct Starts {
    pub per_s: u64,
    pub count: u64,
    /// One of so many matches a rule.
    pub one_in: u64,
    /// How long a matching one lives.
    pub limit_ms: u64,
}

/// The processes' reports.
#[derive(Default)]
pub struct StarterReport {
    /// Of each matching one: from just before exec until it has what the rule gives.
    pub waited_ms: Vec<f64>,
    pub missed: u64,
    pub raised_wrongly: u64,
    pub ended_well: u64,
    pub elapsed_s: f64,
}

impl Starts {
    pub fn matching(&self) -> u64 {
        self.count.div_ceil(self.one_in)
    }

    /// Until the last one has ended. `task`: what the matching ones do.
    pub fn run(
        &self,
        place: &Namespace,
        matched: &Applicant,
        task: &[&str],
        other: &Applicant,
    ) -> Result<StarterReport> {
        let mut starter = self.begin(place, matched, task, other)?;
        listen(output_of(&mut starter)?)
    }

    /// Returns at once. Dropping the process stops further starts.
    pub fn begin(&self, place: &Namespace, matched: &Applicant, task: &[&str], other: &Applicant) -> Result<Process> {
        let mut command = place.command(&other.exe)?;
        command
            .arg("start")
            .args([self.per_s, self.count, self.one_in, self.limit_ms].map(|number| number.to_string()))
            .args([&other.exe, &matched.exe])
            .args(task);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        Process::spawn(command)
    }
}

/// The output of a starter.
pub fn output_of(starter: &mut Process) -> Result<ChildStdout> {
    starter.pipes().stdout.take().context("the starter has no output")
}

/// Until its output ends.
pub fn listen(output: ChildStdout) -> Result<StarterReport> {
    let mut said = StarterReport::default();
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
