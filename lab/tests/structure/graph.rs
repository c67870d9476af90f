// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Circles of a graph of files, and what is told of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

/// From a file, to a file, by which names.
pub type Arrows = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// All files that reach each other, where it is more than one: the strongly connected components.
pub fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<String>> = arrows
        .keys()
        .map(|file| (file, before_each(arrows, file).into_keys().collect()))
        .collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (file, others) in &reached {
        let there_and_back = |other: &&String| reached.get(other).is_some_and(|back| back.contains(*file));
        let circle: BTreeSet<String> = others.iter().filter(there_and_back).cloned().collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

/// A circle's files, and its shortest way around with the names that it goes by: one of them has to go.
pub fn told(arrows: &Arrows, circle: &BTreeSet<String>) -> String {
    let mut text = format!("a circle of {} files:", circle.len());
    for file in circle {
        let _ = write!(text, " {file}");
    }
    let ways = circle.iter().map(|file| way_around(arrows, file));
    let way = ways.min_by_key(Vec::len).unwrap_or_default();
    for step in way.windows(2) {
        let names: Vec<&str> = arrows[&step[0]][&step[1]].iter().map(String::as_str).collect();
        let _ = write!(text, "\n    {} -> {}: {}", step[0], step[1], names.join(", "));
    }
    text + "\n"
}

/// The shortest, from a file of a circle to itself.
fn way_around(arrows: &Arrows, file: &str) -> Vec<String> {
    let before = before_each(arrows, file);
    let mut way = vec![file.to_owned()];
    loop {
        let earlier = before[&way[way.len() - 1]].clone();
        way.push(earlier);
        if way[way.len() - 1] == *file {
            way.reverse();
            return way;
        }
    }
}

/// Each file that is reached from one, and the file before it on a shortest way.
fn before_each(arrows: &Arrows, from: &str) -> BTreeMap<String, String> {
    let mut before = BTreeMap::new();
    let mut open = VecDeque::from([from.to_owned()]);
    while let Some(file) = open.pop_front() {
        for next in arrows.get(&file).into_iter().flat_map(BTreeMap::keys) {
            if !before.contains_key(next) {
                before.insert(next.clone(), file.clone());
                open.push_back(next.clone());
            }
        }
    }
    before
}
