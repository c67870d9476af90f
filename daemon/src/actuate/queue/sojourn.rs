// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the qdisc's distribution of sojourn times: eight steps to an octave from 1 us, as `count_sojourn` in
//! bpf/qdisc.bpf.c fills them. Input: counts by step. Output: percentiles. Not by hdrhistogram, whose steps are others.

/// A sojourn of so many microseconds more would be in a higher step: time + 8 is a number of 8 to 15, shifted by the
/// octave.
fn end_us(step: usize) -> u64 {
    let (octave, eighth) = (step / 8, step % 8);
    ((8 + eighth as u64 + 1) << octave) - 8 - 1
}

/// No more than this for so many percent of the packets: the end of the step, at most an eighth too much. 0 where
/// there were no packets.
pub fn percentile_us(counts: &[u64], percent: u64) -> u64 {
    let all: u64 = counts.iter().sum();
    let wanted = (u128::from(all) * u128::from(percent)).div_ceil(100) as u64;
    let mut seen = 0;
    for (step, count) in counts.iter().enumerate() {
        seen += count;
        if all > 0 && seen >= wanted {
            return end_us(step);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the qdisc does it.
    fn step_of(us: u64) -> usize {
        let mut rest = us + 8;
        let mut octave = 0;
        while rest >= 16 {
            rest /= 2;
            octave += 1;
        }
        octave * 8 + (rest as usize & 7)
    }

    #[test]
    fn a_step_ends_right_before_the_next_one_begins() {
        for step in 0..232 {
            assert_eq!(step_of(end_us(step)), step);
            assert_eq!(step_of(end_us(step) + 1), step + 1);
        }
        assert_eq!((end_us(0), end_us(7), end_us(8)), (0, 7, 9));
    }

    #[test]
    fn percentiles_are_at_most_an_eighth_too_high() {
        let mut counts = [0; 256];
        (1..=1000).for_each(|us| counts[step_of(us)] += 1);
        for (percent, exact) in [(50, 500), (99, 990)] {
            let read = percentile_us(&counts, percent);
            assert!((exact..=exact * 9 / 8).contains(&read), "{read} for {exact}");
        }
        assert_eq!(percentile_us(&[0; 256], 99), 0);
    }
}
