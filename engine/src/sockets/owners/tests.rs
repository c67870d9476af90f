// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is read, and what is forgotten.

use super::*;

fn asked(known: &mut OwnerTable<u64, Arc<str>>, keys: std::ops::Range<u64>) -> Vec<u64> {
    known.ask(Duration::ZERO, roots(keys), ASKED_AT_ONCE)
}

fn roots(keys: std::ops::Range<u64>) -> impl Iterator<Item = (u32, u64)> {
    keys.map(|key| (0, key))
}

#[test]
fn an_ended_process_keeps_its_last_properties() {
    let at = Duration::from_secs;
    let mut known = OwnerTable::<u64, Arc<str>>::default();
    assert_eq!(known.ask(at(5), roots(0..1), 64), [0]);
    assert!(known.answer(vec![(0, Some("/a".into()))]), "news");
    assert!(known.ask_again(at(5), roots(0..1), 64).is_empty());
    assert_eq!(known.ask_again(at(6), roots(0..1), 64), [0]);
    assert!(!known.answer(vec![(0, Some("/a".into()))]), "no news");
    assert!(!known.answer(vec![(0, None)]));
    assert_eq!(known.get(&0), Some(&"/a".into()));
}

#[test]
fn the_oldest_entry_is_read_again_first() {
    let at = Duration::from_secs;
    let mut known = OwnerTable::<u64, Arc<str>>::default();
    known.ask(at(1), roots(5..10), 64);
    known.ask(at(2), roots(0..5), 64);
    assert_eq!(known.ask_again(at(9), roots(0..10), 6), [5, 6, 7, 8, 9, 0]);
    assert_eq!(known.ask_again(at(9), roots(0..10), 6), [1, 2, 3, 4]);
}

#[test]
fn each_owner_is_requested_once_and_requests_are_bounded() {
    let mut known = OwnerTable::default();
    assert_eq!(asked(&mut known, 0..100), (0..64).collect::<Vec<_>>());
    assert_eq!(asked(&mut known, 0..100), (64..100).collect::<Vec<_>>());
    assert!(asked(&mut known, 0..100).is_empty());
    known.answer(vec![(7, Some("/a".into())), (8, None), (1000, Some("/b".into()))]);
    assert_eq!(
        (known.get(&7), known.get(&8), known.get(&1000)),
        (Some(&"/a".into()), None, None)
    );
    assert!(asked(&mut known, 0..100).is_empty(), "though one had no answer");
}

#[test]
fn an_owner_without_flows_is_forgotten() {
    let mut known = OwnerTable::default();
    asked(&mut known, 0..3);
    known.answer(vec![(1, Some("/a".into()))]);
    known.retain(&BTreeSet::from([0, 2]));
    assert_eq!(known.get(&1), None);
    assert_eq!(asked(&mut known, 0..3), [1]);
}

#[test]
fn the_oldest_entry_is_evicted() {
    let mut known = OwnerTable::<u64, Arc<str>>::default();
    for first in (0..KEPT as u64 + 64).step_by(64) {
        asked(&mut known, first..first + 64);
    }
    assert_eq!((known.entries.len(), known.order.len()), (KEPT, KEPT));
    assert_eq!(asked(&mut known, 63..64), [63]);
    assert!(asked(&mut known, 65..66).is_empty(), "65 is still known");
}
