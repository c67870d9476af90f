// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One queue that contends for the channel: all of a sender with DCF, one access category of it with EDCA.
//!
//! Input: packets, how long the channel has been idle, the outcome of an attempt. Output: the slot at which it may
//! send, and the frame. Never reads the clock, other queues or a frame's content.

use std::collections::VecDeque;
use std::rc::Rc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use super::access::Access;
use super::address::{Destination, Port};
use super::airtime::{SIFS_NS, SLOT_NS};

/// `dot11ShortRetryLimit`: attempts before a frame is given up.
pub const RETRY_LIMIT: u32 = 7;

/// A frame waiting to be sent. `from` is the port where it entered.
#[derive(Debug, Clone)]
pub struct QueuedFrame {
    pub from: Port,
    pub to: Destination,
    pub frame: Rc<[u8]>,
}

pub struct Contender {
    access: Access,
    queue: VecDeque<QueuedFrame>,
    contention_window: u64,
    failed_attempts: u32,
    /// The slot of the current idle period, after its own silence, at which it may send; while the channel is busy, the
    /// remaining slots.
    slot: u64,
}

impl Contender {
    pub fn new(access: Access) -> Self {
        Self {
            access,
            queue: VecDeque::new(),
            contention_window: access.cw_min,
            failed_attempts: 0,
            slot: 0,
        }
    }

    pub fn head(&self) -> Option<&QueuedFrame> {
        self.queue.front()
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The slot after SIFS of its next attempt, if it has anything to send.
    pub fn contends_at(&self) -> Option<u64> {
        (!self.queue.is_empty()).then_some(self.access.aifsn + self.slot)
    }

    /// If the channel has been idle for its silence, a queue that was at rest sends at the next boundary; else it must
    /// back off like the others. `idle_ns`: how long it has been idle; `None`: it is busy.
    pub fn push(&mut self, packet: QueuedFrame, idle_ns: Option<u64>, rng: &mut ChaCha8Rng) {
        if self.queue.is_empty() {
            let silence_ns = SIFS_NS + self.access.aifsn * SLOT_NS;
            match idle_ns.and_then(|idle_ns| idle_ns.checked_sub(silence_ns)) {
                Some(after_ns) => self.slot = self.slot.max(after_ns.div_ceil(SLOT_NS)),
                None if self.slot == 0 => self.back_off(rng),
                None => {}
            }
        }
        self.queue.push_back(packet);
    }

    /// Another sender begins in this slot after SIFS: the counter freezes.
    pub fn freeze(&mut self, slot: u64) {
        let counted = (slot + u64::from(self.access.counts_busy_slot)).saturating_sub(self.access.aifsn);
        self.slot = self.slot.saturating_sub(counted);
    }

    /// The head failed: whether to retry it, for which it has backed off.
    pub fn tries_again(&mut self, rng: &mut ChaCha8Rng) -> bool {
        self.failed_attempts += 1;
        if self.failed_attempts >= RETRY_LIMIT {
            return false;
        }
        self.contention_window = (self.contention_window * 2 + 1).min(self.access.cw_max);
        self.back_off(rng);
        true
    }

    /// The head leaves the queue in any case; the next one starts afresh.
    pub fn pop(&mut self, rng: &mut ChaCha8Rng) -> Option<QueuedFrame> {
        self.start_afresh();
        self.back_off(rng);
        self.queue.pop_front()
    }

    /// Drops the queue, except a head that is being transmitted. Returns the number of dropped frames.
    pub fn forget(&mut self, head_is_transmitting: bool) -> usize {
        let keep = usize::from(head_is_transmitting);
        if keep == 0 {
            self.start_afresh();
        }
        let forgotten = self.queue.len().saturating_sub(keep);
        self.queue.truncate(keep);
        forgotten
    }

    fn start_afresh(&mut self) {
        self.contention_window = self.access.cw_min;
        self.failed_attempts = 0;
    }

    fn back_off(&mut self, rng: &mut ChaCha8Rng) {
        // The window is 2^k - 1, so a mask is uniform.
        self.slot = u64::from(rng.next_u32()) & self.contention_window;
    }
}
