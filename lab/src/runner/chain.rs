// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests with deadlines, their handling and their answers over the modelled link, beside computing processes, floods
//! of pings and bulk TCP on both ends.
//! In: what of giveway is on, how many requests. Out: what became of them, by the clocks of who asked and who answered.

mod fate;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Run;
use crate::air::STATION_DEVICE;
use crate::giveway::{self, Daemon};
use crate::interrupt::pause_until;
use crate::link::Link;
use crate::link::wire::{RECEIVER_ADDRESS, Wire};
use crate::namespace::{Namespace, ip};
use crate::outcome::Outcome;
use crate::process::{self, Process};
use crate::scenario::chain::{Chain, Parts};
use crate::traffic::realtime::requests::{ANSWER_PORT, Requests};
use crate::traffic::realtime::service::Service;
use crate::traffic::realtime::{PORT, icmp, monotonic_ns, requests, service};
use fate::Parties;

/// Of the namespace that asks.
const ASKING_ADDRESS: &str = "10.77.2.1";
const COMPUTING_PROCESSES: usize = 2;
const HANDLER_PRIORITY: i32 = 40;
/// From the start of the load to the first request: the queues are full by then.
const HEAD_START: Duration = Duration::from_secs(2);

pub fn run(chain: &Chain, run: &Run, raw: &Path) -> Result<Outcome> {
    let name = &run.variant.name;
    let wire = raise_wire()?;
    let ends = [(&wire.sender, "asking"), (&wire.receiver, "answering")];
    let mut daemons = Vec::new();
    for (end, role) in ends {
        daemons.extend(set_up(chain, end, role == "answering", raw, &format!("{name}-{role}"))?);
    }
    let link = |end| Link::load(end, chain.rate_mbit * 125_000, 1, chain.requests);
    let (there, back) = (link(&wire.sender)?, link(&wire.receiver)?);
    let service = service::Description {
        work_ns: chain.work_us * 1_000,
        priority: chain.parts.priority.then_some(HANDLER_PRIORITY),
        requests: chain.requests,
    };
    let service = Service::start(&wire.receiver, &service)?;
    let load = start_load(&wire, &raw.join(format!("{name}-bulk.log")))?;
    let first = Instant::now() + HEAD_START;
    let requests = requests::Description {
        requests: chain.requests,
        first_ns: monotonic_ns()? + HEAD_START.as_nanos() as u64,
        every_ns: chain.every_us * 1_000,
        send_within_us: chain.budget.send_us,
        answer_within_us: u32::try_from(chain.budget.answer_us)?,
    };
    let requests = Requests::start(&wire.sender, &requests)?;
    run.progress.tick("the queues fill");
    pause_until(first)?;
    let passed = || Ok::<_, anyhow::Error>([there.passed()?.bytes(), back.passed()?.bytes()]);
    let (before, begun_ns) = (passed()?, monotonic_ns()?);
    run.progress.tick("requests");
    let asked = requests.finish()?;
    let (after, ended_ns) = (passed()?, monotonic_ns()?);
    drop(load);
    let handled = service.finish()?;

    let mut outcome = Outcome::default();
    let parties = Parties {
        asked: &asked,
        handled: &handled,
        there: &there.stamps()?,
        back: &back.stamps()?,
    };
    let told = fate::summarize(&mut outcome, name, chain.budget.sum_us(), &parties);
    let counted = if chain.parts.queue { refused(&wire)? } else { 0 };
    outcome.set(name, "refused", counted as f64);
    outcome.set(name, "refused_untold", counted.abs_diff(told) as f64);
    for (metric, way) in [("link_mbit", 0), ("link_back_mbit", 1)] {
        let mbit = (after[way] - before[way]) as f64 * 8e3 / (ended_ns - begun_ns) as f64;
        outcome.set(name, metric, mbit);
    }
    if chain.parts.wake {
        outcome.set(
            name,
            "raises",
            giveway::raises(&wire.receiver, &raw.join(format!("{name}-why.json")))? as f64,
        );
    }
    for daemon in &mut daemons {
        daemon.stop()?;
    }
    Ok(outcome)
}

/// As network cards are: what arrives is taken in by NAPI, which a virtual one has where it may join packets.
fn raise_wire() -> Result<Wire> {
    let wire = Wire::create()?;
    for end in [&wire.sender, &wire.receiver] {
        let mut ethtool = end.command("ethtool")?;
        ethtool.args(["-K", STATION_DEVICE, "gro", "on"]);
        process::run(ethtool)?;
    }
    let back = ["-n", wire.receiver.name(), "neighbour", "replace", ASKING_ADDRESS];
    let known = ["lladdr", "02:00:00:00:02:01", "dev", STATION_DEVICE, "nud", "permanent"];
    process::run(ip(&[&back[..], &known[..]].concat()))?;
    Ok(wire)
}

/// giveway's daemon, where any of its parts is on; the kernel's queue, paced to the link, where its own is not.
fn set_up(chain: &Chain, end: &Namespace, answers: bool, raw: &Path, label: &str) -> Result<Option<Daemon>> {
    let Parts {
        queue, receive, wake, ..
    } = chain.parts;
    if !queue {
        pace(end, chain.rate_mbit)?;
    }
    if !(queue || receive || wake && answers) {
        return Ok(None);
    }
    let mut configuration = json!({
        "cap": {"policy": "none"},
        "link": {"rate_mbit": chain.rate_mbit as f64},
        "queue": {"backend": if queue { "qdisc" } else { "none" }},
    });
    if receive {
        configuration["receive"] = json!({"threaded_napi": true, "napi_priority": chain.napi_priority});
    }
    if answers && wake {
        // The request says itself what is left, and the smaller counts.
        let budget_ms = chain.budget.sum_us() as f64 / 1e3;
        let rule = json!({"local_port": PORT, "budget_ms": budget_ms, "priority": HANDLER_PRIORITY});
        configuration["chain"] = Value::Array(vec![rule]);
    } else if answers && queue {
        let left_us = chain.budget.answer_us.saturating_sub(chain.work_us);
        configuration["deadline"] = json!([{"port": ANSWER_PORT, "deadline_ms": left_us as f64 / 1e3}]);
    }
    let file = raw.join(format!("{label}.toml"));
    giveway::write(&file, &configuration)?;
    let mut daemon = Daemon::start(end, &file, raw.join(format!("{label}.log")))?;
    match queue {
        true => daemon.wait_until_queueing(end)?,
        false => daemon.wait_until_up(end)?,
    }
    Ok(Some(daemon))
}

/// By the daemons' own counts, of both ends.
fn refused(wire: &Wire) -> Result<u64> {
    let mut sum = 0;
    for end in [&wire.sender, &wire.receiver] {
        let counters = giveway::status(end)?.queue.and_then(|queue| queue.counters);
        sum += counters.context("giveway says nothing of its queue")?.refused.total;
    }
    Ok(sum)
}

fn pace(end: &Namespace, rate_mbit: u64) -> Result<()> {
    let pace = format!("root handle 1: tbf rate {rate_mbit}mbit burst 1514 limit 10000000");
    for line in [&pace, "parent 1: handle 10: pfifo_fast"] {
        let mut tc = Command::new("tc");
        tc.args(["-n", end.name(), "qdisc", "replace", "dev", STATION_DEVICE]);
        tc.args(line.split_whitespace());
        process::run(tc)?;
    }
    Ok(())
}

/// Until it is dropped.
fn start_load(wire: &Wire, bulk_log: &Path) -> Result<Vec<Process>> {
    let mut load = Vec::new();
    for end in [&wire.sender, &wire.receiver] {
        for _ in 0..COMPUTING_PROCESSES {
            let mut compute = end.command("sh")?;
            compute.args(["-c", "while :; do :; done"]);
            load.push(Process::spawn(compute)?);
        }
    }
    load.push(icmp::start(&wire.sender, RECEIVER_ADDRESS)?);
    load.push(icmp::start(&wire.receiver, ASKING_ADDRESS)?);
    let mut sink = wire.receiver.command("iperf3")?;
    sink.args(["--server", "--bind", RECEIVER_ADDRESS]);
    sink.stdin(Stdio::null()).stdout(Stdio::null());
    load.push(Process::spawn(sink)?);
    let mut bulk = wire.sender.command("sh")?;
    let line =
        format!("until iperf3 --client {RECEIVER_ADDRESS} --bidir --time 86400 --forceflush; do usleep 10000; done");
    bulk.args(["-c", &line]).stdin(Stdio::null());
    let log = File::create(bulk_log)?;
    bulk.stdout(log.try_clone()?).stderr(log);
    load.push(Process::spawn(bulk)?);
    Ok(load)
}
