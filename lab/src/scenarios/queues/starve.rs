// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Background connections below an uplink that is full of something better for an hour, or beside a program that computes
//! for ten minutes: whether they live on and take the link again, and what that costs the foreground.

use anyhow::Result;
use serde_json::json;

use crate::experiment::{Run, pause};
use crate::giveway::Daemon;
use crate::guest::{Clock, Guest};
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::process::Process;
use crate::scenario::{Check, Relation, Variant};
use crate::traffic::endless::{Arrivals, start_sender, start_sink};
use crate::traffic::realtime::monotonic_ns;
use crate::uplink::{FAR_ADDRESS, PACKET_BYTES, Shape, Uplink, UplinkQueue};

/// 3,600 s in virtual time.
const FREE: Guest = Guest::VIRTUAL;
/// A program that computes for so long would take hours in virtual time.
const COMPUTING: Guest = Guest {
    clock: Clock::Real,
    ..Guest::VIRTUAL
};
const COMPUTING_S: f64 = 600.0;
const SHAPE: Shape = Shape {
    up_kbit: 1_000,
    down_kbit: 3_000,
    rtt_ms: 100,
    queue: UplinkQueue::Giveway {
        cpu_gate: true,
        short: false,
    },
    driver_bytes: PACKET_BYTES,
};
const LINK_MBIT: f64 = SHAPE.up_kbit as f64 / 1e3;
const BACKGROUND: [u16; 3] = [5_511, 5_512, 5_513];
const FOREGROUND: u16 = 5_520;
/// For the background to come back.
const RETURN_S: f64 = 10.0;
const BACK_MBIT: f64 = LINK_MBIT / 2.0;

/// What keeps the background from sending.
#[derive(Clone, Copy)]
enum Foreground {
    Transfer,
    Computing,
}

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let warmup_s = parameters.seconds("warmup_s");
    let seconds = parameters.seconds("seconds");
    let variant = |name: &str, guest, foreground, seconds: f64, background_min_kbit: Option<u32>| {
        Variant::new(name, Some(guest), warmup_s + seconds + RETURN_S, move |run| {
            starve(run, foreground, warmup_s, seconds, background_min_kbit)
        })
    };
    let (transfer, computing) = (Foreground::Transfer, Foreground::Computing);
    Ok(vec![
        variant("free/giveway", FREE, transfer, seconds, None),
        // P0's rule.
        variant("free/pure", FREE, transfer, seconds, Some(0)),
        variant("computing/giveway", COMPUTING, computing, COMPUTING_S, None),
    ])
}

pub fn bounds() -> Vec<Check> {
    let (ours, pure, metric) = ("free/giveway", "free/pure", "foreground_mbit");
    let name = format!("{ours} {metric} / {pure}");
    let mut checks = vec![Check::ratio(name, ours, pure, metric, Relation::AtLeast(0.99))];
    for name in [ours, "computing/giveway"] {
        checks.push(Check::metric(name, "lost_connections", Relation::Exactly(0.0)));
        checks.push(Check::metric(name, "return_s", Relation::AtMost(1.0)));
    }
    checks
}

fn starve(
    run: &Run,
    foreground: Foreground,
    warmup_s: f64,
    seconds: f64,
    background_min_kbit: Option<u32>,
) -> Result<Outcome> {
    let uplink = Uplink::raise(&SHAPE)?;
    let rule = |port: &u16| json!({"port": port, "class": "background"});
    let mut configuration = json!({
        "cap": {"policy": "none"},
        "link": {"rate_mbit": LINK_MBIT, "driver_bytes": SHAPE.driver_bytes},
        "rule": BACKGROUND.iter().map(rule).collect::<Vec<_>>(),
    });
    if let Some(kbit) = background_min_kbit {
        configuration["queue"] = json!({"background_min_kbit": kbit});
    }
    let mut daemon = Daemon::launch(&uplink.device, &configuration, &run.file(""))?;
    daemon.wait_until_queueing(&uplink.device)?;
    let sink = start_sink(&uplink.far, &[&BACKGROUND[..], &[FOREGROUND]].concat())?;
    run.progress.tick("background alone");
    let start = |port: &u16| start_sender(&uplink.device, FAR_ADDRESS, *port, "cubic");
    let mut background: Vec<Process> = BACKGROUND.iter().map(start).collect::<Result<_>>()?;
    pause(warmup_s)?;
    run.progress.tick("a foreground beside it");
    let from_ns = monotonic_ns()?;
    let better = match foreground {
        Foreground::Transfer => start(&FOREGROUND)?,
        Foreground::Computing => {
            let mut shell = uplink.device.command("sh")?;
            shell.args(["-c", "while :; do :; done"]);
            Process::spawn(shell)?
        }
    };
    pause(seconds)?;
    let to_ns = monotonic_ns()?;
    drop(better);
    run.progress.tick("background alone again");
    pause(RETURN_S)?;
    let mut lost = 0;
    for connection in &mut background {
        lost += u32::from(connection.exit()?.is_some());
    }
    let end_ns = monotonic_ns()?;
    let arrivals = sink.finish::<Arrivals>()?;
    daemon.stop()?;
    run.keep(&arrivals)?;
    let mut outcome = Outcome::default();
    let mbit = |port: &u16| arrivals.mbit(*port, (from_ns, to_ns));
    if matches!(foreground, Foreground::Transfer) {
        outcome.set(run.name, "foreground_mbit", mbit(&FOREGROUND));
    }
    let kbit = BACKGROUND.iter().map(mbit).sum::<f64>() * 1e3;
    outcome.set(run.name, "background_kbit", kbit);
    outcome.set(run.name, "lost_connections", f64::from(lost));
    let return_s = arrivals.settles_s(&BACKGROUND, (to_ns, end_ns), BACK_MBIT, true);
    outcome.set(run.name, "return_s", return_s);
    Ok(outcome)
}
