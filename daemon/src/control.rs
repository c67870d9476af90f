// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket: one JSON request a line in, JSON lines out. The commands are its clients.
//!
//! Anyone may connect; every request is judged by who the kernel says is asking (SO_PEERCRED).

pub mod client;
pub mod server;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::actuate::receive::ReceiveView;
use crate::interface::Interface;
use giveway_engine::config::{RealtimeRule, SchedPolicyName};
use giveway_engine::queue::BackgroundFlow;
use giveway_engine::realtime::RealtimeView;
use giveway_engine::snapshot::Snapshot;

/// What may be asked.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "request", deny_unknown_fields)]
pub enum Request {
    /// One [`Status`].
    Status,
    /// The record's header, then records without end.
    Record,
    /// Make a flow background from now on; answered by [`Background`], as the next two.
    LbeAdd {
        flow: BackgroundFlow,
    },
    LbeRemove {
        flow: BackgroundFlow,
    },
    LbeList,
    /// A rule more; answered by nothing but consent, as the next one.
    RealtimeAdd {
        rule: Box<RealtimeRule>,
    },
    RealtimeRemove {
        name: String,
    },
    /// One [`RealtimeView`].
    RealtimeList,
    /// Real time for the asking process itself, which is about to become another program; answered by [`Launched`].
    Launch {
        policy: SchedPolicyName,
        priority: u32,
        cpus: Vec<u32>,
    },
    /// Undo everything and end.
    Stop,
}

/// What a process that was granted real time must do before it becomes another program.
#[derive(Debug, Deserialize, Serialize)]
pub struct Launched {
    /// The RLIMIT_RTTIME to set.
    pub rttime_ms: u32,
}

/// The flows that are background by their addresses.
#[derive(Debug, Deserialize, Serialize)]
pub struct Background {
    pub flows: Vec<BackgroundFlow>,
    /// False where no queue is in force, so that they are not told apart yet.
    pub in_force: bool,
    /// False where a request changed nothing.
    pub changed: bool,
}

/// The answer's first line.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    Ok(T),
    Error(String),
}

/// CPU time of one kind of work since the start.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Cost {
    pub count: u64,
    pub cpu_us: u64,
    pub max_us: u64,
}

impl Cost {
    pub fn add(&mut self, took: Duration) {
        let took_us = took.as_micros() as u64;
        self.count += 1;
        self.cpu_us += took_us;
        self.max_us = self.max_us.max(took_us);
    }
}

/// What is in force.
#[derive(Debug, Deserialize, Serialize)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    pub uptime_s: f64,
    /// The managed interface; None while there is none.
    pub interface: Option<Interface>,
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Events that the kernel had no room to tell; the next full walk makes up for them.
    pub lost_events: u64,
    /// What the passes over the active sockets have cost, with everything that followed from them.
    pub passes: Cost,
    /// The same of the walks over all sockets.
    pub walks: Cost,
    /// None where the thread that looks after it does not answer.
    #[serde(default)]
    pub realtime: Option<RealtimeView>,
    /// What is changed on the receiving side.
    pub receive: ReceiveView,
    /// What does not work, and why.
    pub degraded: Vec<String>,
}
