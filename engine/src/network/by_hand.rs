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
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Network;
use super::enforcement::LimitsView;
use super::limit_use::passing as passing_of;
use crate::change::{Change, Setting, Subject, Value};
use crate::class::{ByHand, Word};
use crate::downlink::Passing;
use crate::model::{ChosenLimit, Class, Cookie, Flow, LimitNumber, Process, ProcessId, Rates, unit_of};
use crate::queue::BackgroundFlow;
use crate::rate;
use crate::sockets::flows::Tracked;

/// Of why a limit does not hold for all of its flows.
const MOST_REASONS: usize = 4;
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

/// The same for `status` and the lists.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct HandView {
    #[serde(flatten)]
    pub set: SetByHand,
    /// Flows that it holds for now.
    pub flows: usize,
    /// That its limit allows to be sent and received, and what its queues let pass of that, headers included; None without a
    /// limit, and where it holds on no link.
    pub upload_limit_mbit: Option<f64>,
    pub download_limit_mbit: Option<f64>,
    pub sent_mbit: Option<f64>,
    pub received_mbit: Option<f64>,
    /// Why its limit, or its class, does not hold for some of these flows, or of what is forwarded.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub not_enforced: BTreeSet<String>,
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
fn is_in(cgroup: &str, path: &str) -> bool {
    let below = cgroup.strip_prefix(path.trim_end_matches('/'));
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// All that is set, in the order in which it was.
#[derive(Debug, Default)]
pub struct Hand {
    all: Vec<SetByHand>,
}

impl Hand {
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

impl Network {
    /// This is all that is set by hand now, and why it has changed.
    pub(super) fn set_by_hand(&mut self, now: Duration, all: Vec<SetByHand>, why: &str) {
        let before = std::mem::replace(&mut self.classes.hand.all, all.clone());
        let changed = |of: &[SetByHand], other: &[SetByHand]| -> Vec<SetByHand> {
            of.iter().filter(|set| !other.contains(set)).cloned().collect()
        };
        let (gone, new) = (changed(&before, &all), changed(&all, &before));
        self.note_by_hand(now, &gone, &new, why);
        let concerned: Vec<SetByHand> = gone.into_iter().chain(new).collect();
        let is_meant = |tracked: &&Tracked| {
            let of = tracked.known();
            concerned.iter().any(|set| {
                let (process, cgroup, uid) = &of;
                let of = Of {
                    flow: Some(&tracked.flow),
                    process: process.as_deref(),
                    cgroup,
                    uid: *uid,
                };
                set.closeness(of).is_some()
            })
        };
        let meant: Vec<Cookie> = self.flows.iter().filter(is_meant).map(|t| t.flow.cookie).collect();
        self.judge_anew(now, &meant);
        self.early.judge_again_where(|process| {
            let of = Of {
                flow: None,
                process: Some(process),
                cgroup: &process.cgroup,
                uid: process.uid,
            };
            concerned.iter().any(|set| set.closeness(of).is_some())
        });
        self.judge_processes();
        let due = self.nice.due(now);
        self.ask_nice(now, due);
        self.forwarded.judge_again();
        self.judge_forwarded(now);
    }

    fn note_by_hand(&mut self, now: Duration, gone: &[SetByHand], new: &[SetByHand], why: &str) {
        let same = |all: &[SetByHand], set: &SetByHand| {
            let mut all = all.iter();
            all.find(|other| other.uid == set.uid && other.target.is_same(&set.target))
                .cloned()
        };
        let ended = gone.iter().filter(|set| same(new, set).is_none());
        let pairs: Vec<(SetByHand, Option<SetByHand>)> = new
            .iter()
            .map(|set| (set.clone(), same(gone, set)))
            .chain(ended.map(|set| {
                let nothing = SetByHand {
                    class: None,
                    limit: None,
                    ..set.clone()
                };
                (nothing, Some(set.clone()))
            }))
            .collect();
        for (set, before) in pairs {
            let class = |of: &SetByHand| of.class.map_or(Value::default(), |class| class.name().into());
            let limit = |of: &SetByHand| {
                of.limit
                    .map_or(Value::default(), |limit| limit.rates.shown().as_str().into())
            };
            let [old_class, old_limit] = [class, limit].map(|value| before.as_ref().map_or(Value::default(), value));
            for (setting, command, old, new) in [
                (Setting::Class, "class", old_class, class(&set)),
                (Setting::RateLimit, "limit", old_limit, limit(&set)),
            ] {
                if old == new {
                    continue;
                }
                let verb = if new == Value::default() { "clear" } else { "set" };
                let change = Change {
                    subject: set.target.subject(),
                    name: set.target.name().to_owned(),
                    setting,
                    old,
                    new,
                    rule: format!("giveway {command} {verb} by uid {}", set.uid),
                    made: !self.links.dry_run(),
                    why: why.to_owned(),
                };
                self.note(now, change);
            }
            if set.class.is_none() && set.limit.is_none() {
                self.changes.ended(&set.target.subject());
            }
        }
    }

    /// Flows to this destination, of this user's or, for root, anybody's.
    pub fn flows_to(&self, destination: &BackgroundFlow, uid: u32) -> usize {
        let is_it = |tracked: &&Tracked| {
            let is_own = uid == ROOT || tracked.known().2 == uid;
            is_own && destination.matches(&tracked.flow)
        };
        self.flows.iter().filter(is_it).count()
    }

    /// The lowest class that any of its flows has now: its limit stands there.
    pub fn class_by_hand(&self, set: &SetByHand) -> Class {
        let flows = self.flows.iter().filter(|tracked| holds_for(set, tracked));
        let of_flows = flows.map(|tracked| tracked.class).max();
        set.class.or(of_flows).unwrap_or(Class::Standard)
    }

    pub fn set_by_hand_views(&self) -> Vec<HandView> {
        let [uploads, downloads] = [&self.uploads, &self.downloads].map(|way| passing_of(&way.view()));
        let view = |set: &SetByHand| {
            let rates = set.limit.map(|limit| limit.rates).unwrap_or_default();
            let passing = |of: &BTreeMap<LimitNumber, Passing>| Some(of.get(&set.limit?.number)?.passing_mbit);
            let flows: Vec<&Tracked> = self.flows.iter().filter(|tracked| holds_for(set, tracked)).collect();
            let lacks = flows.iter().filter_map(|tracked| self.limits_view(tracked));
            HandView {
                set: set.clone(),
                flows: flows.len(),
                not_enforced: {
                    let of_limit = set
                        .limit
                        .map(|_| lacks.flat_map(LimitsView::reasons).collect::<BTreeSet<_>>());
                    let of_limit = of_limit.unwrap_or_default().into_iter().take(MOST_REASONS);
                    let others: BTreeSet<String> = flows
                        .iter()
                        .flat_map(|tracked| self.in_place_of(set, tracked))
                        .collect();
                    of_limit
                        .chain(others.into_iter().take(MOST_REASONS))
                        .chain(self.unordered(set))
                        .collect()
                },
                upload_limit_mbit: rates.up.map(rate::mbit),
                download_limit_mbit: rates.down.map(rate::mbit),
                sent_mbit: rates.up.and_then(|_| passing(&uploads)),
                received_mbit: rates.down.and_then(|_| passing(&downloads)),
            }
        };
        self.classes.hand.all.iter().map(view).collect()
    }

    /// The limits that hold for the flow in place of this one.
    fn in_place_of(&self, set: &SetByHand, tracked: &Tracked) -> Vec<String> {
        let Some(ChosenLimit { number, rates }) = set.limit else {
            return Vec::new();
        };
        let limits = tracked.judged.verdict.limits;
        let ways = [(rates.up, limits.up), (rates.down, limits.down)];
        let others = ways.into_iter().filter(|(rate, _)| rate.is_some());
        let others = others.filter_map(|(_, holds)| holds.filter(|holds| *holds != number));
        others
            .map(|other| format!("{} holds in place of it", self.limit_shown(other)))
            .collect()
    }

    fn limit_shown(&self, number: LimitNumber) -> String {
        if let Some(place) = self.classes.rule_of_limit(number) {
            return format!("the limit of the rule at {place}, which all its flows share,");
        }
        match self.classes.target_of_limit(number) {
            Some(target) => format!("the limit that is set for {}", target.shown()),
            None => "the limit of its command (`giveway exec`)".to_owned(),
        }
    }

    /// The limits of rules that bind this process, whatever limit a user who is not root chooses for it.
    pub fn rules_that_bind(&self, process: &Process, rates: Rates) -> Vec<String> {
        let limits = self.classes.limits_by_rules(process);
        let ways = [(rates.up, limits.up), (rates.down, limits.down)];
        let bound: BTreeSet<LimitNumber> = ways.into_iter().filter_map(|(rate, holds)| rate.and(holds)).collect();
        bound
            .into_iter()
            .map(|number| format!("{} holds in place of it", self.limit_shown(number)))
            .collect()
    }

    /// What a container receives has no class here.
    fn unordered(&self, set: &SetByHand) -> Option<String> {
        let Target::Cgroup { path, .. } = &set.target else {
            return None;
        };
        let is_limited = set.limit.is_some_and(|limit| limit.rates.down.is_some());
        let yields = !is_limited && set.class.is_some_and(|class| class > Class::Standard);
        let is_ordered = self.downloads.ordering().next().is_some();
        let is_container = yields && is_ordered && self.forwarded.paths().any(|of| is_in(of, path));
        is_container.then(|| {
            "what a container with a network of its own receives is not ordered by its class: set a download limit for it"
                .to_owned()
        })
    }

    /// The numbers of limits that were set by hand.
    pub fn limits_by_hand(&self) -> BTreeSet<LimitNumber> {
        let limits = self.classes.hand.all.iter().filter_map(|set| set.limit);
        limits.map(|limit| limit.number).collect()
    }
}

fn holds_for(set: &SetByHand, tracked: &Tracked) -> bool {
    let (process, cgroup, uid) = tracked.known();
    let of = Of {
        flow: Some(&tracked.flow),
        process: process.as_deref(),
        cgroup: &cgroup,
        uid,
    };
    set.closeness(of).is_some()
}
