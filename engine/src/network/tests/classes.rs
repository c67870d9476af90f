// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The class of a flow over time: rules and processes change, the queue is told, and what it costs has a bound.

use std::sync::Arc;

use super::*;
use crate::class::{Class, Folders, Rules, Source};
use crate::matcher::{Idleness, Process, ProcessId};
use crate::network::action::Action;

const ID: ProcessId = ProcessId { pid: 5, start_ns: 7 };

fn rules(text: &str) -> Arc<Rules> {
    let source = Source {
        path: "a.toml".to_owned(),
        name: "a.toml".to_owned(),
        text: Ok(text.to_owned()),
    };
    let folders = Folders {
        main: None,
        folders: vec![vec![source]],
    };
    let (rules, problems) = Rules::of(folders, &|_| None);
    assert!(problems.is_empty(), "{problems:?}");
    Arc::new(rules)
}

fn owned() -> Flow {
    let owner = Owner {
        pid: ID.pid,
        command: "restic".to_owned(),
        start_ns: ID.start_ns,
    };
    Flow {
        owner: Some(owner),
        ..upload()
    }
}

fn see(engine: &mut Network, ms: u64, flows: Vec<Flow>, complete: bool) -> Vec<Action> {
    let queue = None;
    let input = Input::Pass { flows, complete, queue };
    engine.step(Duration::from_millis(ms), input)
}

fn identify(engine: &mut Network, ms: u64, process: Process) -> Vec<Action> {
    let input = Input::Identified {
        processes: vec![(ID, Some(Arc::new(process)))],
        cgroups: Vec::new(),
    };
    engine.step(Duration::from_millis(ms), input)
}

fn obey(engine: &mut Network, ms: u64, text: &str) -> Vec<Action> {
    engine.step(Duration::from_millis(ms), Input::Rules(rules(text)))
}

fn class(engine: &Network) -> (Class, String) {
    let view = engine.status(Duration::from_secs(1)).flows.remove(0);
    (view.class, view.class_rule)
}

fn bands(actions: &[Action]) -> Vec<Option<bool>> {
    let band = |action: &Action| match action {
        Action::Treat { flow, treatment } => {
            assert_eq!((flow.port, flow.local_port), (5201, Some(5201)));
            Some(treatment.map(|treatment| treatment.class == Class::Background))
        }
        _ => None,
    };
    actions.iter().filter_map(band).collect()
}

fn asks_for_process(actions: &[Action]) -> bool {
    let asks = |action: &Action| matches!(action, Action::Identify { processes, .. } if processes.contains(&ID));
    actions.iter().any(asks)
}

const BACKGROUND: &str = "[[rule]]\nport = 5201\nclass = \"background\"\n";
const STANDARD: &str = "[[rule]]\nport = 5201\nclass = \"standard\"\n";

#[test]
fn an_open_flow_follows_the_rules_and_each_change_is_recorded() {
    let mut engine = engine("", false);
    see(&mut engine, 100, vec![owned()], true);
    assert_eq!(class(&engine), (Class::Standard, "default".to_owned()));
    assert!(engine.changes().is_empty(), "nothing was decided");
    obey(&mut engine, 200, BACKGROUND);
    assert_eq!(class(&engine), (Class::Background, "a.toml:1".to_owned()));
    obey(&mut engine, 300, "");
    let changes = engine.changes();
    let [latest] = changes.as_slice() else {
        panic!("{changes:?}")
    };
    assert_eq!((latest.times, latest.change.made), (2, true));
    let line = latest.change.to_string();
    assert!(line.contains("class background -> standard; rule default: "), "{line}");
}

#[test]
fn the_queue_is_told_of_what_a_rule_says_and_forgets_it_with_the_flow() {
    let mut engine = engine("", false);
    see(&mut engine, 100, vec![owned()], true);
    assert_eq!(bands(&obey(&mut engine, 200, BACKGROUND)), [Some(true)]);
    assert!(
        bands(&see(&mut engine, 300, vec![owned()], true)).is_empty(),
        "it knows"
    );
    assert_eq!(bands(&obey(&mut engine, 400, STANDARD)), [Some(false)]);
    assert_eq!(bands(&obey(&mut engine, 500, "")), [None]);
    obey(&mut engine, 600, BACKGROUND);
    let close = Input::Events(vec![(COOKIE, FlowEvent::Close)]);
    assert_eq!(bands(&engine.step(Duration::from_millis(700), close)), [None]);
}

#[test]
fn a_dry_run_says_so() {
    let mut engine = engine("", true);
    see(&mut engine, 100, vec![owned()], true);
    obey(&mut engine, 200, BACKGROUND);
    assert!(!engine.changes()[0].change.made);
}

#[test]
fn a_process_is_looked_at_again_each_second_and_its_flows_follow() {
    let mut engine = engine("", false);
    assert!(asks_for_process(&see(&mut engine, 1000, vec![owned()], true)));
    identify(&mut engine, 1000, Process::default());
    assert!(!asks_for_process(&see(&mut engine, 1900, vec![owned()], false)));
    assert!(asks_for_process(&see(&mut engine, 2000, vec![owned()], false)));
    let nice = Process {
        idleness: Idleness {
            nice_19: true,
            ..Idleness::default()
        },
        ..Process::default()
    };
    assert_eq!(bands(&identify(&mut engine, 2000, nice)), [Some(true)]);
    assert_eq!(class(&engine), (Class::Background, "nice 19".to_owned()));
    assert_eq!(bands(&identify(&mut engine, 2100, Process::default())), [None]);
    assert_eq!(class(&engine).0, Class::Standard);
}

#[test]
fn a_mark_of_the_application_counts_with_the_next_pass() {
    let mut engine = engine("", false);
    see(&mut engine, 100, vec![owned()], true);
    let marked = Flow { priority: 1, ..owned() };
    see(&mut engine, 200, vec![marked], false);
    assert_eq!(class(&engine), (Class::Background, "SO_PRIORITY 1".to_owned()));
}

#[test]
fn an_interface_is_told_by_its_name() {
    let mut engine = engine("", false);
    see(&mut engine, 100, vec![owned()], true);
    obey(&mut engine, 200, "[[rule]]\ninterface = \"lte0\"\nclass = \"bulk\"\n");
    assert_eq!(class(&engine).0, Class::Standard);
    let interfaces = Input::Interfaces([(2, "lte0".to_owned())].into());
    engine.step(Duration::from_millis(300), interfaces);
    assert_eq!(class(&engine).0, Class::Bulk);
}

#[test]
fn a_flow_that_was_named_is_background_until_it_is_no_longer_named() {
    let named = "[[background]]\naddress = \"127.0.0.1\"\nport = 5201\n";
    let mut engine = engine(named, false);
    see(&mut engine, 100, vec![owned()], true);
    obey(&mut engine, 200, STANDARD);
    assert_eq!(class(&engine), (Class::Background, "[[background]]".to_owned()));
    let flow = BackgroundFlow {
        address: Ipv4Addr::LOCALHOST.into(),
        port: 5201,
        local_port: None,
    };
    let removed = Input::Background {
        flow,
        add: false,
        uid: 0,
        outcome: Ok(()),
    };
    assert_eq!(bands(&engine.step(Duration::from_millis(300), removed)), [Some(false)]);
    assert_eq!(class(&engine), (Class::Standard, "a.toml:1".to_owned()));
}

#[test]
fn flows_that_cost_much_to_judge_are_spread_over_passes_and_none_is_forgotten() {
    const FLOWS: u64 = 64;
    let mut engine = engine("", false);
    let flows = || {
        (0..FLOWS)
            .map(|n| Flow {
                cookie: Cookie(n),
                ..owned()
            })
            .collect::<Vec<_>>()
    };
    see(&mut engine, 100, flows(), true);
    let hostile = Process {
        cmdline: "a".repeat(4096),
        ..Process::default()
    };
    identify(&mut engine, 100, hostile);
    let slow = format!("[[rule]]\ncmdline = \"{}b\"\nclass = \"bulk\"\n", "*a".repeat(100)).repeat(100);
    let judged = |engine: &Network| {
        let flows = engine.status(Duration::from_secs(1)).flows;
        flows.iter().filter(|view| view.class == Class::Background).count() as u64
    };
    obey(&mut engine, 200, &(slow + BACKGROUND));
    let at_once = judged(&engine);
    assert!((1..FLOWS).contains(&at_once), "{at_once} at once");
    for ms in 3..20 {
        see(&mut engine, ms * 100, Vec::new(), false);
    }
    assert_eq!(judged(&engine), FLOWS);
}
