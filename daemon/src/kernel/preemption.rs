// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When this kernel lets a task that must run now interrupt another inside the kernel. Reads what the kernel says of
//! itself; where it does not say, how it was built and started.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::Read as _;

use flate2::read::GzDecoder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// From the least to the most.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Preemption {
    Unknown,
    /// Only where it yields by itself.
    None,
    /// At points marked for it, too.
    Voluntary,
    /// Anywhere, for real-time tasks at once and for others at the next tick.
    Lazy,
    /// Anywhere but under a spin lock.
    Full,
    /// PREEMPT_RT: nearly everywhere; interrupts and softirqs are threads.
    Rt,
}

impl Display for Preemption {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::None => "none",
            Self::Voluntary => "voluntary",
            Self::Lazy => "lazy",
            Self::Full => "full",
            Self::Rt => "rt",
        })
    }
}

impl Preemption {
    /// Of the running kernel.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok();
        let release = super::kernel_release();
        let config = || zipped("/proc/config.gz").or_else(|| read(&format!("/boot/config-{release}")));
        Self::of(
            &read("/proc/version").unwrap_or_default(),
            read("/sys/kernel/debug/sched/preempt").as_deref(),
            &read("/proc/cmdline").unwrap_or_default(),
            config,
        )
    }

    /// `switch`: the line of debugfs that has the model active in brackets.
    fn of(version: &str, switch: Option<&str>, cmdline: &str, config: impl FnOnce() -> Option<String>) -> Self {
        let built = version.split_whitespace().rfind(|word| word.starts_with("PREEMPT"));
        let installed = switch.and_then(|line| line.split(['(', ')']).nth(1));
        match (built, installed) {
            (Some("PREEMPT_RT"), _) => Self::Rt,
            (_, Some(word)) => Self::named(word),
            (Some("PREEMPT"), _) => Self::Full,
            (Some("PREEMPT_LAZY"), _) => Self::Lazy,
            (Some("PREEMPT_DYNAMIC"), _) => {
                let asked = cmdline
                    .split_whitespace()
                    .rev()
                    .find_map(|word| word.strip_prefix("preempt="));
                asked.map_or_else(
                    || config().map_or(Self::Unknown, |text| Self::built(&text)),
                    Self::named,
                )
            }
            _ => config().map_or(Self::None, |text| Self::built(&text)),
        }
    }

    fn named(word: &str) -> Self {
        match word {
            "none" => Self::None,
            "voluntary" => Self::Voluntary,
            "lazy" => Self::Lazy,
            "full" => Self::Full,
            _ => Self::Unknown,
        }
    }

    /// By its build configuration, which names the model that it starts with.
    fn built(config: &str) -> Self {
        let has = |option: &str| config.lines().any(|line| line == format!("CONFIG_{option}=y"));
        let models = [
            ("PREEMPT_RT", Self::Rt),
            ("PREEMPT_LAZY", Self::Lazy),
            ("PREEMPT_NONE", Self::None),
            ("PREEMPT_VOLUNTARY", Self::Voluntary),
            ("PREEMPT", Self::Full),
        ];
        models
            .iter()
            .find(|(option, _)| has(option))
            .map_or(Self::Unknown, |(_, model)| *model)
    }
}

/// Bounded: a build configuration has some 300 kB.
fn zipped(path: &str) -> Option<String> {
    let mut text = String::new();
    GzDecoder::new(fs::File::open(path).ok()?)
        .take(4 << 20)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_counts_before_what_was_built() {
        let of = |version, switch, cmdline, config: Option<&str>| {
            Preemption::of(version, switch, cmdline, || config.map(str::to_owned))
        };
        let dynamic = "Linux version 7.3.4 #1 SMP PREEMPT_DYNAMIC Debian";
        let lazy = Some("CONFIG_PREEMPT_LAZY=y\n");
        assert_eq!(
            of(dynamic, Some("none voluntary (full) lazy \n"), "", lazy),
            Preemption::Full
        );
        assert_eq!(of(dynamic, None, "quiet preempt=full", lazy), Preemption::Full);
        assert_eq!(of(dynamic, None, "quiet", lazy), Preemption::Lazy);
        assert_eq!(of(dynamic, None, "quiet", None), Preemption::Unknown);
        assert_eq!(
            of("#1 SMP PREEMPT_RT Debian", Some("full (lazy)"), "", None),
            Preemption::Rt
        );
        assert_eq!(of("#1 SMP Debian 4.9", None, "", None), Preemption::None);
        let none = "# CONFIG_PREEMPT is not set\nCONFIG_PREEMPT_NONE=y\nCONFIG_PREEMPT_DYNAMIC=y\n";
        assert_eq!(of(dynamic, None, "", Some(none)), Preemption::None);
    }
}
