// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HTTP requests of a foreground program, one after the other (P0, figures 6 to 12).
//! Input: which requests and how often. Output: per kind of request its completion times, what the processors spent
//! and what an upload moved meanwhile; for the whole time, how much the upload got of what the foreground left. Every
//! single request is kept as JSON.

use std::time::Instant;

use anyhow::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use super::super::place::{Network, Place};
use super::super::{Load, Testbed, Topology};
use super::{Measure, Probe};
use crate::experiment::{self, Run};
use crate::outcome::Outcome;
use crate::statistics::{mean, percentile};
use crate::traffic::http::{Client, Completed, HttpMethod, KB};
use crate::uplink::watch::LinkReading;
use crate::uplink::{PACKET_BYTES, Shape};

/// Between two requests: long against a packet's time and a round trip, and evenly distributed, so that a request
/// meets every phase of the upload, which has recovered by then from the request before.
const PAUSE_FROM_S: f64 = 0.5;
const PAUSE_TO_S: f64 = 1.5;
/// Ethernet, IPv4 and TCP with timestamps.
const HEADER_BYTES: u64 = 14 + 20 + 32;
const PAYLOAD_BYTES: u64 = PACKET_BYTES - HEADER_BYTES;

pub struct Requests {
    pub sizes_kb: Vec<u64>,
    pub repetitions: u64,
}

impl Requests {
    fn kinds(&self) -> Vec<(HttpMethod, u64)> {
        let of_all_sizes = |method| self.sizes_kb.iter().map(move |kb| (method, *kb));
        [HttpMethod::Get, HttpMethod::Post]
            .into_iter()
            .flat_map(of_all_sizes)
            .collect()
    }
}

/// A request and what happened while it was under way.
#[derive(Serialize)]
struct Measured {
    method: HttpMethod,
    kb: u64,
    #[serde(flatten)]
    completed: Completed,
    background_bytes: u64,
}

/// Totals since the start; the difference of two is a period.
struct Totals {
    at: Instant,
    carried: LinkReading,
    upload_received_bytes: u64,
}

struct Requesting<'a> {
    requests: &'a Requests,
    /// Of the uplink, where there is one.
    shape: Option<&'a Shape>,
    has_upload: bool,
    client: Client,
    measured: Vec<Measured>,
    totals: Option<[Totals; 2]>,
}

impl Probe for Requests {
    fn estimated_s(&self, testbed: &Testbed) -> f64 {
        const PAUSE_AND_ROUND_TRIPS_S: f64 = 1.4;
        // With an upload beside it a request has at worst half of the link.
        let share = if testbed.has_upload() { 0.5 } else { 1.0 };
        let kb_s = match testbed.shape() {
            Some(shape) => 8.0 / (shape.up_kbit as f64 * share) + 8.0 / shape.down_kbit as f64,
            None => 0.0,
        };
        let both_ways = |kb: &u64| *kb as f64 * kb_s + 2.0 * PAUSE_AND_ROUND_TRIPS_S;
        self.repetitions as f64 * self.sizes_kb.iter().map(both_ways).sum::<f64>()
    }

    fn prepare<'a>(&'a self, testbed: &'a Testbed, place: &mut Place, _run: &Run) -> Result<Box<dyn Measure + 'a>> {
        place.remote_host()?;
        let link = match (&place.network, testbed.shape()) {
            (Network::Uplink(uplink), Some(shape)) => Some(uplink.link_end(shape)?),
            _ => None,
        };
        Ok(Box::new(Requesting {
            requests: self,
            shape: testbed.shape(),
            has_upload: testbed.has_upload(),
            client: Client::start(place.sender(0)?.at, place.far()?.address, link)?,
            measured: Vec::new(),
            totals: None,
        }))
    }
}

impl Testbed {
    fn has_upload(&self) -> bool {
        self.loads.iter().any(|load| matches!(load, Load::Upload { .. }))
    }

    fn shape(&self) -> Option<&Shape> {
        match &self.topology {
            Topology::Uplink(shape) => Some(shape),
            _ => None,
        }
    }
}

impl Measure for Requesting<'_> {
    fn warm_up(&mut self, _place: &mut Place) -> Result<()> {
        for method in [HttpMethod::Get, HttpMethod::Post] {
            // The first of a kind finds cold caches everywhere.
            self.client.request(method, KB)?;
        }
        Ok(())
    }

    /// Every kind of request in every repetition, in an order and with pauses of the seed's choice.
    fn measure(&mut self, place: &mut Place, run: &Run) -> Result<()> {
        let before = self.totals(place)?;
        let mut random = ChaCha8Rng::seed_from_u64(run.seed);
        let mut kinds = self.requests.kinds();
        let repetitions = self.requests.repetitions;
        for repetition in 1..=repetitions {
            run.progress.tick(&format!("repetition {repetition} of {repetitions}"));
            shuffle(&mut kinds, &mut random);
            for &(method, kb) in &kinds {
                pause(&mut random)?;
                let before = place.remote_host()?.received_bytes()?;
                let completed = self.client.request(method, kb * KB)?;
                self.measured.push(Measured {
                    method,
                    kb,
                    completed,
                    background_bytes: place.remote_host()?.received_bytes()? - before,
                });
            }
        }
        self.totals = Some([before, self.totals(place)?]);
        Ok(())
    }

    fn report(self: Box<Self>, _place: &mut Place, run: &Run, outcome: &mut Outcome) -> Result<()> {
        run.keep(&self.measured)?;
        self.summarize(outcome, run);
        if self.has_upload {
            self.summarize_background(outcome, run.name);
            let longest_ns = self.measured.iter().map(|m| m.completed.yielded_ns).max();
            outcome.set(run.name, "yield_max_s", longest_ns.map(|ns| ns as f64 / 1e9));
        }
        Ok(())
    }
}

impl Requesting<'_> {
    fn totals(&mut self, place: &mut Place) -> Result<Totals> {
        Ok(Totals {
            at: Instant::now(),
            carried: self.client.carried()?,
            upload_received_bytes: place.remote_host()?.received_bytes()?,
        })
    }

    fn summarize(&self, outcome: &mut Outcome, run: &Run) {
        for (method, kb) in self.requests.kinds() {
            let is_of_kind = |m: &&Measured| m.method == method && m.kb == kb;
            let of_kind: Vec<_> = self.measured.iter().filter(is_of_kind).collect();
            let values = |of: fn(&Completed) -> f64| of_kind.iter().map(|m| of(&m.completed)).collect::<Vec<_>>();
            let point = format!("{}/{}/{kb}", run.name, <&str>::from(method));
            let seconds = values(|c| c.seconds);
            outcome.set(&point, "completion_mean_s", mean(&seconds));
            outcome.set(&point, "completion_p95_s", percentile(&seconds, 95.0));
            if run.has_virtual_time() {
                // Of the whole machine, link and remote host included: one is a nanosecond.
                outcome.set(&point, "instructions", mean(&values(|c| c.busy_ns as f64)));
            }
            if self.has_upload {
                let yielded_s = values(|c| c.yielded_ns as f64 / 1e9);
                outcome.set(&point, "yield_mean_s", mean(&yielded_s));
                outcome.set(&point, "yield_max_s", percentile(&yielded_s, 100.0));
                let bytes: u64 = of_kind.iter().map(|m| m.background_bytes).sum();
                let mbit = bytes as f64 * 8e-6 / seconds.iter().sum::<f64>();
                outcome.set(&point, "background_goodput_mbit", mbit);
            }
            outcome.samples.insert(point, seconds);
        }
    }

    /// What the foreground leaves is what the link can carry less what it carried for it; the upload's payload is
    /// taken with its headers, as the link carries them.
    fn summarize_background(&self, outcome: &mut Outcome, name: &str) {
        let Some([before, after]) = &self.totals else { return };
        let elapsed_s = (after.at - before.at).as_secs_f64();
        let received = (after.upload_received_bytes - before.upload_received_bytes) as f64;
        outcome.set(name, "background_goodput_mbit", received * 8e-6 / elapsed_s);
        if let Some(shape) = self.shape {
            let capacity = shape.up_kbit as f64 * 1e3 / 8.0 * elapsed_s;
            let left = capacity - (after.carried.foreground_bytes - before.carried.foreground_bytes) as f64;
            let on_link = received * PACKET_BYTES as f64 / PAYLOAD_BYTES as f64;
            outcome.set(name, "background_percent_of_left", 100.0 * on_link / left);
        }
    }
}

pub fn pause(random: &mut ChaCha8Rng) -> Result<()> {
    let share = f64::from(random.next_u32()) / f64::from(u32::MAX);
    experiment::pause(PAUSE_FROM_S + share * (PAUSE_TO_S - PAUSE_FROM_S))
}

/// Fisher and Yates's.
fn shuffle<T>(items: &mut [T], random: &mut ChaCha8Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.next_u32() as usize % (last + 1));
    }
}
