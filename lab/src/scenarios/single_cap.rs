// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P1, figure 6: one station alone, its cap held at one value after another.

use anyhow::Result;

use crate::access_point::{AccessPoint, Cap, FIXED54, media};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::Protocol;

pub const SCENARIO: Scenario = Scenario {
    name: "single-cap",
    about: "one station's goodput over its cap (P1, figure 6)",
    stations: Some(1),
    seconds: 60,
    warmup_s: 20,
    parameters: &[Parameter::list(
        "caps",
        "10,20,30,40,60,80,120,200,300",
        "segments, one variant each",
    )],
    plan,
};

fn plan(parameters: &Parameters) -> Result<Plan> {
    let stations = parameters.count("stations") as usize;
    let variant = |name: String, giveway| {
        let access_point = AccessPoint::new(parameters, media(parameters, &[FIXED54])[0], giveway);
        Transfers::steady(parameters, Protocol::Tcp, stations).on(access_point, name)
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
            lines: vec![("capped", "cap".into())],
            levels: vec![("plain CUBIC", "plain")],
        }],
        columns: "goodput_mbit retransmits rtt_p50_ms rtt_p99_ms cap_segments",
    })
}
