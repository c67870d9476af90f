// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The statistics of `giveway try`: does something differ between intervals with giveway and without it? Input: pairs
//! of measured values, one of each kind. Output: the size of the difference, its significance, and how many pairs a
//! test takes. No clock and no measurement; randomness comes from a seed (`docs/contributing/statistics.md` has the method and its
//! sources).
//!
//! The logarithm of the ratio in each pair is compared. Which interval of a pair came first was drawn, so that if
//! giveway changes nothing either sign of each difference was equally likely: the test that flips signs at random (R.
//! A. Fisher, *The Design of Experiments*, 1935, section 21) keeps its level whatever the distribution is.

use std::cmp::Ordering;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ChiSquared, ContinuousCDF, StudentsT};

/// The family-wise error rate: the most likely any question of a test shows a difference where there is none. Below the
/// promised 1%, so that a count of wrong answers in 1,000 tests, which itself varies, stays within it too.
pub const FAMILY: f64 = 0.006;
/// The probability that a difference of the size that a test was sized for is shown.
pub const POWER: f64 = 0.95;
/// The fewest pairs of a test, whatever the variation.
pub const LEAST_PAIRS: usize = 20;
/// Of the dry run.
pub const DRY_PAIRS: usize = 6;
/// A few pairs estimate the variation badly. The assumed one is above the real one with this probability (R. H. Browne,
/// *On the Use of a Pilot Sample for Sample Size Determination*, Statistics in Medicine 14, 1995).
const CERTAINTY: f64 = 0.8;
/// Of all signs. With the observed ones the smallest p is 1 in 10,000.
const FLIPS: u32 = 9_999;
/// After this many as extreme ones nothing is significant, and p is precise enough.
const ENOUGH: u32 = 100;

/// The desired direction.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
}

/// A question about each interval.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Serialize)]
pub struct Question {
    /// As in `--json`, with its unit.
    pub name: &'static str,
    pub better: Better,
    /// Added to both values of a pair, because there is no ratio to zero. Smaller differences do not matter.
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
    /// None is shown, which does not prove that there is none.
    NoDifference,
}

/// The answer to one question.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Finding {
    pub pairs: usize,
    /// With giveway to without it, the geometric mean of the pairs. None with fewer than two, as below.
    pub ratio: Option<f64>,
    /// The confidence interval; those of all questions hold together with 99%.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Of the sign-flip test, before the correction.
    pub p: f64,
    /// After it (Holm).
    pub adjusted_p: f64,
    pub verdict: TrialVerdict,
    /// The smallest change that this many pairs of this variation show with 95%, as a ratio above 1.
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

/// Answers all questions of a test at once: each with its differences.
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

/// How many pairs are likely to show a change by this ratio with [`POWER`], by the differences of a dry run, among so
/// many questions; the test's own pairs decide when it ends ([`is_enough`]). None with fewer than two.
pub fn pairs_for(ratio: f64, differences: &[f64], questions: usize) -> Option<usize> {
    let deviation = Spread::of(differences)?.likely_at_most();
    let level = FAMILY / questions as f64;
    let effect = ratio.ln().abs();
    let is_enough = |pairs: &usize| detectable(deviation, *pairs, level) <= effect;
    // The needed number grows less than twofold from one candidate to the next, so none is far too large.
    let mut pairs = LEAST_PAIRS;
    while !is_enough(&pairs) && pairs < MOST_PAIRS {
        pairs += (pairs / 20).max(1);
    }
    Some(pairs)
}

/// Whether the pairs of a test so far show a change by this ratio with [`POWER`], among so many questions. The dry run
/// has too few pairs for that: it seldom sees what slows down one interval in ten. Only magnitudes count here, so
/// ending a test by this keeps the level of the sign-flip test (A. L. Gould and W. J. Shih, *Sample Size Re-estimation
/// without Unblinding for Normally Distributed Outcomes with Unknown Variance*, Communications in Statistics 21, 1992).
pub fn is_enough(ratio: f64, differences: &[f64], questions: usize) -> bool {
    let magnitudes: Vec<f64> = differences.iter().map(|difference| difference.abs()).collect();
    let Some(spread) = Spread::of(&magnitudes) else {
        return false;
    };
    let (pairs, level) = (spread.count, FAMILY / questions as f64);
    let deviation = spread.without_signs().likely_at_most();
    pairs >= LEAST_PAIRS && detectable(deviation, pairs, level) <= ratio.ln().abs()
}

/// The most pairs.
pub const MOST_PAIRS: usize = 100_000;

/// The change that this many pairs show after a dry run with these differences, as a ratio above 1.
pub fn detectable_after(differences: &[f64], pairs: usize, questions: usize) -> Option<f64> {
    let deviation = Spread::of(differences)?.likely_at_most();
    Some(detectable(deviation, pairs, FAMILY / questions as f64).exp())
}

/// The difference of means that a t-test at this level shows with [`POWER`] (J. Cohen, *Statistical Power Analysis for
/// the Behavioral Sciences*, 1988, section 2.3; by quantiles of t, slightly conservative).
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

    /// From magnitudes alone, whose deviation this is. If nothing differs the deviation of d = x - y is at most √3
    /// times that of |d|, whatever the distribution of x and y is, since E|d| = 4 cov(x, F(x)) ≤ 4σ/√12. If all of d is
    /// far on one side of zero, both have the same. About zero it is never less than about the mean.
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

/// How often flipped signs give a mean as far from zero, the observed one included; after [`ENOUGH`] of them no more
/// are tried (J. Besag and P. Clifford, *Sequential Monte Carlo p-values*, Biometrika 78, 1991).
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

/// The p-values of several questions, each increased so that all that are at most [`FAMILY`] are significant together
/// (S. Holm, *A Simple Sequentially Rejective Multiple Test Procedure*, 1979).
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
