// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trial's answers for a terminal of 80 columns.

use giveway_engine::trial::{LEAST_PAIRS, TrialVerdict};

use super::{Comparison, Sizing, TrialReport};

/// Of the picture.
const COLUMNS: usize = 41;

/// Before the trial.
pub fn sizing(sizing: &Sizing) -> String {
    let Sizing {
        question,
        effect_percent,
        pairs_expected,
        pairs_at_most,
        detectable_percent,
        ..
    } = sizing;
    let expected = match pairs_expected {
        Some(expected) if expected <= pairs_at_most => {
            return format!(
                "about {expected} pairs are expected to show a change of {effect_percent}% in {question} with 95%"
            );
        }
        Some(expected) => format!("about {expected} pairs"),
        None => "far more pairs".to_owned(),
    };
    let seen = detectable_percent.map_or("no change".to_owned(), |percent| format!("a change of {percent:.0}%"));
    format!(
        "a change of {effect_percent}% in {question} would take {expected}; the {pairs_at_most} that there is time for \
         (--max-time) show {seen} with 95%"
    )
}

pub fn text(report: &TrialReport) -> String {
    let (pairs, of_interval) = (report.intervals.len() / 2, report.interval_s);
    let load = match (&report.peer, report.background) {
        (Some(peer), true) => format!("background transfers to and from {peer}"),
        (Some(peer), false) => format!("transfers to and from {peer}"),
        (None, _) => "this machine's own traffic".to_owned(),
    };
    let mut text = format!("{pairs} pairs of intervals of {of_interval} s, with giveway and without it: {load}\n\n");
    text += "                       WITHOUT     WITH    CHANGE        INTERVAL\n";
    for answer in &report.answers {
        let verdict = shown(answer);
        let cell = |value: Option<f64>| value.map_or("-".to_owned(), digits);
        let finding = &answer.finding;
        let change = finding.ratio.map_or(String::new(), change);
        let interval = finding.low.zip(finding.high);
        let interval = interval.map_or(String::new(), |(low, high)| {
            format!("{}..{}", self::change(low), self::change(high))
        });
        let line = format!(
            "{:<21}{:>9}{:>9}{change:>10}{interval:>16}  {verdict}",
            answer.question.name,
            cell(answer.without),
            cell(answer.with),
        );
        text += line.trim_end();
        text.push('\n');
    }
    text + &picture(&report.answers) + &explained(report)
}

fn shown(answer: &Comparison) -> &'static str {
    match answer.finding.verdict {
        _ if answer.finding.pairs < LEAST_PAIRS => "not measured",
        TrialVerdict::Better => "better",
        TrialVerdict::Worse => "worse",
        TrialVerdict::NoDifference => "no difference",
    }
}

/// Three digits are more than is known.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.5 => format!("{value:.0}"),
        v if v >= 9.95 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn change(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    match percent.abs() {
        p if p >= 999.5 => format!("x{ratio:.1}"),
        p if p >= 9.95 => format!("{percent:+.0}%"),
        _ => format!("{percent:+.1}%"),
    }
}

/// Each interval on one scale, that of ratios.
fn picture(answers: &[Comparison]) -> String {
    let bounds = answers
        .iter()
        .filter_map(|answer| Some([answer.finding.low?, answer.finding.high?]));
    let reach = bounds.flatten().map(|ratio| ratio.ln().abs()).fold(0.05, f64::max);
    let column = |ratio: f64| {
        let middle = COLUMNS as f64 / 2.0;
        (middle + ratio.ln() / reach * (middle - 0.5)).clamp(0.0, COLUMNS as f64 - 1.0) as usize
    };
    let mut text = format!(
        "\n{:<21}{:<w$}0{:>w$}  sees\n",
        "",
        change((-reach).exp()),
        change(reach.exp()),
        w = COLUMNS / 2
    );
    for answer in answers {
        let finding = &answer.finding;
        let (Some(ratio), Some((low, high))) = (finding.ratio, finding.low.zip(finding.high)) else {
            continue;
        };
        let (from, to, at) = (column(low), column(high), column(ratio));
        let mark = |place: usize| match place {
            _ if place == at => 'o',
            _ if place == COLUMNS / 2 => '|',
            _ if (from..=to).contains(&place) => '-',
            _ => ' ',
        };
        let bar: String = (0..COLUMNS).map(mark).collect();
        let sees = finding
            .detectable
            .map_or(String::new(), |ratio| format!("{:.0}%", (ratio - 1.0) * 100.0));
        text += &format!("{:<21}{bar}  {sees}\n", answer.question.name);
    }
    text
}

fn explained(report: &TrialReport) -> String {
    let mut text = "\nJoint confidence of all intervals: 99% (Holm); at most 1% of tests without a\ndifference show \
                    one. `sees`: the smallest change found with probability 95%.\n"
        .to_owned();
    if let Some(sizing) = report.sizing.as_ref().filter(|sizing| !sizing.is_enough) {
        text += &format!(
            "--max-time was too short for the pairs that {}% in {} needs.\n",
            sizing.effect_percent, sizing.question
        );
    }
    if report
        .answers
        .iter()
        .all(|answer| answer.finding.verdict == TrialVerdict::NoDifference)
    {
        text += "No difference was found. One larger than `sees` would probably have been.\n";
    }
    text
}
