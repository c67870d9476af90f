// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real-time rules of the program under test, and what it says of them.
//! In: executables that are to have priority. Out: a daemon with a rule for each; its counters and reasons, leniently
//! read. Judges nothing.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;

use super::{Daemon, answer, write};
use crate::namespace::Namespace;

/// Below the kernel's interrupt threads.
pub const PRIORITY: u32 = 40;

/// `[[realtime]]`, with giveway's own limits.
pub struct Rule {
    pub exe: PathBuf,
    pub cmdline: Option<String>,
}

/// What `giveway status --json` says of real time.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Realtime {
    pub rules: Vec<RuleInForce>,
    pub counters: Counters,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RuleInForce {
    pub budget_percent: f64,
    pub max_tasks: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Counters {
    pub granted: u64,
    pub demoted: u64,
    pub starved: u64,
}

/// What was changed on a process, and why.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Change {
    pub exe: String,
    pub new: String,
    pub why: String,
}

#[derive(Deserialize)]
struct Status {
    realtime: Option<Realtime>,
}

#[derive(Deserialize)]
struct Why {
    realtime: Vec<Change>,
}

/// Gives back a daemon in a place without any interface, once it answers.
pub fn start_daemon(place: &Namespace, rules: &[Rule], raw: &Path, label: &str) -> Result<Daemon> {
    let configuration = raw.join(format!("{label}.toml"));
    let rule = |rule: &Rule| {
        let mut rule_json = json!({"exe": rule.exe, "policy": "fifo", "priority": PRIORITY});
        if let Some(pattern) = &rule.cmdline {
            rule_json["cmdline"] = json!(pattern);
        }
        rule_json
    };
    let rules: Vec<_> = rules.iter().map(rule).collect();
    write(&configuration, &json!({"cap": {"policy": "none"}, "realtime": rules}))?;
    let mut daemon = Daemon::start_without_interface(place, &configuration, raw.join(format!("{label}.log")))?;
    daemon.wait_until_up(place)?;
    Ok(daemon)
}

pub fn status(place: &Namespace) -> Result<Realtime> {
    let said = answer(place, &["status", "--json"])?;
    let status: Status =
        serde_json::from_slice(&said).context("the answer of `giveway status --json` is not readable")?;
    status.realtime.context("giveway says nothing of real time")
}

/// What `giveway why` says of this process, or of all.
pub fn why(place: &Namespace, pid: Option<i32>) -> Result<Vec<Change>> {
    let subject = pid.map(|pid| pid.to_string());
    let words: Vec<&str> = ["why", "--json"].into_iter().chain(subject.as_deref()).collect();
    let why: Why = serde_json::from_slice(&answer(place, &words)?)
        .context("the answer of `giveway why --json` is not readable")?;
    Ok(why.realtime)
}
