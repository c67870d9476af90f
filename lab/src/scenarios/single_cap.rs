// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P1, figure 6: one station alone, its cap held at one value after another.

use anyhow::Result;

use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::{
    AccessPoint, Cap, Check, FIXED54, OnAir, Plan, Plot, Protocol, Relation, Scenario, Transfer, Variant, medium,
};

pub const SCENARIO: Scenario = Scenario {
    name: "single-cap",
    about: "one station's goodput over its cap (P1, figure 6)",
    stations: Some(1),
    seconds: 60,
    warmup_s: 20,
    parameters: &[Parameter {
        name: "caps",
        kind: Kind::List {
            default: "10,20,30,40,60,80,120,200,300",
        },
        about: "segments, one variant each",
    }],
    plan,
};

fn plan(parameters: &Parameters) -> Result<Plan> {
    let stations = parameters.count("stations") as usize;
    let variant = |name: String, giveway| {
        let access_point = AccessPoint {
            medium: parameters.choice("medium").map_or(FIXED54, medium),
            rtt_ms: parameters.count("rtt_ms"),
            stations,
            giveway,
        };
        let transfer = Transfer::steady(parameters, Protocol::Tcp, stations);
        Variant::on_air(name, access_point, OnAir::Transfer(transfer))
    };
    let caps = parameters.counts("caps")?;
    let capped = caps
        .iter()
        .map(|cap| variant(format!("cap/{cap}"), Some(Cap::Segments(*cap))));
    let cap_is = |cap: &u64| {
        let point = format!("cap/{cap}");
        Check::metric(&point, "cap_segments", Relation::Exactly(*cap as f64)).always()
    };
    Ok(Plan {
        variants: capped.chain([variant("plain".into(), None)]).collect(),
        checks: caps.iter().map(cap_is).collect(),
        plots: vec![Plot::Sweep {
            file: "goodput-over-cap",
            title: "Goodput of one station over its cap",
            x: "cap, segments",
            y: ("goodput_mbit", "total goodput, Mbit/s"),
            lines: vec![("capped", "cap")],
            levels: vec![("plain CUBIC", "plain")],
        }],
        columns: &[
            "goodput_mbit",
            "retransmits",
            "rtt_p50_ms",
            "rtt_p99_ms",
            "cap_segments",
        ],
    })
}
