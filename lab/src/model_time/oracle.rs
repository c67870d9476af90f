// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The best equal cap in a cell: the one that moves most while the smoothed RTT stays within the bound.
//!
//! Found by search with fixed windows, on its own seeds. Policies are measured against it; no policy sees it.

use std::collections::BTreeSet;

use anyhow::Result;

use super::experiment::{CellMeasurement, RadioModel, cell, run};

const SEEDS: std::ops::RangeInclusive<u64> = 101..=103;
/// Each cap is an eighth of an octave above the one before.
const STEPS_PER_OCTAVE: f64 = 8.0;
/// Total Mbit/s: nothing outside this can be right on a radio of 54 Mbit/s.
const TOTAL_MBIT: std::ops::Range<f64> = 3.0..24.0;

/// `balanced` allows a median RTT of 1.25 of the minimum, or 15 ms above it where that is more.
pub fn bound_ms(rtt_ms: f64) -> f64 {
    (1.25 * rtt_ms).max(rtt_ms + 15.0)
}

/// Coarsely over all totals first, then between the neighbours of the best.
pub fn best_equal_cap(radio: RadioModel, stations: usize, rtt_ms: u64) -> Result<Option<u32>> {
    let segments = |mbit: f64| (mbit * 1e6 / 8.0 * rtt_ms as f64 / 1e3 / 1_448.0 / stations as f64).max(2.0);
    let steps = ((TOTAL_MBIT.end / TOTAL_MBIT.start).log2() * STEPS_PER_OCTAVE) as i32;
    let above = |from: f64, steps: f64| from * 2f64.powf(steps / STEPS_PER_OCTAVE);
    let mut best: Option<(f64, u32)> = None;
    let mut tried = BTreeSet::new();
    let mut attempt = |cap: u32, best: &mut Option<(f64, u32)>| -> Result<()> {
        if !tried.insert(cap) {
            return Ok(());
        }
        let runs: Vec<CellMeasurement> = SEEDS
            .map(|seed| {
                run(
                    &cell(radio, stations, rtt_ms, seed).limited(Some(cap), None),
                    10.0,
                    20.0,
                )
            })
            .collect::<Result<_>>()?;
        let mean = |of: fn(&CellMeasurement) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let goodput = mean(|run| run.goodput_mbit);
        let is_within = mean(|run| run.rtt_p50_ms) <= bound_ms(rtt_ms as f64);
        if is_within && best.is_none_or(|(most, _)| goodput > most) {
            *best = Some((goodput, cap));
        }
        Ok(())
    };
    for step in 0..=steps {
        attempt(segments(above(TOTAL_MBIT.start, f64::from(step))) as u32, &mut best)?;
    }
    for part in [0.5, 0.25] {
        let Some((_, middle)) = best else { break };
        for step in [-part, part] {
            attempt(above(f64::from(middle), step).round() as u32, &mut best)?;
        }
    }
    Ok(best.map(|(_, cap)| cap))
}
