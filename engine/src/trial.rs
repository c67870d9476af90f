// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The statistics of `giveway try`: does something differ between intervals with giveway and without it? Input: pairs of
//! measured values, one of each kind. Output: how large the difference is, whether it is shown, and how many pairs a trial
//! takes. No clock and no measurement; chance comes from a seed (`docs/try.md` has the method and its sources).
//!
//! What is compared is the logarithm of the ratio in each pair. Which interval of a pair came first was drawn, so that where
//! giveway changes nothing either sign of each difference was equally likely: the test that flips signs at random (R. A.
//! Fisher, *The Design of Experiments*, 1935, section 21) keeps its level whatever the distribution is.

use std::cmp::Ordering;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ChiSquared, ContinuousCDF, StudentsT};

/// How likely it is, at most, that any of a trial's questions is answered by a difference where there is none. Below the 1%
/// that are promised, so that a count of wrong answers in 1,000 trials, which itself varies, stays within them too.
pub const FAMILY: f64 = 0.006;
/// How likely a difference of the size that a trial was sized for is found.
pub const POWER: f64 = 0.95;
/// A trial has at least so many, whatever they vary.
pub const LEAST_PAIRS: usize = 20;
/// Of the dry run.
pub const DRY_PAIRS: usize = 6;
/// Few pairs tell the variation badly. What is assumed is above it with this probability (R. H. Browne, *On the Use of a
/// Pilot Sample for Sample Size Determination*, Statistics in Medicine 14, 1995).
const CERTAINTY: f64 = 0.8;
/// Of all signs. With the observed ones the least p is 1 in 10,000.
const FLIPS: u32 = 9_999;
/// After so many that give as much nothing is shown, and it is known well enough by how little.
const ENOUGH: u32 = 100;

/// Which is to be wished for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
}

/// What is asked of each interval.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Serialize)]
pub struct Question {
    /// As in `--json`, with its unit.
    pub name: &'static str,
    pub better: Better,
    /// Added to both values of a pair, because there is no ratio to nothing. Less than this does not matter.
    pub floor: f64,
}

/// One measured value of each kind.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Pair {
    pub with: f64,
    pub without: f64,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialVerdict {
    Better,
    Worse,
    /// None is shown, which is not that there is none.
    NoDifference,
}

/// The answer to one question.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Finding {
    pub pairs: usize,
    /// With giveway to without it, the geometric mean of the pairs. None where fewer than two were measured, as below.
    pub ratio: Option<f64>,
    /// The confidence interval; those of all questions hold together with 99%.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Of the test by signs, before the correction.
    pub p: f64,
    /// After it (Holm).
    pub adjusted_p: f64,
    pub verdict: TrialVerdict,
    /// The smallest change that so many pairs of this variation show with 95%, as a ratio above 1.
    pub detectable: Option<f64>,
}

impl Question {
    /// Logarithms of the ratios, of with to without.
    pub fn differences(&self, pairs: &[Pair]) -> Vec<f64> {
        let of = |pair: &Pair| ((pair.with + self.floor) / (pair.without + self.floor)).ln();
        pairs.iter().map(of).filter(|ratio| ratio.is_finite()).collect()
    }
}

/// For each pair whether the interval with giveway comes first.
pub fn orders(seed: u64, pairs: usize) -> Vec<bool> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..pairs).map(|_| rng.next_u32() & 1 == 1).collect()
}

/// Answers all questions of a trial at once: each with its differences.
pub fn judge(seed: u64, questions: &[(Question, Vec<f64>)]) -> Vec<Finding> {
    let p_values: Vec<f64> = questions.iter().map(|(_, of)| p_by_signs(seed, of)).collect();
    let level = FAMILY / questions.len() as f64;
    let findings = questions.iter().zip(holm(&p_values)).zip(&p_values);
    let finding = |(((question, differences), adjusted_p), p): ((&(Question, Vec<f64>), f64), &f64)| {
        let spread = Spread::of(differences);
        let bounds = spread.as_ref().map(|spread| spread.interval(level));
        let rises = spread.as_ref().is_some_and(|spread| spread.mean > 0.0);
        let verdict = match (adjusted_p <= FAMILY, rises == (question.better == Better::Higher)) {
            (false, _) => TrialVerdict::NoDifference,
            (true, true) => TrialVerdict::Better,
            (true, false) => TrialVerdict::Worse,
        };
        Finding {
            pairs: differences.len(),
            ratio: spread.as_ref().map(|spread| spread.mean.exp()),
            low: bounds.map(|(low, _)| low.exp()),
            high: bounds.map(|(_, high)| high.exp()),
            p: *p,
            adjusted_p,
            verdict,
            detectable: spread.map(|spread| detectable(spread.deviation, spread.count, level).exp()),
        }
    };
    findings.map(finding).collect()
}

/// How many pairs are likely to show a change by this ratio with [`POWER`], where a dry run had these differences, among so
/// many questions; the trial's own pairs say when it is so ([`is_enough`]). None where two were not measured.
pub fn pairs_for(ratio: f64, differences: &[f64], questions: usize) -> Option<usize> {
    let deviation = Spread::of(differences)?.likely_at_most();
    let level = FAMILY / questions as f64;
    let effect = ratio.ln().abs();
    let is_enough = |pairs: &usize| detectable(deviation, *pairs, level) <= effect;
    // What it takes grows less than twofold from one candidate to the next, so none is far too large.
    let mut pairs = LEAST_PAIRS;
    while !is_enough(&pairs) && pairs < MOST_PAIRS {
        pairs += (pairs / 20).max(1);
    }
    Some(pairs)
}

/// Whether the pairs of a trial so far show a change by this ratio with [`POWER`], among so many questions. The dry run has
/// too few pairs to tell: what slows down one interval in ten it seldom sees. Only magnitudes count here, so whoever ends a
/// trial by this leaves the test by signs its level (A. L. Gould and W. J. Shih, *Sample Size Re-estimation without Unblinding
/// for Normally Distributed Outcomes with Unknown Variance*, Communications in Statistics 21, 1992).
pub fn is_enough(ratio: f64, differences: &[f64], questions: usize) -> bool {
    let magnitudes: Vec<f64> = differences.iter().map(|difference| difference.abs()).collect();
    let Some(spread) = Spread::of(&magnitudes) else {
        return false;
    };
    let (pairs, level) = (spread.count, FAMILY / questions as f64);
    let deviation = spread.without_signs().likely_at_most();
    pairs >= LEAST_PAIRS && detectable(deviation, pairs, level) <= ratio.ln().abs()
}

/// More are never asked for.
pub const MOST_PAIRS: usize = 100_000;

/// The change that so many pairs show after a dry run with these differences, as a ratio above 1.
pub fn detectable_after(differences: &[f64], pairs: usize, questions: usize) -> Option<f64> {
    let deviation = Spread::of(differences)?.likely_at_most();
    Some(detectable(deviation, pairs, FAMILY / questions as f64).exp())
}

/// The difference of means that a t-test at this level shows with [`POWER`] (J. Cohen, *Statistical Power Analysis for the
/// Behavioral Sciences*, 1988, section 2.3; by quantiles of t, a little too many).
fn detectable(deviation: f64, pairs: usize, level: f64) -> f64 {
    if pairs < 2 {
        return f64::INFINITY;
    }
    let t = |p| t_quantile(pairs - 1, p);
    (t(1.0 - level / 2.0) + t(POWER)) * deviation / (pairs as f64).sqrt()
}

struct Spread {
    count: usize,
    mean: f64,
    deviation: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count < 2 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (squares / (count - 1) as f64).sqrt();
        Some(Self { count, mean, deviation })
    }

    /// By the magnitudes alone of what it was made from, whose spread this is. Where nothing differs the deviation of d = x - y
    /// is at most √3 times that of |d|, whatever the distribution of x and y is, since E|d| = 4 cov(x, F(x)) ≤ 4σ/√12. Where
    /// all of d is far on one side of zero, both have the same. About zero it is never less than about the mean.
    fn without_signs(self) -> Self {
        let about_zero = (self.mean.powi(2) + self.deviation.powi(2)).sqrt();
        let deviation = (3.0_f64.sqrt() * self.deviation).min(about_zero);
        Self { deviation, ..self }
    }

    /// Student's, two-sided.
    fn interval(&self, level: f64) -> (f64, f64) {
        let t = t_quantile(self.count - 1, 1.0 - level / 2.0);
        let half = t * self.deviation / (self.count as f64).sqrt();
        (self.mean - half, self.mean + half)
    }

    fn likely_at_most(&self) -> f64 {
        let freedom = (self.count - 1) as f64;
        let least = ChiSquared::new(freedom).map_or(freedom, |chi| chi.inverse_cdf(1.0 - CERTAINTY));
        self.deviation * (freedom / least).sqrt()
    }
}

fn t_quantile(freedom: usize, p: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom as f64).map_or(f64::INFINITY, |t| t.inverse_cdf(p))
}

/// How often flipped signs give a mean as far from zero, the observed one counted in; with [`ENOUGH`] of them no more are
/// tried (J. Besag and P. Clifford, *Sequential Monte Carlo p-values*, Biometrika 78, 1991).
fn p_by_signs(seed: u64, differences: &[f64]) -> f64 {
    if differences.len() < 2 {
        return 1.0;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let all: f64 = differences.iter().map(|difference| difference.abs()).sum();
    // Sums of the same numbers in another order differ by less.
    let observed = differences.iter().sum::<f64>().abs() - all * 1e-12;
    let mut as_far = 0;
    for tried in 1..=FLIPS {
        let mut sum = 0.0;
        for part in differences.chunks(64) {
            let signs = rng.next_u64();
            for (bit, difference) in part.iter().enumerate() {
                let sign = (signs >> bit & 1) << 63;
                sum += f64::from_bits(difference.to_bits() ^ sign);
            }
        }
        as_far += u32::from(sum.abs() >= observed);
        if as_far == ENOUGH {
            return f64::from(as_far) / f64::from(tried);
        }
    }
    f64::from(as_far + 1) / f64::from(FLIPS + 1)
}

/// The p-values of several questions, each made so much larger that all that are at most [`FAMILY`] may be called shown (S.
/// Holm, *A Simple Sequentially Rejective Multiple Test Procedure*, 1979).
fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut by_size: Vec<(usize, f64)> = p_values.iter().copied().enumerate().collect();
    by_size.sort_by(|(_, a), (_, b)| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut least: f64 = 0.0;
    for (rank, (at, p)) in by_size.into_iter().enumerate() {
        least = least.max((p * (p_values.len() - rank) as f64).min(1.0));
        if let Some(place) = adjusted.get_mut(at) {
            *place = least;
        }
    }
    adjusted
}

#[cfg(test)]
mod tests;
