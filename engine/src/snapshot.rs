// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is in force and why, at one moment: the one model behind `status`, `why` and every later view.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::Flow;
use crate::queue::traffic::Refusal;
use crate::queue::{QueueChange, QueueView};
use crate::record::CapChange;
use crate::wire::{Counters, Peer, Sender};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Snapshot {
    /// CLOCK_MONOTONIC.
    pub taken_t_ns: u64,
    pub policy: PolicyView,
    pub flows: Vec<FlowView>,
    pub neighbours: Vec<NeighbourView>,
    pub reports: ReportView,
    /// The latest changes, oldest first.
    pub changes: Vec<ChangeView>,
    #[serde(default)]
    pub queue: QueueView,
    /// The latest changes of the queue, oldest first.
    #[serde(default)]
    pub queue_changes: Vec<QueueChangeView>,
    /// The latest packets with deadlines that were not sent, oldest first.
    #[serde(default)]
    pub refusals: Vec<Refusal>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PolicyView {
    pub name: String,
    /// Devices that send, this one included.
    pub senders: u32,
    /// This device's connections that send.
    pub connections: u32,
    /// False without a key: this device works alone.
    pub cooperates: bool,
    pub dry_run: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct FlowView {
    #[serde(flatten)]
    pub flow: Flow,
    pub cap: Option<u32>,
    pub sender: bool,
    /// Another tool holds this socket's cwnd, and giveway leaves it alone.
    pub stepped_back: bool,
    /// The cgroup's path; filled in by the daemon.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cgroup: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct NeighbourView {
    pub address: IpAddr,
    /// Hexadecimal: JSON's numbers are too short for it.
    pub session: String,
    pub believed: bool,
    /// Since its last report.
    pub age_ms: u64,
    /// Between its reports, as it says.
    pub interval_ms: u64,
    /// Its connections that send.
    pub senders: Vec<Sender>,
}

impl From<Peer<'_>> for NeighbourView {
    fn from(peer: Peer<'_>) -> Self {
        Self {
            address: peer.address,
            session: format!("{:016x}", peer.session),
            believed: peer.believed,
            age_ms: peer.age.as_millis() as u64,
            interval_ms: peer.interval.as_millis() as u64,
            senders: peer.senders.to_vec(),
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ReportView {
    /// Between this device's reports.
    pub interval_ms: u64,
    /// All devices' reports, percent of the air time, as reckoned here.
    pub airtime_percent: f64,
    #[serde(flatten)]
    pub counters: Counters,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ChangeView {
    pub t_ns: u64,
    #[serde(flatten)]
    pub change: CapChange,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct QueueChangeView {
    pub t_ns: u64,
    #[serde(flatten)]
    pub change: QueueChange,
}
