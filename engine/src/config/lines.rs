// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The line of an error in a text, and of each `[[rule]]`.

use thiserror::Error;
use toml::de::{DeTable, DeValue};

use super::{ClassRule, Config, ConfigError, names, wrong};

/// Bytes of a rules file.
const LONGEST_FILE: usize = 256 * 1024;

/// Why a file was refused, and where.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{file}{}: {problem}", line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct Located {
    pub file: String,
    /// None: the file as a whole.
    pub line: Option<usize>,
    pub problem: String,
}

/// Reads the text of a configuration, with the line of each of its rules.
///
/// # Errors
/// The first problem, with its place.
pub fn read(file: &str, text: &str) -> Result<(Config, Vec<usize>), Located> {
    let config = Config::parse(text).map_err(|error| Located {
        file: file.to_owned(),
        line: Some(line_of(text, &error)),
        problem: error.to_string(),
    })?;
    Ok((config, rule_lines(text)))
}

/// All errors of a text: every name and value; if these are valid, each invalid entry of a list; or else the first
/// violated condition between several keys.
pub fn problems(file: &str, text: &str) -> Vec<Located> {
    let first = || read(file, text).err().into_iter().collect();
    let (Ok(document), Ok(table)) = (DeTable::parse(text), toml::from_str::<toml::Table>(text)) else {
        return first();
    };
    let mut found = names::problems(&table);
    if found.is_empty() {
        let lists = table.iter().filter_map(|(name, value)| Some((name, value.as_array()?)));
        let entries = lists.flat_map(|(name, list)| list.iter().enumerate().map(move |entry| (name, entry)));
        found.extend(entries.filter_map(|(name, (number, entry))| Some((number, refusal_of_entry(name, entry)?))));
    }
    if found.is_empty() {
        return first();
    }
    let mut found: Vec<Located> = found
        .into_iter()
        .map(|(number, error)| Located {
            file: file.to_owned(),
            line: Some(line_at(text, place_in(document.get_ref(), number, &error).unwrap_or(0))),
            problem: error.to_string(),
        })
        .collect();
    found.sort_by_key(|problem| problem.line);
    found
}

/// Reads a file with rules only, each with its line.
///
/// # Errors
/// As [`read`], and for a file that is too long or has anything else.
pub fn read_rules(file: &str, text: &str) -> Result<Vec<(usize, ClassRule)>, Located> {
    let refused = |line, problem: String| Located {
        file: file.to_owned(),
        line,
        problem,
    };
    if text.len() > LONGEST_FILE {
        return Err(refused(None, format!("has more than {LONGEST_FILE} bytes")));
    }
    if let Some((name, at)) = first_other(text) {
        let problem = wrong(&name, "does not belong in a file of rules, which has only [[rule]]");
        return Err(refused(Some(line_at(text, at)), problem.to_string()));
    }
    let (config, lines) = read(file, text)?;
    Ok(lines.into_iter().zip(config.rule).collect())
}

/// The first item that is no `[[rule]]`, with its line.
fn first_other(text: &str) -> Option<(String, usize)> {
    let document = DeTable::parse(text).ok()?;
    let others = document.get_ref().iter().filter(|(name, _)| name.get_ref() != "rule");
    others
        .map(|(name, _)| (name.get_ref().to_string(), name.span().start))
        .min_by_key(|(_, at)| *at)
}

fn rule_lines(text: &str) -> Vec<usize> {
    let Ok(document) = DeTable::parse(text) else {
        return Vec::new();
    };
    let entries = entries(document.get_ref(), "rule");
    entries.iter().map(|(at, _)| line_at(text, *at)).collect()
}

fn line_of(text: &str, error: &ConfigError) -> usize {
    let at = match DeTable::parse(text) {
        Err(error) => error.span().map(|span| span.start),
        Ok(document) => place_of(text, document.get_ref(), error),
    };
    line_at(text, at.unwrap_or(0))
}

fn line_at(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// The key that an error names, in the first entry that is refused for it, or else the entry.
fn place_of(text: &str, document: &DeTable<'_>, error: &ConfigError) -> Option<usize> {
    let (section, key) = named(error);
    let entries = entries(document, &section);
    let Some((first, _)) = entries.first() else {
        return key_in(document, &section);
    };
    let wrong = (entries.len() > 1)
        .then(|| first_refused(text, &section, error))
        .flatten();
    let (begins, entry) = entries.get(wrong.unwrap_or(0))?;
    let found = key.and_then(|key| key_in(entry, &key)).unwrap_or(*begins);
    Some(if wrong.is_none() && entries.len() > 1 {
        *first
    } else {
        found
    })
}

/// The number of the first entry with the same error as the whole text: by itself, or with those before it.
fn first_refused(text: &str, section: &str, error: &ConfigError) -> Option<usize> {
    let mut table: toml::Table = toml::from_str(text).ok()?;
    let entries = table.get(section)?.as_array()?.clone();
    let mut is_refused = |number: usize| {
        let first = toml::Value::Array(entries[..=number].to_vec());
        table.insert(section.to_owned(), first);
        Config::from_table(table.clone()).err().as_ref() == Some(error)
    };
    let numbers: Vec<usize> = (0..entries.len()).collect();
    let number = numbers.partition_point(|number| !is_refused(*number));
    (number < entries.len()).then_some(number)
}

/// Why a list entry by itself is refused.
fn refusal_of_entry(section: &str, entry: &toml::Value) -> Option<ConfigError> {
    let alone = toml::Value::Array(vec![entry.clone()]);
    Config::from_table(toml::Table::from_iter([(section.to_owned(), alone)])).err()
}

/// The key that an error names in this entry of its section, or else the entry.
fn place_in(document: &DeTable<'_>, number: usize, error: &ConfigError) -> Option<usize> {
    let (section, key) = named(error);
    let entries = entries(document, &section);
    let Some((begins, entry)) = entries.get(number) else {
        return key_in(document, &section);
    };
    Some(key.and_then(|key| key_in(entry, &key)).unwrap_or(*begins))
}

/// Section and key.
fn named(error: &ConfigError) -> (String, Option<String>) {
    let full = match error {
        ConfigError::Unknown { name, .. } => name,
        ConfigError::Renamed { old, .. } => old,
        ConfigError::CannotMatch { table, condition, .. } => {
            return ((*table).to_owned(), Some(condition.clone()));
        }
        ConfigError::Value { key, .. } => key,
        ConfigError::Syntax(_) => return (String::new(), None),
    };
    match full.split_once('.') {
        Some((section, key)) => (section.to_owned(), Some(key.to_owned())),
        None => (full.clone(), None),
    }
}

/// The tables of a section, with their positions.
fn entries<'a, 'b>(document: &'a DeTable<'b>, section: &str) -> Vec<(usize, &'a DeTable<'b>)> {
    let Some((_, found)) = document.iter().find(|(name, _)| name.get_ref() == section) else {
        return Vec::new();
    };
    match found.get_ref() {
        DeValue::Table(table) => vec![(found.span().start, table)],
        DeValue::Array(list) => {
            let entry = |entry: &'a toml::Spanned<DeValue<'b>>| Some((entry.span().start, entry.get_ref().as_table()?));
            list.iter().filter_map(entry).collect()
        }
        _ => Vec::new(),
    }
}

fn key_in(table: &DeTable<'_>, key: &str) -> Option<usize> {
    let (name, _) = table.iter().find(|(name, _)| name.get_ref() == key)?;
    Some(name.span().start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        read("x.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn an_error_has_the_line_of_its_key() {
        let good = "[[rule]]\nport = 873\nclass = \"background\"\n";
        for (bad, line) in [
            ("[[rule]]\nprot = 1\nclass = \"bulk\"\n", 6),
            ("[[rule]]\nport = 1\nclass = \"bulky\"\n", 7),
            ("[[rule]]\nport = 1\n", 5),
            ("[[rule]]\nport = 70000\nclass = \"bulk\"\n", 6),
            ("[[rule]]\nexe = \"rsync\"\nclass = \"bulk\"\n", 6),
            ("[[rule]]\nclass = \"bulk\"\n", 6),
            ("[[rule]]\nport = \n", 6),
            ("[[background]]\naddress = \"::1\"\nport = 1\nexe = \"/x\"\n", 8),
        ] {
            let refusal = refusal(&format!("{good}\n{bad}"));
            assert!(refusal.starts_with(&format!("x.toml:{line}: ")), "{bad}: {refusal}");
            assert_eq!(refusal.lines().count(), 1);
        }
        assert!(refusal("# a comment\ncapp = 1\n").starts_with("x.toml:2: unknown key `capp`"));
        assert!(refusal("\n[cap]\nrtt_ms = 0\n").starts_with("x.toml:3: `cap.rtt_ms`: "));
    }

    #[test]
    fn all_errors_are_found_each_with_its_line() {
        let all = |text: &str| problems("x", text).iter().map(|p| p.line.unwrap()).collect::<Vec<_>>();
        assert_eq!(
            all(
                "[cap]\nrtt_ms = 0\nrtt = 5\n[gruop]\nport = 1\n[[rule]]\nclass = \"bulky\"\n[[rule]]\nport = 0\nclass = 7\n"
            ),
            [2, 3, 4, 7, 9, 10]
        );
        let rules = "[[rule]]\nclass = \"bulk\"\n[[rule]]\nport = 1\nclass = \"bulk\"\n[[rule]]\nexe = \"x\"\nclass = \"bulk\"\n";
        assert_eq!(all(rules), [2, 7]);
        assert_eq!(all("[cap]\npolicy = \"fixed\"\n"), [2]);
        let uplink = "[[uplink]]\ninterface = \"eth0\"\n";
        assert_eq!(all(&uplink.repeat(2)), [4]);
        assert_eq!(
            all(&format!(
                "interface = \"eth0\"\n{uplink}[[uplink]]\ninterface = \"eth1\"\n"
            )),
            [5]
        );
        assert_eq!(all("\n[cap\n").len(), 1);
        assert!(all("[cap]\nrtt_ms = 5\n").is_empty());
    }

    #[test]
    fn rules_have_the_lines_where_they_begin() {
        let text = "\n[[rule]]\nport = 1\nclass = \"bulk\"\n\n[[rule]]\nport = 2\nclass = \"bulk\"\n";
        let lines: Vec<usize> = read_rules("x", text)
            .unwrap()
            .into_iter()
            .map(|(line, _)| line)
            .collect();
        assert_eq!(lines, [2, 6]);
    }

    #[test]
    fn a_rules_file_has_rules_only_and_a_maximum_length() {
        let refused = |text: &str| read_rules("x", text).unwrap_err().to_string();
        assert_eq!(
            refused("[[rule]]\nport = 1\nclass = \"bulk\"\n[cap]\nrtt_ms = 5\n"),
            "x:4: `cap`: does not belong in a file of rules, which has only [[rule]]"
        );
        let long = "#".repeat(LONGEST_FILE + 1);
        assert_eq!(refused(&long), "x: has more than 262144 bytes");
        let many = "[[rule]]\nport = 1\nclass = \"bulk\"\n".repeat(1025);
        assert_eq!(refused(&many), "x:3073: `rule`: must be given at most 1024 times");
    }
}
