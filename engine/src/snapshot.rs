// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is in force and why, at one moment: the one model behind `status`, `why` and every later view.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::Flow;
use crate::record::CapChange;

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Snapshot {
    pub policy: PolicyView,
    pub flows: Vec<FlowView>,
    pub neighbours: Vec<NeighbourView>,
    pub reports: ReportView,
    /// The latest changes, oldest first.
    pub changes: Vec<ChangeView>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PolicyView {
    pub name: String,
    /// Devices that send, this one included.
    pub senders: u32,
    /// This device's connections that send.
    pub connections: u32,
    /// The devices beside this one that are believed.
    pub neighbours: u32,
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
    pub session: String,
    pub age_ms: u64,
    pub interval_ms: u64,
    pub senders: u32,
    pub believed: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ReportView {
    pub interval_ms: u64,
    #[serde(flatten)]
    pub counters: crate::wire::Counters,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ChangeView {
    pub t_ns: u64,
    #[serde(flatten)]
    pub change: CapChange,
}
