// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processes are reniced, and when they are restored.

use super::*;
use crate::class::Folders;
use crate::class::{Source, judge_itself};
use crate::model::Inherited;

const FIRST: ProcessId = ProcessId { pid: 5, start_ns: 1 };

fn rules(text: &str) -> Rules {
    let source = Source {
        path: "rules".to_owned(),
        name: "rules".to_owned(),
        text: Ok(text.to_owned()),
    };
    let folders = Folders {
        folders: vec![vec![source]],
        ..Folders::default()
    };
    let (rules, problems) = Rules::of(folders, &|_| None);
    assert!(problems.is_empty(), "{problems:?}");
    rules
}

const BACKUP: &str = "[[rule]]\nunit = \"backup.service\"\nclass = \"background\"\n";

fn process() -> Process {
    Process {
        uid: 7,
        cgroup: "/system.slice/backup.service".to_owned(),
        ..Process::default()
    }
}

fn judged(nice: &mut Niceness, rules: &Rules, id: ProcessId, is: Option<Nice>) {
    let process = process();
    let verdict = judge_itself(rules, &process, None).verdict;
    nice.judged(id, &process, verdict.as_ref(), is);
}

fn at(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn done() -> Outcome {
    Ok(Reniced {
        threads: 1,
        before: "nice 0".to_owned(),
        left: None,
    })
}

#[test]
fn a_packet_rule_does_not_hide_a_later_process_rule() {
    let by_packet = "[[rule]]\nport = 5\nclass = \"stream\"\n";
    let by_both = "[[rule]]\nunit = \"backup.service\"\nport = 5\nclass = \"stream\"\n";
    for (first, is_nice) in [(by_packet, true), (by_both, false)] {
        let mut nice = Niceness::new(true, false);
        let rules = rules(&format!("{first}{BACKUP}"));
        nice.set_rules(&rules);
        judged(&mut nice, &rules, FIRST, None);
        assert_eq!(!nice.due(at(1)).is_empty(), is_nice, "{first}");
    }
}

#[test]
fn process_rules_renice_and_packet_rules_do_not() {
    let mut nice = Niceness::new(true, false);
    let by_port = rules("[[rule]]\nunit = \"backup.service\"\nport = 5\nclass = \"background\"\n");
    nice.set_rules(&by_port);
    judged(&mut nice, &by_port, FIRST, None);
    assert!(nice.due(at(1)).is_empty());

    let by_unit = rules(BACKUP);
    let Some(Action::Causes(causes)) = nice.set_rules(&by_unit) else {
        panic!()
    };
    judged(&mut nice, &by_unit, FIRST, None);
    let [Action::Renice { cause: Some(cause), .. }] = nice.due(at(1))[..] else {
        panic!()
    };
    assert!(causes.contains(&cause));
    let change = nice.conclude(at(1), FIRST, done()).unwrap();
    assert!(change.made && change.rule == "rules:1", "{change}");

    // The same conditions in another line are the same rule.
    let moved = rules(&format!("\n{BACKUP}"));
    assert_eq!(nice.set_rules(&moved), Some(Action::Causes(causes)));
    judged(&mut nice, &moved, FIRST, None);
    assert!(nice.due(at(2)).is_empty());

    let none = rules("");
    nice.set_rules(&none);
    judged(&mut nice, &none, FIRST, None);
    assert!(gives_back(&nice.due(at(3))));
}

fn gives_back(actions: &[Action]) -> bool {
    matches!(
        actions,
        [Action::Renice {
            process: FIRST,
            cause: None,
            ..
        }]
    )
}

/// Its child process is in another unit.
fn judged_child(nice: &mut Niceness, rules: &Rules, is: Option<Nice>) -> Vec<Action> {
    let child = Process {
        cgroup: "/other.scope".to_owned(),
        inherited: judge_itself(rules, &process(), None).hands_on.map(|rule| Inherited {
            rule,
            name: "backup".to_owned(),
            ..Inherited::default()
        }),
        ..process()
    };
    let verdict = judge_itself(rules, &child, None).verdict;
    nice.judged(FIRST, &child, verdict.as_ref(), is);
    nice.due(at(1))
}

#[test]
fn children_that_inherit_background_are_reniced_and_others_restored() {
    let mut nice = Niceness::new(true, false);
    let handed_on = Some(Nice { by: 4, cause: 2 });
    let background = rules(BACKUP);
    nice.set_rules(&background);
    assert_eq!(judged_child(&mut nice, &background, handed_on), []);
    assert!(matches!(
        judged_child(&mut nice, &background, None)[..],
        [Action::Renice { cause: Some(2), .. }]
    ));
    let mut nice = Niceness::new(true, false);
    let alone = rules(&format!("{BACKUP}children = false\n"));
    nice.set_rules(&alone);
    assert!(gives_back(&judged_child(&mut nice, &alone, handed_on)));
    assert_eq!(judged_child(&mut nice, &alone, None), []);
    // The kernel restores processes reniced by a removed rule.
    let none = rules("");
    nice.set_rules(&none);
    assert_eq!(judged_child(&mut nice, &none, handed_on), []);
    let bulk = rules(&BACKUP.replace("background", "bulk"));
    nice.set_rules(&bulk);
    assert!(gives_back(&judged_child(&mut nice, &bulk, handed_on)));
}

#[test]
fn users_take_turns_and_failures_are_retried() {
    let mut nice = Niceness::new(true, false);
    let rules = rules(BACKUP);
    nice.set_rules(&rules);
    for pid in 100..300 {
        judged(&mut nice, &rules, ProcessId { pid, start_ns: 1 }, None);
    }
    let process = Process { uid: 8, ..process() };
    let verdict = crate::class::judge_process(&rules, &process, None);
    nice.judged(FIRST, &process, verdict.as_ref(), None);
    let due = nice.due(at(1));
    assert_eq!(due.len(), AT_ONCE);
    let is_first = |action: &Action| matches!(action, Action::Renice { process: FIRST, .. });
    assert!(due.iter().any(is_first));
    let refused = nice.conclude(at(1), FIRST, Err("no memory".to_owned())).unwrap();
    assert!(!refused.made && refused.reason == "no memory");
    assert!(nice.due(at(1)).is_empty());
    assert!(nice.due(at(2)).iter().any(is_first));
}
