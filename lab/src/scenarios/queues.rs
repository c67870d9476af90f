// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows: what waits before a link, and what is held to a rate there. What a row runs that is no `Testbed` is a file of its own.

mod auto_rate;
mod crossing;
mod deadline;
mod download_limit;
mod foreground;
mod foreground_down;
mod iperf3;
mod line_rate;
pub mod modem_queue;
mod passed;
mod qdisc_cost;
mod rate_limit;
mod starve;
mod yielding;

use super::table::Table;
use crate::guest::Guest;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plot, Relation, Scenario, Trace, Variant};
use crate::testbed::probe::Probe;
use crate::testbed::probe::computing::Computing;
use crate::testbed::{Load, Testbed, Topology};
use crate::uplink::{PACKET_BYTES, Shape, UplinkQueue};

pub const ROWS: &[Scenario] = &[
    // P0, figures 6 to 12: how long requests take beside an upload, what they cost the processor, and what the upload still gets.
    Scenario {
        name: "foreground",
        about: "HTTP requests on an uplink of 1 Mbit/s while the same device uploads in the background, under each queue. `none` has no upload (P0, figures 6 to 12)",
        seconds: 1,
        warmup_s: 10,
        parameters: &[
            Parameter::range("requests", 50, 1, 1_000, "how often each is made"),
            Parameter::list("sizes_kb", "1,10,100,400,1000", "bodies of the requests"),
        ],
        plan: &Table {
            variants: foreground::variants,
            bounds: foreground::bounds,
            plots: |_| foreground::figures(),
            columns: "completion_mean_s completion_p95_s instructions yield_mean_s background_goodput_mbit \
                  background_percent_of_left",
        },
    },
    // P0, section 3: packet work of a background upload must not take the processor from a program that computes, even though that
    // program sends nothing.
    Scenario {
        name: "cpu-gate",
        about: "A program that computes on one processor beside the packet work of a background upload: how much longer it takes than alone (P0, section 3)",
        seconds: 1,
        warmup_s: 3,
        parameters: &[
            Parameter::range("runs", 5, 1, 1_000, "how often the program runs"),
            Parameter::range("steps_m", 100, 1, 100_000, "what it computes each time, in millions"),
        ],
        plan: &Table {
            variants: |parameters| {
                let variant = |name: &str, queue, load: Option<Load>| {
                    // The upload's remote host works on the same processor: its share is in the run time of every variant without
                    // a cpu_gate.
                    let shape = Shape {
                        up_kbit: 100_000,
                        down_kbit: 100_000,
                        rtt_ms: 10,
                        queue,
                        driver_bytes: PACKET_BYTES,
                    };
                    let computing = Computing {
                        steps: parameters.count("steps_m") * 1_000_000,
                        repetitions: parameters.count("runs"),
                    };
                    on_uplink(parameters, name, shape, load, computing)
                };
                let giveway = |cpu_gate| UplinkQueue::Giveway { cpu_gate, short: false };
                let upload = || Some(Load::upload("cubic"));
                Ok(vec![
                    variant("alone", UplinkQueue::Fifo, None),
                    variant("plain", UplinkQueue::Fifo, upload()),
                    variant("giveway", giveway(true), upload()),
                    variant("giveway-without-cpu-gate", giveway(false), upload()),
                    // Half of the link.
                    variant("download", giveway(true), Some(Load::Download { mbit: 50 })),
                ])
            },
            bounds: |_| {
                let (ours, alone, metric) = ("giveway", "alone", "run_time_mean_s");
                let name = format!("{ours} {metric} / {alone}");
                Ok(vec![
                    Check::ratio(name, ours, alone, metric, Relation::AtMost(1.01)),
                    // The gate is worth something only where an upload disturbs.
                    Check::metric(ours, "background_between_mbit", Relation::AtLeast(80.0)).goal(),
                ])
            },
            columns: "run_time_mean_s run_time_max_s background_goodput_mbit background_between_mbit",
            ..Table::ROW
        },
    },
    // Whether background connections live on and take the link again, and what that costs the foreground.
    Scenario {
        name: "starve",
        about: "Background connections below a foreground that takes the whole uplink for an hour, and beside a program that computes: whether they survive",
        seconds: 3_600,
        warmup_s: 10,
        parameters: &[],
        plan: &Table {
            variants: starve::variants,
            bounds: |_| Ok(starve::bounds()),
            columns: "foreground_mbit background_kbit lost_connections return_s",
            ..Table::ROW
        },
    },
    // P3.
    Scenario {
        name: "deadline",
        about: "Packets with deadlines beside floods of best-effort and background traffic, under each queue of the kernel and under giveway. Late is what leaves the link after its deadline (P3)",
        seconds: 1,
        warmup_s: 0,
        parameters: &[
            Parameter::count("packets", 50_000, "with deadlines, under giveway with admission"),
            Parameter::count("packets_others", 5_000, "with deadlines, under each other queue"),
            Parameter::choice(
                "kernel",
                &["host"],
                "this machine's instead of a guest's, with the queues it has",
            ),
        ],
        plan: &Table {
            variants: deadline::variants,
            bounds: |_| Ok(deadline::bounds()),
            plots: |_| deadline::figures(),
            columns: "sent refused refused_notified late late_percent promised_percent total_mean_us total_max_us",
        },
    },
    // Before each kind of queue.
    Scenario {
        name: "rate-limit",
        about: "A rule's upload limit of 0.5, 5 and 50 Mbit/s over TCP and UDP with one socket and with twenty, by htb and by the BPF qdisc",
        seconds: 20,
        warmup_s: 3,
        parameters: &[],
        plan: &Table {
            variants: rate_limit::variants,
            plots: |_| rate_limit::figures(),
            columns: "window_min_of_limit window_max_of_limit goodput_of_limit",
            ..Table::ROW
        },
    },
    // And uploads, other transports, IPv6.
    Scenario {
        name: "download-limit",
        about: "A rule's limit for what its connections receive and send, as PLACE/CONNECTIONS/MBIT: any ten seconds and the first second, as parts of the limit",
        seconds: 30,
        warmup_s: 10,
        parameters: &[],
        plan: &Table {
            variants: download_limit::variants,
            plots: |_| download_limit::figures(),
            columns: "window_min_of_limit window_max_of_limit passed_of_limit first_second_of_limit jain",
            ..Table::ROW
        },
    },
    // With giveway told the rate, giveway that finds it, and without giveway; on links of one rate and on one whose rate moves.
    Scenario {
        name: "auto-rate",
        about: "An upload behind a modem with a long queue whose rate is not configured: giveway estimates it (`auto`), knows it (`fixed`), is given a little less (`below`), or is not there (`plain`, `fq_codel`)",
        seconds: 25,
        warmup_s: 10,
        parameters: &[],
        plan: &Table {
            variants: auto_rate::variants,
            bounds: |_| Ok(auto_rate::bounds()),
            plots: |names| vec![Plot::timeline(Trace::Goodput, names)],
            columns: "goodput_mbit rtt_p50_ms rtt_p95_ms probe_p50_ms probe_p95_ms estimated_mbit",
        },
    },
    // Whether the foreground gets what it has alone, how soon, and what the background moves when nobody else sends.
    Scenario {
        name: "yield",
        about: "A background transfer of one device beside a foreground of another, at seven kinds of bottleneck: what the foreground keeps, how soon the background yields, and how soon it returns",
        seconds: 20,
        warmup_s: 15,
        parameters: &[Parameter::range("requests", 20, 1, 1_000, "of 100 kB, one a second")],
        plan: &Table {
            variants: yielding::variants,
            bounds: |_| Ok(yielding::bounds()),
            plots: |names| vec![Plot::timeline(Trace::Goodput, names)],
            columns: "foreground_mbit steady_mbit yield_s yield_after_queue_s added_p95_ms request_mean_s return_s share_ratio",
        },
    },
    // In a router's queue, before they arrive.
    Scenario {
        name: "foreground-down",
        about: "Pages and a call beside bulk and background downloads of the same device: with the download rate known or unknown to giveway, without giveway (`plain`), with CAKE at the ingress, and alone",
        seconds: 20,
        warmup_s: 10,
        parameters: &[
            Parameter::range("requests", 10, 1, 1_000, "of each size"),
            Parameter::list("sizes_kb", "100,1000", "bodies of the requests"),
        ],
        plan: &Table {
            variants: foreground_down::variants,
            columns: "completion_mean_s call_waits_p50_ms call_waits_p95_ms load_mbit load_percent_of_left",
            ..Table::ROW
        },
    },
    // And what is lost when giveway's queue comes in place of the kernel's.
    Scenario {
        name: "line-rate",
        about: "Throughput and processor time with each queue where the processor, and not the link, is what limits",
        seconds: 2,
        warmup_s: 1,
        parameters: &[],
        plan: &Table {
            variants: line_rate::variants,
            bounds: |_| Ok(line_rate::bounds()),
            columns: "mbit busy_percent busy_ns_per_kb comes_ms sent lost",
            ..Table::ROW
        },
    },
    // What giveway's queue costs traffic that wants nothing of it, where packets wait for a link, and where nothing ever waits.
    Scenario {
        name: "qdisc-cost",
        about: "Instructions that each queue adds to a plain UDP packet of 1,400 bytes: where packets wait (`paced`) and where none does (`unpaced`)",
        seconds: 1,
        warmup_s: 0,
        parameters: &[Parameter::range(
            "bursts",
            50,
            1,
            10_000,
            "of 64 packets, one each 10 ms",
        )],
        plan: &Table {
            variants: qdisc_cost::variants,
            bounds: |_| Ok(qdisc_cost::bounds()),
            columns: "instructions_per_packet path_instructions_per_packet noqueue_instructions_per_packet \
                  timer_interrupts_per_packet",
            ..Table::ROW
        },
    },
];

/// In a guest, which has every queue and congestion control, and whose clock counts instructions. One processor, as P0's phone.
fn on_uplink(
    parameters: &Parameters,
    name: impl Into<String>,
    shape: Shape,
    load: Option<Load>,
    probe: impl Probe + 'static,
) -> Variant {
    let testbed = Testbed {
        topology: Topology::Uplink(shape),
        loads: load.into_iter().collect(),
        warmup_s: parameters.seconds("warmup_s"),
        probes: vec![Box::new(probe)],
    };
    testbed.variant(name, Some(Guest::VIRTUAL))
}
