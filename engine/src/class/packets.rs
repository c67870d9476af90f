// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the queue is told of classes: rules that a packet alone can match, what they say, and rate limits. It needs no
//! socket and no process for them, so they hold for UDP, for what is forwarded, and for a connection's first packet.

use serde::{Deserialize, Serialize};

use super::{Class, Rules};
use crate::config::{Dscp, Prefix, Protocol};

/// From 1 on.
pub type LimitNumber = u8;

/// `GW_LIMITS` of bpf/queueing.h, without number 0 and those that are for commands ([`super::CommandLimits`]).
pub const MOST_LIMITS: usize = 47;
/// `GW_PACKET_RULES` there.
pub const MOST_PACKET_RULES: usize = 64;

/// Of one flow.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Treatment {
    pub class: Class,
    pub limit: Option<LimitNumber>,
}

/// Of all that is forwarded for one cgroup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Forwarded {
    pub treatment: Treatment,
    /// So many [`PacketRule`]s come first, each for the packets that it matches.
    pub rules_before: u8,
}

/// All flows of one rule, or of one command, together.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RateLimit {
    pub number: LimitNumber,
    pub bytes_per_s: u64,
    pub class: Class,
}

/// Below this a packet of 64 kB is more than a hundredth of what may pass in ten seconds.
const WHOLE_BURSTS_BYTES_PER_S: u64 = 655_360;

impl RateLimit {
    /// Of a rule: what a user limits must not cost everybody on the link.
    pub fn needs_single_segments(&self) -> bool {
        usize::from(self.number) <= MOST_LIMITS && self.bytes_per_s < WHOLE_BURSTS_BYTES_PER_S
    }
}

/// What is given must hold.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PacketRule {
    pub protocol: Option<Protocol>,
    pub address: Option<Prefix>,
    pub port: Option<u16>,
    pub local_port: Option<u16>,
    pub dscp: Option<Dscp>,
    pub interface: Option<String>,
    pub treatment: Treatment,
}

impl Rules {
    pub fn limits(&self) -> Vec<RateLimit> {
        let limit = |rule: &super::rules::Rule| {
            let (number, bytes_per_s) = rule.limit?;
            let class = rule.class;
            Some(RateLimit {
                number,
                bytes_per_s,
                class,
            })
        };
        self.rules.iter().filter_map(limit).collect()
    }

    /// The first ones of those that ask for nothing but the packet.
    pub fn packet_rules(&self) -> Vec<PacketRule> {
        let all = self.rules.iter().filter(|rule| rule.matcher.asks_only_packet());
        let of = |rule: &super::rules::Rule| PacketRule {
            protocol: rule.matcher.protocol,
            address: rule.matcher.address,
            port: rule.matcher.port,
            local_port: rule.matcher.local_port,
            dscp: rule.matcher.dscp,
            interface: rule.matcher.interface.clone(),
            treatment: rule.treatment(),
        };
        all.map(of).take(MOST_PACKET_RULES).collect()
    }
}
