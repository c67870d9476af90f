// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The answers are valid for any data, and the test has the power that it is sized for.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const GOODPUT: Question = Question {
    name: "goodput_mbit",
    better: Better::Higher,
    floor: 0.0,
};

fn one(differences: Vec<f64>) -> Finding {
    one_of(1, differences)
}

fn one_of(seed: u64, differences: Vec<f64>) -> Finding {
    judge(seed, &[(GOODPUT, differences)]).remove(0)
}

/// Sums of twelve, so nearly normal: mean 0, deviation 1.
fn noise(rng: &mut ChaCha8Rng) -> f64 {
    let uniform = |rng: &mut ChaCha8Rng| f64::from(rng.next_u32()) / f64::from(u32::MAX);
    (0..12).map(|_| uniform(rng)).sum::<f64>() - 6.0
}

#[test]
fn holm_adjusts_as_in_the_paper() {
    let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
    let expected = [0.03, 0.06, 0.06, 0.02];
    for (adjusted, expected) in adjusted.iter().zip(expected) {
        assert!((adjusted - expected).abs() < 1e-12, "{adjusted} for {expected}");
    }
}

#[test]
fn quantiles_match_published_tables() {
    assert!((t_quantile(19, 0.975) - 2.093).abs() < 1e-3);
    assert!((t_quantile(5, 0.995) - 4.032).abs() < 1e-3);
}

#[test]
fn constant_data_show_no_difference_and_constantly_larger_data_do() {
    let none = one(vec![0.0; 20]);
    assert_eq!((none.verdict, none.p), (TrialVerdict::NoDifference, 1.0));
    let gain = one(vec![0.1; 20]);
    assert_eq!(gain.verdict, TrialVerdict::Better);
    assert!((gain.ratio.unwrap() - 0.1_f64.exp()).abs() < 1e-12);
    assert_eq!(one(Vec::new()).ratio, None);
}

#[test]
fn lower_is_better_where_declared() {
    let question = Question {
        better: Better::Lower,
        ..GOODPUT
    };
    let verdict = |difference: f64| judge(1, &[(question, vec![difference; 20])])[0].verdict;
    assert_eq!(
        (verdict(-0.1), verdict(0.1)),
        (TrialVerdict::Better, TrialVerdict::Worse)
    );
}

#[test]
fn a_test_that_ends_with_enough_pairs_shows_the_planned_change() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for deviation in [0.02, 0.07, 0.15] {
        let mut found = 0;
        for seed in 0..300 {
            let mut differences = Vec::new();
            while !is_enough(1.1, &differences, 1) {
                differences.push(1.1_f64.ln() + deviation * noise(&mut rng));
            }
            found += u32::from(one_of(seed, differences).verdict == TrialVerdict::Better);
        }
        assert!(found >= 285, "{found} of 300 at {deviation}");
    }
}

#[test]
fn a_representative_dry_run_sizes_a_test_that_shows_the_change() {
    let dry: Vec<f64> = (0..2000).map(|at| if at % 2 == 0 { 0.15 } else { -0.15 }).collect();
    let pairs = pairs_for(1.1, &dry, 1).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let trial = |seed| {
        let differences = (0..pairs).map(|_| 1.1_f64.ln() + 0.15 * noise(&mut rng));
        one_of(seed, differences.collect())
    };
    let found = (0..300)
        .map(trial)
        .filter(|found| found.verdict == TrialVerdict::Better)
        .count();
    assert!((279..300).contains(&found), "{found} of 300 with {pairs} pairs");
}

#[test]
fn confidence_intervals_have_their_coverage() {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let holds = (0..2000).filter(|_| {
        let values: Vec<f64> = (0..20).map(|_| noise(&mut rng)).collect();
        let (low, high) = Spread::of(&values).unwrap().interval(0.01);
        low <= 0.0 && 0.0 <= high
    });
    let holds = holds.count();
    assert!((1970..=1995).contains(&holds), "{holds} of 2000, where 1980 are meant");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn p_is_a_probability_and_does_not_depend_on_unit_or_sign(values in vec(-2.0..2.0f64, 2..40), seed: u64) {
        let p = p_by_signs(seed, &values);
        prop_assert!(p > 0.0 && p <= 1.0);
        let scaled: Vec<f64> = values.iter().map(|value| value * -4.0).collect();
        prop_assert_eq!(p, p_by_signs(seed, &scaled));
    }

    #[test]
    fn ending_a_test_does_not_depend_on_the_direction(values in vec(-0.5..0.5f64, 2..60), signs in vec(any::<bool>(), 60)) {
        let flipped: Vec<f64> = values.iter().zip(signs).map(|(value, flip)| if flip { -value } else { *value }).collect();
        prop_assert_eq!(is_enough(1.3, &values, 1), is_enough(1.3, &flipped, 1));
    }

    #[test]
    fn the_interval_contains_the_ratio_and_more_pairs_detect_smaller_changes(values in vec(-1.0..1.0f64, 3..40)) {
        let finding = one(values.clone());
        let (low, ratio, high) = (finding.low.unwrap(), finding.ratio.unwrap(), finding.high.unwrap());
        prop_assert!(low <= ratio && ratio <= high);
        let twice = one([values.clone(), values].concat());
        prop_assert!(twice.detectable.unwrap() <= finding.detectable.unwrap() + 1e-9);
    }

    #[test]
    fn holm_never_lowers_p_and_keeps_the_order(p_values in vec(0.0..1.0f64, 1..8)) {
        let adjusted = holm(&p_values);
        for (p, q) in p_values.iter().zip(&adjusted) {
            prop_assert!(q >= p && *q <= 1.0);
            for (other, of_other) in p_values.iter().zip(&adjusted) {
                prop_assert!(p > other || q <= of_other);
            }
        }
    }

    #[test]
    fn ratios_are_finite_for_any_data(with in 0.0..1e12f64, without in 0.0..1e12f64) {
        let question = Question { floor: 0.1, ..GOODPUT };
        let of = |with, without| question.differences(&[Pair { with, without }]);
        prop_assert_eq!(of(with, without).len(), 1);
        prop_assert!((of(with, without)[0] + of(without, with)[0]).abs() < 1e-9);
    }

    #[test]
    fn orders_follow_their_seed(seed: u64) {
        let drawn = orders(seed, 200);
        prop_assert_eq!(&drawn, &orders(seed, 200));
        let first = drawn.iter().filter(|first| **first).count();
        prop_assert!((50..=150).contains(&first));
    }
}
