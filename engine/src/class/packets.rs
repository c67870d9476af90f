// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the queue is told of classes: rules that a packet alone can match, what they say, and rate limits. It needs no
//! socket and no process for them, so they hold for UDP, for what is forwarded, and for a connection's first packet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::matcher::Matcher;
use crate::model::{Dscp, Prefix, Protocol, Treatment};

/// Of rules. Those of commands come behind them ([`super::CommandLimits`]). The kernel's tables are made for these numbers.
pub const MOST_LIMITS: usize = 1000;
pub const MOST_COMMAND_LIMITS: usize = 960;
/// The first so many of either kind are shared most fairly between flows.
pub const FAIREST_LIMITS: usize = 48;
pub const MOST_PACKET_RULES: usize = 64;

/// What is given must hold.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
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
    /// Of a matcher that asks for nothing but the packet.
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
