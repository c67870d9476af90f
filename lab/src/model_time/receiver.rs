// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receiving end of one connection: what has arrived, and when that is acknowledged.
//!
//! Input: segments, the time. Output: acknowledgements. As Linux does for a reader that is never behind: every second
//! segment, at once while something is missing and for the first sixteen, else after 40 ms.

use std::collections::{BTreeMap, VecDeque};

use super::packet::SACK_BLOCKS;

const DELAY_NS: u64 = 40_000_000;
const QUICK: u32 = 16;

#[derive(Debug, Default)]
pub struct Receiver {
    next: u32,
    /// Arrived ranges beyond `next`: from, to.
    beyond: BTreeMap<u32, u32>,
    /// Their beginnings, the latest first.
    latest: VecDeque<u32>,
    unacknowledged: u32,
    quick: u32,
    /// When a delayed acknowledgement is due.
    pub due_ns: Option<u64>,
}

/// The next segment expected, and blocks of those beyond it.
pub type Acknowledgement = (u32, Vec<(u32, u32)>);

impl Receiver {
    /// Segments that the reader has.
    pub fn delivered(&self) -> u32 {
        self.next
    }

    pub fn arrive(&mut self, now_ns: u64, segment: u32) -> Option<Acknowledgement> {
        let had_gap = !self.beyond.is_empty();
        let is_news = self.take_in(segment);
        self.unacknowledged += 1;
        self.quick += 1;
        let at_once = !is_news || had_gap || !self.beyond.is_empty() || self.unacknowledged >= 2 || self.quick <= QUICK;
        if at_once {
            return Some(self.acknowledge());
        }
        self.due_ns = Some(now_ns + DELAY_NS);
        None
    }

    pub fn acknowledge(&mut self) -> Acknowledgement {
        self.unacknowledged = 0;
        self.due_ns = None;
        let block = |from: &u32| Some((*from, *self.beyond.get(from)?));
        (
            self.next,
            self.latest.iter().filter_map(block).take(SACK_BLOCKS).collect(),
        )
    }

    fn take_in(&mut self, segment: u32) -> bool {
        if segment < self.next {
            return false;
        }
        if segment == self.next {
            self.next += 1;
            while let Some((&from, &to)) = self.beyond.first_key_value().filter(|(from, _)| **from <= self.next) {
                self.beyond.remove(&from);
                self.latest.retain(|latest| *latest != from);
                self.next = self.next.max(to);
            }
            return true;
        }
        let before = self.beyond.range(..=segment).next_back().map(|(from, to)| (*from, *to));
        let (mut from, mut to) = (segment, segment + 1);
        match before {
            Some((_, end)) if end > segment => return false,
            Some((start, end)) if end == segment => {
                self.beyond.remove(&start);
                self.latest.retain(|latest| *latest != start);
                from = start;
            }
            _ => {}
        }
        if let Some(end) = self.beyond.remove(&to) {
            let after = to;
            self.latest.retain(|latest| *latest != after);
            to = end;
        }
        self.beyond.insert(from, to);
        self.latest.push_front(from);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_sacked_and_filled() {
        let mut receiver = Receiver::default();
        assert_eq!(receiver.arrive(0, 0), Some((1, vec![])));
        assert_eq!(receiver.arrive(0, 2), Some((1, vec![(2, 3)])));
        assert_eq!(receiver.arrive(0, 5), Some((1, vec![(5, 6), (2, 3)])));
        assert_eq!(receiver.arrive(0, 3), Some((1, vec![(2, 4), (5, 6)])));
        assert_eq!(receiver.arrive(0, 4), Some((1, vec![(2, 6)])));
        assert_eq!(receiver.arrive(0, 1), Some((6, vec![])));
    }

    #[test]
    fn every_second_segment_is_acknowledged_after_the_first_sixteen() {
        let mut receiver = Receiver::default();
        (0..16).for_each(|segment| assert!(receiver.arrive(0, segment).is_some()));
        assert_eq!(receiver.arrive(5, 16), None);
        assert_eq!(receiver.due_ns, Some(5 + DELAY_NS));
        assert_eq!(receiver.arrive(6, 17), Some((18, vec![])));
        assert_eq!(receiver.due_ns, None);
    }
}
