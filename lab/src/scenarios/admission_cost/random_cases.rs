// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The slack test beside the exact scan, over random cases: a link between idle and overloaded, packets of any size and
//! deadline. Input: how many cases, a seed. Output: how often the two differ, and which way. What the tree admits is
//! promised in both.

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use super::exact_scan::{Promise, Promises};
use super::slack::{
    SlackTree, lab_slack_add, lab_slack_advance, lab_slack_latest, lab_slack_new, lab_slack_remove, lab_slack_slot,
};

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

#[derive(Default, Serialize)]
pub struct TrialCounts {
    pub cases: u64,
    /// By the scan.
    pub admitted: u64,
    pub admitted_wrongly: u64,
    pub refused_wrongly: u64,
    pub refused_wrongly_percent: f64,
    /// By the tree, in a quarter of the time.
    pub crowded: u64,
    pub queued_mean: f64,
    pub queued_max: usize,
}

struct ModelledLink {
    now_ns: u64,
    busy_ns: u64,
    tree: SlackTree,
    promises: Promises,
    random: ChaCha8Rng,
}

pub fn run(cases: u64, seed: u64) -> Result<TrialCounts> {
    let begin_ns = 1_000_000_000;
    let mut link = ModelledLink {
        now_ns: begin_ns,
        busy_ns: begin_ns,
        tree: lab_slack_new(begin_ns).context("no memory for the slack tree")?,
        promises: Promises::default(),
        random: ChaCha8Rng::seed_from_u64(seed),
    };
    let mut found = TrialCounts::default();
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
    found.queued_mean /= found.cases as f64;
    found.refused_wrongly_percent = 100.0 * found.refused_wrongly as f64 / found.admitted as f64;
    Ok(found)
}

impl ModelledLink {
    /// From 0 up to 1.
    fn part(&mut self) -> f64 {
        self.random.next_u32() as f64 / 2_f64.powi(32)
    }

    fn decide(&mut self, found: &mut TrialCounts) {
        let bytes = PACKET_BYTES.0 + self.random.next_u64() % (PACKET_BYTES.1 - PACKET_BYTES.0 + 1);
        let after_ns = DEADLINE_NS.0 * (DEADLINE_NS.1 / DEADLINE_NS.0).powf(self.part());
        let packet = Promise {
            deadline_ns: self.now_ns + after_ns as u64,
            work_ns: bytes * PROMISED_NS_PER_BYTE,
            number: found.cases,
        };
        let start_ns = self.now_ns.max(self.busy_ns);
        let latest = lab_slack_latest(self.tree, packet.deadline_ns, packet.work_ns as i64);
        let tree_admits = start_ns as i64 <= latest.own_ns.min(latest.others_ns);
        let walk_admits = self.promises.admits(start_ns, packet);
        // Of a quarter of the time, for users beyond their share; clearing the last two bits avoids rounding.
        let start_ns = start_ns & !3;
        let tree_crowds = (start_ns >> 2) as i64 <= latest.crowd_ns;
        let walk_crowds = self.promises.admits_slowly(start_ns, packet, 4);
        found.cases += 1;
        found.queued_mean += self.promises.len() as f64;
        found.queued_max = found.queued_max.max(self.promises.len());
        found.admitted += u64::from(walk_admits);
        found.admitted_wrongly += u64::from((tree_admits && !walk_admits) || (tree_crowds && !walk_crowds));
        found.crowded += u64::from(tree_crowds);
        found.refused_wrongly += u64::from(walk_admits && !tree_admits);
        if tree_admits {
            lab_slack_add(self.tree, packet.deadline_ns, packet.work_ns as i64);
            self.promises.add(packet);
        }
    }

    fn serve_until(&mut self, until_ns: u64) {
        while self.busy_ns < until_ns {
            let Some(sent) = self.promises.take_next(|deadline_ns| lab_slack_slot(deadline_ns)) else {
                break;
            };
            lab_slack_remove(self.tree, sent.deadline_ns, sent.work_ns as i64);
            self.busy_ns = self.busy_ns.max(self.now_ns) + sent.work_ns / PROMISED_NS_PER_BYTE * SENT_NS_PER_BYTE;
        }
        self.now_ns = until_ns;
        lab_slack_advance(self.tree, until_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_tree_is_hardly_stricter_than_the_exact_scan_and_never_laxer() {
        let found = run(100_000, 1).unwrap();
        assert_eq!((found.cases, found.admitted_wrongly), (100_000, 0));
        assert!(
            found.refused_wrongly_percent < 1.0,
            "{}% refused wrongly",
            found.refused_wrongly_percent
        );
        let refused = found.cases - found.admitted;
        assert!(found.crowded > 5_000, "{}", found.crowded);
        assert!(refused > 5_000 && found.queued_max > 500, "the cases were too easy");
    }
}
