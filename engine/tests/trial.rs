// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `giveway try` finds and claims, on trials resampled from real intervals: measured by the real daemon and peer, between
//! which nothing was planted (`bench/results/2026-11-26/try/`, `docs/try.md`). Each trial has a dry run that sizes it.

use std::collections::BTreeMap;

use giveway_engine::trial::{Better, DRY_PAIRS, MOST_PAIRS, Pair, Question, Verdict, judge, orders, pairs_for};
use serde_json::Value;

const REAL: &str = include_str!("../../bench/results/2026-11-26/try/real-intervals.json");
const TRIALS: u64 = 1000;
/// The change that is planted, and that trials are sized for.
const EFFECT: f64 = 1.1;

type Values = BTreeMap<String, f64>;

/// Everything that was measured in one interval goes together.
struct Real {
    intervals: Vec<Values>,
    questions: Vec<Question>,
}

impl Real {
    fn read() -> Self {
        let report: Value = serde_json::from_str(REAL).expect("JSON");
        let question = |answer: &Value| {
            let question = &answer["question"];
            Question {
                name: question["name"].as_str().expect("a name").to_owned().leak(),
                better: serde_json::from_value::<Better>(question["better"].clone()).expect("better"),
                floor: question["floor"].as_f64().expect("a number"),
            }
        };
        let intervals = report["intervals"].as_array().expect("intervals").iter();
        Self {
            intervals: intervals
                .map(|interval| serde_json::from_value(interval["values"].clone()).expect("values"))
                .collect(),
            questions: report["answers"]
                .as_array()
                .expect("answers")
                .iter()
                .map(question)
                .collect(),
        }
    }

    /// So many pairs of any two intervals, with `planted` put on that question where giveway is.
    fn draw(&self, dice: &mut Dice, pairs: usize, question: &str, planted: f64) -> Vec<(Question, Vec<f64>)> {
        let both: Vec<[&Values; 2]> = (0..pairs)
            .map(|_| [(); 2].map(|()| dice.pick(&self.intervals)))
            .collect();
        let asked = |asked: &Question| {
            let factor = if asked.name == question { planted } else { 1.0 };
            let pair = |[with, without]: &[&Values; 2]| Pair {
                with: with[asked.name] * factor,
                without: without[asked.name],
            };
            (*asked, asked.differences(&both.iter().map(pair).collect::<Vec<_>>()))
        };
        self.questions.iter().map(asked).collect()
    }

    /// The verdicts of a trial that its dry run has sized for this question.
    fn trial(&self, seed: u64, question: &str, planted: f64) -> Vec<(&'static str, Verdict)> {
        let mut dice = Dice(seed);
        let dry = self.draw(&mut dice, DRY_PAIRS, question, planted);
        let (_, differences) = dry
            .iter()
            .find(|(asked, _)| asked.name == question)
            .expect("it is asked");
        let pairs = pairs_for(EFFECT, differences, self.questions.len()).expect("a dry run measures it");
        assert!(pairs < MOST_PAIRS, "{question} varies too much for any trial");
        let drawn = self.draw(&mut dice, pairs, question, planted);
        let findings = judge(seed, &drawn);
        let verdicts = drawn.iter().zip(findings);
        verdicts
            .map(|((asked, _), finding)| (asked.name, finding.verdict))
            .collect()
    }

    fn variation(&self, question: &str) -> f64 {
        let values: Vec<f64> = self.intervals.iter().map(|values| values[question]).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (squares / (values.len() - 1) as f64).sqrt() / mean
    }
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        &from[((mixed ^ (mixed >> 31)) % from.len() as u64) as usize]
    }
}

/// How many of so many trials have this of that question.
fn count(real: &Real, question: &str, planted: f64, wanted: Verdict) -> usize {
    let has = |seed: &u64| {
        real.trial(seed * 7919, question, planted)
            .contains(&(leak(question), wanted))
    };
    (0..TRIALS).filter(has).count()
}

fn leak(question: &str) -> &'static str {
    question.to_owned().leak()
}

#[test]
fn there_are_200_real_intervals_or_more() {
    let real = Real::read();
    assert!(real.intervals.len() >= 200, "{}", real.intervals.len());
    for question in &real.questions {
        println!(
            "{} varies by {:.1}%",
            question.name,
            100.0 * real.variation(question.name)
        );
    }
}

#[test]
fn of_1000_trials_with_a_planted_gain_or_loss_of_a_tenth_at_least_950_find_it() {
    let real = Real::read();
    for question in ["rpm", "goodput_up_mbit"] {
        let gains = count(&real, question, EFFECT, Verdict::Better);
        let losses = count(&real, question, 0.9, Verdict::Worse);
        println!("{question}: {gains} gains, {losses} losses");
        assert!(
            gains >= 950 && losses >= 950,
            "{question}: {gains} gains, {losses} losses"
        );
    }
}

#[test]
fn of_1000_trials_of_nothing_at_most_10_claim_a_difference_in_any_question() {
    let real = Real::read();
    let claims = |seed: &u64| {
        let verdicts = real.trial(seed * 104_729, "rpm", 1.0);
        verdicts.iter().any(|(_, verdict)| *verdict != Verdict::NoDifference)
    };
    let wrong = (0..TRIALS).filter(claims).count();
    println!("{wrong} claims");
    assert!(wrong <= 10, "{wrong}");
    assert_ne!(orders(0, 64), orders(1, 64), "each trial draws its own orders");
}
