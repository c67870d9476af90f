// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration: text in, a checked [`Config`] or one clear [`ConfigError`] out. Never reads a file.
//!
//! Each key stands here once, with its documentation, type and default; the commented default file that
//! `giveway config` prints is made from these same lines. Units are part of the key. An empty text is a
//! valid configuration.

use std::fmt::Write as _;

use serde::Deserialize;
use thiserror::Error;

/// Why a configuration was refused.
#[derive(Debug, Error, PartialEq)]
pub enum ConfigError {
    #[error("not TOML: {0}")]
    Syntax(String),
    #[error("unknown {what} `{name}`{}", hint(.nearest))]
    Unknown {
        what: &'static str,
        name: String,
        nearest: Option<String>,
    },
    #[error("`{key}`: {problem}")]
    Value { key: String, problem: String },
}

fn hint(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!("; did you mean `{name}`? (`giveway config` lists every key, its unit and default)"),
        None => "; `giveway config` lists every key, its unit and default".to_owned(),
    }
}

/// One documented key of a section.
struct Key {
    name: &'static str,
    doc: &'static [&'static str],
    /// The default as TOML; where there is none, an example.
    value: &'static str,
}

/// What the default file says of a section.
struct Section {
    name: &'static str,
    about: &'static [&'static str],
    keys: &'static [Key],
}

/// Declares a section once: its struct, its defaults, and the documentation of its keys.
macro_rules! section {
    ($(#[doc = $about:literal])* $name:ident $section:ident $written:literal {
        $($(#[doc = $doc:literal])* $key:ident: $type:ty = $default:expr, $text:literal;)*
    }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Deserialize, PartialEq)]
        #[serde(default)]
        pub struct $name { $($(#[doc = $doc])* pub $key: $type,)* }

        impl Default for $name {
            fn default() -> Self { Self { $($key: $default,)* } }
        }

        const $section: Section = Section {
            name: $written,
            about: &[$($about),*],
            keys: &[$(Key { name: stringify!($key), doc: &[$($doc),*], value: $text },)*],
        };
    };
}

/// How caps are chosen.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum CapPolicyName {
    /// `fixed` as soon as `capacity_mbit` or `fixed_segments` is given, else `none`.
    #[default]
    Auto,
    Fixed,
    None,
}

section! {
    /// Which sockets are looked at, and how often.
    Monitor MONITOR "monitor" {
        /// Passes a second over the sockets that were active since the last one (1 to 100).
        passes_per_second: u32 = 10, "10";
        /// Seconds between two walks over all sockets (1 to 3600).
        full_walk_s: u32 = 10, "10";
    }
}

section! {
    /// The cap on cwnd. Without capacity_mbit (or fixed_segments) nothing is capped.
    Cap CAP "cap" {
        /// "auto", "fixed" (one capacity, shared equally by the devices that send) or "none" (watch only).
        /// "auto" is "fixed" where capacity_mbit or fixed_segments is given, else "none".
        policy: CapPolicyName = CapPolicyName::Auto, "\"auto\"";
        /// What the access point really carries, Mbit/s of TCP payload. No default: it depends on the place.
        capacity_mbit: Option<f64> = None, "20.0";
        /// Bytes of capacity x RTT left unused. At most 20% of capacity x RTT is taken, whatever is set here.
        margin_bytes: u64 = 0, "0";
        /// Bytes of a segment on the link, headers included.
        segment_bytes: u32 = 1500, "1500";
        /// One RTT for every connection, ms. No default: each connection's own minimum RTT counts.
        rtt_ms: Option<u32> = None, "256";
        /// One cap for every sender, segments, in place of the formula: for experiments.
        fixed_segments: Option<u32> = None, "30";
    }
}

section! {
    /// The other devices on this access point. Without key_file this device works alone.
    Group GROUP "group" {
        /// The group's key (`giveway key new FILE`). The file must be readable by its owner only.
        key_file: Option<String> = None, "\"/etc/giveway/group.key\"";
        /// UDP port of the reports.
        port: u16 = 48048, "48048";
        /// Milliseconds between two reports (100 to 10000); longer when many devices share the air.
        report_interval_ms: u32 = 500, "500";
        /// All devices' reports together use at most this share of the air time, percent.
        airtime_percent: f64 = 1.0, "1.0";
        /// The rate at which the access point repeats broadcasts, Mbit/s.
        basic_rate_mbit: f64 = 6.0, "6.0";
    }
}

section! {
    /// Who may ask the daemon.
    Control CONTROL "control" {
        /// Members of this Unix group may read status and records; only root changes anything.
        group: String = "giveway".to_owned(), "\"giveway\"";
    }
}

/// Everything that a user can set.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Config {
    /// The managed interface; the default route's where absent. `--interface` wins over it.
    pub interface: Option<String>,
    pub monitor: Monitor,
    pub cap: Cap,
    pub group: Group,
    pub control: Control,
}

const TOP_KEYS: &[Key] = &[Key {
    name: "interface",
    doc: &[" The managed interface. No default: the one of the default route. `--interface` wins over it."],
    value: "\"wlan0\"",
}];

const SECTIONS: &[Section] = &[MONITOR, CAP, GROUP, CONTROL];

impl Config {
    /// Reads a configuration. The whole text is checked; the first problem is reported.
    ///
    /// # Errors
    /// [`ConfigError`] for text that is not TOML, an unknown section or key, a value of the wrong type or
    /// out of range.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let table: toml::Table = toml::from_str(text).map_err(|e| ConfigError::Syntax(first_line(&e)))?;
        check_names(&table)?;
        let config: Self = toml::from_str(text).map_err(|e| ConfigError::Value {
            key: offending_key(text, &e).unwrap_or_else(|| "configuration".to_owned()),
            problem: in_plain_words(e.message()),
        })?;
        config.check_ranges()?;
        Ok(config)
    }

    /// The commented default file: every key with its documentation, all commented out.
    pub fn default_file() -> String {
        let mut text = String::from("# giveway: every key with its default. An empty file behaves the same.\n");
        render_keys(&mut text, TOP_KEYS);
        for section in SECTIONS {
            text.push('\n');
            render_doc(&mut text, section.about);
            let _ = writeln!(text, "[{}]", section.name);
            render_keys(&mut text, section.keys);
        }
        text
    }

    fn check_ranges(&self) -> Result<(), ConfigError> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let cap = &self.cap;
        let checks = [
            (
                "monitor.passes_per_second",
                (1..=100).contains(&self.monitor.passes_per_second),
                "from 1 to 100",
            ),
            (
                "monitor.full_walk_s",
                (1..=3600).contains(&self.monitor.full_walk_s),
                "from 1 to 3600 seconds",
            ),
            (
                "cap.capacity_mbit",
                cap.capacity_mbit.is_none_or(|c| positive(c) && c <= 1e6),
                "above 0, at most 1000000 Mbit/s",
            ),
            (
                "cap.segment_bytes",
                (64..=65_535).contains(&cap.segment_bytes),
                "from 64 to 65535 bytes",
            ),
            (
                "cap.rtt_ms",
                cap.rtt_ms.is_none_or(|r| (1..=60_000).contains(&r)),
                "from 1 to 60000 ms",
            ),
            (
                "cap.fixed_segments",
                cap.fixed_segments.is_none_or(|s| (4..=1_000_000).contains(&s)),
                "from 4 to 1000000 segments",
            ),
            ("group.port", self.group.port != 0, "from 1 to 65535"),
            (
                "group.report_interval_ms",
                (100..=10_000).contains(&self.group.report_interval_ms),
                "from 100 to 10000 ms",
            ),
            (
                "group.airtime_percent",
                positive(self.group.airtime_percent) && self.group.airtime_percent <= 10.0,
                "above 0, at most 10 percent",
            ),
            (
                "group.basic_rate_mbit",
                positive(self.group.basic_rate_mbit) && self.group.basic_rate_mbit <= 1000.0,
                "above 0, at most 1000 Mbit/s",
            ),
        ];
        for (key, holds, range) in checks {
            if !holds {
                return Err(ConfigError::Value {
                    key: key.to_owned(),
                    problem: format!("must be {range}"),
                });
            }
        }
        if cap.policy == CapPolicyName::Fixed && cap.capacity_mbit.is_none() && cap.fixed_segments.is_none() {
            return Err(ConfigError::Value {
                key: "cap.policy".to_owned(),
                problem: "\"fixed\" needs cap.capacity_mbit, what the access point really carries".to_owned(),
            });
        }
        Ok(())
    }
}

fn render_keys(text: &mut String, keys: &[Key]) {
    for key in keys {
        render_doc(text, key.doc);
        let _ = writeln!(text, "#{} = {}", key.name, key.value);
    }
}

fn render_doc(text: &mut String, lines: &[&str]) {
    for line in lines {
        let _ = writeln!(text, "#{line}");
    }
}

fn check_names(table: &toml::Table) -> Result<(), ConfigError> {
    for (name, value) in table {
        if let Some(section) = SECTIONS.iter().find(|section| section.name == name) {
            let Some(table) = value.as_table() else {
                return Err(ConfigError::Value {
                    key: name.clone(),
                    problem: format!("is a section: write [{name}]"),
                });
            };
            for key in table.keys() {
                if !section.keys.iter().any(|k| k.name == key) {
                    let names = section.keys.iter().map(|k| k.name);
                    return Err(unknown("key", &format!("{name}.{key}"), key, names));
                }
            }
        } else if !TOP_KEYS.iter().any(|k| k.name == name) {
            let what = if value.is_table() { "section" } else { "key" };
            let names = SECTIONS
                .iter()
                .map(|section| section.name)
                .chain(TOP_KEYS.iter().map(|k| k.name));
            return Err(unknown(what, name, name, names));
        }
    }
    Ok(())
}

fn unknown<'a>(what: &'static str, shown: &str, typed: &str, known: impl Iterator<Item = &'a str>) -> ConfigError {
    // Half of the letters may differ: `capacity_kbit` finds `capacity_mbit`, `colour` finds nothing.
    let nearest = known
        .map(|name| (strsim::damerau_levenshtein(typed, name), name))
        .min()
        .filter(|(distance, name)| *distance <= name.len().max(typed.len()) / 2)
        .map(|(_, name)| name.to_owned());
    ConfigError::Unknown {
        what,
        name: shown.to_owned(),
        nearest,
    }
}

fn first_line(error: &toml::de::Error) -> String {
    error
        .to_string()
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Without the names of Rust's types.
fn in_plain_words(problem: &str) -> String {
    const UNIT: &str = "the unit is in the key's name";
    match problem.rsplit_once("expected ") {
        Some((what, "f64")) => format!("{what}expected a number; {UNIT}"),
        Some((what, "u16" | "u32" | "u64")) => format!("{what}expected a whole number; {UNIT}"),
        _ => problem.to_owned(),
    }
}

/// The key on the line that the error points at, with its section.
fn offending_key(text: &str, error: &toml::de::Error) -> Option<String> {
    let before = text.get(..error.span()?.end)?;
    let line = before.lines().last()?;
    let key = line.split('=').next()?.trim();
    let section = before
        .lines()
        .rev()
        .find_map(|l| l.trim().strip_prefix('[')?.strip_suffix(']').map(str::to_owned));
    Some(match section {
        Some(section) => format!("{section}.{key}"),
        None => key.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default_and_so_is_the_default_file() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        assert_eq!(Config::parse(&Config::default_file()).unwrap(), Config::default());
    }

    #[test]
    fn every_default_in_the_default_file_is_the_one_in_force() {
        // Keys without a default show an example; uncommenting any line must at least be valid.
        let uncommented: String = Config::default_file()
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let mut config = Config::parse(&uncommented).unwrap();
        assert_eq!(config.interface.take().as_deref(), Some("wlan0"));
        assert_eq!(config.cap.capacity_mbit.take(), Some(20.0));
        assert_eq!(config.cap.rtt_ms.take(), Some(256));
        assert_eq!(config.cap.fixed_segments.take(), Some(30));
        assert_eq!(config.group.key_file.take().as_deref(), Some("/etc/giveway/group.key"));
        assert_eq!(config, Config::default());
    }

    #[test]
    fn a_wrong_unit_is_refused_with_the_right_key() {
        let error = Config::parse("[cap]\ncapacity_kbit = 20000").unwrap_err().to_string();
        assert!(
            error.contains("unknown key `cap.capacity_kbit`; did you mean `capacity_mbit`?"),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_section_is_refused_by_name() {
        let error = Config::parse("[monitr]\n").unwrap_err().to_string();
        assert!(
            error.contains("unknown section `monitr`; did you mean `monitor`?"),
            "{error}"
        );
    }

    #[test]
    fn a_value_with_its_unit_in_it_names_the_key() {
        let error = Config::parse("[cap]\ncapacity_mbit = \"20 Mbit/s\"")
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "`cap.capacity_mbit`: invalid type: string \"20 Mbit/s\", expected a number; the unit is in the key's name"
        );
    }

    #[test]
    fn a_value_out_of_range_names_the_range() {
        let error = Config::parse("[monitor]\npasses_per_second = 0")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "`monitor.passes_per_second`: must be from 1 to 100");
    }

    #[test]
    fn a_fixed_policy_needs_a_capacity() {
        assert!(Config::parse("[cap]\npolicy = \"fixed\"").is_err());
        assert!(Config::parse("[cap]\npolicy = \"fixed\"\ncapacity_mbit = 20.0").is_ok());
    }

    #[test]
    fn an_integer_capacity_is_accepted() {
        assert_eq!(
            Config::parse("[cap]\ncapacity_mbit = 20").unwrap().cap.capacity_mbit,
            Some(20.0)
        );
    }
}
