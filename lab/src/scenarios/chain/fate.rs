// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of each request. Input: records of the client, the service and the links in between, all by one clock.
//! Output: counts and times. An admitted request whose answer came too late, or never, is late.

use std::collections::HashMap;

use anyhow::Result;
use serde::Serialize;

use crate::link::Stamps;
use crate::outcome::Outcome;
use crate::traffic::realtime::requests::Asked;
use crate::traffic::realtime::service::Handled;

pub struct Parties<'a> {
    pub asked: &'a [Asked],
    pub handled: &'a [Handled],
    /// The link of the requests, and the one of the answers; one flow each.
    pub there: &'a [Vec<Stamps>],
    pub back: &'a [Vec<Stamps>],
}

#[derive(Default, Serialize)]
struct Fates {
    requests: u64,
    admitted: u64,
    refused_notified: u64,
    refused_answers: u64,
    late: u64,
    lost: u64,
    completion_ms: Vec<f64>,
    delivery_us: Vec<f64>,
    handling_us: Vec<f64>,
    /// From sending the answer to its arrival.
    return_us: Vec<f64>,
    sent_us: Vec<f64>,
}

/// Returns how many refusals were reported to the client or the service.
pub fn summarize(outcome: &mut Outcome, point: &str, budget_us: u64, parties: &Parties) -> Result<u64> {
    let handled: HashMap<u32, &Handled> = parties.handled.iter().map(|h| (h.number, h)).collect();
    let by_number = |stamps: &[Vec<Stamps>]| -> HashMap<u32, u64> {
        let passed = stamps.iter().flatten().filter(|stamps| stamps.handed_ns > 0);
        passed.map(|stamps| (stamps.payload.number, stamps.handed_ns)).collect()
    };
    let (there, back) = (by_number(parties.there), by_number(parties.back));
    let mut fates = Fates::default();
    for (number, asked) in (0..).zip(parties.asked) {
        let of = |links: &HashMap<u32, u64>| links.get(&number).copied();
        fates.add(asked, handled.get(&number).copied(), of(&there), of(&back), budget_us);
    }
    let reported = fates.refused_notified;
    fates.set_metrics(outcome, point)?;
    Ok(reported)
}

fn us(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e3
}

impl Fates {
    fn add(&mut self, asked: &Asked, handled: Option<&Handled>, there: Option<u64>, back: Option<u64>, budget_us: u64) {
        self.requests += 1;
        if let Some(handed_ns) = there {
            self.sent_us.push(us(asked.made_ns, handed_ns));
        }
        if let (Some(handed_ns), Some(handled)) = (there, handled) {
            self.delivery_us.push(us(handed_ns, handled.received_ns));
            self.handling_us.push(us(handled.received_ns, handled.answered_ns));
        }
        if asked.refused || handled.is_some_and(|handled| handled.refused) {
            self.refused_notified += 1;
            self.refused_answers += u64::from(!asked.refused);
            return;
        }
        self.admitted += 1;
        if asked.answered_ns == 0 {
            self.lost += 1;
            self.late += 1;
            self.completion_ms.push(f64::INFINITY);
            return;
        }
        let took_us = us(asked.made_ns, asked.answered_ns);
        self.late += u64::from(took_us > budget_us as f64);
        self.completion_ms.push(took_us / 1e3);
        if let Some(handed_ns) = back {
            self.return_us.push(us(handed_ns, asked.answered_ns));
        }
    }

    fn set_metrics(self, outcome: &mut Outcome, point: &str) -> Result<()> {
        outcome.set_fields(point, &self)?;
        let share = 100.0 * self.admitted as f64 / self.requests.max(1) as f64;
        outcome.set(point, "admitted_percent", share);
        outcome.percentiles(point, "completion_*_ms", &self.completion_ms, &[50, 99, 100]);
        let stages = [
            ("sent", &self.sent_us),
            ("delivery", &self.delivery_us),
            ("handling", &self.handling_us),
            ("return", &self.return_us),
        ];
        for (stage, times) in stages {
            outcome.percentiles(point, &format!("{stage}_*_us"), times, &[50, 99, 100]);
        }
        outcome.samples.insert(point.into(), self.completion_ms);
        Ok(())
    }
}
