// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program that rules are tried on (`c/applicant.c`), static, so that it starts as fast as a program can and runs
//! in any guest.
//! Input: a folder and a name. Output: the program there, as an executable of its own that a rule can name; gone when
//! dropped. Also: programs that start all the time, of which some match a rule, and what these say.

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
    // A new inode: one that still runs cannot be written to.
    if exe.exists() {
        fs::remove_file(&exe)?;
    }
    fs::write(&exe, PROGRAM).with_context(|| format!("cannot write {}", exe.display()))?;
    fs::set_permissions(&exe, fs::Permissions::from_mode(0o755))?;
    Ok(Applicant { exe })
}

impl Drop for Applicant {
    fn drop(&mut self) {
        // What cannot be removed is in nobody's way.
        let _ = fs::remove_file(&self.exe);
    }
}

/// Programs that start all the time, some of which match a rule.
#[derive(Clone, Copy)]
pub struct Starts {
    pub per_s: u64,
    pub count: u64,
    /// Of so many is one that a rule means.
    pub one_in: u64,
    /// After which such a one has lived long enough.
    pub limit_ms: u64,
}

/// What the processes said.
#[derive(Default)]
pub struct StarterReport {
    /// Of each that a rule meant: from just before it called exec until it saw that it has what the rule gives.
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

    /// Until the last of them has ended. `task`: what those that a rule means do.
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

    /// The same, and returns at once. No more start when the process is dropped.
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

/// What a starter says.
pub fn output_of(starter: &mut Process) -> Result<ChildStdout> {
    starter.pipes().stdout.take().context("the starter has no output")
}

/// Until it has said all.
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
