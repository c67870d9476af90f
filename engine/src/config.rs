// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration: text in, a checked [`Config`] or one clear [`ConfigError`] out. Never reads a file.
//!
//! Every key is declared once, in `sections.rs` (the conditions of rules in `conditions.rs`): documentation, type,
//! default and range. The checks, their messages and the commented default file are made from these declarations. An
//! empty text is a valid configuration.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

mod conditions;
mod key;
mod lines;
mod matching;
mod names;
mod nearest;
mod section;
mod sections;
#[cfg(test)]
mod tests;
pub(crate) mod together;

pub use conditions::Conditions;
pub use lines::{Located, problems, read, read_rules};
pub use sections::{
    BackendName, Background, CEILING, Cap, CapPolicyName, Chain, ClassRule, ClassesSection, Config, Control, Deadline,
    GrantRule, Group, LinkSection, LocalTraffic, MOST_LINKS, MarksSection, Monitor, Prefer, PriorityLimitsSection,
    PrioritySection, QueueSection, RateMbit, ReceiveSection, SchedPolicyName, UplinkSection,
};
pub use together::MOST_FLOWS;

use crate::queue::links::LinkRates;
use sections::{SECTIONS, TOP_KEYS};

/// Why a configuration was refused.
#[derive(Debug, Error, PartialEq)]
pub enum ConfigError {
    #[error("not TOML: {}", one_line(.0))]
    Syntax(String),
    #[error("unknown {what} `{}`{}", one_line(.name), hint(.belongs, .nearest))]
    Unknown {
        what: &'static str,
        name: String,
        /// The section of a key with this name.
        belongs: Option<String>,
        nearest: Option<String>,
    },
    #[error("`{old}` is called `{new}`")]
    Renamed { old: String, new: String },
    #[error("`[[{table}]]` cannot match `{condition}`: {reason}; {instead}")]
    CannotMatch {
        table: &'static str,
        condition: String,
        reason: &'static str,
        instead: &'static str,
    },
    #[error("`{key}`: {}", one_line(.problem))]
    Value { key: String, problem: String },
}

fn hint(belongs: &Option<String>, nearest: &Option<String>) -> String {
    let elsewhere = belongs
        .as_ref()
        .map(|place| format!("; a key of this name belongs {place}"));
    let here = match nearest {
        Some(name) => {
            format!("; did you mean `{name}`? (`giveway config default` lists every key, its unit and default)")
        }
        None if elsewhere.is_some() => String::new(),
        None => "; `giveway config default` lists every key, its unit and default".to_owned(),
    };
    here + &elsewhere.unwrap_or_default()
}

/// Why a text is not TOML, and what to write, by the invalid line.
fn syntax(message: &str, line: &str) -> String {
    let line = one_line(line.split('#').next().unwrap_or_default());
    if message.contains("duplicate key") {
        return match line.starts_with('[') {
            true => format!("{line} is given twice: put its keys together, below the first"),
            false => format!("{message}: it is given twice: keep one"),
        };
    }
    let is_word = |text: &str| text.chars().all(|c| c.is_alphanumeric() || "_-./:@*".contains(c));
    match line.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
        Some((key, value))
            if is_word(key) && is_word(value) && value.starts_with(|c: char| c.is_alphabetic() || c == '/') =>
        {
            format!("text needs quotes: write {key} = \"{value}\"")
        }
        _ => message.to_owned(),
    }
}

/// A text on one line, without control characters for a terminal.
fn one_line(text: &str) -> String {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let line: String = text.chars().map(visible).take(500).collect();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn wrong(key: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Value {
        key: key.to_owned(),
        problem: problem.into(),
    }
}

/// The sections and top-level keys in which two texts differ, except rules for classes: what a reload does not apply. A
/// text that is not TOML has none.
pub fn differing_sections(before: &str, now: &str) -> Vec<String> {
    let sections = |text: &str| -> toml::Table {
        let mut table: toml::Table = toml::from_str(text).unwrap_or_default();
        table.remove("rule");
        table
    };
    let (before, now) = (sections(before), sections(now));
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let differ = names.into_iter().filter(|name| before.get(*name) != now.get(*name));
    differ.cloned().collect()
}

impl Config {
    /// Reads a configuration. The whole text is checked; the first problem is reported.
    ///
    /// # Errors
    /// [`ConfigError`] for text that is not TOML, an unknown section or key, a value of the wrong type or
    /// out of range, a condition that its table cannot enforce.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let refusal = |error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            let before = text.get(..at).and_then(|before| before.rfind('\n'));
            let line = text
                .get(before.map_or(0, |end| end + 1)..)
                .and_then(|rest| rest.lines().next());
            ConfigError::Syntax(syntax(error.message(), line.unwrap_or_default()))
        };
        Self::from_table(toml::from_str(text).map_err(refusal)?)
    }

    fn from_table(mut table: toml::Table) -> Result<Self, ConfigError> {
        names::check(&table)?;
        sections::fill_defaults(&mut table);
        let config: Self = table
            .try_into()
            .map_err(|error: toml::de::Error| wrong("configuration", error.message()))?;
        config.check_together()?;
        config.check_uplinks_are_named()?;
        Ok(config)
    }

    /// As strict as [`Config::parse`], with a configuration that was not read from text.
    ///
    /// # Errors
    /// The first value that would be refused there.
    pub fn check(&self) -> Result<(), ConfigError> {
        let table = toml::Table::try_from(self).map_err(|error| wrong("configuration", error.to_string()))?;
        names::check(&table)?;
        self.check_together()
    }

    /// With what was set of links while giveway runs. Rules for classes are left out: they come from several files.
    #[must_use]
    pub fn with_link_rates(&self, rates: &BTreeMap<String, LinkRates>) -> Self {
        let mut config = Self {
            rule: Vec::new(),
            ..self.clone()
        };
        // It does not count for an interface that has a section of its own.
        let link = Some(self.link.clone()).filter(|_| self.interfaces.len() < 2);
        for (name, rates) in rates {
            let own = |uplink: &UplinkSection| uplink.interface.as_ref() == Some(name);
            let at = config.uplink.iter().position(own).unwrap_or_else(|| {
                config.uplink.push(UplinkSection {
                    interface: Some(name.clone()),
                    rate_mbit: link.as_ref().and_then(|link| link.rate_mbit),
                    download_rate_mbit: link.as_ref().and_then(|link| link.download_rate_mbit),
                    ..UplinkSection::default()
                });
                config.uplink.len() - 1
            });
            let uplink = &mut config.uplink[at];
            uplink.rate_mbit = rates.up.or(uplink.rate_mbit);
            uplink.download_rate_mbit = rates.down.or(uplink.download_rate_mbit);
        }
        config
    }

    /// As a file would have it.
    ///
    /// # Errors
    /// Where a value cannot be put into TOML.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        let refused = |error: toml::ser::Error| wrong("configuration", error.to_string());
        let mut table = toml::Table::try_from(self).map_err(refused)?;
        // An empty list of sections is none.
        table.retain(|name, value| {
            let is_section = SECTIONS.iter().any(|section| section.name == name);
            !(is_section && value.as_array().is_some_and(Vec::is_empty))
        });
        toml::to_string(&table).map_err(refused)
    }

    /// The commented default file: every key with its documentation, all commented out.
    pub fn default_file() -> String {
        let mut text = String::from("# giveway: every key with its default. An empty file behaves the same.\n");
        for key in TOP_KEYS {
            key.render(&key.absent(), &mut text);
        }
        for section in SECTIONS {
            section.render(&mut text);
        }
        text
    }
}
