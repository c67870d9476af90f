// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests with deadlines, their handling and their answers over the modelled link, beside computing processes, floods
//! of pings and bulk TCP on both ends. Input: the active parts of giveway, how many requests. Output: their outcome, by
//! the clocks of the client and the service.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::fate::{self, Parties};
use crate::channel::STATION_DEVICE;
use crate::experiment::Run;
use crate::giveway::{Daemon, answers};
use crate::interrupt::pause_until;
use crate::link::Link;
use crate::link::wire::{Wire, paced};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::role::Role;
use crate::testbed::load::{self, Load};
use crate::testbed::place::{Network, Place};
use crate::traffic::realtime::requests::ANSWER_PORT;
use crate::traffic::realtime::{PORT, monotonic_ns, requests, service};

/// On both ends.
const LOADS: [Load; 3] = [Load::Computing { processes: 2 }, Load::Pings, Load::Bulk];
const HANDLER_PRIORITY: i32 = 40;
/// From the start of the load to the first request: the queues are full by then.
const HEAD_START: Duration = Duration::from_secs(2);

const RATE_MBIT: u64 = 100;
pub const EVERY_US: u64 = 5_000;
/// CPU time of the service for each.
const WORK_US: u64 = 1_000;
/// From creating a request until its last bit has left.
const SEND_US: u64 = 2_000;
/// From its arrival until the last bit of its answer has left.
const ANSWER_US: u64 = 2_700;
/// Until the client has the answer.
const RECEIVE_US: u64 = 300;
/// The bound for late.
const BUDGET_US: u64 = SEND_US + ANSWER_US + RECEIVE_US;

/// Requests with a deadline from one end of the modelled link to a service at the other, and its answers, beside load
/// on both ends.
pub struct Chain {
    pub requests: u32,
    pub napi_priority: u32,
    pub parts: Parts,
}

/// The active parts of giveway.
#[derive(Clone, Copy)]
pub struct Parts {
    /// Deadlines in the queue, with admission, on both ends.
    pub queue: bool,
    /// The service is real-time all the time, by a [[priority]] rule.
    pub priority: bool,
    /// Threaded NAPI at a priority, on both ends.
    pub receive: bool,
    /// The request's deadline wakes the service and is inherited by the answer.
    pub wake: bool,
}

impl Chain {
    // Long: the steps of one experiment, in their order.
    pub fn run(&self, run: &Run) -> Result<Outcome> {
        let name = run.name;
        let wire = Wire::create()?;
        let ends = [(&wire.sender, "asking"), (&wire.receiver, "answering")];
        let mut daemons = Vec::new();
        for (end, role) in ends {
            // As network cards do: NAPI receives the packets, which a virtual device uses only with GRO.
            end.run("ethtool", &format!("-K {STATION_DEVICE} gro on"))?;
            daemons.extend(set_up(self, end, run, role)?);
        }
        let link = |end| Link::load(end, RATE_MBIT * 125_000, 1, self.requests);
        let (there, back) = (link(&wire.sender)?, link(&wire.receiver)?);
        let service = service::ServiceOptions {
            work_ns: WORK_US * 1_000,
            priority: self.parts.priority.then_some(HANDLER_PRIORITY),
            requests: self.requests,
        };
        let service = Role::start(&wire.receiver, "realtime-service", &service)?;
        let load = load::start(&LOADS, &mut Place::of(Network::Wire(&wire)), run)?;
        let first = Instant::now() + HEAD_START;
        let requests = requests::ClientOptions {
            requests: self.requests,
            first_ns: monotonic_ns()? + HEAD_START.as_nanos() as u64,
            every_ns: EVERY_US * 1_000,
            send_within_us: SEND_US,
            answer_within_us: u32::try_from(ANSWER_US)?,
        };
        let requests = Role::spawn(&wire.sender, "realtime-requests", &requests)?;
        run.progress.tick("the queues fill");
        pause_until(first)?;
        let passed = || Ok::<_, anyhow::Error>([there.passed()?.bytes(), back.passed()?.bytes()]);
        let (before, begun_ns) = (passed()?, monotonic_ns()?);
        run.progress.tick("requests");
        let asked: Vec<_> = requests.finish()?;
        let (after, ended_ns) = (passed()?, monotonic_ns()?);
        drop(load);
        let handled: Vec<_> = service.finish()?;

        let mut outcome = Outcome::default();
        let parties = Parties {
            asked: &asked,
            handled: &handled,
            there: &there.stamps()?,
            back: &back.stamps()?,
        };
        let reported = fate::summarize(&mut outcome, name, BUDGET_US, &parties)?;
        let counted = if self.parts.queue { refused(&wire)? } else { 0 };
        outcome.set(name, "refused", counted as f64);
        outcome.set(name, "refused_unnotified", counted.abs_diff(reported) as f64);
        for (metric, way) in [("link_mbit", 0), ("link_back_mbit", 1)] {
            let mbit = (after[way] - before[way]) as f64 * 8e3 / (ended_ns - begun_ns) as f64;
            outcome.set(name, metric, mbit);
        }
        if self.parts.wake {
            let (raises, warnings) = answers::raises(&wire.receiver, &run.file("-why.json"))?;
            outcome.set(name, "warnings", warnings as f64);
            outcome.set(name, "raises", raises as f64);
        }
        daemons.iter_mut().try_for_each(Daemon::stop)?;
        Ok(outcome)
    }
}

/// giveway's daemon, if any of its parts is active; the kernel's queue, paced to the link, where its own is not.
fn set_up(chain: &Chain, end: &Namespace, run: &Run, role: &str) -> Result<Option<Daemon>> {
    let answers = role == "answering";
    let Parts {
        queue, receive, wake, ..
    } = chain.parts;
    if !queue {
        for line in [&paced(RATE_MBIT), "parent 1: handle 10: pfifo_fast"] {
            end.tc(&format!("qdisc replace dev {STATION_DEVICE} {line}"))?;
        }
    }
    if !(queue || receive || wake && answers) {
        return Ok(None);
    }
    let mut configuration = json!({
        "cap": {"policy": "none"},
        "link": {"rate_mbit": RATE_MBIT as f64},
        "queue": {"backend": if queue { "bpf" } else { "none" }},
    });
    if receive {
        configuration["receive"] = json!({"threaded_napi": true, "napi_priority": chain.napi_priority});
    }
    if answers && wake {
        // The request states its remaining time, and the smaller value counts.
        let budget_ms = BUDGET_US as f64 / 1e3;
        let rule = json!({"local_port": PORT, "budget_ms": budget_ms, "priority": HANDLER_PRIORITY});
        configuration["chain"] = Value::Array(vec![rule]);
    } else if answers && queue {
        let left_us = ANSWER_US.saturating_sub(WORK_US);
        configuration["deadline"] = json!([{"port": ANSWER_PORT, "deadline_ms": left_us as f64 / 1e3}]);
    }
    let mut daemon = Daemon::launch(end, &configuration, &run.file(&format!("-{role}")))?;
    match queue {
        true => daemon.wait_until_queueing(end)?,
        false => daemon.wait_until_up(end)?,
    }
    Ok(Some(daemon))
}

/// By the daemons' counters, of both ends.
fn refused(wire: &Wire) -> Result<u64> {
    let mut sum = 0;
    for end in [&wire.sender, &wire.receiver] {
        sum += answers::queue_counters(end)?.refused.total;
    }
    Ok(sum)
}
