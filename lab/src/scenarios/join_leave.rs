// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P1, experiments 1 and 2: senders join one by one, or leave one by one (figures 16 to 21); and how
//! soon after a start, a stop or a death every other sender has the right cap.

mod converge;
mod convergence;

use anyhow::Result;

use crate::access_point::{ARF_LOSSY, AccessPoint, Cap, FIXED54, media};
use crate::cell::Cell;
use crate::experiment::Run;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Quantity, Relation, Scenario, Trace, Variant};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::{Protocol, Span};
use crate::usage::usage;
use converge::{Change, Right};

pub const SCENARIO: Scenario = Scenario {
    name: "join-leave",
    about: "senders join or leave; how soon the others' caps are right (P1, 4.1)",
    stations: Some(8),
    seconds: 240,
    warmup_s: 0,
    parameters: &[Parameter::range(
        "events",
        40,
        1,
        10_000,
        "starts, stops and deaths to measure",
    )],
    plan,
};

/// Three of the paper's eight senders change, one at each quarter of the time.
const CHANGES: usize = 3;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let stations = parameters.count("stations") as usize;
    if stations < 3 {
        return Err(usage(
            "`stations`: join-leave needs at least 3, so that someone can join".into(),
        ));
    }
    let media = media(parameters, &[ARF_LOSSY, FIXED54]);
    let rtt_ms = parameters.count("rtt_ms");
    let cap = Cap::Formula { rtt_ms };
    let found = Cap::Found("balanced");
    let access_point = |medium, giveway| AccessPoint::new(parameters, medium, giveway);
    let mut variants = Vec::new();
    let mut plots = Vec::new();
    for &medium in &media {
        for (kind, joins) in [("join", true), ("leave", false)] {
            let mut names = Vec::new();
            for (what, giveway) in [("plain", None), ("fixed-cap", Some(cap)), ("balanced", Some(found))] {
                let name = format!("{kind}/{what}/{medium}");
                let transfers = changing(parameters, stations, joins);
                variants.push(transfers.on(access_point(medium, giveway), name.clone()));
                names.push(name);
            }
            plots.extend([
                Plot::timeline(Trace::Goodput, &names),
                Plot::timeline(Trace::Cwnd, &names),
                Plot::timeline(Trace::Cap, &names[1..]),
            ]);
            plots.push(Plot::Stations {
                file: format!("goodput-{kind}-{medium}"),
                title: format!("Senders {kind}, {medium}: goodput of each while it sends"),
                variants: names,
            });
        }
    }
    let events = parameters.count("events");
    let start_stop = Change::StartStop { events, settle_s: 3.5 };
    let death = Change::Death { events, settle_s: 7.0 };
    for (name, change, cap, right) in [
        ("converge", start_stop, cap, Right::Formula { rtt_ms }),
        ("converge/death", death, cap, Right::Formula { rtt_ms }),
        ("found/converge", start_stop, found, Right::Settled),
        ("found/converge/death", death, found, Right::Settled),
    ] {
        let estimated_s = change.estimated_s(stations, right);
        let observe = move |cell: &mut Cell, run: &Run| converge::observe(cell, right, change, run);
        variants.push(Variant::on(
            access_point(media[0], Some(cap)),
            name,
            estimated_s,
            observe,
        ));
    }
    for (file, title, under) in [
        ("converge", "Time until every sender's cap is right", "converge"),
        (
            "converge-found",
            "Time until every sender's found cap has settled",
            "found/converge",
        ),
    ] {
        plots.push(Plot::distribution(
            file,
            title,
            ("time, s", "events that are over, %"),
            ["start", "stop", "death"].map(|kind| format!("{under}/{kind}")),
        ));
    }
    Ok(Plan {
        checks: checks(&variants, media[0]),
        variants,
        plots,
        columns: "goodput_mbit jain retransmits converge_p50_s converge_p95_s off_p50_percent off_p95_percent false_expiries",
    })
}

/// All but three send throughout; the others join at, or have left by, each quarter of the time.
fn changing(parameters: &Parameters, stations: usize, joins: bool) -> Transfers {
    let total_s = (parameters.count("warmup_s") + parameters.count("seconds")) as f64;
    let changing = CHANGES.min(stations - 2);
    let span = |station: usize| {
        let change = (station + changing).checked_sub(stations);
        let at_s = change.map(|index| {
            let quarter = if joins { index + 1 } else { CHANGES - index };
            total_s * quarter as f64 / (CHANGES + 1) as f64
        });
        let (from_s, to_s) = match at_s {
            Some(at_s) if joins => (at_s, total_s),
            Some(at_s) => (0.0, at_s),
            None => (0.0, total_s),
        };
        Span {
            station,
            from_s,
            to_s,
            ..Span::default()
        }
    };
    Transfers {
        senders: (0..stations).map(span).collect(),
        per_station: true,
        record: true,
        ..Transfers::steady(parameters, Protocol::Tcp, stations)
    }
}

fn checks(variants: &[Variant], converge_medium: &str) -> Vec<Check> {
    let mut checks = Vec::new();
    if converge_medium == ARF_LOSSY {
        for under in ["converge", "found/converge"] {
            for kind in ["start", "stop", "death"] {
                let point = format!("{under}/{kind}");
                let holds = Relation::AtMost(converge::limit_s(kind));
                checks.push(Check::metric(&point, "converge_p95_s", holds));
                checks.push(Check::metric(&point, "events", Relation::AtLeast(40.0)));
            }
        }
    }
    let medium = |variant: &Variant| Some(variant.access_point.filter(|place| place.giveway.is_some())?.medium);
    for variant in variants.iter().filter(|variant| medium(variant).is_some()) {
        let holds = Relation::Below(1.0);
        checks.push(Check::metric(&variant.name, "report_airtime_percent", holds));
    }
    // `converge/death` too: it counts only those that were alive. (In the trial of a capacity that is found the full queue drops
    // reports, and members expire for seconds.)
    let is_fixed = |variant: &&Variant| {
        let cap = variant.access_point.and_then(|place| place.giveway);
        matches!(cap, Some(Cap::Formula { .. }))
    };
    let lossy = variants
        .iter()
        .filter(is_fixed)
        .filter(|variant| medium(variant) == Some(ARF_LOSSY));
    let variants: Vec<_> = lossy.map(|variant| variant.name.clone()).collect();
    if !variants.is_empty() {
        checks.push(Check::of(
            "false expiries per hour".into(),
            Quantity::Pooled {
                variants,
                metric: "false_expiries",
                over: "observed_h",
            },
            Relation::Below(1.0),
        ));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(joins: bool) -> Vec<(f64, f64)> {
        let parameters = Parameters::new(&SCENARIO.all_parameters(), &[]).expect("defaults");
        let senders = changing(&parameters, 8, joins).senders;
        senders.iter().map(|span| (span.from_s, span.to_s)).collect()
    }

    #[test]
    fn five_send_throughout_and_three_join_a_minute_apart() {
        let spans = spans(true);
        assert!(spans[..5].iter().all(|span| *span == (0.0, 240.0)));
        assert_eq!(spans[5..], [(60.0, 240.0), (120.0, 240.0), (180.0, 240.0)]);
    }

    #[test]
    fn three_leave_a_minute_apart() {
        let spans = spans(false);
        assert!(spans[..5].iter().all(|span| *span == (0.0, 240.0)));
        assert_eq!(spans[5..], [(0.0, 180.0), (0.0, 120.0), (0.0, 60.0)]);
    }
}
