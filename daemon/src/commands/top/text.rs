// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text as it may stand on a screen. Input: names that users have chosen, and numbers. Output: text in which each character
//! takes a column or two, and numbers of five columns at most, with their units.

use unicode_width::UnicodeWidthChar as _;

use crate::words::misleads;

const FACTORS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

/// What a terminal acts upon, or shows in no column of its own, is a question mark.
pub fn clean(text: &str) -> String {
    let shown = |c: char| match c.is_control() || misleads(c) || c.width().unwrap_or(0) == 0 {
        true => '?',
        false => c,
    };
    text.chars().map(shown).collect()
}

/// Cut to so many columns; what is left out is said by an ellipsis, before the end of the text or behind its beginning.
pub fn fitted(text: &str, columns: u16, keeps_end: bool, ellipsis: &str) -> String {
    let columns = usize::from(columns);
    if width(text) <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(ellipsis.chars().count());
    match keeps_end {
        false => taken(text.chars(), room) + ellipsis,
        true => ellipsis.to_owned() + &taken(text.chars().rev(), room).chars().rev().collect::<String>(),
    }
}

fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

fn taken(characters: impl Iterator<Item = char>, mut room: usize) -> String {
    let fits = |c: &char| {
        let left = room.checked_sub(c.width().unwrap_or(0));
        room = left.unwrap_or(0);
        left.is_some()
    };
    characters.take_while(fits).collect()
}

pub fn count(number: u64) -> String {
    if number < 10_000 {
        number.to_string()
    } else {
        scaled(number as f64, "")
    }
}

pub fn bits_per_s(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), |rate| scaled(rate, ""))
}

/// In a text.
pub fn told_bits_per_s(rate: Option<f64>) -> String {
    let short = bits_per_s(rate);
    let number = short.trim_end_matches(char::is_alphabetic);
    format!("{number} {}bit/s", &short[number.len()..])
}

pub fn bytes(bytes: u64) -> String {
    if bytes == 0 {
        "0".to_owned()
    } else {
        scaled(bytes as f64, "B")
    }
}

/// 0: none yet.
pub fn time(us: u64) -> String {
    let (us_f, ms, s) = (us as f64, us as f64 / 1e3, us as f64 / 1e6);
    match us {
        0 => "-".to_owned(),
        1..1_000 => format!("{us_f:.0}us"),
        1_000..9_950 => format!("{ms:.1}ms"),
        9_950..999_500 => format!("{ms:.0}ms"),
        999_500..9_950_000 => format!("{s:.1}s"),
        9_950_000..9_999_000_000 => format!("{s:.0}s"),
        _ => ">9ks".to_owned(),
    }
}

fn scaled(mut value: f64, unit: &str) -> String {
    let mut factor = 0;
    while value >= 999.5 && factor + 1 < FACTORS.len() {
        value /= 1000.0;
        factor += 1;
    }
    let digits = usize::from(factor > 0 && value < 9.95);
    format!("{value:.digits$}{}{unit}", FACTORS[factor])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_five_columns_at_most_whatever_they_are() {
        for power in 0..16 {
            for number in [1, 9, 95, 99, 994, 999].map(|digits: u64| digits.saturating_mul(10u64.pow(power) / 100)) {
                for shown in [
                    count(number),
                    bytes(number),
                    time(number),
                    bits_per_s(Some(number as f64)),
                ] {
                    assert!(shown.len() <= 5, "{number}: {shown}");
                }
            }
        }
        assert_eq!([count(9_999), bytes(1_500), time(12_300)], ["9999", "1.5kB", "12ms"]);
        assert_eq!([bits_per_s(None), bits_per_s(Some(9.5e6)), time(0)], ["-", "9.5M", "-"]);
    }

    #[test]
    fn what_has_no_column_of_its_own_is_a_question_mark() {
        let hostile = "a\u{1b}[2J\u{200b}\u{202e}\n\te\u{301}\u{7f}\u{ad}";
        assert_eq!(clean(hostile), "a?[2J????e???");
        assert_eq!(clean("日本 ü"), "日本 ü");
    }

    #[test]
    fn a_long_text_is_cut_where_it_matters_least() {
        assert_eq!(fitted("short", 5, false, "…"), "short");
        assert_eq!(fitted("background", 8, false, "…"), "backgro…");
        assert_eq!(fitted("192.168.100.12:5201", 10, true, "…"), "…0.12:5201");
        assert_eq!(
            fitted("日本語", 4, false, "…"),
            "日…",
            "a wide character that does not fit is left out"
        );
        assert_eq!(fitted("abc", 0, false, ""), "");
    }
}
