// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All settings by hand. Input: all of them, on any change. Output: the ones that apply to a flow, a process or
//! forwarded traffic; the flows to classify again, and changes. Permissions and lifetimes belong to the daemon
//! (`daemon/src/run/daemon/by_hand.rs`).
//!
//! The most specific counts: for this very flow, then for the process or a parent of it (of several, the last one),
//! then for the innermost cgroup. A user's setting applies to that user's own alone, and does not override root's: the
//! lower of the two classes counts, and root's limit.

use std::cmp::Reverse;

use super::by_hand::{Of, SetByHand, Target};
use super::{ByHand, Word};
use crate::change::{Change, Setting, Subject, Value};
use crate::model::{ChosenLimit, Flow, LimitNumber, Process, ROOT};
use crate::sockets::flows::Tracked;

/// All settings, in their order.
#[derive(Debug, Default)]
pub struct Hand {
    all: Vec<SetByHand>,
}

/// The settings that ended, and the present ones.
#[derive(Debug)]
pub struct ByHandDifference {
    gone: Vec<SetByHand>,
    new: Vec<SetByHand>,
}

impl Hand {
    /// Replaces all settings.
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

    /// The user of forwarded traffic is unknown.
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
            // Classes are in the order in which they yield.
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

    /// Whether this flow is affected by the difference.
    pub fn concerns_flow(&self, tracked: &Tracked) -> bool {
        self.concerned().any(|set| holds_for_flow(set, tracked))
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

    /// With this reason; and the subjects without any setting left.
    pub fn changes(&self, reason: &str, made: bool) -> (Vec<Change>, Vec<Subject>) {
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
            changes.extend(changes_of(&set, before.as_ref(), reason, made));
            if set.class.is_none() && set.limit.is_none() {
                over.push(set.target.subject());
            }
        }
        (changes, over)
    }
}

fn changes_of(set: &SetByHand, before: Option<&SetByHand>, reason: &str, made: bool) -> impl Iterator<Item = Change> {
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
            reason: reason.to_owned(),
        })
    };
    settings.into_iter().filter_map(of_setting)
}

pub fn holds_for_flow(set: &SetByHand, tracked: &Tracked) -> bool {
    let (process, cgroup, uid) = tracked.known();
    let of = Of {
        flow: Some(&tracked.flow),
        process,
        cgroup,
        uid,
    };
    set.closeness(of).is_some()
}
