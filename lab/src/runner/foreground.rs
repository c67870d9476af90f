// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HTTP requests of a foreground program, one after the other, while a background upload of the same device never
//! stops (P0, figures 6 to 12).
//! In: the uplink's shape, who uploads, which requests and how often. Out: per kind of request its completion times,
//! what the processors spent and what the upload moved meanwhile; for the whole time, how much the upload got of what
//! the foreground left. Every single request is kept as JSON.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;
use serde_json::json;

use super::Run;
use crate::giveway::{self, Daemon};
use crate::guest::Clock;
use crate::interrupt::pause_until;
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::process::Process;
use crate::scenario::foreground::{Foreground, Queue, Shape};
use crate::statistics::{mean, percentile};
use crate::traffic::http::{Carried, Client, Completed, FarEnd, KB, Method, start_upload};
use crate::uplink::{PACKET_BYTES, Uplink};

/// Between two requests: long against a packet's time and a round trip, and evenly distributed, so that a request
/// meets every phase of the upload, which has recovered by then from the request before.
const PAUSE_FROM_S: f64 = 0.5;
const PAUSE_TO_S: f64 = 1.5;
/// Ethernet, IPv4 and TCP with timestamps.
const HEADER_BYTES: u64 = 14 + 20 + 32;
const PAYLOAD_BYTES: u64 = PACKET_BYTES - HEADER_BYTES;

/// A request and what happened while it was under way.
#[derive(Serialize)]
struct Measured {
    method: Method,
    kb: u64,
    #[serde(flatten)]
    completed: Completed,
    background_bytes: u64,
}

/// Totals since the start; the difference of two is a period.
struct Totals {
    at: Instant,
    carried: Carried,
    upload_received_bytes: u64,
}

pub fn run(foreground: &Foreground, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let label = name.replace('/', "-");
    let uplink = Uplink::raise(&foreground.shape)?;
    let daemon = start_daemon(&foreground.shape, &uplink.device, raw, &label)?;
    let mut far = FarEnd::start(&uplink.far)?;
    let mut client = Client::start(&uplink.device, &uplink.link_end(&foreground.shape)?)?;
    let upload = foreground
        .background
        .map(|congestion| start_upload(&uplink.device, congestion));
    let upload: Option<Process> = upload.transpose()?;
    run.progress.tick("warming up");
    for method in [Method::Get, Method::Post] {
        // The first of a kind finds cold caches everywhere.
        client.request(method, KB)?;
    }
    pause_until(Instant::now() + Duration::from_secs_f64(foreground.warmup_s))?;

    let before = totals(&mut client, &mut far)?;
    let measured = all_requests(foreground, run, &mut client, &mut far)?;
    let after = totals(&mut client, &mut far)?;
    let file = raw.join(format!("{label}.json"));
    std::fs::write(&file, serde_json::to_string(&measured)?)
        .with_context(|| format!("cannot write {}", file.display()))?;
    let mut outcome = Outcome::default();
    summarize(&mut outcome, name, foreground, &measured);
    if run.variant.guest.is_some_and(|guest| guest.clock == Clock::Virtual) {
        summarize_instructions(&mut outcome, name, &measured);
    }
    if upload.is_some() {
        summarize_background(&mut outcome, name, foreground, &before, &after);
        let longest_ns = measured.iter().map(|m| m.completed.yielded_ns).max();
        outcome.set(name, "yield_max_s", longest_ns.map(|ns| ns as f64 / 1e9));
    }
    drop(upload);
    if let Some(mut daemon) = daemon {
        daemon.stop()?;
    }
    Ok(outcome)
}

/// Where the queue is giveway's.
pub fn start_daemon(shape: &Shape, device: &Namespace, raw: &Path, label: &str) -> Result<Option<Daemon>> {
    let Queue::Giveway { gate, ingress } = shape.queue else {
        return Ok(None);
    };
    let configuration = raw.join(format!("{label}.toml"));
    let rate_mbit = shape.up_kbit as f64 / 1e3;
    giveway::write_uplink_configuration(
        &configuration,
        rate_mbit,
        shape.driver_bytes,
        json!({"gate": gate, "ingress": ingress}),
    )?;
    let mut daemon = Daemon::start(device, &configuration, raw.join(format!("{label}.log")))?;
    daemon.wait_until_queueing(device)?;
    Ok(Some(daemon))
}

/// Every kind of request in every repetition, in an order and with pauses of the seed's choice.
fn all_requests(foreground: &Foreground, run: &Run, client: &mut Client, far: &mut FarEnd) -> Result<Vec<Measured>> {
    let mut random = ChaCha8Rng::seed_from_u64(run.seed);
    let mut kinds: Vec<_> = [Method::Get, Method::Post]
        .into_iter()
        .flat_map(|method| foreground.sizes_kb.iter().map(move |kb| (method, *kb)))
        .collect();
    let mut measured = Vec::new();
    for repetition in 1..=foreground.repetitions {
        run.progress
            .tick(&format!("repetition {repetition} of {}", foreground.repetitions));
        shuffle(&mut kinds, &mut random);
        for &(method, kb) in &kinds {
            pause(&mut random)?;
            let before = far.received_bytes()?;
            let completed = client.request(method, kb * KB)?;
            measured.push(Measured {
                method,
                kb,
                completed,
                background_bytes: far.received_bytes()? - before,
            });
        }
    }
    Ok(measured)
}

pub fn pause(random: &mut ChaCha8Rng) -> Result<()> {
    let share = f64::from(random.next_u32()) / f64::from(u32::MAX);
    let pause_s = PAUSE_FROM_S + share * (PAUSE_TO_S - PAUSE_FROM_S);
    pause_until(Instant::now() + Duration::from_secs_f64(pause_s))
}

/// Fisher and Yates's.
fn shuffle<T>(items: &mut [T], random: &mut ChaCha8Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.next_u32() as usize % (last + 1));
    }
}

fn summarize(outcome: &mut Outcome, name: &str, foreground: &Foreground, measured: &[Measured]) {
    for method in [Method::Get, Method::Post] {
        for &kb in &foreground.sizes_kb {
            let of_kind: Vec<_> = measured.iter().filter(|m| m.method == method && m.kb == kb).collect();
            let values = |of: fn(&Completed) -> f64| of_kind.iter().map(|m| of(&m.completed)).collect::<Vec<_>>();
            let point = point(name, method, kb);
            let seconds = values(|c| c.seconds);
            outcome.set(&point, "completion_mean_s", mean(&seconds));
            outcome.set(&point, "completion_p95_s", percentile(&seconds, 95.0));
            if foreground.background.is_some() {
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
}

/// Of the whole machine, link and far end included, while the request was under way: in virtual time one instruction
/// is one nanosecond.
fn summarize_instructions(outcome: &mut Outcome, name: &str, measured: &[Measured]) {
    let mut spent: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for m in measured {
        let of_kind = spent.entry(point(name, m.method, m.kb)).or_default();
        of_kind.push(m.completed.busy_ns as f64);
    }
    for (point, instructions) in spent {
        outcome.set(&point, "instructions", mean(&instructions));
    }
}

fn point(name: &str, method: Method, kb: u64) -> String {
    format!("{name}/{}/{kb}", method.name())
}

/// What the foreground leaves is what the link can carry less what it carried for it; the upload's payload is
/// taken with its headers, as the link carries them.
fn summarize_background(outcome: &mut Outcome, name: &str, foreground: &Foreground, before: &Totals, after: &Totals) {
    let elapsed_s = (after.at - before.at).as_secs_f64();
    let received = (after.upload_received_bytes - before.upload_received_bytes) as f64;
    let capacity = foreground.shape.up_kbit as f64 * 1e3 / 8.0 * elapsed_s;
    let left = capacity - (after.carried.foreground_bytes - before.carried.foreground_bytes) as f64;
    let on_link = received * PACKET_BYTES as f64 / PAYLOAD_BYTES as f64;
    outcome.set(name, "background_goodput_mbit", received * 8e-6 / elapsed_s);
    outcome.set(name, "background_percent_of_left", 100.0 * on_link / left);
}

fn totals(client: &mut Client, far: &mut FarEnd) -> Result<Totals> {
    Ok(Totals {
        at: Instant::now(),
        carried: client.carried()?,
        upload_received_bytes: far.received_bytes()?,
    })
}
