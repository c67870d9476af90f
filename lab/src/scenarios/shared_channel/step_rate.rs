// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A rate that falls to a tenth and rises again: on a shared channel, and behind a modem.

mod wire;

use anyhow::Result;

use super::{Besides, Case, Conditions};
use crate::access_point::{Cap, FIXED6, FIXED54};
use crate::cell::Cell;
use crate::experiment::{Run, pause};
use crate::outcome::Outcome;
use crate::scenario::{Check, Relation, Variant};
use crate::traffic::uploads::{Uploaded, Uploads};
use wire::WireMethod;

/// The bound of the smoothed RTT: this multiple of the minimum, or so many ms above it where that is more.
type Bound = (f64, f64);
const USUAL: Bound = (1.25, 15.0);
const DELAY: Bound = (1.1, 5.0);
const ON_WIRE: [(&str, WireMethod); 3] = [
    ("wire/plain", WireMethod::Plain),
    ("wire/auto", WireMethod::Auto),
    ("wire/balanced", WireMethod::Found),
];
/// Of the goodput before the fall.
const IN_USE: f64 = 0.9;
const UP_S: f64 = 5.0;
/// Of plain TCP's goodput.
const ENOUGH: f64 = 0.8;
/// Besides two round trips.
const DOWN_S: f64 = 2.0;

pub fn case(conditions: &Conditions, case: Case) -> Case {
    let bound = match case.place.giveway {
        Some(Cap::Estimated("delay")) => DELAY,
        _ => USUAL,
    };
    let steps = Steps::of(conditions, conditions.rtt_ms, bound);
    case.act(steps.end_s, move |cell, run| steps.shared_channel(cell, run))
}

pub fn on_wire(all: &[Conditions], _: &[Variant]) -> Besides {
    let variant = |(name, method): (&str, WireMethod)| {
        let steps = Steps::of(&all[0], wire::RTT_MS, USUAL);
        let act = move |run: &Run| wire::upload(run, method, steps);
        Variant::new(name, Some(wire::GUEST), steps.end_s, act)
    };
    (ON_WIRE.map(variant).into(), Vec::new())
}

/// On the channel and on the wire.
pub fn bounds(conditions: &Conditions) -> Vec<Check> {
    let down_s = |rtt_ms: u64| Relation::AtMost(DOWN_S + 2.0 * rtt_ms as f64 / 1e3);
    let up = |name| Check::metric(name, "up_s", Relation::AtMost(UP_S));
    let mut checks = vec![
        up("throughput"),
        // The queue with an estimated rate keeps packets in the device, where its own upload waits and others do not.
        Check::metric("wire/auto", "others_down_s", down_s(wire::RTT_MS)),
        up("wire/auto"),
    ];
    for (name, rtt_ms) in [
        ("balanced", conditions.rtt_ms),
        ("delay", conditions.rtt_ms),
        ("wire/balanced", wire::RTT_MS),
    ] {
        checks.extend([Check::metric(name, "down_s", down_s(rtt_ms)), up(name)]);
    }
    // A station that sends nothing has no queue either.
    for (name, plain) in [
        ("balanced", "plain"),
        ("delay", "plain"),
        ("throughput", "plain"),
        ("wire/auto", "wire/plain"),
        ("wire/balanced", "wire/plain"),
    ] {
        for metric in ["fast_mbit", "slow_mbit"] {
            checks.push(Check::over(name, plain, metric, Relation::AtLeast(ENOUGH)));
        }
    }
    checks
}

#[derive(Clone, Copy)]
struct Steps {
    falls_s: f64,
    rises_s: f64,
    end_s: f64,
    bound_ms: f64,
}

impl Steps {
    fn of(conditions: &Conditions, rtt_ms: u64, (part, more_ms): Bound) -> Self {
        let (warmup_s, seconds, rtt_ms) = (
            conditions.seconds("warmup_s"),
            conditions.seconds("seconds"),
            rtt_ms as f64,
        );
        Self {
            falls_s: warmup_s,
            rises_s: warmup_s + seconds / 2.0,
            end_s: warmup_s + seconds,
            bound_ms: (part * rtt_ms).max(rtt_ms + more_ms),
        }
    }

    fn shared_channel(self, cell: &mut Cell, run: &Run) -> Result<Outcome> {
        let uploads = Uploads::start(cell, &vec![Vec::new(); cell.stations()])?;
        run.progress.tick("warming up");
        pause(self.falls_s)?;
        run.progress.tick("at 6 Mbit/s");
        cell.channel.set_rates(FIXED6)?;
        pause(self.rises_s - self.falls_s)?;
        run.progress.tick("at 54 Mbit/s again");
        cell.channel.set_rates(FIXED54)?;
        pause(self.end_s - self.rises_s)?;
        let uploaded = uploads.finish()?;
        run.keep(&uploaded)?;
        let mut outcome = self.outcome(run.name, &uploaded);
        let late_us = cell.channel.counters()?.lateness_us.p99;
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
