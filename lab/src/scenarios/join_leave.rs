// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P1, experiments 1 and 2: senders join one by one, or leave one by one (figures 16 to 21); and how
//! soon after a start, a stop or a death every other sender has the right cap.

use anyhow::Result;

use crate::parameters::{Kind, Parameter, Parameters};
use crate::scenario::{
    ARF_LOSSY, AccessPoint, Cap, Check, Converge, FIXED54, OnAir, Plan, Plot, Protocol, Quantity, Relation, Scenario,
    Span, Trace, Transfer, Variant, medium,
};
use crate::usage::usage;

pub const SCENARIO: Scenario = Scenario {
    name: "join-leave",
    about: "senders join or leave; how soon the others' caps are right (P1, 4.1)",
    stations: Some(8),
    seconds: 240,
    warmup_s: 0,
    parameters: &[Parameter {
        name: "events",
        kind: Kind::Count {
            default: 40,
            least: 1,
            most: 10_000,
        },
        about: "starts, stops and deaths to measure",
    }],
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
    let media = match parameters.choice("medium") {
        Some(chosen) => vec![medium(chosen)],
        None => vec![ARF_LOSSY, FIXED54],
    };
    let cap = Cap::Formula {
        rtt_ms: parameters.count("rtt_ms"),
    };
    let variant = |name: String, medium, giveway, what| {
        let access_point = AccessPoint {
            medium,
            rtt_ms: parameters.count("rtt_ms"),
            stations,
            giveway,
        };
        Variant::on_air(name, access_point, what)
    };
    let mut variants = Vec::new();
    let mut plots = Vec::new();
    for &medium in &media {
        for (kind, joins) in [("join", true), ("leave", false)] {
            let mut names = Vec::new();
            for (what, giveway) in [("plain", None), ("fixed-cap", Some(cap))] {
                let name = format!("{kind}/{what}/{medium}");
                let transfer = OnAir::Transfer(changing(parameters, stations, joins));
                variants.push(variant(name.clone(), medium, giveway, transfer));
                names.push(name);
            }
            for of in [Trace::Goodput, Trace::Cwnd] {
                plots.push(Plot::Timeline {
                    of,
                    variants: names.clone(),
                });
            }
            plots.push(Plot::Timeline {
                of: Trace::Cap,
                variants: vec![names[1].clone()],
            });
            plots.push(Plot::Stations {
                file: format!("goodput-{kind}-{medium}"),
                title: format!("Senders {kind}, {medium}: goodput of each while it sends"),
                variants: names,
            });
        }
    }
    let events = parameters.count("events");
    let walk = Converge::StartStop { events, settle_s: 3.5 };
    let death = Converge::Death { events, settle_s: 7.0 };
    for (name, converge) in [("converge", walk), ("converge/death", death)] {
        variants.push(variant(name.into(), media[0], Some(cap), OnAir::Converge(converge)));
    }
    plots.push(Plot::Distribution {
        file: "converge".into(),
        title: "Time until every other sender's cap is right".into(),
        axes: ("time, s", "events that are over, %"),
        points: ["start", "stop", "death"].map(|kind| format!("converge/{kind}")).into(),
    });
    Ok(Plan {
        checks: checks(&variants, media[0]),
        variants,
        plots,
        columns: &[
            "goodput_mbit",
            "jain",
            "retransmits",
            "converge_p50_s",
            "converge_p95_s",
            "false_expiries",
        ],
    })
}

/// All but three send throughout; the others join at, or have left by, each quarter of the time.
fn changing(parameters: &Parameters, stations: usize, joins: bool) -> Transfer {
    let total_s = (parameters.count("warmup_s") + parameters.count("seconds")) as f64;
    let changing = CHANGES.min(stations - 2);
    let span = |station: usize| {
        let change = (station + changing).checked_sub(stations);
        let at_s = change.map(|index| {
            let quarter = if joins { index + 1 } else { CHANGES - index };
            total_s * quarter as f64 / (CHANGES + 1) as f64
        });
        match at_s {
            Some(at_s) if joins => Span {
                station,
                from_s: at_s,
                to_s: total_s,
            },
            Some(at_s) => Span {
                station,
                from_s: 0.0,
                to_s: at_s,
            },
            None => Span {
                station,
                from_s: 0.0,
                to_s: total_s,
            },
        }
    };
    Transfer {
        senders: (0..stations).map(span).collect(),
        per_station: true,
        record: true,
        ..Transfer::steady(parameters, Protocol::Tcp, stations)
    }
}

fn checks(variants: &[Variant], converge_medium: &str) -> Vec<Check> {
    let mut checks = Vec::new();
    if converge_medium == ARF_LOSSY {
        for (kind, limit_s) in [("start", 1.0), ("stop", 2.0), ("death", 5.0)] {
            let point = format!("converge/{kind}");
            checks.push(Check::metric(&point, "converge_p95_s", Relation::AtMost(limit_s)));
            checks.push(Check::metric(&point, "events", Relation::AtLeast(40.0)));
        }
    }
    let places = variants
        .iter()
        .filter_map(|variant| Some((variant, variant.access_point()?)));
    let daemons = || {
        places
            .clone()
            .filter(|(_, access_point)| access_point.giveway.is_some())
    };
    for (variant, _) in daemons() {
        let holds = Relation::Below(1.0);
        checks.push(Check::metric(&variant.name, "report_airtime_percent", holds));
    }
    // `converge/death` too: it counts only those that were alive.
    let lossy = daemons().filter(|(_, access_point)| access_point.medium == ARF_LOSSY);
    let variants: Vec<_> = lossy.map(|(variant, _)| variant.name.clone()).collect();
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
