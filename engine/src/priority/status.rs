// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The active real-time priorities with their reasons, at one moment. The caller keeps the changes of rules' processes
//! and NAPI threads ([`Action::Record`](super::Action::Record)), and adds them: a long list is not copied while others
//! wait.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chain::{Handler, HandlerState};
use super::matched::{MatchedProcess, Standing};
use super::{Priority, Service, napi};
use crate::change::{Change, Latest, Setting, Subject};
use crate::model::ProcessId;

/// The most listed processes without real-time priority.
const OTHERS_LISTED: usize = 64;

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
pub struct PriorityStatus {
    pub rules: Vec<RuleStatus>,
    pub processes: Vec<MatchedStatus>,
    #[serde(default)]
    pub chains: Vec<ChainStatus>,
    /// None if they are not managed.
    #[serde(default)]
    pub napi: Option<NapiStatus>,
    #[serde(default)]
    pub budget: BudgetStatus,
    pub counters: PriorityCounters,
    /// The latest change or refusal of each process and thread, oldest first.
    pub changes: Vec<Latest>,
    /// Why nothing can be granted here, or what is lost; set by the daemon.
    #[serde(default)]
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct RuleStatus {
    pub name: String,
    pub matches: String,
    pub schedule: String,
    pub budget_percent: u32,
    pub max_tasks: u32,
    /// None: from the configuration.
    pub added_by: Option<u32>,
}

/// A process that a rule matches.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct MatchedStatus {
    pub pid: u32,
    pub exe: String,
    pub rule: String,
    /// Who has requested it within a grant; None: root.
    #[serde(default)]
    pub user: Option<u32>,
    pub schedule: String,
    /// False: without real-time priority all the same; `changes` has the reason.
    pub granted: bool,
    pub tasks: u32,
    /// Of one CPU, recently.
    pub cpu_percent: f64,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct ChainStatus {
    #[serde(flatten)]
    pub service: Service,
    pub priority: u32,
    pub share_percent: u32,
    /// Of one CPU, recently, while raised.
    pub cpu_percent: f64,
    /// No thread of it is raised for this long.
    pub suspended_ms: u64,
    pub threads: Vec<ChainThread>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct ChainThread {
    pub tid: u32,
    pub pid: u32,
    pub raised: bool,
    pub raises: u64,
    pub lowers: u64,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct NapiStatus {
    pub tids: Vec<u32>,
    pub priority: u32,
    pub raised: bool,
    pub share_percent: u32,
    /// Of one CPU, recently, while raised.
    pub cpu_percent: f64,
}

/// The use of the budget over all real-time threads within the last window.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize, JsonSchema)]
pub struct BudgetStatus {
    pub window_ms: u64,
    pub budget_ms: u64,
    pub used_by_rules_ms: u64,
    pub used_by_chains_ms: u64,
    pub used_by_napi_ms: u64,
}

/// Since the start.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct PriorityCounters {
    pub granted: u64,
    pub revoked: u64,
    /// By a budget or the starvation detector.
    pub demoted: u64,
    /// By a limit, before a grant.
    pub refused: u64,
    /// By the kernel.
    pub failed: u64,
    /// Ended before the outcome was known.
    #[serde(default)]
    pub ended_before: u64,
    pub conflict: u64,
    /// How often granted threads starved the starvation detector ...
    pub starved: u64,
    /// ... and how often something else did: grants had used too little, and stayed.
    #[serde(default)]
    pub starved_by_others: u64,
    /// How often NAPI threads or a chain were lowered for a budget over all or the starvation detector, or NAPI threads
    /// for their own.
    #[serde(default)]
    pub parts_lowered: u64,
}

impl PriorityStatus {
    /// The part that a user without further rights may see: their own rules, and processes with grants by these.
    pub fn of_user(self, uid: u32) -> Self {
        let own = |rule: &RuleStatus| rule.added_by == Some(uid);
        let rules: Vec<RuleStatus> = self.rules.into_iter().filter(own).collect();
        Self {
            processes: self
                .processes
                .into_iter()
                .filter(|held| held.user == Some(uid))
                .collect(),
            rules,
            budget: self.budget,
            counters: self.counters,
            // The warnings name others' paths and processes.
            ..Self::default()
        }
    }
}

impl Priority {
    pub fn status(&self, now: Duration) -> PriorityStatus {
        let rules = self.rules.iter().map(|rule| RuleStatus {
            name: rule.name.clone(),
            matches: rule.matcher.shown(),
            schedule: rule.schedule.shown(),
            budget_percent: rule.budget_percent,
            max_tasks: rule.max_tasks,
            added_by: rule.added_by,
        });
        let having = self.having.iter().filter_map(|id| self.held.get_key_value(id));
        let is_without = |(_, held): &(&ProcessId, &MatchedProcess)| held.standing == Standing::Without;
        let others = self.held.iter().filter(is_without).take(OTHERS_LISTED);
        let threads = self.chains.threads.iter();
        let mut changes: Vec<Latest> = threads.map(|(tid, thread)| self.latest(*tid, thread)).collect();
        changes.sort_by_key(|latest| latest.t_ns);
        PriorityStatus {
            rules: rules.collect(),
            processes: having
                .chain(others)
                .map(|(id, held)| self.held_status(now, id, held))
                .collect(),
            chains: self.chain_status(now),
            napi: (!self.napi.threads.is_empty()).then(|| NapiStatus {
                tids: self.napi.threads.iter().map(|thread| thread.pid).collect(),
                priority: self.napi.priority,
                raised: self.napi.state == napi::NapiState::Raised,
                share_percent: napi::SHARE_PERCENT,
                cpu_percent: self.percent(self.napi.used(now, self.limits.window)),
            }),
            budget: self.budget_status(now),
            counters: self.counters,
            changes,
            warnings: self
                .napi
                .refused
                .iter()
                .map(|refused| format!("NAPI thread {} is not raised: {}", refused.tid, refused.reason))
                .collect(),
        }
    }

    fn held_status(&self, now: Duration, id: &ProcessId, held: &MatchedProcess) -> MatchedStatus {
        MatchedStatus {
            pid: id.pid,
            exe: held.process.exe.clone(),
            rule: held.rule.clone(),
            user: held.user,
            schedule: held.schedule.shown(),
            granted: held.standing == Standing::Granted,
            tasks: held.tasks,
            cpu_percent: self.percent(held.spent.within(now, self.limits.window)),
        }
    }

    fn chain_status(&self, now: Duration) -> Vec<ChainStatus> {
        let threads_of = |service: &Service| {
            let threads = self.chains.threads.iter();
            let threads = threads.filter(|(_, thread)| thread.service == *service);
            let thread = |(tid, thread): (&u32, &Handler)| ChainThread {
                tid: *tid,
                pid: thread.pid,
                raised: thread.state == HandlerState::Raised,
                raises: thread.raises,
                lowers: thread.lowers,
            };
            threads.map(thread).collect()
        };
        let chains = self.chains.chains.iter().map(|(service, chain)| ChainStatus {
            service: *service,
            priority: chain.limits.priority,
            share_percent: chain.limits.share_percent,
            cpu_percent: self.percent(chain.spent.within(now, self.limits.window)),
            suspended_ms: chain.suspended_until.saturating_sub(now).as_millis() as u64,
            threads: threads_of(service),
        });
        chains.collect()
    }

    fn budget_status(&self, now: Duration) -> BudgetStatus {
        let window = self.limits.window;
        let ms = |time: Duration| time.as_millis() as u64;
        BudgetStatus {
            window_ms: ms(window),
            budget_ms: ms(window * self.limits.cpus.max(1) * self.limits.total_percent / 100),
            used_by_rules_ms: ms(self.of_rules.spent.within(now, window)),
            used_by_chains_ms: ms(self.chains.used(now, window)),
            used_by_napi_ms: ms(self.napi.used(now, window)),
        }
    }

    /// Of one CPU.
    fn percent(&self, used: Duration) -> f64 {
        100.0 * used.as_secs_f64() / self.limits.window.as_secs_f64()
    }

    /// The latest change of a handler.
    fn latest(&self, tid: u32, thread: &Handler) -> Latest {
        let Service { protocol, local_port } = thread.service;
        let chain = self.chains.chains.get(&thread.service);
        let given = chain.map_or("FIFO".to_owned(), |chain| format!("FIFO {}", chain.limits.priority));
        let is_raised = thread.state != HandlerState::NotRaised;
        let is_lowered = !is_raised && thread.lowers > 0;
        let (mut old, mut new) = ("as it was".into(), given.into());
        if is_lowered {
            std::mem::swap(&mut old, &mut new);
        }
        Latest {
            t_ns: thread.changed.as_nanos() as u64,
            change: Change {
                subject: Subject::Thread { tid },
                name: format!("requests to {protocol} port {local_port}"),
                setting: Setting::Scheduling,
                old,
                new,
                rule: "[[chain]]".to_owned(),
                reason: thread.reason.clone().into_owned(),
                made: is_raised || is_lowered,
            },
            times: thread.raises + thread.lowers,
        }
    }
}
