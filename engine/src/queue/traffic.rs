// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the queue did with packets, for `status`, `why` and the record. Counters begin when the queue is first
//! installed; those of htb's bands with each installation.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::Cookie;

/// Totals over all packets.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct QueueCounters {
    /// Packets whose deadline was guaranteed.
    pub admitted: u64,
    pub refused: Refused,
    /// Admitted, but dropped because the deadline could no longer be met.
    pub late: u64,
    /// Admitted, but lost before they reached the queue.
    pub expired: u64,
    /// Refusals that were counted but not reported: they were not read in time.
    pub untold: u64,
    /// When the bands were read, CLOCK_MONOTONIC; htb's are up to a second older than the rest.
    #[serde(default)]
    pub served_t_ns: u64,
    /// Sent best effort: no rate is known, so no deadline is guaranteed.
    #[serde(default)]
    pub only_ordered: u64,
    pub bands: Bands,
}

/// By reason.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Refused {
    pub total: u64,
    /// Its own deadline cannot be met.
    pub own: u64,
    /// It would delay an admitted packet beyond its deadline.
    pub others: u64,
    /// The band is full of admitted packets.
    pub full: u64,
    /// Its user's share is used up.
    #[serde(default)]
    pub share: u64,
}

/// In the order of service.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Bands {
    pub realtime: Band,
    /// Empty under earlier versions.
    #[serde(default)]
    pub stream: Band,
    pub best_effort: Band,
    pub background: Band,
}

impl Bands {
    pub fn in_order(&self) -> [(&'static str, &Band); 4] {
        [
            ("real time", &self.realtime),
            ("stream", &self.stream),
            ("best effort", &self.best_effort),
            ("background", &self.background),
        ]
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Band {
    /// Packets that admission assigned to the band.
    pub classified: u64,
    /// None while no queue of giveway's is installed.
    #[serde(flatten)]
    pub served: Option<Served>,
}

/// What every backend counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Served {
    pub sent_packets: u64,
    pub sent_bytes: u64,
    /// Dropped because the band was full; under htb also by its fair queues, to slow a sender down.
    pub dropped_full: u64,
    pub backlog_packets: u64,
    pub backlog_bytes: u64,
    /// None under htb.
    #[serde(flatten)]
    pub more: Option<ByQdisc>,
}

/// What only the BPF qdisc counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct ByQdisc {
    pub queued_packets: u64,
    pub queued_bytes: u64,
    /// TCP of this machine's sockets, in the sent bytes and in the backlog, headers included.
    #[serde(default)]
    pub tcp_sent_bytes: u64,
    #[serde(default)]
    pub tcp_backlog_bytes: u64,
    /// Dropped by CoDel to slow a sender down.
    pub dropped_sojourn: u64,
    pub dropped_late: u64,
    /// Dropped because the link went down or the qdisc was removed.
    pub dropped_reset: u64,
    /// How often the CPU gate held the band back.
    pub cpu_gate_closed: u64,
    /// Over all sent packets; 0 without any.
    pub sojourn_p50_us: u64,
    pub sojourn_p99_us: u64,
    pub sojourn_max_us: u64,
}

/// Why a packet with a deadline was not sent.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    Own,
    Others,
    Full,
    /// Its user's share is used up, while several users have deadlines.
    Share,
    /// Admitted, but too late at the head of the queue.
    Late,
}

impl RefusalReason {
    pub fn shown(self) -> &'static str {
        match self {
            Self::Own => "its deadline could not be met",
            Self::Others => "it would have made a packet late that was admitted before",
            Self::Full => "the band is full of admitted packets",
            Self::Share => "its user's share is used up, and other users have deadlines too",
            Self::Late => "it was admitted, but its deadline could not be met any more when its turn came",
        }
    }
}

/// A packet with a deadline that was not sent.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Refusal {
    /// CLOCK_MONOTONIC, as the deadline.
    pub t_ns: u64,
    /// The time by which its last bit was to leave the link.
    pub deadline_t_ns: u64,
    /// Its transmission time at the real-time share.
    pub work_ns: u64,
    pub reason: RefusalReason,
    /// The socket's, where it has one; unknown for a packet that is dropped late.
    pub cookie: Option<Cookie>,
    /// The IP protocol's number.
    pub protocol: u8,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
}
