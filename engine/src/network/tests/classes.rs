// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The class of a flow over time: rules and processes change, the queue follows, and the cost is bounded.

use std::sync::Arc;

use super::*;
use crate::class::{Folders, Rules, Source};
use crate::model::{Choice, ChosenLimit, Class, Fingerprint, Idleness, Process, ProcessId, Rates, RuleId};
use crate::network::action::Action;

const ID: ProcessId = ProcessId { pid: 5, start_ns: 7 };

fn rules(text: &str) -> Arc<Rules> {
    let source = Source {
        path: "a.toml".to_owned(),
        name: "a.toml".to_owned(),
        text: Ok(text.to_owned()),
    };
    let folders = Folders {
        folders: vec![vec![source]],
        ..Folders::default()
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

pub(super) fn see(engine: &mut Network, ms: u64, flows: Vec<Flow>, complete: bool) -> Vec<Action> {
    let queues = Default::default();
    let input = Input::Poll {
        flows,
        complete,
        queues,
    };
    engine.step(Duration::from_millis(ms), input)
}

pub(super) fn identify(engine: &mut Network, ms: u64, process: Process) -> Vec<Action> {
    let input = Input::Identified {
        processes: vec![(ID, Some(Arc::new(process)))],
        cgroups: Vec::new(),
    };
    engine.step(Duration::from_millis(ms), input)
}

pub(super) fn obey(engine: &mut Network, ms: u64, text: &str) -> Vec<Action> {
    engine.step(
        Duration::from_millis(ms),
        Input::Class(crate::class::Input::Rules(rules(text))),
    )
}

fn class(engine: &Network) -> (Class, String) {
    let view = engine.status(Duration::from_secs(1)).flows.remove(0);
    (view.class, view.class_rule)
}

fn bands(actions: &[Action]) -> Vec<Option<bool>> {
    let band = |action: &Action| match action {
        Action::Class(crate::class::Action::Treat { cookie, treatment }) => {
            assert_eq!(*cookie, COOKIE);
            Some(treatment.map(|treatment| treatment.class == Class::Background))
        }
        _ => None,
    };
    actions.iter().filter_map(band).collect()
}

fn asks_for_process(actions: &[Action]) -> bool {
    let asks =
        |action: &Action| matches!(action, Action::Identify(Unidentified { processes, .. }) if processes.contains(&ID));
    actions.iter().any(asks)
}

const BACKGROUND: &str = "[[rule]]\nport = 5201\nclass = \"background\"\n";
const STANDARD: &str = "[[rule]]\nport = 5201\nclass = \"standard\"\n";

#[test]
fn an_open_flow_follows_changed_rules_and_each_change_is_recorded() {
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
fn a_flows_treatment_is_installed_and_removed_with_the_flow() {
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
    let close = Input::Sockets(crate::sockets::Input::Events(vec![(COOKIE, FlowEvent::Close)]));
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
fn a_process_is_read_each_second_and_its_flows_follow() {
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
fn an_applications_mark_counts_with_the_next_poll() {
    let mut engine = engine("", false);
    see(&mut engine, 100, vec![owned()], true);
    let marked = Flow { priority: 1, ..owned() };
    assert!(bands(&see(&mut engine, 200, vec![marked], false)).is_empty());
    assert_eq!(class(&engine), (Class::Background, "SO_PRIORITY 1".to_owned()));
}

#[test]
fn interfaces_are_matched_by_name() {
    let mut engine = engine("", false);
    see(&mut engine, 100, vec![owned()], true);
    obey(&mut engine, 200, "[[rule]]\ninterface = \"lte0\"\nclass = \"bulk\"\n");
    assert_eq!(class(&engine).0, Class::Standard);
    let interfaces = Input::Class(crate::class::Input::Devices([(2, device("lte0", None))].into()));
    engine.step(Duration::from_millis(300), interfaces);
    assert_eq!(class(&engine).0, Class::Bulk);
}

#[test]
fn a_flow_configured_as_background_precedes_rules() {
    let named = "[[background]]\naddress = \"127.0.0.1\"\nport = 5201\n";
    let mut engine = engine(named, false);
    see(&mut engine, 100, vec![owned()], true);
    obey(&mut engine, 200, STANDARD);
    assert_eq!(class(&engine), (Class::Background, "[[background]]".to_owned()));
}

#[test]
fn expensive_flows_are_classified_over_several_polls() {
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

/// With such arguments, 64 flows of a process exceed the cost of a step.
pub(super) fn slow_rules() -> String {
    format!("[[rule]]\ncmdline = \"{}b\"\nclass = \"bulk\"\n", "*a".repeat(100)).repeat(100)
}

pub(super) fn costly() -> Process {
    Process {
        cmdline: "a".repeat(4096),
        ..Process::default()
    }
}

/// Flows of this user, numbered from there.
pub(super) fn flows_of(uid: u32, from: u64, count: u64) -> Vec<Flow> {
    let flow = |n: u64| {
        let mut flow = owned();
        flow.local.set_port(n as u16);
        (flow.cookie, flow.uid) = (Cookie(n), Some(uid));
        flow
    };
    (from..from + count).map(flow).collect()
}

pub(super) fn class_of(engine: &Network, cookie: u64) -> Class {
    let flows = engine.status(Duration::from_secs(1)).flows;
    let flow = flows.iter().find(|view| view.flow.cookie == Cookie(cookie));
    flow.unwrap().class
}

/// How many flows have a treatment.
fn told(actions: &[Action]) -> usize {
    let is_told = |action: &&Action| {
        matches!(
            action,
            Action::Class(crate::class::Action::Treat { treatment: Some(_), .. })
        )
    };
    actions.iter().filter(is_told).count()
}

pub(super) const HOG: u32 = 1000;
pub(super) const OTHER: u32 = 1001;
const TABLE: u64 = 16_384;

#[test]
fn one_user_cannot_fill_the_flow_table() {
    for uid in [0, OTHER] {
        let mut engine = engine("", false);
        obey(&mut engine, 100, BACKGROUND);
        let mut flows = flows_of(HOG, 1, TABLE + 100);
        assert_eq!(told(&see(&mut engine, 200, flows.clone(), true)), TABLE as usize);
        flows.extend(flows_of(uid, 100_000, 10));
        assert_eq!(told(&see(&mut engine, 300, flows, true)), 10, "of uid {uid}");
    }
}

#[test]
fn a_waiting_flow_gets_a_free_entry_of_the_flow_table() {
    let mut engine = engine("", false);
    obey(&mut engine, 100, BACKGROUND);
    see(&mut engine, 200, flows_of(HOG, 1, TABLE + 1), true);
    let close = Input::Sockets(crate::sockets::Input::Events(vec![(Cookie(1), FlowEvent::Close)]));
    assert_eq!(told(&engine.step(Duration::from_millis(300), close)), 1);
}

#[test]
fn an_expensive_user_delays_neither_others_nor_new_flows() {
    for uid in [HOG, OTHER] {
        let mut engine = engine("", false);
        obey(&mut engine, 100, &(slow_rules() + BACKGROUND));
        let mut flows = flows_of(HOG, 1, 64);
        see(&mut engine, 100, flows.clone(), true);
        identify(&mut engine, 100, costly());
        for pass in 2..20 {
            flows.iter_mut().for_each(|flow| flow.dscp = 40 + pass as u8 % 2);
            see(&mut engine, pass * 100, flows.clone(), false);
        }
        let newest = Flow {
            owner: None,
            ..flows_of(uid, 1000, 1).remove(0)
        };
        flows.push(newest);
        for pass in 20..24 {
            flows.iter_mut().for_each(|flow| flow.dscp = 40 + pass as u8 % 2);
            see(&mut engine, pass * 100, flows.clone(), pass == 20);
        }
        assert_eq!(class_of(&engine, 1000), Class::Background, "of uid {uid}");
    }
}

#[test]
fn setting_a_flow_by_hand_does_not_reclassify_others() {
    let mut engine = engine("", false);
    obey(&mut engine, 100, &slow_rules());
    let mut flows = flows_of(HOG, 1, 64);
    flows.extend(flows_of(OTHER, 1000, 1));
    flows[64].remote.set_port(7000);
    see(&mut engine, 100, flows, true);
    identify(&mut engine, 100, costly());
    for pass in 2..20 {
        see(&mut engine, pass * 100, Vec::new(), false);
    }
    let set = by_hand::to_port(7000, 0, Some(Class::Background));
    engine.step(Duration::from_secs(2), by_hand::set(vec![set]));
    assert_eq!(class_of(&engine, 1000), Class::Background);
}

#[test]
fn flows_of_unknown_processes_cost_only_their_cgroups_path() {
    let mut engine = engine("", false);
    let flows: Vec<Flow> = flows_of(HOG, 1, 64)
        .into_iter()
        .map(|flow| Flow { owner: None, ..flow })
        .collect();
    see(&mut engine, 100, flows.clone(), true);
    let identified = Input::Identified {
        processes: Vec::new(),
        cgroups: vec![(flows[0].cgroup_id, Some("a".repeat(4096).into()))],
    };
    engine.step(Duration::from_millis(100), identified);
    obey(
        &mut engine,
        200,
        &(slow_rules().replace("cmdline", "cgroup") + BACKGROUND),
    );
    let judged = (1..65).filter(|n| class_of(&engine, *n) == Class::Background).count();
    assert!((1..64).contains(&judged), "{judged} at once");
}

fn of_process(flow: Flow, pid: u32) -> Flow {
    let owner = Owner {
        pid,
        command: "hog".to_owned(),
        start_ns: 1,
    };
    Flow {
        owner: Some(owner),
        ..flow
    }
}

/// While a user starts 100 processes between two polls: the first poll, counted from the second second on, that asks
/// for [`ID`], a process of another user with a new connection.
fn asked_beside_many_new_processes(begins: u64) -> Option<u64> {
    let mut engine = engine("", false);
    let victim = Flow {
        uid: Some(OTHER),
        cookie: Cookie(1 << 40),
        ..owned()
    };
    (1..40).find(|pass| {
        let mut flows = flows_of(HOG, pass * 100, 100);
        flows
            .iter_mut()
            .for_each(|flow| *flow = of_process(flow.clone(), flow.cookie.0 as u32 + 100));
        if *pass >= begins {
            flows.push(victim.clone());
        }
        let asked = asks_for_process(&see(&mut engine, pass * 100, flows, true));
        asked && *pass >= 11
    })
}

#[test]
fn a_users_new_processes_do_not_delay_anothers_identification() {
    assert_eq!(asked_beside_many_new_processes(20), Some(20));
}

#[test]
fn a_users_new_processes_do_not_delay_others_rereading() {
    let again = asked_beside_many_new_processes(1);
    assert!(again.is_some_and(|pass| pass <= 15), "{again:?}");
}

#[test]
fn a_process_beyond_the_bound_keeps_its_class() {
    let mut engine = engine("", false);
    let victim = Flow {
        cookie: Cookie(1 << 40),
        ..owned()
    };
    see(&mut engine, 100, vec![victim.clone()], true);
    let nice = Process {
        idleness: Idleness {
            nice_19: true,
            ..Idleness::default()
        },
        ..Process::default()
    };
    identify(&mut engine, 100, nice);
    let mut flows = flows_of(HOG, 1, 5000);
    flows
        .iter_mut()
        .for_each(|flow| *flow = of_process(flow.clone(), flow.cookie.0 as u32 + 100));
    flows.push(victim);
    for pass in 2..80 {
        see(&mut engine, pass * 100, flows.clone(), true);
        assert_eq!(class_of(&engine, 1 << 40), Class::Background, "in poll {pass}");
    }
}

fn datagrams(engine: &mut Network, ms: u64, flows: Vec<Flow>) -> Vec<Action> {
    engine.step(
        Duration::from_millis(ms),
        Input::Sockets(crate::sockets::Input::Datagrams(flows)),
    )
}

#[test]
fn a_udp_socket_keeps_its_class_over_tcp_polls() {
    let mut engine = engine("", false);
    let udp = || Flow {
        protocol: Protocol::Udp,
        ..owned()
    };
    obey(&mut engine, 100, BACKGROUND);
    assert_eq!(bands(&datagrams(&mut engine, 200, vec![udp()])), [Some(true)]);
    assert!(bands(&see(&mut engine, 300, Vec::new(), true)).is_empty());
    let status = engine.status(Duration::from_secs(1));
    assert_eq!((status.flows.len(), status.datagrams.len()), (0, 1));
    assert_eq!(status.datagrams[0].class, Class::Background);
    assert_eq!(bands(&datagrams(&mut engine, 400, Vec::new())), [None]);
    assert!(engine.status(Duration::from_secs(1)).datagrams.is_empty());
}

fn listed(pid: u32, uid: u32) -> Fingerprint {
    let id = ProcessId { pid, start_ns: 1 };
    Fingerprint {
        id,
        uid,
        ..Fingerprint::default()
    }
}

/// Whether the queue gets a treatment for a background process of [`OTHER`] within so many steps. A user's own
/// processes, with lower numbers, become other programs all the time.
fn is_told_beside(hogs: u32, rules: &str, steps: u32) -> bool {
    const VICTIM: u32 = 100_000;
    let mut engine = engine("", false);
    let rules = format!("{rules}[[rule]]\ncgroup = \"/backup\"\nclass = \"background\"\n");
    obey(&mut engine, 100, &rules);
    let all = || {
        (1..=hogs)
            .map(|pid| listed(pid, HOG))
            .chain([listed(VICTIM, OTHER)])
            .collect()
    };
    (0..steps).any(|step| {
        let mut actions = engine.step(
            Duration::from_millis(200),
            Input::Class(crate::class::Input::Processes(all())),
        );
        let hog = |pid: u32| {
            Process {
                uid: HOG,
                exe: step.to_string(),
                ..costly()
            }
            .at(pid)
        };
        let victim = Process {
            uid: OTHER,
            cgroup: "/backup".to_owned(),
            ..Process::default()
        };
        let processes = (1..=hogs).map(hog).chain([victim.at(VICTIM)]).collect();
        let identified = Input::Identified {
            processes,
            cgroups: Vec::new(),
        };
        actions.extend(engine.step(Duration::from_millis(200), identified));
        actions.iter().any(|action| match action {
            Action::Class(crate::class::Action::TreatProcess { process, treatment }) => {
                process.pid == VICTIM && treatment.is_some_and(|told| told.class == Class::Background)
            }
            _ => false,
        })
    })
}

impl Process {
    fn at(self, pid: u32) -> (ProcessId, Option<Arc<Self>>) {
        (ProcessId { pid, start_ns: 1 }, Some(Arc::new(self)))
    }
}

#[test]
fn expensive_processes_of_a_user_do_not_delay_others_classes() {
    assert!(is_told_beside(63, &slow_rules(), 3));
}

#[test]
fn a_process_beyond_the_cost_of_a_step_does_not_delay_others_classes() {
    let rules = "[[rule]]\ncmdline = \"b*\"\ncgroup = \"/x\"\nunit = \"x\"\nclass = \"bulk\"\n".repeat(400);
    assert!(is_told_beside(1, &rules, 3));
}

/// Its end was reported before the scan that shows it was over, so no event follows.
#[test]
fn a_connection_closed_before_its_request_frees_its_entry() {
    let background = Means {
        control: Some("yields".to_owned()),
        receive_window: false,
    };
    let mut engine = engine_with("", false, background);
    obey(&mut engine, 100, BACKGROUND);
    assert_eq!(bands(&see(&mut engine, 200, vec![upload()], true)), [Some(true)]);
    let gone = Input::Sockets(crate::sockets::Input::Outcomes(vec![(
        COOKIE,
        Setting::CongestionControl,
        Outcome::Gone,
    )]));
    assert_eq!(bands(&engine.step(Duration::from_millis(200), gone)), [None]);
}

#[test]
fn a_flow_keeps_its_commands_limit_beyond_the_command() {
    let mut engine = engine("", false);
    see(&mut engine, 100, vec![owned()], true);
    let limited = Process {
        chosen: Some(Choice {
            class: Some(Class::Bulk),
            uid: 0,
            limit: Some(ChosenLimit {
                number: 48,
                rates: Rates {
                    up: Some(1),
                    down: None,
                },
            }),
        }),
        ..Process::default()
    };
    identify(&mut engine, 200, limited);
    let ended = Input::Identified {
        processes: vec![(ID, None)],
        cgroups: Vec::new(),
    };
    engine.step(Duration::from_millis(300), ended);
    see(&mut engine, 400, vec![owned()], true);
    assert_eq!(engine.limits_of_flows(), [48].into());
    see(&mut engine, 500, Vec::new(), true);
    assert!(engine.limits_of_flows().is_empty());
}

/// Whether the rule whose class a process's children inherit is installed in this second.
fn handed_on(engine: &mut Network, ms: u64, listed: Fingerprint, process: &Process) -> Vec<Option<RuleId>> {
    let now = Duration::from_millis(ms);
    let mut actions = engine.step(now, Input::Class(crate::class::Input::Processes(vec![listed])));
    if actions.iter().any(|action| matches!(action, Action::Identify(_))) {
        let identified = Input::Identified {
            processes: vec![process.clone().at(listed.id.pid)],
            cgroups: Vec::new(),
        };
        actions.extend(engine.step(now, identified));
    }
    let told = actions.into_iter().filter_map(|action| match action {
        Action::Class(crate::class::Action::HandOn { image, rule, .. }) => {
            assert_eq!(image, listed.image, "of the program that was read");
            Some(rule)
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn the_inheritance_rule_of_a_process_is_installed_until_the_kernel_has_it() {
    let mut engine = engine("", false);
    obey(
        &mut engine,
        100,
        "[[rule]]\ncgroup = \"/backup\"\nclass = \"background\"\n",
    );
    let backup = Process {
        cgroup: "/backup".to_owned(),
        ..Process::default()
    };
    let shell = Fingerprint {
        image: 1,
        ..listed(5, OTHER)
    };
    assert_eq!(handed_on(&mut engine, 1_000, shell, &backup), []);
    let [Some(rule)] = handed_on(&mut engine, 2_000, shell, &backup)[..] else {
        panic!("read and judged")
    };
    assert_eq!(
        handed_on(&mut engine, 3_000, shell, &backup),
        [Some(rule)],
        "asked again"
    );
    let named = Fingerprint {
        names: Some(rule),
        ..shell
    };
    assert_eq!(handed_on(&mut engine, 4_000, named, &backup), []);
    // Another program without a rule: nothing applies before it has been read.
    let other = Fingerprint { image: 2, ..named };
    assert_eq!(handed_on(&mut engine, 5_000, other, &Process::default()), [None]);
    assert_eq!(
        handed_on(
            &mut engine,
            6_000,
            Fingerprint { names: None, ..other },
            &Process::default()
        ),
        []
    );
    // init starts everything.
    let init = Fingerprint {
        image: 1,
        ..listed(1, 0)
    };
    for second in 7..9 {
        assert_eq!(handed_on(&mut engine, second * 1_000, init, &backup), []);
    }
}
