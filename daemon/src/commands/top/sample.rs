// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A status for tests, as a daemon with so many sockets gives it.

use giveway_engine::model::Class;
use giveway_engine::status::Status;
use serde_json::{Value, json};

/// Socket `n` has the cookie `n + 1`, and is process `1000 + n`'s; every other one sends.
pub fn status(sockets: usize) -> Status {
    serde_json::from_value(json!({
        "version": "0.1.0", "pid": 77, "uptime_s": 4000.0, "lost_events": 0,
        "polls": cost(), "full_scans": cost(), "warnings": ["the fan is loud"], "class_rules": 3,
        "taken_t_ns": 5_000_000_000_u64,
        "interface": {"name": "wlan0", "index": 3, "ipv4": null},
        "policy": {"name": "fixed", "senders": 2, "connections": 1, "cooperates": true, "dry_run": false},
        "flows": (0..sockets).map(flow).collect::<Vec<_>>(),
        "peers": [{
            "address": "192.0.2.9", "session": "00000000000000ff", "authenticated": true, "age_ms": 40, "interval_ms": 100,
            "senders": [],
        }],
        "reports": reports(),
        "links": [link()],
        "limits": [{
            "limited_by": "rule", "of": "rule 50-mine.toml:3",
            "upload": {"limit_mbit": 2.0, "flows": 1},
            "download": {
                "limit_mbit": 8.0, "flows": 4,
                "queue": {
                    "throughput_mbit": 7.5, "passed_bytes": 5_000_000, "passed_packets": 4_000, "dropped_packets": 17, "backlog_packets": 4,
                    "backlog_bytes": 6_000,
                },
            },
        }],
        "priority": null,
        "changes": [{
            "t_ns": 4_000_000_000_u64, "subject": "socket", "cookie": 1, "name": "worker (1000) to 192.0.2.1:443",
            "setting": "cap", "old": null, "new": 43, "rule": "fixed", "reason": "two devices share", "made": true, "times": 2,
        }],
    }))
    .unwrap()
}

fn cost() -> Value {
    json!({"count": 1, "cpu_us": 1, "max_us": 1})
}

fn flow(number: usize) -> Value {
    json!({
        "cookie": number + 1, "local": "192.0.2.2:40000", "remote": format!("192.0.2.1:{}", 1 + number % 60_000),
        "state": "established", "pid": 1_000 + number, "command": format!("worker{number}"), "cgroup_id": 1, "ifindex": 3,
        "cwnd": 10 + number % 90, "clamp": null, "ssthresh": null, "mss_bytes": 1448, "srtt_us": 12_000, "min_rtt_us": 9_000,
        "rttvar_us": 100, "in_flight_bytes": 0, "unsent_bytes": 3_000 * (number % 7), "unacked_bytes": 1_000,
        "delivery_rate_bytes_per_s": 0, "pacing_rate_bytes_per_s": null, "retransmits": 0, "ca_state": "open",
        "congestion_control": "cubic", "class": Class::ALL[number % 5], "class_reason": "a rule says so", "cap": null,
        "sender": number.is_multiple_of(2), "conflict": false, "unit": "worker.service",
    })
}

fn reports() -> Value {
    let counters = serde_json::to_value(giveway_engine::peers::Counters::default()).unwrap();
    let mut reports = json!({"interval_ms": 100, "airtime_percent": 0.1});
    reports
        .as_object_mut()
        .unwrap()
        .extend(counters.as_object().unwrap().clone());
    reports
}

fn link() -> Value {
    let band = json!({
        "classified": 1, "sent_packets": 5, "sent_bytes": 1_000, "dropped_full": 0, "backlog_packets": 2, "backlog_bytes": 3_000,
    });
    json!({
        "interface": "wlan0", "ifindex": 3, "installed": null, "reason": "a test has installed it", "counted_t_ns": 1,
        "counters": {
            "admitted": 1, "refused": {"total": 0, "own": 0, "others": 0, "full": 0}, "late": 0, "expired": 0, "untold": 0,
            "bands": {"realtime": band, "stream": band, "best_effort": band, "background": band},
        },
    })
}
