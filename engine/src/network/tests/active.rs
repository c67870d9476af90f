// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The focus over time: all flows follow it, and frequent changes cost little.

use super::classes::{HOG, OTHER, class_of, costly, flows_of, identify, obey, see, slow_rules};
use super::*;
use crate::class::Activity;
use crate::model::{Class, Process};

const BULK: &str = "[[rule]]\nport = 5201\nclass = \"bulk\"\n";

fn activate(engine: &mut Network, ms: u64, active: &[(u32, &str)]) {
    let activity = |(uid, cgroup): &(u32, &str)| Activity {
        uid: *uid,
        seat: None,
        cgroup: (*cgroup).to_owned(),
    };
    let active = active.iter().map(activity).collect();
    let actions = engine.step(
        Duration::from_millis(ms),
        Input::Class(crate::class::Input::Active(active)),
    );
    assert!(actions.is_empty(), "{actions:?}");
}

/// An engine with one bulk flow each of two users, of one process in `/a`, which belongs to the first user.
fn two_uploads() -> Network {
    let mut engine = engine("", false);
    obey(&mut engine, 100, BULK);
    let flows = [flows_of(HOG, 1, 1), flows_of(OTHER, 2, 1)].concat();
    let flows = flows.into_iter().enumerate().map(|(n, flow)| Flow {
        owner: None,
        cgroup_id: n as u64,
        ..flow
    });
    see(&mut engine, 100, flows.collect(), true);
    let cgroups = [(0, "/a"), (1, "/b")]
        .map(|(id, path)| (id, Some(path.into())))
        .to_vec();
    let processes = Vec::new();
    engine.step(Duration::from_millis(100), Input::Identified { processes, cgroups });
    engine
}

fn classes(engine: &Network) -> [Class; 2] {
    [1, 2].map(|cookie| class_of(engine, cookie))
}

#[test]
fn quiet_flows_follow_the_focus_and_back() {
    let mut engine = two_uploads();
    activate(&mut engine, 200, &[(0, "/a")]);
    see(&mut engine, 200, Vec::new(), false);
    assert_eq!(classes(&engine), [Class::Bulk, Class::Background]);
    let view = engine.status(Duration::from_secs(1));
    assert_eq!(view.flows[1].class_rule, "a.toml:1");
    assert!(view.flows[1].class_reason.contains("/a (giveway focus by uid 0)"));
    assert_eq!(view.focus[0].cgroup, "/a");
    activate(&mut engine, 400, &[]);
    see(&mut engine, 400, Vec::new(), false);
    assert_eq!(classes(&engine), [Class::Bulk; 2]);
}

#[test]
fn a_users_focus_applies_to_own_flows_whoever_made_the_sockets() {
    let mut engine = two_uploads();
    activate(&mut engine, 200, &[(HOG, "/x")]);
    see(&mut engine, 200, Vec::new(), false);
    assert_eq!(classes(&engine), [Class::Background, Class::Bulk]);
    let accepted = flows_of(0, 3, 1);
    see(&mut engine, 500, accepted.clone(), false);
    see(&mut engine, 600, accepted, false);
    assert_eq!(class_of(&engine, 3), Class::Bulk);
    let process = Process {
        uid: HOG,
        cgroup: "/a".to_owned(),
        ..Process::default()
    };
    identify(&mut engine, 600, process);
    assert_eq!(class_of(&engine, 3), Class::Background);
}

#[test]
fn focus_changes_are_applied_at_most_five_times_a_second() {
    let mut engine = two_uploads();
    let mut changes = 0;
    for step in 0..100 {
        let ms = 1000 + step * 10;
        let before = class_of(&engine, 1);
        activate(
            &mut engine,
            ms,
            &[(HOG, if before == Class::Bulk { "/x" } else { "/a" })],
        );
        see(&mut engine, ms, Vec::new(), false);
        changes += u32::from(class_of(&engine, 1) != before);
    }
    assert_eq!(changes, 5);
}

#[test]
fn frequent_focus_changes_do_not_delay_other_users_flows() {
    let mut engine = engine("", false);
    obey(&mut engine, 100, &slow_rules());
    let flows = [flows_of(HOG, 1, 64), flows_of(OTHER, 1000, 1)].concat();
    see(&mut engine, 100, flows, true);
    identify(&mut engine, 100, costly());
    let mut followed = None;
    for pass in 2..100 {
        activate(
            &mut engine,
            pass * 100,
            &[(HOG, if pass % 4 < 2 { "/x" } else { "/y" })],
        );
        if pass == 20 {
            let text = slow_rules() + &BULK.replace("bulk", "stream");
            obey(&mut engine, pass * 100, &text);
        }
        see(&mut engine, pass * 100, Vec::new(), false);
        if class_of(&engine, 1000) == Class::Stream {
            followed.get_or_insert(pass);
        }
    }
    assert!(followed.is_some_and(|pass| pass <= 22), "{followed:?}");
}
