// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In virtual time: who is raised, who is lowered, who is barred.

use super::*;

const SERVICE: Service = Service {
    protocol: Protocol::Udp,
    local_port: 5005,
};
const TID: u32 = 7;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn handlers() -> Handlers {
    let terms = Terms {
        priority: 40,
        share_percent: 50,
    };
    Handlers::new(ms(0), [(SERVICE, terms)])
}

fn raised_at(now: Duration) -> Handlers {
    let mut handlers = handlers();
    let asked = handlers.step(
        now,
        Input::Request {
            tid: TID,
            service: SERVICE,
        },
    );
    assert_eq!(asked, [Action::Raise { tid: TID, priority: 40 }]);
    let outcome = Ok(ms(0));
    assert_eq!(handlers.step(now, Input::Raised { tid: TID, outcome }), []);
    handlers
}

fn seen(until: Option<Duration>, is_awake: bool, cpu: Duration) -> Input {
    Input::Look(vec![Seen {
        tid: TID,
        until,
        is_awake,
        cpu,
    }])
}

#[test]
fn a_handler_keeps_its_priority_from_request_to_request() {
    let mut handlers = raised_at(ms(1));
    // Asleep after the deadline of its latest request: that costs nobody anything.
    assert_eq!(handlers.step(ms(20), seen(Some(ms(6)), false, ms(1))), []);
    // Awake, for a request that came since.
    assert_eq!(handlers.step(ms(40), seen(Some(ms(42)), true, ms(2))), []);
    assert_eq!(handlers.raised().collect::<Vec<_>>(), [TID]);
}

#[test]
fn who_computes_beyond_the_deadline_is_lowered() {
    let mut handlers = raised_at(ms(1));
    let lowered = handlers.step(ms(20), seen(Some(ms(6)), true, ms(19)));
    assert_eq!(lowered, [Action::Lower { tid: TID }]);
    handlers.step(
        ms(20),
        Input::Lowered {
            tid: TID,
            cpu: Some(ms(19)),
        },
    );
    assert_eq!(handlers.raised().count(), 0);
    assert!(handlers.view()[0].why.contains("after its request's deadline"));
}

#[test]
fn something_else_lowers_and_the_next_request_raises_again() {
    let mut handlers = raised_at(ms(1));
    assert_eq!(
        handlers.step(ms(8), Input::SomethingElse { tid: TID }),
        [Action::Lower { tid: TID }]
    );
    handlers.step(
        ms(8),
        Input::Lowered {
            tid: TID,
            cpu: Some(ms(1)),
        },
    );
    // Said twice, done once.
    assert_eq!(handlers.step(ms(8), Input::SomethingElse { tid: TID }), []);
    let again = handlers.step(
        ms(10),
        Input::Request {
            tid: TID,
            service: SERVICE,
        },
    );
    assert_eq!(again, [Action::Raise { tid: TID, priority: 40 }]);
}

#[test]
fn however_many_requests_come_a_chain_has_its_share_and_no_more() {
    let mut handlers = raised_at(ms(0));
    // Always within a deadline: a flood of requests. All of the CPU, where half is allowed.
    let mut barred = None;
    for step in 1..=100 {
        let now = LOOK_EVERY * step;
        let actions = handlers.step(now, seen(Some(now + ms(5)), true, now));
        if !actions.is_empty() {
            barred = Some((now, actions));
            break;
        }
    }
    let (at, actions) = barred.expect("a chain that uses a whole CPU is barred");
    // A full credit of half a second, refilled at half a CPU's rate.
    assert!((ms(960)..=ms(1020)).contains(&at), "{at:?}");
    let until = at + WINDOW;
    assert_eq!(
        actions,
        [
            Action::Bar {
                service: SERVICE,
                until
            },
            Action::Lower { tid: TID }
        ]
    );
}

#[test]
fn what_it_uses_while_it_is_ordinary_is_not_counted() {
    let mut handlers = raised_at(ms(0));
    handlers.step(ms(1), Input::SomethingElse { tid: TID });
    handlers.step(
        ms(1),
        Input::Lowered {
            tid: TID,
            cpu: Some(ms(1)),
        },
    );
    handlers.step(
        ms(5_000),
        Input::Request {
            tid: TID,
            service: SERVICE,
        },
    );
    let outcome = Ok(ms(4_500));
    handlers.step(ms(5_000), Input::Raised { tid: TID, outcome });
    assert_eq!(handlers.step(ms(5_020), seen(Some(ms(5_030)), true, ms(4_520))), []);
}

#[test]
fn a_thread_that_ended_or_could_not_be_raised_is_not_looked_at() {
    let mut handlers = raised_at(ms(0));
    assert_eq!(handlers.step(ms(20), seen(None, false, ms(0))), []);
    assert_eq!(handlers.view(), []);
    handlers.step(
        ms(21),
        Input::Request {
            tid: TID,
            service: SERVICE,
        },
    );
    let outcome = Err("the kernel refused".to_owned());
    handlers.step(ms(21), Input::Raised { tid: TID, outcome });
    assert_eq!(handlers.raised().count(), 0);
    assert_eq!(handlers.view()[0].why, "the kernel refused");
}
