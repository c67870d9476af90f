// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The best equal cap, by medium and number of stations: the reference for the estimated share.

use super::Conditions;
use crate::access_point::{ARF, ARF_CLASSIC, ARF_LOSSY, Cap, FIXED54};

pub const RTT_MS: u64 = 256;

/// At 256 ms: the equal cap, in segments, that moves most at a median RTT of at most 1.25 of the minimum. Searched in
/// model time (`giveway-lab run shares`, variants `.../oracle`), with its own seeds; a test repeats one search.
const CAPS: [(&str, [(usize, u64); 5]); 4] = [
    (FIXED54, [(2, 228), (3, 151), (5, 108), (8, 66), (12, 44)]),
    (ARF, [(2, 223), (3, 151), (5, 106), (8, 54), (12, 42)]),
    (ARF_LOSSY, [(2, 223), (3, 165), (5, 97), (8, 52), (12, 37)]),
    (ARF_CLASSIC, [(2, 254), (3, 125), (5, 73), (8, 46), (12, 30)]),
];

pub fn best_cap(conditions: &Conditions) -> Option<Cap> {
    let (_, caps) = CAPS
        .iter()
        .find(|(of, _)| *of == conditions.medium && conditions.rtt_ms == RTT_MS)?;
    let (_, segments) = caps.iter().find(|(of, _)| *of == conditions.stations)?;
    Some(Cap::Segments(*segments))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_time::experiment::RadioModel as Model;
    use crate::model_time::oracle::best_equal_cap;

    #[test]
    fn oracle_equals_the_search_result() {
        let found = best_equal_cap(Model::Fixed54, 2, RTT_MS)
            .expect("searched")
            .map(u64::from);
        let (_, caps) = CAPS[0];
        assert_eq!(found, Some(caps[0].1));
    }
}
