// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first station's demand is high, then low, then high: how soon the others use what it leaves, and how soon it
//! regains its share.

use anyhow::Result;

use super::{Case, Conditions};
use crate::cell::Cell;
use crate::experiment::{Run, pause};
use crate::outcome::Outcome;
use crate::traffic::uploads::{Uploads, Wants};

pub const LITTLE_MBIT: f64 = 0.5;
/// Of everyone's goodput before, less the low demand; and of an equal share of it.
const USED: f64 = 0.97;
const HAS: f64 = 0.9;

pub fn case(conditions: &Conditions, case: Case) -> Case {
    let (warmup_s, seconds) = (conditions.seconds("warmup_s"), conditions.seconds("seconds"));
    let demand = Demand {
        falls_s: warmup_s,
        rises_s: warmup_s + seconds / 2.0,
        end_s: warmup_s + seconds,
    };
    case.act(demand.end_s, move |cell, run| demand.run(cell, run))
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
        let light_mbit = mbit(light.clone(), little_s.0, little_s.1);
        let used_s = uploaded.reaches_s(others, (self.falls_s, self.rises_s), USED * others_mbit);
        let has_s = uploaded.reaches_s(light, (self.rises_s, self.end_s), HAS * share_mbit);
        let mut outcome = Outcome::default();
        for (metric, value) in [
            ("before_mbit", Some(before_mbit)),
            ("little_mbit", Some(mbit(0..stations, little_s.0, little_s.1))),
            ("light_mbit", Some(light_mbit)),
            ("after_mbit", Some(mbit(0..stations, after_s.0, after_s.1))),
            ("used_s", used_s),
            ("has_s", has_s),
            ("lateness_p99_us", Some(cell.channel.counters()?.lateness_us.p99 as f64)),
        ] {
            outcome.set(run.name, metric, value);
        }
        outcome.percentiles(run.name, "rtt_*_ms", &uploaded.rtts_ms(self.falls_s, self.end_s), &[50]);
        outcome.traces = uploaded.curves(self.end_s);
        Ok(outcome)
    }
}
