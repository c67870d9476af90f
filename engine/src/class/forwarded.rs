// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Classes of forwarded traffic: packets of containers, of which only the cgroup is known. Input: once a second, the
//! cgroups that sent within the last minute, and their paths. Output: the queue's treatment of each, and the changes.
//! Bounded: known cgroups, path requests at a time, and the matching cost of a step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::action::Action;
use super::active::Meant;
use super::flows::{COST_OF_A_STEP, Classes};
use super::{MOST_PACKET_RULES, Verdict};
use crate::change::{Change, Setting, Subject, Value};
use crate::model::{Class, Forwarded, Treatment};
use crate::sockets::owners::Unidentified;

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Asked {
    #[default]
    Never,
    /// Its path was unknown: it has ended, or resources were short.
    InVain,
    Now,
}

/// The size of the kernel's table.
pub const MOST_CGROUPS: usize = 1024;
const ASKED_AT_ONCE: usize = 24;

#[derive(Debug, Default)]
pub struct Cgroups(BTreeMap<u64, KnownCgroup>);

#[derive(Debug, Default)]
struct KnownCgroup {
    path: Option<Arc<str>>,
    asked: Asked,
    verdict: Verdict,
    /// By this generation of rules, and this focus.
    judged: Option<(u64, Arc<Meant>)>,
    told: Option<Forwarded>,
}

impl Cgroups {
    /// Takes in the sending cgroups. Returns the paths of those that stopped, and the ones whose paths are requested.
    pub fn observe(&mut self, sending: &BTreeSet<u64>) -> (Vec<Arc<str>>, Option<Unidentified>) {
        let ended = self.0.extract_if(.., |cgroup, _| !sending.contains(cgroup));
        let ended = ended.filter_map(|(_, known)| known.path).collect();
        for cgroup in sending {
            if self.0.len() == MOST_CGROUPS {
                break;
            }
            self.0.entry(*cgroup).or_default();
        }
        let mut cgroups = Vec::new();
        // Failed requests do not delay new ones.
        for asked in [Asked::Never, Asked::InVain] {
            let unknown = self.0.iter_mut().filter(|(_, known)| known.asked == asked);
            for (cgroup, known) in unknown.take(ASKED_AT_ONCE - cgroups.len()) {
                known.asked = Asked::Now;
                cgroups.push(*cgroup);
            }
        }
        let ask = (!cgroups.is_empty()).then(|| Unidentified {
            processes: Vec::new(),
            cgroups,
        });
        (ended, ask)
    }

    pub fn identified(&mut self, cgroups: &[(u64, Option<Arc<str>>)]) {
        for (cgroup, path) in cgroups {
            let Some(known) = self.0.get_mut(cgroup).filter(|known| known.path.is_none()) else {
                continue;
            };
            known.path.clone_from(path);
            if path.is_none() {
                known.asked = Asked::InVain;
            }
        }
    }

    /// The settings by hand have changed.
    pub fn judge_again(&mut self) {
        self.0.values_mut().for_each(|known| known.judged = None);
    }

    /// Classifies those whose rules or focus have changed, within the cost of a step; the rest follows.
    pub fn judge(&mut self, classes: &Classes) -> (Vec<Action>, Vec<Change>) {
        let basis = classes.basis_of_forwarded();
        let mut left = COST_OF_A_STEP;
        let (mut actions, mut changes) = (Vec::new(), Vec::new());
        for (cgroup, known) in &mut self.0 {
            let Some(path) = known.path.as_ref().filter(|_| !known.is_judged_by(&basis)) else {
                continue;
            };
            let cost = classes.cost_of_forwarded(path);
            if cost > left && left < COST_OF_A_STEP {
                break;
            }
            left = left.saturating_sub(cost);
            let said = classes.judge_forwarded(path);
            known.judged = Some((basis.0, Arc::clone(basis.1)));
            let told = said.as_ref().map(|(verdict, before)| Forwarded {
                treatment: Treatment {
                    class: verdict.class,
                    limits: verdict.limits,
                },
                rules_before: (*before).min(MOST_PACKET_RULES) as u8,
            });
            if told != known.told {
                known.told = told;
                actions.push(Action::TreatForwarded { cgroup: *cgroup, told });
            }
            let verdict = said.map(|(verdict, _)| verdict).unwrap_or_default();
            let before = std::mem::replace(&mut known.verdict, verdict);
            if before != known.verdict {
                changes.push(change_of(path, before, &known.verdict));
            }
        }
        (actions, changes)
    }

    /// The known paths of those that sent lately.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.values().filter_map(|known| known.path.as_deref())
    }

    /// Those with a verdict: path, effective class, and verdict.
    pub fn verdicts(&self) -> impl Iterator<Item = (&str, Class, &Verdict)> {
        self.0.values().filter_map(|known| {
            let (path, told) = (known.path.as_deref()?, known.told?);
            Some((path, told.treatment.class, &known.verdict))
        })
    }
}

impl KnownCgroup {
    fn is_judged_by(&self, (generation, meant): &(u64, &Arc<Meant>)) -> bool {
        let is_by = |(before, of): &(u64, Arc<Meant>)| before == generation && Arc::ptr_eq(of, meant);
        self.judged.as_ref().is_some_and(is_by)
    }
}

fn change_of(path: &Arc<str>, before: Verdict, verdict: &Verdict) -> Change {
    Change {
        subject: Subject::Cgroup { path: path.to_string() },
        name: String::new(),
        setting: Setting::Class,
        old: Value::from(before.class.name()),
        new: Value::from(verdict.class.name()),
        rule: verdict.rule.clone(),
        reason: verdict.reason.clone(),
        made: true,
    }
}
