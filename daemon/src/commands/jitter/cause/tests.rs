// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;

const OWN: u32 = 7;

fn fifo(priority: i32) -> Scheduling {
    Scheduling {
        policy: Policy::FIFO,
        priority,
    }
}

const NOT_REALTIME: Scheduling = Scheduling {
    policy: Policy::OTHER,
    priority: 0,
};

/// Times in microseconds, as everywhere below.
fn interval(from: u64, to: u64, activity: Activity) -> ActivityInterval {
    ActivityInterval {
        from_ns: from * 1000,
        to_ns: to * 1000,
        activity,
        stolen_ns: 0,
        stolen_after_ns: from * 1000,
    }
}

fn thread(from: u64, to: u64, tid: u32, name: &str, scheduling: Scheduling) -> ActivityInterval {
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    let priority = kernel_priority(scheduling);
    interval(
        from,
        to,
        Activity::Thread {
            tid,
            name: bytes,
            scheduling,
            priority,
        },
    )
}

/// A thread of FIFO 49, planned at 1,000 on CPU 0.
fn evidence(woken: u64, woke: u64, cpu_did: Vec<ActivityInterval>) -> Evidence {
    Evidence {
        planned_ns: 1_000_000,
        woke_ns: woke * 1000,
        tid: OWN,
        scheduling: fifo(49),
        slack_ns: 0,
        waking: Some(Waking {
            t_ns: woken * 1000,
            cpu: 0,
        }),
        cpu: 0,
        timer_cpu_did: Vec::new(),
        cpu_did,
    }
}

fn found(evidence: &Evidence) -> Vec<(CulpritKind, String, f64)> {
    let culprits = culprits(evidence, &|number| format!("irq{number}"));
    let late_us: f64 = culprits.iter().map(|culprit| culprit.us).sum();
    assert_eq!(
        late_us,
        (evidence.woke_ns - evidence.planned_ns) as f64 / 1e3,
        "{culprits:?}"
    );
    culprits.into_iter().map(|c| (c.kind, c.name, c.us)).collect()
}

fn named(kind: CulpritKind, name: &str, us: f64) -> (CulpritKind, String, f64) {
    (kind, name.to_owned(), us)
}

#[test]
fn a_thread_that_outranks_it_is_blamed_for_what_it_ran_after_the_waking() {
    let spinner = thread(0, 3000, 9, "spinner", fifo(80));
    let timer = interval(1002, 1005, Activity::Vector("timer"));
    let late = evidence(1003, 3004, vec![spinner, timer]);
    let expected = [
        named(CulpritKind::Thread, "spinner", 1995.0),
        named(CulpritKind::Own, "itself", 4.0),
        named(CulpritKind::Irq, "timer", 3.0),
        named(CulpritKind::StealOrDisabled, "spinner", 2.0),
    ];
    assert_eq!(found(&late), expected);
    let culprits = culprits(&late, &|_| String::new());
    assert_eq!(line(&culprits, 2004.0), "spinner (SCHED_FIFO 80) ran 2.00 ms");
}

#[test]
fn a_softirq_within_a_thread_is_not_the_threads() {
    let late = evidence(
        1003,
        2000,
        vec![
            thread(0, 1995, 9, "victim", NOT_REALTIME),
            interval(1010, 1910, Activity::Softirq(3)),
            interval(1100, 1200, Activity::Irq(38)),
            interval(1002, 1005, Activity::Vector("timer")),
        ],
    );
    assert_eq!(
        found(&late)[..3],
        [
            named(CulpritKind::Softirq, "NET_RX", 800.0),
            named(CulpritKind::Irq, "irq38", 100.0),
            named(CulpritKind::Thread, "victim", 90.0)
        ]
    );
}

#[test]
fn a_late_interrupt_is_nobodys_unless_interrupts_were_handled_meanwhile() {
    let timer = interval(1500, 1505, Activity::Vector("timer"));
    let late = evidence(1503, 1512, vec![thread(0, 1510, 9, "driver", NOT_REALTIME), timer]);
    assert_eq!(found(&late)[0], named(CulpritKind::StealOrDisabled, "driver", 500.0));

    let mut stolen = timer;
    (stolen.stolen_ns, stolen.stolen_after_ns) = (450_000, 900_000);
    let late = evidence(1503, 1512, vec![thread(0, 1510, 9, "driver", NOT_REALTIME), stolen]);
    assert_eq!(found(&late)[0], named(CulpritKind::Steal, "hypervisor", 450.0));

    let long = interval(900, 1450, Activity::Irq(38));
    let late = evidence(
        1503,
        1512,
        vec![thread(0, 1510, 9, "driver", NOT_REALTIME), timer, long],
    );
    assert_eq!(found(&late)[0], named(CulpritKind::Irq, "irq38", 450.0));

    let idle = interval(0, 1510, Activity::Idle);
    assert_eq!(
        found(&evidence(1503, 1512, vec![idle, timer]))[0],
        named(CulpritKind::Idle, "idle", 505.0)
    );
}

#[test]
fn slack_is_no_disturbance() {
    let timer = interval(1051, 1055, Activity::Vector("timer"));
    let mut late = evidence(1053, 1062, vec![thread(0, 1060, 9, "hog", NOT_REALTIME), timer]);
    late.slack_ns = 50_000;
    let slack = found(&late);
    assert_eq!(slack[0], named(CulpritKind::Slack, "timer slack", 50.0));
    assert!(
        slack.contains(&named(CulpritKind::StealOrDisabled, "hog", 1.0)),
        "{slack:?}"
    );
    late.slack_ns = 80_000;
    assert_eq!(found(&late)[0], named(CulpritKind::Slack, "timer slack", 51.0));
}

#[test]
fn a_lower_thread_that_the_scheduler_chose_instead_means_throttling() {
    let chosen = thread(1100, 9000, 9, "plain", NOT_REALTIME);
    let before = thread(0, 1100, 8, "spinner", fifo(80));
    let late = evidence(1003, 9001, vec![before, chosen]);
    assert_eq!(found(&late)[0], named(CulpritKind::Throttled, "plain", 7900.0));

    let mut plain = late;
    plain.scheduling = NOT_REALTIME;
    assert_eq!(
        found(&plain)[0].0,
        CulpritKind::Thread,
        "without real time it is the other thread's turn"
    );
    let boosted = Activity::Thread {
        tid: 9,
        name: *b"plain\0\0\0\0\0\0\0\0\0\0\0",
        scheduling: NOT_REALTIME,
        priority: 10,
    };
    let late = evidence(1003, 9001, vec![before, interval(1100, 9000, boosted)]);
    assert_eq!(found(&late)[0].0, CulpritKind::Thread, "a boosted one outranks it");
}

#[test]
fn a_thread_that_moved_waited_for_the_timer_on_one_cpu_and_for_its_turn_on_the_other() {
    let mut late = evidence(1400, 2000, vec![thread(0, 1990, 9, "hog", fifo(80))]);
    late.waking = Some(Waking {
        t_ns: 1_400_000,
        cpu: 1,
    });
    late.timer_cpu_did = vec![interval(800, 1390, Activity::Irq(5)), interval(0, 1500, Activity::Idle)];
    let expected = [
        named(CulpritKind::Thread, "hog", 590.0),
        named(CulpritKind::Irq, "irq5", 390.0),
        named(CulpritKind::Idle, "idle", 10.0),
        named(CulpritKind::Own, "itself", 10.0),
    ];
    assert_eq!(found(&late), expected);
}

#[test]
fn what_the_ring_no_longer_holds_is_called_so() {
    let late = evidence(1003, 9000, vec![thread(8000, 8990, 9, "last", fifo(80))]);
    assert_eq!(found(&late)[0].0, CulpritKind::Unknown);
    let nothing = evidence(1003, 9000, Vec::new());
    assert_eq!(
        found(&nothing)[0].0,
        CulpritKind::Own,
        "it was never switched away from"
    );
}

#[test]
fn a_name_is_text_whatever_a_process_calls_itself() {
    let late = evidence(1003, 3004, vec![thread(0, 3000, 9, "\x1b[2J\n", fifo(80))]);
    assert_eq!(found(&late)[0].1, "?[2J?");
}
