// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the queue classifies by itself: packet-only rules, their treatments, and rate limits. It needs no socket or
//! process for them, so they apply to UDP, to forwarded traffic, and to a connection's first packet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::matcher::Matcher;
use crate::model::{Dscp, Prefix, Protocol, Treatment};

/// The most limits of rules. Those of commands follow ([`super::CommandLimits`]). The kernel's tables have this size.
pub const MOST_LIMITS: usize = 1000;
pub const MOST_COMMAND_LIMITS: usize = 960;
/// The first of either kind have per-flow fair queueing.
pub const FAIREST_LIMITS: usize = 48;
pub const MOST_PACKET_RULES: usize = 64;

/// All given conditions must match.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct PacketRule {
    pub protocol: Option<Protocol>,
    pub address: Option<Prefix>,
    pub port: Option<u16>,
    pub local_port: Option<u16>,
    pub dscp: Option<Dscp>,
    pub interface: Option<String>,
    pub treatment: Treatment,
}

impl PacketRule {
    /// For a matcher with packet conditions only.
    pub fn new(matcher: &Matcher, treatment: Treatment) -> Self {
        Self {
            protocol: matcher.protocol,
            address: matcher.address,
            port: matcher.port,
            local_port: matcher.local_port,
            dscp: matcher.dscp,
            interface: matcher.interface.clone(),
            treatment,
        }
    }
}
