// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every station of an access point uploads, some at rates that change.
//! Input: who wants how much from when on. Output: what came in 20 ms each, and what their sockets showed every 50 ms; from
//! that, how soon after a moment something was so. Times are seconds since the uploads began.

use std::ops::Range;

use anyhow::Result;
use serde::Serialize;

use super::endless::{Arrivals, spawn_observed_sender, start_sink};
use super::realtime::monotonic_ns;
use crate::cell::Cell;
use crate::channel::SERVER_ADDRESS;
use crate::outcome::{Curve, Trace};
use crate::role::Role;
use crate::statistics::mean;

pub const FIRST_PORT: u16 = 5_601;
/// Over which a mean is taken.
const HALF_S: f64 = 0.5;
const STEP_S: f64 = 0.02;

/// From these seconds on a station wants so many Mbit/s; none: all that it can get.
pub type Wants = Vec<(f64, Option<f64>)>;

pub struct Uploads {
    sink: Role,
    senders: Vec<Role>,
    begun_ns: u64,
}

#[derive(Serialize)]
pub struct Uploaded {
    arrivals: Arrivals,
    /// By station: when, and the smoothed RTT in microseconds.
    rtts_us: Vec<Vec<(u64, u32)>>,
    begun_ns: u64,
}

impl Uploaded {
    /// Of one sender, to that port.
    pub fn of_one(begun_ns: u64, arrivals: Arrivals, rtts_us: Vec<(u64, u32)>) -> Self {
        Self {
            arrivals,
            rtts_us: vec![rtts_us],
            begun_ns,
        }
    }
}

impl Uploads {
    /// One connection each.
    pub fn start(cell: &Cell, wants: &[Wants]) -> Result<Self> {
        let port = |station: usize| FIRST_PORT + station as u16;
        let ports: Vec<_> = (0..wants.len()).map(port).collect();
        let sink = start_sink(cell.server(), &ports)?;
        let begun_ns = monotonic_ns()?;
        let spawn = |(station, wants): (usize, &Wants)| {
            let at_ns = |seconds: f64| begun_ns + (seconds * 1e9) as u64;
            let rates: Vec<_> = wants.iter().map(|(from_s, mbit)| (at_ns(*from_s), *mbit)).collect();
            spawn_observed_sender(cell.station(station), SERVER_ADDRESS, port(station), "cubic", &rates)
        };
        let spawned: Vec<_> = wants.iter().enumerate().map(spawn).collect::<Result<_>>()?;
        let senders = spawned.into_iter().map(Role::ready).collect::<Result<_>>()?;
        Ok(Self {
            sink,
            senders,
            begun_ns,
        })
    }

    pub fn finish(self) -> Result<Uploaded> {
        let rtts_us = self.senders.into_iter().map(Role::finish).collect::<Result<_>>()?;
        Ok(Uploaded {
            arrivals: self.sink.finish()?,
            rtts_us,
            begun_ns: self.begun_ns,
        })
    }
}

impl Uploaded {
    pub fn stations(&self) -> Range<usize> {
        0..self.rtts_us.len()
    }

    /// Of these stations together.
    pub fn goodput_mbit(&self, stations: Range<usize>, from_s: f64, to_s: f64) -> f64 {
        let during_ns = (self.at_ns(from_s), self.at_ns(to_s));
        let of = |station| self.arrivals.goodput_mbit(FIRST_PORT + station as u16, during_ns);
        stations.map(of).sum()
    }

    /// Seconds until these stations together have had this much over half a second.
    pub fn reaches_s(&self, stations: Range<usize>, (from_s, to_s): (f64, f64), mbit: f64) -> Option<f64> {
        let has = |end_s: &f64| self.goodput_mbit(stations.clone(), end_s - HALF_S, *end_s) >= mbit;
        times(from_s + HALF_S, to_s).find(has).map(|end_s| end_s - from_s)
    }

    /// Seconds until the mean smoothed RTT of all is at most this and stays so; none: it does not.
    pub fn stays_below_s(&self, during_s: (f64, f64), rtt_ms: f64) -> Option<f64> {
        stays_below_s(during_s, rtt_ms, |from_s, to_s| mean(&self.rtts_ms(from_s, to_s)))
    }

    /// The same of what packets of others wait.
    pub fn probes_stay_below_s(&self, during_s: (f64, f64), wait_ms: f64) -> Option<f64> {
        let waits_ms = |from_s, to_s| self.arrivals.delays_ms((self.at_ns(from_s), self.at_ns(to_s)));
        stays_below_s(during_s, wait_ms, |from_s, to_s| mean(&waits_ms(from_s, to_s)))
    }

    pub fn rtts_ms(&self, from_s: f64, to_s: f64) -> Vec<f64> {
        let during_ns = self.at_ns(from_s)..self.at_ns(to_s);
        let all = self.rtts_us.iter().flatten();
        let during = all.filter(|(at_ns, _)| during_ns.contains(at_ns));
        during.map(|(_, us)| f64::from(*us) / 1e3).collect()
    }

    /// Goodput of each station in half a second each.
    pub fn curves(&self, to_s: f64) -> Vec<Curve> {
        let curve = |station| Curve {
            of: Trace::Goodput,
            station,
            points: (1..=(to_s / HALF_S) as usize)
                .map(|end| end as f64 * HALF_S)
                .map(|end_s| (end_s, self.goodput_mbit(station..station + 1, end_s - HALF_S, end_s)))
                .collect(),
        };
        self.stations().map(curve).collect()
    }

    fn at_ns(&self, seconds: f64) -> u64 {
        self.begun_ns + (seconds.max(0.0) * 1e9) as u64
    }
}

/// By the mean of a quarter of a second each.
fn stays_below_s((from_s, to_s): (f64, f64), most: f64, mean_of: impl Fn(f64, f64) -> Option<f64>) -> Option<f64> {
    let is_above = |end_s: &f64| mean_of(end_s - HALF_S / 2.0, *end_s).is_none_or(|mean| mean > most);
    let last_s = times(from_s + HALF_S / 2.0, to_s).filter(is_above).last();
    match last_s {
        None => Some(0.0),
        Some(last_s) => (last_s + HALF_S < to_s).then_some(last_s - from_s),
    }
}

fn times(from_s: f64, to_s: f64) -> impl Iterator<Item = f64> {
    (0..)
        .map(move |step| from_s + f64::from(step) * STEP_S)
        .take_while(move |at_s| *at_s <= to_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One station: 2 Mbit/s at 100 ms for two seconds, then 4 at 300 ms for a second, then 4 at 100 ms.
    fn uploaded() -> Uploaded {
        let second = [vec![5_000; 100], vec![10_000; 150]].concat();
        let rtt_us = |at: u64| if (40..60).contains(&at) { 300_000 } else { 100_000 };
        Uploaded {
            arrivals: Arrivals {
                begun_ns: 1_000,
                bytes: [(FIRST_PORT, second)].into(),
                probes_ns: Vec::new(),
            },
            rtts_us: vec![(0..100).map(|at| (1_000 + at * 50_000_000, rtt_us(at))).collect()],
            begun_ns: 1_000,
        }
    }

    #[test]
    fn rate_is_reached_after_half_a_second_at_it() {
        assert_eq!(uploaded().goodput_mbit(0..1, 0.0, 2.0), 2.0);
        let reached_s = uploaded().reaches_s(0..1, (1.0, 5.0), 4.0).unwrap();
        assert!((reached_s - 1.5).abs() < 0.03, "{reached_s}");
        assert_eq!(uploaded().reaches_s(0..1, (1.0, 5.0), 5.0), None);
    }

    #[test]
    fn rtt_has_recovered_once_it_stays_low() {
        let short_s = uploaded().stays_below_s((2.0, 5.0), 110.0).unwrap();
        assert!((1.0..1.3).contains(&short_s), "{short_s}");
        assert_eq!(uploaded().stays_below_s((2.0, 5.0), 90.0), None);
        assert_eq!(uploaded().stays_below_s((3.5, 4.9), 110.0), Some(0.0));
    }
}
