// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is wrong with a text, in the words of the one who wrote it. In come the text's tables or the parser's error,
//! out go the key that is meant and the nearest one that exists.

use super::{ConfigError, SECTIONS, Section, TOP_KEYS};

pub(super) fn check_names(table: &toml::Table) -> Result<(), ConfigError> {
    for (name, value) in table {
        if let Some(section) = SECTIONS.iter().find(|section| section.name == name) {
            for key in entries(section, value)?.iter().flat_map(|table| table.keys()) {
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

/// The tables of a section: one, or as many as a list has.
fn entries<'a>(section: &Section, value: &'a toml::Value) -> Result<Vec<&'a toml::Table>, ConfigError> {
    let (tables, written) = if section.repeated {
        let list = value.as_array().map(|list| list.iter().map(toml::Value::as_table));
        (list.and_then(Iterator::collect), format!("[[{}]]", section.name))
    } else {
        (value.as_table().map(|table| vec![table]), format!("[{}]", section.name))
    };
    tables.ok_or_else(|| ConfigError::Value {
        key: section.name.to_owned(),
        problem: format!("is a section: write {written}"),
    })
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

pub(super) fn first_line(error: &toml::de::Error) -> String {
    error
        .to_string()
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Without the names of Rust's types.
pub(super) fn in_plain_words(problem: &str) -> String {
    const UNIT: &str = "the unit is in the key's name";
    match problem.rsplit_once("expected ") {
        Some((what, "f64")) => format!("{what}expected a number; {UNIT}"),
        Some((what, "u16" | "u32" | "u64")) => format!("{what}expected a whole number; {UNIT}"),
        _ => problem.to_owned(),
    }
}

/// The key on the line that the error points at, with its section.
pub(super) fn offending_key(text: &str, error: &toml::de::Error) -> Option<String> {
    let before = text.get(..error.span()?.end)?;
    let line = before.lines().last()?;
    let key = line.split('=').next()?.trim();
    let section = before.lines().rev().find_map(|l| {
        Some(
            l.trim()
                .strip_prefix('[')?
                .strip_suffix(']')?
                .trim_matches(['[', ']'])
                .to_owned(),
        )
    });
    Some(match section {
        Some(section) => format!("{section}.{key}"),
        None => key.to_owned(),
    })
}
