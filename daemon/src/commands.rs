// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the command line does, one module a command. Each asks the daemon over its control socket, reads the machine, or
//! cleans up; none is part of the daemon itself.

pub mod active;
mod chart;
pub mod config;
pub mod doctor;
pub mod exec;
pub mod jitter;
pub mod lbe;
pub mod peer;
pub mod plot;
pub mod realtime;
pub mod record;
pub mod reload;
pub mod revert;
pub mod status;
pub mod top;
pub mod trial;
pub mod web;
pub mod why;

use std::io::{ErrorKind, Write as _};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// Columns from which a table shows all that it has.
const WIDE: usize = 80;
/// Longer lines are hard to read, however wide the terminal is.
const LONGEST: usize = 100;

/// Writes to standard output. A reader that has seen enough, as `head`, is no error.
///
/// # Errors
/// Where it cannot be written.
pub fn print(text: &str) -> Result<()> {
    write(&text.replace(misleads, "?"))
}

/// One line of JSON. Escaped are all characters that a terminal acts upon, not only those that JSON wants to be.
///
/// # Errors
/// Where it cannot be written.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    write(&(escaped(&serde_json::to_string(value)?) + "\n"))
}

/// The same JSON: these characters are found in its strings alone.
fn escaped(json: &str) -> String {
    let escaped = |c: char| match misleads(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    json.chars().map(escaped).collect()
}

/// What a terminal acts upon: users choose names of programs and of control groups, and others look at them.
fn misleads(c: char) -> bool {
    let turns_text_around = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns_text_around || (c.is_control() && c != '\n')
}

fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Of the terminal at standard output; none elsewhere, where lines stay whole.
fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(match size.ws_col {
        // A serial line does not tell.
        0 => WIDE,
        columns => usize::from(columns).min(LONGEST),
    })
}

/// A label and a text behind it, whose further lines are indented.
fn hanging(label: &str, indent: usize, text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else {
        return format!("{label}{text}");
    };
    let lines = wrapped(text, columns.saturating_sub(indent).max(20));
    format!("{label}{}", lines.join(&format!("\n{:indent$}", "")))
}

/// "1 device", "2 devices".
fn counted(count: usize, of: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {of}{plural}")
}

/// Breaks a text between words. A word that is longer than a line stays whole.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_broken_on_a_terminal_only_and_indented_below_its_start() {
        let text = "one two three four five";
        assert_eq!(hanging("queue  ", 7, text, None), "queue  one two three four five");
        assert_eq!(
            hanging("queue  ", 7, text, Some(27)),
            "queue  one two three four\n       five"
        );
    }

    #[test]
    fn what_a_terminal_acts_upon_is_escaped_in_json_and_shown_as_nothing_in_text() {
        for wicked in ["\u{9b}1mEVIL", "\u{7f}", "\u{202e}lave", "\u{2066}"] {
            let json = escaped(&serde_json::to_string(wicked).unwrap());
            assert!(!json.chars().any(misleads), "{json:?}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), wicked);
        }
        assert_eq!(escaped("{\"name\":\"é\"}"), "{\"name\":\"é\"}");
    }
}
