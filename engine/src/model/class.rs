// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The five classes, and the limits of a rule or a command.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rate::mbit;

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    Realtime,
    Stream,
    #[default]
    Standard,
    Bulk,
    Background,
}

impl Class {
    pub const ALL: [Self; 5] = [
        Self::Realtime,
        Self::Stream,
        Self::Standard,
        Self::Bulk,
        Self::Background,
    ];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Realtime => "realtime",
            Self::Stream => "stream",
            Self::Standard => "standard",
            Self::Bulk => "bulk",
            Self::Background => "background",
        }
    }
}

/// From 1 on.
pub type LimitNumber = u16;

/// Of one flow.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Treatment {
    pub class: Class,
    #[serde(flatten)]
    pub limits: LimitNumbers,
}

/// A flow's limit in each direction; they may belong to different rules and commands.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Rates {
    pub up: Option<u64>,
    pub down: Option<u64>,
}

impl Rates {
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// With this number, for each direction with a limit.
    pub fn numbered(self, number: LimitNumber) -> LimitNumbers {
        LimitNumbers {
            up: self.up.map(|_| number),
            down: self.down.map(|_| number),
        }
    }

    /// For people, over all flows that share them; empty without any.
    pub fn shown(self) -> String {
        let part = |does: &str, rate: Option<u64>| rate.map(|rate| format!("{does} at most {} Mbit/s", mbit(rate)));
        let parts: Vec<String> = [part("send", self.up), part("receive", self.down)]
            .into_iter()
            .flatten()
            .collect();
        parts.join(" and ")
    }
}

/// A rule's or command's limit over all its flows.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
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

/// For the forwarded traffic of one cgroup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Forwarded {
    pub treatment: Treatment,
    /// This many [`PacketRule`]s precede, each for the packets that it matches.
    pub rules_before: u8,
}

/// All flows of one rule or command together, in one direction.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct RateLimit {
    pub number: LimitNumber,
    pub bytes_per_s: u64,
    pub class: Class,
}

/// Identifies a rule by its class and reason: the same rule wherever it is, for the next daemon, too. Never 0.
pub type RuleId = u64;
