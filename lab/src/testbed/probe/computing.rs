// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that only computes, beside transfers that want the link and the processor.
//! Input: how much is computed and how often. Output: how long it took, and what an upload got while it ran and
//! between, or a download in all. Every run is kept as JSON.

use std::time::Instant;

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;

use super::super::place::Place;
use super::super::{Load, Testbed};
use super::requests::pause;
use super::{Measure, Probe};
use crate::experiment::Run;
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::role::Role;
use crate::statistics::{mean, percentile};

const DATAGRAM_BYTES: f64 = 1_400.0;

pub struct Computing {
    /// How much the program computes each time.
    pub steps: u64,
    pub repetitions: u64,
}

/// One run of the program, and the pause before it.
#[derive(Serialize)]
struct Measured {
    seconds: f64,
    pause_s: f64,
    background_bytes: u64,
    background_pause_bytes: u64,
}

struct Working<'a> {
    computing: &'a Computing,
    loads: &'a [Load],
    work: Role,
    measured: Vec<Measured>,
    downloaded_mbit: f64,
}

impl Probe for Computing {
    fn estimated_s(&self, _testbed: &Testbed) -> f64 {
        // A step is seven or eight instructions; each time there is a pause before it.
        self.repetitions as f64 * (self.steps as f64 * 8e-9 + 1.0)
    }

    fn prepare<'a>(&'a self, testbed: &'a Testbed, place: &mut Place, _run: &Run) -> Result<Box<dyn Measure + 'a>> {
        place.remote_host()?;
        Ok(Box::new(Working {
            computing: self,
            loads: &testbed.loads,
            work: Role::start(place.sender(0)?.at, "work", &())?,
            measured: Vec::new(),
            downloaded_mbit: 0.0,
        }))
    }
}

impl Measure for Working<'_> {
    fn measure(&mut self, place: &mut Place, run: &Run) -> Result<()> {
        let (begun, received) = (Instant::now(), datagrams(place.sender(0)?.at)?);
        let mut random = ChaCha8Rng::seed_from_u64(run.seed);
        let Computing { steps, repetitions } = *self.computing;
        for repetition in 1..=repetitions {
            run.progress.tick(&format!("run {repetition} of {repetitions}"));
            let (begun, received) = (Instant::now(), place.remote_host()?.received_bytes()?);
            pause(&mut random)?;
            let (pause_s, before) = (begun.elapsed().as_secs_f64(), place.remote_host()?.received_bytes()?);
            let seconds = self.work.ask(steps)?;
            self.measured.push(Measured {
                seconds,
                pause_s,
                background_bytes: place.remote_host()?.received_bytes()? - before,
                background_pause_bytes: before - received,
            });
        }
        let received = datagrams(place.sender(0)?.at)? - received;
        self.downloaded_mbit = received * DATAGRAM_BYTES * 8e-6 / begun.elapsed().as_secs_f64();
        Ok(())
    }

    fn report(self: Box<Self>, _place: &mut Place, run: &Run, outcome: &mut Outcome) -> Result<()> {
        let (name, measured) = (run.name, self.measured);
        run.keep(&measured)?;
        let seconds: Vec<_> = measured.iter().map(|m| m.seconds).collect();
        outcome.set(name, "run_time_mean_s", mean(&seconds));
        outcome.set(name, "run_time_max_s", percentile(&seconds, 100.0));
        if self.loads.iter().any(|load| matches!(load, Load::Upload { .. })) {
            let mbit = |bytes: fn(&Measured) -> u64, seconds: fn(&Measured) -> f64| {
                let bytes: u64 = measured.iter().map(bytes).sum();
                bytes as f64 * 8e-6 / measured.iter().map(seconds).sum::<f64>()
            };
            let beside = mbit(|m| m.background_bytes, |m| m.seconds);
            let between = mbit(|m| m.background_pause_bytes, |m| m.pause_s);
            outcome.set(name, "background_goodput_mbit", beside);
            outcome.set(name, "background_between_mbit", between);
        }
        if self.loads.iter().any(|load| matches!(load, Load::Download { .. })) {
            outcome.set(name, "background_goodput_mbit", self.downloaded_mbit);
        }
        outcome.samples.insert(name.into(), seconds);
        Ok(())
    }
}

/// What the namespace's UDP has given to its readers.
fn datagrams(device: &Namespace) -> Result<f64> {
    let said = String::from_utf8(device.run("cat", "/proc/net/snmp")?.stdout)?;
    let values = said.lines().filter(|line| line.starts_with("Udp:")).nth(1);
    let received = values.and_then(|line| line.split_whitespace().nth(1));
    received
        .context("/proc/net/snmp has no line of UDP")?
        .parse()
        .context("/proc/net/snmp is not readable")
}
