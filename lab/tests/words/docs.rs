// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages: their words, the length of their lines, and how much there is of them.

use std::fs;
use std::path::{Path, PathBuf};

use super::patterns::findings_in_page;

const LONGEST_LINE: usize = 100;
const MOST_WORDS: usize = 45_000;
/// Of tutorials and how-tos together.
const MOST_LINES_OF_GUIDES: usize = 1_300;
const ELSEWHERE: [&str; 4] = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bpf/README.md"];
/// Made from the program's own texts.
const GENERATED: [&str; 3] = [
    "docs/reference/command-line.md",
    "docs/reference/configuration.md",
    "docs/reference/metrics.md",
];

struct Page {
    /// Below the repository's root.
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn pages() -> Vec<Page> {
    let mut paths: Vec<String> = ELSEWHERE.map(str::to_owned).to_vec();
    add_below("docs", &mut paths);
    paths.sort();
    let page = |path: String| {
        let text = fs::read_to_string(root().join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        Page { path, text }
    };
    paths.into_iter().map(page).collect()
}

fn add_below(folder: &str, paths: &mut Vec<String>) {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    for entry in entries {
        let entry = entry.expect("an entry");
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            add_below(&path, paths);
        } else if path.ends_with(".md") {
            paths.push(path);
        }
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Kind {
    Text,
    Table,
    Code,
    /// `[name]: target "title"`
    Link,
    Blank,
}

impl Page {
    fn is_generated(&self) -> bool {
        GENERATED.contains(&self.path.as_str())
    }

    /// Each line with its number and its kind.
    fn lines(&self) -> Vec<(usize, Kind, &str)> {
        let mut is_fenced = false;
        let kind = |line: &str| {
            if line.trim_start().starts_with("```") {
                is_fenced = !is_fenced;
                return Kind::Code;
            }
            match line {
                _ if is_fenced => Kind::Code,
                _ if line.trim().is_empty() => Kind::Blank,
                _ if line.starts_with("    ") => Kind::Code,
                _ if line.trim_start().starts_with('|') => Kind::Table,
                _ if line.starts_with('[') && line.contains("]: ") => Kind::Link,
                _ => Kind::Text,
            }
        };
        let kinds: Vec<Kind> = self.text.lines().map(kind).collect();
        let lines = self.text.lines().zip(kinds).enumerate();
        lines.map(|(at, (line, kind))| (at + 1, kind, line)).collect()
    }

    /// Lines of text that follow each other are one, so that a phrase may go over an end of line; each with the number of its
    /// first line.
    fn passages(&self) -> Vec<(usize, String)> {
        let mut passages: Vec<(usize, String)> = Vec::new();
        let mut before = Kind::Blank;
        for (at, kind, line) in self.lines() {
            match (before, kind) {
                (_, Kind::Blank | Kind::Link) => {}
                (Kind::Text, Kind::Text) => {
                    if let Some((_, passage)) = passages.last_mut() {
                        passage.push(' ');
                        passage.push_str(line.trim());
                    }
                }
                _ => passages.push((at, line.trim().to_owned())),
            }
            before = kind;
        }
        passages
    }
}

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "{}:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn docs_say_the_fields_words() {
    let mut problems = Vec::new();
    for page in pages() {
        for (at, passage) in page.passages() {
            let path = &page.path;
            problems.extend(
                findings_in_page(&passage)
                    .iter()
                    .map(|finding| format!("{path}:{at}: {finding}")),
            );
        }
    }
    assert_none(&problems);
}

#[test]
fn no_line_of_docs_is_long() {
    let mut problems = Vec::new();
    for page in pages() {
        for (at, kind, line) in page.lines() {
            let length = line.chars().count();
            if kind == Kind::Text && length > LONGEST_LINE {
                problems.push(format!(
                    "{}:{at}: {length} characters, {LONGEST_LINE} at most",
                    page.path
                ));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn docs_stay_short() {
    let pages = pages();
    let by_hand = pages.iter().filter(|page| !page.is_generated());
    let words: usize = by_hand.map(|page| page.text.split_whitespace().count()).sum();
    assert!(words < MOST_WORDS, "{words} words, below {MOST_WORDS}");
    let is_guide = |page: &&Page| {
        ["docs/tutorials/", "docs/how-to/"]
            .iter()
            .any(|folder| page.path.starts_with(folder))
    };
    let lines: usize = pages
        .iter()
        .filter(is_guide)
        .map(|page| page.text.lines().count())
        .sum();
    assert!(
        lines <= MOST_LINES_OF_GUIDES,
        "{lines} lines of tutorials and how-tos, {MOST_LINES_OF_GUIDES} at most"
    );
}

#[test]
fn each_line_has_its_kind() {
    let text = "A text\nthat goes on.\n\n| a | b |\n    code\n```\nmore code\n```\n[name]: target \"title\"\n";
    let page = Page {
        path: "a.md".to_owned(),
        text: text.to_owned(),
    };
    let kinds: Vec<Kind> = page.lines().into_iter().map(|(_, kind, _)| kind).collect();
    let wanted = [
        Kind::Text,
        Kind::Text,
        Kind::Blank,
        Kind::Table,
        Kind::Code,
        Kind::Code,
        Kind::Code,
        Kind::Code,
        Kind::Link,
    ];
    assert!(kinds == wanted);
    assert_eq!(page.passages()[0], (1, "A text that goes on.".to_owned()));
}
