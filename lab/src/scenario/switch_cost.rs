// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the scenario about switches is made of: data, as in `scenario`.

use clap::ValueEnum;

/// Packets handed from a task to who works on them, one at a time.
pub struct SwitchCost {
    pub to: Worker,
    pub packets: u32,
    pub warmup_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Worker {
    /// The device's NAPI instance, in a softirq.
    Softirq,
    /// The same NAPI instance, in a kernel thread of its own.
    NapiThread,
    /// A kernel thread to which XDP passes packets in the softirq.
    CpumapThread,
    /// No packets: two tasks that give way to each other.
    Task,
}

impl SwitchCost {
    pub fn estimated_s(&self) -> f64 {
        self.warmup_s + self.packets as f64 * 4e-5
    }
}
