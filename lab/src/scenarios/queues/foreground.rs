// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A phone's HTTP requests while it uploads in the background. P0 wanted "as fast as without the upload" and did not reach it.

use anyhow::Result;

use super::on_uplink;
use crate::parameters::Parameters;
use crate::scenario::{Check, Plot, Relation, Variant};
use crate::testbed::Load;
use crate::testbed::probe::requests::Requests;
use crate::uplink::{PACKET_BYTES, Shape, UplinkQueue};

const UP_KBIT: u64 = 1_000;
/// P0's uplink in bad radio conditions: only reported.
const SLOW_UP_KBIT: u64 = 400;
const DOWN_KBIT: u64 = 3_000;
const RTT_MS: u64 = 100;
/// The phone's own driver queue in P0, before it was cut to one packet.
const DEEP_DRIVER_BYTES: u64 = 8_192;
const CUBIC: Option<&str> = Some("cubic");
/// P0, section 5.5: what TCP Nice takes to yield, as P0 computes it.
const TCP_NICE_YIELDS_S: f64 = 1.4;

/// From this size on a request is judged by the ratio to one without background.
const LONG_KB: u64 = 100;
/// Of the short ones: the connection, and the request itself (10 kB are one initial window).
const SHORT_ROUND_TRIPS: f64 = 2.0;

const SHORT: &str = "giveway/short";
const fn giveway(short: bool) -> UplinkQueue {
    UplinkQueue::Giveway { cpu_gate: true, short }
}
/// Name, what queues in the device, the upload's congestion control.
const METHODS: &[(&str, UplinkQueue, Option<&str>)] = &[
    ("none", UplinkQueue::Fifo, None),
    ("plain", UplinkQueue::Fifo, CUBIC),
    ("prio", UplinkQueue::Priorities, CUBIC),
    ("cake", UplinkQueue::Cake, CUBIC),
    ("tcp-lp", UplinkQueue::Fifo, Some("lp")),
    ("thread-per-priority", UplinkQueue::Threads, CUBIC),
    ("giveway", giveway(false), CUBIC),
    (SHORT, giveway(true), CUBIC),
    // What one packet in the driver costs where nothing is uploaded (figures 11 and 12), beside `none/8k`.
    ("giveway/alone", giveway(true), None),
];
/// What these are called elsewhere, the uplink's rate there, and what the driver holds.
const ELSEWHERE: [(&str, u64, u64); 2] = [("8k", UP_KBIT, DEEP_DRIVER_BYTES), ("0.4", SLOW_UP_KBIT, PACKET_BYTES)];
const TRIED_ELSEWHERE: &[&str] = &["none", "plain", "giveway"];

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let sizes_kb = parameters.counts("sizes_kb")?;
    let variant = |name: String, queue, background: Option<&'static str>, up_kbit, driver_bytes| {
        let shape = Shape {
            up_kbit,
            down_kbit: DOWN_KBIT,
            rtt_ms: RTT_MS,
            queue,
            driver_bytes,
        };
        let requests = Requests {
            sizes_kb: sizes_kb.clone(),
            repetitions: parameters.count("requests"),
        };
        on_uplink(parameters, name, shape, background.map(Load::upload), requests)
    };
    let mut variants = Vec::new();
    for &(name, queue, background) in METHODS {
        variants.push(variant(name.into(), queue, background, UP_KBIT, PACKET_BYTES));
        for (place, up_kbit, driver_bytes) in ELSEWHERE.into_iter().filter(|_| TRIED_ELSEWHERE.contains(&name)) {
            let name = format!("{name}/{place}");
            variants.push(variant(name, queue, background, up_kbit, driver_bytes));
        }
    }
    Ok(variants)
}

pub fn bounds(parameters: &Parameters) -> Result<Vec<Check>> {
    let sizes_kb = parameters.counts("sizes_kb")?;
    let left = |method| Check::metric(method, "background_percent_of_left", Relation::AtLeast(90.0));
    let mut checks = vec![left("giveway").goal(), left(SHORT)];
    for method in ["giveway", SHORT] {
        checks.push(Check::metric(method, "yield_max_s", Relation::Below(TCP_NICE_YIELDS_S)).goal());
        for direction in ["get", "post"] {
            let request = |kb: &u64| beside_none(method, &format!("{direction}/{kb}"), *kb);
            checks.extend(sizes_kb.iter().flat_map(request));
        }
    }
    Ok(checks)
}

/// What the issue strives for: nearly the time that the request takes with no upload at all.
fn beside_none(method: &str, request: &str, kb: u64) -> Vec<Check> {
    let (variant, over) = (format!("{method}/{request}"), format!("none/{request}"));
    let ratio = |metric, most| {
        let name = format!("{variant} {metric} / none");
        Check::ratio(name, &variant, &over, metric, Relation::AtMost(most))
    };
    if method == SHORT && request == "get/100" {
        return vec![ratio("completion_mean_s", 1.03), ratio("completion_p95_s", 1.05)];
    }
    if kb >= LONG_KB {
        return vec![
            ratio("completion_mean_s", 1.05).goal(),
            ratio("completion_p95_s", 1.10).goal(),
        ];
    }
    let packet_s = PACKET_BYTES as f64 * 8.0 / (UP_KBIT as f64 * 1e3);
    let metric = "completion_mean_s";
    let name = format!("{variant} {metric} - none");
    let holds = Relation::AtMost(SHORT_ROUND_TRIPS * packet_s);
    vec![Check::difference(name, &variant, &over, metric, holds).goal()]
}

type Axis = (&'static str, &'static str);
const COMPLETION: Axis = ("completion_mean_s", "mean completion time, s");
const INSTRUCTIONS: Axis = ("instructions", "mean instructions, all processors");
/// File, title, method, what it shows.
const FIGURES: [(&str, &str, &str, Axis); 4] = [
    ("get", "HTTP GET beside an upload", "get", COMPLETION),
    ("post", "HTTP POST beside an upload", "post", COMPLETION),
    (
        "get-instructions",
        "HTTP GET: what it costs the processor",
        "get",
        INSTRUCTIONS,
    ),
    (
        "post-instructions",
        "HTTP POST: what it costs the processor",
        "post",
        INSTRUCTIONS,
    ),
];
/// Their lines: what each is called, and its variant.
const LINES: [Axis; 9] = [
    ("no upload", "none"),
    ("plain", "plain"),
    ("plain, 8 KB in driver", "plain/8k"),
    ("prio", "prio"),
    ("cake", "cake"),
    ("TCP-LP", "tcp-lp"),
    ("thread per priority", "thread-per-priority"),
    ("giveway", "giveway"),
    ("giveway, short segments", "giveway/short"),
];

/// P0, figures 6 to 12.
pub fn figures() -> Vec<Plot> {
    FIGURES.into_iter().map(figure).collect()
}

fn figure((file, title, method, y): (&'static str, &'static str, &str, Axis)) -> Plot {
    let lines = LINES.map(|(label, variant)| (label, format!("{variant}/{method}")));
    Plot::sweep(file, title, "body, KB", y, lines)
}
