// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the queue is told of classes: rules that a packet alone can match, what they say, and rate limits. It needs no
//! socket and no process for them, so they hold for UDP, for what is forwarded, and for a connection's first packet.

use serde::{Deserialize, Serialize};

use super::{Class, Rules};
use crate::config::{Dscp, Prefix, Protocol};
use crate::rate::mbit;

/// From 1 on.
pub type LimitNumber = u16;

/// Of rules. Those of commands come behind them ([`super::CommandLimits`]); together with number 0 these are `GW_LIMITS` of
/// bpf/queueing.h.
pub const MOST_LIMITS: usize = 1000;
/// `GW_PACKET_RULES` there.
pub const MOST_PACKET_RULES: usize = 64;

/// Of one flow.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Treatment {
    pub class: Class,
    #[serde(flatten)]
    pub limits: LimitNumbers,
}

/// Which limit holds for a flow, in each direction: they may be of different rules and commands.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct LimitNumbers {
    /// For what it sends.
    #[serde(default, rename = "limit")]
    pub up: Option<LimitNumber>,
    /// For what it receives.
    #[serde(default, rename = "download_limit")]
    pub down: Option<LimitNumber>,
}

impl LimitNumbers {
    pub const NONE: Self = Self { up: None, down: None };

    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    pub fn iter(self) -> impl Iterator<Item = LimitNumber> {
        self.up.into_iter().chain(self.down)
    }
}

/// Bytes a second, in each direction.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Rates {
    pub up: Option<u64>,
    pub down: Option<u64>,
}

impl Rates {
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// This number, where there is a limit.
    pub fn numbered(self, number: LimitNumber) -> LimitNumbers {
        LimitNumbers {
            up: self.up.map(|_| number),
            down: self.down.map(|_| number),
        }
    }

    /// What is said of them to people, of all that share them; empty where there are none.
    pub fn shown(self) -> String {
        let part = |does: &str, rate: Option<u64>| rate.map(|rate| format!("{does} at most {} Mbit/s", mbit(rate)));
        let parts: Vec<String> = [part("send", self.up), part("receive", self.down)]
            .into_iter()
            .flatten()
            .collect();
        parts.join(" and ")
    }
}

/// What all flows of one rule, or of one command, may have together.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Limit {
    pub number: LimitNumber,
    pub rates: Rates,
    pub class: Class,
}

impl Limit {
    /// For what is sent.
    pub fn up(&self) -> Option<RateLimit> {
        self.rates.up.map(|rate| self.of_rate(rate))
    }

    /// For what is received.
    pub fn down(&self) -> Option<RateLimit> {
        self.rates.down.map(|rate| self.of_rate(rate))
    }

    fn of_rate(&self, bytes_per_s: u64) -> RateLimit {
        RateLimit {
            number: self.number,
            bytes_per_s,
            class: self.class,
        }
    }
}

/// Of all that is forwarded for one cgroup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Forwarded {
    pub treatment: Treatment,
    /// So many [`PacketRule`]s come first, each for the packets that it matches.
    pub rules_before: u8,
}

/// All flows of one rule, or of one command, together, in one direction.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RateLimit {
    pub number: LimitNumber,
    pub bytes_per_s: u64,
    pub class: Class,
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
    pub fn limits(&self) -> Vec<Limit> {
        self.rules.iter().filter_map(super::rules::Rule::limit).collect()
    }

    /// Of this number.
    pub fn limit(&self, number: LimitNumber) -> Option<Limit> {
        let mut limits = self.rules.iter().filter_map(super::rules::Rule::limit);
        limits.find(|limit| limit.number == number)
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
