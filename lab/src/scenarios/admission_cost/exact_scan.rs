// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P3's slack test as in the paper: a scan over all promised packets in the order of their deadlines, exact and O(n).
//! Input: promises. Output: whether one more can be given. The reference for the tree of `bpf/slack.h`.

use std::collections::VecDeque;

#[derive(Clone, Copy)]
pub struct Promise {
    pub deadline_ns: u64,
    pub work_ns: u64,
    /// In the order of promising.
    pub number: u64,
}

/// The promises, earliest deadline first.
#[derive(Default)]
pub struct Promises(VecDeque<Promise>);

impl Promises {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether everything is done by its deadline if the link begins at `start_ns` and sends this packet too. Earlier
    /// deadlines do not wait for it.
    pub fn admits(&self, start_ns: u64, packet: Promise) -> bool {
        self.admits_slowly(start_ns, packet, 1)
    }

    /// The same if everything took so many times as long.
    pub fn admits_slowly(&self, start_ns: u64, packet: Promise, times: u64) -> bool {
        let mut done_ns = start_ns;
        let mut is_before = true;
        for promise in &self.0 {
            if is_before && promise.deadline_ns > packet.deadline_ns {
                is_before = false;
                done_ns += packet.work_ns * times;
                if done_ns > packet.deadline_ns {
                    return false;
                }
            }
            done_ns += promise.work_ns * times;
            if !is_before && done_ns > promise.deadline_ns {
                return false;
            }
        }
        !is_before || done_ns + packet.work_ns * times <= packet.deadline_ns
    }

    pub fn add(&mut self, promise: Promise) {
        let at = self.0.partition_point(|other| other.deadline_ns <= promise.deadline_ns);
        self.0.insert(at, promise);
    }

    /// Removes the packet that the qdisc sends next: of equal deadlines, the first to arrive.
    pub fn take_next(&mut self, slot: impl Fn(u64) -> u64) -> Option<Promise> {
        let first = slot(self.0.front()?.deadline_ns);
        let alike = self.0.iter().take_while(|promise| slot(promise.deadline_ns) == first);
        let (at, _) = alike.enumerate().min_by_key(|(_, promise)| promise.number)?;
        self.0.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(deadline_ns: u64, work_ns: u64) -> Promise {
        Promise {
            deadline_ns,
            work_ns,
            number: 0,
        }
    }

    #[test]
    fn a_packet_is_promised_only_if_it_and_everything_after_it_is_done_in_time() {
        let mut promises = Promises::default();
        promises.add(promise(100, 40));
        promises.add(promise(50, 30));
        assert!(promises.admits(0, promise(30, 20)), "all fit just so");
        assert!(!promises.admits(0, promise(29, 30)), "its own");
        assert!(
            !promises.admits(0, promise(40, 21)),
            "would make the one due at 50 late"
        );
        assert!(promises.admits(0, promise(100, 30)) && !promises.admits(1, promise(100, 30)));
        assert!(promises.admits(0, promise(100, 30)), "equal deadlines are one");
    }

    #[test]
    fn packets_of_one_slot_leave_in_order_of_arrival() {
        let mut promises = Promises::default();
        for (number, deadline_ns) in [(2, 11), (1, 19), (0, 25)] {
            promises.add(Promise {
                number,
                ..promise(deadline_ns, 1)
            });
        }
        let order = std::iter::from_fn(|| promises.take_next(|deadline_ns| deadline_ns / 10));
        assert_eq!(order.map(|promise| promise.number).collect::<Vec<_>>(), [1, 2, 0]);
    }
}
