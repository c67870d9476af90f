// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What became of each packet with a deadline.
//! Input: what its sender was told, the link's stamps, when it was delivered. Output: counts, and P3's five stages, by
//! flow and in all.
//!
//! The stages (P3, table 1): *made*, from just before `send` until it stands before the queue; *queue*, until it is
//! handed to the link; *network*, until its last bit has left the link; *delivered*, from the link's end to the
//! receiving process. The link is a model that delays nothing, so the last one is measured from the handing over.

use std::collections::HashMap;

use super::RealtimeFlow;
use crate::link::Stamps;
use crate::outcome::Outcome;
use crate::statistics::mean;
use crate::traffic::realtime::receiver::Delivered;
use crate::traffic::realtime::sender::SenderCounts;

const STAGES: [&str; 5] = ["made", "queue", "network", "delivered", "total"];

/// Of one flow, or of all.
#[derive(Default)]
struct Fate {
    counts: SenderCounts,
    left: u64,
    late: u64,
    worst_late_ns: u64,
    stages_us: [Vec<f64>; 5],
    /// Until the last bit had left the link.
    took_ms: Vec<f64>,
    /// Packets that left before one of another flow that was queued earlier.
    overtook: u64,
}

pub fn summarize(
    outcome: &mut Outcome,
    point: &str,
    flows: &[RealtimeFlow],
    counts: &[SenderCounts],
    stamps: &[Vec<Stamps>],
    delivered: &[Delivered],
) {
    let delivered: HashMap<_, _> = delivered.iter().map(|d| ((d.flow, d.number), d.at_ns)).collect();
    let mut all = Fate::default();
    for (number, flow) in flows.iter().enumerate() {
        let mut fate = Fate {
            counts: counts[number],
            ..Fate::default()
        };
        all.counts.sent += fate.counts.sent;
        all.counts.refused += fate.counts.refused;
        for stamps in &stamps[number] {
            fate.add(stamps, &delivered);
            all.add(stamps, &delivered);
        }
        let others = stamps.iter().enumerate().filter(|(other, _)| *other != number);
        fate.overtook = overtaken(&stamps[number], others.flat_map(|(_, stamps)| stamps));
        all.overtook += fate.overtook;
        fate.set_metrics(outcome, &format!("{point}/{}", flow.name));
    }
    all.set_metrics(outcome, point);
}

impl Fate {
    fn add(&mut self, stamps: &Stamps, delivered: &HashMap<(u32, u32), u64>) {
        if stamps.left_ns == 0 {
            return;
        }
        let payload = &stamps.payload;
        let late_ns = stamps.left_ns.saturating_sub(payload.deadline_ns);
        self.left += 1;
        self.late += u64::from(late_ns > 0);
        self.worst_late_ns = self.worst_late_ns.max(late_ns);
        self.took_ms
            .push(stamps.left_ns.saturating_sub(payload.made_ns) as f64 / 1e6);
        let Some(at_ns) = delivered.get(&(payload.flow, payload.number)) else {
            return;
        };
        let stages_ns = [
            stamps.queued_ns.saturating_sub(payload.made_ns),
            stamps.handed_ns.saturating_sub(stamps.queued_ns),
            stamps.left_ns.saturating_sub(stamps.handed_ns),
            at_ns.saturating_sub(stamps.handed_ns),
        ];
        for (stage, ns) in self
            .stages_us
            .iter_mut()
            .zip(stages_ns.into_iter().chain([stages_ns.iter().sum()]))
        {
            stage.push(ns as f64 / 1e3);
        }
    }

    /// From making a packet to its last bit having left the link.
    fn curve_ms(&self) -> Vec<f64> {
        let mut ms = self.took_ms.clone();
        ms.sort_by(f64::total_cmp);
        ms.resize(self.counts.sent as usize, f64::INFINITY);
        ms.iter()
            .step_by(ms.len().div_ceil(CURVE_SAMPLES).max(1))
            .copied()
            .collect()
    }

    fn set_metrics(&self, outcome: &mut Outcome, point: &str) {
        let (sent, refused_notified) = (self.counts.sent, self.counts.refused);
        let refused = sent - self.left;
        let missed = refused + self.late;
        for (metric, value) in [
            ("sent", sent),
            ("admitted", sent - refused_notified),
            ("refused", refused),
            ("refused_notified", refused_notified),
            ("refused_unnotified", refused.abs_diff(refused_notified)),
            ("late", self.late),
            ("missed", missed),
        ] {
            outcome.set(point, metric, value as f64);
        }
        outcome.set(point, "late_max_us", self.worst_late_ns as f64 / 1e3);
        outcome.set(point, "missed_percent", 100.0 * missed as f64 / sent as f64);
        outcome.samples.insert(point.into(), self.curve_ms());
        let overtook = (self.left > 0).then(|| 100.0 * self.overtook as f64 / self.left as f64);
        outcome.set(point, "overtook_percent", overtook);
        for (stage, samples) in STAGES.iter().zip(&self.stages_us) {
            outcome.set(point, &format!("{stage}_mean_us"), mean(samples));
            outcome.percentiles(point, &format!("{stage}_*_us"), samples, &[99, 100]);
        }
    }
}

/// How long packets took, as so many samples that share the whole between them; infinite where they never left.
const CURVE_SAMPLES: usize = 400;

/// How many of these packets left while one of the others, queued before them, still waited.
fn overtaken<'a>(packets: &[Stamps], others: impl Iterator<Item = &'a Stamps>) -> u64 {
    let mut others: Vec<_> = others.map(|other| (other.queued_ns, other.handed_ns)).collect();
    others.sort_unstable();
    let latest = |last: &mut u64, handed_ns: u64| {
        *last = handed_ns.max(*last);
        Some(*last)
    };
    // Of those queued so far, the one that was handed over last.
    let last_handed: Vec<u64> = others.iter().map(|(_, handed_ns)| *handed_ns).scan(0, latest).collect();
    let overtook = |packet: &&Stamps| {
        let before = others.partition_point(|(queued_ns, _)| *queued_ns < packet.queued_ns);
        packet.left_ns > 0 && before > 0 && last_handed[before - 1] > packet.handed_ns
    };
    packets.iter().filter(overtook).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Payload;

    fn stamps(queued_ns: u64, handed_ns: u64, left_ns: u64, deadline_ns: u64) -> Stamps {
        let payload = Payload {
            deadline_ns,
            ..Payload::default()
        };
        Stamps {
            payload,
            queued_ns,
            handed_ns,
            left_ns,
        }
    }

    #[test]
    fn late_packets_left_after_their_deadline_and_missed_ones_include_refused() {
        let mut fate = Fate {
            counts: SenderCounts { sent: 4, refused: 1 },
            ..Fate::default()
        };
        for packet in [stamps(1, 2, 100, 100), stamps(2, 3, 101, 100), stamps(3, 0, 0, 100)] {
            fate.add(&packet, &HashMap::new());
        }
        let mut outcome = Outcome::default();
        fate.set_metrics(&mut outcome, "flow");
        let flow = &outcome.points["flow"];
        let counts = ["admitted", "refused", "refused_unnotified", "late", "missed"].map(|metric| flow[metric]);
        assert_eq!(counts, [3.0, 2.0, 1.0, 1.0, 3.0]);
        assert_eq!(flow["late_max_us"], 0.001);
    }

    #[test]
    fn overtaking_compares_queueing_and_departure() {
        let others = [stamps(10, 50, 60, 0), stamps(20, 30, 40, 0)];
        let after_both = stamps(25, 55, 65, 0);
        let between = stamps(25, 35, 45, 0);
        let before_both = stamps(5, 6, 7, 0);
        let never_left = stamps(25, 0, 0, 0);
        assert_eq!(overtaken(&[after_both, before_both, never_left], others.iter()), 0);
        assert_eq!(overtaken(&[between], others.iter()), 1);
    }
}
