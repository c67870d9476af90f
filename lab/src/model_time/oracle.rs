// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The best equal cap in a cell: the one that moves most while the smoothed RTT stays within the bound.
//!
//! Found by search with fixed windows, on seeds of its own. It is what a policy is measured against; no policy sees it.

use anyhow::Result;

use super::experiment::{Air, Measured, cell, run};

const SEEDS: std::ops::RangeInclusive<u64> = 101..=103;
/// Each cap is an eighth of an octave above the one before.
const STEPS_PER_OCTAVE: f64 = 8.0;
/// Mbit/s together: nothing outside this can be right on a radio of 54 Mbit/s at its best.
const TOTAL_MBIT: std::ops::Range<f64> = 3.0..24.0;

/// `balanced` allows a median RTT of 1.25 of the minimum, or 15 ms above it where that is more.
pub fn bound_ms(rtt_ms: f64) -> f64 {
    (1.25 * rtt_ms).max(rtt_ms + 15.0)
}

pub fn best_equal_cap(air: Air, stations: usize, rtt_ms: u64) -> Result<Option<u32>> {
    let segments = |mbit: f64| mbit * 1e6 / 8.0 * rtt_ms as f64 / 1e3 / 1_448.0 / stations as f64;
    let steps = ((TOTAL_MBIT.end / TOTAL_MBIT.start).log2() * STEPS_PER_OCTAVE) as i32;
    let mut best: Option<(f64, u32)> = None;
    for step in 0..=steps {
        let total_mbit = TOTAL_MBIT.start * 2f64.powf(f64::from(step) / STEPS_PER_OCTAVE);
        let cap = (segments(total_mbit) as u32).max(2);
        let runs: Vec<Measured> = SEEDS
            .map(|seed| run(&cell(air, stations, rtt_ms, seed).limited(Some(cap), None), 10.0, 20.0))
            .collect::<Result<_>>()?;
        let mean = |of: fn(&Measured) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let goodput = mean(|run| run.goodput_mbit);
        let is_within = mean(|run| run.rtt_p50_ms) <= bound_ms(rtt_ms as f64);
        if is_within && best.is_none_or(|(most, _)| goodput > most) {
            best = Some((goodput, cap));
        }
    }
    Ok(best.map(|(_, cap)| cap))
}
