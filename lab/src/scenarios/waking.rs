// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows: how late a program wakes up, and how late it has what a rule gives it.

mod from_exec;
mod rules_cost;
mod starts;
mod wakeup;

use super::table::Table;
use crate::parameters::Parameter;
use crate::scenario::{Plot, Scenario};

pub const ROWS: &[Scenario] = &[
    // P4: a timer of 30 ms while processes compute and ICMP floods in; with priority that giveway gives by a rule, and without.
    // The paper's worst: 12.0 ms as shipped, 10.2 on a preemptible kernel, 3.1 with priority.
    Scenario {
        name: "wakeup",
        about: "How late timers of 30 ms wake up while every processor computes and pings flood the machine: under SCHED_OTHER (`normal`), with priority by a rule (`rule`), and cyclictest at FIFO 99 (`reference`; P4: 12.0, 10.2 and 3.1 ms at worst)",
        seconds: 60,
        warmup_s: 0,
        parameters: &[
            Parameter::range(
                "repeats",
                5,
                1,
                100,
                "rounds; percentiles are of the wake-ups of all of them",
            ),
            Parameter::choice("causes", &["named"], "of the worst wake-ups, in the raw results"),
        ],
        plan: &Table {
            variants: wakeup::variants,
            bounds: |_| Ok(wakeup::bounds()),
            plots: wakeup::figures,
            columns: "wakeups wakeup_p50_us wakeup_p99_us wakeup_p999_us wakeup_max_us steal_ms",
        },
    },
    // P4 watches for chosen applications to start: here so many start at once that nothing could poll for them.
    Scenario {
        name: "starts",
        about: "500 programs start each second, and a rule gives some of them real-time priority: how long from exec to priority",
        seconds: 48,
        warmup_s: 0,
        parameters: &[],
        plan: &Table {
            variants: starts::variants,
            plots: |names| {
                let axes = ("time, ms", "processes that have it, %");
                vec![Plot::distribution("priority", "From exec to priority", axes, names)]
            },
            columns: "starts_per_s priority_p50_ms priority_p99_ms priority_max_ms missed cpu_percent",
            ..Table::ROW
        },
    },
    // Of several kinds, of which only the last one means anything that runs.
    Scenario {
        name: "rules-cost",
        about: "Ten thousand short processes a minute under 200 rules: connections whose class is missed, and processor time beside a daemon without rules",
        seconds: 60,
        warmup_s: 0,
        parameters: &[],
        plan: &Table {
            variants: rules_cost::variants,
            bounds: |_| Ok(rules_cost::bounds()),
            plots: |_| {
                let axes = ("time, ms", "connections that have it, %");
                vec![Plot::distribution("class", "From exec to class", axes, ["rules"])]
            },
            columns: "starts_per_s class_p50_ms class_p99_ms class_max_ms missed cpu_percent cpu_percent_bpf",
        },
    },
];
