// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A result as it is kept: what `giveway-lab run --json` prints, and where it is from.
//! Input: a file, or this machine. Output: its fields. Judges nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::check::Verdict;
use crate::outcome::{Metrics, Notes, Spread};

#[derive(Deserialize, Serialize)]
pub struct Stored {
    pub scenario: String,
    pub params: Map<String, Value>,
    pub kernel: String,
    pub variants: BTreeMap<String, Metrics>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spread: Spread,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub said: Notes,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
    pub checks: Vec<Verdict>,
    pub origin: Origin,
}

/// When, of what and where it was measured.
#[derive(Default, Deserialize, Serialize)]
pub struct Origin {
    pub date: String,
    /// The code that was measured.
    pub commit: String,
    pub machine: String,
    /// What sets it apart from the scenario as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Where no scenario of the lab has made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What a reader has to know of these numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// How raw data was thinned; none: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
}

impl Stored {
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no result of this lab", file.display()))
    }
}

impl Origin {
    /// Now, of the work tree that the lab is run in, on this machine.
    pub fn of_this_run() -> Self {
        let commit = Command::new("git")
            .args(["describe", "--always", "--dirty", "--exclude=*"])
            .output();
        let commit = commit.ok().filter(|output| output.status.success());
        let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            date: date(since.as_secs() / 86_400),
            commit: commit.unwrap_or_else(|| "unknown".into()),
            machine: machine(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            ..Self::default()
        }
    }
}

fn machine(cpuinfo: &str) -> String {
    let values = |key: &str| -> Vec<&str> {
        let value = |line: &'_ str| -> Option<usize> { line.starts_with(key).then(|| line.find(':'))? };
        cpuinfo
            .lines()
            .filter_map(|line| Some(line[value(line)? + 1..].trim()))
            .collect()
    };
    let processors = values("processor").len();
    let model = values("model name")
        .first()
        .map_or(String::new(), |model| format!(" ({model})"));
    let is_virtual = values("flags")
        .iter()
        .any(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    let kind = if is_virtual { "a virtual machine" } else { "a machine" };
    format!("{kind} with {processors} processors{model}")
}

/// Of so many days since 1970, by the civil calendar.
fn date(days: u64) -> String {
    // Years begin in March, so that the day that may be missing is the last one; an era has 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{}-{month:02}-{day:02}", era * 400 + year + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let dates = [
            (0, "1970-01-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_788, "2026-12-01"),
        ];
        for (days, expected) in dates {
            assert_eq!(date(days), expected);
        }
    }

    #[test]
    fn a_machine_is_described_by_what_its_kernel_says() {
        let cpuinfo =
            "processor\t: 0\nmodel name\t: X 1\nflags\t\t: fpu hypervisor\nprocessor\t: 1\nmodel name\t: X 1\n";
        assert_eq!(machine(cpuinfo), "a virtual machine with 2 processors (X 1)");
    }
}
