// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A rate that falls to a tenth and rises again, of which nobody is told: how soon the queue that the fall makes has gone, and
//! how soon the rise is used. Eight stations on the air; and one device behind a modem, in the guest.

mod wire;

use anyhow::Result;

use crate::access_point::{AccessPoint, Cap, FIXED6, FIXED54};
use crate::cell::Cell;
use crate::experiment::{Run, pause};
use crate::outcome::Outcome;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Trace, Variant};
use crate::traffic::uploads::{Uploaded, Uploads};
use wire::Method;

pub const SCENARIO: Scenario = Scenario {
    name: "step-rate",
    about: "the air goes from 54 to 6 and back to 54 Mbit/s, a wire from 20 to 2 and back to 20",
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
const ON_AIR: [(&str, Option<Cap>, Bound); 4] = [
    ("plain", None, BALANCED),
    ("balanced", Some(Cap::Found("balanced")), BALANCED),
    ("delay", Some(Cap::Found("delay")), DELAY),
    ("throughput", Some(Cap::Found("throughput")), BALANCED),
];
const ON_WIRE: [(&str, Method); 3] = [
    ("wire/plain", Method::Plain),
    ("wire/auto", Method::Auto),
    ("wire/balanced", Method::Found),
];
/// Of what was moved before the fall.
const IN_USE: f64 = 0.9;
const UP_S: f64 = 5.0;
/// Of plain TCP's goodput.
const ENOUGH: f64 = 0.8;

/// Beside two round trips.
const DOWN_S: f64 = 2.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let [warmup_s, seconds, rtt_ms] = ["warmup_s", "seconds", "rtt_ms"].map(|name| parameters.count(name) as f64);
    let steps = |rtt_ms: f64, (part, more_ms): Bound| Steps {
        falls_s: warmup_s,
        rises_s: warmup_s + seconds / 2.0,
        end_s: warmup_s + seconds,
        bound_ms: (part * rtt_ms).max(rtt_ms + more_ms),
    };
    let on_air = ON_AIR.into_iter().map(|(name, cap, bound)| {
        let steps = steps(rtt_ms, bound);
        let access_point = AccessPoint::new(parameters, FIXED54, cap);
        Variant::on(access_point, name, steps.end_s, move |cell, run| {
            steps.on_air(cell, run)
        })
    });
    let on_wire = ON_WIRE.into_iter().map(|(name, method)| {
        let steps = steps(wire::RTT_MS as f64, BALANCED);
        let act = move |run: &Run| wire::upload(run, method, steps);
        Variant::new(name, Some(wire::GUEST), steps.end_s, act)
    });
    let variants: Vec<_> = on_air.chain(on_wire).collect();
    let names: Vec<_> = variants.iter().map(|variant| variant.name.clone()).collect();
    let in_time = |name, rtt_ms: f64| {
        let within = |metric, s| Check::metric(name, metric, Relation::AtMost(s));
        [within("down_s", DOWN_S + 2.0 * rtt_ms / 1e3), within("up_s", UP_S)]
    };
    let wire_ms = wire::RTT_MS as f64;
    let mut checks = vec![
        Check::metric("throughput", "up_s", Relation::AtMost(UP_S)),
        // The queue whose rate is found keeps packets in the device, where its own upload waits and others do not.
        Check::metric(
            "wire/auto",
            "others_down_s",
            Relation::AtMost(DOWN_S + 2.0 * wire_ms / 1e3),
        ),
        Check::metric("wire/auto", "up_s", Relation::AtMost(UP_S)),
    ];
    for (name, rtt_ms) in [("balanced", rtt_ms), ("delay", rtt_ms), ("wire/balanced", wire_ms)] {
        checks.extend(in_time(name, rtt_ms));
    }
    // Who sends nothing has no queue either.
    let on_air = ["balanced", "delay", "throughput"].map(|name| (name, "plain"));
    let on_wire = ["wire/auto", "wire/balanced"].map(|name| (name, "wire/plain"));
    for (name, plain) in on_air.into_iter().chain(on_wire) {
        for metric in ["fast_mbit", "slow_mbit"] {
            let enough = Relation::AtLeast(ENOUGH);
            checks.push(Check::ratio(
                format!("{name} over {plain}, {metric}"),
                name,
                plain,
                metric,
                enough,
            ));
        }
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![Plot::timeline(Trace::Goodput, &names)],
        columns: "fast_mbit slow_mbit fast_rtt_p50_ms slow_rtt_p50_ms down_s others_down_s up_s lateness_p99_us",
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
    fn on_air(self, cell: &mut Cell, run: &Run) -> Result<Outcome> {
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
        run.keep(&uploaded)?;
        let mut outcome = self.outcome(run.name, &uploaded);
        let late_us = cell.air.counters()?.lateness_us.p99;
        outcome.set(run.name, "lateness_p99_us", late_us as f64);
        Ok(outcome)
    }

    fn outcome(self, point: &str, uploaded: &Uploaded) -> Outcome {
        let mbit = |(from_s, to_s)| uploaded.goodput_mbit(uploaded.stations(), from_s, to_s);
        let before = (self.falls_s / 2.0, self.falls_s);
        let slow = (f64::midpoint(self.falls_s, self.rises_s), self.rises_s);
        let fast_mbit = mbit(before);
        let down_s = uploaded.stays_below_s((self.falls_s, self.rises_s), self.bound_ms);
        let up_s = uploaded.reaches_s(uploaded.stations(), (self.rises_s, self.end_s), IN_USE * fast_mbit);
        let mut outcome = Outcome::default();
        for (metric, value) in [
            ("fast_mbit", Some(fast_mbit)),
            ("slow_mbit", Some(mbit(slow))),
            ("down_s", down_s),
            ("up_s", up_s),
        ] {
            outcome.set(point, metric, value);
        }
        for (metric, (from_s, to_s)) in [("fast_rtt_*_ms", before), ("slow_rtt_*_ms", slow)] {
            outcome.percentiles(point, metric, &uploaded.rtts_ms(from_s, to_s), &[50]);
        }
        outcome.traces = uploaded.curves(self.end_s);
        outcome
    }
}
