// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings by hand: their targets, their precedence, and that a user overrides nothing of root's.

use super::classes::{identify, obey, see};
use super::*;
use crate::class::by_hand::{SetByHand, Target};
use crate::model::{Choice, ChosenLimit, Class, Limit, LimitNumber, LimitNumbers, Process, ProcessId, Rates};
use crate::queue::BackgroundFlow;

const ID: ProcessId = ProcessId { pid: 5, start_ns: 7 };
const USER: u32 = 1000;
const OTHER: u32 = 1001;
const UNIT: &str = "/user.slice/backup.service";
/// For the user's process, with a limit.
const RULE: &str = "[[rule]]\nunit = \"backup.service\"\nclass = \"bulk\"\nrate_limit_mbit = 8\n";

pub fn to_port(port: u16, uid: u32, class: Option<Class>) -> SetByHand {
    let flow = BackgroundFlow {
        address: upload().remote.ip(),
        port,
        local_port: None,
    };
    SetByHand {
        target: Target::Flow { flow },
        uid,
        class,
        limit: None,
    }
}

pub fn of_flow(uid: u32, class: Option<Class>) -> SetByHand {
    to_port(upload().remote.port(), uid, class)
}

pub fn set(all: Vec<SetByHand>) -> Input<'static> {
    let reason = "a test asks for it".to_owned();
    Input::Class(crate::class::Input::ByHand { all, reason })
}

fn of_process(number: u8, uid: u32, class: Option<Class>) -> SetByHand {
    let command = "backup".to_owned();
    SetByHand {
        target: Target::Process {
            id: ID,
            number,
            command,
        },
        ..of_flow(uid, class)
    }
}

fn of_cgroup(path: &str, uid: u32, class: Option<Class>) -> SetByHand {
    let path = path.to_owned();
    SetByHand {
        target: Target::Cgroup { cgroup_id: 9, path },
        ..of_flow(uid, class)
    }
}

fn limited(number: LimitNumber, mbit: u64, set: SetByHand) -> SetByHand {
    let rates = up(mbit);
    let limit = Some(ChosenLimit { number, rates });
    SetByHand { limit, ..set }
}

fn up(mbit: u64) -> Rates {
    Rates {
        up: Some(mbit * 125_000),
        down: None,
    }
}

/// The user's process, with these bits of settings by hand.
fn process(by_hand: u64) -> Process {
    Process {
        uid: USER,
        cgroup: UNIT.to_owned(),
        by_hand,
        ..Process::default()
    }
}

/// With one flow of this process.
fn engine_with(process: Process) -> Network {
    let mut engine = engine("", false);
    let owner = Owner {
        pid: ID.pid,
        command: "backup".to_owned(),
        start_ns: ID.start_ns,
    };
    let flow = Flow {
        owner: Some(owner),
        uid: Some(USER),
        ..upload()
    };
    see(&mut engine, 100, vec![flow], true);
    identify(&mut engine, 100, process);
    engine
}

fn class_of(engine: &Network) -> Class {
    engine.status(Duration::ZERO).flows[0].class
}

/// The class of the flow after these settings.
fn class_by(process: Process, rules: &str, all: &[SetByHand]) -> Class {
    let mut engine = engine_with(process);
    obey(&mut engine, 200, rules);
    engine.step(Duration::from_millis(300), set(all.to_vec()));
    class_of(&engine)
}

/// The limits that apply to it.
fn limits_by(process: Process, rules: &str, all: &[SetByHand]) -> LimitNumbers {
    let mut engine = engine_with(process);
    obey(&mut engine, 200, rules);
    engine.step(Duration::from_millis(300), set(all.to_vec()));
    engine.flows.get(COOKIE).unwrap().judged.verdict.limits
}

fn limit_by(process: Process, rules: &str, all: &[SetByHand]) -> Option<LimitNumber> {
    limits_by(process, rules, all).up
}

#[test]
fn each_target_applies_to_its_flows_only() {
    use Class::{Background, Standard};
    let user = || process(0b10);
    for (set, expected) in [
        (of_flow(0, Some(Background)), Background),
        (to_port(1, 0, Some(Background)), Standard),
        (of_process(1, 0, Some(Background)), Background),
        (of_process(2, 0, Some(Background)), Standard),
        (of_cgroup(UNIT, 0, Some(Background)), Background),
        (of_cgroup("/user.slice", 0, Some(Background)), Background),
        (of_cgroup("/", 0, Some(Background)), Background),
        (of_cgroup("/user.slice/backup", 0, Some(Background)), Standard),
        (of_cgroup(&format!("{UNIT}/below"), 0, Some(Background)), Standard),
    ] {
        assert_eq!(class_by(user(), "", std::slice::from_ref(&set)), expected, "{set:?}");
    }
}

#[test]
fn a_users_setting_applies_to_their_own_flows_only() {
    for of in [of_flow, |uid, class| of_cgroup("/", uid, class)] {
        assert_eq!(class_by(process(0), "", &[of(USER, Some(Class::Bulk))]), Class::Bulk);
        assert_eq!(
            class_by(process(0), "", &[of(OTHER, Some(Class::Bulk))]),
            Class::Standard
        );
    }
}

#[test]
fn settings_by_hand_precede_rules_and_choices_until_cleared() {
    let chosen = Process {
        chosen: Some(Choice {
            class: Some(Class::Bulk),
            uid: USER,
            limit: None,
        }),
        ..process(0)
    };
    let mut engine = engine_with(chosen);
    obey(&mut engine, 200, RULE);
    assert_eq!(class_of(&engine), Class::Bulk);
    engine.step(Duration::from_millis(300), set(vec![of_flow(0, Some(Class::Stream))]));
    assert_eq!(class_of(&engine), Class::Stream);
    let view = engine.status(Duration::ZERO).flows.remove(0);
    assert_eq!(view.class_rule, "giveway class set by uid 0");
    engine.step(Duration::from_millis(400), set(Vec::new()));
    assert_eq!(class_of(&engine), Class::Bulk);
}

#[test]
fn the_most_specific_target_counts_and_of_processes_the_last() {
    use Class::{Background, Bulk, Realtime, Stream};
    let class = |all: &[SetByHand]| class_by(process(0b11), "", all);
    let (flow, first) = (of_flow(0, Some(Stream)), of_process(0, 0, Some(Bulk)));
    let (second, cgroup) = (of_process(1, 0, Some(Background)), of_cgroup("/", 0, Some(Realtime)));
    assert_eq!(class(&[flow, first.clone(), second.clone(), cgroup.clone()]), Stream);
    assert_eq!(class(&[first.clone(), second.clone(), cgroup.clone()]), Background);
    assert_eq!(class(&[second, first, cgroup.clone()]), Bulk);
    assert_eq!(class(&[of_cgroup(UNIT, 0, Some(Bulk)), cgroup]), Bulk);
}

#[test]
fn a_user_may_lower_roots_class_but_not_raise_it() {
    let root = of_cgroup("/", 0, Some(Class::Bulk));
    let class = |own| class_by(process(1), "", &[root.clone(), of_process(0, USER, Some(own))]);
    assert_eq!(class(Class::Stream), Class::Bulk);
    assert_eq!(class(Class::Background), Class::Background);
}

#[test]
fn roots_limit_precedes_and_a_users_overrides_neither_rules_nor_root() {
    let (roots, own) = (
        limited(50, 10, of_cgroup("/", 0, None)),
        limited(51, 1, of_process(0, USER, None)),
    );
    let limit = |rules: &str, all: &[SetByHand]| limit_by(process(1), rules, all);
    assert_eq!(limit("", std::slice::from_ref(&own)), Some(51));
    assert_eq!(limit(RULE, std::slice::from_ref(&own)), Some(1), "the rule's");
    assert_eq!(limit("", &[roots.clone(), own.clone()]), Some(50));
    assert_eq!(limit(RULE, &[roots]), Some(50), "root may lift the rule's");
    let chosen = |uid| Process {
        chosen: Some(Choice {
            class: Some(Class::Bulk),
            uid,
            limit: Some(ChosenLimit {
                number: 48,
                rates: up(1),
            }),
        }),
        ..process(1)
    };
    assert_eq!(
        limit_by(chosen(0), "", std::slice::from_ref(&own)),
        Some(48),
        "root's command"
    );
    assert_eq!(limit_by(chosen(USER), "", &[own]), Some(51), "the user's own command");
}

#[test]
fn a_limit_alone_keeps_the_class_and_reaches_the_queue() {
    let mut engine = engine_with(process(0));
    let limits = vec![Limit {
        number: 50,
        rates: up(2),
        class: Class::Standard,
    }];
    engine.step(
        Duration::from_millis(150),
        Input::Class(crate::class::Input::CommandLimits(limits)),
    );
    let actions = engine.step(Duration::from_millis(200), set(vec![limited(50, 2, of_flow(0, None))]));
    let told = actions.iter().find_map(|action| match action {
        Action::Class(crate::class::Action::Treat { treatment, .. }) => *treatment,
        _ => None,
    });
    let told = told.unwrap();
    assert_eq!((told.class, told.limits.up), (Class::Standard, Some(50)));
    let view = engine.status(Duration::ZERO).flows.remove(0);
    assert!(
        view.class_reason
            .contains("all its flows together send at most 2 Mbit/s, set by hand"),
        "{}",
        view.class_reason
    );
}

#[test]
fn each_setting_is_recorded_and_so_is_its_end() {
    let mut engine = engine_with(process(0));
    engine.step(
        Duration::from_millis(200),
        set(vec![limited(50, 2, of_cgroup(UNIT, 0, Some(Class::Bulk)))]),
    );
    let of = |engine: &Network| -> Vec<String> {
        let changes = engine.changes().into_iter().map(|latest| latest.change);
        let is_it = |change: &Change| matches!(change.subject, Subject::Cgroup { .. });
        changes.filter(is_it).map(|change| change.to_string()).collect()
    };
    let shown = of(&engine);
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert!(shown[0].contains("giveway class set by uid 0") && shown[1].contains("giveway limit set by uid 0"));
    engine.step(Duration::from_millis(300), set(Vec::new()));
    let shown = of(&engine);
    assert!(
        shown
            .iter()
            .all(|line| line.contains("clear by uid 0: a test asks for it")),
        "{shown:?}"
    );
}

/// Setting and clearing without end leaves nothing.
#[test]
fn repeated_setting_and_clearing_leaves_nothing() {
    let mut engine = engine_with(process(0));
    for n in 0..20_000u64 {
        let mut target = of_flow(USER, Some(Class::Background));
        target.target = Target::Process {
            id: ProcessId {
                pid: 10 + (n % 30_000) as u32,
                start_ns: n,
            },
            number: (n % 64) as u8,
            command: "sh".to_owned(),
        };
        let now = Duration::from_millis(200 + n);
        engine.step(now, set(vec![target]));
        engine.step(now, set(Vec::new()));
    }
    assert!(engine.changes().len() <= crate::change::KEPT);
    assert!(engine.overview().by_hand_views(|_| true).is_empty());
}

#[test]
fn a_limit_on_no_link_has_no_counters() {
    let mut engine = engine_with(process(0));
    engine.step(Duration::from_millis(200), set(vec![limited(50, 2, of_flow(0, None))]));
    let view = engine.overview().by_hand_views(|_| true).remove(0);
    assert_eq!((view.upload_limit_mbit, view.flows), (Some(2.0), 1));
    assert_eq!((view.upload_mbit, view.download_mbit), (None, None));
}

#[test]
fn each_direction_has_its_own_limit() {
    let down = Rates {
        up: None,
        down: Some(125_000),
    };
    let received = SetByHand {
        limit: Some(ChosenLimit {
            number: 52,
            rates: down,
        }),
        ..of_cgroup("/", 0, None)
    };
    let sent = limited(50, 2, of_flow(0, None));
    let both = LimitNumbers {
        up: Some(50),
        down: Some(52),
    };
    assert_eq!(limits_by(process(0), "", &[sent, received.clone()]), both);
    // A rule's upload limit stays.
    let with_rule = LimitNumbers {
        up: Some(1),
        down: Some(52),
    };
    assert_eq!(
        limits_by(process(0), &RULE.replace("rate_limit", "upload_limit"), &[received]),
        with_rule
    );
}
