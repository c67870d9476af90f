// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owners of flows. Input: flows, which name a process and a cgroup each, and what was read of those. Output: what
//! to read next, a bounded number at a time: each cgroup once, each process again and again while it has flows. What is
//! unknown comes first, as far as it leaves something to what is known; users take turns. Bounded: those that no flow
//! names go at the next complete poll, then the oldest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::model::{Flow, Process, ProcessId};
use crate::turns::Turns;

/// Of each kind.
const KEPT: usize = 4096;
/// Processes and cgroups together; each costs some reads of /proc. The rest waits for the next poll.
const ASKED_AT_ONCE: usize = 64;
/// Of each kind, of what is unknown.
const UNKNOWN_AT_ONCE: usize = 24;
/// A process may become another program, or be told to run at nice 19: it is asked about again after so long.
const VALID_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Owners {
    processes: OwnerTable<ProcessId, Arc<Process>>,
    cgroups: OwnerTable<u64, Arc<str>>,
}

/// What is to be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Unidentified {
    pub processes: Vec<ProcessId>,
    pub cgroups: Vec<u64>,
}

impl Owners {
    /// What the flows name and nothing is known of. After a complete poll whatever is not in it is forgotten.
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

    /// Whether anything is news.
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
    /// Asked for, answered or not.
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

    /// What is not known.
    fn ask(&mut self, now: Duration, keys: impl Iterator<Item = (u32, K)>, at_most: usize) -> Vec<K> {
        let unknown: Vec<(u32, K)> = keys.filter(|(_, key)| !self.entries.contains_key(key)).collect();
        let mut chosen = Vec::new();
        for (uid, key) in self.turns.order(unknown) {
            if chosen.len() == at_most {
                break;
            }
            // Several flows may name it.
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

    /// What was asked for too long ago, of each user's the longest first.
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

    /// What was not asked for, or forgotten since, is of no use; what has ended stays what it was. Whether anything is
    /// news.
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
