// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the scenarios about one device's queue are made of: data, as in `scenario`.

/// Packets with deadlines beside floods without, over the modelled link.
pub struct Deadline {
    pub rate_mbit: u64,
    pub queue: Queue,
    pub flows: Vec<RealtimeFlow>,
    /// At least so many packets with deadlines in all.
    pub packets: u64,
}

/// What queues at the sender's device.
#[derive(Clone)]
pub enum Queue {
    /// The kernel's own: each line is what follows `tc qdisc replace dev DEVICE`.
    Kernel {
        lines: Vec<String>,
        marking: Marking,
    },
    Giveway {
        admission: bool,
        guard_us: u64,
    },
}

/// How the sender's sockets tell the queue what they send.
#[derive(Clone, Copy, PartialEq)]
pub enum Marking {
    /// Nothing at all.
    None,
    /// SO_PRIORITY and the TOS byte: 6 and EF with a deadline, 1 and LE for background.
    Classes,
    /// As `Classes`, and the deadline in the clock that `etf` asks for.
    ClassesAndTai,
}

/// A burst of packets again and again.
#[derive(Clone, Copy)]
pub struct RealtimeFlow {
    pub name: &'static str,
    pub burst: u64,
    pub every_us: u64,
    /// Its first burst.
    pub after_us: u64,
    /// After the burst begins; anew for each packet where the two differ.
    pub deadline_us: (u64, u64),
}

/// What a decision about one more packet costs, and whether it is right.
pub enum AdmissionCost {
    /// giveway's slack test against the exact walk.
    Trial { cases: u64 },
    /// A whole enqueue behind so many packets; each number is a point.
    Enqueue {
        rate_mbit: u64,
        queued: Vec<u64>,
        packets: u64,
    },
}

/// What a queue costs that ordinary packets pass, in instructions.
pub struct QdiscCost {
    pub queue: Queue,
    /// Of the link below; none: the queue has to hold nothing back.
    pub rate_mbit: Option<u64>,
    pub bursts: u64,
}

impl Deadline {
    pub fn estimated_s(&self) -> f64 {
        let packets_per_s: f64 = self
            .flows
            .iter()
            .map(|flow| 1e6 * flow.burst as f64 / flow.every_us as f64)
            .sum();
        2.0 + self.packets as f64 / packets_per_s
    }
}
