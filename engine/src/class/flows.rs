// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The class of each flow, decided again when its basis has changed. Input: rules, flows, their owners, interface
//! names, flows named as background. Output: verdicts, changes, and treatments for the queue. Bounded: the cost of a
//! step, with users in turns; the rest waits for the next poll. The size of the flow table belongs to
//! [`super::flow_table`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::action::Action;
use super::active::{Active, Activity, Meant};
use super::by_hand::{SetByHand, Target};
use super::flow_table::FlowTable;
use super::hand::{ByHandDifference, Hand};
use super::rules::Rules;
use super::{By, FlowFacts, Itself, Verdict, judge, judge_forwarded, judge_itself, judge_process};
use crate::change::{Change, Setting, Subject, Value};
use crate::config::Background;
use crate::matcher::{Ends, Marks};
use crate::model::{Class, Cookie, Device, Dscp, Flow, Limit, LimitNumber, Process, ROOT, Treatment};
use crate::queue::BackgroundFlow;
use crate::sockets::flows::{Flows, Tracked};
use crate::sockets::judgement::{Basis, uid_of};
use crate::sockets::owners::Owners;
use crate::turns::Turns;

/// A generation that never occurs.
const OVER: u64 = u64::MAX;
/// Bytes of patterns and texts in a step: some milliseconds.
pub const COST_OF_A_STEP: usize = 4 << 20;
/// Between two changes of the focus, whoever causes them: each takes a pass over all flows.
const ACTIVE_GAP: Duration = Duration::from_millis(200);

pub struct Classes {
    rules: Arc<Rules>,
    command_limits: Vec<Limit>,
    devices: BTreeMap<u32, Device>,
    /// By whom.
    named: BTreeMap<BackgroundFlow, String>,
    hand: Hand,
    /// One object for each user with an own focus, so that a user's setting costs the others nothing.
    active: Active,
    /// The new focus, until it is applied.
    new_active: Option<Vec<Activity>>,
    /// When it was last applied.
    followed: Option<Duration>,
    /// Increased when rules, interfaces or names change.
    generation: u64,
    /// Some flows are still to be classified.
    unfinished: bool,
    table: FlowTable,
    /// Including marks: received packets have none that count.
    tells_marks: bool,
    /// Round robin over users whose flows have to be classified.
    turns: Turns,
    /// Steps in which flows were classified.
    steps: u64,
}

impl Classes {
    pub fn new(configured: &[Background]) -> Self {
        let named = configured
            .iter()
            .map(|flow| (BackgroundFlow::from(flow).canonical(), "[[background]]".to_owned()));
        Self {
            rules: Arc::default(),
            command_limits: Vec::new(),
            devices: BTreeMap::new(),
            named: named.collect(),
            hand: Hand::default(),
            active: Active::default(),
            new_active: None,
            followed: None,
            generation: 0,
            unfinished: false,
            table: FlowTable::default(),
            tells_marks: false,
            turns: Turns::default(),
            steps: 0,
        }
    }

    /// The last known properties of an owner count until newer ones are known, also for another owner.
    fn basis(&self, Tracked { flow, judged, .. }: &Tracked, owners: &Owners) -> Basis {
        let before = judged.by.as_ref();
        let process_before = || before?.process.clone();
        let cgroup_before = || before?.cgroup.clone();
        let process = owners.process(flow).cloned().or_else(process_before);
        Basis {
            generation: self.generation,
            active: Arc::clone(self.active.meant(uid_of(flow, process.as_deref()))),
            process,
            cgroup: owners.cgroup(flow).cloned().or_else(cgroup_before),
            priority: flow.priority,
            dscp: flow.dscp,
            ifindex: flow.ifindex,
        }
    }

    fn judge(&self, flow: &Flow, basis: &Basis) -> Verdict {
        let process = basis.process.as_deref();
        let cgroup = basis.cgroup();
        let by_hand = self.hand.of_flow(flow, process, cgroup, uid_of(flow, process));
        let seen = FlowFacts {
            process,
            cgroup,
            ends: Ends {
                protocol: flow.protocol,
                local: flow.local,
                remote: flow.remote,
            },
            sends_anywhere: flow.sends_anywhere(),
            marks: Marks {
                dscp: Dscp::new(flow.dscp),
                interface: self.devices.get(&flow.ifindex).map(|device| device.name.as_str()),
            },
            priority: flow.priority,
            named: self.named(flow),
            by_hand: by_hand.as_ref(),
        };
        basis.active.judge(judge(&self.rules, &seen), seen.cgroup)
    }

    /// The basis of a process's verdict, beside the process itself.
    pub fn basis_of_process(&self, process: &Process) -> (u64, &Arc<Meant>) {
        (self.generation, self.active.meant(process.uid))
    }

    /// A process that has sent nothing yet, whatever the focus.
    pub fn judge_process(&self, process: &Process) -> Option<Verdict> {
        judge_process(&self.rules, process, self.hand.of_process(process).as_ref())
    }

    pub fn judge_itself(&self, process: &Process) -> Itself {
        judge_itself(&self.rules, process, self.hand.of_process(process).as_ref())
    }

    /// The queue's treatment of it.
    pub fn treatment_of_process(&self, process: &Process, verdict: Option<Verdict>) -> Option<Treatment> {
        let verdict = self.active.meant(process.uid).judge(verdict?, &process.cgroup);
        Some(Treatment {
            class: verdict.class,
            limits: verdict.limits,
        })
    }

    /// The basis for forwarded traffic, beside its cgroup. Its user is unknown, so the common focus applies.
    pub fn basis_of_forwarded(&self) -> (u64, &Arc<Meant>) {
        (self.generation, self.active.meant(ROOT))
    }

    /// With the number of packet rules before it; None: nothing applies.
    pub fn judge_forwarded(&self, cgroup: &str) -> Option<(Verdict, usize)> {
        let by_hand = self.hand.of_forwarded(cgroup);
        let (verdict, before) = judge_forwarded(&self.rules, cgroup, by_hand.as_ref())?;
        Some((self.active.meant(ROOT).judge(verdict, cgroup), before))
    }

    pub fn cost_of_forwarded(&self, cgroup: &str) -> usize {
        self.rules.cost(None, Some(cgroup))
    }

    /// The bytes to look at to classify both the process and what it will send, at most.
    pub fn cost_of_process(&self, process: &Process) -> usize {
        2 * self.rules.cost(Some(process), None)
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    pub fn hand(&self) -> &Hand {
        &self.hand
    }

    /// All flows have to be classified by them.
    pub fn set_rules(&mut self, rules: Arc<Rules>) {
        self.rules = rules;
        self.generation += 1;
    }

    pub fn set_command_limits(&mut self, limits: Vec<Limit>) {
        self.command_limits = limits;
    }

    /// Whether all flows have to be classified again.
    pub fn set_devices(&mut self, devices: BTreeMap<u32, Device>) -> bool {
        self.devices = devices;
        let decide = self.rules.need_interfaces();
        self.generation += u64::from(decide);
        decide
    }

    /// Whether all flows have to be classified again.
    pub fn set_marks_count(&mut self, wanted: bool) -> bool {
        let is_other = std::mem::replace(&mut self.tells_marks, wanted) != wanted;
        self.generation += u64::from(is_other);
        is_other
    }

    /// Replaces all settings by hand.
    pub fn set_by_hand(&mut self, all: Vec<SetByHand>) -> ByHandDifference {
        self.hand.set(all)
    }

    pub fn devices(&self) -> &BTreeMap<u32, Device> {
        &self.devices
    }

    /// Those of rules, of commands and by hand.
    pub fn limits(&self) -> Vec<Limit> {
        [self.rules.limits(), self.command_limits.clone()].concat()
    }

    /// Of this number.
    pub fn limit(&self, number: LimitNumber) -> Option<Limit> {
        let of_command = self.command_limits.iter().find(|limit| limit.number == number);
        of_command.copied().or_else(|| self.rules.limit(number))
    }

    /// For a process that has sent nothing yet.
    pub fn limits_by_rules(&self, process: &Process) -> crate::model::LimitNumbers {
        let verdict = judge_process(&self.rules, process, None);
        verdict.map(|verdict| verdict.limits).unwrap_or_default()
    }

    /// The place of its rule.
    pub fn rule_of_limit(&self, number: LimitNumber) -> Option<&str> {
        self.rules.place_of_limit(number)
    }

    /// The target that it was set for by hand.
    pub fn target_of_limit(&self, number: LimitNumber) -> Option<&Target> {
        self.hand.target_of_limit(number)
    }

    /// Whether the queue has this flow's treatment.
    pub fn is_told(&self, cookie: Cookie) -> bool {
        self.table.has(cookie)
    }

    pub fn active(&self) -> &[Activity] {
        self.active.activities()
    }

    pub fn set_active(&mut self, active: Vec<Activity>) {
        self.new_active = Some(active);
    }

    /// All flows have to be classified then.
    fn follow_active(&mut self, now: Duration) {
        let is_due = |last| now.saturating_sub(last) >= ACTIVE_GAP;
        if self.followed.is_none_or(is_due)
            && let Some(active) = self.new_active.take()
        {
            self.active.follow(active);
            (self.followed, self.unfinished) = (Some(now), true);
        }
    }

    fn named(&self, flow: &Flow) -> Option<&str> {
        let exact = BackgroundFlow::of(flow);
        let any = BackgroundFlow {
            local_port: None,
            ..exact
        };
        let by = self.named.get(&exact).or_else(|| self.named.get(&any))?;
        Some(by)
    }

    /// The action for the queue.
    fn treat(&mut self, flow: &Flow, basis: &Basis, verdict: &Verdict) -> Vec<Action> {
        let treatment = Treatment {
            class: verdict.class,
            limits: verdict.limits,
        };
        let is_known = match verdict.by {
            By::Name | By::Mark | By::Nothing => {
                treatment.limits.is_none() && !(self.tells_marks && treatment.class > Class::Standard)
            }
            By::Hand | By::Choice | By::Rule | By::Inheritance | By::Evidence => false,
        };
        let wanted = (!is_known).then_some(treatment);
        let uid = uid_of(flow, basis.process.as_deref());
        self.table.want(flow.cookie, uid, wanted)
    }

    /// The flow has ended: it leaves the flow table.
    pub fn end(&mut self, cookie: Cookie) -> Vec<Action> {
        self.table.end(cookie)
    }
}

/// The result of classifying these flows.
#[derive(Debug, Default)]
pub struct JudgedFlows {
    pub cookies: Vec<Cookie>,
    pub actions: Vec<Action>,
    pub changes: Vec<Change>,
}

/// A flow to classify.
struct Pending {
    uid: u32,
    /// The step in which it was last classified.
    judged: u64,
    cookie: Cookie,
}

impl Classes {
    /// The basis of these flows has changed; that of the others, which may be many, has not.
    pub fn judge_anew(&mut self, flows: &mut Flows, owners: &Owners, meant: Vec<Cookie>, made: bool) -> JudgedFlows {
        for cookie in &meant {
            let judged = flows.get_mut(*cookie).and_then(|tracked| tracked.judged.by.as_mut());
            if let Some(by) = judged {
                by.generation = OVER;
            }
        }
        self.judge_flows(flows, owners, meant, made)
    }

    /// Rules have changed, or owners.
    pub fn judge_all(&mut self, flows: &mut Flows, owners: &Owners, made: bool) -> JudgedFlows {
        let all = flows.iter().map(|tracked| tracked.flow.cookie).collect();
        self.unfinished = false;
        self.judge_flows(flows, owners, all, made)
    }

    /// These were polled just now.
    pub fn judge_shown(
        &mut self,
        now: Duration,
        flows: &mut Flows,
        owners: &Owners,
        shown: Vec<Cookie>,
        made: bool,
    ) -> JudgedFlows {
        self.follow_active(now);
        match self.unfinished {
            true => self.judge_all(flows, owners, made),
            false => self.judge_flows(flows, owners, shown, made),
        }
    }

    fn judge_flows(&mut self, flows: &mut Flows, owners: &Owners, cookies: Vec<Cookie>, made: bool) -> JudgedFlows {
        let pending = cookies
            .iter()
            .filter_map(|cookie| self.pending(flows.get(*cookie)?, owners));
        let mut pending: Vec<Pending> = pending.collect();
        // A user's flow that was classified longest ago comes first.
        pending.sort_unstable_by_key(|flow| (flow.judged, flow.cookie));
        let pending = pending.into_iter().map(|flow| (flow.uid, flow.cookie));
        let pending = self.turns.order(pending);
        let mut left = COST_OF_A_STEP;
        let (mut actions, mut changes) = (Vec::new(), Vec::new());
        self.steps += 1;
        for (uid, cookie) in pending {
            let Some(tracked) = flows.get_mut(cookie) else {
                continue;
            };
            let basis = self.basis(tracked, owners);
            let cost = self.rules.cost(basis.process.as_deref(), basis.cgroup.as_deref());
            if cost > left && left < COST_OF_A_STEP {
                self.unfinished = true;
                break;
            }
            left = left.saturating_sub(cost);
            let verdict = self.judge(&tracked.flow, &basis);
            actions.extend(self.treat(&tracked.flow, &basis, &verdict));
            self.turns.had(uid);
            tracked.judged.at = self.steps;
            changes.extend(take_over(tracked, verdict, basis, made));
        }
        JudgedFlows {
            cookies,
            actions,
            changes,
        }
    }

    /// None if its basis is unchanged.
    fn pending(&self, tracked: &Tracked, owners: &Owners) -> Option<Pending> {
        let basis = self.basis(tracked, owners);
        let judged = &tracked.judged;
        let is_judged = judged.by.as_ref().is_some_and(|before| before.is(&basis));
        (!is_judged).then(|| Pending {
            uid: tracked.flow.user(),
            judged: judged.at,
            cookie: tracked.flow.cookie,
        })
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
        name: tracked.flow.shown(),
        setting: Setting::Class,
        old: Value::from(before.class.name()),
        new: Value::from(verdict.class.name()),
        rule: verdict.rule,
        reason: verdict.reason,
        made,
    })
}
