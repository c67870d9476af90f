// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The five classes, and what all flows of one rule or command may have together.

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

/// Which limit holds for a flow, in each direction: they may be of different rules and commands.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
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
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
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
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct RateLimit {
    pub number: LimitNumber,
    pub bytes_per_s: u64,
    pub class: Class,
}

/// Tells rules apart by their words: the same ones are the same rule wherever they stand, for the next daemon, too. Never 0.
pub type RuleId = u64;
