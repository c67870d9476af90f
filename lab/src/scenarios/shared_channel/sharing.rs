// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows: stations that estimate their shares, under difficult conditions.

use super::oracle::best_cap;
use super::{
    BALANCED, DELAY, MEDIUM, Media, PLAIN, SharedChannel, THROUGHPUT, bars, demand, rounds, rtt_ms, stations, step_rate,
};
use crate::access_point::{ARF, ARF_CLASSIC, ARF_LOSSY, Cap, FIXED54, Managed};
use crate::parameters::Parameter;
use crate::scenario::{Check, Plot, Quantity, Relation, Scenario, Trace};
use crate::testbed::Load;
use crate::traffic::liar::Lie;

/// What these have in common.
const SHARING: Scenario = Scenario {
    name: "",
    about: "",
    seconds: 40,
    warmup_s: 15,
    parameters: &[stations(8, 1, 16, "on the access point"), rtt_ms(256), rounds(3)],
    plan: &SharedChannel::ROW,
};

pub const ROWS: &[Scenario] = &[
    // P1, open point 1: each connection is to have the same bandwidth, which equal cwnds would not give it.
    Scenario {
        name: "rtt-mix",
        about: "Eight stations whose servers are 20, 60, 150 and 300 ms away, two each: whether all get the same",
        parameters: &[
            stations(8, 1, 16, "on the access point"),
            Parameter::range("rtt_ms", 20, 20, 20, "the shortest of them"),
            rounds(3),
        ],
        plan: &SharedChannel {
            policies: &[
                PLAIN,
                // The fixed cap's round trip for all: the mean.
                ("fixed-cap", Some(Cap::Formula { rtt_ms: 132 })),
                BALANCED,
                DELAY,
                THROUGHPUT,
            ],
            each: |_, case| case.on(|place| place.different_rtts_ms = &[20, 60, 150, 300]),
            bounds: |_| {
                vec![
                    Check::metric("balanced", "jain", Relation::AtLeast(0.99)),
                    Check::metric("delay", "jain", Relation::AtLeast(0.99)),
                    Check::over("balanced", "plain", "retransmits", Relation::AtMost(0.1)),
                    Check::over("balanced", "plain", "rtt_p50_ms", Relation::AtMost(1.0)),
                    Check::over("throughput", "plain", "goodput_mbit", Relation::AtLeast(0.97)),
                ]
            },
            columns: "goodput_mbit spread:goodput_mbit jain retransmits rtt_p50_ms rtt_p99_ms lateness_p99_us daemon_waited_percent",
            ..SharedChannel::ROW
        },
        ..SHARING
    },
    // P1, open point 2: how soon the others use what one leaves, and how soon it regains its share.
    Scenario {
        name: "demand",
        about: "One of eight stations sends all it can, then 0.5 Mbit/s, then all again: how soon the others use what it leaves, and it has its share again",
        warmup_s: 20,
        parameters: &[stations(8, 2, 16, "on the access point"), rtt_ms(256), rounds(3)],
        plan: &SharedChannel {
            policies: &[
                PLAIN,
                ("fixed-cap", Some(Cap::Formula { rtt_ms: 256 })),
                BALANCED,
                DELAY,
            ],
            each: demand::case,
            bounds: |conditions| {
                // Its limit is active again, and then three round trips.
                let has_s = 0.5 + 3.0 * conditions.rtt_ms as f64 / 1e3;
                vec![
                    Check::metric("balanced", "used_s", Relation::AtMost(1.0)),
                    Check::metric("balanced", "has_s", Relation::AtMost(has_s)),
                    // It has what it wants meanwhile.
                    Check::metric("balanced", "light_mbit", Relation::AtLeast(0.97 * demand::LITTLE_MBIT)),
                ]
            },
            plots: |_, names| vec![Plot::timeline(Trace::Goodput, names)],
            columns: "before_mbit little_mbit light_mbit after_mbit used_s has_s rtt_p50_ms lateness_p99_us",
            ..SharedChannel::ROW
        },
        ..SHARING
    },
    // Stations with giveway, and stations without it, against the same seats where all are plain. No number is
    // configured.
    Scenario {
        name: "mixed",
        about: "Eight stations of which 1, 3, 5 or 7 have no giveway (`beside-N`), beside the same seats where none has it (`plain`)",
        parameters: &[
            rtt_ms(256),
            MEDIUM,
            stations(8, 8, 8, "on the access point"),
            Parameter::range(
                "repeats",
                8,
                1,
                100,
                "rounds; 2.5 times as many where one station has giveway",
            ),
        ],
        plan: &SharedChannel {
            media: Media::Each(&[FIXED54, ARF_LOSSY]),
            variants: |conditions| {
                // How many have no giveway: the first ones. With the names of both groups.
                const WITHOUT_GIVEWAY: [(usize, &str, &str); 4] = [
                    (1, "first-1", "last-7"),
                    (3, "first-3", "last-5"),
                    (5, "first-5", "last-3"),
                    (7, "first-7", "last-1"),
                ];
                let plain = conditions.name("plain");
                let mut cases = vec![conditions.case(PLAIN)];
                for (without_giveway, first, last) in WITHOUT_GIVEWAY {
                    let groups = [
                        (first, 0..without_giveway),
                        (last, without_giveway..conditions.stations),
                    ];
                    cases[0].transfers.groups.extend(groups.clone());
                    let beside = conditions.case((&format!("beside-{without_giveway}"), BALANCED.1));
                    let mut beside = beside.managed(Managed::AllButFirst(without_giveway));
                    beside.transfers.groups.extend(groups);
                    if without_giveway + 1 == conditions.stations {
                        // One station's goodput differs by more from round to round than that of several.
                        beside.times = 2.5;
                    }
                    for (who, seats) in [("with giveway", last), ("without", first)] {
                        let (ours, plain) = (format!("{}/{seats}", beside.name), format!("{plain}/{seats}"));
                        beside.checks.extend(kept(who, &ours, &plain));
                    }
                    cases.push(beside);
                }
                Ok(cases)
            },
            plots: |all, _| {
                let names = ["beside-1", "beside-3", "beside-5", "beside-7", "plain"];
                let drawn: Vec<_> = all.iter().flat_map(|conditions| conditions.names(names)).collect();
                bars(&[Trace::Goodput], &drawn)
            },
            columns: "goodput_mbit goodput_mbit_se jain retransmits rtt_p50_ms rtt_p99_ms",
            ..SharedChannel::ROW
        },
        ..SHARING
    },
    // The last station lies: a member that claims everything, or nothing, or that begins and ends each second, or that
    // lists as many senders as a report can; and a thousand devices without the group's key. What is left to the honest
    // ones, against the same seats where nobody has giveway.
    Scenario {
        name: "liar",
        about: "One of eight stations sends false reports to its peers: what the honest seven keep of what plain TCP gives them",
        parameters: &[stations(8, 2, 16, "on the access point"), rtt_ms(256), rounds(3)],
        plan: &SharedChannel {
            variants: |conditions| {
                const LIES: [(&str, Option<Lie>); 6] = [
                    // It sends as well, and has no giveway.
                    ("silent", None),
                    ("everything", Some(Lie::Everything)),
                    ("nothing", Some(Lie::Nothing)),
                    ("flapping", Some(Lie::Flapping)),
                    ("crowd", Some(Lie::Crowd)),
                    ("identities", Some(Lie::Identities)),
                ];
                // `floor_mbit` of the configuration, by default.
                const FLOOR_MBIT: f64 = 0.1;
                let sender = conditions.stations - 1;
                let case = |policy: (&str, _), lie: Option<Lie>| {
                    conditions
                        .case(policy)
                        .managed(Managed::First(sender))
                        .group("honest", 0..sender)
                        .beside(lie.map(|lie| Load::Liar { sender, lie }))
                };
                let lies = |(name, lie): (&str, Option<Lie>)| {
                    // Without limits the queue of the access point drops reports; but nobody without the key is
                    // authenticated.
                    let authenticated = match lie {
                        None | Some(Lie::Identities) => Relation::AtMost(sender as f64 - 1.0),
                        Some(_) => Relation::AtLeast(1.0),
                    };
                    let ours = format!("{name}/honest");
                    let beside_plain = |metric, holds| Check::over(&ours, "plain/honest", metric, holds);
                    let mut case = case((name, BALANCED.1), lie);
                    case.checks = vec![
                        Check::metric(name, "peers", authenticated),
                        Check::metric(&ours, "least_mbit", Relation::AtLeast(FLOOR_MBIT)),
                        // No flood: no more than plain TCP.
                        beside_plain("rtt_p50_ms", Relation::AtMost(1.0)),
                        beside_plain("retransmits", Relation::AtMost(1.0)),
                        // A starved station makes no queue either.
                        beside_plain("goodput_mbit", Relation::AtLeast(0.8)),
                        beside_plain("goodput_mbit", Relation::AtLeast(0.97)).goal(),
                    ];
                    case
                };
                Ok([case(PLAIN, None)].into_iter().chain(LIES.map(lies)).collect())
            },
            columns: "goodput_mbit spread:goodput_mbit jain retransmits rtt_p50_ms least_mbit lateness_p99_us daemon_waited_percent",
            ..SharedChannel::ROW
        },
        ..SHARING
    },
    // A rate that falls to a tenth and rises again, unannounced: how soon the queue of the fall has drained, and how
    // soon the rise is used. Stations on a shared channel; and one device behind a modem, in the guest.
    Scenario {
        name: "step-rate",
        about: "A channel goes from 54 to 6 and back to 54 Mbit/s, and a modem (`wire`) from 20 to 2 and back to 20: how soon delay falls and goodput returns",
        warmup_s: 20,
        plan: &SharedChannel {
            policies: &[PLAIN, BALANCED, DELAY, THROUGHPUT],
            each: step_rate::case,
            besides: step_rate::on_wire,
            bounds: step_rate::bounds,
            plots: |_, names| vec![Plot::timeline(Trace::Goodput, names)],
            columns: "fast_mbit slow_mbit fast_rtt_p50_ms slow_rtt_p50_ms down_s others_down_s up_s lateness_p99_us",
            ..SharedChannel::ROW
        },
        ..SHARING
    },
    // Daemons without configuration: with a group's key and nothing else, against the same with the best equal cap of
    // each radio; and without a key, against stations without giveway.
    Scenario {
        name: "no-numbers",
        about: "Eight stations that have a group's key and no configured number (`key`), not even a key (`no-key`), the best equal cap (`configured`), or no giveway (`plain`)",
        parameters: &[
            stations(8, 1, 16, "on the access point"),
            rtt_ms(256),
            MEDIUM,
            rounds(6),
        ],
        plan: &SharedChannel {
            media: Media::Each(&[FIXED54, ARF, ARF_LOSSY, ARF_CLASSIC]),
            variants: |conditions| {
                let told = configured_cap(conditions).map(|cap| ("configured", Some(cap)));
                let key = ("key", Some(Cap::Default { has_key: true }));
                let no_key = ("no-key", Some(Cap::Default { has_key: false }));
                let policies: Vec<_> = [PLAIN].into_iter().chain(told).chain([key, no_key]).collect();
                Ok(conditions.cases(&policies))
            },
            bounds: |conditions| {
                let [plain, by_number, key, no_key] = conditions.names(["plain", "configured", "key", "no-key"]);
                let mut checks = Vec::new();
                if configured_cap(conditions).is_some() {
                    checks.extend([
                        Check::over(&key, &by_number, "goodput_mbit", Relation::AtLeast(0.9)),
                        Check::over(&key, &by_number, "jain", Relation::AtLeast(0.9)),
                        Check::over(&key, &by_number, "rtt_p50_ms", Relation::AtMost(1.1)),
                    ]);
                }
                checks.extend([
                    Check::over(&key, &plain, "goodput_mbit", Relation::AtLeast(0.85)),
                    Check::over(&key, &plain, "rtt_p50_ms", Relation::AtMost(1.0)),
                    Check::over(&no_key, &plain, "goodput_mbit", Relation::AtLeast(0.97)),
                    Check::over(&no_key, &plain, "rtt_p50_ms", Relation::AtMost(1.03)),
                ]);
                checks
            },
            plots: |_, names| bars(&[], names),
            ..SharedChannel::ROW
        },
        ..SHARING
    },
];

/// A cap just below the collapse of `arf-classic` in model time is above it live: no number is right there.
fn configured_cap(conditions: &super::Conditions) -> Option<Cap> {
    best_cap(conditions).filter(|_| conditions.medium != ARF_CLASSIC)
}

/// Of plain TCP's goodput: the goal and the bound.
fn kept(who: &str, ours: &str, plain: &str) -> [Check; 2] {
    let name = format!("{ours} ({who}) over {plain}");
    let surely = Quantity::RatioAtLeast {
        variant: ours.into(),
        over: plain.into(),
        metric: "goodput_mbit",
        error: "goodput_mbit_se",
    };
    [
        Check::ratio(name.clone(), ours, plain, "goodput_mbit", Relation::AtLeast(0.97)),
        Check::of(format!("{name}, lower limit of 95%"), surely, Relation::AtLeast(0.9)),
    ]
}
