// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that only computes, while an upload of the same device wants the link and the one processor.
//! In: the uplink's shape, how much is computed and how often. Out: how long it took, and what the upload got while it
//! ran and between. Every run is kept as JSON.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;

use super::Run;
use super::foreground::{pause, start_daemon};
use crate::interrupt::pause_until;
use crate::outcome::Outcome;
use crate::scenario::foreground::Gate;
use crate::statistics::{mean, percentile};
use crate::traffic::http::{FarEnd, start_upload};
use crate::traffic::work::Work;
use crate::uplink::Uplink;

/// One run of the program, and the pause before it.
#[derive(Serialize)]
struct Measured {
    seconds: f64,
    pause_s: f64,
    background_bytes: u64,
    background_pause_bytes: u64,
}

pub fn run(gate: &Gate, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let label = name.replace('/', "-");
    let uplink = Uplink::raise(&gate.shape)?;
    let daemon = start_daemon(&gate.shape, &uplink.device, raw, &label)?;
    let mut far = FarEnd::start(&uplink.far)?;
    let mut work = Work::start(&uplink.device)?;
    let upload = gate.upload.then(|| start_upload(&uplink.device, "cubic")).transpose()?;
    run.progress.tick("warming up");
    pause_until(Instant::now() + Duration::from_secs_f64(gate.warmup_s))?;

    let mut random = ChaCha8Rng::seed_from_u64(run.seed);
    let mut measured = Vec::new();
    for repetition in 1..=gate.repetitions {
        run.progress.tick(&format!("run {repetition} of {}", gate.repetitions));
        let (begun, received) = (Instant::now(), far.received_bytes()?);
        pause(&mut random)?;
        let (pause_s, before) = (begun.elapsed().as_secs_f64(), far.received_bytes()?);
        let seconds = work.run(gate.steps)?;
        measured.push(Measured {
            seconds,
            pause_s,
            background_bytes: far.received_bytes()? - before,
            background_pause_bytes: before - received,
        });
    }
    let file = raw.join(format!("{label}.json"));
    std::fs::write(&file, serde_json::to_string(&measured)?)
        .with_context(|| format!("cannot write {}", file.display()))?;
    drop(upload);
    if let Some(mut daemon) = daemon {
        daemon.stop()?;
    }
    Ok(summarize(name, gate, &measured))
}

fn summarize(name: &str, gate: &Gate, measured: &[Measured]) -> Outcome {
    let mut outcome = Outcome::default();
    let seconds: Vec<_> = measured.iter().map(|m| m.seconds).collect();
    outcome.set(name, "run_time_mean_s", mean(&seconds));
    outcome.set(name, "run_time_max_s", percentile(&seconds, 100.0));
    if gate.upload {
        let mbit = |bytes: fn(&Measured) -> u64, seconds: fn(&Measured) -> f64| {
            let bytes: u64 = measured.iter().map(bytes).sum();
            bytes as f64 * 8e-6 / measured.iter().map(seconds).sum::<f64>()
        };
        let beside = mbit(|m| m.background_bytes, |m| m.seconds);
        let between = mbit(|m| m.background_pause_bytes, |m| m.pause_s);
        outcome.set(name, "background_goodput_mbit", beside);
        outcome.set(name, "background_between_mbit", between);
    }
    outcome.samples.insert(name.into(), seconds);
    outcome
}
