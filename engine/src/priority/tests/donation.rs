// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU time of others with inherited priority counts for the donor.

use proptest::prelude::*;

use super::*;

fn donate(machine: &mut Machine, donor: Donor, used: Duration, recipients: u32) {
    let to = Recipient {
        pid: 77,
        name: "owner".to_owned(),
    };
    machine.give_input(Input::Donated(DonatedTime {
        donor,
        used,
        recipients,
        to,
    }));
}

/// Process 1 uses and donates these shares of each tick; all others use a twentieth.
fn compute_and_donate(machine: &mut Machine, own: f64, donated: f64) {
    machine.run(TICK, &|pid| if pid == 1 { own } else { 0.05 }, 0.0, 0.0);
    donate(machine, Donor::Process(id(1)), TICK.mul_f64(donated), 1);
    machine.report_usage();
}

fn two() -> Machine {
    let mut machine = Machine::new(vec![rule("a", "/bin/a"), rule("b", "/bin/b")], Vec::new());
    assert!(machine.start(1, "/bin/a") && machine.start(2, "/bin/b"));
    machine
}

#[test]
fn inherited_cpu_time_counts_for_the_donor() {
    let mut machine = two();
    for _ in 0..4 {
        compute_and_donate(&mut machine, 0.0, 1.0);
        assert_eq!(machine.pids(), [1, 2], "400 ms of 500 are 80%");
    }
    compute_and_donate(&mut machine, 0.0, 1.0);
    assert_eq!(machine.pids(), [2]);
    let reason = machine.reason(1);
    assert!(
        reason.starts_with("its priority was inherited through a futex by process 77 (owner), which ran for 500 ms")
            && reason.contains("with that it used 500 ms of CPU in the last 500 ms"),
        "{reason}"
    );
    assert!(!machine.start(3, "/bin/a"), "its rule has overrun its budget");
}

#[test]
fn inherited_cpu_time_within_the_budget_demotes_nobody() {
    let mut machine = two();
    (0..100).for_each(|_| compute_and_donate(&mut machine, 0.4, 0.39));
    assert_eq!(machine.pids(), [1, 2]);
    compute_and_donate(&mut machine, 0.0, 0.0);
    let used = machine.priority.status(machine.now).processes[0].cpu_percent;
    assert!((60.0..80.0).contains(&used), "{used}% of 4 ticks");
}

#[test]
fn starvation_demotes_donors_first_and_all_if_that_does_not_help() {
    let wide = |name, exe| PriorityRule {
        budget_percent: 1000,
        ..rule(name, exe)
    };
    let starved = || {
        let rules = vec![wide("a", "/bin/a"), wide("b", "/bin/b")];
        let mut machine = Machine::new(rules, Vec::new());
        assert!(machine.start(1, "/bin/a") && machine.start(2, "/bin/b"));
        for waited in 1..=4 {
            assert_eq!(machine.pids(), [1, 2]);
            compute_and_donate(&mut machine, 0.0, 1.0);
            machine.starve(waited * TICK);
        }
        machine
    };
    let mut machine = starved();
    assert_eq!(machine.pids(), [2]);
    let reason = machine.reason(1);
    assert!(
        reason.contains("could not run for 400 ms") && reason.contains("process 77 (owner), which ran for 400 ms"),
        "{reason}"
    );
    machine.run(TICK, &|_| 0.05, 0.0, 0.0);
    machine.report_usage();
    machine.starve(Duration::ZERO);
    assert_eq!(machine.pids(), [2], "it runs again");
    let counters = machine.priority.status(machine.now).counters;
    assert_eq!((counters.starved, counters.starved_by_others), (1, 0));

    let mut machine = starved();
    for waited in 5..8 {
        machine.run(TICK, &|_| 1.0, 0.0, 0.0);
        machine.report_usage();
        machine.starve(waited * TICK);
    }
    assert!(machine.pids().is_empty(), "it waits still, and now for the other one");
}

#[test]
fn a_chain_pays_for_its_handlers_donations() {
    let mut machine = two();
    assert!(machine.request(88));
    for _ in 0..9 {
        machine.now += TICK;
        donate(&mut machine, Donor::Handler { tid: 88 }, TICK, 1);
        machine.report_usage();
    }
    // A share of half a CPU: a whole one lasts for less than a second.
    assert!(machine.raised.is_empty() && machine.suspended > machine.now);
    assert_eq!(machine.pids(), [1, 2]);
    let status = machine.priority.status(machine.now);
    let reason = &status.changes[0].change.reason;
    assert!(
        reason.contains("50% of a CPU") && reason.contains("process 77 (owner)"),
        "{reason}"
    );
}

#[test]
fn a_donor_to_too_many_threads_is_demoted_at_once() {
    let mut machine = two();
    assert!(machine.request(88));
    for donor in [Donor::Process(id(1)), Donor::Handler { tid: 88 }] {
        donate(&mut machine, donor, Duration::ZERO, 64);
    }
    assert_eq!((machine.pids(), machine.raised.len()), (vec![1, 2], 1));
    for donor in [Donor::Process(id(1)), Donor::Handler { tid: 88 }] {
        donate(&mut machine, donor, Duration::ZERO, 65);
    }
    assert_eq!((machine.pids(), machine.raised.len()), (vec![2], 0));
    assert!(
        machine.reason(1).contains("65 threads at once"),
        "{}",
        machine.reason(1)
    );
}

proptest! {
    #[test]
    fn donor_and_recipients_share_one_budget(donated in prop::collection::vec(0.0..=1.0, 50), busy in 0.0..1.0) {
        let lasts = |part: &dyn Fn(usize) -> f64| {
            let mut machine = two();
            let demoted = |n: &usize| {
                compute_and_donate(&mut machine, busy * (1.0 - part(*n)), busy * part(*n));
                machine.pids() == [2]
            };
            (0..donated.len()).find(demoted)
        };
        prop_assert_eq!(lasts(&|_| 0.0), lasts(&|n| donated[n]));
    }

    #[test]
    fn donations_of_unknown_processes_count_for_nobody(donors in prop::collection::vec((2_u32..200, 0_u64..1_000), 0..50)) {
        let mut machine = two();
        for (number, used) in donors {
            let donor = if number == 2 { Donor::Process(id(9)) } else { Donor::Handler { tid: number } };
            donate(&mut machine, donor, ms(used), number);
        }
        machine.report_usage();
        prop_assert_eq!(machine.pids(), [1, 2]);
        prop_assert_eq!(machine.priority.status(machine.now).counters.demoted, 0);
    }
}
