// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Senders that join one by one, or leave one by one; and how soon after a start, a stop or a death every other sender
//! has the right cap.

mod converge;
mod convergence;

use anyhow::Result;

use super::{BALANCED, Besides, Case, Conditions, PLAIN};
use crate::access_point::{ARF_LOSSY, Cap};
use crate::parameters::Parameters;
use crate::scenario::{Check, Plot, Quantity, Relation, Trace, Variant};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::Span;
use crate::usage::usage;
use converge::{Change, Right};

/// Three of the paper's eight senders change, one at each quarter of the time.
const CHANGES: usize = 3;

pub fn stations(parameters: &Parameters) -> Result<Vec<usize>> {
    match parameters.count("stations") {
        ..3 => Err(usage(
            "`stations`: join-leave needs at least 3, so that someone can join".into(),
        )),
        stations => Ok(vec![stations as usize]),
    }
}

pub fn changing(conditions: &Conditions) -> Vec<Case> {
    let total_s = conditions.seconds("warmup_s") + conditions.seconds("seconds");
    let mut cases = Vec::new();
    for (kind, joins) in [("join", true), ("leave", false)] {
        let fixed = Some(Cap::Formula {
            rtt_ms: conditions.rtt_ms,
        });
        for (what, giveway) in [PLAIN, ("fixed-cap", fixed), BALANCED] {
            let case = conditions.case((&format!("{kind}/{what}"), giveway));
            cases.push(case.transfers(|transfers| Transfers {
                senders: spans(total_s, conditions.stations, joins),
                record: true,
                ..transfers
            }));
        }
    }
    cases
}

/// On the first medium; and the bounds of all.
pub fn converging(all: &[Conditions], changing: &[Variant]) -> Besides {
    let conditions = &all[0];
    let events = conditions.parameters.count("events");
    let start_stop = Change::StartStop { events, settle_s: 3.5 };
    let death = Change::Death { events, settle_s: 7.0 };
    let rtt_ms = conditions.rtt_ms;
    let fixed = Cap::Formula { rtt_ms };
    let found = Cap::Estimated("balanced");
    let mut cases = Vec::new();
    for (name, change, cap, right) in [
        ("converge", start_stop, fixed, Right::Formula { rtt_ms }),
        ("converge/death", death, fixed, Right::Formula { rtt_ms }),
        ("estimated/converge", start_stop, found, Right::Settled),
        ("estimated/converge/death", death, found, Right::Settled),
    ] {
        let case = Case {
            name: name.into(),
            ..conditions.case((name, Some(cap)))
        };
        let estimated_s = change.estimated_s(conditions.stations, right);
        cases.push(case.act(estimated_s, move |cell, run| {
            converge::observe(cell, right, change, run)
        }));
    }
    let converging: Vec<_> = cases.into_iter().map(Case::variant).collect();
    let all: Vec<_> = changing.iter().chain(&converging).collect();
    let checks = checks(&all, conditions.medium);
    (converging, checks)
}

pub fn plots(all: &[Conditions]) -> Vec<Plot> {
    let mut plots = Vec::new();
    for conditions in all {
        for kind in ["join", "leave"] {
            let names = ["plain", "fixed-cap", "balanced"].map(|what| conditions.name(&format!("{kind}/{what}")));
            plots.extend([
                Plot::timeline(Trace::Goodput, &names),
                Plot::timeline(Trace::Cwnd, &names),
                Plot::timeline(Trace::Cap, &names[1..]),
                Plot::Stations {
                    file: format!("goodput-{kind}-{}", conditions.medium),
                    title: format!("Senders {kind}, {}: goodput of each while it sends", conditions.medium),
                    variants: names.into(),
                },
            ]);
        }
    }
    for (file, title, under) in [
        ("converge", "Time until every sender's cap is right", "converge"),
        (
            "converge-estimated",
            "Time until every sender's estimated cap has settled",
            "estimated/converge",
        ),
    ] {
        plots.push(Plot::distribution(
            file,
            title,
            ("time, s", "events that are over, %"),
            ["start", "stop", "death"].map(|kind| format!("{under}/{kind}")),
        ));
    }
    plots
}

/// All but three send throughout; the others join at, or have left by, each quarter of the time.
fn spans(total_s: f64, stations: usize, joins: bool) -> Vec<Span> {
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
    (0..stations).map(span).collect()
}

fn checks(variants: &[&Variant], converge_medium: &str) -> Vec<Check> {
    let mut checks = Vec::new();
    if converge_medium == ARF_LOSSY {
        for under in ["converge", "estimated/converge"] {
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
    // `converge/death` too: it counts only the living. (In the baseline measurement of an estimated capacity the full
    // queue drops reports, and members expire for seconds.)
    let is_fixed = |variant: &&&Variant| {
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
    fn spans(joins: bool) -> Vec<(f64, f64)> {
        let senders = super::spans(240.0, 8, joins);
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
