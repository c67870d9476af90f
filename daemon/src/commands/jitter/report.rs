// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `giveway jitter --json` prints: one object. Pure, except for the machine's own name and kind.

use schemars::JsonSchema;
use serde::Serialize;

use super::args::{JitterArgs, LoadKind, WantedPolicy};
use super::cause::{self, Culprit};
use super::policy::{Policy, Scheduling};
use super::waker::{Wakers, Wakeup};
use super::{JitterMeasurement, machine};
use crate::kernel::kernel_release;
use crate::kernel::preemption::Preemption;

#[derive(Debug, JsonSchema, Serialize)]
pub struct JitterReport {
    pub kernel: String,
    pub preemption: Preemption,
    pub policy: WantedPolicy,
    /// Of fifo and rr; else 0.
    pub priority: u8,
    /// Of each thread as found, whichever program set it.
    pub policy_at_end: Vec<Policy>,
    pub priority_at_end: Vec<i32>,
    pub period_us: u64,
    pub threads: u16,
    pub cpus: Vec<u32>,
    pub loads: Vec<LoadKind>,
    pub wakeups: u64,
    pub missed: u64,
    pub duration_s: f64,
    pub wakeup_mean_us: f64,
    pub wakeup_p50_us: f64,
    pub wakeup_p99_us: f64,
    pub wakeup_p999_us: f64,
    pub wakeup_max_us: f64,
    pub steal_ms: u64,
    /// Upper bound in microseconds, and how many.
    pub histogram: Vec<(f64, u64)>,
    pub worst: Vec<WorstWakeup>,
}

/// One of the latest wake-ups.
#[derive(Debug, JsonSchema, Serialize)]
pub struct WorstWakeup {
    pub late_us: f64,
    /// Until the thread was woken, and from then until it ran; absent where causes are not looked for.
    pub timer_us: Option<f64>,
    pub switch_us: Option<f64>,
    /// When it was planned, CLOCK_MONOTONIC.
    pub t_ns: u64,
    pub at_s: f64,
    pub thread: u16,
    pub tid: i32,
    pub cpu: usize,
    pub cause: String,
    pub culprits: Vec<Culprit>,
}

impl WorstWakeup {
    fn new(wakeup: &Wakeup, wakers: &Wakers) -> Self {
        let late_us = wakeup.late_ns() as f64 / 1e3;
        let evidence = wakeup.evidence.as_deref();
        let culprits = evidence.map(|evidence| cause::culprits(evidence, &machine::irq_name));
        let timer_us = evidence.and_then(cause::timer_ns).map(|ns| ns as f64 / 1e3);
        Self {
            late_us,
            timer_us,
            switch_us: timer_us.map(|timer_us| late_us - timer_us),
            t_ns: wakeup.planned_ns,
            at_s: wakeup.planned_ns.saturating_sub(wakers.started_ns) as f64 / 1e9,
            thread: wakeup.thread,
            tid: wakers.threads[usize::from(wakeup.thread)].as_raw(),
            cpu: wakeup.cpu,
            cause: culprits
                .as_ref()
                .map_or_else(|| "not looked for".to_owned(), |c| cause::line(c, late_us)),
            culprits: culprits.unwrap_or_default(),
        }
    }
}

impl JitterReport {
    pub fn new(
        args: &JitterArgs,
        wakers: &Wakers,
        measured: &JitterMeasurement,
        installed: Vec<Scheduling>,
        steal_ms: u64,
    ) -> Self {
        let distribution = &measured.distribution;
        Self {
            kernel: kernel_release(),
            preemption: Preemption::here(),
            policy: args.policy,
            priority: args.priority(),
            policy_at_end: installed.iter().map(|scheduling| scheduling.policy).collect(),
            priority_at_end: installed.iter().map(|scheduling| scheduling.priority).collect(),
            period_us: args.period.as_micros() as u64,
            threads: args.threads,
            cpus: args.cpus().to_vec(),
            loads: args.loads(),
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
            worst: measured
                .worst
                .iter()
                .map(|wakeup| WorstWakeup::new(wakeup, wakers))
                .collect(),
        }
    }

    /// What was measured, beside what, on what: one line.
    pub fn title(&self, args: &JitterArgs) -> String {
        let mut policies: Vec<_> = self.policy_at_end.iter().map(ToString::to_string).collect();
        policies.dedup();
        let (policies, beside) = (policies.join(", "), args.loads_text());
        format!(
            "{policies}, beside {beside}; Linux {}, {}",
            self.kernel, self.preemption
        )
    }
}
