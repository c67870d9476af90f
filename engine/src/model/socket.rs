// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One socket at one moment, and its events between two polls.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::process::ProcessId;
use super::protocol::Protocol;

/// The kernel's socket cookie: names one socket for its lifetime, never reused while the machine is up.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Cookie(pub u64);

/// The state of Linux's congestion-avoidance machine (`enum tcp_ca_state`, include/uapi/linux/tcp.h).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CaState {
    #[default]
    Open,
    Disorder,
    Cwr,
    Recovery,
    Loss,
}

impl CaState {
    pub const BY_NUMBER: [Self; 5] = [Self::Open, Self::Disorder, Self::Cwr, Self::Recovery, Self::Loss];

    /// The kernel's numbering; a number that a newer kernel may add is read as the most careful state.
    pub fn from_kernel(number: u8) -> Self {
        Self::BY_NUMBER.get(usize::from(number)).copied().unwrap_or(Self::Loss)
    }

    /// A write of the clamp also sets ssthresh. During loss recovery, or while cwnd shrinks to a ssthresh just chosen,
    /// that would undo the kernel's decision.
    pub fn tolerates_clamp_write(self) -> bool {
        matches!(self, Self::Open | Self::Disorder)
    }
}

/// TCP's connection states (include/net/tcp_states.h).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TcpState {
    Established,
    SynSent,
    SynRecv,
    FinWait1,
    FinWait2,
    TimeWait,
    #[default]
    Close,
    CloseWait,
    LastAck,
    Listen,
    Closing,
}

impl TcpState {
    /// The kernel's numbering; unknown numbers are read as closed.
    pub fn from_kernel(number: u8) -> Self {
        match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 | 12 => Self::SynRecv,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            _ => Self::Close,
        }
    }

    /// No more data will arrive.
    pub fn remote_host_has_finished(self) -> bool {
        matches!(
            self,
            Self::CloseWait | Self::LastAck | Self::Closing | Self::TimeWait | Self::Close
        )
    }

    /// The application can queue no more data: once the queue is empty it stays empty.
    pub fn application_has_finished(self) -> bool {
        !matches!(
            self,
            Self::Established | Self::CloseWait | Self::SynSent | Self::SynRecv
        )
    }
}

/// The process that uses the socket, as far as the kernel shows. `pid` is the thread group's.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Owner {
    pub pid: u32,
    pub command: String,
    /// Start time since boot, as in /proc; 0: unknown.
    #[serde(default)]
    pub start_ns: u64,
}

/// The user of flows whose record has none.
const NOBODY: u32 = u32::MAX;

/// One socket at one moment. For UDP, everything specific to TCP is 0 or `None`, and `delivered_segments` changes with
/// each list before which it has sent something.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, JsonSchema)]
pub struct Flow {
    pub cookie: Cookie,
    /// TCP in records of an older giveway.
    #[serde(default = "tcp")]
    pub protocol: Protocol,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub state: TcpState,
    /// None until a process was seen to use the socket.
    #[serde(flatten)]
    pub owner: Option<Owner>,
    /// The user that created the socket; None in records of an older giveway.
    #[serde(default)]
    pub uid: Option<u32>,
    /// SO_PRIORITY and the DSCP that the application has set.
    #[serde(default)]
    pub priority: u32,
    #[serde(default)]
    pub dscp: u8,
    /// The id of the cgroup (v2) that the socket was created in.
    pub cgroup_id: u64,
    /// The interface that the socket's packets leave by; 0 without a route.
    pub ifindex: u32,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// The kernel's limit of cwnd, segments; None without one.
    pub clamp: Option<u32>,
    /// Slow-start threshold, segments; None before the first reduction.
    pub ssthresh: Option<u32>,
    pub mss_bytes: u32,
    pub srtt_us: u32,
    /// None until the kernel has a sample.
    pub min_rtt_us: Option<u32>,
    pub rttvar_us: u32,
    pub in_flight_bytes: u64,
    /// Written by the application, not yet sent.
    pub unsent_bytes: u64,
    /// Sent, not yet acknowledged.
    pub unacked_bytes: u64,
    /// The kernel's own estimate (`tcp_rate.c`), bytes a second.
    pub delivery_rate_bytes_per_s: u64,
    /// None where the socket does not pace.
    pub pacing_rate_bytes_per_s: Option<u64>,
    /// Retransmitted segments since the connection began.
    pub retransmits: u32,
    /// Segments since the connection began, selectively acknowledged ones included; wraps. 0 in records of an older
    /// giveway.
    #[serde(default)]
    pub delivered_segments: u32,
    /// Payload acknowledged by the remote host, and payload received in order, since the connection began. 0 in records
    /// of an older giveway.
    #[serde(default)]
    pub acked_bytes: u64,
    #[serde(default)]
    pub received_bytes: u64,
    /// RTT of the packet acknowledged last, by RACK (RFC 8985); 0: none yet, or from an older giveway's record.
    #[serde(default)]
    pub latest_rtt_us: u32,
    /// RTT as the receiver sees it, by the returned timestamps; 0: none, or from an older giveway's record.
    #[serde(default)]
    pub receiver_rtt_us: u32,
    pub ca_state: CaState,
    pub congestion_control: String,
}

fn tcp() -> Protocol {
    Protocol::Tcp
}

impl Flow {
    /// The user that created the socket.
    pub fn user(&self) -> u32 {
        self.uid.unwrap_or(NOBODY)
    }

    /// The process that uses it, if known.
    pub fn process(&self) -> Option<ProcessId> {
        let owner = self.owner.as_ref()?;
        Some(ProcessId {
            pid: owner.pid,
            start_ns: owner.start_ns,
        })
    }

    /// An unconnected UDP socket: each datagram has its own destination.
    pub fn sends_anywhere(&self) -> bool {
        self.protocol == Protocol::Udp && self.remote.port() == 0
    }

    /// The process and the remote host, for people.
    pub fn shown(&self) -> String {
        let remote = self.shown_remote();
        match &self.owner {
            Some(owner) => format!("{} ({}) to {remote}", owner.command, owner.pid),
            None => format!("to {remote}"),
        }
    }

    /// For people.
    pub fn shown_remote(&self) -> String {
        match self.sends_anywhere() {
            true => "anywhere".to_owned(),
            false => self.remote.to_string(),
        }
    }
}

/// An event of a socket between two polls.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum FlowEvent {
    /// The handshake is complete.
    Open,
    State {
        from: TcpState,
        to: TcpState,
    },
    /// The socket is closed.
    Close,
    Retransmit,
    CaState {
        to: CaState,
    },
}
