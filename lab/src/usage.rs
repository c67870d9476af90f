// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mistakes in what the user typed: exit code 2, with the nearest name that would have been right.

/// An error that ends the program with 2 instead of 1.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(String);

pub fn usage(message: String) -> anyhow::Error {
    Usage(message).into()
}

/// `; did you mean ...?`, or nothing when no name comes close.
pub fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> String {
    let closest = names.map(|name| (strsim::levenshtein(wrong, name), name)).min();
    match closest {
        Some((edits, name)) if edits <= wrong.len().max(name.len()) / 2 => {
            format!("; did you mean `{name}`?")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_near_name_is_suggested() {
        let names = || ["contention", "cooperative", "join-leave"].into_iter();
        assert_eq!(nearest("contension", names()), "; did you mean `contention`?");
        assert_eq!(nearest("xyz", names()), "");
    }
}
