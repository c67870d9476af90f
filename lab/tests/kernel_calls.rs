// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls are made by nix. What it lacks, and all that the compiler cannot check, is in the places below and nowhere else.

use std::fs;
use std::path::{Path, PathBuf};

/// A word of a source, and the folders and files that may have it.
const PLACES: [(&str, &[&str]); 3] = [
    (
        "unsafe",
        &[
            "daemon/src/kernel/",
            // An attribute alone: the C library's `main`.
            "daemon/src/main.rs",
            "lab/src/calls.rs",
            "lab/src/link/layout.rs",
            "lab/src/records.rs",
            // What one scenario alone does: seccomp, io_uring, frames, a limit of another process.
            "lab/src/scenarios/",
        ],
    ),
    (
        "libc::",
        &["daemon/src/kernel/", "lab/src/calls.rs", "lab/src/scenarios/"],
    ),
    ("rustix::", &["daemon/src/kernel/calls.rs"]),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of sources").flatten();
    let of_one = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    entries
        .flat_map(|entry| of_one(entry.path()))
        .filter(|path| path.extension().is_some_and(|kind| kind == "rs"))
        .collect()
}

/// In the code of this line, not in its comment.
fn has(line: &str, word: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let is_inside = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let behind = &code[at + word.len()..];
        !code[..at].ends_with(is_inside) && (word.ends_with(':') || !behind.starts_with(is_inside))
    })
}

#[test]
fn raw_calls_and_unsafe_code_are_where_they_may_be() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let files = ["daemon/src", "lab/src"].map(|folder| sources(&root.join(folder)));
    let mut elsewhere = Vec::new();
    let mut used = Vec::new();
    for file in files.into_iter().flatten() {
        let path = file.strip_prefix(root).unwrap().to_str().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            for (word, places) in PLACES.iter().filter(|(word, _)| has(line, word)) {
                match places.iter().find(|place| path.starts_with(**place)) {
                    Some(place) => used.push((word, place)),
                    None => elsewhere.push(format!("{path}:{number}: {}", line.trim())),
                }
            }
        }
    }
    assert!(elsewhere.is_empty(), "not here: {elsewhere:#?}");
    for (word, places) in &PLACES {
        let unused = places.iter().find(|place| !used.contains(&(word, *place)));
        assert_eq!(unused, None, "nothing there needs `{word}`: take it out of the list");
    }
}

#[test]
fn comments_and_parts_of_words_do_not_count() {
    assert!(has("    unsafe { call() }", "unsafe") && has("use nix::libc::fork;", "libc::"));
    assert!(!has("// unsafe", "unsafe") && !has("unsafe_op", "unsafe") && !has("mylibc::x", "libc::"));
}
