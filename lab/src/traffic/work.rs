// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway-lab work`: a foreground program that only computes, always the same amount. In: a line of standard input
//! for each time. Out: how long it took. It sends nothing and never waits, so it has all of a processor that the
//! packet work of others leaves.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::told::Told;
use crate::namespace::Namespace;

#[derive(Deserialize, Serialize)]
struct Done {
    seconds: f64,
}

/// The program, as the lab holds it.
pub struct Work(Told);

impl Work {
    pub fn start(at: &Namespace) -> Result<Self> {
        Told::start(at, "work", &[]).map(Self)
    }

    /// Gives back how many seconds it took.
    pub fn run(&mut self, steps: u64) -> Result<f64> {
        Ok(self.0.ask::<Done>(&steps.to_string())?.seconds)
    }
}

/// `giveway-lab work`.
pub fn run() -> Result<()> {
    println!("ready");
    for line in std::io::stdin().lines() {
        let steps: u64 = line?.parse()?;
        let begun = Instant::now();
        black_box((0..steps).fold(1, step));
        let seconds = begun.elapsed().as_secs_f64();
        println!("{}", serde_json::to_string(&Done { seconds })?);
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
