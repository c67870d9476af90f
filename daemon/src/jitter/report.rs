// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `giveway jitter --json` prints: one object. Pure, except for the machine's own name and kind.

use serde::Serialize;

use super::Measured;
use super::args::Plan;
use super::machine;
use super::policy::{Policy, Scheduling};
use crate::kernel::probe;

#[derive(Debug, Serialize)]
pub struct Report {
    pub kernel: String,
    pub preemption: String,
    pub policy: &'static str,
    /// Of fifo and rr; else 0.
    pub priority: u8,
    /// Of each thread, whoever set it.
    pub policy_at_end: Vec<Policy>,
    pub priority_at_end: Vec<i32>,
    pub period_us: u64,
    pub threads: u16,
    pub cpus: Vec<usize>,
    pub loads: Vec<String>,
    pub wakeups: u64,
    pub missed: u64,
    pub duration_s: f64,
    pub wakeup_mean_us: f64,
    pub wakeup_p50_us: f64,
    pub wakeup_p99_us: f64,
    pub wakeup_p999_us: f64,
    pub wakeup_max_us: f64,
    pub steal_ms: u64,
    pub histogram: Vec<(f64, u64)>,
}

impl Report {
    pub fn new(plan: &Plan, measured: &Measured, in_force: Vec<Scheduling>, steal_ms: u64) -> Self {
        let distribution = &measured.distribution;
        Self {
            kernel: probe::kernel_release(),
            preemption: machine::preemption(),
            policy: plan.policy.name(),
            priority: plan.priority,
            policy_at_end: in_force.iter().map(|scheduling| scheduling.policy).collect(),
            priority_at_end: in_force.iter().map(|scheduling| scheduling.priority).collect(),
            period_us: plan.period.as_micros() as u64,
            threads: plan.threads,
            cpus: plan.cpus.clone(),
            loads: plan.loads.iter().map(ToString::to_string).collect(),
            wakeups: distribution.count(),
            missed: measured.missed,
            duration_s: measured.elapsed.as_secs_f64(),
            wakeup_mean_us: distribution.mean_us(),
            wakeup_p50_us: distribution.quantile_us(0.5),
            wakeup_p99_us: distribution.quantile_us(0.99),
            wakeup_p999_us: distribution.quantile_us(0.999),
            wakeup_max_us: distribution.max_us(),
            steal_ms,
            histogram: distribution.steps(),
        }
    }
}
