// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user can ask of `giveway jitter`, and every check of it that needs no measuring.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use nix::sched::CpuSet;
use schemars::JsonSchema;
use serde::Serialize;

use crate::actuate::thread::attributes::cpus_of;
use crate::commands::args::duration;
use crate::exit::Usage;

const DEFAULT_PRIORITY: u8 = 49;
const US: Duration = Duration::from_micros(1);
const S: Duration = Duration::from_secs(1);

#[derive(Args, Clone)]
pub struct JitterArgs {
    /// Time between two wake-ups of a thread
    #[arg(long, value_name = "TIME", default_value = "30ms", value_parser = duration("ms", 50 * US..=60 * S))]
    pub period: Duration,
    /// How many threads wake up, evenly spread over the period
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// The CPUs to which threads are bound in turn, as in 0,2-3; none are bound if absent
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// How the threads are scheduled; with `other` their policy is left alone, even if another program sets it
    #[arg(long, value_enum, default_value_t = WantedPolicy::Other)]
    pub policy: WantedPolicy,
    /// Of fifo and rr [default: 49]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=99))]
    pub priority: Option<u8>,
    /// What else this machine does meanwhile
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub load: Vec<LoadKind>,
    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "60s", conflicts_with = "wakeups")]
    #[arg(value_parser = duration("s", S..=86_400 * S))]
    pub duration: Duration,
    /// How many wake-ups to measure, of all threads together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub wakeups: Option<u64>,
    /// How many of the latest wake-ups to show
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub worst: u16,
    /// Do not look for what made them late (nothing is loaded into the kernel)
    #[arg(long)]
    pub no_causes: bool,
    /// Leave the CPUs their deep idle states, which cyclictest by default does not
    #[arg(long)]
    pub deep_idle: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// Draw how many wake-ups were later than what
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Args)]
pub struct LoadArgs {
    #[arg(value_enum)]
    pub kind: LoadKind,
    /// It ends by then, whatever happens
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub seconds: u32,
}

#[derive(Clone, Copy, Debug, Eq, JsonSchema, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WantedPolicy {
    Other,
    Fifo,
    Rr,
    Deadline,
}

#[derive(Clone, Copy, Debug, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LoadKind {
    /// One process for each CPU computes
    Cpu,
    /// A network namespace floods this machine with ICMP echo requests
    Icmp,
    /// A file is written and flushed to the disk
    Disk,
    /// A network namespace sends this machine a TCP stream
    Net,
}

/// As it is typed.
impl fmt::Display for LoadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", format!("{self:?}").to_lowercase())
    }
}

/// A list of CPUs as the kernel writes them: `0,2-3`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CpuList(pub Vec<u32>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |word: &str| word.parse::<u32>();
            let range = number(first).and_then(|first| Ok((first, number(last)?)));
            let (first, last) = range.map_err(|error| format!("`{part}` is neither a CPU nor a range: {error}"))?;
            if first > last || last >= CpuSet::count() as u32 {
                return Err(format!("`{part}` is no range of CPUs below {}", CpuSet::count()));
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl JitterArgs {
    /// # Errors
    /// [`Usage`] where the request contradicts itself or this machine.
    pub fn check(&self) -> Result<()> {
        let usage = |message: String| Err(Usage(message).into());
        if self.priority.is_some() && self.priority() == 0 {
            return usage("--priority goes with --policy fifo or rr: the others have none".into());
        }
        if self.policy == WantedPolicy::Deadline && self.cpus.is_some() {
            return usage(
                "--policy deadline goes without --cpus: the kernel binds no such thread to single CPUs".into(),
            );
        }
        let allowed = cpus_of(0).context("cannot ask for this process's CPUs")?;
        match self.cpus().iter().find(|cpu| !allowed.contains(cpu)) {
            Some(cpu) => usage(format!("this process may not run on CPU {cpu}, or there is none")),
            None => Ok(()),
        }
    }

    /// Empty: no thread is bound.
    pub fn cpus(&self) -> &[u32] {
        self.cpus.as_ref().map_or(&[], |list| &list.0)
    }

    /// Of fifo and rr; else 0.
    pub fn priority(&self) -> u8 {
        match self.policy {
            WantedPolicy::Fifo | WantedPolicy::Rr => self.priority.unwrap_or(DEFAULT_PRIORITY),
            _ => 0,
        }
    }

    /// How long it takes if nothing is missed.
    pub fn expected(&self) -> Duration {
        let Some(wakeups) = self.wakeups else {
            return self.duration;
        };
        let rounds = wakeups.div_ceil(self.threads.into());
        self.period.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX))
    }

    /// Each once.
    pub fn loads(&self) -> Vec<LoadKind> {
        let mut loads = self.load.clone();
        loads.sort();
        loads.dedup();
        loads
    }

    pub fn loads_text(&self) -> String {
        let names: Vec<_> = self.loads().iter().map(ToString::to_string).collect();
        if names.is_empty() {
            "nothing".to_owned()
        } else {
            names.join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_is_read_as_the_kernel_writes_it() {
        assert_eq!("0,2-4".parse(), Ok(CpuList(vec![0, 2, 3, 4])));
        let huge = "0-1023,18446744073709551616";
        for wrong in ["", ",", "x", "1-", "-1", "3-2", "0-99999999999", "1024", huge] {
            assert!(wrong.parse::<CpuList>().is_err(), "{wrong}");
        }
    }
}
