// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P1, figure 4: what N stations that know nothing of each other get through one access point.

use anyhow::Result;

use crate::parameters::Parameters;
use crate::scenario::{
    AccessPoint, Check, FIXED54, OnAir, Plan, Plot, Protocol, Relation, Scenario, Transfer, Variant, medium,
};

pub const SCENARIO: Scenario = Scenario {
    name: "contention",
    about: "goodput of N stations without giveway, UDP and TCP (P1, figure 4)",
    stations: Some(8),
    seconds: 60,
    warmup_s: 20,
    parameters: &[],
    plan,
};

fn plan(parameters: &Parameters) -> Result<Plan> {
    let medium = parameters.choice("medium").map_or(FIXED54, medium);
    let most = parameters.count("stations") as usize;
    let mut variants = Vec::new();
    for (name, protocol) in [("udp", Protocol::Udp), ("tcp", Protocol::Tcp)] {
        for senders in 2.min(most)..=most {
            let access_point = AccessPoint {
                medium,
                rtt_ms: parameters.count("rtt_ms"),
                stations: senders,
                giveway: None,
            };
            let transfer = OnAir::Transfer(Transfer::steady(parameters, protocol, senders));
            variants.push(Variant::on_air(format!("{name}/{senders}"), access_point, transfer));
        }
    }
    let goodput = |variant: &str, holds| Check::metric(variant, "goodput_mbit", holds);
    let checks = vec![
        goodput(
            "udp/2",
            Relation::Within {
                of: 25.0,
                tolerance: 0.8,
            },
        ),
        goodput(
            "tcp/2",
            Relation::Within {
                of: 18.9,
                tolerance: 0.8,
            },
        ),
        goodput("tcp/8", Relation::Between(20.0, 22.5)),
    ];
    Ok(Plan {
        variants,
        checks: if medium == FIXED54 { checks } else { Vec::new() },
        plots: vec![Plot::Sweep {
            file: "totals",
            title: "Total goodput over the number of stations",
            x: "stations",
            y: ("goodput_mbit", "total goodput, Mbit/s"),
            lines: vec![("UDP", "udp"), ("TCP (CUBIC)", "tcp")],
            levels: vec![],
        }],
        columns: &[
            "goodput_mbit",
            "jain",
            "retransmits",
            "rtt_p50_ms",
            "rtt_p99_ms",
            "collisions_percent",
        ],
    })
}
