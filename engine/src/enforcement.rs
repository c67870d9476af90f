// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a queue enforces what was requested for a flow: a rate limit, or a class that is an order of packets, for
//! what it sends or receives. Input: verdicts, links with their queues, devices, and the queue in which packets of a
//! flow were seen. Output: for each such flow the enforcing link, or why there is none; a change when enforcement ends,
//! and one when it begins again. Enforces nothing itself.
//!
//! A flow that leaves by a managed link is in that link's queue. One that leaves by another device may still be in one:
//! the device may be above a managed link (VLAN, macvlan, bridge, some tunnels). So admission stores in which queue it
//! last put a packet of a socket, and that decides.
//!
//! Reported once for a limit or class and a device, since users decide how many flows there are. Nor does a user decide
//! how many reports there are on processes in other network namespaces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::change::{Change, Setting, Value};
use crate::class::flows::Classes;
use crate::class::forwarded::Cgroups;
use crate::class::{By, Verdict};
use crate::downlink::{Downlink, Order, Way};
use crate::model::{Class, Cookie, Flow, LimitNumber, Protocol, Rates};
use crate::queue::links::Links;
use crate::rate::mbit;
use crate::sockets::flows::{Flows, Tracked};

pub mod arriving;
pub mod by_hand;
pub mod chosen;
pub mod deadlines;
pub mod elsewhere;
pub mod limit_use;
pub mod shortfalls;
pub mod traced;
pub mod view;

/// Successive polls with progress outside of any queue: ten a second for TCP, one a second for UDP.
const UNSEEN_LOOKS: u8 = 3;
const UNSEEN_LOOKS_OF_UDP: u8 = 2;
/// A shortfall that ended is not reported again sooner.
const REMEMBERED: std::time::Duration = std::time::Duration::from_secs(60);

const PASSES_BY: &str = "its packets bypass the queue: masqueraded or translated on this host, fragmented, or \
                         received on an unmanaged link";
const NOT_ENFORCED: &str = "not enforced";
const TABLE_IS_FULL: &str = "the flow table of the queue is full, and other flows of this user have the entries";

#[derive(Debug)]
pub enum Input {
    /// For the flows of [`Overview::to_be_traced`]: the link in whose queue a packet of each was seen lately; None: in
    /// none.
    Traced(Vec<(Cookie, Option<u32>)>),
    /// All processes with a choice whose sockets are in another network namespace.
    Elsewhere(Vec<elsewhere::Elsewhere>),
}

/// All that decides whether something is enforced, borrowed for one query.
#[derive(Clone, Copy)]
pub struct Overview<'a> {
    pub flows: &'a Flows,
    pub classes: &'a Classes,
    pub forwarded: &'a Cgroups,
    pub links: &'a Links,
    pub uploads: &'a Downlink,
    pub downloads: &'a Downlink,
    /// Why everything is suspended.
    pub paused: Option<&'a str>,
}

/// The enforcing link, or why there is none.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct Enforcement {
    /// The link whose queue has the flow's packets.
    #[serde(default)]
    pub enforced_by: Option<String>,
    /// Why none has.
    #[serde(default)]
    pub reason: Option<String>,
    /// The same for programs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
}

/// Why something is not enforced.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    DryRun,
    Paused,
    /// The flow table of the queue is full.
    TableFull,
    /// The link is managed, but has no giveway queue.
    NoQueue,
    /// It leaves by an unmanaged device.
    NotManaged,
    /// It stays on this host.
    Loopback,
    /// Local traffic of the link, which `local` excludes from the queue.
    Local,
    /// No packet has reached a managed link.
    NotSeen,
    /// Its downloads bypass the queue of its limit.
    PassesBy,
    /// From a newer version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Why it is not enforced, for programs and for people.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Lack {
    cause: Cause,
    reason: String,
}

/// A request for what is sent or received.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Asked {
    Upload(LimitNumber),
    Class(Class),
    Download(LimitNumber),
}

impl Lack {
    fn of(cause: Cause, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { cause, reason }
    }
}

impl Asked {
    /// Only what takes a queue: without a request nothing is missing.
    fn of(verdict: &Verdict) -> Option<Self> {
        let is_said = matches!(
            verdict.by,
            By::Hand | By::Name | By::Choice | By::Rule | By::Inheritance
        );
        let is_order = matches!(verdict.class, Class::Background | Class::Stream);
        let class = (is_said && is_order).then_some(Self::Class(verdict.class));
        verdict.limits.up.map(Self::Upload).or(class)
    }

    fn of_way(verdict: &Verdict, way: Way) -> Option<Self> {
        match way {
            Way::Sent => Self::of(verdict),
            Way::Received => verdict.limits.down.map(Self::Download),
        }
    }
}

impl Tracked {
    fn is_unseen(&self) -> bool {
        let looks = match self.flow.protocol {
            Protocol::Tcp => UNSEEN_LOOKS,
            Protocol::Udp => UNSEEN_LOOKS_OF_UDP,
        };
        self.trace.unseen_looks >= looks
    }
}

impl<'a> Overview<'a> {
    /// Why nothing at all is enforced.
    fn shortfall_of_all(&self) -> Option<Lack> {
        if self.links.dry_run() {
            return Some(Lack::of(Cause::DryRun, "a dry run changes nothing"));
        }
        self.paused
            .map(|reason| Lack::of(Cause::Paused, format!("giveway is paused: {reason}")))
    }

    /// The link whose queue has it. None: unknown yet.
    fn found(&self, asked: Asked, tracked: &Tracked) -> Option<Result<String, Lack>> {
        if let Some(reason) = self.shortfall_of_all() {
            return Some(Err(reason));
        }
        let Tracked { flow, trace, .. } = tracked;
        // A flow with an explicit class is known to the queue by its address.
        let is_told = self.classes.is_told(flow.cookie);
        if !is_told && tracked.judged.verdict.by != By::Name {
            return Some(Err(Lack::of(Cause::TableFull, TABLE_IS_FULL)));
        }
        if let Some(served) = self.served(asked, tracked, flow.ifindex) {
            return Some(served);
        }
        if let Some(on) = trace.seen_on {
            return self.served(asked, tracked, on);
        }
        let device = self.classes.devices().get(&flow.ifindex);
        let is_unseen = tracked.is_unseen() || device.is_some_and(|device| device.is_loopback) || !is_told;
        is_unseen.then(|| Err(self.why_unmanaged(flow)))
    }

    /// On this link, if it is managed.
    fn served(&self, asked: Asked, tracked: &Tracked, ifindex: u32) -> Option<Result<String, Lack>> {
        let served = self.links.serves(ifindex)?;
        let lack = |reason| Lack::of(Cause::NoQueue, reason);
        if matches!(asked, Asked::Upload(_)) {
            let not_yet = || Err("upload limits have not been installed yet".to_owned());
            let limited = self.uploads.serves(ifindex).unwrap_or_else(not_yet);
            return Some(limited.map_err(lack));
        }
        let link = match served {
            Ok(link) => link,
            Err(reason) => return Some(Err(lack(reason))),
        };
        // A stream precedes other local traffic.
        let is_behind = asked == Asked::Class(Class::Background);
        if is_behind && self.links.spares(ifindex, tracked.flow.remote.ip()) {
            let reason = format!("local traffic of {link} bypasses the queue (local = \"unlimited\")");
            return Some(Err(Lack::of(Cause::Local, reason)));
        }
        Some(Ok(link))
    }

    fn why_unmanaged(&self, flow: &Flow) -> Lack {
        match self.classes.devices().get(&flow.ifindex) {
            Some(device) if device.is_loopback => {
                Lack::of(Cause::Loopback, format!("it stays on this host ({})", device.name))
            }
            Some(device) => Lack::of(
                Cause::NotManaged,
                format!(
                    "it leaves by {}, which is not managed ({})",
                    device.shown(),
                    self.links.how_to_manage(&device.name)
                ),
            ),
            None => Lack::of(Cause::NotSeen, "none of its packets reaches a managed link"),
        }
    }

    /// The same for what it receives.
    fn found_received(&self, tracked: &Tracked) -> Option<Result<String, Lack>> {
        if let Some(reason) = self.shortfall_of_all() {
            return Some(Err(reason));
        }
        let Tracked { flow, trace, .. } = tracked;
        let is_told = self.classes.is_told(flow.cookie);
        if !is_told {
            return Some(Err(Lack::of(Cause::TableFull, TABLE_IS_FULL)));
        }
        if let Some(served) = self.downloads.serves(flow.ifindex) {
            let served = served.map_err(|reason| Lack::of(Cause::NoQueue, reason));
            return Some(match trace.passes_by() {
                true => served.and(Err(Lack::of(Cause::PassesBy, PASSES_BY))),
                false => served,
            });
        }
        let device = self.classes.devices().get(&flow.ifindex);
        if let Some(tunnel) = device.filter(|device| device.is_tunnel()) {
            let how = self.links.how_to_manage(&tunnel.name);
            let reason = format!("it arrives through {}, which is not managed ({how})", tunnel.shown());
            return Some(Err(Lack::of(Cause::NotManaged, reason)));
        }
        if let Some(on) = trace.seen_on {
            let served = self.downloads.serves(on)?;
            return Some(served.map_err(|reason| Lack::of(Cause::NoQueue, reason)));
        }
        let is_unseen = tracked.is_unseen() || device.is_some_and(|device| device.is_loopback);
        is_unseen.then(|| Err(self.why_unmanaged(flow)))
    }

    fn found_way(&self, asked: Asked, tracked: &Tracked, way: Way) -> Option<Result<String, Lack>> {
        match way {
            Way::Sent => self.found(asked, tracked),
            Way::Received => self.found_received(tracked),
        }
    }

    fn enforcement(&self, asked: Asked, tracked: &Tracked, way: Way) -> Enforcement {
        let not_yet = || Lack::of(Cause::NotSeen, "none of its packets has reached a managed link yet");
        match self.found_way(asked, tracked, way).unwrap_or_else(|| Err(not_yet())) {
            Ok(link) => Enforcement {
                enforced_by: Some(link),
                ..Enforcement::default()
            },
            Err(Lack { cause, reason }) => Enforcement {
                enforced_by: None,
                reason: Some(reason),
                cause: Some(cause),
            },
        }
    }

    /// The enforcing link.
    pub fn ordered_by(&self, tracked: &Tracked) -> Option<(&str, &Order)> {
        let yields = tracked.class > Class::Standard && tracked.judged.verdict.limits.down.is_none();
        let order = yields.then(|| self.downloads.orders(tracked.flow.ifindex)).flatten();
        order.filter(|_| !self.links.spares(tracked.flow.ifindex, tracked.flow.remote.ip()))
    }

    fn is_loopback(&self, ifindex: u32) -> bool {
        let device = self.classes.devices().get(&ifindex);
        device.is_some_and(|device| device.is_loopback)
    }

    fn shown(&self, asked: Asked) -> (Setting, String) {
        match asked {
            Asked::Class(class) => (Setting::Class, class.name().to_owned()),
            Asked::Upload(number) => (Setting::RateLimit, self.rate_shown(number, |rates| rates.up)),
            Asked::Download(number) => (Setting::DownloadLimit, self.rate_shown(number, |rates| rates.down)),
        }
    }

    fn rate_shown(&self, number: LimitNumber, rate: fn(Rates) -> Option<u64>) -> String {
        let mbit = self.rate_mbit(number, rate);
        mbit.map_or("lifted".to_owned(), |mbit| format!("{mbit} Mbit/s"))
    }

    fn rate_mbit(&self, number: LimitNumber, rate: fn(Rates) -> Option<u64>) -> Option<f64> {
        let limit = self.classes.limit(number)?;
        rate(limit.rates).map(mbit)
    }
}

/// Whether the change reports a shortfall.
pub fn is_shortfall(change: &Change) -> bool {
    change.new == Value::from(NOT_ENFORCED)
}
