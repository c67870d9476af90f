// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What admission and the queues have shown of one flow.

use std::time::Duration;

/// In successive polls: the first ones of a limit show less traffic than there is.
const BYPASSES: u8 = 3;

/// What admission has shown of a flow that leaves by a device without a queue.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub seen_on: Option<u32>,
    pub unseen_looks: u8,
    /// Its delivered segments at the latest poll.
    pub delivered: u32,
    /// Since when it is not enforced, in each direction.
    pub short_since: [Option<Duration>; 2],
    /// Successive polls in which more of it arrived than its queue sent.
    pub bypasses: u8,
}

impl Trace {
    /// Its downloads bypass their queue.
    pub fn passes_by(&self) -> bool {
        self.bypasses >= BYPASSES
    }

    /// At each poll of the queues' counters.
    pub fn note_bypass(&mut self, is_one: bool) {
        self.bypasses = if is_one { self.bypasses.saturating_add(1) } else { 0 };
    }
}
