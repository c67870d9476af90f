// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which changes are kept, and how they are shown.

use super::*;

fn socket(cookie: u64) -> Subject {
    Subject::Socket { cookie: Cookie(cookie) }
}

fn cap(cookie: u64, segments: u32) -> Change {
    Change {
        subject: socket(cookie),
        name: "rsync (77) to 192.0.2.1:873".to_owned(),
        setting: Setting::Cap,
        old: Value::Unset(()),
        new: Some(segments).into(),
        rule: "fixed".to_owned(),
        reason: "8 devices send".to_owned(),
        made: true,
    }
}

fn cookies(changes: &Changes) -> Vec<u64> {
    let of = |latest: &Latest| match latest.change.subject {
        Subject::Socket { cookie } => cookie.0,
        _ => 0,
    };
    changes.to_vec().iter().map(of).collect()
}

#[test]
fn repeated_changes_of_a_setting_take_one_entry_and_are_counted() {
    let mut changes = Changes::default();
    changes.note(Duration::ZERO, cap(1, 10));
    for segments in 0..100_000 {
        changes.note(Duration::from_secs(1), cap(2, segments));
    }
    let kept = changes.to_vec();
    assert_eq!(cookies(&changes), [1, 2]);
    assert_eq!((kept[1].times, &kept[1].change.new), (100_000, &Value::Number(99_999)));
}

#[test]
fn ended_subjects_are_evicted_first_then_the_oldest() {
    let mut changes = Changes::default();
    for cookie in 1..=KEPT as u64 {
        changes.note(Duration::ZERO, cap(cookie, 10));
    }
    changes.ended(&socket(3));
    let mut gone_after = |cookie| {
        changes.note(Duration::ZERO, cap(cookie, 10));
        let kept = cookies(&changes);
        assert_eq!(kept.len(), KEPT);
        (1..6).filter(|cookie| !kept.contains(cookie)).collect::<Vec<_>>()
    };
    assert_eq!(gone_after(10_001), [3]);
    assert_eq!(gone_after(10_002), [1, 3]);
}

#[test]
fn refusals_are_evicted_before_changes_that_were_made() {
    let mut changes = Changes::default();
    changes.note(Duration::ZERO, cap(1, 10));
    changes.ended(&socket(1));
    for cookie in 2..3 * KEPT as u64 {
        let refused = Change {
            made: false,
            ..cap(cookie, 10)
        };
        changes.note(Duration::ZERO, refused);
    }
    assert_eq!(cookies(&changes)[0], 1);
    assert_eq!(changes.to_vec().len(), KEPT);
}

#[test]
fn settings_of_a_subject_are_kept_separately() {
    let mut changes = Changes::default();
    changes.note(Duration::ZERO, cap(1, 10));
    let rate = Change {
        setting: Setting::PacingRate,
        ..cap(1, 10)
    };
    changes.note(Duration::ZERO, rate);
    assert_eq!(changes.to_vec().len(), 2);
    changes.ended(&socket(1));
    assert_eq!(changes.first_to_go.keys().filter(|place| !place.lives).count(), 2);
}

#[test]
fn a_change_is_shown_on_one_line() {
    assert_eq!(
        cap(7, 43).to_string(),
        "socket 7 (rsync (77) to 192.0.2.1:873): cwnd cap none -> 43 segments; rule fixed: 8 devices send"
    );
}

#[test]
fn every_subject_reads_back_as_it_was_written() {
    let id = ProcessId { pid: 77, start_ns: 5 };
    let name = "eth0".to_owned();
    let remote = ([192, 0, 2, 1], 873).into();
    let local_port = Some(5);
    let subjects = [
        socket(7),
        Subject::Process { id },
        Subject::Thread { tid: 78 },
        Subject::Interface { name },
        Subject::Destination { remote, local_port },
        Subject::Kernel,
    ];
    for subject in subjects {
        for name in ["", "cp"] {
            let change = Change {
                subject: subject.clone(),
                name: name.to_owned(),
                ..cap(7, 43)
            };
            let latest = Latest {
                t_ns: 5,
                change,
                times: 2,
            };
            let line = serde_json::to_string(&latest).unwrap();
            assert_eq!(serde_json::from_str::<Latest>(&line).unwrap(), latest, "{line}");
        }
    }
}

#[test]
fn a_change_reads_back_as_it_was_written() {
    let line = serde_json::to_string(&cap(7, 43)).unwrap();
    assert!(
        line.starts_with(r#"{"subject":"socket","cookie":7"#) && line.contains(r#""old":null,"new":43"#),
        "{line}"
    );
    assert_eq!(serde_json::from_str::<Change>(&line).unwrap(), cap(7, 43));
}
