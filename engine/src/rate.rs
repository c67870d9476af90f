// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rates on a command line: a number with its unit. Input: text. Output: bytes a second, or what is wrong with the
//! text. Configuration files have the unit in the key's name. (The rate of a link belongs to [`crate::queue`].)

use std::ops::RangeInclusive;

use crate::quantity::Quantity;

/// The range of rate limits, Mbit/s.
pub const MBIT: RangeInclusive<f64> = 0.01..=10_000.0;
const RATE: Quantity = Quantity {
    noun: "a rate",
    units: &[("kbit", 0.001), ("mbit", 1.0), ("gbit", 1000.0)],
    example: "2.5mbit or 800kbit",
};
/// A byte every eighth of a microsecond.
const BYTES_PER_MBIT: f64 = 125_000.0;

/// As `2.5mbit`, `800kbit` or `1gbit`.
///
/// # Errors
/// Without a unit, with another one, or out of the range of rate limits.
pub fn parse(text: &str) -> Result<u64, String> {
    let mbit = RATE.parse(text, "mbit")?;
    if mbit == 0.0 {
        return Err(
            "a limit is more than 0; without a limit, leave the option out or use `giveway limit clear`".to_owned(),
        );
    }
    bytes_per_s(mbit)
}

/// From Mbit/s.
///
/// # Errors
/// Out of the range of rate limits.
pub fn bytes_per_s(mbit: f64) -> Result<u64, String> {
    if MBIT.contains(&mbit) {
        Ok((mbit * BYTES_PER_MBIT).round() as u64)
    } else {
        Err(format!(
            "a limit is 10kbit to 10gbit (0.01 to 10000 Mbit/s), and this is {} than that",
            if mbit > *MBIT.end() { "more" } else { "less" }
        ))
    }
}

/// For people, and for files.
pub fn mbit(bytes_per_s: u64) -> f64 {
    bytes_per_s as f64 / BYTES_PER_MBIT
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rate_is_a_number_and_its_unit() {
        assert_eq!(parse("2.5mbit"), Ok(312_500));
        assert_eq!(parse("800kbit"), Ok(100_000));
        assert_eq!(parse("1Gbit"), Ok(125_000_000));
        assert_eq!(parse("0.5Mbit"), Ok(62_500));
    }

    #[test]
    fn a_bare_number_is_refused_with_what_it_likely_means() {
        let reason = parse("2.5").unwrap_err();
        assert!(reason.contains("2.5 has no unit; did you mean 2.5mbit?"), "{reason}");
    }

    #[test]
    fn invalid_rates_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "is not a rate"),
            ("mbit", "is not a rate"),
            ("-1mbit", "is not a rate"),
            ("1.2.3mbit", "is not a rate"),
            ("nan", "is not a rate"),
            ("2.5MB", "`MB` is not a unit"),
            ("2.5mbps", "`mbps` is not a unit"),
            ("2.5 mbit", "` mbit` is not a unit"),
            ("1kbit", "10kbit to 10gbit"),
            ("0mbit", "more than 0"),
            ("99999999999999999999999999999999999999gbit", "10kbit to 10gbit"),
            ("11gbit", "10kbit to 10gbit"),
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.contains(reason), "{text}: {told}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_rate_within_the_bounds_or_an_error(text in "\\PC{0,24}|[0-9.]{0,9}[kmgKMG]?bit") {
            if let Ok(rate) = parse(&text) {
                prop_assert!((1_250..=1_250_000_000).contains(&rate), "{rate}");
            }
        }
    }
}
