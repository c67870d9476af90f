// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows: the papers' figures on stations that share a channel (P1, P2), and the cost of a cleared cap.

use anyhow::Result;

use super::oracle::{self, best_cap};
use super::{
    BALANCED, Case, Conditions, DELAY, MEDIUM, Media, PLAIN, SharedChannel, THROUGHPUT, app_mix, bars, clear,
    join_leave, rounds, rtt_ms, stations,
};
use crate::access_point::{
    ARF, ARF_CLASSIC, ARF_LOSSY, ARF_LOSSY_EDCA, AccessPoint, BackgroundPolicy, Cap, FIXED54, FIXED54_EDCA, Managed,
    paper_cap,
};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Allowance, Check, Plot, Quantity, Relation, Scenario, Trace};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::Protocol;
use crate::usage::usage;

const ON_IT: &str = "stations on the access point";

pub const ROWS: &[Scenario] = &[
    // P1, figure 4: the goodput of N independent stations through one access point.
    Scenario {
        name: "contention",
        about: "Goodput of two to eight stations that send all they can without giveway, by UDP and TCP (P1, figure 4)",
        seconds: 60,
        warmup_s: 20,
        parameters: &[stations(8, 1, 16, ON_IT), rtt_ms(256), MEDIUM],
        plan: &SharedChannel {
            media: Media::Usually(FIXED54),
            variants: |conditions| {
                let by = [("udp", Protocol::Udp), ("tcp", Protocol::Tcp)].into_iter();
                let case = |(name, protocol): (&str, _), senders: usize| {
                    conditions
                        .case((&format!("{name}/{senders}"), None))
                        .on(|place| place.stations = senders)
                        .transfers(|_| Transfers::steady(conditions.parameters, protocol, senders))
                };
                let numbers = 2.min(conditions.stations)..=conditions.stations;
                Ok(by
                    .flat_map(|by| numbers.clone().map(move |senders| case(by, senders)))
                    .collect())
            },
            bounds: |conditions| {
                let goodput = |variant, holds| Check::metric(variant, "goodput_mbit", holds);
                let within = |of| Relation::Within { of, tolerance: 0.8 };
                match conditions.medium {
                    FIXED54 => vec![
                        goodput("udp/2", within(25.0)),
                        goodput("tcp/2", within(18.9)),
                        goodput("tcp/8", Relation::Between(20.0, 22.5)),
                    ],
                    _ => Vec::new(),
                }
            },
            plots: |_, _| {
                let title = "Total goodput over the number of stations";
                let y = ("goodput_mbit", "total goodput, Mbit/s");
                let lines = [("UDP", "udp".into()), ("TCP (CUBIC)", "tcp".into())];
                vec![Plot::sweep("totals", title, "stations", y, lines)]
            },
            columns: "goodput_mbit jain retransmits rtt_p50_ms rtt_p99_ms collisions_percent",
            ..SharedChannel::ROW
        },
    },
    // P1, figure 6: one station alone, at one cap after another.
    Scenario {
        name: "single-cap",
        about: "Goodput of one station by its constant cap (P1, figure 6)",
        seconds: 60,
        warmup_s: 20,
        parameters: &[
            stations(1, 1, 16, ON_IT),
            rtt_ms(256),
            MEDIUM,
            Parameter::list("caps", "10,20,30,40,60,80,120,200,300", "segments, one variant each"),
        ],
        plan: &SharedChannel {
            media: Media::Usually(FIXED54),
            variants: |conditions| {
                let case = |policy: (&str, _)| {
                    conditions.case(policy).transfers(|transfers| Transfers {
                        per_station: false,
                        ..transfers
                    })
                };
                let caps = conditions.parameters.counts("caps")?.into_iter();
                let capped = |cap| case((&format!("cap/{cap}"), Some(Cap::Segments(cap)))).holds_cap(cap);
                Ok(caps.map(capped).chain([case(PLAIN)]).collect())
            },
            plots: |_, _| {
                vec![Plot::Sweep {
                    file: "goodput-over-cap".into(),
                    title: "Goodput of one station over its cap".into(),
                    x: "cap, segments",
                    y: ("goodput_mbit", "total goodput, Mbit/s"),
                    lines: vec![("capped", "cap".into())],
                    levels: vec![("plain CUBIC", "plain")],
                }]
            },
            columns: "goodput_mbit retransmits rtt_p50_ms rtt_p99_ms cap_segments",
            ..SharedChannel::ROW
        },
    },
    // On `fixed54` the fixed cap costs goodput and buys fairness; on `arf-lossy` it gains.
    Scenario {
        name: "cooperative",
        about: "Stations that upload at once over four emulated radios: plain TCP, BBR, the paper's fixed cap, three preferences of the estimated capacity, and the best equal cap that a search found (`oracle`; P1, figures 7 to 10)",
        seconds: 40,
        warmup_s: 15,
        parameters: &[
            Parameter::list("stations", "2,3,5,8,12", "on the access point, one cell each"),
            rtt_ms(oracle::RTT_MS),
            MEDIUM,
            rounds(3),
        ],
        plan: &SharedChannel {
            media: Media::Each(&[FIXED54, ARF, ARF_LOSSY, ARF_CLASSIC]),
            stations: cells,
            variants: |conditions| {
                let formula = Some(Cap::Formula {
                    rtt_ms: conditions.rtt_ms,
                });
                let without = |what, control| {
                    conditions
                        .case((what, None))
                        .each(move |span| span.congestion = Some(control))
                };
                let mut cases = caps(conditions)?;
                cases.extend([without("plain", "cubic"), without("bbr", "bbr")]);
                cases.extend(conditions.cases(&[("fixed-cap", formula), BALANCED, DELAY, THROUGHPUT]));
                cases.extend(best_cap(conditions).map(|cap| conditions.case(("oracle", Some(cap)))));
                Ok(cases)
            },
            bounds: of_cooperation,
            plots: |all, _| {
                let names = |conditions: &Conditions| conditions.names(["plain", "fixed-cap", "balanced"]);
                let drawn: Vec<_> = all.iter().flat_map(names).collect();
                bars(&[Trace::Cwnd, Trace::Goodput], &drawn)
            },
            columns: "goodput_mbit spread:goodput_mbit jain retransmits rtt_p50_ms rtt_p99_ms",
            ..SharedChannel::ROW
        },
    },
    // P1, experiments 1 and 2: senders join one by one, or leave one by one (figures 16 to 21); and how soon after a start, a
    // stop or a death every other sender has the right cap.
    Scenario {
        name: "join-leave",
        about: "Senders join and leave an access point one by one: what each gets, and how soon all caps fit the new number of senders (P1, experiments 1 and 2)",
        seconds: 240,
        warmup_s: 0,
        parameters: &[
            stations(8, 1, 16, ON_IT),
            rtt_ms(256),
            MEDIUM,
            Parameter::range("events", 40, 1, 10_000, "starts, stops and deaths to measure"),
        ],
        plan: &SharedChannel {
            media: Media::Named(&[ARF_LOSSY, FIXED54]),
            stations: join_leave::stations,
            variants: |conditions| Ok(join_leave::changing(conditions)),
            besides: join_leave::converging,
            plots: |all, _| join_leave::plots(all),
            columns: "goodput_mbit jain retransmits converge_p50_s converge_p95_s off_p50_percent off_p95_percent false_expiries",
            ..SharedChannel::ROW
        },
    },
    // P2, figure 5: what one station leaves to two stations without giveway on the same channel: their goodput beside
    // it, against alone. It sends nothing, at full rate, a live stream, or in the background.
    Scenario {
        name: "coexistence",
        about: "Two stations without giveway (`without`) keep sending beside a third with it (`with`): what they keep of what they get alone (`none`; P2, figure 5)",
        seconds: 30,
        warmup_s: 8,
        parameters: &[
            MEDIUM,
            stations(3, 3, 3, "two stations without giveway and one with it"),
            rtt_ms(80),
            rounds(5),
        ],
        plan: &SharedChannel {
            media: Media::Each(&[FIXED54_EDCA, ARF_LOSSY_EDCA]),
            variants: |conditions| Ok(coexistence(conditions)),
            bounds: theirs_against_alone,
            plots: |all, _| {
                let of = |conditions: &Conditions| {
                    let names = coexistence(conditions).into_iter().map(|case| case.name);
                    let names: Vec<_> = names.collect();
                    [
                        Plot::Stations {
                            file: conditions.name("goodput-stations").replace('/', "-"),
                            title: format!(
                                "{}: goodput of two stations without giveway (1, 2) and of one with it (3)",
                                conditions.medium
                            ),
                            variants: names.clone(),
                        },
                        Plot::timeline(Trace::Cwnd, &names),
                    ]
                };
                all.iter().flat_map(of).collect()
            },
            columns: "goodput_mbit rtt_p50_ms rtt_p99_ms retransmits cap_segments collisions_percent",
            ..SharedChannel::ROW
        },
    },
    // P2, section 6: each program alone, and the cost of the paper's two ways to prefer one kind for the other.
    Scenario {
        name: "app-mix",
        about: "A live stream and three file transfers, each on a device of its own, on one access point: without giveway (`plain`), with fixed caps, with the transfers in the background class (`giveway`) or only marked so (P2, section 6)",
        // P2's stream alone.
        seconds: 60,
        warmup_s: 0,
        parameters: &[
            MEDIUM,
            stations(4, 4, 4, "one streams, three transfer"),
            rtt_ms(80),
            rounds(3),
            Parameter::count("file_kb", 67_000, "of each transfer"),
        ],
        plan: &SharedChannel {
            media: Media::Each(&[FIXED54_EDCA, ARF_LOSSY_EDCA]),
            variants: |conditions| Ok(app_mix::variants(conditions)),
            bounds: app_mix::better_than_both_trades,
            plots: |_, names| vec![Plot::timeline(Trace::Cwnd, names)],
            columns: "completion_s stalls stalled_s late_kb delay_p99_ms cwnd_p50 cwnd_p95 cap_segments",
            ..SharedChannel::ROW
        },
    },
    // A connection whose cap is cleared at once (its daemon ends), beside one that never had a cap; and, as a control,
    // the same without any cap.
    Scenario {
        name: "clear",
        about: "A cap is cleared at once beside a connection that never had one: losses and goodput of both in the five seconds after it",
        seconds: 5,
        warmup_s: 20,
        parameters: &[
            stations(2, 1, 16, ON_IT),
            rtt_ms(256),
            MEDIUM,
            Parameter::range("clears", 10, 1, 1_000, "how often; each is held for 10 s first"),
        ],
        plan: &SharedChannel {
            media: Media::Named(&[FIXED54, ARF_LOSSY]),
            stations: |parameters| Ok(vec![parameters.count("stations").max(2) as usize]),
            variants: |conditions| {
                let holds = Relation::AtMost(clear::TOLERATED_EXCESS);
                Ok(vec![
                    clear::case(conditions, "cleared", Some(clear::CAP_SEGMENTS))
                        .check(|name| Check::metric(name, "retransmits_excess", holds).goal()),
                    clear::case(conditions, "control", None),
                ])
            },
            plots: |_, names| vec![Plot::timeline(Trace::Cwnd, names)],
            columns: "retransmits retransmits_p50 retransmits_max goodput_before_mbit goodput_mbit cwnd_segments",
            ..SharedChannel::ROW
        },
    },
];

fn cells(parameters: &Parameters) -> Result<Vec<usize>> {
    const MOST: u64 = 16;
    let cells = parameters.counts("stations")?;
    match cells.iter().find(|stations| !(1..=MOST).contains(stations)) {
        Some(wrong) => Err(usage(format!("`stations`: {wrong} is not from 1 to {MOST}"))),
        None if cells.is_empty() => Err(usage("`stations`: none is given".into())),
        None => Ok(cells.into_iter().map(|stations| stations as usize).collect()),
    }
}

/// Of the senders for which P1's table 2 has a cap: that it is this one. It does not depend on the length.
fn caps(conditions: &Conditions) -> Result<Vec<Case>> {
    const TABLE_2: [usize; 4] = [5, 6, 7, 8];
    const WARMUP_S: f64 = 6.0;
    const SECONDS: f64 = 4.0;
    let cells = cells(conditions.parameters)?;
    let is_asked = |senders: &usize| conditions.is_first && cells.iter().any(|cell| cell >= senders);
    let case = |senders: usize| {
        let case = Case {
            name: format!("caps/{senders}"),
            ..conditions.case((
                "",
                Some(Cap::Formula {
                    rtt_ms: conditions.rtt_ms,
                }),
            ))
        };
        case.on(|place| place.stations = senders)
            .transfers(|_| Transfers::of(Protocol::Tcp, senders, WARMUP_S, SECONDS))
            .holds_cap(paper_cap(conditions.rtt_ms, senders as u64))
    };
    Ok(TABLE_2.into_iter().filter(is_asked).map(case).collect())
}

fn of_cooperation(conditions: &Conditions) -> Vec<Check> {
    let [plain, fixed, balanced, throughput, best] =
        conditions.names(["plain", "fixed-cap", "balanced", "throughput", "oracle"]);
    let paper = Relation::Exactly(paper_cap(conditions.rtt_ms, conditions.stations as u64) as f64);
    let mut checks = vec![
        // Holds at any length, on any medium.
        Check::metric(&fixed, "cap_segments", paper).always(),
        Check::metric(&balanced, "jain", Relation::AtLeast(0.99)),
        few_retransmits(&balanced, &plain),
    ];
    if best_cap(conditions).is_some() {
        // Where the best equal cap reaches plain TCP, this is as much of that as well.
        checks.push(Check::over(&balanced, &best, "goodput_mbit", Relation::AtLeast(0.97)));
        checks.push(Check::over(&balanced, &best, "goodput_mbit", Relation::AtLeast(0.99)).goal());
    }
    for other in [&plain, &fixed] {
        checks.push(Check::over(&throughput, other, "goodput_mbit", Relation::AtLeast(0.97)));
    }
    for metric in ["rtt_p50_ms", "retransmits"] {
        checks.push(Check::over(&throughput, &plain, metric, Relation::AtMost(1.0)));
    }
    checks.extend(of_the_paper(conditions, &plain, &fixed));
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
fn of_the_paper(conditions: &Conditions, plain: &str, fixed: &str) -> Vec<Check> {
    let of_fixed = |metric, holds| Check::metric(fixed, metric, holds);
    let gain = |holds| Check::ratio(format!("{fixed} over {plain}"), fixed, plain, "goodput_mbit", holds);
    match (conditions.medium, conditions.stations) {
        (FIXED54, 8) => vec![
            of_fixed("jain", Relation::AtLeast(0.999)),
            of_fixed("retransmits", Relation::AtMost(5.0)),
            of_fixed("goodput_mbit", Relation::Between(14.8, 15.6)),
            of_fixed("report_airtime_percent", Relation::Below(1.0)),
            // Not possible for the paper's fixed cap here: it leaves a quarter of this channel unused.
            gain(Relation::AtLeast(1.0)).goal(),
        ],
        (ARF_LOSSY, 8) => vec![gain(Relation::AtLeast(1.2))],
        _ => vec![],
    }
}

/// The first stations.
const WITHOUT_GIVEWAY: usize = 2;

fn coexistence(conditions: &Conditions) -> Vec<Case> {
    /// P2's live stream and its cap.
    const STREAM_MBIT: Option<f64> = Some(2.5);
    const STREAM_CAP: u64 = 20;
    // The rate that our program offers; None: as much as it can.
    let ours = |what, giveway, mbit: Option<f64>| {
        conditions
            .case((what, giveway))
            .managed(Managed::AllButFirst(WITHOUT_GIVEWAY))
            .group("without", 0..WITHOUT_GIVEWAY)
            .group("with", WITHOUT_GIVEWAY..WITHOUT_GIVEWAY + 1)
            .each(move |span| span.mbit = mbit.filter(|_| span.station >= WITHOUT_GIVEWAY))
    };
    let silent = |transfers: Transfers| Transfers {
        senders: transfers.senders[..WITHOUT_GIVEWAY].to_vec(),
        ..transfers
    };
    // Traffic of the class background, by a rule.
    let background = |what, is_marked, is_slowed| {
        let background = BackgroundPolicy { is_marked, is_slowed };
        ours(what, None, None).on(|place: &mut AccessPoint| place.background = Some(background))
    };
    vec![
        ours("none", None, None).transfers(silent),
        ours("plain", None, None),
        ours("stream", None, STREAM_MBIT),
        ours("stream-capped-20", Some(Cap::Segments(STREAM_CAP)), STREAM_MBIT).holds_cap(STREAM_CAP),
        background("background/marked", true, false),
        background("background/slowed", false, true),
        background("background/both", true, true),
    ]
}

fn theirs_against_alone(conditions: &Conditions) -> Vec<Check> {
    /// What the stations without giveway keep beside a background that yields.
    const KEPT: f64 = 0.97;
    let alone = conditions.name("none") + "/without";
    let beside = |what: &str, metric, holds| {
        let theirs = conditions.name(what) + "/without";
        Check::ratio(format!("{theirs} {metric} / none"), &theirs, &alone, metric, holds)
    };
    let kept = beside("background/both", "goodput_mbit", Relation::AtLeast(KEPT));
    let is_fixed = conditions.medium == FIXED54_EDCA;
    let mut checks = vec![
        if is_fixed { kept } else { kept.goal() },
        beside("background/both", "rtt_p50_ms", Relation::AtMost(2.0 - KEPT)).goal(),
    ];
    if is_fixed {
        // The share beside each alone, and beside a plain station, by a slot model with an access point that
        // acknowledges: 92 and 71%.
        let (marked, plain) = (Relation::Between(0.88, 0.96), Relation::Between(0.65, 0.76));
        checks.push(beside("background/marked", "goodput_mbit", marked));
        checks.push(beside("plain", "goodput_mbit", plain));
    }
    checks
}
