// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was set by hand while it runs: the class, the rate limit, or both, of a process with all that it starts, of a cgroup
//! (a systemd unit) or of a flow (`giveway class set`, `giveway limit set`). Input: all of it, whenever any of it changes.
//! Output: what of it holds for a flow, a process or what is forwarded; the flows that have to be judged anew, and changes.
//! Who may set what, and when it ends, is the caller's business.
//!
//! The closest to the flow counts: what is for this very flow, then for the process or what started it (of several the one
//! set last), then for the innermost cgroup. What a user has set holds for that user's own alone, and lifts nothing that root
//! has set: of the two classes the lower counts, and of the two limits root's.

use std::cmp::Reverse;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{ByHand, Word};
use crate::change::{Change, Setting, Subject, Value};
use crate::model::{ChosenLimit, Class, Flow, LimitNumber, Process, ProcessId, unit_of};
use crate::queue::BackgroundFlow;
use crate::sockets::flows::Tracked;

/// Processes that something may be set for at a time: each has a bit of what a task hands on.
pub const MOST_PROCESSES: u8 = 64;
const ROOT: u32 = 0;

/// What it is set for.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "target")]
pub enum Target {
    /// A process, and all that it starts and has started: those tasks that have this bit.
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

/// By one user, for one target.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SetByHand {
    #[serde(flatten)]
    pub target: Target,
    pub uid: u32,
    #[serde(default)]
    pub class: Option<Class>,
    /// Of what all of it sends, and receives, together.
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

    fn name(&self) -> &str {
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
            // Each kind by its name, so that a new one is not forgotten here.
            (Self::Process { .. } | Self::Cgroup { .. } | Self::Flow { .. }, _) => false,
        }
    }

    fn subject(&self) -> Subject {
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

/// What is known of a flow or a process.
#[derive(Clone, Copy)]
struct Of<'a> {
    flow: Option<&'a Flow>,
    process: Option<&'a Process>,
    cgroup: &'a str,
    uid: u32,
}

impl SetByHand {
    pub fn holds_for_flow(&self, tracked: &Tracked) -> bool {
        let (process, cgroup, uid) = tracked.known();
        let of = Of {
            flow: Some(&tracked.flow),
            process: process.as_deref(),
            cgroup: &cgroup,
            uid,
        };
        self.closeness(of).is_some()
    }

    /// How close it is, the closest first; None where it does not hold.
    fn closeness(&self, of: Of<'_>) -> Option<(u8, usize)> {
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
            why: format!("{what} by hand for {}", self.target.shown()),
        }
    }

    fn class_word(&self) -> Option<(Class, Word)> {
        Some((self.class?, self.word("giveway class set", "set")))
    }

    fn limit_word(&self) -> Option<(ChosenLimit, Word)> {
        let limit = self.limit?;
        let what = format!("all of it may together {}, set", limit.rates.shown());
        Some((limit, self.word("giveway limit set", &what)))
    }

    fn up(&self) -> Option<(ChosenLimit, Word)> {
        self.limit_word().filter(|(limit, _)| limit.rates.up.is_some())
    }

    fn down(&self) -> Option<(ChosenLimit, Word)> {
        self.limit_word().filter(|(limit, _)| limit.rates.down.is_some())
    }
}

/// A cgroup is in itself.
pub fn is_in(cgroup: &str, path: &str) -> bool {
    let below = cgroup.strip_prefix(path.trim_end_matches('/'));
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// All that is set, in the order in which it was.
#[derive(Debug, Default)]
pub struct Hand {
    all: Vec<SetByHand>,
}

/// What is no longer so, and what is set.
#[derive(Debug)]
pub struct ByHandDifference {
    gone: Vec<SetByHand>,
    new: Vec<SetByHand>,
}

impl Hand {
    /// This is all that is set from now on.
    pub fn set(&mut self, all: Vec<SetByHand>) -> ByHandDifference {
        let before = std::mem::replace(&mut self.all, all);
        let missing = |of: &[SetByHand], other: &[SetByHand]| -> Vec<SetByHand> {
            of.iter().filter(|set| !other.contains(set)).cloned().collect()
        };
        ByHandDifference {
            gone: missing(&before, &self.all),
            new: missing(&self.all, &before),
        }
    }

    pub fn all(&self) -> &[SetByHand] {
        &self.all
    }

    pub fn target_of_limit(&self, number: LimitNumber) -> Option<&Target> {
        let is_it = |set: &&SetByHand| set.limit.is_some_and(|limit| limit.number == number);
        self.all.iter().find(is_it).map(|set| &set.target)
    }

    pub fn of_flow(&self, flow: &Flow, process: Option<&Process>, cgroup: &str, uid: u32) -> Option<ByHand> {
        self.of(Of {
            flow: Some(flow),
            process,
            cgroup,
            uid,
        })
    }

    pub fn of_process(&self, process: &Process) -> Option<ByHand> {
        self.of(Of {
            flow: None,
            process: Some(process),
            cgroup: &process.cgroup,
            uid: process.uid,
        })
    }

    /// Of what is forwarded it is not known whose it is.
    pub fn of_forwarded(&self, cgroup: &str) -> Option<ByHand> {
        self.of(Of {
            flow: None,
            process: None,
            cgroup,
            uid: ROOT,
        })
        .filter(|found| {
            let uids = [
                found.class.as_ref().map(|(_, word)| word.uid),
                found.up.as_ref().map(|(_, word)| word.uid),
                found.down.as_ref().map(|(_, word)| word.uid),
            ];
            uids.into_iter().flatten().all(|uid| uid == ROOT)
        })
    }

    fn of(&self, of: Of<'_>) -> Option<ByHand> {
        let holds = self.all.iter().enumerate();
        let mut holds: Vec<_> = holds
            .filter_map(|(at, set)| Some((set.closeness(of)?, Reverse(at), set)))
            .collect();
        if holds.is_empty() {
            return None;
        }
        holds.sort_unstable_by_key(|(close, at, _)| (*close, *at));
        let sets = || holds.iter().map(|(_, _, set)| *set);
        let roots = || sets().filter(|set| set.uid == ROOT);
        let class = sets().find_map(SetByHand::class_word).map(|own| {
            let of_root = roots().find_map(SetByHand::class_word);
            // The classes stand in the order in which they give way.
            of_root
                .filter(|(class, _)| own.1.uid != ROOT && *class > own.0)
                .unwrap_or(own)
        });
        let limit = |of: fn(&SetByHand) -> Option<(ChosenLimit, Word)>| {
            let of_root = roots().find_map(of);
            of_root.or_else(|| sets().find_map(of))
        };
        let (up, down) = (limit(SetByHand::up), limit(SetByHand::down));
        Some(ByHand { class, up, down })
    }
}

impl ByHandDifference {
    fn concerned(&self) -> impl Iterator<Item = &SetByHand> {
        self.gone.iter().chain(&self.new)
    }

    /// Whether other things are said of this flow now.
    pub fn concerns_flow(&self, tracked: &Tracked) -> bool {
        self.concerned().any(|set| set.holds_for_flow(tracked))
    }

    pub fn concerns_process(&self, process: &Process) -> bool {
        let of = Of {
            flow: None,
            process: Some(process),
            cgroup: &process.cgroup,
            uid: process.uid,
        };
        self.concerned().any(|set| set.closeness(of).is_some())
    }

    /// For this reason; and the subjects of which nothing is set any more.
    pub fn changes(&self, why: &str, made: bool) -> (Vec<Change>, Vec<Subject>) {
        let same = |all: &[SetByHand], set: &SetByHand| {
            let mut all = all.iter();
            all.find(|other| other.uid == set.uid && other.target.is_same(&set.target))
                .cloned()
        };
        let ended = self.gone.iter().filter(|set| same(&self.new, set).is_none());
        let pairs = self.new.iter().map(|set| (set.clone(), same(&self.gone, set)));
        let pairs = pairs.chain(ended.map(|set| {
            let nothing = SetByHand {
                class: None,
                limit: None,
                ..set.clone()
            };
            (nothing, Some(set.clone()))
        }));
        let (mut changes, mut over) = (Vec::new(), Vec::new());
        for (set, before) in pairs {
            changes.extend(changes_of(&set, before.as_ref(), why, made));
            if set.class.is_none() && set.limit.is_none() {
                over.push(set.target.subject());
            }
        }
        (changes, over)
    }
}

fn changes_of(set: &SetByHand, before: Option<&SetByHand>, why: &str, made: bool) -> impl Iterator<Item = Change> {
    let class = |of: &SetByHand| of.class.map_or(Value::default(), |class| class.name().into());
    let limit = |of: &SetByHand| {
        of.limit
            .map_or(Value::default(), |limit| limit.rates.shown().as_str().into())
    };
    let settings = [
        (Setting::Class, "class", before.map(class), class(set)),
        (Setting::RateLimit, "limit", before.map(limit), limit(set)),
    ];
    let of_setting = move |(setting, command, old, new): (Setting, &str, Option<Value>, Value)| {
        let old = old.unwrap_or_default();
        let verb = if new == Value::default() { "clear" } else { "set" };
        (old != new).then(|| Change {
            subject: set.target.subject(),
            name: set.target.name().to_owned(),
            setting,
            old,
            new,
            rule: format!("giveway {command} {verb} by uid {}", set.uid),
            made,
            why: why.to_owned(),
        })
    };
    settings.into_iter().filter_map(of_setting)
}
