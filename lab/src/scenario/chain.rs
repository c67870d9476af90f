// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the scenario about requests, processing and answers is made of: data, as in `scenario`.

/// Requests with a deadline from one end of the modelled link to a service at the other, and its answers, beside load
/// on both ends.
pub struct Chain {
    pub rate_mbit: u64,
    pub requests: u32,
    pub every_us: u64,
    /// What the service computes for each.
    pub work_us: u64,
    pub budget: Budget,
    pub napi_priority: u32,
    pub parts: Parts,
}

/// Of one request; the sum is what late is judged by.
#[derive(Clone, Copy)]
pub struct Budget {
    /// From making it until its last bit has left.
    pub send_us: u64,
    /// From its arrival until the last bit of its answer has left.
    pub answer_us: u64,
    /// Until whoever asked has the answer.
    pub receive_us: u64,
}

/// What of giveway is on.
#[derive(Clone, Copy, Default)]
pub struct Parts {
    /// Deadlines in the queue, with admission, on both ends.
    pub queue: bool,
    /// The service is real time all the time, as a [[realtime]] rule makes it.
    pub priority: bool,
    /// Threaded NAPI at a priority, on both ends.
    pub receive: bool,
    /// The request's deadline wakes the service and goes on to the answer.
    pub wake: bool,
}

impl Budget {
    pub fn sum_us(&self) -> u64 {
        self.send_us + self.answer_us + self.receive_us
    }
}

impl Chain {
    pub fn estimated_s(&self) -> f64 {
        4.0 + f64::from(self.requests) * self.every_us as f64 / 1e6
    }
}
