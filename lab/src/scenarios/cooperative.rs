// SPDX-License-Identifier: Apache-2.0 OR MIT
//! N stations on four radios: plain TCP, BBR, the paper's fixed cap (P1, figures 7 to 10), a capacity that nobody
//! configured, and the best equal cap that there is. On `fixed54` the fixed cap costs goodput and buys fairness; on
//! `arf-lossy` it gains. All are always shown, unless some are chosen.

use anyhow::Result;

use crate::access_point::{ARF, ARF_CLASSIC, ARF_LOSSY, AccessPoint, Cap, FIXED54, MEDIA, media, name_on, paper_cap};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Allowance, Check, Plan, Plot, Quantity, Relation, Scenario, Trace};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::Protocol;
use crate::usage::usage;

pub const SCENARIO: Scenario = Scenario {
    name: "cooperative",
    about: "N stations: plain, BBR, the paper's fixed cap (P1, figures 7 to 10), a capacity that is found, the best equal cap",
    stations: None,
    seconds: 40,
    warmup_s: 15,
    parameters: &[
        Parameter::list("stations", "2,3,5,8,12", "on the access point, one cell each"),
        Parameter::range("rtt_ms", RTT_MS, 2, 2_000, "round trip behind the access point"),
        Parameter::choice("medium", MEDIA, "instead of the scenario's own"),
        Parameter::range("repeats", 3, 1, 100, "rounds; a metric is the mean over them"),
    ],
    plan,
};

const RTT_MS: u64 = 256;
const MOST_STATIONS: u64 = 16;
/// The senders for which P1's table 2 gives a cap.
const TABLE_2: [usize; 4] = [5, 6, 7, 8];
/// A cap does not depend on how long it is watched: these runs are short.
const CAPS_WARMUP_S: f64 = 6.0;
const CAPS_SECONDS: f64 = 4.0;

/// At 256 ms: the equal cap, in segments, that moves most at a median RTT of at most 1.25 of the minimum. Searched in model time
/// (`giveway-lab run shares`, variants `.../oracle`), with seeds of its own; a test searches one of them again.
const ORACLE: [(&str, [(usize, u64); 5]); 4] = [
    (FIXED54, [(2, 228), (3, 151), (5, 108), (8, 66), (12, 44)]),
    (ARF, [(2, 223), (3, 151), (5, 106), (8, 54), (12, 42)]),
    (ARF_LOSSY, [(2, 223), (3, 165), (5, 97), (8, 52), (12, 37)]),
    (ARF_CLASSIC, [(2, 254), (3, 125), (5, 73), (8, 46), (12, 30)]),
];

pub(super) fn oracle(medium: &str, stations: usize, rtt_ms: u64) -> Option<Cap> {
    let (_, caps) = ORACLE.iter().find(|(of, _)| *of == medium && rtt_ms == RTT_MS)?;
    let (_, segments) = caps.iter().find(|(of, _)| *of == stations)?;
    Some(Cap::Segments(*segments))
}

/// What limits the stations of a cell.
#[derive(Clone, Copy)]
enum Policy {
    None { congestion: &'static str },
    Daemon(Cap),
}

fn policies(medium: &str, stations: usize, rtt_ms: u64) -> Vec<(&'static str, Policy)> {
    let found = |prefer| Policy::Daemon(Cap::Found(prefer));
    let mut policies = vec![
        ("plain", Policy::None { congestion: "cubic" }),
        ("bbr", Policy::None { congestion: "bbr" }),
        ("fixed-cap", Policy::Daemon(Cap::Formula { rtt_ms })),
        ("balanced", found("balanced")),
        ("delay", found("delay")),
        ("throughput", found("throughput")),
    ];
    let oracle = oracle(medium, stations, rtt_ms);
    policies.extend(oracle.map(|cap| ("oracle", Policy::Daemon(cap))));
    policies
}

fn plan(parameters: &Parameters) -> Result<Plan> {
    let media = media(parameters, &[FIXED54, ARF, ARF_LOSSY, ARF_CLASSIC]);
    let rtt_ms = parameters.count("rtt_ms");
    let cells = cells(parameters)?;
    let mut variants = Vec::new();
    let mut checks = Vec::new();
    let mut drawn = Vec::new();
    for senders in TABLE_2
        .into_iter()
        .filter(|senders| cells.iter().any(|cell| cell >= senders))
    {
        let point = format!("caps/{senders}");
        let cap = Some(Cap::Formula { rtt_ms });
        let transfer = Transfers::of(Protocol::Tcp, senders, CAPS_WARMUP_S, CAPS_SECONDS);
        variants.push(transfer.on(AccessPoint::of(parameters, media[0], senders, cap), point.clone()));
        checks.push(cap_is(&point, rtt_ms, senders));
    }
    for &medium in &media {
        for &stations in &cells {
            // `plain/fixed54/8`, without what the user chose.
            let name = |what: &str| match name_on(parameters, what, medium) {
                name if cells.len() > 1 => format!("{name}/{stations}"),
                name => name,
            };
            for (what, policy) in policies(medium, stations, rtt_ms) {
                let (congestion, cap) = match policy {
                    Policy::None { congestion } => (Some(congestion), None),
                    Policy::Daemon(cap) => (None, Some(cap)),
                };
                let mut transfer = Transfers::steady(parameters, Protocol::Tcp, stations);
                transfer.per_station = true;
                transfer
                    .senders
                    .iter_mut()
                    .for_each(|span| span.congestion = congestion);
                let place = AccessPoint::of(parameters, medium, stations, cap);
                variants.push(transfer.on(place, name(what)));
            }
            drawn.extend(["plain", "fixed-cap", "balanced"].map(name));
            checks.extend(bounds(name, medium, stations, rtt_ms));
        }
    }
    Ok(Plan {
        plots: vec![
            Plot::Stations {
                file: "goodput-stations".into(),
                title: "Goodput of each station".into(),
                variants: drawn.clone(),
            },
            Plot::timeline(Trace::Cwnd, &drawn),
            Plot::timeline(Trace::Goodput, &drawn),
        ],
        variants,
        checks,
        columns: "goodput_mbit spread:goodput_mbit jain retransmits rtt_p50_ms rtt_p99_ms",
    })
}

fn cells(parameters: &Parameters) -> Result<Vec<usize>> {
    let cells = parameters.counts("stations")?;
    match cells.iter().find(|stations| !(1..=MOST_STATIONS).contains(stations)) {
        Some(wrong) => Err(usage(format!("`stations`: {wrong} is not from 1 to {MOST_STATIONS}"))),
        None if cells.is_empty() => Err(usage("`stations`: none is given".into())),
        None => Ok(cells.into_iter().map(|stations| stations as usize).collect()),
    }
}

/// Holds at any length, on any medium.
fn cap_is(variant: &str, rtt_ms: u64, senders: usize) -> Check {
    let holds = Relation::Exactly(paper_cap(rtt_ms, senders as u64) as f64);
    Check::metric(variant, "cap_segments", holds).always()
}

/// Of one cell.
fn bounds(name: impl Fn(&str) -> String, medium: &str, stations: usize, rtt_ms: u64) -> Vec<Check> {
    let [plain, fixed, balanced, throughput, best] =
        ["plain", "fixed-cap", "balanced", "throughput", "oracle"].map(name);
    let over = |ours: &str, theirs: &str, metric, holds| {
        Check::ratio(format!("{ours} over {theirs}, {metric}"), ours, theirs, metric, holds)
    };
    let mut checks = vec![
        cap_is(&fixed, rtt_ms, stations),
        Check::metric(&balanced, "jain", Relation::AtLeast(0.99)),
        few_retransmits(&balanced, &plain),
    ];
    if oracle(medium, stations, rtt_ms).is_some() {
        // Where the best equal cap reaches plain TCP, this is as much of that as well.
        checks.push(over(&balanced, &best, "goodput_mbit", Relation::AtLeast(0.97)));
        checks.push(over(&balanced, &best, "goodput_mbit", Relation::AtLeast(0.99)).goal());
    }
    for other in [&plain, &fixed] {
        checks.push(over(&throughput, other, "goodput_mbit", Relation::AtLeast(0.97)));
    }
    for metric in ["rtt_p50_ms", "retransmits"] {
        checks.push(over(&throughput, &plain, metric, Relation::AtMost(1.0)));
    }
    checks.extend(of_the_paper(medium, stations, &plain, &fixed));
    checks
}

/// A tenth of plain TCP's, or 0.02% of the segments.
fn few_retransmits(ours: &str, plain: &str) -> Check {
    let allowance = |part, of: &str, metric| Allowance {
        part,
        of: of.into(),
        metric,
    };
    let of = Quantity::OfAllowed {
        variant: ours.into(),
        metric: "retransmits",
        most: vec![
            allowance(0.1, plain, "retransmits"),
            allowance(0.0002, ours, "segments"),
        ],
    };
    Check::of(
        format!("{ours} retransmits of those allowed"),
        of,
        Relation::AtMost(1.0),
    )
}

/// The cap of P1 with its own numbers, at its eight stations.
fn of_the_paper(medium: &str, stations: usize, plain: &str, fixed: &str) -> Vec<Check> {
    let of_fixed = |metric, holds| Check::metric(fixed, metric, holds);
    let gain = |holds| Check::ratio(format!("{fixed} over {plain}"), fixed, plain, "goodput_mbit", holds);
    match medium {
        FIXED54 if stations == 8 => vec![
            of_fixed("jain", Relation::AtLeast(0.999)),
            of_fixed("retransmits", Relation::AtMost(5.0)),
            of_fixed("goodput_mbit", Relation::Between(14.8, 15.6)),
            of_fixed("report_airtime_percent", Relation::Below(1.0)),
            // What the paper's fixed cap cannot do here: it leaves a quarter of this air unused.
            gain(Relation::AtLeast(1.0)).goal(),
        ],
        ARF_LOSSY if stations == 8 => vec![gain(Relation::AtLeast(1.2))],
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_time::experiment::Air;
    use crate::model_time::oracle::best_equal_cap;

    #[test]
    fn the_oracle_is_what_a_search_finds() {
        let found = best_equal_cap(Air::Fixed54, 2, RTT_MS)
            .expect("searched")
            .map(u64::from);
        let (_, caps) = ORACLE[0];
        assert_eq!(found, Some(caps[0].1));
    }
}
