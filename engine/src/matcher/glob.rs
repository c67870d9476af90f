// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Patterns in which `*` is any text and `?` any character. A text is matched in time linear in its length, whatever
//! pattern and text contain: both may be a hostile user's, and are matched at a high priority.
//!
//! Between two `*` the first position where a part matches is as good as any later one, so no position is tried again.
//! A part is searched with one bit for each of its bytes (Baeza-Yates and Gonnet's shift-and).

use std::fmt::{self, Display, Formatter};

/// Bytes of a pattern, and of each part between two `*`.
const LONGEST: usize = 256;
const LONGEST_PART: usize = 64;

/// A pattern, with its original text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Glob(String);

impl Glob {
    pub fn new(pattern: &str) -> Self {
        Self(pattern.to_owned())
    }

    /// # Errors
    /// Where the pattern is too long.
    pub fn check(pattern: &str) -> Result<(), String> {
        if pattern.len() > LONGEST {
            return Err(format!("must be at most {LONGEST} bytes long"));
        }
        if pattern.split('*').any(|part| part.len() > LONGEST_PART) {
            return Err(format!("must have at most {LONGEST_PART} bytes between two *"));
        }
        Ok(())
    }

    /// Whether it is one word and no path: as a command line, a program name without arguments.
    pub fn is_bare_name(&self) -> bool {
        !self.0.contains(|c: char| "*?/".contains(c) || c.is_whitespace())
    }

    /// The path of the program at the beginning of every match: its first word, without `*` at the end.
    pub fn program(&self) -> Option<&str> {
        let word = self.0.split_whitespace().next()?.trim_end_matches('*');
        let is_path = word.starts_with(['/', '.']) && word.contains('/') && !word.ends_with('/');
        (is_path && !word.contains(['*', '?']) && !self.0.starts_with(char::is_whitespace)).then_some(word)
    }

    /// Whether it matches only one text.
    pub fn is_exact(&self) -> bool {
        !self.0.contains(['*', '?'])
    }

    pub fn matches(&self, text: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else {
            return after(&self.0, text).is_some_and(str::is_empty);
        };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let inner = after(first, text).and_then(|text| before(last, text));
        let Some(mut text) = inner else { return false };
        let mut places = Places([0; 256]);
        middle.split('*').all(|part| match places.find(part, text) {
            Some(behind) => {
                text = behind;
                true
            }
            None => false,
        })
    }
}

impl Display for Glob {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The rest after a leading part.
fn after<'a>(part: &str, text: &'a str) -> Option<&'a str> {
    let mut chars = text.chars();
    let fits = part.chars().all(|wanted| chars.next().is_some_and(|c| is(wanted, c)));
    fits.then_some(chars.as_str())
}

/// The rest before a trailing part.
fn before<'a>(part: &str, text: &'a str) -> Option<&'a str> {
    let mut chars = text.chars();
    let mut parts = part.chars().rev();
    let fits = parts.all(|wanted| chars.next_back().is_some_and(|c| is(wanted, c)));
    fits.then_some(chars.as_str())
}

fn is(wanted: char, found: char) -> bool {
    wanted == '?' || wanted == found
}

/// Bytes 0x80 to 0xbf, which are not the first of their character.
fn is_inside(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// For each byte, its positions in a part; a bit each. All zero between two parts.
struct Places([u64; 256]);

impl Places {
    /// The rest after the first match of the part.
    fn find<'a>(&mut self, part: &str, text: &'a str) -> Option<&'a str> {
        let part = part.as_bytes();
        let Some(last) = part.len().checked_sub(1) else {
            return Some(text);
        };
        let (mut any, mut bit) = (0, 1_u64);
        for byte in part {
            match byte {
                b'?' => any |= bit,
                byte => self.0[usize::from(*byte)] |= bit,
            }
            bit = bit.wrapping_shl(1);
        }
        let end = self.end(any, 1_u64.checked_shl(last as u32)?, text.as_bytes());
        part.iter().for_each(|byte| self.0[usize::from(*byte)] = 0);
        // A match that ends within a character ends behind it.
        text.get(text.ceil_char_boundary(end?)..)
    }

    fn end(&self, any: u64, last: u64, text: &[u8]) -> Option<usize> {
        let mut fitting = 0_u64;
        for (at, byte) in text.iter().enumerate() {
            // A `?` begins with the first byte of a character and lasts until its last one.
            let (begins, stays) = if is_inside(*byte) { (0, any) } else { (any, 0) };
            let next = ((fitting << 1) | 1) & (self.0[usize::from(*byte)] | begins);
            fitting = next | (fitting & stays);
            if fitting & last != 0 {
                return Some(at + 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    /// By definition: every position is tried.
    fn by_the_book(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|at| by_the_book(rest, &text[at..])),
            Some((wanted, rest)) => {
                let fits = |(c, left): (&char, &[char])| is(*wanted, *c) && by_the_book(rest, left);
                text.split_first().is_some_and(fits)
            }
        }
    }

    fn chars(text: &str) -> Vec<char> {
        text.chars().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn matches_agree_with_exhaustive_search(pattern in "[ab*?ä€]{0,9}", text in "[abä€]{0,12}") {
            let expected = by_the_book(&chars(&pattern), &chars(&text));
            prop_assert_eq!(Glob::new(&pattern).matches(&text), expected);
        }

        #[test]
        fn any_pattern_and_text_are_handled(pattern: String, text: String) {
            Glob::new(&pattern).matches(&text);
        }
    }

    #[test]
    fn a_pattern_that_is_too_long_is_refused() {
        assert!(Glob::check(&"a*".repeat(LONGEST / 2)).is_ok());
        let long = Glob::check(&"a*".repeat(LONGEST)).unwrap_err();
        assert_eq!(long, "must be at most 256 bytes long");
        let part = Glob::check(&"a".repeat(LONGEST_PART + 1)).unwrap_err();
        assert_eq!(part, "must have at most 64 bytes between two *");
    }

    #[test]
    fn a_part_may_have_the_full_length() {
        let part = "b".repeat(LONGEST_PART);
        assert!(Glob::new(&format!("*{part}*")).matches(&format!("aaa{part}aaa")));
        assert!(!Glob::new(&format!("*{part}*")).matches(&format!("aaa{}aaa", &part[1..])));
    }
}
