// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The slack test beside the exact walk, over random cases: a link that is now idle, now overloaded, packets of any
//! size and deadline. In: how many cases, a seed. Out: how often the two differ, and which way. What the tree admits
//! is promised in both.

use anyhow::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::slack::{Tree, slot};
use super::walk::{Promise, Promises};

/// On a link of 100 Mbit/s, of which promises may have 80%.
const PROMISED_NS_PER_BYTE: u64 = 100;
const SENT_NS_PER_BYTE: u64 = 80;
const PACKET_BYTES: (u64, u64) = (64, 1_514);
/// Evenly over the octaves between.
const DEADLINE_NS: (f64, f64) = (0.1e6, 250e6);
/// Load over capacity changes after so many packets.
const PHASE: u64 = 5_000;
const LOAD: (f64, f64) = (0.2, 2.0);
const BURST: u64 = 8;

#[derive(Default)]
pub struct Found {
    pub cases: u64,
    /// By the walk.
    pub admitted: u64,
    pub admitted_wrongly: u64,
    pub refused_wrongly: u64,
    pub queued_most: usize,
    queued_sum: u64,
}

impl Found {
    pub fn queued_mean(&self) -> f64 {
        self.queued_sum as f64 / self.cases as f64
    }

    pub fn refused_wrongly_percent(&self) -> f64 {
        100.0 * self.refused_wrongly as f64 / self.admitted as f64
    }
}

struct Link {
    now_ns: u64,
    busy_ns: u64,
    tree: Tree,
    promises: Promises,
    random: ChaCha8Rng,
}

pub fn run(cases: u64, seed: u64) -> Result<Found> {
    let begin_ns = 1_000_000_000;
    let mut link = Link {
        now_ns: begin_ns,
        busy_ns: begin_ns,
        tree: Tree::new(begin_ns)?,
        promises: Promises::default(),
        random: ChaCha8Rng::seed_from_u64(seed),
    };
    let mut found = Found::default();
    let mut load = 1.0;
    while found.cases < cases {
        let burst = 1 + link.random.next_u64() % BURST;
        for _ in 0..burst.min(cases - found.cases) {
            if found.cases.is_multiple_of(PHASE) {
                load = LOAD.0 + (LOAD.1 - LOAD.0) * link.part();
            }
            link.decide(&mut found);
        }
        let sent_ns = burst * (PACKET_BYTES.0 + PACKET_BYTES.1) / 2 * SENT_NS_PER_BYTE;
        let pause_ns = 2.0 * link.part() * sent_ns as f64 / load;
        link.serve_until(link.now_ns + pause_ns as u64);
    }
    Ok(found)
}

impl Link {
    /// From 0 up to 1.
    fn part(&mut self) -> f64 {
        self.random.next_u32() as f64 / 2_f64.powi(32)
    }

    fn decide(&mut self, found: &mut Found) {
        let bytes = PACKET_BYTES.0 + self.random.next_u64() % (PACKET_BYTES.1 - PACKET_BYTES.0 + 1);
        let after_ns = DEADLINE_NS.0 * (DEADLINE_NS.1 / DEADLINE_NS.0).powf(self.part());
        let packet = Promise {
            deadline_ns: self.now_ns + after_ns as u64,
            work_ns: bytes * PROMISED_NS_PER_BYTE,
            number: found.cases,
        };
        let start_ns = self.now_ns.max(self.busy_ns);
        let latest = self.tree.latest(packet.deadline_ns, packet.work_ns as i64);
        let tree_admits = start_ns as i64 <= latest.own_ns.min(latest.others_ns);
        let walk_admits = self.promises.admits(start_ns, packet);
        found.cases += 1;
        found.queued_sum += self.promises.len() as u64;
        found.queued_most = found.queued_most.max(self.promises.len());
        found.admitted += u64::from(walk_admits);
        found.admitted_wrongly += u64::from(tree_admits && !walk_admits);
        found.refused_wrongly += u64::from(walk_admits && !tree_admits);
        if tree_admits {
            self.tree.add(packet.deadline_ns, packet.work_ns as i64);
            self.promises.add(packet);
        }
    }

    fn serve_until(&mut self, until_ns: u64) {
        while self.busy_ns < until_ns {
            let Some(sent) = self.promises.take_next(slot) else {
                break;
            };
            self.tree.remove(sent.deadline_ns, sent.work_ns as i64);
            self.busy_ns = self.busy_ns.max(self.now_ns) + sent.work_ns / PROMISED_NS_PER_BYTE * SENT_NS_PER_BYTE;
        }
        self.now_ns = until_ns;
        self.tree.advance(until_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_admits_nothing_that_the_exact_walk_refuses_and_refuses_hardly_more() {
        let found = run(100_000, 1).unwrap();
        assert_eq!((found.cases, found.admitted_wrongly), (100_000, 0));
        assert!(
            found.refused_wrongly_percent() < 1.0,
            "{}% refused wrongly",
            found.refused_wrongly_percent()
        );
        let refused = found.cases - found.admitted;
        assert!(refused > 5_000 && found.queued_most > 500, "the cases were too easy");
    }
}
