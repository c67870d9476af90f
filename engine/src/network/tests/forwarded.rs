// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Forwarded traffic of cgroups over time: senders are identified and classified, the queue gets their treatments,
//! within bounds.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::classes::{obey, see, slow_rules};
use super::*;
use crate::class::Activity;
use crate::model::{Class, Forwarded};
use crate::network::action::Action;

const RULES: &str =
    "[[rule]]\nport = 443\nclass = \"stream\"\n[[rule]]\ncgroup = \"/a\"\nclass = \"bulk\"\nupload_limit_mbit = 1\n";

fn send(engine: &mut Network, ms: u64, cgroups: impl IntoIterator<Item = u64>) -> Vec<Action> {
    let sending: BTreeSet<u64> = cgroups.into_iter().collect();
    engine.step(
        Duration::from_millis(ms),
        Input::Class(crate::class::Input::Forwarding(sending)),
    )
}

fn asked(actions: &[Action]) -> Vec<u64> {
    let of = |action: &Action| match action {
        Action::Identify(Unidentified { cgroups, .. }) => cgroups.clone(),
        _ => Vec::new(),
    };
    actions.iter().flat_map(of).collect()
}

fn told(actions: &[Action]) -> Vec<(u64, Option<Forwarded>)> {
    let of = |action: &Action| match action {
        Action::Class(crate::class::Action::TreatForwarded { cgroup, told }) => Some((*cgroup, *told)),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

fn answer(engine: &mut Network, ms: u64, paths: impl IntoIterator<Item = (u64, String)>) -> Vec<Action> {
    let cgroups = paths.into_iter().map(|(id, path)| (id, Some(Arc::from(path))));
    let (processes, cgroups) = (Vec::new(), cgroups.collect());
    engine.step(Duration::from_millis(ms), Input::Identified { processes, cgroups })
}

/// An engine that knows two, of which `/a` is bulk.
fn two() -> (Network, Vec<Action>) {
    let mut engine = engine("", false);
    obey(&mut engine, 100, RULES);
    assert_eq!(asked(&send(&mut engine, 100, [1, 2])), [1, 2]);
    let actions = answer(&mut engine, 200, [(1, "/a".to_owned()), (2, "/b".to_owned())]);
    (engine, actions)
}

#[test]
fn a_cgroups_treatment_is_installed_once() {
    let (mut engine, actions) = two();
    let [(1, Some(of_a))] = told(&actions)[..] else {
        panic!("{actions:?}");
    };
    assert_eq!((of_a.treatment.class, of_a.treatment.limits.up), (Class::Bulk, Some(1)));
    assert_eq!(of_a.rules_before, 1);
    assert!(send(&mut engine, 1200, [1, 2]).is_empty(), "nothing is new");
    let view = engine.status(Duration::from_secs(2)).forwarded;
    assert_eq!(view.len(), 1);
    assert_eq!((&*view[0].cgroup, &*view[0].class_rule), ("/a", "a.toml:4"));
}

#[test]
fn changed_rules_apply_at_the_next_poll_and_are_recorded() {
    let (mut engine, _) = two();
    obey(&mut engine, 300, "");
    assert_eq!(told(&send(&mut engine, 1200, [1, 2])), [(1, None)]);
    let lines: Vec<String> = engine
        .changes()
        .iter()
        .map(|latest| latest.change.to_string())
        .collect();
    assert!(lines[0].contains("class bulk -> standard; rule default"), "{lines:?}");
    assert!(engine.status(Duration::from_secs(2)).forwarded.is_empty());
}

#[test]
fn a_cgroup_that_stops_sending_is_forgotten_and_classified_again_on_return() {
    let (mut engine, _) = two();
    send(&mut engine, 1200, [2]);
    assert!(engine.status(Duration::from_secs(2)).forwarded.is_empty());
    assert_eq!(asked(&send(&mut engine, 2200, [1, 2])), [1]);
    assert_eq!(told(&answer(&mut engine, 2300, [(1, "/a".to_owned())])).len(), 1);
}

#[test]
fn forwarded_traffic_yields_to_the_common_focus_only() {
    let (mut engine, _) = two();
    let class_while_active = |engine: &mut Network, ms, uid| {
        let of = Activity {
            uid,
            seat: None,
            cgroup: "/c".to_owned(),
        };
        engine.step(
            Duration::from_millis(ms),
            Input::Class(crate::class::Input::Active(vec![of])),
        );
        see(engine, ms + 500, Vec::new(), false);
        send(engine, ms + 1000, [1, 2]);
        engine.status(Duration::from_secs(9)).forwarded[0].class
    };
    assert_eq!(class_while_active(&mut engine, 1000, 1000), Class::Bulk);
    assert_eq!(class_while_active(&mut engine, 3000, 0), Class::Background);
}

#[test]
fn path_requests_are_bounded_and_all_cgroups_are_classified_in_time() {
    let mut engine = engine("", false);
    obey(&mut engine, 100, &slow_rules());
    let mut known = 0;
    for look in 1..=60 {
        let cgroups = asked(&send(&mut engine, look * 1000, 0..2000));
        assert!(cgroups.len() <= 24, "{}", cgroups.len());
        known += cgroups.len();
        let paths = cgroups.into_iter().map(|id| (id, format!("/{}", "ab".repeat(1000))));
        answer(&mut engine, look * 1000 + 1, paths);
    }
    assert_eq!(known, 1024);
}

#[test]
fn changes_of_silent_cgroups_are_forgotten_first() {
    let mut engine = engine("", false);
    obey(&mut engine, 100, "[[rule]]\ncgroup = \"/*\"\nclass = \"bulk\"\n");
    send(&mut engine, 1000, [1]);
    answer(&mut engine, 1001, [(1, "/lives".to_owned())]);
    for look in 2..300 {
        let others = look * 24..(look + 1) * 24;
        let cgroups = asked(&send(&mut engine, look * 1000, others.chain([1])));
        let paths = cgroups.into_iter().map(|id| (id, format!("/other/{id}")));
        answer(&mut engine, look * 1000 + 1, paths);
    }
    let changes = engine.changes();
    assert_eq!(changes.len(), 4096, "as many as are kept");
    assert!(
        changes
            .iter()
            .any(|latest| latest.change.to_string().contains("/lives"))
    );
}

#[test]
fn an_unknown_path_is_requested_again_after_new_ones() {
    let mut engine = engine("", false);
    obey(&mut engine, 100, RULES);
    assert_eq!(asked(&send(&mut engine, 1000, [1])), [1]);
    let unknown = Input::Identified {
        processes: Vec::new(),
        cgroups: vec![(1, None)],
    };
    engine.step(Duration::from_millis(1001), unknown);
    assert_eq!(
        asked(&send(&mut engine, 2000, 1..=24)),
        (2..=24).chain([1]).collect::<Vec<_>>()
    );
    assert!(
        asked(&send(&mut engine, 3000, 1..=24)).is_empty(),
        "an answer is awaited"
    );
}
