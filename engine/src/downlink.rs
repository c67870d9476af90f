// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits for what arrives, and for what is sent by links without a queue of ours. Input: the limits that are wanted, the
//! managed links and what stands at the way in of each, the outcome of the last request, and that what was put up has been
//! lost. Output: what to put up, with the reason where a link is left out. Without a limit nothing is put up, so that no
//! packet pays for it. What fails is tried again after longer and longer waits.
//!
//! It takes a detour by an intermediate device. What it may not be taken past on its way in, as another tool's filter,
//! stands in the way ([`Arrival::hindrance`]). A bridge and its port see the same packets, so a port that belongs to a
//! managed bridge is left out.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::back_off::BackOff;
use crate::change::{Change, Setting, Subject, Value};
use crate::class::{LimitNumber, RateLimit};
use crate::rate::mbit;

const NOT_LIMITED: &str = "as it comes";
const LIMITED: &str = "limited";

/// Limits in one direction.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Way {
    Sent,
    #[default]
    Received,
}

impl Way {
    fn rule(self) -> &'static str {
        match self {
            Self::Sent => "upload limits",
            Self::Received => "download limits",
        }
    }

    fn setting(self) -> Setting {
        match self {
            Self::Sent => Setting::RateLimit,
            Self::Received => Setting::DownloadLimit,
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Sent => "what is sent",
            Self::Received => "what arrives",
        }
    }
}

/// The way in of a managed link, or out of it, as it is now.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Arrival {
    pub ifindex: u32,
    pub name: String,
    /// Why nothing there may take a detour.
    pub hindrance: Option<String>,
    /// The bridge that it is a port of.
    pub bridge: Option<u32>,
}

/// What is to be in force: these limits, for what arrives by these links together.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// By interface, with its name.
    pub links: BTreeMap<u32, String>,
    pub limits: Vec<RateLimit>,
}

/// The same for `status`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DownlinkView {
    /// The links whose arriving packets are limited.
    pub links: Vec<String>,
    pub limits: Vec<DownloadView>,
    /// Why there is none on a link, or on any.
    pub reasons: Vec<String>,
}

/// One of the limits, with what has passed it since it was put up, as of the latest look.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DownloadView {
    pub number: LimitNumber,
    pub mbit: f64,
    #[serde(flatten)]
    pub passed: Passed,
}

/// What the queue of a limit has counted.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Passed {
    pub passed_bytes: u64,
    pub passed_packets: u64,
    pub dropped_packets: u64,
    pub waiting_packets: u64,
    pub waiting_bytes: u64,
}

#[derive(Debug, Default)]
pub struct Downlink {
    way: Way,
    dry_run: bool,
    limits: Vec<RateLimit>,
    /// None: they have to be looked at.
    arrivals: Option<BTreeMap<u32, Arrival>>,
    passed: BTreeMap<LimitNumber, Passed>,
    paused: Option<String>,
    in_force: Option<Plan>,
    asked: Option<Option<Plan>>,
    /// Why the last one is not in force.
    failed: Option<String>,
    again: BackOff,
}

impl Downlink {
    pub fn new(way: Way, dry_run: bool) -> Self {
        Self {
            way,
            dry_run,
            ..Self::default()
        }
    }

    /// Takes in the limits that are wanted. Returns what to ask for, as all of the following.
    pub fn follow(&mut self, limits: Vec<RateLimit>) -> Option<Option<Plan>> {
        if limits.is_empty() {
            // What stands at the links is looked at again when it matters.
            (self.arrivals, self.failed) = (None, None);
            self.again.reset();
        }
        self.limits = limits;
        self.ask()
    }

    /// Whether the links are to be looked at, once a second.
    pub fn is_wanted(&self) -> bool {
        !self.limits.is_empty()
    }

    /// And at once.
    pub fn misses_arrivals(&self) -> bool {
        self.is_wanted() && self.arrivals.is_none()
    }

    /// Takes in what each limit has let pass.
    pub fn count(&mut self, passed: BTreeMap<LimitNumber, Passed>) {
        self.passed = passed;
    }

    /// Takes in the managed links.
    pub fn observe(&mut self, arrivals: Vec<Arrival>) -> Option<Option<Plan>> {
        let by_number = |arrival: Arrival| (arrival.ifindex, arrival);
        self.arrivals = Some(arrivals.into_iter().map(by_number).collect());
        self.ask()
    }

    pub fn pause(&mut self, why: Option<&String>) -> Option<Option<Plan>> {
        self.paused = why.cloned();
        self.ask()
    }

    /// Takes in the outcome of the last request; after an error nothing is in force.
    pub fn conclude(&mut self, now: Duration, outcome: Result<(), String>) -> (Vec<Change>, Option<Option<Plan>>) {
        let Some(asked) = self.asked.take() else {
            return (Vec::new(), None);
        };
        match outcome {
            Ok(()) => {
                self.failed = None;
                let changes = self.changes(asked.as_ref(), &format!("a limit for {} is wanted", self.way.what()));
                self.in_force = asked;
                (changes, self.ask())
            }
            Err(why) => (self.lose(now, why), None),
        }
    }

    /// What was put up has been taken away, and with it what goes around it: packets arrive as ever.
    pub fn lost(&mut self, now: Duration, why: String) -> Vec<Change> {
        match self.in_force.is_some() {
            true => self.lose(now, why),
            false => Vec::new(),
        }
    }

    fn lose(&mut self, now: Duration, why: String) -> Vec<Change> {
        let changes = self.changes(None, &why);
        (self.in_force, self.failed) = (None, Some(why));
        self.again.failed(now);
        changes
    }

    pub fn next_try(&self) -> Option<Duration> {
        self.again.next()
    }

    /// Returns what to ask for, where it is time for that.
    pub fn try_again(&mut self, now: Duration) -> Option<Option<Plan>> {
        self.again.is_due(now).then(|| self.ask()).flatten()
    }

    /// Whether limits hold for what arrives by this interface: the link, or why they do not. None: it is no managed link.
    pub fn serves(&self, ifindex: u32) -> Option<Result<String, String>> {
        let arrival = self.arrivals.as_ref()?.get(&ifindex)?;
        if let Some(bridge) = self.managed_bridge(arrival) {
            return self.serves(bridge);
        }
        let in_force = self.in_force.as_ref().and_then(|plan| plan.links.get(&ifindex));
        Some(in_force.cloned().ok_or_else(|| self.why_not(arrival)))
    }

    /// The links on which limits hold.
    pub fn limiting(&self) -> impl Iterator<Item = &str> {
        let links = self.in_force.iter().flat_map(|plan| plan.links.values());
        links.map(String::as_str)
    }

    /// Whether limits would hold there, as far as is known.
    pub fn may_serve(&self, ifindex: u32) -> bool {
        let arrival = self.arrivals.as_ref().and_then(|all| all.get(&ifindex));
        arrival.is_some_and(|arrival| arrival.hindrance.is_none()) && self.failed.is_none()
    }

    /// Why they do not, of the others.
    pub fn shortfalls(&self) -> Vec<String> {
        let all = self.arrivals.iter().flat_map(BTreeMap::values);
        let others = all.filter(|arrival| matches!(self.serves(arrival.ifindex), Some(Err(_))));
        others.map(|arrival| self.why_not(arrival)).collect()
    }

    /// The same before anything is put up: what is known to stand in the way.
    pub fn hindrances(&self) -> Vec<String> {
        let all = self.arrivals.iter().flat_map(BTreeMap::values);
        let hindered = all.filter(|arrival| arrival.hindrance.is_some() && self.managed_bridge(arrival).is_none());
        hindered.map(|arrival| self.why_not(arrival)).collect()
    }

    pub fn view(&self) -> DownlinkView {
        DownlinkView {
            links: self.limiting().map(str::to_owned).collect(),
            limits: self.limits.iter().map(|limit| self.view_of(limit)).collect(),
            reasons: match self.is_wanted() {
                true => self.shortfalls(),
                false => Vec::new(),
            },
        }
    }

    fn view_of(&self, limit: &RateLimit) -> DownloadView {
        DownloadView {
            number: limit.number,
            mbit: mbit(limit.bytes_per_s),
            passed: self.passed.get(&limit.number).copied().unwrap_or_default(),
        }
    }

    fn why_not(&self, Arrival { name, hindrance, .. }: &Arrival) -> String {
        let why = hindrance.as_ref().or(self.paused.as_ref()).or(self.failed.as_ref());
        let not_yet = match self.dry_run {
            true => "a dry run changes nothing",
            false => "it has not been put up yet",
        };
        let why = why.map_or(not_yet, String::as_str);
        format!("{} by {name} is not limited: {why}", self.way.what())
    }

    fn managed_bridge(&self, arrival: &Arrival) -> Option<u32> {
        let bridge = arrival.bridge?;
        let is_managed = self.arrivals.as_ref()?.contains_key(&bridge);
        (is_managed && bridge != arrival.ifindex).then_some(bridge)
    }

    /// None where nothing is to be put up.
    fn plan(&self) -> Option<Plan> {
        if self.dry_run || self.paused.is_some() || !self.is_wanted() {
            return None;
        }
        let all = self.arrivals.iter().flat_map(BTreeMap::values);
        let free = all.filter(|arrival| arrival.hindrance.is_none() && self.managed_bridge(arrival).is_none());
        let links: BTreeMap<u32, String> = free.map(|arrival| (arrival.ifindex, arrival.name.clone())).collect();
        (!links.is_empty()).then(|| Plan {
            links,
            limits: self.limits.clone(),
        })
    }

    fn ask(&mut self) -> Option<Option<Plan>> {
        let wanted = self.plan();
        // The outcome of the last one comes first; what has failed waits.
        let waits = self.asked.is_some() || (wanted.is_some() && self.again.next().is_some());
        if waits || wanted == self.in_force {
            return None;
        }
        self.asked = Some(wanted.clone());
        Some(wanted)
    }

    fn changes(&self, new: Option<&Plan>, why: &str) -> Vec<Change> {
        let links = |plan: Option<&Plan>| plan.map(|plan| plan.links.clone()).unwrap_or_default();
        let (before, after) = (links(self.in_force.as_ref()), links(new));
        let change = |name: &String, is_limited: bool| {
            let [old, new] = match is_limited {
                true => [NOT_LIMITED, LIMITED],
                false => [LIMITED, NOT_LIMITED],
            };
            let why = match (is_limited, self.is_wanted(), &self.paused) {
                (false, false, _) => "no limit is wanted any more",
                (false, true, Some(paused)) => paused,
                _ => why,
            };
            Change {
                subject: Subject::Interface { name: name.clone() },
                name: String::new(),
                setting: self.way.setting(),
                old: Value::from(old),
                new: Value::from(new),
                rule: self.way.rule().to_owned(),
                why: why.to_owned(),
                made: true,
            }
        };
        let gone = before.iter().filter(|(ifindex, _)| !after.contains_key(ifindex));
        let come = after.iter().filter(|(ifindex, _)| !before.contains_key(ifindex));
        let gone = gone.map(|(_, name)| change(name, false));
        gone.chain(come.map(|(_, name)| change(name, true))).collect()
    }
}

#[cfg(test)]
mod tests;
