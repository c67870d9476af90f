// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request handlers of a chain: a thread is raised by a request with a deadline, and lowered by other work, by the end
//! of the deadline, or when the chain's share of a CPU is used up. Then the whole chain is suspended for a second,
//! whatever arrives: outsiders decide how many requests come.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::share::Share;
use super::spent::Spent;
use super::{Action, WINDOW};
use crate::model::Protocol;

/// The poll interval of raised threads.
pub const JUDGED_EVERY: Duration = Duration::from_millis(20);
/// Giveway's own time for raising or lowering a thread (docs/explanation/request-chains.md). It precedes everything, so it counts for the
/// chain: alternating requests and other work must not keep it busy forever.
const COST: Duration = Duration::from_micros(60);
/// The granularity of CPU time.
const SLOT: Duration = Duration::from_millis(10);
/// The most known threads; those that were raised longest ago are forgotten first. Also the most raised ones: outsiders
/// decide how many connections a service has, and each raised thread has to be polled.
pub const THREADS_KEPT: usize = 128;

const REQUEST: &str = "a request with a deadline came";
const RULE: &str = "a [[priority]] rule matches its process";

/// A local service.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Service {
    pub protocol: Protocol,
    pub local_port: u16,
}

/// The limits of a service's handlers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ChainLimits {
    pub priority: u32,
    /// Of one CPU, over all of them.
    pub share_percent: u32,
}

/// A sample of a raised thread.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HandlerSample {
    pub tid: u32,
    /// The deadline of its latest request; None: the thread has ended.
    pub until: Option<Duration>,
    pub is_awake: bool,
    /// CPU time since its start.
    pub cpu: Duration,
}

#[derive(Debug)]
pub(super) struct Chain {
    pub limits: ChainLimits,
    share: Share,
    pub spent: Spent,
    pub suspended_until: Duration,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum HandlerState {
    NotRaised,
    /// Requested, not yet answered.
    Asked,
    Raised,
}

#[derive(Debug)]
pub(super) struct Handler {
    pub pid: u32,
    pub service: Service,
    pub state: HandlerState,
    /// Its CPU time at the latest poll, while it is raised.
    counted: Duration,
    pub raises: u64,
    pub lowers: u64,
    pub changed: Duration,
    /// Of the latest change. Mostly a constant, since each request from outside makes one.
    pub reason: Cow<'static, str>,
}

#[derive(Debug, Default)]
pub(super) struct Chains {
    pub chains: BTreeMap<Service, Chain>,
    pub threads: BTreeMap<u32, Handler>,
    /// Of the budget over all real-time threads.
    window: Duration,
}

impl Chains {
    pub fn new(now: Duration, window: Duration, chains: impl IntoIterator<Item = (Service, ChainLimits)>) -> Self {
        let chain = |(service, limits): (Service, ChainLimits)| {
            let chain = Chain {
                limits,
                share: Share::new(now, limits.share_percent),
                spent: Spent::default(),
                suspended_until: Duration::ZERO,
            };
            (service, chain)
        };
        Self {
            chains: chains.into_iter().map(chain).collect(),
            threads: BTreeMap::new(),
            window,
        }
    }

    /// Threads that are raised, or are not.
    pub fn threads(&self, raised: bool) -> impl Iterator<Item = u32> {
        let those = self
            .threads
            .iter()
            .filter(move |(_, thread)| (thread.state != HandlerState::NotRaised) == raised);
        those.map(|(tid, _)| *tid)
    }

    pub fn has_raised_of(&self, pid: u32) -> bool {
        let is_raised = |thread: &Handler| thread.pid == pid && thread.state != HandlerState::NotRaised;
        self.threads.values().any(is_raised)
    }

    pub fn used(&self, now: Duration, window: Duration) -> Duration {
        self.chains.values().map(|chain| chain.spent.within(now, window)).sum()
    }

    pub fn request(&mut self, now: Duration, tid: u32, pid: u32, service: Service, actions: &mut Vec<Action>) {
        let Some(chain) = self.chains.get(&service) else { return };
        if now < chain.suspended_until {
            return;
        }
        let priority = chain.limits.priority;
        let Some(thread) = self.thread(now, tid, pid, service) else {
            self.charge(now, service, COST, actions);
            return;
        };
        // Requested again: the kernel found it without real-time priority, so another tool has changed it meanwhile.
        if thread.state == HandlerState::NotRaised {
            thread.state = HandlerState::Asked;
        }
        thread.reason = REQUEST.into();
        actions.push(Action::Raise { tid, priority });
    }

    /// A rule granted its process real-time priority, but not this thread. Outsiders decide how often that is found, so
    /// the chain's share pays as for a change; its other handlers continue.
    pub fn leave_to_rule(&mut self, now: Duration, tid: u32, pid: u32, service: Service, actions: &mut Vec<Action>) {
        if !self.chains.contains_key(&service) {
            return;
        }
        if let Some(thread) = self.thread(now, tid, pid, service) {
            thread.reason = RULE.into();
        }
        self.charge(now, service, COST, actions);
    }

    /// None if the most threads are raised already.
    fn thread(&mut self, now: Duration, tid: u32, pid: u32, service: Service) -> Option<&mut Handler> {
        if !self.threads.contains_key(&tid) && self.threads.len() >= THREADS_KEPT {
            let others = self
                .threads
                .iter()
                .filter(|(_, thread)| thread.state == HandlerState::NotRaised);
            let oldest = others.min_by_key(|(_, thread)| thread.changed).map(|(tid, _)| *tid)?;
            self.threads.remove(&oldest);
        }
        let thread = self.threads.entry(tid).or_insert(Handler {
            pid,
            service,
            state: HandlerState::NotRaised,
            counted: Duration::ZERO,
            raises: 0,
            lowers: 0,
            changed: now,
            reason: REQUEST.into(),
        });
        (thread.pid, thread.service, thread.changed) = (pid, service, now);
        Some(thread)
    }

    pub fn conclude(&mut self, now: Duration, tid: u32, outcome: Result<Duration, String>, actions: &mut Vec<Action>) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        let service = thread.service;
        match outcome {
            Ok(cpu) => {
                thread.raises += 1;
                let before = if thread.state == HandlerState::Raised {
                    thread.counted
                } else {
                    cpu
                };
                let used = cpu.saturating_sub(before);
                (thread.counted, thread.state) = (cpu, HandlerState::Raised);
                self.charge(now, service, used + COST, actions);
            }
            Err(reason) => {
                thread.state = HandlerState::NotRaised;
                thread.reason = reason.into();
                // It would be refused again, as often as outsiders like.
                let until = now + WINDOW;
                actions.push(Action::Bar { service, until });
            }
        }
    }

    pub fn other_work(&mut self, now: Duration, tid: u32, actions: &mut Vec<Action>) {
        self.lower(now, tid, "other work than a request arrived".into(), actions);
    }

    /// A rule's grant is about to change this process: each part restores its own changes.
    pub fn lower_process(&mut self, now: Duration, pid: u32, actions: &mut Vec<Action>) {
        self.lower_all(now, |thread| thread.pid == pid, RULE.into(), actions);
    }

    fn lower_all(
        &mut self,
        now: Duration,
        which: impl Fn(&Handler) -> bool,
        reason: Cow<'static, str>,
        actions: &mut Vec<Action>,
    ) {
        let those = self.threads.iter().filter(|(_, thread)| which(thread));
        let tids: Vec<u32> = those.map(|(tid, _)| *tid).collect();
        for tid in tids {
            self.lower(now, tid, reason.clone(), actions);
        }
    }

    fn lower(&mut self, now: Duration, tid: u32, reason: Cow<'static, str>, actions: &mut Vec<Action>) {
        let thread = self.threads.get_mut(&tid);
        if let Some(thread) = thread.filter(|thread| thread.state != HandlerState::NotRaised) {
            (thread.changed, thread.reason) = (now, reason);
            actions.push(Action::Lower { tid });
        }
    }

    pub fn settle(&mut self, now: Duration, tid: u32, cpu: Option<Duration>, actions: &mut Vec<Action>) {
        let Some(cpu) = cpu else {
            self.threads.remove(&tid);
            return;
        };
        let thread = self.threads.get_mut(&tid);
        let Some(thread) = thread.filter(|thread| thread.state == HandlerState::Raised) else {
            return;
        };
        thread.state = HandlerState::NotRaised;
        thread.lowers += 1;
        let (service, used) = (thread.service, cpu.saturating_sub(thread.counted));
        self.charge(now, service, used + COST, actions);
    }

    /// The report of an end costs as much as a change.
    pub fn ended(&mut self, now: Duration, tid: u32, cpu: Duration, actions: &mut Vec<Action>) {
        let Some(thread) = self.threads.remove(&tid) else {
            return;
        };
        let used = match thread.state {
            HandlerState::Raised => cpu.saturating_sub(thread.counted),
            HandlerState::NotRaised | HandlerState::Asked => Duration::ZERO,
        };
        self.charge(now, thread.service, used + COST, actions);
    }

    pub fn judge(&mut self, now: Duration, samples: &[HandlerSample], actions: &mut Vec<Action>) {
        for sample in samples {
            let Some(until) = sample.until else {
                self.threads.remove(&sample.tid);
                continue;
            };
            let thread = self.threads.get_mut(&sample.tid);
            let Some(thread) = thread.filter(|thread| thread.state == HandlerState::Raised) else {
                continue;
            };
            let (service, used) = (thread.service, sample.cpu.saturating_sub(thread.counted));
            thread.counted = sample.cpu;
            if !self.charge(now, service, used, actions) || until >= now {
                continue;
            }
            if sample.is_awake {
                let reason = "it was still running after its request's deadline";
                self.lower(now, sample.tid, reason.into(), actions);
            } else if self.threads.len() >= THREADS_KEPT {
                self.lower(
                    now,
                    sample.tid,
                    "it sleeps, and other threads need its place".into(),
                    actions,
                );
            }
        }
    }

    /// Handlers are not raised any more, and all are lowered.
    pub fn end(&mut self) {
        self.threads.clear();
        self.chains.clear();
    }

    /// Takes CPU time from the chain's share. False if it is used up: then the whole chain is suspended.
    pub(super) fn charge(
        &mut self,
        now: Duration,
        service: Service,
        used: Duration,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(chain) = self.chains.get_mut(&service) else {
            return true;
        };
        let slot = Duration::from_nanos((now.as_nanos() - now.as_nanos() % SLOT.as_nanos()) as u64);
        chain.spent.add(slot, used, self.window);
        if chain.share.spend(now, used) {
            return true;
        }
        let reason = format!("its service has used its {}% of a CPU", chain.limits.share_percent);
        self.bar(now, service, WINDOW, reason.into(), actions);
        false
    }

    pub(super) fn bar(
        &mut self,
        now: Duration,
        service: Service,
        time: Duration,
        reason: Cow<'static, str>,
        actions: &mut Vec<Action>,
    ) {
        let Some(chain) = self.chains.get_mut(&service) else {
            return;
        };
        let until = chain.suspended_until.max(now + time);
        chain.suspended_until = until;
        actions.push(Action::Bar { service, until });
        self.lower_all(now, |thread| thread.service == service, reason, actions);
    }

    /// Suspends the chain with the most CPU time in the window, if that is at least `least`. Its use is paid with that.
    pub fn lower_busiest(
        &mut self,
        now: Duration,
        least: Duration,
        window: Duration,
        reason: &'static str,
        actions: &mut Vec<Action>,
    ) -> bool {
        let by_use = self
            .chains
            .iter_mut()
            .map(|(service, chain)| (chain.spent.within(now, window), *service, chain));
        let busiest = by_use.max_by_key(|(used, service, _)| (*used, *service));
        let Some((_, service, chain)) = busiest.filter(|(used, ..)| *used >= least) else {
            return false;
        };
        chain.spent.clear();
        self.bar(now, service, WINDOW, reason.into(), actions);
        true
    }

    pub fn unbar_all(&mut self, now: Duration, actions: &mut Vec<Action>) {
        for (service, chain) in &mut self.chains {
            chain.suspended_until = now;
            actions.push(Action::Bar {
                service: *service,
                until: now,
            });
        }
    }

    pub fn bar_all(&mut self, now: Duration, time: Duration, reason: &'static str, actions: &mut Vec<Action>) {
        let services: Vec<Service> = self.chains.keys().copied().collect();
        for service in services {
            self.bar(now, service, time, reason.into(), actions);
        }
    }
}
