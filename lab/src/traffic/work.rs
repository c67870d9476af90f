// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The role `work`: a foreground program that only computes, always the same amount. Input: a line of standard input
//! for each time. Output: how long it took. It sends nothing and never waits, so it has all of a processor that the
//! packet work of others leaves.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;

/// The role `work`.
pub fn run(_description: &str) -> Result<()> {
    println!("ready");
    for line in std::io::stdin().lines() {
        let steps: u64 = line?.parse()?;
        let begun = Instant::now();
        black_box((0..steps).fold(1, step));
        let seconds = begun.elapsed().as_secs_f64();
        println!("{seconds}");
    }
    Ok(())
}

/// Xorshift (Marsaglia 2003): each step needs the one before.
fn step(mut state: u64, number: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    black_box(state ^ number)
}
