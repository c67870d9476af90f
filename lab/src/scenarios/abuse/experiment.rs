// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Honest traffic and a service beside an abuser of everything within its reach, with giveway or without. Input: the
//! abuser, for how long. Output: the outcome for the honest ones, and the daemon's cost.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use giveway_engine::status::Status;
use serde_json::{Value, json};

use super::abuser::{Abuser, AbuserOptions, GRANTED_UID};
use crate::channel::STATION_DEVICE;
use crate::experiment::{Run, pause};
use crate::giveway::answers;
use crate::giveway::jitter::{self, Timers};
use crate::giveway::{self, Daemon};
use crate::interrupt::{pause_until, wait_until};
use crate::link::wire::{NOBODY_ADDRESS, RECEIVER_ADDRESS, Wire, paced};
use crate::link::{BEST_EFFORT_PORT, Link};
use crate::meter::{cpu_ns, daemon_ns, resident_mb};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::role::Role;
use crate::traffic::realtime::flood::{self, Flood};
use crate::traffic::realtime::monotonic_ns;
use crate::traffic::realtime::sender::{DeadlineFlow, SenderCounts};

const RATE_MBIT: u64 = 100;
/// 16 of the 80 Mbit/s for deadlines: less than half of the share of one of two users.
const BURST: u64 = 10;
const EVERY_US: u64 = 7_000;
const DEADLINE_US: u64 = 20_000;
/// An honest upload that always has more.
const UPLOAD: Flood = Flood {
    port: BEST_EFFORT_PORT,
    marking: None,
    packets: 450,
};
/// Of the service: above anything that giveway grants.
const SERVICE_PRIORITY: u64 = 60;
const SERVICE_PERIOD_US: u64 = 5_000;
/// From the start of the abuse until measurement; the daemon has allocated its memory for it by then.
const SETTLED_S: f64 = 5.0;
const AUTHENTICATED_WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Abuse {
    pub abuser: Abuser,
    pub seconds: u64,
    pub has_giveway: bool,
    /// In the guest; on the host the queue is htb.
    pub can_use_bpf_queue: bool,
}

impl Abuse {
    pub fn estimated_s(&self) -> f64 {
        self.seconds as f64 + SETTLED_S + 15.0
    }

    pub fn run(&self, run: &Run) -> Result<Outcome> {
        let wire = Wire::create()?;
        for line in [
            format!("address add {}/24 dev {STATION_DEVICE}", super::abuser::ADDRESS),
            "link set lo up".into(),
        ] {
            wire.receiver.ip(&line)?;
        }
        let key = giveway::new_key(run.raw)?;
        let mut daemons = self.start_daemons(&wire, &key.to_string_lossy(), run)?;
        let packets = self.seconds * 1_000_000 / EVERY_US * BURST;
        let link = Link::load(&wire.sender, RATE_MBIT * 125_000, 1, u32::try_from(packets)?)?;
        let _receiver = Role::start(&wire.receiver, "realtime-receiver", &())?;
        let _upload = flood::start(&wire.sender, NOBODY_ADDRESS.parse()?, &UPLOAD)?;
        let abuser = self.start_abuser(&wire, &key.to_string_lossy())?;
        run.progress.tick("the abuse begins");
        pause(SETTLED_S)?;

        let spent = Spent::by(daemons.first())?;
        let first = Instant::now() + Duration::from_millis(500);
        let flow = DeadlineFlow {
            packets,
            burst: BURST,
            every_ns: EVERY_US * 1_000,
            first_ns: monotonic_ns()? + 500_000_000,
            deadline_us: (DEADLINE_US, DEADLINE_US),
            ..DeadlineFlow::default()
        };
        let honest = Role::spawn(&wire.sender, "realtime-sender", &flow)?;
        pause_until(first)?;
        let (before, begun_ns) = (link.passed()?, monotonic_ns()?);
        run.progress.tick("honest traffic beside it");
        let timers = Timers {
            period_us: SERVICE_PERIOD_US,
            threads: 1,
            wakeups: self.seconds * 1_000_000 / SERVICE_PERIOD_US,
            loads: &[],
            causes: false,
            fifo: Some(SERVICE_PRIORITY),
        };
        let service = jitter::measure(&wire.sender, &timers, &run.file("-service.json"))?;
        let counts: SenderCounts = honest.finish()?;
        let (after, ended_ns) = (link.passed()?, monotonic_ns()?);

        let mut outcome = Outcome::default();
        let name = run.name;
        let mbit = (after.best_effort.bytes - before.best_effort.bytes) as f64 * 8e3 / (ended_ns - begun_ns) as f64;
        outcome.set(name, "best_effort_mbit", mbit);
        outcome.wakeups.insert(name.into(), service.histogram());
        if let Some(spent) = spent {
            spent.describe(&mut outcome, name)?;
            describe_group(&mut outcome, name, &answers::status(&wire.sender)?);
        }
        let abuses: u64 = abuser.finish()?;
        outcome.set(name, "abuses", abuses as f64);
        describe_deadlines(&mut outcome, name, &link, counts)?;
        daemons.iter_mut().try_for_each(Daemon::stop)?;
        Ok(outcome)
    }
}

impl Abuse {
    /// At both ends, so that each has an honest peer.
    fn start_daemons(&self, wire: &Wire, key: &str, run: &Run) -> Result<Vec<Daemon>> {
        if !self.has_giveway {
            // Few hosts that are virtual machines have the fair one.
            let queue = if self.can_use_bpf_queue {
                "fq_codel"
            } else {
                "pfifo_fast"
            };
            wire.set_queue(&[paced(RATE_MBIT), format!("parent 1: handle 10: {queue}")])?;
            return Ok(Vec::new());
        }
        let configuration = json!({
            "cap": {"policy": "fixed", "capacity_mbit": RATE_MBIT as f64, "rtt_ms": 100},
            "link": {"rate_mbit": RATE_MBIT as f64},
            "group": {"key_file": key},
            "grant": [{"user": GRANTED_UID.to_string(), "max_priority": 20}],
        });
        let silent = json!({"group": {"key_file": key}, "cap": {"policy": "fixed", "capacity_mbit": RATE_MBIT as f64, "rtt_ms": 100}, "queue": {"backend": "none"}});
        let start = |at: &Namespace, configuration: &Value, role: &str| -> Result<Daemon> {
            Daemon::raise(at, configuration, &run.file(&format!("-{role}")))
        };
        let mut near = start(&wire.sender, &configuration, "near")?;
        if self.can_use_bpf_queue {
            near.wait_until_queueing(&wire.sender)?;
        }
        let far = start(&wire.receiver, &silent, "far")?;
        wait_until("the daemons to authenticate each other", AUTHENTICATED_WITHIN, || {
            Ok(authenticates(&answers::status(&wire.sender)?, RECEIVER_ADDRESS))
        })?;
        Ok(vec![near, far])
    }

    fn start_abuser(&self, wire: &Wire, key: &str) -> Result<Role> {
        let at = if self.abuser.is_on_the_machine() {
            &wire.sender
        } else {
            &wire.receiver
        };
        let description = AbuserOptions {
            abuser: self.abuser,
            has_giveway: self.has_giveway,
            control: format!("/run/giveway/netns-{}/control", wire.sender.number()?),
            giveway: giveway::binary()?,
            key: key.into(),
            victim: RECEIVER_ADDRESS.into(),
        };
        Role::start(at, "abuser", &description)
    }
}

/// The daemon's usage so far.
struct Spent {
    daemon: i32,
    at_ns: u64,
    cpu_ns: f64,
    priority_ns: f64,
    resident_mb: f64,
}

impl Spent {
    fn by(daemon: Option<&Daemon>) -> Result<Option<Self>> {
        daemon.map(|daemon| Self::now(daemon.process.id())).transpose()
    }

    fn now(daemon: i32) -> Result<Self> {
        Ok(Self {
            daemon,
            at_ns: monotonic_ns()?,
            cpu_ns: daemon_ns(daemon)?,
            priority_ns: cpu_ns(daemon, crate::scheduling::is_realtime)?,
            resident_mb: settled_mb(daemon)?,
        })
    }

    fn describe(&self, outcome: &mut Outcome, point: &str) -> Result<()> {
        let now = Self::now(self.daemon).context("the daemon has died")?;
        let elapsed_ns = (now.at_ns - self.at_ns) as f64;
        for (metric, spent_ns) in [
            ("daemon_cpu_percent", now.cpu_ns - self.cpu_ns),
            ("priority_cpu_percent", now.priority_ns - self.priority_ns),
        ] {
            outcome.set(point, metric, 100.0 * spent_ns / elapsed_ns);
        }
        outcome.set(point, "daemon_growth_mb", (now.resident_mb - self.resident_mb).max(0.0));
        Ok(())
    }
}

/// The least resident memory within five seconds: single requests need up to 2 MB temporarily, sometimes for more than
/// a second, which is no growth.
fn settled_mb(daemon: i32) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..100 {
        least = least.min(resident_mb(daemon)?);
        pause(0.05)?;
    }
    Ok(least)
}

fn describe_deadlines(outcome: &mut Outcome, point: &str, link: &Link, counts: SenderCounts) -> Result<()> {
    let stamps = link.stamps()?;
    let left = || stamps.iter().flatten().filter(|stamps| stamps.left_ns > 0);
    let late = left().filter(|stamps| stamps.left_ns > stamps.payload.deadline_ns);
    // A packet neither refused nor sent is as bad as late.
    let vanished = (counts.sent - counts.refused).saturating_sub(left().count() as u64);
    let refused_percent = 100.0 * counts.refused as f64 / counts.sent.max(1) as f64;
    outcome.set(point, "sent", counts.sent as f64);
    outcome.set(point, "late", (late.count() as u64 + vanished) as f64);
    outcome.set(point, "refused_percent", refused_percent);
    Ok(())
}

fn describe_group(outcome: &mut Outcome, point: &str, status: &Status) {
    outcome.set(point, "expired", status.network.reports.counters.expired as f64);
    let is_honest = f64::from(u8::from(authenticates(status, RECEIVER_ADDRESS)));
    outcome.set(point, "authenticated_at_end", is_honest);
}

fn authenticates(status: &Status, address: &str) -> bool {
    let mut peers = status.network.peers.iter();
    peers.any(|peer| peer.authenticated && peer.address.to_string() == address)
}
