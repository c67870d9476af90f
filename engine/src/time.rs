// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times as people write them on a command line: `500us`, `100ms`, `30s`, `1h`. Input: text. Output: a duration within the
//! option's bounds, or what is wrong with the text.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::quantity::Quantity;

const TIME: Quantity = Quantity {
    noun: "a time",
    units: &[
        ("us", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("min", 60.0),
        ("h", 3600.0),
        ("d", 86_400.0),
    ],
    example: "500us, 100ms, 30s or 1h",
};

/// `likely`: the unit that is probably meant where none is given.
///
/// # Errors
/// Where there is no unit, another one, or the time is out of bounds.
pub fn parse(text: &str, likely: &str, bounds: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let seconds = TIME.parse(text, likely)?;
    let time = Duration::try_from_secs_f64(seconds).ok();
    time.filter(|time| bounds.contains(time))
        .ok_or_else(|| format!("must be {} to {}", shown(*bounds.start()), shown(*bounds.end())))
}

/// In the largest unit of which it is a whole number.
pub fn shown(time: Duration) -> String {
    let ns = time.as_nanos();
    let units = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
    ];
    let whole = units.into_iter().find(|(_, one)| ns > 0 && ns.is_multiple_of(*one));
    whole.map_or_else(|| format!("{ns}ns"), |(unit, one)| format!("{}{unit}", ns / one))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_secs(30 * 86_400);

    fn read(text: &str) -> Result<Duration, String> {
        parse(text, "s", &BOUNDS)
    }

    #[test]
    fn a_time_is_a_number_and_its_unit() {
        for (text, us) in [
            ("500us", 500),
            ("30ms", 30_000),
            ("0.5s", 500_000),
            ("1.5S", 1_500_000),
            ("2m", 120_000_000),
            ("2min", 120_000_000),
            ("1h", 3_600_000_000),
            ("30d", 2_592_000_000_000),
        ] {
            assert_eq!(read(text), Ok(Duration::from_micros(us)), "{text}");
        }
    }

    #[test]
    fn a_bare_number_is_refused_with_its_likely_meaning() {
        assert_eq!(read("10"), Err("10 has no unit; did you mean 10s?".to_owned()));
    }

    #[test]
    fn what_is_no_time_or_out_of_bounds_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "is not a time"),
            ("s", "is not a time"),
            ("-1s", "is not a time"),
            ("NaN", "is not a time"),
            ("inf", "is not a time"),
            ("1.2.3s", "is not a time"),
            ("٣s", "is not a time"),
            ("1e9s", "`e9s` is not a unit"),
            ("10 s", "` s` is not a unit"),
            ("10sec", "use one of us, ms, s, m, min, h, d"),
            ("0s", "must be 50us to 30d"),
            ("31d", "must be 50us to 30d"),
            ("99999999999999999999999999999999d", "must be 50us to 30d"),
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    #[test]
    fn a_time_is_shown_as_it_may_be_typed() {
        for text in ["50us", "100ms", "30s", "90s", "2m", "1h", "30d"] {
            assert_eq!(shown(read(text).unwrap()), text);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_typed_is_a_time_within_bounds_or_an_error(text in "\\PC{0,24}|[0-9.]{0,40}(us|ms|s|m|h|d)?") {
            if let Ok(time) = read(&text) {
                prop_assert!(BOUNDS.contains(&time), "{time:?}");
                prop_assert_eq!(read(&shown(Duration::from_micros(time.as_micros() as u64))).ok().map(|t| t.as_micros()), Some(time.as_micros()));
            }
        }
    }
}
