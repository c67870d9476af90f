// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the command line does, one module a command. Each asks the daemon over its control socket, reads the machine, or
//! cleans up; none is part of the daemon itself.

mod chart;
pub mod config;
pub mod doctor;
pub mod exec;
pub mod jitter;
pub mod lbe;
pub mod plot;
pub mod realtime;
pub mod record;
pub mod reload;
pub mod revert;
pub mod status;
pub mod why;

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
