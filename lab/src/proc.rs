// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers from text files of /proc.

use anyhow::{Context, Result};

/// The numbers after the first line's beginning, up to the first word that is none.
pub fn numbers(file: &str, beginning: &str) -> Result<Vec<f64>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(beginning));
    let words = line
        .with_context(|| format!("{file} has no {beginning}"))?
        .split_whitespace();
    Ok(words.map_while(|word| word.parse().ok()).collect())
}

/// One of them, counted from 0.
pub fn number(file: &str, beginning: &str, place: usize) -> Result<f64> {
    let number = numbers(file, beginning)?.get(place).copied();
    number.with_context(|| format!("{file} is not readable"))
}
