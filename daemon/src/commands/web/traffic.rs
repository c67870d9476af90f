// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each class sends and receives, counted from what the kernel counts of each socket. Input: one status after another. Output: totals
//! since the start of `giveway web`, and rates since the status before.
//!
//! What a connection delivered between the last look at it and its end is not known, nor what it delivered before the
//! first status. The loopback does not count: it is no link.

use std::collections::HashMap;
use std::time::Duration;

use giveway_engine::model::{Class, Cookie, Flow};
use giveway_engine::status::{FlowView, Status};

/// The kernel's index of the loopback in every network namespace (include/net/flow.h).
const LOOPBACK_IFINDEX: u32 = 1;
pub const CLASSES: usize = Class::ALL.len();

#[derive(Debug, Default)]
pub struct Traffic {
    /// Of each socket of the status before.
    seen: HashMap<Cookie, FlowCounters>,
    before: Option<LastStatus>,
    totals: [ClassTotal; CLASSES],
}

#[derive(Clone, Copy, Debug)]
struct LastStatus {
    daemon: u32,
    at: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct FlowCounters {
    acked_bytes: u64,
    received_bytes: u64,
    retransmits: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ClassTotal {
    delivered_bytes: u64,
    received_bytes: u64,
    retransmits: u64,
}

/// One class at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassTraffic {
    /// TCP.
    pub sockets: u32,
    pub senders: u32,
    pub capped: u32,
    pub cap_segments: u64,
    /// What the caps let pass at the present round-trip times.
    pub allowed_bytes_per_s: f64,
    pub send_queue_bytes: u64,
    /// The longest of those that send: the round-trip time above the least that was seen.
    pub path_queue_s: Option<f64>,
    pub delivered_bytes: u64,
    pub received_bytes: u64,
    pub retransmits: u64,
    pub rates: Rates,
}

/// Since the status before, bytes a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    pub sent: f64,
    pub received: f64,
}

/// What a status says of traffic.
pub struct TrafficSummary<'a> {
    pub classes: [ClassTraffic; CLASSES],
    /// Each TCP connection beyond the loopback.
    pub flows: Vec<(&'a FlowView, Rates)>,
}

impl Traffic {
    pub fn count<'a>(&mut self, status: &'a Status) -> TrafficSummary<'a> {
        let at = Duration::from_nanos(status.network.taken_t_ns);
        let same_daemon = self.before.filter(|before| before.daemon == status.daemon.pid);
        let since = self
            .before
            .map_or(0.0, |before| at.saturating_sub(before.at).as_secs_f64());
        self.before = Some(LastStatus {
            daemon: status.daemon.pid,
            at,
        });
        let before = std::mem::take(&mut self.seen);
        let mut classes = [ClassTraffic::default(); CLASSES];
        let mut flows = Vec::new();
        for view in status
            .network
            .flows
            .iter()
            .filter(|view| is_beyond_loopback(&view.flow))
        {
            let flow = &view.flow;
            let counted = FlowCounters::of(flow);
            self.seen.insert(flow.cookie, counted);
            // A connection that this daemon had not shown is new, and all of it counts.
            let new = same_daemon.map(|_| FlowCounters::default());
            let grown = before.get(&flow.cookie).copied().or(new);
            let grown = grown.map_or(FlowCounters::default(), |before| counted.since(before));
            let class = view.class as usize;
            self.totals[class].add(&grown);
            let rate = |bytes: u64| if since > 0.0 { bytes as f64 / since } else { 0.0 };
            let rates = Rates {
                sent: rate(grown.acked_bytes),
                received: rate(grown.received_bytes),
            };
            classes[class].add(view, rates);
            flows.push((view, rates));
        }
        for (class, total) in classes.iter_mut().zip(self.totals) {
            (class.delivered_bytes, class.retransmits) = (total.delivered_bytes, total.retransmits);
            class.received_bytes = total.received_bytes;
        }
        TrafficSummary { classes, flows }
    }
}

pub fn is_beyond_loopback(flow: &Flow) -> bool {
    flow.ifindex != LOOPBACK_IFINDEX && !flow.remote.ip().to_canonical().is_loopback()
}

impl FlowCounters {
    fn of(flow: &Flow) -> Self {
        Self {
            acked_bytes: flow.acked_bytes,
            received_bytes: flow.received_bytes,
            retransmits: flow.retransmits,
        }
    }

    /// The kernel's count of retransmits wraps.
    fn since(self, before: Self) -> Self {
        Self {
            acked_bytes: self.acked_bytes.saturating_sub(before.acked_bytes),
            received_bytes: self.received_bytes.saturating_sub(before.received_bytes),
            retransmits: self.retransmits.wrapping_sub(before.retransmits),
        }
    }
}

impl ClassTotal {
    fn add(&mut self, grown: &FlowCounters) {
        self.delivered_bytes += grown.acked_bytes;
        self.received_bytes += grown.received_bytes;
        self.retransmits += u64::from(grown.retransmits);
    }
}

impl ClassTraffic {
    fn add(&mut self, view: &FlowView, rates: Rates) {
        let flow = &view.flow;
        self.sockets += 1;
        self.senders += u32::from(view.sender);
        self.send_queue_bytes += flow.unsent_bytes + flow.unacked_bytes;
        self.rates.sent += rates.sent;
        self.rates.received += rates.received;
        if let Some(cap) = view.cap {
            self.capped += 1;
            self.cap_segments += u64::from(cap);
            let bytes = f64::from(cap) * f64::from(flow.mss_bytes);
            self.allowed_bytes_per_s += bytes / (f64::from(flow.srtt_us.max(1)) * 1e-6);
        }
        if let (true, Some(wait)) = (view.sender, path_queue_s(flow)) {
            self.path_queue_s = Some(self.path_queue_s.map_or(wait, |most| most.max(wait)));
        }
    }
}

/// None until the kernel has measured it.
pub fn path_queue_s(flow: &Flow) -> Option<f64> {
    let least = flow.min_rtt_us.filter(|_| flow.srtt_us > 0)?;
    Some(f64::from(flow.srtt_us.saturating_sub(least)) * 1e-6)
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// As the daemon answers.
    pub fn status(pid: u32, second: u64, flows: &[Value]) -> Status {
        let status = json!({
            "version": "0", "pid": pid, "uptime_s": second, "lost_events": 0, "warnings": [],
            "polls": {"count": 1, "cpu_us": 1, "max_us": 1}, "full_scans": {"count": 1, "cpu_us": 1, "max_us": 1},
            "taken_t_ns": second * 1_000_000_000, "interface": null, "flows": flows, "peers": [],
            "policy": {"name": "none", "senders": 1, "connections": 1, "cooperates": false, "dry_run": false},
            "reports": serde_json::to_value(giveway_engine::peers::Counters::default()).map(|mut counters| {
                counters["interval_ms"] = json!(1000);
                counters["airtime_percent"] = json!(0.0);
                counters
            }).unwrap(),
            "changes": [],
        });
        serde_json::from_value(status).unwrap()
    }

    pub fn flow(cookie: u64, acked: u64) -> Value {
        json!({
            "cookie": cookie, "local": "192.0.2.1:5", "remote": "192.0.2.2:80", "state": "established",
            "cgroup_id": 1, "ifindex": 2, "cwnd": 10, "clamp": null, "ssthresh": null, "mss_bytes": 1000,
            "srtt_us": 30_000, "min_rtt_us": 10_000, "rttvar_us": 1, "in_flight_bytes": 0, "unsent_bytes": 0,
            "unacked_bytes": 0, "delivery_rate_bytes_per_s": 0, "pacing_rate_bytes_per_s": null, "retransmits": 0,
            "acked_bytes": acked, "ca_state": "open", "congestion_control": "cubic",
            "class": "bulk", "cap": 30, "sender": true, "conflict": false,
        })
    }

    fn bulk(seen: &TrafficSummary) -> ClassTraffic {
        seen.classes[Class::Bulk as usize]
    }

    #[test]
    fn what_was_delivered_before_the_first_look_does_not_count() {
        let mut traffic = Traffic::default();
        let first = status(1, 10, &[flow(1, 5_000)]);
        assert_eq!(bulk(&traffic.count(&first)).delivered_bytes, 0);
        let second = status(1, 12, &[flow(1, 15_000), flow(2, 5_000)]);
        let of_second = bulk(&traffic.count(&second));
        assert_eq!(
            of_second.delivered_bytes, 15_000,
            "of the old one what is new, and all of the new one"
        );
        assert_eq!(of_second.rates.sent, 7500.0);
    }

    #[test]
    fn of_another_daemon_only_what_was_known_counts() {
        let mut traffic = Traffic::default();
        traffic.count(&status(1, 10, &[flow(1, 10_000)]));
        let restarted = status(2, 20, &[flow(1, 20_000), flow(2, 1_000_000)]);
        assert_eq!(bulk(&traffic.count(&restarted)).delivered_bytes, 10_000);
    }

    #[test]
    fn the_loopback_does_not_count() {
        let mut on_loopback = flow(1, 10);
        on_loopback["ifindex"] = json!(1);
        let status = status(1, 1, &[on_loopback]);
        assert!(Traffic::default().count(&status).flows.is_empty());
    }

    #[test]
    fn caps_say_how_much_passes_and_senders_how_long_they_wait() {
        let status = status(1, 1, &[flow(1, 0)]);
        let bulk = bulk(&Traffic::default().count(&status));
        assert_eq!((bulk.capped, bulk.cap_segments), (1, 30));
        assert!((bulk.allowed_bytes_per_s - 1e6).abs() < 1.0);
        assert_eq!(bulk.path_queue_s, Some(0.02));
    }
}
