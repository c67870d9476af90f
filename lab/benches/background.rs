// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the congestion control of background reaches at each bottleneck, over eight seeds: the table in
//! bench/results/background-simulated.
//!
//!     cargo bench --bench background

use background::cells::{
    CELLS, alone_of_cubic, fairness, foreground_share, median, return_s, share_beside_two, sorted, two,
};

#[path = "../tests/background"]
#[allow(dead_code, reason = "some of it is for the tests alone")]
mod background {
    pub mod cells;
    pub mod link;
    pub mod sender;
    pub mod simulation;
}

const SEEDS: u64 = 8;

fn main() {
    println!(
        "of {SEEDS} seeds the least, and the median: background alone, of CUBIC alone | CUBIC beside it, of alone | beside two | the lesser of \
         two backgrounds, of the other | both, Mbit/s | until it is back, s"
    );
    for (name, kind) in CELLS {
        let spread = |of: &dyn Fn(u64) -> f64| format!("{:5.2} {:5.2}", sorted(SEEDS, of)[0], median(SEEDS, of));
        println!(
            "{name:9} {} | {} | {} | {} | {} | {}",
            spread(&|seed| alone_of_cubic(kind, seed)),
            spread(&|seed| foreground_share(kind, seed)),
            spread(&|seed| share_beside_two(kind, seed)),
            spread(&|seed| fairness(kind, seed)),
            spread(&|seed| two(kind, seed).iter().sum()),
            spread(&|seed| return_s(kind, seed)),
        );
    }
}
