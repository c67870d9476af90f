// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules, chains and NAPI threads together: one account, one starvation detector, and no part takes another's grant for
//! another tool's.

use super::*;

const NONE: f64 = 0.0;

fn with_all_parts() -> Machine {
    let rules = vec![rule("a", "/bin/a"), rule("b", "/bin/b")];
    let mut machine = Machine::new(rules, Vec::new());
    machine.find_napi();
    assert!(machine.request(77));
    assert!(machine.start(1, "/bin/a") && machine.start(2, "/bin/b"));
    machine
}

/// Runs until something is lowered or demoted; returns the time.
fn until_it_is_less(machine: &mut Machine, rules: f64, chains: f64, napi: f64) -> Duration {
    let (start, having) = (machine.now, machine.granted.len());
    while machine.granted.len() == having && machine.is_napi_raised && !machine.raised.is_empty() {
        let next = machine.priority.next_usage(machine.now);
        machine.run(next - machine.now, &|_| rules, chains, napi);
        machine.report_usage();
        assert!(machine.now < start + ms(10_000), "nothing was lowered");
    }
    machine.now - start
}

#[test]
fn a_flood_lowers_napi_threads_before_any_rule() {
    let mut machine = with_all_parts();
    // 2 × 60% within their own budgets, and 50% for the flood: 170% of two CPUs, where 160% are allowed.
    let took = until_it_is_less(&mut machine, 0.6, NONE, 0.5);
    assert!(took <= ms(600), "{took:?}");
    assert!(!machine.is_napi_raised && machine.pids() == [1, 2]);
    let status = machine.priority.status(machine.now);
    assert_eq!((status.counters.parts_lowered, status.counters.demoted), (1, 0));
    assert_eq!(status.budget.used_by_napi_ms, 0, "it has paid");
    let change = machine.changes().pop().unwrap().change;
    assert!(
        change.reason.contains("total_percent") && change.rule == "[receive]",
        "{change}"
    );
    // A second later they are raised again.
    for _ in 0..10 {
        machine.run(TICK, &|_| 0.6, NONE, NONE);
        machine.report_usage();
    }
    assert!(machine.is_napi_raised && machine.pids() == [1, 2]);
}

#[test]
fn a_flood_of_requests_lowers_the_chain_before_any_rule() {
    let mut machine = with_all_parts();
    until_it_is_less(&mut machine, 0.65, 0.49, NONE);
    assert!(machine.raised.is_empty() && machine.is_napi_raised && machine.pids() == [1, 2]);
    assert!(machine.suspended > machine.now, "whatever arrives");
    let status = machine.priority.status(machine.now);
    assert!(status.chains[0].suspended_ms > 0 && !status.chains[0].threads[0].raised);
    assert!(status.changes[0].change.reason.contains("total_percent"));
}

#[test]
fn a_rule_that_overruns_its_budget_pays_alone() {
    let mut machine = with_all_parts();
    let mut spins = |ticks| {
        for _ in 0..ticks {
            machine.run(TICK, &|pid| if pid == 1 { 1.0 } else { 0.1 }, 0.1, 0.1);
            machine.report_usage();
        }
        (machine.pids(), machine.is_napi_raised, machine.raised.len())
    };
    assert_eq!(spins(4), (vec![1, 2], true, 1));
    assert_eq!(spins(1), (vec![2], true, 1));
}

#[test]
fn napi_threads_have_their_own_share() {
    let mut machine = with_all_parts();
    let used_up = until_it_is_less(&mut machine, NONE, NONE, 1.0);
    // A credit of 0.8 s, refilled at 0.8 s a second.
    assert!((ms(3_500)..=ms(3_700)).contains(&used_up), "{used_up:?}");
    assert!(!machine.is_napi_raised && machine.pids() == [1, 2] && machine.raised.len() == 1);
}

/// The actions on these NAPI threads.
fn finds(priority: &mut Priority, pids: &[u32]) -> Vec<Action> {
    let threads = pids.iter().map(|pid| id(*pid)).collect();
    let input = Input::NapiThreads { threads, priority: 39 };
    priority.step(ms(100_000), input)
}

fn refused(tid: u32, reason: &str) -> RefusedThread {
    RefusedThread {
        tid,
        reason: reason.to_owned(),
    }
}

fn raises(pids: &[u32]) -> Action {
    Action::RaiseNapi {
        threads: pids.iter().map(|pid| id(*pid)).collect(),
        priority: 39,
    }
}

#[test]
fn rediscovered_napi_threads_keep_their_share() {
    let mut machine = with_all_parts();
    assert_eq!(
        finds(&mut machine.priority, &[9]),
        [],
        "an address has changed, or nothing"
    );
    assert_eq!(
        finds(&mut machine.priority, &[9, 10]),
        [Action::LowerNapi, raises(&[9, 10])],
        "none is left raised that is not watched"
    );
    let cpu = machine.napi_cpu;
    machine.give_input(Input::NapiRaised {
        cpu,
        refused: Vec::new(),
    });
    until_it_is_less(&mut machine, NONE, NONE, 1.0);
    assert_eq!(
        finds(&mut machine.priority, &[9, 11]),
        [],
        "a flood is paid for whoever takes it in"
    );
    let until = machine.now + WINDOW;
    while !machine.is_napi_raised {
        assert!(machine.now <= until, "never again");
        machine.run(TICK, &|_| NONE, NONE, NONE);
        machine.report_usage();
    }
}

#[test]
fn a_refused_napi_thread_does_not_keep_others_from_being_raised() {
    let mut machine = with_all_parts();
    finds(&mut machine.priority, &[9, 10]);
    let refused = vec![refused(10, "it has ended")];
    let cpu = machine.napi_cpu;
    machine.give_input(Input::NapiRaised { cpu, refused });
    let status = machine.priority.status(machine.now);
    assert!(status.napi.unwrap().raised);
    assert_eq!(status.warnings, ["NAPI thread 10 is not raised: it has ended"]);
    until_it_is_less(&mut machine, NONE, NONE, 1.0);
    assert!(!machine.is_napi_raised, "the other one is watched");
}

#[test]
fn refused_napi_threads_are_retried_when_rediscovered() {
    let mut machine = with_all_parts();
    finds(&mut machine.priority, &[10]);
    let refused = vec![refused(10, "no descriptors")];
    let cpu = machine.napi_cpu;
    machine.give_input(Input::NapiRaised { cpu, refused });
    assert!(!machine.priority.status(machine.now).napi.unwrap().raised);
    assert_eq!(finds(&mut machine.priority, &[10]), [raises(&[10])]);
}

#[test]
fn a_requested_raise_is_lowered_as_well() {
    let mut machine = with_all_parts();
    finds(&mut machine.priority, &[10]);
    let actions = machine.priority.pause(machine.now, "a test".to_owned());
    assert!(actions.contains(&Action::LowerNapi));
    let cpu = machine.napi_cpu;
    machine.give_input(Input::NapiRaised {
        cpu,
        refused: Vec::new(),
    });
    assert!(!machine.priority.status(machine.now).napi.unwrap().raised);
}

#[test]
fn starvation_by_other_causes_demotes_nobody() {
    let mut machine = with_all_parts();
    for _ in 0..5 {
        machine.run(TICK, &|_| 0.1, 0.05, 0.05);
        machine.report_usage();
    }
    machine.starve(ms(200));
    machine.starve(ms(400));
    assert_eq!(
        (machine.pids(), machine.is_napi_raised, machine.raised.len()),
        (vec![1, 2], true, 1)
    );
    assert!(machine.start(3, "/bin/a"), "nor is anything refused for it");
    let counters = machine.priority.status(machine.now).counters;
    assert_eq!((counters.starved, counters.starved_by_others), (0, 1));
}

#[test]
fn starvation_by_a_flood_lowers_the_flood_alone() {
    let mut machine = with_all_parts();
    machine.run(ms(200), &|_| 0.1, 0.2, 0.7);
    machine.report_usage();
    machine.starve(ms(200));
    assert!(!machine.is_napi_raised && machine.raised.is_empty());
    assert_eq!(machine.pids(), [1, 2], "before its patience is over");
    machine.run(TICK, &|_| 0.1, NONE, NONE);
    machine.report_usage();
    // It runs again.
    machine.starve(ms(0));
    assert_eq!(machine.pids(), [1, 2]);
    assert_eq!(machine.priority.status(machine.now).counters.starved, 0);
}

#[test]
fn chains_and_napi_threads_do_not_extend_a_spinning_rules_time() {
    // With parts that used a tenth of the time, and without.
    let took = |chains: f64, napi: f64| {
        let mut wide = rule("wide", "/bin/wide");
        wide.budget_percent = 1000;
        let mut limits = limits();
        limits.total_percent = 95;
        let mut machine = Machine::with(Priority::new(limits, Grants::default(), vec![wide], false));
        machine.find_napi();
        assert!(machine.request(77) && machine.start(1, "/bin/wide"));
        let start = machine.now;
        while !machine.granted.is_empty() {
            machine.run(TICK, &|_| 1.0, chains, napi);
            machine.report_usage();
            machine.starve(machine.now - start);
            assert!(machine.now < start + ms(2_000), "it spins still");
        }
        assert!(!machine.is_napi_raised && machine.raised.is_empty(), "everything goes");
        assert!(machine.suspended >= machine.now + HOLD);
        machine.now - start
    };
    assert_eq!(took(NONE, NONE), ms(400));
    assert_eq!(took(0.2, 0.2), ms(400));
}

#[test]
fn the_shortest_patience_leaves_a_flood_one_poll() {
    let mut limits = limits();
    limits.longest_wait = ms(100);
    let rules = vec![rule("a", "/bin/a")];
    let mut machine = Machine::with(Priority::new(limits, Grants::default(), rules, false));
    machine.find_napi();
    assert!(machine.start(1, "/bin/a"));
    for (look, pids) in [(1, 1), (2, 0)] {
        machine.run(TICK, &|_| 0.75, NONE, 0.75);
        machine.report_usage();
        machine.starve(TICK * look);
        assert_eq!((machine.is_napi_raised, machine.pids().len()), (false, pids));
    }
}

#[test]
fn starvation_revokes_everything_and_names_the_process_that_used_most() {
    let mut machine = with_all_parts();
    machine.compute(3, |pid| if pid == 1 { 0.7 } else { 0.1 });
    machine.starve(ms(450));
    assert!(machine.granted.is_empty() && !machine.is_napi_raised && machine.raised.is_empty());
    let reason = machine.reason(1);
    assert!(
        reason.contains("CPU 1") && reason.contains("450 ms") && reason.contains("/bin/a (pid 1"),
        "{reason}"
    );
    let is_anything_given = |machine: &mut Machine, pid| {
        machine.report_usage();
        machine.start(pid, "/bin/a") || machine.request(88) || machine.is_napi_raised
    };
    assert!(!is_anything_given(&mut machine, 3), "nothing is granted for a while");
    machine.now += HOLD - ms(1);
    assert!(!is_anything_given(&mut machine, 4));
    machine.now += ms(1);
    machine.report_usage();
    assert!(machine.start(5, "/bin/a") && machine.request(88) && machine.is_napi_raised);
}

#[test]
fn a_granted_process_keeps_the_rules_priority() {
    let mut machine = with_all_parts();
    // A thread of process 1 without real-time priority so far, or refused it.
    assert!(!machine.request(11));
    let changes = machine.priority.status(machine.now).changes;
    let of_rule = changes
        .iter()
        .find(|latest| latest.change.reason.contains("rule matches"));
    assert!(of_rule.is_some_and(|latest| !latest.change.made), "{changes:?}");
    assert_eq!(machine.pids(), [1, 2]);
    assert!(machine.request(31), "the service's other handlers go on");
    // However many requests arrive, the chain pays for them.
    let asked = (0..100_000).take_while(|_| !machine.request(11) && machine.suspended <= machine.now);
    assert!((1..10_000).contains(&asked.count()));
}

#[test]
fn a_chain_lowers_its_threads_before_a_rule_grants_their_process() {
    let mut machine = with_all_parts();
    assert!(machine.request(31) && machine.request(32));
    let matching = first_match(&machine.priority.rules(), &process("/bin/a"));
    let started = started(3, process("/bin/a"), Duration::ZERO);
    let input = Input::Started {
        started: started.into(),
        rule: matching,
    };
    let lowered = [Action::Lower { tid: 31 }, Action::Lower { tid: 32 }];
    assert_eq!(machine.priority.step(machine.now, input), lowered);
    // One is lowered, the other not yet: the rule waits, and no request intervenes.
    let cpu = Some(Duration::ZERO);
    assert_eq!(machine.priority.step(machine.now, Input::Lowered { tid: 31, cpu }), []);
    machine.request(31);
    let granted = machine.priority.step(machine.now, Input::Lowered { tid: 32, cpu });
    assert!(
        matches!(
            granted[..],
            [Action::Grant {
                id: ProcessId { pid: 3, .. },
                ..
            }]
        ),
        "{granted:?}"
    );
    assert_eq!(machine.priority.raised(), [77], "another process's stays");
}

#[test]
fn a_grant_does_not_wait_for_an_ended_chain() {
    let mut machine = with_all_parts();
    assert!(machine.request(31));
    let matching = first_match(&machine.priority.rules(), &process("/bin/a"));
    let started = started(3, process("/bin/a"), Duration::ZERO);
    machine.priority.step(
        machine.now,
        Input::Started {
            started: started.into(),
            rule: matching,
        },
    );
    let granted = machine.priority.step(machine.now, Input::ChainsEnded);
    assert!(matches!(granted[..], [Action::Grant { .. }]), "{granted:?}");
}
