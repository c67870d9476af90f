// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the queue has done with packets, in the words of `status`, `why` and the record. Counts begin when the queue
//! is first put up, those of htb's bands whenever it is.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::model::Cookie;

/// What became of all packets.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct QueueCounters {
    /// Packets with a deadline that was promised to be kept.
    pub admitted: u64,
    pub refused: Refused,
    /// Admitted, and dropped all the same because the deadline could not be kept any more.
    pub late: u64,
    /// Admitted, and lost before they reached the queue.
    pub expired: u64,
    /// Refusals that were counted but not reported: they were not fetched in time.
    pub untold: u64,
    /// When the bands were read, CLOCK_MONOTONIC: htb's up to a second before everything else.
    #[serde(default)]
    pub served_t_ns: u64,
    /// Of best effort, with a deadline that nothing promises since no rate is known.
    #[serde(default)]
    pub only_ordered: u64,
    pub bands: Bands,
}

/// By reason.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Refused {
    pub total: u64,
    /// It could not be in time itself.
    pub own: u64,
    /// It would make one late that was admitted.
    pub others: u64,
    /// As many are admitted as the band holds.
    pub full: u64,
    /// Its user has had its share.
    #[serde(default)]
    pub share: u64,
}

/// In the order of service.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Bands {
    pub realtime: Band,
    /// Empty in what earlier versions wrote.
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

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Band {
    /// Packets that admission put into the band.
    pub classified: u64,
    /// None while nothing of ours serves.
    #[serde(flatten)]
    pub served: Option<Served>,
}

/// What every backend counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Served {
    pub sent_packets: u64,
    pub sent_bytes: u64,
    /// The band was full; under htb also what its fair queues dropped to slow a sender down.
    pub dropped_full: u64,
    pub backlog_packets: u64,
    pub backlog_bytes: u64,
    /// None under htb.
    #[serde(flatten)]
    pub more: Option<ByQdisc>,
}

/// What only the BPF qdisc counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ByQdisc {
    pub queued_packets: u64,
    pub queued_bytes: u64,
    /// Of what was sent and of what waits, headers included: what TCP sockets of this machine have sent.
    #[serde(default)]
    pub tcp_sent_bytes: u64,
    #[serde(default)]
    pub tcp_backlog_bytes: u64,
    /// To make a sender slow down (CoDel).
    pub dropped_sojourn: u64,
    pub dropped_late: u64,
    /// The link went down, or the qdisc away.
    pub dropped_reset: u64,
    /// Times that the band had to wait for the CPU.
    pub cpu_gate_closed: u64,
    /// Of all packets that were sent; 0 where there were none.
    pub sojourn_p50_us: u64,
    pub sojourn_p99_us: u64,
    pub sojourn_max_us: u64,
}

/// Why a packet with a deadline was not sent.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    Own,
    Others,
    Full,
    /// Its user has had its share, and several users ask for deadlines.
    Share,
    /// Admitted, but too late at the end of the queue.
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
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Refusal {
    /// CLOCK_MONOTONIC, as the deadline.
    pub t_ns: u64,
    /// By which its last bit should have left the link.
    pub deadline_t_ns: u64,
    /// Its time on the link at the real-time share.
    pub work_ns: u64,
    pub reason: RefusalReason,
    /// The socket's, where it has one; nothing is known of a packet that is dropped late.
    pub cookie: Option<Cookie>,
    /// The IP protocol's number.
    pub protocol: u8,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
}
