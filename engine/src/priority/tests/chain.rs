// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which handlers are raised and lowered, and which chains suspended.

use super::*;
use crate::priority::chain::THREADS_KEPT;

const TID: u32 = 77;
const PID: u32 = 7;

fn machine() -> Machine {
    Machine::new(Vec::new(), Vec::new())
}

fn request(machine: &mut Machine, tid: u32) -> Vec<Action> {
    let (pid, service) = (tid / 10, SERVICE);
    machine.priority.step(machine.now, Input::Request { tid, pid, service })
}

fn raised() -> Machine {
    let mut machine = machine();
    assert!(machine.request(TID));
    machine
}

/// A sample of it, this long after the start.
fn look(machine: &mut Machine, at: Duration, until: Option<Duration>, is_awake: bool, cpu: Duration) -> Vec<Action> {
    let start = Duration::from_secs(100);
    let seen = HandlerSample {
        tid: TID,
        until: until.map(|until| start + until),
        is_awake,
        cpu,
    };
    machine.now = start + at;
    machine.priority.step(machine.now, Input::Handlers(vec![seen]))
}

fn reason(machine: &Machine) -> String {
    machine.priority.status(machine.now).changes[0].change.reason.clone()
}

#[test]
fn a_handler_keeps_its_priority_from_request_to_request() {
    let mut machine = raised();
    // Asleep after the deadline of its latest request: no cost.
    assert_eq!(look(&mut machine, ms(20), Some(ms(6)), false, ms(1)), []);
    // Awake, for a newer request.
    assert_eq!(look(&mut machine, ms(40), Some(ms(42)), true, ms(2)), []);
    assert_eq!(machine.priority.raised(), [TID]);
}

#[test]
fn a_handler_that_runs_beyond_the_deadline_is_lowered() {
    let mut machine = raised();
    let lowered = look(&mut machine, ms(20), Some(ms(6)), true, ms(19));
    assert_eq!(lowered, [Action::Lower { tid: TID }]);
    machine.carry_out(lowered);
    assert!(machine.priority.raised().is_empty() && !machine.priority.is_active());
    assert!(reason(&machine).contains("after its request's deadline"));
}

#[test]
fn other_work_lowers_and_the_next_request_raises_again() {
    let mut machine = raised();
    machine.give_input(Input::OtherWork { tid: TID });
    assert!(machine.raised.is_empty());
    // Reported twice, done once.
    assert_eq!(machine.priority.step(machine.now, Input::OtherWork { tid: TID }), []);
    assert_eq!(request(&mut machine, TID), [Action::Raise { tid: TID, priority: 40 }]);
}

#[test]
fn a_flood_of_requests_keeps_a_chain_within_its_share() {
    let mut machine = raised();
    // Always within a deadline: a flood of requests. All of the CPU, where half is allowed.
    let suspended = (1..=100).find_map(|step| {
        let at = JUDGED_EVERY * step;
        let actions = look(&mut machine, at, Some(at + ms(5)), true, at);
        (!actions.is_empty()).then_some((at, actions))
    });
    let (at, actions) = suspended.expect("a chain that uses a whole CPU is suspended");
    // A full credit of half a second, refilled at half a CPU's rate.
    assert!((ms(960)..=ms(1020)).contains(&at), "{at:?}");
    let (service, until) = (SERVICE, machine.now + WINDOW);
    assert_eq!(actions, [Action::Bar { service, until }, Action::Lower { tid: TID }]);
    machine.carry_out(actions);
    assert_eq!(
        request(&mut machine, TID),
        [],
        "though the kernel had reported it before"
    );
    machine.now = until;
    assert!(machine.request(TID));
}

#[test]
fn alternating_requests_and_other_work_do_not_keep_giveway_busy() {
    let mut machine = machine();
    let changes = (1..100_000).find(|_| {
        machine.now += Duration::from_micros(120);
        let is_raised = machine.request(TID);
        machine.give_input(Input::OtherWork { tid: TID });
        !is_raised
    });
    // Its share is half a CPU, which includes the cost of raising and lowering.
    let changes = changes.expect("a chain whose changes take a whole CPU is suspended");
    assert!((8_000..9_000).contains(&changes), "{changes}");
}

#[test]
fn cpu_time_without_priority_is_not_counted() {
    let mut machine = raised();
    machine.give_input(Input::OtherWork { tid: TID });
    machine.now += ms(5_000);
    machine.raised.insert(TID, ms(4_500));
    machine.give_input(Input::Request {
        tid: TID,
        pid: PID,
        service: SERVICE,
    });
    assert_eq!(look(&mut machine, ms(5_020), Some(ms(5_030)), true, ms(4_520)), []);
}

#[test]
fn an_ended_or_refused_thread_is_not_polled() {
    let mut machine = raised();
    assert_eq!(look(&mut machine, ms(20), None, false, ms(0)), []);
    assert!(machine.priority.status(machine.now).chains[0].threads.is_empty());
    request(&mut machine, TID);
    let outcome = Err("the kernel refused".to_owned());
    let suspended = machine.priority.step(machine.now, Input::Raised { tid: TID, outcome });
    assert!(matches!(suspended[..], [Action::Bar { .. }]), "{suspended:?}");
    assert!(machine.priority.raised().is_empty());
    assert_eq!(reason(&machine), "the kernel refused");
}

#[test]
fn short_lived_threads_leave_no_records() {
    let mut machine = machine();
    for tid in 1..100_000 {
        // One suspension in a while, for the cost of all these changes.
        machine.now += ms(1);
        machine.request(tid);
        machine.give_input(Input::OtherWork { tid });
    }
    assert_eq!(machine.priority.not_raised().len(), THREADS_KEPT);
    for tid in machine.priority.not_raised() {
        machine.give_input(Input::Lowered { tid, cpu: None });
    }
    assert!(machine.priority.not_raised().is_empty());
}

#[test]
fn raised_threads_are_bounded_and_a_sleeper_yields_its_place() {
    let mut machine = machine();
    for tid in 1..=2 * THREADS_KEPT as u32 {
        machine.now += ms(1);
        machine.request(tid);
    }
    assert_eq!(machine.priority.raised().len(), THREADS_KEPT);
    let sleeper = HandlerSample {
        tid: 1,
        until: Some(machine.now - ms(1)),
        is_awake: false,
        cpu: Duration::ZERO,
    };
    machine.give_input(Input::Handlers(vec![sleeper]));
    assert!(machine.request(1_000), "the sleeper's place is free");
}

#[test]
fn cpu_time_until_a_threads_end_is_counted() {
    let mut machine = raised();
    machine.give_input(Input::HandlerEnded { tid: TID, cpu: ms(900) });
    assert!(machine.priority.status(machine.now).chains[0].threads.is_empty());
    assert!(machine.suspended > machine.now, "it has used more than its share");
}
