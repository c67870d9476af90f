// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `giveway try` finds and claims, on trials resampled from real intervals: measured by the real daemon and peer, between
//! which nothing was planted (`bench/results/2026-11-26/try/`, `docs/try.md`). Each trial ends as the command's do.

use std::collections::BTreeMap;

use giveway_engine::trial::{Better, Pair, Question, TrialVerdict, is_enough, judge, orders};
use serde_json::Value;

const REAL: &str = include_str!("../../bench/results/2026-11-26/try/real-intervals.json");
const TRIALS: u64 = 1000;
/// The change that is planted, and that trials are made for.
const EFFECT: f64 = 1.1;

type Values = BTreeMap<String, f64>;

/// Everything that was measured in one interval goes together.
struct Real {
    intervals: Vec<Values>,
    questions: Vec<Question>,
}

struct Trial {
    pairs: usize,
    verdict: TrialVerdict,
    /// A difference in a question on which nothing was planted.
    claims_wrongly: bool,
}

/// How many say so of [`TRIALS`].
#[derive(Debug)]
struct Trials {
    better: usize,
    worse: usize,
    wrong: usize,
    /// The median.
    #[expect(dead_code, reason = "is printed")]
    pairs: usize,
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

    /// With all that varies more by chance scaled to this. The shape of the distribution stays.
    fn varying_by(mut self, variation: f64) -> Self {
        for question in &self.questions {
            let (mean, now) = (self.mean(question.name), self.variation(question.name));
            for values in &mut self.intervals {
                let value = values.get_mut(question.name).expect("it is measured");
                *value = mean + (*value - mean) * (variation / now).min(1.0);
            }
        }
        self
    }

    /// A trial that this question ends, as `giveway try` runs it, with `planted` put on it where giveway is.
    fn trial(&self, seed: u64, question: &str, planted: f64) -> Trial {
        let mut dice = Dice(seed);
        let at = self.questions.iter().position(|asked| asked.name == question);
        let at = at.expect("it is asked");
        let mut drawn: Vec<(Question, Vec<f64>)> = self.questions.iter().map(|asked| (*asked, Vec::new())).collect();
        while !is_enough(EFFECT, &drawn[at].1, self.questions.len()) {
            let [with, without] = [(); 2].map(|()| dice.pick(&self.intervals));
            for (asked, differences) in &mut drawn {
                let factor = if asked.name == question { planted } else { 1.0 };
                let pair = Pair {
                    with: with[asked.name] * factor,
                    without: without[asked.name],
                };
                differences.extend(asked.differences(&[pair]));
            }
        }
        let verdicts: Vec<TrialVerdict> = judge(seed, &drawn).iter().map(|finding| finding.verdict).collect();
        let wrong = verdicts
            .iter()
            .enumerate()
            .filter(|(of, _)| planted == 1.0 || *of != at);
        Trial {
            pairs: drawn[at].1.len(),
            verdict: verdicts[at],
            claims_wrongly: wrong
                .into_iter()
                .any(|(_, verdict)| *verdict != TrialVerdict::NoDifference),
        }
    }

    fn trials(&self, question: &str, planted: f64) -> Trials {
        let mut trials: Vec<Trial> = (0..TRIALS)
            .map(|seed| self.trial(seed * 7919, question, planted))
            .collect();
        trials.sort_by_key(|trial| trial.pairs);
        let of = |verdict| trials.iter().filter(|trial| trial.verdict == verdict).count();
        let trials = Trials {
            better: of(TrialVerdict::Better),
            worse: of(TrialVerdict::Worse),
            wrong: trials.iter().filter(|trial| trial.claims_wrongly).count(),
            pairs: trials[trials.len() / 2].pairs,
        };
        println!("{question} x {planted}: {trials:?}");
        trials
    }

    fn mean(&self, question: &str) -> f64 {
        self.intervals.iter().map(|values| values[question]).sum::<f64>() / self.intervals.len() as f64
    }

    fn variation(&self, question: &str) -> f64 {
        let mean = self.mean(question);
        let squares: f64 = self
            .intervals
            .iter()
            .map(|values| (values[question] - mean).powi(2))
            .sum();
        (squares / (self.intervals.len() - 1) as f64).sqrt() / mean
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

/// The gains and the losses that are found, and what is claimed beside them.
fn finds_what_is_planted(real: &Real, question: &str) {
    let (gains, losses) = (real.trials(question, EFFECT), real.trials(question, 0.9));
    assert!(gains.better >= 950 && losses.worse >= 950, "{gains:?}, {losses:?}");
    assert!(gains.wrong <= 10 && losses.wrong <= 10, "{gains:?}, {losses:?}");
}

#[test]
fn of_1000_trials_with_a_tenth_planted_on_rpm_at_least_950_find_it() {
    finds_what_is_planted(&Real::read(), "rpm");
}

#[test]
fn of_1000_trials_with_a_tenth_planted_on_goodput_at_least_950_find_it() {
    finds_what_is_planted(&Real::read(), "goodput_up_mbit");
}

#[test]
fn of_1000_trials_in_which_nothing_varies_by_more_than_a_twentieth_at_least_950_find_a_tenth() {
    finds_what_is_planted(&Real::read().varying_by(0.05), "rpm");
}

#[test]
fn of_1000_trials_of_nothing_at_most_10_claim_a_difference_in_any_question() {
    for real in [Real::read(), Real::read().varying_by(0.05)] {
        let trials = real.trials("rpm", 1.0);
        assert!(trials.wrong <= 10, "{trials:?}");
    }
    assert_ne!(orders(0, 64), orders(1, 64), "each trial draws its own orders");
}
