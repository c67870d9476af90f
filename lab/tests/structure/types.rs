// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A type's name says what it is, and is its own: no two types of a crate have the same one, unless each of them is private
//! to its module. A `use` hides the module, so that `trial::Answer` and `control::Answer` are the same to who reads on.

use std::collections::BTreeMap;

use super::source;

/// What is seen, or told, may be anything: the name is to say what.
const VAGUE: [&str; 7] = ["Seen", "Found", "Held", "Known", "Told", "Given", "Said"];

#[test]
fn no_two_types_have_one_name() {
    check(&["engine", "daemon", "lab"], is_shared);
}

#[test]
fn no_type_has_a_vague_name() {
    check(&["engine", "daemon", "lab"], is_vague);
}

/// Where it is, and whether it is private to its module.
type Definition = (String, bool);
type Rule = fn(&str, &[Definition]) -> bool;

/// A subject of the engine has these three of its own; they are always written with its name (`queue::Input`).
const OF_SUBJECTS: [&str; 3] = ["Input", "Action", "Outcome"];

fn is_shared(name: &str, definitions: &[Definition]) -> bool {
    !OF_SUBJECTS.contains(&name) && definitions.len() > 1 && definitions.iter().any(|(_, is_private)| !is_private)
}

fn is_vague(name: &str, _: &[Definition]) -> bool {
    VAGUE.contains(&name)
}

fn check(crates: &[&str], is_broken: Rule) {
    let broken: Vec<_> = crates
        .iter()
        .flat_map(|name| {
            offenders(&source::files(name), is_broken)
                .into_iter()
                .map(move |of| format!("{name}: {of}"))
        })
        .collect();
    assert!(broken.is_empty(), "to be named by what they are: {broken:#?}");
}

/// Each name that breaks the rule, with the files of its definitions.
fn offenders(files: &BTreeMap<String, String>, is_broken: Rule) -> Vec<String> {
    let mut all: BTreeMap<String, Vec<Definition>> = BTreeMap::new();
    for module in source::modules(files) {
        for found in module.types {
            all.entry(found.name)
                .or_default()
                .push((module.file.clone(), found.is_private));
        }
    }
    all.retain(|name, definitions| is_broken(name, definitions));
    let of_name = |(name, definitions): (String, Vec<Definition>)| {
        let files: Vec<String> = definitions.into_iter().map(|(file, _)| file).collect();
        format!("{name} ({})", files.join(", "))
    };
    all.into_iter().map(of_name).collect()
}

/// In a crate of two modules and an inline one, with a file for tests.
fn planted(a: &str, b: &str, is_broken: Rule) -> Vec<String> {
    let files = [
        ("lib.rs", "mod a; mod b; #[cfg(test)] mod sample;"),
        ("a.rs", a),
        ("b.rs", b),
        ("sample.rs", "pub struct Answer; pub struct Told;"),
    ];
    let files = files.map(|(file, text)| (file.to_owned(), text.to_owned()));
    offenders(&files.into(), is_broken)
}

#[test]
fn a_name_is_shared_where_one_of_its_types_is_not_private() {
    for (a, b) in [
        ("pub struct Answer;", "pub enum Answer {}"),
        ("pub(super) trait Answer {}", "struct Answer;"),
        ("type Answer = u8;", "pub(crate) union Answer { a: u8 }"),
        ("struct Answer;", "mod inner { pub struct Answer; }"),
    ] {
        let shared = planted(a, b, is_shared);
        assert_eq!(shared, ["Answer (a.rs, b.rs)"], "{a} {b}");
    }
    for (a, b) in [
        ("struct Answer;", "struct Answer;"),
        ("pub struct Answer;", "pub struct Reply; pub use crate::a::Answer;"),
        ("pub struct Answer;", "fn answer() { Answer }"),
        ("pub struct Answer;", "#[cfg(test)] mod tests { pub struct Answer; }"),
        ("pub struct Answer;", "pub enum Event { Answer(crate::a::Answer) }"),
        ("pub struct Answer;", "impl Iterator for B { type Answer = u8; }"),
    ] {
        assert_eq!(planted(a, b, is_shared), [""; 0], "{a} {b}");
    }
}

#[test]
fn a_vague_name_is_none_for_a_private_type_either() {
    for a in ["struct Told;", "pub enum Told {}", "fn a() { struct Told; }"] {
        assert_eq!(planted(a, "pub struct Reply;", is_vague), ["Told (a.rs)"], "{a}");
    }
    assert_eq!(planted("struct ToldOnce;", "enum Event { Told }", is_vague), [""; 0]);
}
