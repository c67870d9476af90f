// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What admission and the queues have shown of one flow.

use std::time::Duration;

/// Looks in a row: the first ones of a limit show less than there is.
const BYPASSES: u8 = 3;

/// What admission has shown of a flow that leaves by a device without a queue.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub seen_on: Option<u32>,
    pub unseen_looks: u8,
    /// What it had delivered at the last look.
    pub delivered: u32,
    /// Since when it is not enforced, in each direction.
    pub short_since: [Option<Duration>; 2],
    /// At so many looks in a row more of it arrived than its queue let pass.
    pub bypasses: u8,
}

impl Trace {
    /// What it receives does not pass the queue that it should.
    pub fn passes_by(&self) -> bool {
        self.bypasses >= BYPASSES
    }

    /// At each look at what queues have counted.
    pub fn note_bypass(&mut self, is_one: bool) {
        self.bypasses = if is_one { self.bypasses.saturating_add(1) } else { 0 };
    }
}
