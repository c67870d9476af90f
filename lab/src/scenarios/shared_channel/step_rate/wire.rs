// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device that uploads behind a modem whose rate steps: 20, 2 and 20 Mbit/s.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use super::Steps;
use crate::experiment::Run;
use crate::giveway::Daemon;
use crate::guest::Guest;
use crate::modem::{FAR_ADDRESS, Modem, ModemLink};
use crate::outcome::Outcome;
use crate::scenarios::queues::modem_queue::start_queue;
use crate::traffic::endless::{start_observed_sender, start_probe, start_sink};
use crate::traffic::realtime::monotonic_ns;
use crate::traffic::uploads::{FIRST_PORT, Uploaded};

/// It has the BPF qdisc and netem, and a clock that the machine does not disturb.
pub const GUEST: Guest = Guest::VIRTUAL;
pub const RTT_MS: u64 = 60;
const FAST_MBIT: f64 = 20.0;
const SLOW_MBIT: f64 = 2.0;

#[derive(Clone, Copy, PartialEq)]
pub enum WireMethod {
    Plain,
    /// The queue's rate is estimated: `[link] rate_mbit = "auto"`.
    Auto,
    /// The share is estimated: `[cap] policy = "estimated"`.
    Found,
}

pub fn upload(run: &Run, method: WireMethod, steps: Steps) -> Result<Outcome> {
    let rates = [(0.0, FAST_MBIT), (steps.falls_s, SLOW_MBIT), (steps.rises_s, FAST_MBIT)];
    let queue = (method != WireMethod::Auto).then_some("pfifo limit 1000");
    let modem = Modem::raise(queue, RTT_MS, ModemLink::Steps(rates), (run.seed, steps.end_s))?;
    let daemon = start_daemon(&modem, method, run)?;
    let sink = start_sink(&modem.far, &[FIRST_PORT])?;
    let (begun, begun_ns) = (Instant::now(), monotonic_ns()?);
    let _probe = start_probe(&modem.device, FAR_ADDRESS)?;
    let sender = start_observed_sender(&modem.device, FAR_ADDRESS, FIRST_PORT, "cubic")?;
    run.progress.tick("measuring");
    modem.pass(begun, 0.0, steps.end_s)?;
    let uploaded = Uploaded::of_one(begun_ns, sink.finish()?, sender.finish()?);
    run.keep(&uploaded)?;
    daemon.map_or(Ok(()), |mut daemon| daemon.stop())?;
    let mut outcome = steps.outcome(run.name, &uploaded);
    let waits = uploaded.probes_stay_below_s((steps.falls_s, steps.rises_s), steps.bound_ms - RTT_MS as f64);
    outcome.set(run.name, "others_down_s", waits);
    Ok(outcome)
}

fn start_daemon(modem: &Modem, method: WireMethod, run: &Run) -> Result<Option<Daemon>> {
    match method {
        WireMethod::Plain => Ok(None),
        WireMethod::Auto => start_queue(modem, json!("auto"), run).map(Some),
        WireMethod::Found => {
            let configuration = json!({
                "cap": {"policy": "estimated"},
                "queue": {"backend": "none"},
                "classes": {"congestion_control": false},
            });
            let daemon = Daemon::raise(&modem.device, &configuration, &run.file(""))?;
            Ok(Some(daemon))
        }
    }
}
