// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Child processes inherit the class of their program, unless something else applies to them.

use super::*;
use crate::model::{Inherited, ProcessId};

const RESTIC: &str = "[[rule]]\nexe = \"/usr/bin/restic\"\nclass = \"background\"\n";
const SSH: &str = "[[rule]]\nexe = \"/usr/bin/ssh\"\nclass = \"standard\"\n";

/// Its child process with port 443, as the kernel reports it.
fn ssh(rules: &Rules) -> Process {
    let handed_on = judge_itself(rules, &backup(), None).hands_on;
    Process {
        exe: "/usr/bin/ssh".to_owned(),
        executables: vec!["/usr/bin/ssh".to_owned()],
        cmdline: "ssh backup@host -s sftp".to_owned(),
        cgroup: "/user.slice".to_owned(),
        inherited: handed_on.map(|rule| Inherited {
            rule,
            from: ProcessId { pid: 7, start_ns: 1 },
            name: "restic".to_owned(),
            uid: UNPRIVILEGED,
        }),
        ..backup()
    }
}

fn class_of_ssh(text: &str) -> Class {
    let rules = rules(text);
    let ssh = ssh(&rules);
    let class = judge(&rules, &seen(Some(&ssh))).class;
    let before_the_first_packet = judge_process(&rules, &ssh, None).map(|verdict| verdict.class);
    assert_eq!(before_the_first_packet.unwrap_or(Class::Standard), class, "{text}");
    class
}

#[test]
fn a_child_process_inherits_the_class_and_the_reason_names_rule_and_parent() {
    let rules = rules(&RESTIC.replace("class", "upload_limit_mbit = 5\nclass"));
    let ssh = ssh(&rules);
    let verdict = judge(&rules, &seen(Some(&ssh)));
    assert_eq!((verdict.class, verdict.by), (Class::Background, By::Inheritance));
    assert_eq!(verdict.rule, "/etc/a.toml:1");
    assert!(
        verdict
            .reason
            .starts_with("inherited from restic (7): exe /usr/bin/restic; all its flows together"),
        "{}",
        verdict.reason
    );
    assert_eq!(verdict.limits.up, Some(1), "one limit for all of them");
    let itself = judge_itself(&rules, &ssh, None);
    assert_eq!(itself.verdict.map(|verdict| verdict.class), Some(Class::Background));
    assert_eq!(itself.hands_on, None, "it hands on what it has inherited");
}

#[test]
fn precedence_is_name_choice_own_rule_inheritance_implicit() {
    let rules = rules(&format!("{RESTIC}{SSH}"));
    let mut ssh = Process {
        idleness: Idleness {
            nice_19: true,
            ..Idleness::default()
        },
        ..ssh(&rules)
    };
    let by = |rules: &Rules, process: &Process, named| {
        let seen = FlowFacts {
            named,
            ..seen(Some(process))
        };
        judge(rules, &seen).by
    };
    let (nothing, restic) = (Rules::default(), super::rules(&RESTIC.replace("background", "bulk")));
    assert_eq!(by(&nothing, &ssh, None), By::Evidence);
    ssh.inherited = self::ssh(&restic).inherited;
    assert_eq!(by(&restic, &ssh, None), By::Inheritance);
    ssh.inherited = self::ssh(&rules).inherited;
    assert_eq!(by(&rules, &ssh, None), By::Rule);
    ssh.chosen = Some(Choice {
        class: Some(Class::Bulk),
        uid: UNPRIVILEGED,
        limit: None,
    });
    assert_eq!(by(&rules, &ssh, None), By::Choice);
    assert_eq!(by(&rules, &ssh, Some("[[background]]")), By::Name);
}

#[test]
fn a_rule_without_children_or_with_packet_conditions_is_not_inherited() {
    assert_eq!(class_of_ssh(RESTIC), Class::Background);
    assert_eq!(class_of_ssh(&format!("{RESTIC}children = false\n")), Class::Standard);
    assert_eq!(class_of_ssh(&format!("{RESTIC}port = 443\n")), Class::Standard);
    // A child is classified by its own properties.
    assert_eq!(class_of_ssh(&format!("{RESTIC}{SSH}")), Class::Standard);
    for nothing in ["port = 443", "exe = \"/usr/bin/restic\"\nlocal_port = 9"] {
        let told = problem(&format!("[[rule]]\n{nothing}\nclass = \"bulk\"\nchildren = false\n"));
        assert!(told.contains("/etc/a.toml:1: `rule.children`: only a rule"), "{told}");
    }
}

#[test]
fn a_removed_rule_is_not_inherited_and_a_moved_one_is() {
    let ssh = ssh(&rules(RESTIC));
    let class = |text: &str| judge(&rules(text), &seen(Some(&ssh))).class;
    assert_eq!(class(""), Class::Standard);
    assert_eq!(class(&RESTIC.replace("background", "bulk")), Class::Standard);
    assert_eq!(
        class(&format!("[[rule]]\nport = 1\nclass = \"bulk\"\n{RESTIC}")),
        Class::Background
    );
}

#[test]
fn demotion_survives_a_change_of_user_and_promotion_does_not() {
    for (class, stays) in [
        (Class::Background, true),
        (Class::Bulk, true),
        (Class::Standard, true),
        (Class::Stream, false),
        (Class::Realtime, false),
    ] {
        let rules = rules(&RESTIC.replace("background", class.name()));
        let of = |uid, euid| {
            let other = Process {
                uid,
                euid,
                ..ssh(&rules)
            };
            judge(&rules, &seen(Some(&other))).by == By::Inheritance
        };
        assert!(of(UNPRIVILEGED, UNPRIVILEGED), "{class:?}");
        assert_eq!((of(0, 0), of(UNPRIVILEGED, 0)), (stays, stays), "{class:?}");
    }
}

#[test]
fn a_users_choice_keeps_the_inherited_limit() {
    let rules = rules(&RESTIC.replace("class", "upload_limit_mbit = 5\nclass"));
    let chosen = Process {
        chosen: Some(Choice {
            class: Some(Class::Bulk),
            uid: UNPRIVILEGED,
            limit: None,
        }),
        ..ssh(&rules)
    };
    let verdict = judge(&rules, &seen(Some(&chosen)));
    assert_eq!((verdict.class, verdict.limits.up), (Class::Bulk, Some(1)));
    assert!(
        verdict
            .reason
            .ends_with("; the rate limit of /etc/a.toml:1 also applies"),
        "{}",
        verdict.reason
    );
}

#[test]
fn the_kernel_decides_inheritance_for_rules_on_the_executable_alone() {
    let of = |text: &str| {
        let rules = rules(text);
        let known = rules.inherited_by_executable();
        known.get("/usr/bin/restic").map(|id| {
            let rule = rules.rules.iter().find(|rule| rule.inherited_as() == Some(*id));
            rule.unwrap().class
        })
    };
    assert_eq!(of(RESTIC), Some(Class::Background));
    assert_eq!(of(&format!("{RESTIC}children = false\n")), None);
    assert_eq!(of(&RESTIC.replace("class", "user = \"0\"\nclass")), None);
    let bulk = RESTIC.replace("background", "bulk");
    assert_eq!(of(&format!("{bulk}{RESTIC}")), Some(Class::Bulk));
    assert_eq!(of(&format!("{bulk}children = false\n{RESTIC}")), None);
}
