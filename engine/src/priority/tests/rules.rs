// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What rules may grant, and what revokes it.

use super::*;
use crate::config::Config;

#[test]
fn a_matching_process_is_granted_by_the_first_rule() {
    let mut second = rule("second", "/bin/a");
    second.schedule = fifo(30);
    let mut machine = Machine::new(vec![rule("first", "/bin/a"), second], Vec::new());
    assert!(machine.start(1, "/bin/a"));
    assert!(!machine.start(2, "/bin/b"));
    let change = machine.changes().pop().unwrap().change;
    assert_eq!(
        (change.old, change.new, change.reason.as_str()),
        ("OTHER".into(), "FIFO 20".into(), "the rule matches it")
    );
}

#[test]
fn a_process_that_ends_before_the_outcome_counts_as_neither_granted_nor_failed() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    let process = process("/bin/a");
    let rule = first_match(&machine.priority.rules(), &process);
    let started = started(1, process, Duration::ZERO);
    let actions = machine.priority.step(
        machine.now,
        Input::Started {
            started: started.into(),
            rule,
        },
    );
    assert!(actions.iter().any(|action| matches!(action, Action::Grant { .. })));
    machine.give_input(Input::EndedBefore { id: id(1) });
    let status = machine.priority.status(machine.now);
    let counters = &status.counters;
    assert_eq!((counters.granted, counters.failed, counters.ended_before), (0, 0, 1));
    assert!(status.processes.is_empty() && machine.changes().is_empty());
}

#[test]
fn an_executable_writable_by_others_needs_a_user() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    let writable = || Process {
        trusted: Vec::new(),
        ..process("/bin/a")
    };
    assert!(!machine.start_as(1, writable()));
    let mut by_user = rule("a", "/bin/a");
    by_user.matcher.uid = Some(1000);
    let mut machine = Machine::new(vec![by_user], Vec::new());
    assert!(machine.start_as(1, writable()));
}

/// Process 1 belongs to a rule of root's, processes 2 and 3 to one of user 1000.
fn of_root_and_of_a_user() -> Machine {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], vec![for_all()]);
    let mut of_user = rule("b", "/bin/b");
    of_user.schedule = fifo(5);
    let actions = machine.priority.add_rule(of_user, 1000, &[]).unwrap();
    machine.carry_out(actions);
    assert!(
        [(1, "/bin/a"), (2, "/bin/b"), (3, "/bin/b")]
            .iter()
            .all(|(pid, exe)| machine.start(*pid, exe))
    );
    machine
}

fn for_all() -> Grant {
    Grant {
        uid: None,
        gid: None,
        max_priority: 10,
        max_tasks: 8,
        budget_percent: 50,
    }
}

#[test]
fn a_user_within_a_grant_does_not_demote_roots_rules() {
    let mut machine = of_root_and_of_a_user();
    for waited in 1..=4 {
        machine.compute(1, |pid| [0.0, 0.4, 0.45, 0.0][pid as usize]);
        machine.starve(waited * TICK);
    }
    assert_eq!(
        machine.pids(),
        [1],
        "nor does the user's other process go on in its place"
    );
    let reason = machine.reason(2);
    assert!(
        reason.contains("could not run for 400 ms, and uid 1000 used 180 ms"),
        "{reason}"
    );
    machine.compute(1, |_| 0.4);
    machine.starve(Duration::ZERO);
    assert_eq!(machine.pids(), [1], "other work runs again");
    machine.now += ms(500);
    assert!(!machine.start(4, "/bin/b"), "the user waits for a second at least");
}

#[test]
fn alternating_users_do_not_demote_roots_rules() {
    let mut machine = of_root_and_of_a_user();
    let mut of_another = rule("c", "/bin/c");
    of_another.schedule = fifo(5);
    machine.priority.add_rule(of_another, 1001, &[]).unwrap();
    let another = Process {
        uid: 1001,
        euid: 1001,
        ..process("/bin/c")
    };
    assert!(machine.start_as(4, another));
    for waited in 1..=5 {
        let shares = if waited < 5 {
            [0.0, 0.4, 0.45, 0.0, 0.0]
        } else {
            [0.0, 0.4, 0.0, 0.0, 0.6]
        };
        machine.compute(1, |pid| shares[pid as usize]);
        machine.starve(waited * TICK);
    }
    assert_eq!(machine.pids(), [1]);
}

#[test]
fn if_demoting_users_does_not_help_everything_is_revoked_a_poll_later() {
    let mut machine = of_root_and_of_a_user();
    for waited in 1..=5 {
        assert!(!machine.pids().is_empty(), "{waited}");
        machine.compute(1, |pid| [0.0, 0.75, 0.45, 0.0][pid as usize]);
        machine.starve(waited * TICK);
    }
    assert!(machine.pids().is_empty());
}

#[test]
fn an_exec_is_matched_again_and_may_lose_or_keep_its_priority() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    assert!(machine.start(1, "/bin/a"));
    assert!(machine.start(1, "/bin/a"));
    assert_eq!(machine.grants, 1, "what it had it keeps, without a second grant");
    assert!(!machine.start(1, "/bin/b"));
    assert!(machine.reason(1).contains("/bin/b"), "{}", machine.reason(1));
}

#[test]
fn a_spinner_is_demoted_within_a_window_and_over_exec() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    assert!(machine.start(1, "/bin/a"));
    machine.compute(4, |_| 1.0);
    assert!(machine.granted.contains_key(&id(1)), "400 ms of 500 are 80%");
    machine.compute(1, |_| 1.0);
    assert!(machine.granted.is_empty());
    let reason = machine.reason(1);
    assert!(
        reason.contains("500 ms of CPU in the last 500 ms, of 500 ms"),
        "{reason}"
    );
    assert!(!machine.start(1, "/bin/a"), "an exec is no new start");
    machine.now += WINDOW_OF_ALL;
    assert!(machine.start(2, "/bin/a"), "a new process is");
}

#[test]
fn a_process_within_its_budget_keeps_its_priority() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    assert!(machine.start(1, "/bin/a"));
    machine.compute(1000, |_| 0.79);
    assert_eq!(machine.granted.len(), 1);
}

#[test]
fn processes_of_a_rule_share_its_budget_including_ended_ones() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    // A sequence of processes, each of which runs for 300 ms and starts the next one.
    let start = machine.now;
    let mut had = Duration::ZERO;
    for pid in 1..100 {
        machine.start(pid, "/bin/a");
        for _ in 0..3 {
            had += if machine.granted.contains_key(&id(pid)) {
                TICK
            } else {
                Duration::ZERO
            };
            machine.compute(1, |_| 1.0);
        }
        machine.granted.remove(&id(pid));
        let cpu = Duration::from_millis(300);
        machine.give_input(Input::Exited { id: id(pid), cpu });
    }
    let share = had.as_secs_f64() / (machine.now - start).as_secs_f64();
    assert!((0.3..0.85).contains(&share), "the chain had {share} of a CPU");
}

#[test]
fn the_process_that_used_most_pays_for_its_rule() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    machine.start(1, "/bin/a");
    machine.start(2, "/bin/a");
    machine.compute(6, |_| 0.3);
    machine.compute(5, |pid| if pid == 1 { 0.3 } else { 0.9 });
    assert_eq!(machine.granted.keys().map(|id| id.pid).collect::<Vec<_>>(), [1]);
}

#[test]
fn many_processes_at_once_stay_within_their_rules_budget() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    let (mut pid, mut used) = (0, Vec::new());
    while machine.now < Duration::from_secs(105) {
        while machine.granted.len() < 4 && {
            pid += 1;
            machine.start(pid, "/bin/a")
        } {}
        let before = machine.now;
        machine.now = machine.priority.next_usage(before);
        let took = machine.now - before;
        // Four of them on two CPUs: the later ones wait.
        let running = machine.granted.values_mut().take(2).map(|cpu| *cpu += took);
        used.push((machine.now, took * running.count() as u32));
        machine.report_usage();
    }
    let busiest = used.iter().map(|(end, _)| {
        let within = used.iter().filter(|(at, _)| at <= end && *at + WINDOW_OF_ALL > *end);
        within.map(|(_, used)| *used).sum::<Duration>()
    });
    let (busiest, all) = (
        busiest.max().unwrap(),
        used.iter().map(|(_, used)| *used).sum::<Duration>(),
    );
    assert!(
        busiest <= WINDOW_OF_ALL.mul_f64(0.85),
        "{busiest:?} of the busiest half second"
    );
    assert!(all > Duration::from_secs(1), "they had only {all:?}");
}

#[test]
fn repeated_requests_do_not_escape_a_budget() {
    let mut machine = Machine::new(Vec::new(), vec![robots_grant()]);
    let mut had = Duration::ZERO;
    // Runs without end, and asks each 20 ms.
    for step in 1..=200 {
        let cpu = Duration::from_millis(20) * step;
        let asking = started(1, process("/usr/bin/giveway"), cpu);
        if machine.granted.contains_key(&id(1)) {
            had += Duration::from_millis(20);
            machine.granted.insert(id(1), cpu);
        }
        machine.now += Duration::from_millis(20);
        if step % 5 == 0 {
            machine.report_usage();
        }
        if let Ok(actions) = machine.priority.launch(machine.now, asking, fifo(10), &[]) {
            machine.granted.remove(&id(1));
            machine.carry_out(actions);
            machine.granted.insert(id(1), cpu);
        }
    }
    let share = had.as_secs_f64() / 4.0;
    assert!(share < 0.65, "it had {share} of a CPU, where the grant says half");
}

#[test]
fn a_user_with_many_rules_has_one_budget() {
    let mut machine = Machine::new(Vec::new(), vec![robots_grant()]);
    let wish = |n: usize| PriorityRule {
        schedule: fifo(10),
        ..rule(&format!("mine {n}"), &format!("/bin/{n}"))
    };
    for n in 0..32 {
        machine.priority.add_rule(wish(n), 1000, &[]).unwrap();
    }
    let refused = machine.priority.add_rule(wish(99), 1000, &[]).unwrap_err();
    assert!(refused.contains("32 rules"), "{refused}");
    let granted = (0..8).filter(|pid| machine.start(*pid, &format!("/bin/{pid}"))).count();
    assert_eq!(granted, 2, "as many tasks as the grant says, not for each rule");
}

#[test]
fn names_of_launched_commands_are_reserved() {
    let mut machine = Machine::new(Vec::new(), vec![robots_grant()]);
    let stolen = PriorityRule {
        schedule: fifo(10),
        ..rule("giveway exec by uid 0", "/bin/a")
    };
    assert!(
        machine
            .priority
            .add_rule(stolen, 1000, &[])
            .unwrap_err()
            .contains("are reserved")
    );
}

#[test]
fn refusals_do_not_displace_the_record_of_the_culprit() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    machine.start(1, "/bin/a");
    machine.compute(5, |_| 1.0);
    let granted = (2..1000).filter(|pid| machine.start(*pid, "/bin/a")).count();
    assert_eq!(granted, 0);
    assert!(machine.reason(1).contains("CPU") && machine.reason(999).contains("overrun"));
    assert!(
        machine
            .changes()
            .iter()
            .all(|latest| latest.change.made == (latest.change.reason == machine.reason(1)))
    );
}

#[test]
fn all_rules_together_have_a_budget() {
    let rules = (0..8).map(|n| rule(&n.to_string(), &format!("/bin/{n}"))).collect();
    let mut machine = Machine::new(rules, Vec::new());
    for pid in 0..8 {
        assert!(machine.start(pid, &format!("/bin/{pid}")));
    }
    // 4 × 45% of a CPU are 90% of two: each within its own budget.
    machine.compute(10, |pid| if pid < 4 { 0.45 } else { 0.01 });
    let left: Vec<u32> = machine.granted.keys().map(|id| id.pid).collect();
    assert!(left.len() >= 7, "no more is demoted than need be: {left:?}");
    assert!(
        (4..8).all(|pid| left.contains(&pid)),
        "those who use little do not pay: {left:?}"
    );
    let paid = machine.changes().pop().unwrap().change;
    assert!(paid.reason.contains("total_percent"), "{}", paid.reason);
}

#[test]
fn a_fork_bomb_gets_only_its_rules_tasks() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a"), rule("b", "/bin/b")], Vec::new());
    let granted = (0..500).filter(|pid| machine.start(*pid, "/bin/a")).count();
    assert_eq!(granted, 4);
    assert!(machine.start(1000, "/bin/b"), "another rule's tasks are its own");
    machine.granted.remove(&id(0));
    machine.give_input(Input::Exited {
        id: id(0),
        cpu: Duration::ZERO,
    });
    assert!(machine.start(1001, "/bin/a"), "what ends makes room");
}

#[test]
fn the_number_of_known_processes_is_bounded() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    let granted = (0..10_000).filter(|pid| machine.start(*pid, "/bin/a")).count();
    let held = (0..10_000).filter(|pid| machine.priority.holds(id(*pid))).count();
    assert_eq!(held, granted + 1024);
}

#[test]
fn the_number_of_rules_is_bounded() {
    let everybody = Grant {
        uid: None,
        gid: None,
        max_priority: 20,
        max_tasks: 8,
        budget_percent: 10,
    };
    let mut machine = Machine::new(Vec::new(), vec![everybody]);
    let mut add = |uid: u32, number: u32| {
        let rule = rule(&format!("{uid} {number}"), "/bin/a");
        machine.priority.add_rule(rule, uid, &[]).is_ok()
    };
    let of_users = (1..=100).flat_map(|uid| (0..40).map(move |number| (uid, number)));
    assert_eq!(of_users.filter(|(uid, number)| add(*uid, *number)).count(), 512);
    assert_eq!(
        (0..2000).filter(|number| add(0, *number)).count(),
        512,
        "root's place is its own"
    );
}

#[test]
fn threads_count_as_tasks_and_later_ones_are_granted_up_to_the_limit() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    machine.start(1, "/bin/a");
    let given = |actions: &[Action]| actions.iter().filter(|a| matches!(a, Action::GrantTask { .. })).count();
    let later: Vec<usize> = (10..16)
        .map(|tid| {
            let actions = machine.priority.step(machine.now, Input::TaskAdded { id: id(1), tid });
            let given = given(&actions);
            machine.carry_out(actions);
            given
        })
        .collect();
    assert_eq!(later, [1, 1, 1, 0, 0, 0]);
    let change = machine.changes().pop().unwrap();
    assert!(!change.change.made && change.change.reason.contains("new threads get no real-time priority"));
    assert_eq!(change.times, 2, "granted, and recorded once that no more is")
}

#[test]
fn another_tools_change_is_not_overridden() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    machine.start(1, "/bin/a");
    let changed = Usage {
        id: id(1),
        cpu: Duration::ZERO,
        tasks: 1,
        found: Some("RR 5".to_owned()),
    };
    let usage = Input::Usage {
        processes: vec![changed],
        napi: Duration::ZERO,
    };
    // The actuator does not override the other tool; the remaining threads must not keep a priority that no budget
    // counts.
    machine.give_input(usage);
    assert!(machine.granted.is_empty() && machine.reason(1).contains("another tool"));
    assert_eq!(machine.changes().pop().unwrap().change.new, "RR 5".into());
    assert_eq!(machine.priority.status(machine.now).counters.conflict, 1);
}

#[test]
fn a_removed_rule_revokes_only_its_own_grants() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], Vec::new());
    let look = machine.priority.add_rule(rule("b", "/bin/b"), 0, &[]).unwrap();
    assert_eq!(look, [Action::ScanProcesses]);
    machine.start(1, "/bin/a");
    machine.start(2, "/bin/b");
    let actions = machine.priority.remove_rule(machine.now, "b", 0).unwrap();
    machine.carry_out(actions);
    assert_eq!(machine.granted.keys().map(|id| id.pid).collect::<Vec<_>>(), [1]);
    let refused = machine.priority.remove_rule(machine.now, "a", 0).unwrap_err();
    assert!(refused.contains("configuration"), "{refused}");
}

#[test]
fn each_user_has_their_own_rule_names() {
    let mut machine = Machine::new(vec![rule("a", "/bin/a")], vec![for_all()]);
    let add = |machine: &mut Machine, uid| {
        let mut rule = rule("a", "/bin/a");
        rule.schedule = fifo(5);
        machine.priority.add_rule(rule, uid, &[])
    };
    assert!(add(&mut machine, 1).is_ok() && add(&mut machine, 2).is_ok());
    assert!(
        add(&mut machine, 1)
            .unwrap_err()
            .contains("there is a rule `a` already")
    );
    assert!(
        add(&mut machine, 0)
            .unwrap_err()
            .contains("there is a rule `a` already")
    );
    let by = |machine: &Machine| -> Vec<Option<u32>> {
        let rules = machine.priority.rules();
        rules.iter().map(|rule| rule.added_by).collect()
    };
    machine.priority.remove_rule(machine.now, "a", 1).unwrap();
    assert_eq!(by(&machine), [None, Some(2)]);
    let refused = machine.priority.remove_rule(machine.now, "a", 1).unwrap_err();
    assert!(refused.contains("no rule `a` of yours"), "{refused}");
}

fn robots_grant() -> Grant {
    Grant {
        uid: Some(1000),
        gid: None,
        max_priority: 10,
        max_tasks: 2,
        budget_percent: 50,
    }
}

#[test]
fn a_user_gets_the_granted_priority_for_own_processes() {
    let mut machine = Machine::new(Vec::new(), vec![robots_grant()]);
    let wish = |priority| PriorityRule {
        schedule: fifo(priority),
        ..rule("mine", "/home/robot/app")
    };
    let mut ask = |rule, uid| machine.priority.add_rule(rule, uid, &[]);
    assert!(
        ask(wish(10), 1001)
            .unwrap_err()
            .contains("allows uid 1001 real-time priority")
    );
    assert!(ask(wish(11), 1000).unwrap_err().contains("priority 11"));
    let mut of_roots = wish(10);
    of_roots.matcher.uid = Some(0);
    assert!(ask(of_roots, 1000).unwrap_err().contains("of their own"));
    ask(wish(10), 1000).unwrap();
    let of_another = Process {
        uid: 1001,
        euid: 1001,
        ..process("/home/robot/app")
    };
    assert!(!machine.start_as(1, of_another));
    let own = || Process {
        trusted: Vec::new(),
        ..process("/home/robot/app")
    };
    let granted = (2..10).filter(|pid| machine.start_as(*pid, own())).count();
    assert_eq!(granted, 2, "no more tasks than the grant says");
    let refused = machine.priority.remove_rule(machine.now, "mine", 1001).unwrap_err();
    assert!(refused.contains("of yours"), "{refused}");
}

#[test]
fn a_launched_command_keeps_its_priority_over_exec_but_not_as_another_user() {
    let mut machine = Machine::new(Vec::new(), vec![robots_grant()]);
    let shell = |pid| started(pid, process("/usr/bin/giveway"), Duration::ZERO);
    let actions = machine.priority.launch(machine.now, shell(1), fifo(10), &[]).unwrap();
    machine.carry_out(actions);
    assert!(machine.start(1, "/bin/env") && machine.start(1, "/bin/app"));
    let setuid = Process {
        euid: 0,
        ..process("/bin/su")
    };
    assert!(!machine.start_as(1, setuid));
    let refused = machine.priority.launch(machine.now, shell(2), fifo(11), &[]);
    assert!(refused.unwrap_err().contains("priority 11"));
}

#[test]
fn a_dry_run_decides_and_changes_nothing() {
    let rules = vec![rule("a", "/bin/a")];
    let mut machine = Machine::with(Priority::new(limits(), Grants::default(), rules, true));
    assert!(!machine.start(1, "/bin/a"));
    let change = machine.changes().pop().unwrap().change;
    assert!(!change.made && change.new == "FIFO 20".into());
}

#[test]
fn an_impossible_configuration_is_refused_with_its_key() {
    let read = |text: &str| {
        let config = Config::parse(text).map_err(|e| e.to_string())?;
        let nobody = |name: &str| (name == "robot").then_some(1000);
        let names = Names {
            user: &nobody,
            group: &nobody,
        };
        Priority::from_config(&config, 2, &names, false).map_err(|e| e.to_string())
    };
    let refused = |text: &str| read(text).unwrap_err();
    assert!(refused("[[priority]]\ncmdline = \"*\"").contains("priority.exe"));
    assert!(refused("[[priority]]\nexe = \"camera\"").contains("absolute"));
    assert!(refused("[[priority]]\nuser = \"ghost\"").contains("no `ghost`"));
    assert!(refused("[[priority]]\nuser = \"robot\"\npriority = 49").contains("priority.priority"));
    assert!(refused("[[priority]]\nuser = \"robot\"\ncpus = [2]").contains("no CPU 2"));
    assert!(refused("[[priority]]\nuser = \"robot\"\npolicy = \"deadline\"").contains("runtime_us"));
    assert!(refused("[priority_limits]\nmax_priority = 49").contains("max_priority"));
    assert!(refused("[[grant]]\nmax_priority = 5").contains("grant.user"));
    let two = "[[priority]]\nname = \"x\"\nuser = \"robot\"\n";
    assert!(refused(&two.repeat(2)).contains("given twice"));
    let fine = "[[priority]]\nuser = \"robot\"\npolicy = \"deadline\"\nruntime_us = 2000\nperiod_us = 10000";
    let rules = read(fine).unwrap().rules();
    assert_eq!(rules[0].schedule.shown(), "DEADLINE 2000/10000/10000 us");
    assert_eq!(watched(&rules), (BTreeSet::new(), BTreeSet::from([1000])));
}

#[test]
fn repeated_overruns_of_a_grant_wait_longer_for_a_smaller_budget() {
    let mut machine = Machine::new(Vec::new(), vec![robots_grant()]);
    let wish = PriorityRule {
        schedule: fifo(10),
        ..rule("mine", "/home/robot/app")
    };
    machine.priority.add_rule(wish, 1000, &[]).unwrap();
    let own = || Process {
        trusted: Vec::new(),
        ..process("/home/robot/app")
    };
    let (mut granted, begun) = (Vec::new(), machine.now);
    for pid in 1..1_200 {
        if machine.granted.is_empty() && machine.start_as(pid, own()) {
            granted.push((machine.now - begun).as_millis());
        }
        machine.compute(1, |_| 1.0);
    }
    let waits: Vec<_> = granted.windows(2).map(|two| two[1] - two[0]).collect();
    // The wait, and the time to overrun 250, 125, 62, ... ms of the window, polled every 100.
    assert_eq!(waits, [1_300, 2_200, 4_100, 8_100, 16_100, 32_100]);
    assert!(
        machine
            .reason(1_000)
            .contains("uid 1000 has overrun the budget of its grant"),
        "{}",
        machine.reason(1_000)
    );

    machine.now += Duration::from_secs(180);
    assert!(machine.start_as(2_000, own()));
    machine.compute(10, |_| 1.0);
    machine.now += Duration::from_secs(1);
    assert!(machine.start_as(2_001, own()), "a long time ago is forgotten");
}

#[test]
fn an_overrun_is_forgotten_a_minute_after_its_wait() {
    for (later_s, gets_it_after_a_second) in [(40, false), (120, true)] {
        let mut machine = Machine::new(Vec::new(), vec![robots_grant()]);
        let wish = PriorityRule {
            schedule: fifo(10),
            ..rule("mine", "/home/robot/app")
        };
        machine.priority.add_rule(wish, 1000, &[]).unwrap();
        let own = || Process {
            trusted: Vec::new(),
            ..process("/home/robot/app")
        };
        for pid in [1, 2] {
            assert!(machine.start_as(pid, own()));
            machine.compute(10, |_| 1.0);
            assert!(machine.granted.is_empty());
            machine.now += if pid == 1 {
                Duration::from_secs(later_s)
            } else {
                ms(700)
            };
        }
        assert_eq!(machine.start_as(3, own()), gets_it_after_a_second, "{later_s} s later");
    }
}
