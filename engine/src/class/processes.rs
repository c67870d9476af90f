// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Classes of processes, so that a connection has its class from its first packet on, and background processes are
//! reniced ([`crate::background::nice`]) whether they send or not. Input: once a second, all processes, and their
//! properties once read. Output: which processes to read, a bounded number at a time; the queue's treatment of each;
//! the rule that its child processes inherit; and each verdict. Processes that live for less than a second are not
//! read. Bounded per user and in all; connections of the others are classified when they are polled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::action::Action;
use super::active::Meant;
use super::flows::{COST_OF_A_STEP, Classes};
use super::{Itself, Verdict};
use crate::model::{Fingerprint, Nice, Process, ProcessId, ROOT, RuleId, Treatment};
use crate::sockets::owners::Unidentified;
use crate::turns::Turns;

/// The size of the kernel's table.
pub const MOST_PROCESSES: usize = 4096;
/// For all users but root, in total.
const OF_USERS: usize = MOST_PROCESSES - 1024;
/// For each of them.
const OF_A_USER: usize = 512;
/// Each takes about 50 us.
const READ_AT_ONCE: usize = 64;
/// The init process.
const INIT: u32 = 1;

#[derive(Debug, Default)]
pub struct Processes {
    processes: BTreeMap<ProcessId, KnownProcess>,
    /// A class was chosen for it, and it has not been listed yet.
    chosen: BTreeSet<ProcessId>,
    /// Round robin over users whose processes have to be read.
    turns: Turns,
    /// And over those whose processes have to be classified.
    judges: Turns,
    /// As of the latest list.
    left_out: usize,
    /// Steps in which processes were classified.
    steps: u64,
}

/// A process with its verdict and giveway's changes of it.
#[derive(Debug)]
pub struct JudgedProcess {
    pub id: ProcessId,
    pub process: Arc<Process>,
    pub verdict: Option<Verdict>,
    pub nice: Option<Nice>,
}

#[derive(Debug)]
struct KnownProcess {
    fingerprint: Fingerprint,
    /// Requested with this fingerprint.
    is_asked: bool,
    is_read: bool,
    process: Option<Arc<Process>>,
    /// By this generation of rules, and this focus.
    judged: Option<(u64, Arc<Meant>)>,
    /// The step of it.
    judged_at: u64,
    told: Option<Treatment>,
    /// Set by giveway.
    nice: Option<Nice>,
    /// The rule that its children inherit, by the verdict, and as installed in the kernel.
    hands_on: Option<RuleId>,
    names: Option<RuleId>,
}

impl Processes {
    /// Takes in all present processes.
    pub fn observe(&mut self, listed: Vec<Fingerprint>) -> (Vec<Action>, Option<Unidentified>) {
        let mut actions = self.forget_ended(&listed);
        let mut of_users = BTreeMap::<u32, usize>::new();
        for known in self.processes.values() {
            *of_users.entry(known.fingerprint.uid).or_default() += 1;
        }
        let mut of_all: usize = of_users
            .iter()
            .filter(|(uid, _)| **uid != ROOT)
            .map(|(_, own)| own)
            .sum();
        self.left_out = 0;
        let mut unread = Vec::new();
        for mut fingerprint in listed {
            let (id, uid) = (fingerprint.id, fingerprint.uid);
            // Giveway's own changes are no reason to read it again.
            let (is_nice, names) = (fingerprint.nice.take(), fingerprint.names.take());
            if let Some(known) = self.processes.get_mut(&id) {
                if known.nice.is_some() != is_nice.is_some() {
                    // A niceness inherited from a parent may have to be restored.
                    known.judged = None;
                }
                (known.nice, known.names) = (is_nice, names);
                if known.fingerprint != fingerprint {
                    (known.fingerprint, known.is_asked, known.is_read) = (fingerprint, false, false);
                }
                actions.extend(known.name());
                unread.extend((!known.is_asked).then_some((uid, id)));
                continue;
            }
            let own = of_users.entry(uid).or_default();
            let is_roots = uid == ROOT;
            let has_room = is_roots || (*own < OF_A_USER && of_all < OF_USERS);
            if self.processes.len() < MOST_PROCESSES && has_room {
                *own += 1;
                of_all += usize::from(!is_roots);
                let mut known = KnownProcess::new(fingerprint, names);
                // Its treatment has to be installed again or removed.
                known.told = self.chosen.remove(&id).then(Treatment::default);
                self.processes.insert(id, known);
            } else {
                self.left_out += 1;
            }
        }
        let processes = self.ask(unread);
        let unidentified = (!processes.is_empty()).then(|| Unidentified {
            processes,
            cgroups: Vec::new(),
        });
        (actions, unidentified)
    }

    /// Removes all that have ended from the queue's table.
    fn forget_ended(&mut self, listed: &[Fingerprint]) -> Vec<Action> {
        let present: BTreeSet<ProcessId> = listed.iter().map(|listed| listed.id).collect();
        let mut actions = Vec::new();
        self.processes.retain(|id, known| {
            let is_there = present.contains(id);
            if !is_there && known.told.is_some() {
                actions.push(treat(*id, None));
            }
            is_there
        });
        let gone = self.chosen.extract_if(.., |id| !present.contains(id));
        actions.extend(gone.map(|id| treat(id, None)));
        actions
    }

    /// The next to read, up to the limit.
    fn ask(&mut self, unread: Vec<(u32, ProcessId)>) -> Vec<ProcessId> {
        let mut unread = self.turns.order(unread);
        unread.truncate(READ_AT_ONCE);
        for (uid, id) in &unread {
            self.turns.had(*uid);
            if let Some(known) = self.processes.get_mut(id) {
                known.is_asked = true;
            }
        }
        unread.into_iter().map(|(_, id)| id).collect()
    }

    /// A class was just chosen for it, which the list does not show yet.
    pub fn chosen(&mut self, process: ProcessId, treatment: Treatment) -> Action {
        match self.processes.get_mut(&process) {
            Some(known) => known.told = Some(treatment),
            None => drop(self.chosen.insert(process)),
        }
        treat(process, Some(treatment))
    }

    /// More rule conditions can be evaluated than when they were read.
    pub fn read_again(&mut self) {
        self.processes.values_mut().for_each(|known| known.is_asked = false);
    }

    /// The consequences were revoked.
    pub fn judge_again(&mut self) {
        self.processes.values_mut().for_each(|known| known.judged = None);
    }

    /// Classifies those again that match.
    pub fn judge_again_where(&mut self, is_it: impl Fn(&Process) -> bool) {
        let known = self.processes.values_mut();
        known
            .filter(|known| known.process.as_deref().is_some_and(&is_it))
            .for_each(|known| known.judged = None);
    }

    /// The known ones among these that were reniced since the latest list.
    pub fn newly_nice(&self, listed: &[Fingerprint]) -> Vec<(ProcessId, Nice)> {
        let is_news = |listed: &Fingerprint| {
            let known = self.processes.get(&listed.id)?;
            Some((listed.id, listed.nice.filter(|_| known.nice.is_none())?))
        };
        listed.iter().filter_map(is_news).collect()
    }

    /// Processes beyond the bound.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Processes that giveway reniced, inherited niceness included.
    pub fn nice(&self) -> usize {
        self.processes.values().filter(|known| known.nice.is_some()).count()
    }

    /// Whether anything has changed.
    pub fn identified(&mut self, processes: &[(ProcessId, Option<Arc<Process>>)]) -> bool {
        let mut news = false;
        for (id, process) in processes {
            let (Some(known), Some(process)) = (self.processes.get_mut(id), process) else {
                continue;
            };
            known.is_read = true;
            if known.process.as_ref() != Some(process) {
                (known.process, known.judged) = (Some(Arc::clone(process)), None);
                news = true;
            }
        }
        news
    }

    /// Classifies those whose rules or focus have changed, within the cost of a step: round robin over users, and for
    /// each user the one that was classified longest ago first. The rest follows. Returns the verdicts on the
    /// processes, too.
    pub fn judge(&mut self, classes: &Classes) -> (Vec<Action>, Vec<JudgedProcess>) {
        let mut pending: Vec<(u32, u64, ProcessId)> = self
            .processes
            .iter()
            .filter(|(_, known)| known.is_pending(classes))
            .map(|(id, known)| (known.fingerprint.uid, known.judged_at, *id))
            .collect();
        pending.sort_unstable_by_key(|(_, judged_at, id)| (*judged_at, *id));
        let pending = self.judges.order(pending.into_iter().map(|(uid, _, id)| (uid, id)));
        let mut left = COST_OF_A_STEP;
        let (mut actions, mut judged) = (Vec::new(), Vec::new());
        self.steps += 1;
        for (uid, id) in pending {
            let Some((known, process)) = self
                .processes
                .get_mut(&id)
                .and_then(|known| known.process.clone().map(|process| (known, process)))
            else {
                continue;
            };
            let cost = classes.cost_of_process(&process);
            if cost > left && left < COST_OF_A_STEP {
                break;
            }
            left = left.saturating_sub(cost);
            let (generation, meant) = classes.basis_of_process(&process);
            let verdict = classes.judge_process(&process);
            let Itself {
                verdict: of_itself,
                hands_on,
            } = classes.judge_itself(&process);
            let treatment = classes.treatment_of_process(&process, verdict);
            known.judged = Some((generation, Arc::clone(meant)));
            known.judged_at = self.steps;
            // Children of init inherit nothing.
            known.hands_on = hands_on.filter(|_| id.pid != INIT);
            actions.extend(known.name());
            self.judges.had(uid);
            if treatment != known.told {
                known.told = treatment;
                actions.push(treat(id, treatment));
            }
            judged.push(JudgedProcess {
                id,
                process,
                verdict: of_itself,
                nice: known.nice,
            });
        }
        (actions, judged)
    }
}

impl KnownProcess {
    fn new(fingerprint: Fingerprint, names: Option<RuleId>) -> Self {
        Self {
            fingerprint,
            is_asked: false,
            is_read: false,
            process: None,
            judged: None,
            judged_at: 0,
            told: None,
            nice: None,
            hands_on: None,
            names,
        }
    }

    /// The action if the kernel has another rule than the verdict.
    fn name(&self) -> Option<Action> {
        let is_news = self.is_read && self.judged.is_some() && self.names != self.hands_on;
        is_news.then_some(Action::HandOn {
            process: self.fingerprint.id,
            image: self.fingerprint.image,
            rule: self.hands_on,
        })
    }

    /// It has been read, and not yet classified by the present basis.
    fn is_pending(&self, classes: &Classes) -> bool {
        self.process.as_ref().is_some_and(|process| {
            let (generation, meant) = classes.basis_of_process(process);
            let is_by =
                |(before, of_before): &(u64, Arc<Meant>)| *before == generation && Arc::ptr_eq(of_before, meant);
            !self.judged.as_ref().is_some_and(is_by)
        })
    }
}

fn treat(process: ProcessId, treatment: Option<Treatment>) -> Action {
    Action::TreatProcess { process, treatment }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(pid: u32, uid: u32) -> Fingerprint {
        Fingerprint {
            id: ProcessId { pid, start_ns: 1 },
            uid,
            ..Fingerprint::default()
        }
    }

    fn asked((_, unidentified): (Vec<Action>, Option<Unidentified>)) -> Vec<u32> {
        let asked = unidentified.into_iter().flat_map(|asked| asked.processes);
        asked.map(|id| id.pid).collect()
    }

    #[test]
    fn processes_are_read_after_a_second_and_again_on_changes() {
        let mut processes = Processes::default();
        let changed = |image| Fingerprint { image, ..listed(5, 0) };
        let mut observe = |listed: Vec<Fingerprint>| asked(processes.observe(listed));
        assert!(observe(vec![changed(1)]).is_empty());
        assert_eq!(observe(vec![changed(1), listed(6, 0)]), [5]);
        assert!(observe(vec![changed(1)]).is_empty());
        assert_eq!(observe(vec![changed(2)]), [5]);
        assert!(observe(vec![]).is_empty());
        assert!(observe(vec![changed(2)]).is_empty());
    }

    #[test]
    fn users_take_turns_and_none_fills_the_table() {
        let mut processes = Processes::default();
        let crowd = || {
            (0..10_000)
                .map(|pid| listed(100 + pid, 1000))
                .chain([listed(5, 0), listed(6, 7)])
        };
        processes.observe(crowd().collect());
        assert_eq!(processes.processes.len(), OF_A_USER + 2);
        let first = asked(processes.observe(crowd().collect()));
        assert_eq!(first.len(), READ_AT_ONCE);
        assert!(first.contains(&5) && first.contains(&6));
        assert_eq!(processes.left_out(), 10_000 - OF_A_USER);
    }

    #[test]
    fn all_users_together_leave_room_for_root() {
        let mut processes = Processes::default();
        let crowd = || (0..5000).map(|pid| listed(100 + pid, 1000 + pid / 500));
        let mut observe = |listed: Vec<Fingerprint>| asked(processes.observe(listed));
        observe(crowd().collect());
        observe(crowd().chain([listed(5, ROOT)]).collect());
        assert!(observe(crowd().chain([listed(5, ROOT)]).collect()).contains(&5));
        assert_eq!(processes.processes.len(), OF_USERS + 1);
        assert_eq!(processes.left_out(), 5000 - OF_USERS);
    }
}
