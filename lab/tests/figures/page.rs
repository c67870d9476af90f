// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of one page. Input: its text, and what a link's target has for numbers. Output: a line for each that is wrong.

use std::collections::{BTreeMap, BTreeSet};

use super::expression::{Numbers, evaluate};

/// `[name]: target "title"`
struct Definition<'a> {
    line: usize,
    target: &'a str,
    title: Option<&'a str>,
}

/// `[text][name]`
struct Use {
    line: usize,
    text: String,
    name: String,
}

impl Definition<'_> {
    fn is_of_a_result(&self) -> bool {
        self.target.contains("bench/results/")
    }
}

/// How many figures the page has, and what is wrong with them. `numbers_of` is given a definition's target.
pub fn findings(
    path: &str,
    text: &str,
    mut numbers_of: impl FnMut(&str) -> Result<Numbers, String>,
) -> (usize, Vec<String>) {
    let text = without_code(text);
    let mut findings = Vec::new();
    let mut definitions = BTreeMap::new();
    let mut prose = String::new();
    for (number, line) in text.lines().enumerate() {
        let definition = definition(line, number + 1);
        if let Some((name, definition)) = definition {
            prose.push('\n');
            if definitions.insert(name, definition).is_some() {
                findings.push(format!("{path}:{}: [{name}] is defined twice", number + 1));
            }
        } else {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    let uses = uses(&prose);
    for used in &uses {
        let Use { line, text, name } = used;
        let Some(definition) = definitions.get(name.as_str()) else {
            findings.push(format!("{path}:{line}: [{text}][{name}] has no definition"));
            continue;
        };
        let Some(title) = definition.title.filter(|_| definition.is_of_a_result()) else {
            continue;
        };
        let value = numbers_of(definition.target).and_then(|numbers| evaluate(title, &numbers));
        match value {
            Err(error) => findings.push(format!("{path}:{line}: [{text}][{name}]: {error} (in \"{title}\")")),
            Ok(value) => {
                if let Some(why) = differs(text, value) {
                    findings.push(format!("{path}:{line}: [{text}][{name}]: {why} (\"{title}\")"));
                }
            }
        }
    }
    let used: BTreeSet<&str> = uses.iter().map(|used| used.name.as_str()).collect();
    let figures = definitions.iter().filter(|(_, definition)| definition.is_of_a_result());
    for (name, definition) in figures.clone().filter(|(name, _)| !used.contains(*name)) {
        findings.push(format!("{path}:{}: nothing uses [{name}]", definition.line));
    }
    (figures.count(), findings)
}

/// Why this text does not say this value.
fn differs(text: &str, value: f64) -> Option<String> {
    let Some((number, decimals)) = first_number(text) else {
        return Some(format!("the text has no number, and the result {value}"));
    };
    let half = 0.5 * 0.1_f64.powi(decimals as i32);
    // A value in the middle may go either way.
    let is_same = (number - value).abs() <= half * (1.0 + 1e-9);
    (!is_same).then(|| format!("the result has {value:.*}", decimals + 2))
}

/// With the number of its decimals.
fn first_number(text: &str) -> Option<(f64, usize)> {
    let from = text.find(|c: char| c.is_ascii_digit())?;
    let rest = &text[from..];
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',')
        .unwrap_or(rest.len());
    let digits = rest[..end].trim_end_matches(['.', ',']).replace(',', "");
    let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let number: f64 = digits.parse().ok()?;
    let is_negative = text[..from].ends_with(['-', '\u{2212}']);
    Some((if is_negative { -number } else { number }, decimals))
}

fn definition(line: &str, number: usize) -> Option<(&str, Definition<'_>)> {
    let (name, rest) = line.trim_start().strip_prefix('[')?.split_once("]: ")?;
    let rest = rest.trim();
    let (target, title) = match rest.split_once(" \"") {
        Some((target, title)) => (target, Some(title.strip_suffix('"')?)),
        None => (rest, None),
    };
    let line = number;
    Some((name, Definition { line, target, title }))
}

fn uses(text: &str) -> Vec<Use> {
    let mut uses = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find("][").map(|at| from + at) {
        from = at + 2;
        let (Some(start), Some(end)) = (text[..at].rfind('['), text[from..].find(']')) else {
            continue;
        };
        let inside = &text[start + 1..at];
        let name = &text[from..from + end];
        if name.is_empty() || inside.contains("\n\n") || name.contains('\n') {
            continue;
        }
        uses.push(Use {
            line: text[..start].matches('\n').count() + 1,
            text: inside.replace('\n', " "),
            name: name.to_owned(),
        });
    }
    uses
}

/// Blocks of code and pieces of it in a line are blank, at the same lines.
fn without_code(text: &str) -> String {
    let mut is_fenced = false;
    let mut was_blank = true;
    let mut is_indented = false;
    let lines = text.lines().map(|line| {
        let fence = line.trim_start().starts_with("```");
        is_fenced ^= fence;
        // Indented code begins after a blank line; elsewhere it is a list that goes on.
        is_indented = line.starts_with("    ") && (was_blank || is_indented);
        was_blank = line.trim().is_empty();
        if fence || is_fenced || is_indented {
            String::new()
        } else {
            without_spans(line)
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn without_spans(line: &str) -> String {
    let mut parts = line.split('`');
    let mut text = parts.next().unwrap_or_default().to_owned();
    while let (Some(code), rest) = (parts.next(), parts.next()) {
        match rest {
            Some(rest) => {
                text.push_str(&"`".repeat(code.len() + 2));
                text.push_str(rest);
            }
            None => text.push_str(code),
        }
    }
    text
}
