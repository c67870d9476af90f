// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the names and values of a text belong to declared keys. Each wrong one comes with the key that may be meant:
//! the new name of a renamed one, else the nearest.

use super::conditions::Conditions;
use super::key::{Absent, Declared as _};
use super::nearest::nearest;
use super::section::Section;
use super::sections::{SECTIONS, TOP_KEYS};
use super::{ConfigError, wrong};

/// Renamed keys, and likely other names: the table ("" at the top, "*" for all), the written name, the right name.
const RENAMED: &[(&str, &str, &str)] = &[("*", "remote_port", "port"), ("*", "executable", "exe")];

pub(super) fn check(table: &toml::Table) -> Result<(), ConfigError> {
    problems(table)
        .into_iter()
        .next()
        .map_or(Ok(()), |(_, error)| Err(error))
}

/// All errors, each with the number of its entry in its section.
pub(super) fn problems(table: &toml::Table) -> Vec<(usize, ConfigError)> {
    let mut found = Vec::new();
    for (name, value) in table {
        if let Some(section) = SECTIONS.iter().find(|section| section.name == name) {
            match entries(section, value) {
                Ok(entries) => {
                    for (number, entry) in entries.into_iter().enumerate() {
                        found.extend(of_entry(section, entry).into_iter().map(|error| (number, error)));
                    }
                }
                Err(error) => found.push((0, error)),
            }
        } else if let Some(key) = TOP_KEYS.iter().find(|key| key.name == name) {
            let problem = match belongs_to_plural(name, value) {
                Some(several) => Some(format!("is one name: for several write {several} = {value}")),
                None => key.problem(value),
            };
            found.extend(problem.map(|problem| (0, wrong(name, problem))));
        } else {
            let what = if value.is_table() { "section" } else { "key" };
            let sections = SECTIONS.iter().map(|section| section.name);
            let names = sections.chain(TOP_KEYS.iter().map(|key| key.name));
            found.push((0, unknown(what, "", name, RENAMED, names)));
        }
    }
    found
}

/// The plural key, if the value is a list of the singular's.
fn belongs_to_plural(name: &str, value: &toml::Value) -> Option<&'static str> {
    let several = TOP_KEYS.iter().find(|key| key.name.strip_suffix('s') == Some(name))?;
    (value.is_array() && several.problem(value).is_none()).then_some(several.name)
}

fn of_entry(section: &Section, entry: &toml::Table) -> Vec<ConfigError> {
    let keys = section.keys();
    let mut found = Vec::new();
    for (name, value) in entry {
        let Some((key, _)) = keys.iter().find(|(key, _)| key.name == name) else {
            let is_condition = Conditions::KEYS.iter().any(|key| key.name == name);
            found.push(match section.matching.filter(|_| is_condition) {
                Some(matching) => matching.refusal(section.name, name),
                None => unknown("key", section.name, name, RENAMED, keys.iter().map(|(key, _)| key.name)),
            });
            continue;
        };
        if let Some(problem) = key.problem(value) {
            found.push(wrong(&format!("{}.{name}", section.name), problem));
        }
    }
    let missing = keys
        .iter()
        .filter(|(key, absent)| matches!(absent, Absent::Refused) && !entry.contains_key(key.name));
    found.extend(missing.map(|(key, _)| {
        let range = key.shown_range().map(|range| format!(", {range}")).unwrap_or_default();
        wrong(
            &format!("{}.{}", section.name, key.name),
            format!("must be given{range}"),
        )
    }));
    found
}

/// The tables of a section: one, or as many as a list has.
fn entries<'a>(section: &Section, value: &'a toml::Value) -> Result<Vec<&'a toml::Table>, ConfigError> {
    let tables = if section.repeated {
        let list = value.as_array().map(|list| list.iter().map(toml::Value::as_table));
        list.and_then(Iterator::collect)
    } else {
        value.as_table().map(|table| vec![table])
    };
    tables.ok_or_else(|| {
        let how = match section.repeated {
            true => "is a section that can be given several times, and so has two brackets",
            false => "is a section that is given once",
        };
        wrong(section.name, format!("{how}: write {}", section.written()))
    })
}

pub(super) fn unknown<'a>(
    what: &'static str,
    section: &str,
    typed: &str,
    renamed: &[(&str, &str, &'static str)],
    known: impl Iterator<Item = &'a str> + Clone,
) -> ConfigError {
    let full = |name: &str| {
        if section.is_empty() {
            name.to_owned()
        } else {
            format!("{section}.{name}")
        }
    };
    let new = renamed
        .iter()
        .filter(|(table, old, _)| (*table == section || *table == "*") && *old == typed)
        .find_map(|(_, _, new)| known.clone().find(|name| name == new));
    if let Some(new) = new {
        return ConfigError::Renamed {
            old: full(typed),
            new: full(new),
        };
    }
    let belongs = belongs(typed);
    // A name that is valid elsewhere is not misspelt.
    let nearest = nearest(typed, known).filter(|_| belongs.is_none()).map(str::to_owned);
    ConfigError::Unknown {
        what,
        name: full(typed),
        belongs,
        nearest,
    }
}

/// The sections with a key of this name.
fn belongs(typed: &str) -> Option<String> {
    if TOP_KEYS.iter().any(|key| key.name == typed) {
        return Some("above all sections".to_owned());
    }
    let has_it = |section: &&Section| section.keys().iter().any(|(key, _)| key.name == typed);
    let sections: Vec<String> = SECTIONS.iter().filter(has_it).map(Section::written).collect();
    (!sections.is_empty()).then(|| format!("below {}", sections.join(" or ")))
}
