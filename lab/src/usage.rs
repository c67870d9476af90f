// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mistakes in what the user typed: exit code 2, with the nearest name that would have been right.

use std::fmt;

/// An error that ends the program with 2 instead of 1.
#[derive(Debug)]
pub struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

pub fn usage(message: String) -> anyhow::Error {
    Usage(message).into()
}

/// `; did you mean ...?`, or nothing when no name comes close.
pub fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> String {
    let closest = names.map(|name| (distance(wrong, name), name)).min();
    match closest {
        Some((edits, name)) if edits <= wrong.len().max(name.len()) / 2 => {
            format!("; did you mean `{name}`?")
        }
        _ => String::new(),
    }
}

/// Edits (insert, delete, replace a character) that turn one word into the other (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replace = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_single_character_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn only_a_near_name_is_suggested() {
        let names = || ["contention", "cooperative", "join-leave"].into_iter();
        assert_eq!(nearest("contension", names()), "; did you mean `contention`?");
        assert_eq!(nearest("xyz", names()), "");
    }
}
