// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket: one JSON request a line in, JSON lines out. The commands are its clients.
//!
//! Anyone may connect; every request is judged by who the kernel says is asking (SO_PEERCRED).

pub mod client;
pub mod server;

use serde::{Deserialize, Serialize};

use crate::interface::Interface;
use giveway_engine::snapshot::Snapshot;

/// What may be asked.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "request", deny_unknown_fields)]
pub enum Request {
    /// One [`Status`].
    Status,
    /// The record's header, then records without end.
    Record,
    /// Undo everything and end.
    Stop,
}

/// The answer's first line.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    Ok(T),
    Error(String),
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
    /// What does not work, and why.
    pub degraded: Vec<String>,
}
