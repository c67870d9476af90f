// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which threads have the priority of a chain, and when they lose it. In comes what the kernel tells of requests and
//! handlers, and a look at the raised ones some times a second; out go raises, lowerings and bars, each with its reason.
//! It sets no priority by itself, and knows no packet.
//!
//! A request's deadline bounds everything: who still computes after it is lowered. And since a stranger decides how many
//! requests come, each chain has a share of one CPU: who uses it up is ordinary for a second, whatever arrives.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::Protocol;

mod share;
#[cfg(test)]
mod tests;

pub use share::Share;

/// How often raised threads are looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A share is counted over this time, and who used it up is barred for as long.
pub const WINDOW: Duration = Duration::from_secs(1);

/// A local service.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Service {
    pub protocol: Protocol,
    pub local_port: u16,
}

/// What a service's handlers may have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terms {
    pub priority: u32,
    /// Of one CPU, all of them together.
    pub share_percent: u32,
}

/// What a raised thread was found doing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seen {
    pub tid: u32,
    /// The deadline of its latest request; None: the thread has ended.
    pub until: Option<Duration>,
    pub is_awake: bool,
    /// CPU time since its start.
    pub cpu: Duration,
}

/// An observation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Input {
    /// A request with a deadline is for this thread, which is ordinary.
    Request { tid: u32, service: Service },
    /// Something else is, and it is not.
    SomethingElse { tid: u32 },
    /// It was raised, having used so much CPU time before; or the reason why not.
    Raised {
        tid: u32,
        outcome: Result<Duration, String>,
    },
    /// It was lowered, having used so much; or it has ended.
    Lowered { tid: u32, cpu: Option<Duration> },
    /// All raised threads.
    Look(Vec<Seen>),
}

/// A request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Action {
    /// Answered by [`Input::Raised`].
    Raise { tid: u32, priority: u32 },
    /// Answered by [`Input::Lowered`].
    Lower { tid: u32 },
    /// Tell no requests of this service until then.
    Bar { service: Service, until: Duration },
}

#[derive(Debug)]
struct Chain {
    terms: Terms,
    share: Share,
}

#[derive(Debug)]
struct Handler {
    service: Service,
    /// While it is raised: its CPU time when that was counted last.
    counted: Option<Duration>,
    raises: u64,
    lowers: BTreeMap<String, u64>,
    changed: Duration,
    why: String,
}

/// Of one thread, for `why`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct HandlerView {
    pub tid: u32,
    #[serde(flatten)]
    pub service: Service,
    /// None: it is what it was.
    pub priority: Option<u32>,
    pub raises: u64,
    /// By their reasons.
    pub lowers: BTreeMap<String, u64>,
    /// The latest change.
    pub t_ns: u64,
    pub why: String,
}

#[derive(Debug)]
pub struct Handlers {
    chains: BTreeMap<Service, Chain>,
    threads: BTreeMap<u32, Handler>,
}

impl Handlers {
    pub fn new(now: Duration, chains: impl IntoIterator<Item = (Service, Terms)>) -> Self {
        let chain = |(service, terms): (Service, Terms)| {
            let share = Share::new(now, terms.share_percent);
            (service, Chain { terms, share })
        };
        Self {
            chains: chains.into_iter().map(chain).collect(),
            threads: BTreeMap::new(),
        }
    }

    /// Takes in one observation and says what follows from it.
    pub fn step(&mut self, now: Duration, input: Input) -> Vec<Action> {
        match input {
            Input::Request { tid, service } => self.request(now, tid, service),
            Input::SomethingElse { tid } => self.lower(now, tid, "something else than a request came"),
            Input::Raised { tid, outcome } => self.conclude(now, tid, outcome),
            Input::Lowered { tid, cpu } => self.settle(now, tid, cpu),
            Input::Look(seen) => seen.iter().flat_map(|seen| self.look(now, seen)).collect(),
        }
    }

    /// Those that have to be looked at.
    pub fn raised(&self) -> impl Iterator<Item = u32> {
        self.threads
            .iter()
            .filter(|(_, t)| t.counted.is_some())
            .map(|(tid, _)| *tid)
    }

    pub fn view(&self) -> Vec<HandlerView> {
        let view = |(tid, thread): (&u32, &Handler)| HandlerView {
            tid: *tid,
            service: thread.service,
            priority: thread
                .counted
                .and(self.chains.get(&thread.service))
                .map(|chain| chain.terms.priority),
            raises: thread.raises,
            lowers: thread.lowers.clone(),
            t_ns: thread.changed.as_nanos() as u64,
            why: thread.why.clone(),
        };
        self.threads.iter().map(view).collect()
    }

    fn request(&mut self, now: Duration, tid: u32, service: Service) -> Vec<Action> {
        let Some(chain) = self.chains.get(&service) else {
            return Vec::new();
        };
        let raise = Action::Raise {
            tid,
            priority: chain.terms.priority,
        };
        let thread = self.threads.entry(tid).or_insert_with(|| Handler {
            service,
            counted: None,
            raises: 0,
            lowers: BTreeMap::new(),
            changed: now,
            why: String::new(),
        });
        // Asked again: the kernel found it ordinary, so somebody else has changed it meanwhile.
        thread.service = service;
        thread.changed = now;
        "a request with a deadline came".clone_into(&mut thread.why);
        vec![raise]
    }

    fn conclude(&mut self, now: Duration, tid: u32, outcome: Result<Duration, String>) -> Vec<Action> {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Vec::new();
        };
        match outcome {
            Ok(cpu) => {
                thread.raises += 1;
                if thread.counted.is_some() {
                    return self.charge(now, tid, cpu);
                }
                thread.counted = Some(cpu);
                Vec::new()
            }
            Err(why) => {
                thread.counted = None;
                thread.why = why;
                // It would be refused again, and a stranger decides how often that is tried.
                let (service, until) = (thread.service, now + WINDOW);
                vec![Action::Bar { service, until }]
            }
        }
    }

    fn lower(&mut self, now: Duration, tid: u32, why: &str) -> Vec<Action> {
        let Some(thread) = self.threads.get_mut(&tid).filter(|thread| thread.counted.is_some()) else {
            return Vec::new();
        };
        thread.changed = now;
        why.clone_into(&mut thread.why);
        *thread.lowers.entry(why.to_owned()).or_default() += 1;
        vec![Action::Lower { tid }]
    }

    fn settle(&mut self, now: Duration, tid: u32, cpu: Option<Duration>) -> Vec<Action> {
        let Some(cpu) = cpu else {
            self.threads.remove(&tid);
            return Vec::new();
        };
        let actions = self.charge(now, tid, cpu);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.counted = None;
        }
        actions
    }

    fn look(&mut self, now: Duration, seen: &Seen) -> Vec<Action> {
        let Some(until) = seen.until else {
            self.threads.remove(&seen.tid);
            return Vec::new();
        };
        let mut actions = self.charge(now, seen.tid, seen.cpu);
        if actions.is_empty() && seen.is_awake && until < now {
            actions = self.lower(now, seen.tid, "it still computed after its request's deadline");
        }
        actions
    }

    /// Takes what a raised thread has used from its chain's share. Where nothing is left, the whole chain is barred.
    fn charge(&mut self, now: Duration, tid: u32, cpu: Duration) -> Vec<Action> {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Vec::new();
        };
        let Some(counted) = thread.counted.replace(cpu) else {
            return Vec::new();
        };
        let service = thread.service;
        let Some(chain) = self.chains.get_mut(&service) else {
            return Vec::new();
        };
        if chain.share.spend(now, cpu.saturating_sub(counted)) {
            return Vec::new();
        }
        let why = format!("its service has used its {}% of a CPU", chain.terms.share_percent);
        let until = now + WINDOW;
        let of_chain = |thread: &Handler| thread.service == service && thread.counted.is_some();
        let tids: Vec<u32> = self
            .threads
            .iter()
            .filter(|(_, t)| of_chain(t))
            .map(|(tid, _)| *tid)
            .collect();
        let lowered = tids.into_iter().flat_map(|tid| self.lower(now, tid, &why));
        std::iter::once(Action::Bar { service, until }).chain(lowered).collect()
    }
}
