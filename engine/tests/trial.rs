// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `giveway try` finds and claims, on trials resampled from simulated intervals: 220 of them, which vary by 5%, and in
//! questions that vary far more or not at all. Each trial has a dry run that sizes it.

use std::collections::BTreeMap;

use giveway_engine::trial::{Better, DRY_PAIRS, MOST_PAIRS, Pair, Question, Verdict, judge, orders, pairs_for};

/// Each with its mean and its variation, relative to that.
const QUESTIONS: [(&str, Better, f64, f64, f64); 6] = [
    ("rpm", Better::Higher, 0.0, 300.0, 0.05),
    ("goodput_up_mbit", Better::Higher, 0.01, 9.5, 0.05),
    ("goodput_down_mbit", Better::Higher, 0.01, 19.0, 0.05),
    ("retransmits_percent", Better::Lower, 0.01, 1.0, 0.4),
    ("late_percent", Better::Lower, 1.0, 0.0, 0.0),
    ("wakeup_p99_us", Better::Lower, 1.0, 200.0, 0.6),
];
const TRIALS: u64 = 1000;
/// The change that is planted, and that trials are sized for.
const EFFECT: f64 = 1.1;

type Values = BTreeMap<String, f64>;

/// Everything that was measured in one interval goes together.
struct Intervals {
    intervals: Vec<Values>,
    questions: Vec<Question>,
}

impl Intervals {
    fn simulate() -> Self {
        let mut dice = Dice(5);
        let question =
            |(name, better, floor, ..): (&'static str, Better, f64, f64, f64)| Question { name, better, floor };
        let interval = |_| {
            let value = |(name, _, _, mean, variation): (&'static str, Better, f64, f64, f64)| {
                (name.to_owned(), (mean * (1.0 + variation * dice.normal())).max(0.0))
            };
            QUESTIONS.map(value).into()
        };
        Self {
            intervals: (0..220).map(interval).collect(),
            questions: QUESTIONS.map(question).to_vec(),
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
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[(self.next() % from.len() as u64) as usize]
    }

    /// The sum of twelve, so nearly normal: mean 0, deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next() as f64 / u64::MAX as f64).sum::<f64>() - 6.0
    }
}

/// How many of so many trials have this of that question.
fn count(all: &Intervals, question: &str, planted: f64, wanted: Verdict) -> usize {
    let has = |seed: &u64| {
        all.trial(seed * 7919, question, planted)
            .contains(&(leak(question), wanted))
    };
    (0..TRIALS).filter(has).count()
}

fn leak(question: &str) -> &'static str {
    question.to_owned().leak()
}

#[test]
fn there_are_more_than_200_intervals_and_they_vary_by_5_percent() {
    let all = Intervals::simulate();
    assert!(all.intervals.len() >= 200, "{}", all.intervals.len());
    let variation = all.variation("rpm");
    assert!((0.045..0.055).contains(&variation), "{variation}");
}

#[test]
fn of_1000_trials_with_a_planted_gain_or_loss_of_a_tenth_at_least_950_find_it() {
    let all = Intervals::simulate();
    for question in ["rpm", "goodput_up_mbit"] {
        let gains = count(&all, question, EFFECT, Verdict::Better);
        let losses = count(&all, question, 0.9, Verdict::Worse);
        println!("{question}: {gains} gains, {losses} losses");
        assert!(
            gains >= 950 && losses >= 950,
            "{question}: {gains} gains, {losses} losses"
        );
    }
}

#[test]
fn of_1000_trials_of_nothing_at_most_10_claim_a_difference_in_any_question() {
    let all = Intervals::simulate();
    let claims = |seed: &u64| {
        let verdicts = all.trial(seed * 104_729, "rpm", 1.0);
        verdicts.iter().any(|(_, verdict)| *verdict != Verdict::NoDifference)
    };
    let wrong = (0..TRIALS).filter(claims).count();
    println!("{wrong} claims");
    assert!(wrong <= 10, "{wrong}");
    assert_ne!(orders(0, 64), orders(1, 64), "each trial draws its own orders");
}
