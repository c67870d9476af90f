// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Eight stations, of which the first one wants all that it can get, then little, then all again (P1, open point 2): how soon
//! the others use what it leaves, and how soon it has its share again.

use anyhow::Result;

use crate::access_point::{AccessPoint, Cap, FIXED54};
use crate::cell::Cell;
use crate::experiment::{Run, pause};
use crate::outcome::Outcome;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Trace, Variant};
use crate::traffic::uploads::{Uploads, Wants};

pub const SCENARIO: Scenario = Scenario {
    name: "demand",
    about: "one of eight stations wants much, then little, then much",
    stations: None,
    seconds: 40,
    warmup_s: 20,
    parameters: &[
        Parameter::range("stations", 8, 2, 16, "on the access point"),
        Parameter::range("rtt_ms", 256, 2, 2_000, "round trip behind the access point"),
        Parameter::range("repeats", 3, 1, 100, "rounds; a metric is the mean over them"),
    ],
    plan,
};

const POLICIES: [(&str, Option<Cap>); 4] = [
    ("plain", None),
    ("fixed-cap", Some(Cap::Formula { rtt_ms: 256 })),
    ("balanced", Some(Cap::Found("balanced"))),
    ("delay", Some(Cap::Found("delay"))),
];
const LITTLE_MBIT: f64 = 0.5;
/// Of what all had before, less what the light one wants; and of an equal share of it.
const USED: f64 = 0.97;
const HAS: f64 = 0.9;
/// Its limit is there again, and then three round trips.
const LIMIT_S: f64 = 0.5;
const ROUND_TRIPS: f64 = 3.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let [warmup_s, seconds, rtt_ms] = ["warmup_s", "seconds", "rtt_ms"].map(|name| parameters.count(name) as f64);
    let demand = Demand {
        falls_s: warmup_s,
        rises_s: warmup_s + seconds / 2.0,
        end_s: warmup_s + seconds,
    };
    let variant = |(name, cap): (&str, _)| {
        let access_point = AccessPoint::new(parameters, FIXED54, cap);
        Variant::on(access_point, name, demand.end_s, move |cell, run| demand.run(cell, run))
    };
    let names = POLICIES.map(|(name, _)| name.to_owned());
    let has_s = LIMIT_S + ROUND_TRIPS * rtt_ms / 1e3;
    Ok(Plan {
        variants: POLICIES.into_iter().map(variant).collect(),
        checks: vec![
            Check::metric("balanced", "used_s", Relation::AtMost(1.0)),
            Check::metric("balanced", "has_s", Relation::AtMost(has_s)),
            // What it wants it has meanwhile.
            Check::metric("balanced", "light_mbit", Relation::AtLeast(0.97 * LITTLE_MBIT)),
        ],
        plots: vec![Plot::timeline(Trace::Goodput, &names)],
        columns: "before_mbit little_mbit light_mbit after_mbit used_s has_s rtt_p50_ms lateness_p99_us",
    })
}

#[derive(Clone, Copy)]
struct Demand {
    falls_s: f64,
    rises_s: f64,
    end_s: f64,
}

impl Demand {
    fn run(self, cell: &mut Cell, run: &Run) -> Result<Outcome> {
        let stations = cell.stations();
        let mut wants: Vec<Wants> = vec![Vec::new(); stations];
        wants[0] = vec![(0.0, None), (self.falls_s, Some(LITTLE_MBIT)), (self.rises_s, None)];
        let uploads = Uploads::start(cell, &wants)?;
        for (doing, until_s, from_s) in [
            ("all want all", self.falls_s, 0.0),
            ("one wants little", self.rises_s, self.falls_s),
            ("all want all again", self.end_s, self.rises_s),
        ] {
            run.progress.tick(doing);
            pause(until_s - from_s)?;
        }
        let uploaded = uploads.finish()?;
        run.keep(&uploaded)?;
        let mbit = |stations, from_s, to_s| uploaded.goodput_mbit(stations, from_s, to_s);
        let little_s = (f64::midpoint(self.falls_s, self.rises_s), self.rises_s);
        let after_s = (f64::midpoint(self.rises_s, self.end_s), self.end_s);
        let (light, others) = (0..1, 1..stations);
        let before_mbit = mbit(0..stations, self.falls_s / 2.0, self.falls_s);
        let others_mbit = before_mbit - LITTLE_MBIT;
        let share_mbit = before_mbit / stations as f64;
        let mut outcome = Outcome::default();
        for (metric, value) in [
            ("before_mbit", Some(before_mbit)),
            ("little_mbit", Some(mbit(0..stations, little_s.0, little_s.1))),
            ("light_mbit", Some(mbit(light.clone(), little_s.0, little_s.1))),
            ("after_mbit", Some(mbit(0..stations, after_s.0, after_s.1))),
            (
                "used_s",
                uploaded.reaches_s(others, (self.falls_s, self.rises_s), USED * others_mbit),
            ),
            (
                "has_s",
                uploaded.reaches_s(light, (self.rises_s, self.end_s), HAS * share_mbit),
            ),
            ("lateness_p99_us", Some(cell.air.counters()?.lateness_us.p99 as f64)),
        ] {
            outcome.set(run.name, metric, value);
        }
        outcome.percentiles(run.name, "rtt_*_ms", &uploaded.rtts_ms(self.falls_s, self.end_s), &[50]);
        outcome.traces = uploaded.curves(self.end_s);
        Ok(outcome)
    }
}
