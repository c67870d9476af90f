// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the command line does, one module a command. Each asks the daemon over its control socket, reads the machine, or
//! cleans up; none is part of the daemon itself.

pub mod args;
pub mod by_hand;
mod chart;
mod clock;
pub mod completions;
pub mod config;
pub mod doctor;
pub mod exec;
pub mod focus;
pub mod jitter;
pub mod json;
pub mod key;
pub mod link;
pub mod pause;
pub mod plot;
pub mod priority;
pub mod record;
pub mod reload;
pub mod revert;
pub mod status;
pub mod top;
pub mod trial;
pub mod web;
pub mod why;

use std::borrow::Cow;

use crate::kernel::calls::terminal_size;
pub use crate::say::print;
pub use json::{print_json, print_output};

/// Columns from which a table shows all that it has.
const WIDE: usize = 80;
/// Longer lines are hard to read, however wide the terminal is.
const LONGEST: usize = 100;

/// Of the terminal at standard output; none elsewhere, where lines stay whole.
fn terminal_columns() -> Option<usize> {
    let (columns, _) = terminal_size(std::io::stdout()).ok()?;
    Some(match columns {
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
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let between_words = textwrap::Options::new(columns)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let lines = textwrap::wrap(text, between_words);
    lines.into_iter().map(Cow::into_owned).collect()
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
}
