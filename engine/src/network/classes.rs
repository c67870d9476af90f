// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The class of each flow, judged anew when what it was judged by has changed. Input: rules, flows, their owners, names
//! of interfaces, flows that were named as background. Output: verdicts, their changes, and what the queue is told.
//! Bounded: what is looked at in one step, and how many flows the queue is told of; the rest waits for the next pass.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::action::Action;
use super::flows::Tracked;
use super::owners::Owners;
use super::queue::BackgroundFlow;
use super::{Network, name_of};
use crate::change::{Change, Setting, Subject, Value};
use crate::class::{By, Rules, Seen, Treatment, Verdict, judge};
use crate::config::{Background, Dscp, Protocol};
use crate::matcher::{Ends, Marks, Process};
use crate::model::{Cookie, Flow};

/// Bytes of patterns and texts in a step: some milliseconds.
const COST_OF_A_STEP: usize = 4 << 20;
/// Flows that the queue is told of.
const TOLD: usize = 3072;

pub struct Classes {
    rules: Arc<Rules>,
    interfaces: BTreeMap<u32, String>,
    /// By whom.
    named: BTreeMap<BackgroundFlow, String>,
    /// Raised when any of the above changes.
    generation: u64,
    /// Some flows wait to be judged.
    unfinished: bool,
    told: BTreeMap<Cookie, (BackgroundFlow, Treatment)>,
}

/// A flow's verdict, and what it was judged by.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    pub verdict: Verdict,
    by: Option<Basis>,
}

#[derive(Clone, Debug)]
struct Basis {
    generation: u64,
    process: Option<Arc<Process>>,
    cgroup: Option<Arc<str>>,
    priority: u32,
    dscp: u8,
    ifindex: u32,
}

impl Basis {
    fn is(&self, other: &Self) -> bool {
        let process = |basis: &Self| basis.process.as_ref().map(Arc::as_ptr);
        let rest = |basis: &Self| (basis.generation, basis.priority, basis.dscp, basis.ifindex);
        process(self) == process(other) && rest(self) == rest(other) && self.cgroup == other.cgroup
    }
}

impl Classes {
    pub fn new(configured: &[Background]) -> Self {
        let named = configured
            .iter()
            .map(|flow| (BackgroundFlow::from(flow).canonical(), "[[background]]".to_owned()));
        Self {
            rules: Arc::default(),
            interfaces: BTreeMap::new(),
            named: named.collect(),
            generation: 0,
            unfinished: false,
            told: BTreeMap::new(),
        }
    }

    fn basis(&self, flow: &Flow, owners: &Owners) -> Basis {
        Basis {
            generation: self.generation,
            process: owners.process(flow).cloned(),
            cgroup: owners.cgroup(flow).cloned(),
            priority: flow.priority,
            dscp: flow.dscp,
            ifindex: flow.ifindex,
        }
    }

    fn judge(&self, flow: &Flow, basis: &Basis) -> Verdict {
        let process = basis.process.as_deref();
        let of_socket = basis.cgroup.as_deref().unwrap_or_default();
        let seen = Seen {
            process,
            cgroup: process.map_or(of_socket, |process| &process.cgroup),
            ends: Ends {
                protocol: Protocol::Tcp,
                local: flow.local,
                remote: flow.remote,
            },
            marks: Marks {
                dscp: Dscp::new(flow.dscp),
                interface: self.interfaces.get(&flow.ifindex).map(String::as_str),
            },
            priority: flow.priority,
            named: self.named(flow),
        };
        judge(&self.rules, &seen)
    }

    fn named(&self, flow: &Flow) -> Option<&str> {
        let exact = flow_of(flow);
        let any = BackgroundFlow {
            local_port: None,
            ..exact
        };
        let by = self.named.get(&exact).or_else(|| self.named.get(&any))?;
        Some(by)
    }

    /// What the queue is to be told of the flow, where that is news.
    fn tell(&mut self, flow: &Flow, verdict: &Verdict) -> Option<Action> {
        let treatment = Treatment {
            class: verdict.class,
            limit: verdict.limit,
        };
        let is_known = match verdict.by {
            By::Name => treatment.limit.is_none(),
            By::Nothing => true,
            By::Choice | By::Rule | By::Evidence => false,
        };
        let wanted = (!is_known).then_some(treatment);
        let told = self.told.get(&flow.cookie).map(|(_, treatment)| *treatment);
        if wanted == told || (told.is_none() && self.told.len() == TOLD) {
            return None;
        }
        let Some(treatment) = wanted else {
            return self.end(flow.cookie);
        };
        let named = flow_of(flow);
        self.told.insert(flow.cookie, (named, treatment));
        Some(Action::Treat {
            flow: named,
            treatment: Some(treatment),
        })
    }

    /// The flow is no more: the queue forgets it.
    pub fn end(&mut self, cookie: Cookie) -> Option<Action> {
        let (flow, _) = self.told.remove(&cookie)?;
        Some(Action::Treat { flow, treatment: None })
    }
}

/// As the queue names it.
fn flow_of(flow: &Flow) -> BackgroundFlow {
    BackgroundFlow {
        address: flow.remote.ip(),
        port: flow.remote.port(),
        local_port: Some(flow.local.port()),
    }
    .canonical()
}

impl Network {
    pub(super) fn set_rules(&mut self, now: Duration, rules: Arc<Rules>) {
        let wanted = self.queue.follow(rules.limits(), rules.packet_rules());
        self.ask_queue(now, wanted);
        self.classes.rules = rules;
        self.judge_all(now);
    }

    pub(super) fn name_interfaces(&mut self, now: Duration, interfaces: BTreeMap<u32, String>) {
        self.classes.interfaces = interfaces;
        self.judge_all(now);
    }

    pub(super) fn name_background(&mut self, now: Duration, flow: BackgroundFlow, by: Option<String>) {
        match by {
            Some(by) => self.classes.named.entry(flow.canonical()).or_insert(by),
            None => &mut self.classes.named.remove(&flow.canonical()).unwrap_or_default(),
        };
        self.judge_all(now);
    }

    fn judge_all(&mut self, now: Duration) {
        self.classes.generation += 1;
        self.judge_again(now);
    }

    /// Owners are known now that were not, or have changed.
    pub(super) fn judge_again(&mut self, now: Duration) {
        let all: Vec<Cookie> = self.flows.iter().map(|tracked| tracked.flow.cookie).collect();
        self.judge_flows(now, &all);
    }

    pub(super) fn judge_seen(&mut self, now: Duration, seen: &[Cookie]) {
        if self.classes.unfinished {
            self.judge_again(now);
        } else {
            self.judge_flows(now, seen);
        }
    }

    fn judge_flows(&mut self, now: Duration, cookies: &[Cookie]) {
        let mut left = COST_OF_A_STEP;
        self.classes.unfinished = false;
        let mut changes = Vec::new();
        for cookie in cookies {
            let Some(tracked) = self.flows.get_mut(*cookie) else {
                continue;
            };
            let basis = self.classes.basis(&tracked.flow, &self.owners);
            if tracked.judged.by.as_ref().is_some_and(|before| before.is(&basis)) {
                continue;
            }
            let cost = self.classes.rules.cost(basis.process.as_deref());
            if cost > left && left < COST_OF_A_STEP {
                self.classes.unfinished = true;
                break;
            }
            left = left.saturating_sub(cost);
            let verdict = self.classes.judge(&tracked.flow, &basis);
            self.actions.extend(self.classes.tell(&tracked.flow, &verdict));
            changes.extend(take_over(tracked, verdict, basis, !self.dry_run));
        }
        for change in changes {
            self.note(now, change);
        }
    }
}

/// Returns the change, if there is one.
fn take_over(tracked: &mut Tracked, verdict: Verdict, basis: Basis, made: bool) -> Option<Change> {
    let before = std::mem::replace(&mut tracked.judged.verdict, verdict.clone());
    tracked.judged.by = Some(basis);
    tracked.class = verdict.class;
    (before != verdict).then(|| Change {
        subject: Subject::Socket {
            cookie: tracked.flow.cookie,
        },
        name: name_of(&tracked.flow),
        setting: Setting::Class,
        old: Value::from(before.class.name()),
        new: Value::from(verdict.class.name()),
        rule: verdict.rule,
        why: verdict.why,
        made,
    })
}
