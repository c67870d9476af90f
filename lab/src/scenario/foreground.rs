// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the scenarios behind a narrow uplink are made of: data, as in `scenario`.

/// HTTP requests beside an upload of the same device.
pub struct Foreground {
    pub shape: Shape,
    /// The upload's congestion control; none: the requests have the device to themselves.
    pub background: Option<&'static str>,
    pub sizes_kb: Vec<u64>,
    pub repetitions: u64,
    pub warmup_s: f64,
}

/// A program that only computes, beside an upload of the same device.
pub struct Gate {
    pub shape: Shape,
    pub background: Option<Background>,
    /// How much the program computes each time.
    pub steps: u64,
    pub repetitions: u64,
    pub warmup_s: f64,
}

/// What goes on beside the program, of a process at nice 19.
#[derive(Clone, Copy, PartialEq)]
pub enum Background {
    Upload,
    /// Half of the link, from a far end that the program cannot slow down.
    Download,
}

/// The device's uplink, with a downlink that is never in the way.
#[derive(Clone, Copy)]
pub struct Shape {
    pub up_kbit: u64,
    pub down_kbit: u64,
    pub rtt_ms: u64,
    pub queue: Queue,
    /// What the driver holds of packets that the queue has let go.
    pub driver_bytes: u64,
}

/// What queues in the device.
#[derive(Clone, Copy, PartialEq)]
pub enum Queue {
    /// One queue of 1,000 packets for all.
    Fifo,
    /// Strict priority by SO_PRIORITY.
    Priorities,
    /// CAKE at the link's rate, by DSCP.
    Cake,
    /// Strict priority, and a kernel thread for each priority that does the packet work.
    Threads,
    /// giveway's.
    Giveway { gate: bool, ingress: bool },
}

impl Foreground {
    pub fn estimated_s(&self) -> f64 {
        const PAUSE_AND_ROUND_TRIPS_S: f64 = 1.4;
        // With an upload beside it a request has at worst half of the link.
        let share = if self.background.is_some() { 0.5 } else { 1.0 };
        let kb_s = 8.0 / (self.shape.up_kbit as f64 * share) + 8.0 / self.shape.down_kbit as f64;
        let both_ways = |kb: &u64| *kb as f64 * kb_s + 2.0 * PAUSE_AND_ROUND_TRIPS_S;
        self.warmup_s + self.repetitions as f64 * self.sizes_kb.iter().map(both_ways).sum::<f64>()
    }
}

impl Gate {
    pub fn estimated_s(&self) -> f64 {
        // A step is seven or eight instructions; each time there is a pause before it.
        self.warmup_s + self.repetitions as f64 * (self.steps as f64 * 8e-9 + 1.0)
    }
}
