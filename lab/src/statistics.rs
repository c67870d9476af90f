// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The few figures that every scenario uses. Pure: samples in, one number out.

/// Jain's fairness index (P1, section 2.3): 1 when all are equal, 1/k when one has everything.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// The smallest sample that at least `percent` of the samples do not exceed (nearest rank).
pub fn percentile(samples: &[f64], percent: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

pub fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

/// Of the middle half.
pub fn interquartile_mean(samples: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quarter = sorted.len() / 4;
    mean(&sorted[quarter..sorted.len() - quarter])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_perfectly_fair_and_a_monopoly_is_one_in_k() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), Some(1.0));
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[]), None);
        assert_eq!(jain(&[0.0, 0.0]), None);
    }

    #[test]
    fn percentiles_take_the_nearest_rank() {
        let samples: Vec<f64> = (1..=40).rev().map(f64::from).collect();
        assert_eq!(percentile(&samples, 50.0), Some(20.0));
        assert_eq!(percentile(&samples, 95.0), Some(38.0));
        assert_eq!(percentile(&samples, 100.0), Some(40.0));
        assert_eq!(percentile(&[7.0], 1.0), Some(7.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn interquartile_mean_ignores_outliers() {
        assert_eq!(interquartile_mean(&[900.0, 2.0, 3.0, 0.0]), Some(2.5));
        assert_eq!(interquartile_mean(&[7.0]), Some(7.0));
        assert_eq!(interquartile_mean(&[]), None);
    }
}
