// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of one transfer beside another is judged: by each bottleneck of `yield`, with a seed.

use super::link::Kind;
use super::simulation::{By, Ran, Transfer, run};

pub const FIFO: Kind = Kind::Fifo { ms: 100 };
pub const LOSS: Kind = Kind::Loss { share: 0.01 };
pub const CELLS: [(&str, Kind); 7] = [
    ("fifo-50", Kind::Fifo { ms: 50 }),
    ("fifo-100", FIFO),
    ("fifo-250", Kind::Fifo { ms: 250 }),
    ("codel", Kind::CoDel),
    ("fq-codel", Kind::FqCoDel),
    ("policer", Kind::Policer),
    ("loss", LOSS),
];
pub const EVER: f64 = f64::INFINITY;

pub fn transfer(by: By, from_s: f64, to_s: f64) -> Transfer {
    Transfer {
        by,
        from_s,
        to_s,
        acks_each: false,
    }
}

pub fn alone(kind: Kind, by: By, seed: u64) -> f64 {
    run(kind, &[transfer(by, 0.0, EVER)], 30.0, seed).mbit(0, 5.0, 30.0)
}

pub fn alone_of_cubic(kind: Kind, seed: u64) -> f64 {
    alone(kind, By::Rule, seed) / alone(kind, By::Cubic, seed)
}

/// A background, and a foreground by CUBIC on another device from 10 s to 30 s.
fn beside(kind: Kind, seed: u64) -> Ran {
    let transfers = [transfer(By::Rule, 0.0, EVER), transfer(By::Cubic, 10.0, 30.0)];
    run(kind, &transfers, 70.0, seed)
}

/// What the foreground has of what it has alone.
pub fn foreground_share(kind: Kind, seed: u64) -> f64 {
    let lone = run(kind, &[transfer(By::Cubic, 10.0, 30.0)], 30.0, seed).mbit(0, 10.0, 30.0);
    beside(kind, seed).mbit(1, 10.0, 30.0) / lone
}

/// The same where two backgrounds have had 35 s to meet each other.
pub fn share_beside_two(kind: Kind, seed: u64) -> f64 {
    let foreground = transfer(By::Cubic, 40.0, 70.0);
    let lone = run(kind, &[foreground], 70.0, seed).mbit(0, 40.0, 70.0);
    let backgrounds = [0.0, 5.0].map(|from_s| transfer(By::Rule, from_s, EVER));
    run(kind, &[backgrounds[0], backgrounds[1], foreground], 70.0, seed).mbit(2, 40.0, 70.0) / lone
}

/// After the foreground's end, until the background has half of the link; endless: not while it was watched.
pub fn return_s(kind: Kind, seed: u64) -> f64 {
    let ran = beside(kind, seed);
    let is_back = |tenth: &u32| ran.mbit(0, f64::from(*tenth) / 10.0, f64::from(tenth + 1) / 10.0) >= 10.0;
    (300..699)
        .find(is_back)
        .map_or(f64::INFINITY, |tenth| f64::from(tenth - 300) / 10.0)
}

/// Two backgrounds, the second of which begins 5 s later.
pub fn two(kind: Kind, seed: u64) -> [f64; 2] {
    let transfers = [transfer(By::Rule, 0.0, EVER), transfer(By::Rule, 5.0, EVER)];
    let ran = run(kind, &transfers, 120.0, seed);
    [0, 1].map(|number| ran.mbit(number, 5.0, 120.0))
}

/// The lesser, of the other.
pub fn fairness(kind: Kind, seed: u64) -> f64 {
    let [one, other] = two(kind, seed);
    one.min(other) / one.max(other)
}

pub fn sorted(seeds: u64, of: impl Fn(u64) -> f64) -> Vec<f64> {
    let mut all: Vec<f64> = (1..=seeds).map(of).collect();
    all.sort_by(f64::total_cmp);
    all
}

pub fn median(seeds: u64, of: impl Fn(u64) -> f64) -> f64 {
    let all = sorted(seeds, of);
    f64::midpoint(all[(all.len() - 1) / 2], all[all.len() / 2])
}
