// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P1, figure 4: what N stations that know nothing of each other get through one access point.

use anyhow::Result;

use crate::access_point::{AccessPoint, FIXED54, media};
use crate::parameters::Parameters;
use crate::scenario::{Check, Plan, Plot, Relation, Scenario};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::Protocol;

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
    let medium = media(parameters, &[FIXED54])[0];
    let most = parameters.count("stations") as usize;
    let mut variants = Vec::new();
    for (name, protocol) in [("udp", Protocol::Udp), ("tcp", Protocol::Tcp)] {
        for senders in 2.min(most)..=most {
            let access_point = AccessPoint {
                stations: senders,
                ..AccessPoint::new(parameters, medium, None)
            };
            let transfers = Transfers::steady(parameters, protocol, senders);
            variants.push(transfers.on(access_point, format!("{name}/{senders}")));
        }
    }
    let goodput = |variant: &str, holds| Check::metric(variant, "goodput_mbit", holds);
    let within = |of| Relation::Within { of, tolerance: 0.8 };
    let checks = vec![
        goodput("udp/2", within(25.0)),
        goodput("tcp/2", within(18.9)),
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
            lines: vec![("UDP", "udp".into()), ("TCP (CUBIC)", "tcp".into())],
            levels: vec![],
        }],
        columns: "goodput_mbit jain retransmits rtt_p50_ms rtt_p99_ms collisions_percent",
    })
}
