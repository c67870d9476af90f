// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be set by hand at run time: the class, the rate limit, or both, of a process with its children, of a cgroup
//! (a systemd unit) or of a flow (`giveway class set`, `giveway limit set`). All settings together are a
//! [`Hand`](super::hand::Hand).

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Word;
use crate::change::Subject;
use crate::model::{ChosenLimit, Class, Flow, Process, ProcessId, ROOT, unit_of};
use crate::queue::BackgroundFlow;

/// The most processes with a setting at a time: each has a bit that tasks inherit.
pub const MOST_PROCESSES: u8 = 64;

/// The target of a setting.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "target")]
pub enum Target {
    /// A process and its children: all tasks with this bit.
    Process {
        #[serde(flatten)]
        id: ProcessId,
        number: u8,
        /// For people.
        command: String,
    },
    Cgroup {
        /// Its directory's inode.
        cgroup_id: u64,
        #[serde(rename = "cgroup")]
        path: String,
    },
    Flow {
        #[serde(flatten)]
        flow: BackgroundFlow,
    },
}

/// One user's setting for one target.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct SetByHand {
    #[serde(flatten)]
    pub target: Target,
    pub uid: u32,
    #[serde(default)]
    pub class: Option<Class>,
    /// In total over all its flows, for each direction.
    #[serde(default)]
    pub limit: Option<ChosenLimit>,
}

impl Target {
    /// For people.
    pub fn shown(&self) -> String {
        match self {
            Self::Process { id, command, .. } => format!("process {} ({command}) and what it starts", id.pid),
            Self::Cgroup { path, .. } => match unit_of(path).filter(|unit| path.ends_with(&format!("/{unit}"))) {
                Some(unit) => format!("unit {unit}"),
                None => format!("cgroup {path}"),
            },
            Self::Flow { flow } => {
                let remote = SocketAddr::new(flow.address, flow.port);
                let from = flow.local_port.map(|port| format!(" from port {port}"));
                format!("flows to {remote}{}", from.unwrap_or_default())
            }
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Process { command, .. } => command,
            Self::Cgroup { .. } | Self::Flow { .. } => "",
        }
    }

    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Process { id, .. }, Self::Process { id: of, .. }) => id == of,
            (Self::Cgroup { cgroup_id, .. }, Self::Cgroup { cgroup_id: of, .. }) => cgroup_id == of,
            (Self::Flow { flow }, Self::Flow { flow: of }) => flow == of,
            // Exhaustive, so that a new kind is not forgotten here.
            (Self::Process { .. } | Self::Cgroup { .. } | Self::Flow { .. }, _) => false,
        }
    }

    pub(super) fn subject(&self) -> Subject {
        match self {
            Self::Process { id, .. } => Subject::Process { id: *id },
            Self::Cgroup { path, .. } => Subject::Cgroup { path: path.clone() },
            Self::Flow { flow } => Subject::Destination {
                remote: (flow.address, flow.port).into(),
                local_port: flow.local_port,
            },
        }
    }
}

/// The properties of a flow or a process.
#[derive(Clone, Copy)]
pub(super) struct Of<'a> {
    pub flow: Option<&'a Flow>,
    pub process: Option<&'a Process>,
    pub cgroup: &'a str,
    pub uid: u32,
}

impl SetByHand {
    /// How specific the target is, most specific first; None: not a match.
    pub(super) fn closeness(&self, of: Of<'_>) -> Option<(u8, usize)> {
        let is_own = self.uid == ROOT || self.uid == of.uid;
        match &self.target {
            Target::Flow { flow } => {
                let is_it = is_own && of.flow.is_some_and(|of| flow.matches(of));
                is_it.then_some((0, 0))
            }
            Target::Process { number, .. } => {
                let is_it = of.process.is_some_and(|process| process.by_hand >> number & 1 == 1);
                is_it.then_some((1, 0))
            }
            Target::Cgroup { path, .. } => {
                let is_it = is_own && !of.cgroup.is_empty() && is_in(of.cgroup, path);
                is_it.then_some((2, usize::MAX - path.len()))
            }
        }
    }

    fn word(&self, command: &str, what: &str) -> Word {
        Word {
            uid: self.uid,
            rule: format!("{command} by uid {}", self.uid),
            reason: format!("{what} by hand for {}", self.target.shown()),
        }
    }

    pub(super) fn class_word(&self) -> Option<(Class, Word)> {
        Some((self.class?, self.word("giveway class set", "set")))
    }

    pub(super) fn limit_word(&self) -> Option<(ChosenLimit, Word)> {
        let limit = self.limit?;
        let what = format!("all its flows together {}, set", limit.rates.shown());
        Some((limit, self.word("giveway limit set", &what)))
    }

    pub(super) fn up(&self) -> Option<(ChosenLimit, Word)> {
        self.limit_word().filter(|(limit, _)| limit.rates.up.is_some())
    }

    pub(super) fn down(&self) -> Option<(ChosenLimit, Word)> {
        self.limit_word().filter(|(limit, _)| limit.rates.down.is_some())
    }
}

/// A cgroup contains itself.
pub fn is_in(cgroup: &str, path: &str) -> bool {
    let below = cgroup.strip_prefix(path.trim_end_matches('/'));
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}
