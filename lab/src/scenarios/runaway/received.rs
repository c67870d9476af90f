// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real-time priority that a stranger's packets keep busy: a handler of a [[chain]] that never ends its request, and NAPI
//! threads under a flood. Input: which of them. Output: how long it kept its priority, how long a shell on its CPU did
//! not answer, and whether a process of a rule, which does nothing wrong, lost its priority for it; the worst of all
//! times that it was tried.

use std::net::UdpSocket;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::shell::Shell;
use crate::channel::STATION_DEVICE;
use crate::giveway::realtime::PRIORITY;
use crate::giveway::{Daemon, answers};
use crate::interrupt::{pause_until, wait_until};
use crate::link::wire::{NOBODY_ADDRESS, RECEIVER_ADDRESS, Wire};
use crate::outcome::Metrics;
use crate::process::Process;
use crate::role::Role;
use crate::scheduling::is_realtime;
use crate::statistics::percentile;
use crate::traffic::realtime::flood::{self, Flood};

const PORT: u16 = 5_060;
const UNUSED_PORT: u16 = 5_061;
const FLOODS: usize = 2;
const START_LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy)]
pub enum ReceivePath {
    Chain,
    Napi,
}

/// Beside a rule's process that is innocent of it.
pub fn one_time(part: ReceivePath, seconds: u64, raw: &Path, label: &str) -> Result<Metrics> {
    let wire = Wire::create()?;
    // Without it a virtual device has no NAPI threads.
    wire.receiver.run("ethtool", &format!("-K {STATION_DEVICE} gro on"))?;
    let innocent_exe = raw.canonicalize()?.join("innocent");
    std::fs::copy("/bin/sleep", &innocent_exe)?;
    let mut daemon = Daemon::raise(&wire.receiver, &configuration(part, &innocent_exe), &raw.join(label))?;
    let mut command = wire.receiver.command(&innocent_exe)?;
    command.arg("infinity");
    let innocent = Process::spawn(command)?;
    wait_until("the rule's process to have its priority", START_LIMIT, || {
        Ok(is_realtime(innocent.id()))
    })?;
    let last_cpu = available_parallelism()?.get() - 1;
    let shell = Shell::start(last_cpu, &[])?;
    let mut metrics = match part {
        ReceivePath::Chain => requests(&wire, seconds, last_cpu)?,
        ReceivePath::Napi => under_flood(&wire, seconds)?,
    };
    let mut set = |metric: &str, value: f64| metrics.insert(metric.into(), value);
    let longest_ms = percentile(&shell.finish()?.ms(), 100.0);
    set("shell_max_ms", longest_ms.unwrap_or(f64::INFINITY));
    set("innocent_demoted", u8::from(!is_realtime(innocent.id())).into());
    let counters = answers::realtime(&wire.receiver)?.counters;
    set("demoted", counters.demoted as f64);
    set("starved", counters.starved as f64);
    set("parts_lowered", counters.parts_lowered as f64);
    daemon.stop()?;
    Ok(metrics)
}

fn configuration(part: ReceivePath, innocent: &Path) -> Value {
    let mut configuration = json!({
        "cap": {"policy": "none"},
        "queue": {"backend": "none"},
        "priority": [{"exe": innocent, "priority": PRIORITY}],
    });
    match part {
        ReceivePath::Chain => {
            configuration["chain"] =
                json!([{"local_port": PORT, "budget_ms": 10_000.0, "priority": PRIORITY, "share_percent": 50}]);
        }
        ReceivePath::Napi => configuration["receive"] = json!({"threaded_napi": true, "napi_priority": PRIORITY - 1}),
    }
    configuration
}

/// One request is handled without end; others keep coming.
fn requests(wire: &Wire, seconds: u64, cpu: usize) -> Result<Metrics> {
    let handler = Role::start(&wire.receiver, "endless-handler", &(seconds, cpu))?;
    let requests = Role::spawn(&wire.sender, "request-sender", &(RECEIVER_ADDRESS, PORT))?;
    let (raised_ms, demoted_ms): (f64, f64) = handler.finish()?;
    drop(requests);
    Ok(Metrics::from([
        ("never_raised".into(), f64::from(u8::from(raised_ms < 0.0))),
        ("demoted_ms".into(), demoted_ms),
    ]))
}

fn under_flood(wire: &Wire, seconds: u64) -> Result<Metrics> {
    let flood = Flood {
        port: UNUSED_PORT,
        marking: None,
        packets: 500,
    };
    wait_until("NAPI threads to have priority", START_LIMIT, || {
        let napi = answers::realtime(&wire.receiver)?.napi;
        Ok(napi.is_some_and(|napi| napi.raised))
    })?;
    let floods: Vec<_> = (0..FLOODS)
        .map(|_| flood::start(&wire.sender, NOBODY_ADDRESS.parse()?, &flood))
        .collect::<Result<_>>()?;
    pause_until(Instant::now() + Duration::from_secs(seconds))?;
    drop(floods);
    Ok(Metrics::new())
}

/// The role `endless-handler`: from the second request on it computes without end. Reports after how many milliseconds
/// it was raised, and for how many it stayed so at most; -1 and 0: never.
pub fn run_handler(description: &str) -> Result<()> {
    let (seconds, cpu): (u64, usize) = serde_json::from_str(description)?;
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &cpus)?;
    let socket = UdpSocket::bind((RECEIVER_ADDRESS, PORT))?;
    println!();
    for _ in 0..2 {
        socket.recv_from(&mut [0; 64])?;
    }
    let (begun, mut raised, mut kept) = (Instant::now(), None, Duration::ZERO);
    while begun.elapsed() < Duration::from_secs(seconds) {
        match (is_realtime(0), raised) {
            (true, None) => raised = Some(begun.elapsed()),
            (true, Some(at)) => kept = begun.elapsed() - at,
            // What counts is the first time; later ones are bounded by the same share.
            (false, Some(_)) if !kept.is_zero() => break,
            _ => {}
        }
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!("{}", json!([raised.map_or(-1.0, ms), ms(kept)]));
    Ok(())
}
