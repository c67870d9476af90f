// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owners of flows. Input: flows, each with its process and cgroup, and their properties once read. Output: what to
//! read next, a bounded number at a time: each cgroup once, each process repeatedly while it has flows. Unknown ones
//! come first, within a share; users take turns. Bounded: entries without flows go at the next full scan, then the
//! oldest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::model::{Flow, Process, ProcessId};
use crate::turns::Turns;

/// Of each kind.
const KEPT: usize = 4096;
/// Processes and cgroups together; each takes some reads of /proc. The rest waits for the next poll.
const ASKED_AT_ONCE: usize = 64;
/// Of unknown ones of each kind.
const UNKNOWN_AT_ONCE: usize = 24;
/// A process may become another program, or be reniced: it is read again after this long.
const VALID_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Owners {
    processes: OwnerTable<ProcessId, Arc<Process>>,
    cgroups: OwnerTable<u64, Arc<str>>,
}

/// What to read.
#[derive(Clone, Debug, PartialEq)]
pub struct Unidentified {
    pub processes: Vec<ProcessId>,
    pub cgroups: Vec<u64>,
}

impl Owners {
    /// The unknown owners of these flows. At a full scan all others are forgotten.
    pub fn unknown(&mut self, now: Duration, flows: &[&Flow], complete: bool) -> Option<Unidentified> {
        let ids = || {
            let id = |flow: &&Flow| Some((flow.user(), flow.process()?));
            flows.iter().filter_map(id)
        };
        let cgroup_ids = || flows.iter().map(|flow| (flow.user(), flow.cgroup_id));
        if complete {
            self.processes.retain(&ids().map(|(_, id)| id).collect());
            self.cgroups.retain(&cgroup_ids().map(|(_, id)| id).collect());
        }
        let mut processes = self.processes.ask(now, ids(), UNKNOWN_AT_ONCE);
        let cgroups = self.cgroups.ask(now, cgroup_ids(), UNKNOWN_AT_ONCE);
        let left = ASKED_AT_ONCE - processes.len() - cgroups.len();
        processes.extend(self.processes.ask_again(now, ids(), left));
        (!processes.is_empty() || !cgroups.is_empty()).then_some(Unidentified { processes, cgroups })
    }

    /// Whether anything has changed.
    pub fn identified(
        &mut self,
        processes: Vec<(ProcessId, Option<Arc<Process>>)>,
        cgroups: Vec<(u64, Option<Arc<str>>)>,
    ) -> bool {
        let processes = self.processes.answer(processes);
        self.cgroups.answer(cgroups) || processes
    }

    pub fn process(&self, flow: &Flow) -> Option<&Arc<Process>> {
        self.processes.get(&flow.process()?)
    }

    pub fn cgroup(&self, flow: &Flow) -> Option<&Arc<str>> {
        self.cgroups.get(&flow.cgroup_id)
    }
}

#[derive(Debug)]
struct Entry<V> {
    asked: Duration,
    found: Option<V>,
}

#[derive(Debug, Default)]
struct OwnerTable<K, V> {
    /// Requested, answered or not.
    entries: BTreeMap<K, Entry<V>>,
    order: BTreeMap<u64, K>,
    asked: u64,
    turns: Turns,
}

impl<K: Copy + Ord, V: PartialEq> OwnerTable<K, V> {
    fn retain(&mut self, present: &BTreeSet<K>) {
        self.entries.retain(|key, _| present.contains(key));
        self.order.retain(|_, key| present.contains(key));
    }

    /// Of these, the unknown ones.
    fn ask(&mut self, now: Duration, keys: impl Iterator<Item = (u32, K)>, at_most: usize) -> Vec<K> {
        let unknown: Vec<(u32, K)> = keys.filter(|(_, key)| !self.entries.contains_key(key)).collect();
        let mut chosen = Vec::new();
        for (uid, key) in self.turns.order(unknown) {
            if chosen.len() == at_most {
                break;
            }
            // Several flows may have it.
            if self.entries.contains_key(&key) {
                continue;
            }
            if self.entries.len() == KEPT
                && let Some((_, oldest)) = self.order.pop_first()
            {
                self.entries.remove(&oldest);
            }
            self.asked += 1;
            let (asked, found) = (now, None);
            self.entries.insert(key, Entry { asked, found });
            self.order.insert(self.asked, key);
            self.turns.had(uid);
            chosen.push(key);
        }
        chosen
    }

    /// The ones requested too long ago, each user's oldest first.
    fn ask_again(&mut self, now: Duration, keys: impl Iterator<Item = (u32, K)>, at_most: usize) -> Vec<K> {
        let Some(stale) = now.checked_sub(VALID_FOR) else {
            return Vec::new();
        };
        let asked = |(uid, key): (u32, K)| Some((self.entries.get(&key)?.asked, key, uid));
        let all: BTreeSet<(Duration, K, u32)> = keys.filter_map(asked).filter(|(asked, ..)| *asked <= stale).collect();
        let mut chosen = self.turns.order(all.into_iter().map(|(_, key, uid)| (uid, key)));
        chosen.truncate(at_most);
        for (uid, key) in &chosen {
            self.turns.had(*uid);
            if let Some(entry) = self.entries.get_mut(key) {
                entry.asked = now;
            }
        }
        chosen.into_iter().map(|(_, key)| key).collect()
    }

    /// An answer that was not requested, or is forgotten since, is ignored; what has ended keeps its properties.
    /// Whether anything has changed.
    fn answer(&mut self, answers: Vec<(K, Option<V>)>) -> bool {
        let mut news = false;
        for (key, answer) in answers {
            if let Some(entry) = self.entries.get_mut(&key)
                && answer.is_some()
                && entry.found != answer
            {
                entry.found = answer;
                news = true;
            }
        }
        news
    }

    fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)?.found.as_ref()
    }
}

#[cfg(test)]
mod tests;
