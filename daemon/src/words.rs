// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Foreign words on their way out: names of programs, control groups, units, links and files, which users and peers
//! choose and others look at. Input: text. Output: the same with nothing in it that a terminal acts upon, that turns the text
//! around it, or that cannot be seen. All that is printed, logged, drawn or answered passes here.

use serde::Serialize;

const MOST_CHARACTERS: usize = 300;

/// Control characters but for the end of a line, and what Unicode has for directions, invisible joints and line ends.
pub fn misleads(c: char) -> bool {
    match c {
        '\n' => false,
        '\u{ad}'
        | '\u{61c}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}' => true,
        c => c.is_control(),
    }
}

/// A text of several lines.
pub fn printable(text: &str) -> String {
    text.replace(misleads, "?")
}

/// One line, whatever is in it.
pub fn one_line(text: &str) -> String {
    printable(text.trim_end()).replace('\n', " ")
}

/// For a page: no name turns the text around it there either, or goes on for ever.
pub fn clipped(text: &str) -> String {
    let shown = |c: char| if misleads(c) || c == '\n' { '?' } else { c };
    let mut short: String = text.chars().take(MOST_CHARACTERS).map(shown).collect();
    if text.chars().nth(MOST_CHARACTERS).is_some() {
        short.push('…');
    }
    short
}

/// One line of JSON, with its end. These characters are escaped in it: whoever parses it finds them again.
///
/// # Errors
/// Where the value cannot be put into JSON.
pub fn json_line(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(escaped(&serde_json::to_string(value)?) + "\n")
}

/// The same JSON: these characters are found in its strings alone.
fn escaped(json: &str) -> String {
    if !json.contains(misleads) {
        return json.to_owned();
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if misleads(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                escaped += &format!("\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    const WICKED: [&str; 8] = [
        "\u{9b}1mEVIL",
        "\u{7f}",
        "\u{1b}]0;title\u{7}",
        "\u{202e}lave",
        "\u{2066}",
        "a\u{200b}b",
        "a\u{2028}b",
        "\u{e0041}",
    ];

    #[test]
    fn what_a_terminal_acts_upon_is_escaped_in_json_and_shown_as_a_question_mark_in_text() {
        for wicked in WICKED {
            let json = json_line(&wicked).unwrap();
            assert!(!json.contains(misleads), "{json:?}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), wicked);
            let text = printable(wicked);
            assert!(text.contains('?') && !text.contains(misleads), "{text:?}");
        }
        assert_eq!(json_line(&"é €").unwrap(), "\"é €\"\n");
        assert_eq!(printable("é €\nb"), "é €\nb");
    }

    #[test]
    fn a_line_of_the_log_is_one_line() {
        assert_eq!(one_line("a\nINFO forged\r\n"), "a INFO forged");
    }
}
