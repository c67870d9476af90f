// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No circle of files in `engine/src`, `daemon/src` and `lab/src`: each can be read with what it rests upon, and without what
//! rests upon it.
//!
//! An arrow runs from a file to the file that defines the name it uses: by `use`, by a path, in a macro's arguments, through
//! re-exports. Code for tests has none. What a file takes from its own parents by `super::` has none either: it is a part of
//! them. The same name by `crate::` has one, and so has what a parent only re-exports. A method's call has none, wherever its
//! `impl` block is.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::{self, Arrows, told};
use super::{names, source};

#[test]
fn no_file_is_in_a_circle() {
    let mut in_circles = BTreeSet::new();
    for name in ["engine", "daemon", "lab"] {
        let arrows = arrows(&source::files(name));
        for circle in graph::circles(&arrows) {
            println!("{name}/src: {}", told(&arrows, &circle));
            in_circles.extend(circle.iter().map(|file| format!("{name}/src/{file}")));
        }
    }
    assert!(in_circles.is_empty(), "in a circle (above): {in_circles:#?}");
}

fn arrows(files: &BTreeMap<String, String>) -> Arrows {
    names::arrows(&source::modules(files))
}

/// The arrows of a crate: (file, text).
fn drawn(files: &[(&str, &str)]) -> Vec<String> {
    let files = files
        .iter()
        .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()));
    let arrows = arrows(&files.collect());
    let of_file = |(from, to): (&String, &BTreeMap<String, BTreeSet<String>>)| {
        let from = from.trim_end_matches(".rs").to_owned();
        to.keys()
            .map(move |to| format!("{from} {}", to.trim_end_matches(".rs")))
            .collect::<Vec<_>>()
    };
    arrows.iter().flat_map(of_file).collect()
}

#[test]
fn circle_is_reported_by_its_shortest_path() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b::{self, B}; pub struct A(B); fn a() { b::b() }"),
        ("b.rs", "pub struct B; pub fn b() { crate::c::c() }"),
        (
            "c.rs",
            "pub fn c() -> Option<crate::b::B> { println!(\"{}\", crate::a::A); crate::d::d() }",
        ),
        ("d.rs", "pub fn d() {}"),
    ];
    let files = files.map(|(file, text)| (file.to_owned(), text.to_owned()));
    let arrows = arrows(&files.into());
    let circles = graph::circles(&arrows);
    assert_eq!(circles.len(), 1);
    assert_eq!(
        told(&arrows, &circles[0]),
        "a circle of 3 files: a.rs b.rs c.rs\n    b.rs -> c.rs: crate::c::c\n    c.rs -> b.rs: crate::b::B\n"
    );
}

#[test]
fn an_arrow_runs_to_the_file_that_defines() {
    let rest = [
        ("lib.rs", "mod a; mod b; mod c;"),
        (
            "b.rs",
            "mod inner; pub use inner::{deep as renamed, Kind, *}; pub use crate::c::c;",
        ),
        ("b/inner.rs", "pub fn deep() {} pub fn other() {} pub enum Kind { One }"),
        ("c.rs", "pub fn c() {}"),
    ];
    for (text, arrow) in [
        ("use crate::b::renamed;", "a b/inner"),
        ("use crate::b; fn a() { b::renamed() }", "a b/inner"),
        ("use super::b::c as d;", "a c"),
        ("fn a() { crate::b::other() }", "a b/inner"),
        ("use crate::b::*; fn a() { other() }", "a b/inner"),
        ("use crate::b::Kind::*; fn a() { g(One) }", "a b/inner"),
        ("#[given(by = crate::b::other)] struct A;", "a b/inner"),
        ("fn a() { vec![crate::b::other()] }", "a b/inner"),
        ("mod inline { fn a() { super::super::c::c() } }", "a c"),
    ] {
        let arrows = drawn(&[&rest[..], &[("a.rs", text)]].concat());
        assert_eq!(arrows, [arrow, "b b/inner", "b c"], "{text}");
    }
}

#[test]
fn super_paths_make_no_arrow() {
    let of_child = |text| {
        drawn(&[
            ("lib.rs", "mod a; mod b; pub fn l() {}"),
            ("a.rs", "mod child; use crate::b::b; pub struct A;"),
            ("a/child.rs", text),
            ("b.rs", "pub fn b() {}"),
        ])
    };
    for text in [
        "use super::A;",
        "use super::*; type B = A;",
        "use super::super::l;",
        "fn c() { super::A; }",
        "use super::super::a; fn c() { a::A; }",
    ] {
        assert_eq!(of_child(text), ["a b"], "{text}");
    }
    for (text, arrow) in [
        ("use crate::a::A;", "a/child a"),
        ("use crate::a; fn c() { a::A; }", "a/child a"),
        ("use super::b;", "a/child b"),
        ("use super::super::b::b;", "a/child b"),
    ] {
        assert_eq!(of_child(text), ["a b", arrow], "{text}");
    }
}

#[test]
fn code_for_tests_has_no_arrows() {
    let arrows = drawn(&[
        ("lib.rs", "mod a; mod b; #[cfg(test)] mod sample;"),
        (
            "a.rs",
            "#[cfg(test)] use crate::b::b; #[cfg(test)] mod tests { use crate::b::b; }",
        ),
        (
            "b.rs",
            "pub fn b() {} struct B; impl B { #[cfg(test)] fn c() { crate::a::a() } }",
        ),
    ]);
    assert_eq!(arrows, [""; 0]);
}
