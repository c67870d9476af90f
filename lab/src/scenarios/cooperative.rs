// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P1, figures 7 to 10: N stations, plain and with the paper's fixed cap; and with a capacity that nobody configured.
//! On `fixed54` the cap costs goodput and buys fairness; on `arf-lossy` it gains. Both are always
//! shown, unless one is chosen.

use anyhow::Result;

use crate::access_point::{ARF_LOSSY, AccessPoint, Cap, FIXED54, media, name_on, paper_cap};
use crate::parameters::Parameters;
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Trace};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::Protocol;

pub const SCENARIO: Scenario = Scenario {
    name: "cooperative",
    about: "N stations: plain, the paper's fixed cap (P1, figures 7 to 10), a capacity that is found",
    stations: Some(8),
    seconds: 60,
    warmup_s: 20,
    parameters: &[],
    plan,
};

/// The senders for which P1's table 2 gives a cap.
const TABLE_2: std::ops::RangeInclusive<usize> = 5..=8;
/// A cap does not depend on how long it is watched: these runs are short.
const CAPS_WARMUP_S: f64 = 6.0;
const CAPS_SECONDS: f64 = 4.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let media = media(parameters, &[FIXED54, ARF_LOSSY]);
    let name = |what: &str, medium: &str| name_on(parameters, what, medium);
    let stations = parameters.count("stations") as usize;
    let rtt_ms = parameters.count("rtt_ms");
    let cap = Cap::Formula { rtt_ms };
    let variant = |name: String, medium, giveway, transfers: Transfers| {
        transfers.on(AccessPoint::new(parameters, medium, giveway), name)
    };

    let mut variants = Vec::new();
    let mut checks = Vec::new();
    for senders in TABLE_2.filter(|senders| *senders <= stations) {
        let point = format!("caps/{senders}");
        let transfer = Transfers::of(Protocol::Tcp, senders, CAPS_WARMUP_S, CAPS_SECONDS);
        variants.push(variant(point.clone(), media[0], Some(cap), transfer));
        checks.push(cap_is(&point, rtt_ms, senders));
    }
    for &medium in &media {
        for (what, giveway) in [
            ("plain", None),
            ("fixed-cap", Some(cap)),
            ("found", Some(Cap::Found("balanced"))),
        ] {
            let steady = Transfers::steady(parameters, Protocol::Tcp, stations);
            let transfer = Transfers {
                per_station: true,
                ..steady
            };
            variants.push(variant(name(what, medium), medium, giveway, transfer));
        }
        checks.push(cap_is(&name("fixed-cap", medium), rtt_ms, stations));
        checks.extend(bounds(medium, &name("plain", medium), &name("fixed-cap", medium)));
        checks.extend(of_found(
            &name("found", medium),
            &name("plain", medium),
            &name("fixed-cap", medium),
        ));
    }
    let measured = variants.iter().map(|variant| variant.name.clone());
    let measured: Vec<_> = measured.filter(|name| !name.starts_with("caps/")).collect();
    Ok(Plan {
        plots: vec![
            Plot::Stations {
                file: "goodput-stations".into(),
                title: "Goodput of each station".into(),
                variants: measured.clone(),
            },
            Plot::timeline(Trace::Cwnd, &measured),
            Plot::timeline(Trace::Goodput, &measured),
        ],
        variants,
        checks,
        columns: "goodput_mbit jain retransmits rtt_p50_ms rtt_p99_ms cap_segments",
    })
}

/// Holds at any length, on any medium.
fn cap_is(variant: &str, rtt_ms: u64, senders: usize) -> Check {
    let holds = Relation::Exactly(paper_cap(rtt_ms, senders as u64) as f64);
    Check::metric(variant, "cap_segments", holds).always()
}

/// A capacity that nobody configured moves more than the fixed one, and loses less than plain TCP.
fn of_found(found: &str, plain: &str, fixed: &str) -> Vec<Check> {
    let over_fixed = Check::ratio(
        format!("{found} over {fixed}"),
        found,
        fixed,
        "goodput_mbit",
        Relation::AtLeast(1.0),
    );
    let lost = Check::ratio(
        format!("retransmits of {found} over {plain}"),
        found,
        plain,
        "retransmits",
        Relation::AtMost(0.1),
    );
    vec![
        over_fixed,
        lost,
        Check::metric(found, "jain", Relation::AtLeast(0.99)).goal(),
    ]
}

fn bounds(medium: &str, plain: &str, fixed: &str) -> Vec<Check> {
    let of_fixed = |metric, holds| Check::metric(fixed, metric, holds);
    let gain = |holds| Check::ratio(format!("{fixed} over {plain}"), fixed, plain, "goodput_mbit", holds);
    match medium {
        FIXED54 => vec![
            of_fixed("jain", Relation::AtLeast(0.999)),
            of_fixed("retransmits", Relation::AtMost(5.0)),
            of_fixed("goodput_mbit", Relation::Between(14.8, 15.6)),
            of_fixed("report_airtime_percent", Relation::Below(1.0)),
            // What the paper's fixed cap cannot do here: it leaves a quarter of this air unused.
            gain(Relation::AtLeast(1.0)).goal(),
        ],
        ARF_LOSSY => vec![gain(Relation::AtLeast(1.2))],
        _ => vec![],
    }
}
