// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The known name that a misspelt one probably means.

/// The known name that may be meant.
pub(super) fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    // Half of the letters may differ: `capacity_kbit` finds `capacity_mbit`, `colour` finds nothing. An abbreviation
    // comes first: `prot` is `protocol`, not `port`.
    let begun = |name: &&str| typed.len() >= 3 && name.starts_with(typed);
    let alike = || {
        known
            .clone()
            .map(|name| (strsim::damerau_levenshtein(typed, name), name))
            .min()
            .filter(|(distance, name)| *distance <= name.len().max(typed.len()) / 2)
            .map(|(_, name)| name)
    };
    known.clone().find(begun).or_else(alike)
}
