// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Eight stations of which some have no giveway: what ours get, and what they get, against the same seats where all are
//! plain. Ours find their share themselves, and no number is configured.

use anyhow::Result;

use crate::access_point::{ARF_LOSSY, AccessPoint, Cap, FIXED54, Managed, media, name_on};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Quantity, Relation, Scenario, Trace};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::Protocol;

pub const SCENARIO: Scenario = Scenario {
    name: "mixed",
    about: "eight stations, of which 1, 3, 5 or 7 have no giveway, against the same seats where none has it",
    stations: Some(STATIONS as u64),
    seconds: 40,
    warmup_s: 15,
    parameters: &[
        Parameter::range(
            "stations",
            STATIONS as u64,
            STATIONS as u64,
            STATIONS as u64,
            "on the access point",
        ),
        Parameter::range(
            "repeats",
            8,
            1,
            100,
            "rounds; 2.5 times as many where one station has giveway",
        ),
    ],
    plan,
};

const STATIONS: usize = 8;
/// How many have no giveway: the first ones. With the names of both groups.
const STRANGERS: [(usize, &str, &str); 4] = [
    (1, "first-1", "last-7"),
    (3, "first-3", "last-5"),
    (5, "first-5", "last-3"),
    (7, "first-7", "last-1"),
];
/// One station's goodput differs by more from round to round than that of several.
const ROUNDS_OF_ONE: f64 = 2.5;
const KEPT: f64 = 0.97;
const KEPT_SURELY: f64 = 0.9;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let media = media(parameters, &[FIXED54, ARF_LOSSY]);
    let (mut variants, mut checks, mut drawn) = (Vec::new(), Vec::new(), Vec::new());
    for &medium in &media {
        let name = |what: &str| name_on(parameters, what, medium);
        let seats = STRANGERS
            .iter()
            .flat_map(|(strangers, first, last)| [(*first, 0..*strangers), (*last, *strangers..STATIONS)]);
        let mut transfers = Transfers::steady(parameters, Protocol::Tcp, STATIONS);
        transfers.per_station = true;
        transfers.groups = seats.collect();
        let plain = name("plain");
        variants.push(transfers.on(AccessPoint::new(parameters, medium, None), plain.clone()));
        for (strangers, first, last) in STRANGERS {
            let mut transfers = Transfers::steady(parameters, Protocol::Tcp, STATIONS);
            transfers.per_station = true;
            transfers.groups = vec![(first, 0..strangers), (last, strangers..STATIONS)];
            let access_point = AccessPoint {
                managed: Managed::AllButFirst(strangers),
                ..AccessPoint::new(parameters, medium, Some(Cap::Found("balanced")))
            };
            let beside = name(&format!("beside-{strangers}"));
            let mut variant = transfers.on(access_point, beside.clone());
            if strangers + 1 == STATIONS {
                variant.times = ROUNDS_OF_ONE;
            }
            variants.push(variant);
            for (who, seats) in [("ours", last), ("theirs", first)] {
                checks.extend(kept(who, &format!("{beside}/{seats}"), &format!("{plain}/{seats}")));
            }
            drawn.push(beside);
        }
        drawn.push(plain);
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![
            Plot::Stations {
                file: "goodput-stations".into(),
                title: "Goodput of each station".into(),
                variants: drawn.clone(),
            },
            Plot::timeline(Trace::Goodput, &drawn),
        ],
        columns: "goodput_mbit goodput_mbit_se jain retransmits rtt_p50_ms rtt_p99_ms",
    })
}

fn kept(who: &str, ours: &str, plain: &str) -> [Check; 2] {
    let surely = Quantity::RatioAtLeast {
        variant: ours.into(),
        over: plain.into(),
        metric: "goodput_mbit",
        error: "goodput_mbit_se",
    };
    [
        Check::ratio(
            format!("{ours} ({who}) over {plain}"),
            ours,
            plain,
            "goodput_mbit",
            Relation::AtLeast(KEPT),
        ),
        Check::of(
            format!("{ours} ({who}) over {plain}, lower limit of 95%"),
            surely,
            Relation::AtLeast(KEPT_SURELY),
        ),
    ]
}
