// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rate limits in each direction; and the order of downloads where the link's download rate is known ([`order`]).
//! Input: the requested limits and orders, the managed links with the state of their ingress or egress, the outcome of
//! the last request, and the loss of what was installed. Output: what to install, with the reason for each link left
//! out. Without a limit or an order nothing is installed, so that no packet pays for it. Failures back off, and a
//! refusing link does so alone.
//!
//! Packets take a detour over an intermediate device. Another tool's filter that they must not bypass is a hindrance
//! ([`Arrival::hindrance`]). A bridge and its port see the same packets, so a port of a managed bridge is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::back_off::BackOff;
use crate::change::{Change, Setting, Subject, Value};
use crate::model::{LimitNumber, RateLimit};
use crate::rate::mbit;

pub mod order;

pub use order::{Arrived, DownloadRate, Order, OrderView, PART, WAITS};

const RULE_OF_ORDER: &str = "download_rate_mbit";
const AS_IT_COMES: &str = "not shaped";
const LIMITED: &str = "limited";
const LEAST_BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// After this long an installation counts as a success.
const STANDS: Duration = Duration::from_secs(60);

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

    /// Where programs of other tools matter.
    fn beside(self) -> &'static str {
        match self {
            Self::Sent => "at the egress",
            Self::Received => "before giveway's at the ingress",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Sent => "uploads",
            Self::Received => "downloads",
        }
    }
}

/// The present state of a managed link's ingress or egress.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Arrival {
    pub ifindex: u32,
    pub name: String,
    /// Why packets there cannot take a detour.
    pub hindrance: Option<String>,
    /// The bridge that it is a port of.
    pub bridge: Option<u32>,
    pub mtu_bytes: u32,
    /// Programs of other tools that may decide on a packet before it is limited.
    pub others: u32,
}

/// The links at which a plan could not be installed, by interface, with the reason.
pub type LeftOut = BTreeMap<u32, String>;

/// The plan: these limits over all these links together.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DetourPlan {
    /// By interface, with its name.
    pub links: BTreeMap<u32, String>,
    /// The largest MTU.
    pub mtu_bytes: u32,
    pub limits: Vec<RateLimit>,
    /// By interface, for links with ordered downloads: the most for bulk and background, bytes a second.
    pub orders: BTreeMap<u32, u64>,
}

#[derive(Debug)]
pub enum Input {
    /// The ingress or egress of the managed links, while there are such limits or orders; with the counters, if they
    /// were read.
    Arrivals {
        way: Way,
        arrivals: Vec<Arrival>,
        counted: Option<Counted>,
    },
    /// Received on links with an order, by interface.
    Arrived(BTreeMap<u32, Arrived>),
    /// The outcome of [`Action::Set`]; after an error nothing is installed.
    Outcome { way: Way, outcome: Result<LeftOut, String> },
    /// What was installed is gone, for this reason.
    Lost { way: Way, reason: String },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Install this in place of the present plan; None: remove it.
    Set { way: Way, plan: Option<DetourPlan> },
    /// The present total rate of bulk and background received by these interfaces, bytes a second.
    MakeAvailable(BTreeMap<u32, u64>),
}

/// Counters of the queues since they were installed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    pub limits: BTreeMap<LimitNumber, Passed>,
    /// By interface, of bulk and of background.
    pub orders: BTreeMap<u32, [Passed; 2]>,
}

/// The same for `status`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct DownlinkView {
    /// The links with limits.
    pub links: Vec<String>,
    pub limits: Vec<DownloadView>,
    /// The links on which bulk and background downloads yield.
    #[serde(default)]
    pub orders: Vec<OrderView>,
    /// Why there is none on a link, or on any.
    pub reasons: Vec<String>,
}

/// One of the limits, as of the latest poll.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize, JsonSchema)]
pub struct DownloadView {
    pub number: LimitNumber,
    pub mbit: f64,
    #[serde(flatten)]
    pub passing: Passing,
}

/// The throughput of a limit's queue: now, and since it was installed.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize, JsonSchema)]
pub struct Passing {
    /// Between the latest two polls, headers included.
    #[serde(default)]
    pub throughput_mbit: f64,
    #[serde(flatten)]
    pub passed: Passed,
    /// The time of the poll.
    #[serde(skip)]
    at: Duration,
}

impl Passing {
    pub fn count(&mut self, now: Duration, passed: Passed) {
        let took = now.saturating_sub(self.at);
        // In a shorter time a single packet weighs too much.
        if took < LEAST_BETWEEN_LOOKS {
            return;
        }
        let bytes = passed.passed_bytes.saturating_sub(self.passed.passed_bytes);
        self.throughput_mbit = mbit((bytes as f64 / took.as_secs_f64()) as u64);
        (self.passed, self.at) = (passed, now);
    }
}

/// The counters of a limit's queue.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct Passed {
    pub passed_bytes: u64,
    pub passed_packets: u64,
    pub dropped_packets: u64,
    pub backlog_packets: u64,
    pub backlog_bytes: u64,
}

#[derive(Debug, Default)]
pub struct Downlink {
    way: Way,
    dry_run: bool,
    limits: Vec<RateLimit>,
    /// By interface, the known download rates.
    rates: BTreeMap<u32, DownloadRate>,
    /// The active ones.
    orders: BTreeMap<u32, Order>,
    /// None: to be inspected.
    arrivals: Option<BTreeMap<u32, Arrival>>,
    passing: BTreeMap<LimitNumber, Passing>,
    /// When this was counted, or the queues were installed.
    counted: Duration,
    paused: Option<String>,
    installed: Option<DetourPlan>,
    asked: Option<Option<DetourPlan>>,
    /// Why the last one is not active.
    failed: Option<String>,
    again: BackOff,
    /// Links that refused, by interface: each is left out for a while, and the others are served.
    refused: BTreeMap<u32, RefusedLink>,
    /// When the plan was last installed or changed.
    since: Option<Duration>,
}

/// A link that refused the installation.
#[derive(Debug, Default)]
struct RefusedLink {
    reason: String,
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

    /// Takes in the requested limits. Returns the next request, as all of the following.
    pub fn follow(&mut self, limits: Vec<RateLimit>) -> Option<Option<DetourPlan>> {
        self.limits = limits;
        self.rest();
        self.ask()
    }

    /// Takes in the rates of the links to be ordered.
    pub fn follow_rates(&mut self, rates: Vec<DownloadRate>) -> Option<Option<DetourPlan>> {
        self.rates = rates.into_iter().map(|rate| (rate.ifindex, rate)).collect();
        self.rest();
        self.ask()
    }

    /// The links are inspected again when needed.
    fn rest(&mut self) {
        if !self.is_wanted() {
            (self.arrivals, self.failed) = (None, None);
            self.again.reset();
        }
    }

    /// Whether the links are to be inspected, once a second.
    pub fn is_wanted(&self) -> bool {
        !self.limits.is_empty() || !self.rates.is_empty()
    }

    /// And at once.
    pub fn misses_arrivals(&self) -> bool {
        self.is_wanted() && self.arrivals.is_none()
    }

    /// Takes in the counters.
    pub fn count(&mut self, now: Duration, counted: Counted) {
        self.passing.retain(|number, _| counted.limits.contains_key(number));
        for (number, passed) in counted.limits {
            let new = Passing {
                at: self.counted,
                ..Passing::default()
            };
            self.passing.entry(number).or_insert(new).count(now, passed);
        }
        self.counted = now;
        for (ifindex, counted) in counted.orders {
            let order = self.orders.get_mut(&ifindex);
            let of_order = order.into_iter().flat_map(|order| &mut order.queues);
            of_order
                .zip(counted)
                .for_each(|(passing, passed)| passing.count(now, passed));
        }
    }

    /// When to read the counters of received traffic.
    pub fn next_look(&self) -> Option<Duration> {
        self.orders.values().map(Order::next_look).min()
    }

    /// Takes in the received traffic of the links. Returns the new rates of bulk and background, where they change.
    pub fn balance(&mut self, now: Duration, arrived: &BTreeMap<u32, Arrived>) -> BTreeMap<u32, u64> {
        let seen = self.orders.iter_mut();
        seen.filter_map(|(ifindex, order)| Some((*ifindex, order.observe(now, arrived.get(ifindex).copied())?)))
            .collect()
    }

    /// Takes in on which ordered links packets of bulk and background queue before the link. Returns the links whose
    /// rate is reported as too high from now on, or no longer.
    pub fn judge(&mut self, now: Duration, waits_before: impl Fn(u32) -> bool) -> BTreeSet<u32> {
        let judged = self.orders.iter_mut().filter_map(|(ifindex, order)| {
            let was = order.is_too_high();
            order.judge(now, waits_before(*ifindex));
            (order.is_too_high() != was).then_some(*ifindex)
        });
        judged.collect()
    }

    /// The order of downloads on this interface, with the link's name.
    pub fn orders(&self, ifindex: u32) -> Option<(&str, &Order)> {
        if let Some(order) = self.orders.get(&ifindex) {
            let name = self.installed.as_ref()?.links.get(&ifindex)?;
            return Some((name, order));
        }
        let arrival = self.arrivals.as_ref()?.get(&ifindex)?;
        self.managed_bridge(arrival).and_then(|bridge| self.orders(bridge))
    }

    /// The links on which bulk and background yield.
    pub fn ordering(&self) -> impl Iterator<Item = &str> {
        let links = self.orders.iter().filter(|(_, order)| !order.is_too_high());
        let links = links.map(|(ifindex, _)| ifindex);
        links.filter_map(|ifindex| Some(self.installed.as_ref()?.links.get(ifindex)?.as_str()))
    }

    /// The throughput of a limit's queue, Mbit/s.
    pub fn throughput_mbit(&self, number: LimitNumber) -> Option<f64> {
        self.passing.get(&number).map(|passing| passing.throughput_mbit)
    }

    /// Takes in the managed links.
    pub fn observe(&mut self, now: Duration, arrivals: Vec<Arrival>) -> Option<Option<DetourPlan>> {
        let by_number = arrivals.into_iter().map(|mut arrival| {
            let refused = self.refused.get(&arrival.ifindex);
            let refused = refused.filter(|refused| refused.again.next().is_some_and(|next| next > now));
            arrival.hindrance = arrival.hindrance.or_else(|| Some(refused?.reason.clone()));
            (arrival.ifindex, arrival)
        });
        let arrivals: BTreeMap<u32, Arrival> = by_number.collect();
        self.refused.retain(|ifindex, _| arrivals.contains_key(ifindex));
        self.arrivals = Some(arrivals);
        self.ask()
    }

    pub fn pause(&mut self, reason: Option<&String>) -> Option<Option<DetourPlan>> {
        self.paused = reason.cloned();
        self.ask()
    }

    /// Takes in the outcome of the last request; after an error nothing is active.
    pub fn conclude(
        &mut self,
        now: Duration,
        outcome: Result<LeftOut, String>,
    ) -> (Vec<Change>, Option<Option<DetourPlan>>) {
        let Some(mut asked) = self.asked.take() else {
            return (Vec::new(), None);
        };
        match outcome {
            Ok(refused) => {
                let tried = asked.iter().flat_map(|plan| plan.links.keys());
                for ifindex in tried.filter(|ifindex| !refused.contains_key(ifindex)) {
                    self.refused.remove(ifindex);
                }
                for (ifindex, reason) in refused {
                    let known = self.refused.entry(ifindex).or_default();
                    known.again.failed(now);
                    known.reason.clone_from(&reason);
                    if let Some(plan) = &mut asked {
                        plan.links.remove(&ifindex);
                        plan.orders.remove(&ifindex);
                    }
                    let arrival = self.arrivals.as_mut().and_then(|all| all.get_mut(&ifindex));
                    if let Some(arrival) = arrival {
                        arrival.hindrance = Some(reason);
                    }
                }
                self.failed = None;
                self.since = Some(now);
                if self.installed.is_none() {
                    self.counted = now;
                }
                let changes = self.changes(asked.as_ref(), &format!("a limit for {} is set", self.way.what()));
                self.installed = asked;
                self.renew_orders();
                (changes, self.ask())
            }
            Err(reason) => (self.lose(now, reason), None),
        }
    }

    /// The installation was removed together with the detour: packets arrive unshaped.
    pub fn lost(&mut self, now: Duration, reason: String) -> Vec<Change> {
        match self.installed.is_some() {
            true => self.lose(now, reason),
            false => Vec::new(),
        }
    }

    fn lose(&mut self, now: Duration, reason: String) -> Vec<Change> {
        let changes = self.changes(None, &reason);
        let stood = self
            .since
            .take()
            .is_some_and(|since| now.saturating_sub(since) >= STANDS);
        if self.installed.is_some() && stood {
            self.again.reset();
        }
        (self.installed, self.failed) = (None, Some(reason));
        self.orders.clear();
        self.again.failed(now);
        changes
    }

    /// Orders that continue keep their counters.
    fn renew_orders(&mut self) {
        let installed = self.installed.iter().flat_map(|plan| &plan.orders);
        let renewed = installed.filter_map(|(ifindex, most)| {
            let rate = *self.rates.get(ifindex)?;
            let mut order = self.orders.get(ifindex).cloned();
            order = order.filter(|order| order.rate() == &rate && rate.most() == *most);
            Some((*ifindex, order.unwrap_or_else(|| Order::new(rate))))
        });
        self.orders = renewed.collect();
    }

    pub fn next_try(&self) -> Option<Duration> {
        self.again.next()
    }

    /// Returns a request that is due for a retry.
    pub fn try_again(&mut self, now: Duration) -> Option<Option<DetourPlan>> {
        self.again.is_due(now).then(|| self.ask()).flatten()
    }

    /// Whether limits apply to downloads on this interface: the link, or why not. None: not managed.
    pub fn serves(&self, ifindex: u32) -> Option<Result<String, String>> {
        let arrival = self.arrivals.as_ref()?.get(&ifindex)?;
        if let Some(bridge) = self.managed_bridge(arrival) {
            return self.serves(bridge);
        }
        let installed = self.installed.as_ref().and_then(|plan| plan.links.get(&ifindex));
        Some(installed.cloned().ok_or_else(|| self.why_not(arrival)))
    }

    /// The links with limits.
    pub fn limiting(&self) -> impl Iterator<Item = &str> {
        let limiting = self.installed.iter().filter(|plan| !plan.limits.is_empty());
        limiting.flat_map(|plan| plan.links.values()).map(String::as_str)
    }

    /// Why the others have none.
    pub fn shortfalls(&self) -> Vec<String> {
        let all = self.arrivals.iter().flat_map(BTreeMap::values);
        let others = all.filter(|arrival| matches!(self.serves(arrival.ifindex), Some(Err(_))));
        others.map(|arrival| self.why_not(arrival)).collect()
    }

    /// The same before an installation: the known hindrances.
    pub fn hindrances(&self) -> Vec<String> {
        let all = self.arrivals.iter().flat_map(BTreeMap::values);
        let hindered = all.filter(|arrival| arrival.hindrance.is_some() && self.managed_bridge(arrival).is_none());
        hindered.map(|arrival| self.why_not(arrival)).collect()
    }

    pub fn view(&self) -> DownlinkView {
        DownlinkView {
            links: self.limiting().map(str::to_owned).collect(),
            limits: self.limits.iter().map(|limit| self.view_of(limit)).collect(),
            orders: self.order_views(),
            reasons: match self.limits.is_empty() {
                true => [self.not_ordered(), self.too_high(), self.others()].concat(),
                false => [self.shortfalls(), self.not_ordered(), self.too_high(), self.others()].concat(),
            },
        }
    }

    fn order_views(&self) -> Vec<OrderView> {
        let named = |ifindex: &u32| self.installed.as_ref()?.links.get(ifindex);
        let orders = self.orders.iter();
        orders
            .filter_map(|(ifindex, order)| Some(order.view(named(ifindex)?)))
            .collect()
    }

    fn not_ordered(&self) -> Vec<String> {
        let missing = self.rates.keys().filter(|ifindex| !self.orders.contains_key(ifindex));
        let known = missing.filter_map(|ifindex| self.arrivals.as_ref()?.get(ifindex));
        known
            .map(|arrival| {
                format!(
                    "downloads on {} are not ordered: {}",
                    arrival.name,
                    self.hindered_by(arrival)
                )
            })
            .collect()
    }

    fn too_high(&self) -> Vec<String> {
        let named = |ifindex: &u32| self.installed.as_ref()?.links.get(ifindex);
        let orders = self.orders.iter();
        orders
            .filter_map(|(ifindex, order)| order.too_high_shown(named(ifindex)?))
            .collect()
    }

    fn others(&self) -> Vec<String> {
        let links = self.installed.iter().flat_map(|plan| plan.links.keys());
        let arrivals = links.filter_map(|ifindex| self.arrivals.as_ref()?.get(ifindex));
        let followed = arrivals.filter(|arrival| arrival.others > 0);
        let shown = |Arrival { name, others, .. }: &Arrival| {
            format!(
                "packets may bypass the limits on {name}: tcx programs of other tools run {}: {others} (`bpftool net show dev {name}`)",
                self.way.beside()
            )
        };
        followed.map(shown).collect()
    }

    fn view_of(&self, limit: &RateLimit) -> DownloadView {
        DownloadView {
            number: limit.number,
            mbit: mbit(limit.bytes_per_s),
            passing: self.passing.get(&limit.number).copied().unwrap_or_default(),
        }
    }

    fn why_not(&self, arrival: &Arrival) -> String {
        let reason = self.hindered_by(arrival);
        format!("{} on {} are not limited: {reason}", self.way.what(), arrival.name)
    }

    fn hindered_by<'a>(&'a self, arrival: &'a Arrival) -> &'a str {
        if self.managed_bridge(arrival).is_some() {
            return "it is a port of a managed bridge, and has its own rate";
        }
        let reason = arrival.hindrance.as_ref().or(self.paused.as_ref());
        let not_yet = match self.dry_run {
            true => "a dry run changes nothing",
            false => "it has not been installed yet",
        };
        reason.or(self.failed.as_ref()).map_or(not_yet, String::as_str)
    }

    fn managed_bridge(&self, arrival: &Arrival) -> Option<u32> {
        let bridge = arrival.bridge?;
        let is_managed = self.arrivals.as_ref()?.contains_key(&bridge);
        (is_managed && bridge != arrival.ifindex).then_some(bridge)
    }

    /// None: nothing to install.
    fn plan(&self) -> Option<DetourPlan> {
        if self.dry_run || self.paused.is_some() || !self.is_wanted() {
            return None;
        }
        let all = self.arrivals.iter().flat_map(BTreeMap::values);
        let free = all.filter(|arrival| arrival.hindrance.is_none() && self.managed_bridge(arrival).is_none());
        let is_meant = |arrival: &&Arrival| !self.limits.is_empty() || self.rates.contains_key(&arrival.ifindex);
        let meant = free.filter(is_meant);
        let links: BTreeMap<u32, String> = meant.map(|arrival| (arrival.ifindex, arrival.name.clone())).collect();
        let ordered = self.rates.iter().filter(|(ifindex, _)| links.contains_key(ifindex));
        let orders = ordered.map(|(ifindex, rate)| (*ifindex, rate.most())).collect();
        let mtus = self.arrivals.iter().flatten();
        let mtus = mtus.filter(|(ifindex, _)| links.contains_key(ifindex));
        let mtu_bytes = mtus.map(|(_, arrival)| arrival.mtu_bytes).max().unwrap_or_default();
        (!links.is_empty()).then(|| DetourPlan {
            links,
            mtu_bytes,
            limits: self.limits.clone(),
            orders,
        })
    }

    fn ask(&mut self) -> Option<Option<DetourPlan>> {
        let wanted = self.plan();
        // One request at a time; a failed one waits for its retry.
        let waits = self.asked.is_some() || (wanted.is_some() && self.again.next().is_some());
        if waits || wanted == self.installed {
            return None;
        }
        self.asked = Some(wanted.clone());
        Some(wanted)
    }

    fn changes(&self, new: Option<&DetourPlan>, reason: &str) -> Vec<Change> {
        let (before, after) = (self.states(self.installed.as_ref()), self.states(new));
        let all: BTreeSet<&(u32, Setting)> = before.keys().chain(after.keys()).collect();
        // A new name alone is no change.
        let state = |of: Option<&State>| of.map(|(_, state)| state.clone());
        let changed = all
            .into_iter()
            .filter(|key| state(before.get(key)) != state(after.get(key)));
        changed
            .map(|key| self.change(key, before.get(key), after.get(key), reason))
            .collect()
    }

    fn change(
        &self,
        (ifindex, setting): &(u32, Setting),
        before: Option<&State>,
        after: Option<&State>,
        reason: &str,
    ) -> Change {
        let is_order = *setting == Setting::DownloadOrder;
        let is_wanted = match is_order {
            true => self.rates.contains_key(ifindex),
            false => !self.limits.is_empty(),
        };
        let reason = match (after.is_some(), is_wanted, &self.paused) {
            (true, ..) if is_order => self.rates.get(ifindex).map_or_else(String::new, |rate| {
                format!("the queue is moved to this host: {}", rate.shown())
            }),
            (false, false, _) if is_order => "its download rate is not set any more".to_owned(),
            (false, false, _) => "no limit is set any more".to_owned(),
            (false, true, Some(paused)) => paused.clone(),
            (false, true, None) => {
                let arrival = self.arrivals.as_ref().and_then(|arrivals| arrivals.get(ifindex));
                let hindrance = arrival.and_then(|arrival| arrival.hindrance.as_deref());
                hindrance.unwrap_or(reason).to_owned()
            }
            _ => reason.to_owned(),
        };
        let name = after.or(before).map(|(name, _)| name.clone()).unwrap_or_default();
        let shown = |state: Option<&State>| Value::from(state.map_or(AS_IT_COMES, |(_, state)| state));
        Change {
            subject: Subject::Interface { name },
            name: String::new(),
            setting: setting.clone(),
            old: shown(before),
            new: shown(after),
            rule: if is_order { RULE_OF_ORDER } else { self.way.rule() }.to_owned(),
            reason,
            made: true,
        }
    }

    fn states(&self, plan: Option<&DetourPlan>) -> BTreeMap<(u32, Setting), State> {
        let Some(plan) = plan else {
            return BTreeMap::new();
        };
        let limited = plan.links.iter().filter(|_| !plan.limits.is_empty());
        let limited = limited.map(|(ifindex, name)| {
            let state = (name.clone(), LIMITED.to_owned());
            ((*ifindex, self.way.setting()), state)
        });
        let ordered = plan.orders.iter().map(|(ifindex, most)| {
            let name = plan.links.get(ifindex).cloned().unwrap_or_default();
            let most = mbit(*most);
            let state = format!("bulk and background within {most} Mbit/s minus other traffic");
            ((*ifindex, Setting::DownloadOrder), (name, state))
        });
        limited.chain(ordered).collect()
    }
}

/// A link's name, and its setting.
type State = (String, String);

#[cfg(test)]
mod tests;
