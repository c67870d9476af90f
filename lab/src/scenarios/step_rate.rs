// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Eight stations on an air whose rate falls to a ninth and rises again: how soon the queue that the fall makes has gone, and
//! how soon the rise is used. Nobody is told either.

use anyhow::Result;

use crate::access_point::{AccessPoint, Cap, FIXED6, FIXED54};
use crate::cell::Cell;
use crate::experiment::{Run, pause};
use crate::outcome::Outcome;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Trace, Variant};
use crate::traffic::uploads::Uploads;

pub const SCENARIO: Scenario = Scenario {
    name: "step-rate",
    about: "the air goes from 54 to 6 and back to 54 Mbit/s",
    stations: None,
    seconds: 40,
    warmup_s: 20,
    parameters: &[
        Parameter::range("stations", 8, 1, 16, "on the access point"),
        Parameter::range("rtt_ms", 256, 2, 2_000, "round trip behind the access point"),
        Parameter::range("repeats", 3, 1, 100, "rounds; a metric is the mean over them"),
    ],
    plan,
};

/// What the smoothed RTT may be: this part of the minimum, or so many ms above it where that is more.
type Bound = (f64, f64);
const BALANCED: Bound = (1.25, 15.0);
const DELAY: Bound = (1.1, 5.0);
const POLICIES: [(&str, Option<Cap>, Bound); 4] = [
    ("plain", None, BALANCED),
    ("balanced", Some(Cap::Found("balanced")), BALANCED),
    ("delay", Some(Cap::Found("delay")), DELAY),
    ("throughput", Some(Cap::Found("throughput")), BALANCED),
];
/// Of what was moved before the fall.
const IN_USE: f64 = 0.9;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let [warmup_s, seconds, rtt_ms] = ["warmup_s", "seconds", "rtt_ms"].map(|name| parameters.count(name) as f64);
    let variant = |(name, cap, (part, more_ms)): (&str, _, Bound)| {
        let steps = Steps {
            falls_s: warmup_s,
            rises_s: warmup_s + seconds / 2.0,
            end_s: warmup_s + seconds,
            bound_ms: (part * rtt_ms).max(rtt_ms + more_ms),
        };
        let access_point = AccessPoint::new(parameters, FIXED54, cap);
        Variant::on(access_point, name, steps.end_s, move |cell, run| steps.run(cell, run))
    };
    let names = POLICIES.map(|(name, ..)| name.to_owned());
    let within = |name, metric, s| Check::metric(name, metric, Relation::AtMost(s));
    let down_s = 2.0 + 2.0 * rtt_ms / 1e3;
    Ok(Plan {
        variants: POLICIES.into_iter().map(variant).collect(),
        checks: vec![
            within("balanced", "down_s", down_s),
            within("balanced", "up_s", 5.0),
            within("delay", "down_s", down_s),
            within("delay", "up_s", 5.0),
            within("throughput", "up_s", 5.0),
        ],
        plots: vec![Plot::timeline(Trace::Goodput, &names)],
        columns: "fast_mbit slow_mbit fast_rtt_p50_ms slow_rtt_p50_ms down_s up_s lateness_p99_us",
    })
}

#[derive(Clone, Copy)]
struct Steps {
    falls_s: f64,
    rises_s: f64,
    end_s: f64,
    bound_ms: f64,
}

impl Steps {
    fn run(self, cell: &mut Cell, run: &Run) -> Result<Outcome> {
        let uploads = Uploads::start(cell, &vec![Vec::new(); cell.stations()])?;
        run.progress.tick("warming up");
        pause(self.falls_s)?;
        run.progress.tick("at 6 Mbit/s");
        cell.air.set_rates(FIXED6)?;
        pause(self.rises_s - self.falls_s)?;
        run.progress.tick("at 54 Mbit/s again");
        cell.air.set_rates(FIXED54)?;
        pause(self.end_s - self.rises_s)?;
        let uploaded = uploads.finish()?;
        let all = 0..cell.stations();
        let mbit = |from_s, to_s| uploaded.goodput_mbit(all.clone(), from_s, to_s);
        let before_s = (self.falls_s / 2.0, self.falls_s);
        let slow_s = (f64::midpoint(self.falls_s, self.rises_s), self.rises_s);
        let fast_mbit = mbit(before_s.0, before_s.1);
        let mut outcome = Outcome::default();
        outcome.set(run.name, "fast_mbit", fast_mbit);
        outcome.set(run.name, "slow_mbit", mbit(slow_s.0, slow_s.1));
        for (metric, (from_s, to_s)) in [("fast_rtt_*_ms", before_s), ("slow_rtt_*_ms", slow_s)] {
            outcome.percentiles(run.name, metric, &uploaded.rtts_ms(from_s, to_s), &[50]);
        }
        let slow = (self.falls_s, self.rises_s);
        outcome.set(run.name, "down_s", uploaded.stays_below_s(slow, self.bound_ms));
        let fast = (self.rises_s, self.end_s);
        outcome.set(run.name, "up_s", uploaded.reaches_s(all, fast, IN_USE * fast_mbit));
        outcome.set(run.name, "lateness_p99_us", cell.air.counters()?.lateness_us.p99 as f64);
        outcome.traces = uploaded.curves(self.end_s);
        Ok(outcome)
    }
}
