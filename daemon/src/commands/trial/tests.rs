// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what was measured to what is said.

use super::*;

fn interval(pair: usize, with: bool, rpm: f64) -> TrialInterval {
    TrialInterval {
        pair,
        with,
        values: BTreeMap::from([("rpm", rpm), ("late_percent", 0.0)]),
    }
}

/// Pairs in either order.
fn intervals(pairs: usize, with: f64) -> Vec<TrialInterval> {
    let of = |pair: usize| {
        let rises = 1.0 + pair as f64 / 100.0;
        let mut both = [
            interval(pair, true, 200.0 * with * rises),
            interval(pair, false, 200.0 * rises),
        ];
        both.rotate_left(pair % 2);
        both
    };
    (0..pairs).flat_map(of).collect()
}

fn report(intervals: Vec<TrialInterval>) -> TrialReport {
    TrialReport {
        version: "0",
        peer: Some("192.0.2.1:9872".to_owned()),
        background: false,
        seed: 1,
        interval_s: 10.0,
        settle_s: 3.0,
        deadline_ms: 100,
        sizing: None,
        answers: answers(1, &WITH_PEER, &intervals),
        dry_run: Vec::new(),
        intervals,
    }
}

#[test]
fn the_longest_waits_are_left_out_and_halves_weigh_the_same() {
    let ms = Duration::from_millis;
    let mut waits = vec![ms(10); 19];
    waits.push(ms(5000));
    assert_eq!(trimmed_mean_ms(&waits), Some(10.0));
    assert_eq!(trimmed_mean_ms(&[]), None);
    assert_eq!(rpm(&[ms(20)], &[ms(40)], &[ms(90)]), Some(1000.0));
}

#[test]
fn what_doubles_in_each_pair_is_better_and_the_rest_is_said_to_be_unknown() {
    let report = report(intervals(20, 2.0));
    let text = report::text(&report);
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(
        line("rpm").ends_with("better") && line("rpm").contains("+100%"),
        "{text}"
    );
    assert!(line("late_percent").ends_with("no difference"), "{text}");
    assert!(line("goodput_up_mbit").ends_with("not measured"), "{text}");
    let longest = text.lines().skip(1).map(str::len).max();
    assert!(longest.unwrap() <= 80, "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["answers"][0]["verdict"], "better");
}

#[test]
fn what_there_is_no_time_for_is_said_before_the_trial_and_after_it() {
    let of = |pairs_expected, is_enough| Sizing {
        question: "rpm",
        effect_percent: 10.0,
        pairs_expected,
        pairs_at_most: 63,
        detectable_percent: Some(21.4),
        is_enough,
    };
    assert!(report::sizing(&of(Some(63), false)).starts_with("about 63 pairs are expected to show a change of 10%"));
    let short = report::sizing(&of(Some(64), false));
    assert!(
        short.contains("would take about 64 pairs") && short.contains("show a change of 21%"),
        "{short}"
    );
    assert!(report::sizing(&of(None, false)).contains("far more pairs"));
    let text = |is_enough| {
        let mut report = report(intervals(20, 1.0));
        report.sizing = Some(of(Some(20), is_enough));
        report::text(&report)
    };
    let line = "--max-time was too short for the pairs that 10% in rpm needs.";
    assert!(
        text(false).contains(line) && !text(true).contains(line),
        "{}",
        text(false)
    );
}

#[test]
fn fewer_pairs_than_the_least_show_nothing() {
    let answer = &answers(1, &WITH_PEER, &intervals(19, 2.0))[0];
    assert_eq!((answer.finding.pairs, answer.finding.ratio), (0, None));
    assert_eq!(answer.without.map(f64::round), Some(218.0));
}

#[test]
fn the_picture_names_every_question() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("try.svg");
    chart::draw(&report(intervals(20, 1.1)), &path).unwrap();
    let svg = std::fs::read_to_string(path).unwrap();
    assert!(WITH_PEER.iter().all(|question| svg.contains(question.name)), "{svg}");
}
