// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a queue acts on what a flow sends, where it was asked for: a rate limit, or a class that is an order of packets.
//! Input: verdicts, links with their queues, devices, and in which queue packets of a flow were seen. Output: for each such
//! flow the link that enforces it, or why none does; one change where what was asked for is not enforced, and one where it
//! is again. Nothing is enforced here.
//!
//! A flow that leaves by a managed link is in that link's queue. One that leaves by another device may still be in one: the
//! device may stand on a managed link (VLAN, macvlan, bridge, some tunnels). So admission notes in which queue it last put a
//! packet of a socket, and that decides.
//!
//! Said once for a limit, or a class, and a device: users decide how many flows there are. Nor does a user decide how much is
//! said of processes in other network namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Network, name_of};
use crate::change::{Change, Setting, Subject, Value};
use crate::class::{By, Verdict};
use crate::config::Config;
use crate::downlink::{Order, Way};
use crate::model::{Class, Cookie, Device, Flow, LimitNumber, LimitNumbers, ProcessId, Protocol, Rates};
use crate::rate::mbit;
use crate::sockets::flows::Tracked;
use crate::turns::Turns;

/// Flows that are looked up among the queues in one pass.
const TRACED_AT_ONCE: usize = 64;
/// A packet that was in a queue so lately tells where its flow goes now.
pub const TRACED_WITHIN: Duration = Duration::from_millis(1500);
/// Successive looks in which it moved and was in no queue: ten a second at TCP, one a second at UDP.
const UNSEEN_LOOKS: u8 = 3;
const UNSEEN_LOOKS_OF_UDP: u8 = 2;
/// A queue may be on its way.
const SHORT_FOR: Duration = Duration::from_millis(300);
/// It is said again no sooner, where all flows have ended meanwhile.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Limits and classes on devices that something is said of.
const MOST_SHORTFALLS: usize = 256;
/// Processes in other network namespaces that are shown: of each user so many, root's first.
const MOST_ELSEWHERE: usize = 64;
/// Of how many it is said in [`REMEMBERED`]: of one user, and of all but root. Who has many user numbers (subuid(5)) counts as
/// many.
const MOST_SAID_OF_USER: usize = 4;
const MOST_SAID: usize = 16;
const ROOT: u32 = 0;

const PASSES_BY: &str = "it does not pass the queue for it: it may be masqueraded or translated on this host, arrive by a link that is \
                         not managed, or in fragments";
const NOT_ENFORCED: &str = "not enforced";
const TABLE_IS_FULL: &str =
    "the table of flows that the queue knows is full, and others of this user's have their places";

/// Where it is enforced, or why it is not.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Enforcement {
    /// The link that holds the flow's packets.
    #[serde(default)]
    pub enforced_by: Option<String>,
    /// Why they are in none.
    #[serde(default)]
    pub reason: Option<String>,
    /// The same for programs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
}

/// Why something is not enforced.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    DryRun,
    Paused,
    /// The table of flows that the queue knows is full.
    TableFull,
    /// The link is managed, and has no queue of giveway's.
    NoQueue,
    /// It leaves by a device that is not managed.
    NotManaged,
    /// It stays on this host.
    Loopback,
    /// It stays in the link's own subnets, which `local` leaves out of the queue.
    Local,
    /// No packet has reached a managed link.
    NotSeen,
    /// What arrives for it does not pass the queue of its limit.
    PassesBy,
    /// Of a newer version.
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

/// The limits that a flow has, in each direction.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LimitsView {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<LimitView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<LimitView>,
}

/// One of them.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LimitView {
    /// All that share it have at most so much together.
    pub mbit: f64,
    #[serde(flatten)]
    pub enforcement: Enforcement,
}

impl LimitsView {
    /// Why they are not enforced, if they are not.
    pub fn reasons(self) -> impl Iterator<Item = String> {
        let ways = [self.upload, self.download].into_iter().flatten();
        ways.filter_map(|way| way.enforcement.reason)
    }

    /// For people.
    pub fn shown(&self) -> impl Iterator<Item = String> {
        let upload = self.upload.as_ref().map(|limit| limit.shown("upload"));
        let download = self.download.as_ref().map(|limit| limit.shown("download"));
        upload.into_iter().chain(download)
    }
}

impl LimitView {
    fn shown(&self, direction: &str) -> String {
        let mbit = self.mbit;
        match &self.enforcement {
            Enforcement {
                enforced_by: Some(link),
                ..
            } => format!("its {direction} limit of {mbit} Mbit/s is enforced by {link}"),
            Enforcement { reason, .. } => format!(
                "its {direction} limit of {mbit} Mbit/s is not enforced: {}",
                reason.as_deref().unwrap_or("it is not known why")
            ),
        }
    }
}

/// How what arrives for a flow gives way.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct DownloadOrder {
    pub interface: String,
    /// Of all bulk and background there at most, while nothing else arrives.
    pub most_mbit: f64,
    pub why: String,
    /// What arrives for it does not pass the queue of its class, so it does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passes_by: bool,
    /// More is let through than the link carries, so nothing waits here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rate_too_high: bool,
}

impl DownloadOrder {
    pub fn shown(&self) -> String {
        let Self {
            interface,
            most_mbit,
            why,
            passes_by,
            rate_too_high,
        } = self;
        if *passes_by {
            return format!("what arrives for it does not give way: {PASSES_BY}");
        }
        if *rate_too_high {
            return format!(
                "what arrives for it by {interface} is not ordered: packets wait before the link, which carries less than {why}"
            );
        }
        format!(
            "what arrives for it by {interface} gives way to all that is no bulk or background, within {most_mbit} Mbit/s: {why}"
        )
    }
}

/// What was asked for and is not enforced on a device, for `status`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ShortfallView {
    /// As `rate limit 2 Mbit/s` or `class background`.
    pub what: String,
    /// The same for programs: one of these.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub class: Option<Class>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub upload_limit_mbit: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub download_limit_mbit: Option<f64>,
    /// Whose word it is.
    pub rule: String,
    /// Empty where no route is known.
    pub interface: String,
    pub flows: usize,
    pub reason: String,
    /// The same for programs.
    #[serde(default)]
    pub cause: Cause,
}

/// A process for which something was chosen, and whose sockets are in another network namespace.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Elsewhere {
    pub id: ProcessId,
    /// It may change it as often as it likes.
    pub command: String,
    pub netns_inum: u32,
    /// Whose it is by now, whoever has chosen.
    pub uid: u32,
}

/// The same for `status`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ElsewhereView {
    pub pid: u32,
    pub command: String,
    pub netns_inum: u32,
    pub reason: String,
}

/// What is asked for of what is sent, or received.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Asked {
    Upload(LimitNumber),
    Class(Class),
    Download(LimitNumber),
}

type Key = (Asked, u32);

#[derive(Debug, Default)]
pub struct Shortfalls {
    known: BTreeMap<Key, Shortfall>,
    of_flows: BTreeMap<(Cookie, Way), Key>,
    /// By the process and the namespace, with the name that it had first.
    elsewhere: BTreeMap<(ProcessId, u32), Elsewhere>,
    /// When it was said last, by the user and the namespace.
    said_elsewhere: BTreeMap<(u32, u32), Duration>,
    /// Deadlines are configured; devices by which they are not promised.
    has_deadlines: bool,
    past_deadlines: BTreeSet<String>,
}

#[derive(Debug)]
struct Shortfall {
    flows: BTreeSet<Cookie>,
    rule: String,
    why: Lack,
    /// Since when there is no such flow.
    empty: Option<Duration>,
}

impl Lack {
    fn of(cause: Cause, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { cause, reason }
    }
}

impl Asked {
    /// What only a queue gives: of what nobody said, nothing is missing.
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

impl Shortfalls {
    pub fn new(config: &Config) -> Self {
        Self {
            has_deadlines: !config.deadline.is_empty(),
            ..Self::default()
        }
    }

    /// The flow is no more.
    pub fn end(&mut self, cookie: Cookie) {
        self.end_way(cookie, Way::Sent);
        self.end_way(cookie, Way::Received);
    }

    /// Or it is enforced.
    fn end_way(&mut self, cookie: Cookie, way: Way) {
        if let Some(key) = self.of_flows.remove(&(cookie, way))
            && let Some(shortfall) = self.known.get_mut(&key)
        {
            shortfall.flows.remove(&cookie);
        }
    }

    fn forget(&mut self, now: Duration) {
        self.known.retain(|_, shortfall| {
            match shortfall.flows.is_empty() {
                true => _ = shortfall.empty.get_or_insert(now),
                false => shortfall.empty = None,
            }
            shortfall
                .empty
                .is_none_or(|since| now.saturating_sub(since) < REMEMBERED)
        });
    }

    /// Whether that is news.
    fn note(&mut self, now: Duration, (cookie, way): (Cookie, Way), key: Key, rule: &str, why: &Lack) -> bool {
        if self.of_flows.get(&(cookie, way)) != Some(&key) {
            self.end_way(cookie, way);
        }
        self.forget(now);
        if self.known.len() >= MOST_SHORTFALLS && !self.known.contains_key(&key) {
            return false;
        }
        let mut is_news = false;
        let shortfall = self.known.entry(key).or_insert_with(|| {
            is_news = true;
            Shortfall {
                flows: BTreeSet::new(),
                rule: rule.to_owned(),
                why: Lack::default(),
                empty: None,
            }
        });
        why.clone_into(&mut shortfall.why);
        shortfall.flows.insert(cookie);
        self.of_flows.insert((cookie, way), key);
        is_news
    }

    /// Those that are to be told of, and those that are shown no more. Of each user those stay that are shown already.
    fn keep_elsewhere(&mut self, now: Duration, found: Vec<Elsewhere>) -> (Vec<Elsewhere>, Vec<ProcessId>) {
        let mut before = std::mem::take(&mut self.elsewhere);
        let (stay, come): (Vec<_>, Vec<_>) = found
            .into_iter()
            .map(|process| ((process.id, process.netns_inum), process))
            .partition(|(key, _)| before.contains_key(key));
        let of_users = stay.into_iter().chain(come);
        let places = Turns::default().order(of_users.map(|(key, process)| (process.uid, (key, process))));
        self.said_elsewhere
            .retain(|_, said| now.saturating_sub(*said) < REMEMBERED);
        let mut news = Vec::new();
        for (uid, (key, process)) in places.into_iter().take(MOST_ELSEWHERE) {
            let known = before.remove(&key);
            if known.is_none() && self.says_elsewhere(now, uid, process.netns_inum) {
                news.push(process.clone());
            }
            let named = known.map_or(process.command, |known| known.command);
            self.elsewhere.insert(
                key,
                Elsewhere {
                    command: named,
                    ..process
                },
            );
        }
        (news, before.into_values().map(|process| process.id).collect())
    }

    /// Whether it is to be said that something of this user is there.
    fn says_elsewhere(&mut self, now: Duration, uid: u32, netns_inum: u32) -> bool {
        let of_users = self.said_elsewhere.keys().filter(|(of, _)| *of != ROOT).count();
        let of_this = self.said_elsewhere.keys().filter(|(of, _)| *of == uid).count();
        let may = uid == ROOT || (of_users < MOST_SAID && of_this < MOST_SAID_OF_USER);
        if !may || self.said_elsewhere.contains_key(&(uid, netns_inum)) {
            return false;
        }
        self.said_elsewhere.insert((uid, netns_inum), now);
        true
    }
}

impl Network {
    /// Flows of which only admission can tell whether a queue has them, those first of which least is known.
    pub fn to_be_traced(&self) -> Vec<Cookie> {
        if self.shortfall_of_all().is_some() {
            return Vec::new();
        }
        let is_meant = |tracked: &&Tracked| {
            let verdict = &tracked.judged.verdict;
            let is_asked = Asked::of(verdict).is_some() || verdict.limits.down.is_some();
            is_asked && self.links.serves(tracked.flow.ifindex).is_none()
        };
        let mut traced: Vec<&Tracked> = self.flows.iter().filter(is_meant).collect();
        traced.sort_by_key(|tracked| (tracked.trace.seen_on.is_some(), tracked.trace.unseen_looks));
        let traced = traced.into_iter().take(TRACED_AT_ONCE);
        traced.map(|tracked| tracked.flow.cookie).collect()
    }

    pub(super) fn note_traced(&mut self, now: Duration, traced: Vec<(Cookie, Option<u32>)>) {
        let cookies: Vec<Cookie> = traced.iter().map(|(cookie, _)| *cookie).collect();
        for (cookie, seen_on) in traced {
            let is_told = self.classes.is_told(cookie);
            let Some(tracked) = self.flows.get_mut(cookie) else {
                continue;
            };
            let delivered = tracked.flow.delivered_segments;
            let trace = &mut tracked.trace;
            let moves = std::mem::replace(&mut trace.delivered, delivered) != delivered;
            if seen_on.is_some() {
                (trace.seen_on, trace.unseen_looks) = (seen_on, 0);
            } else if moves && is_told {
                trace.unseen_looks = trace.unseen_looks.saturating_add(1);
                if tracked.is_unseen() {
                    tracked.trace.seen_on = None;
                }
            }
        }
        self.enforce(now, &cookies);
    }

    /// Why nothing at all is enforced.
    fn shortfall_of_all(&self) -> Option<Lack> {
        if self.links.dry_run() {
            return Some(Lack::of(Cause::DryRun, "a dry run changes nothing"));
        }
        let paused = self.paused.as_ref();
        paused.map(|why| Lack::of(Cause::Paused, format!("giveway is paused: {why}")))
    }

    /// The link that has a queue for it. None where it is not known yet.
    fn found(&self, asked: Asked, tracked: &Tracked) -> Option<Result<String, Lack>> {
        if let Some(why) = self.shortfall_of_all() {
            return Some(Err(why));
        }
        let Tracked { flow, trace, .. } = tracked;
        // Of one that was named the queue knows by its address.
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

    /// By this link, if it is managed.
    fn served(&self, asked: Asked, tracked: &Tracked, ifindex: u32) -> Option<Result<String, Lack>> {
        let served = self.links.serves(ifindex)?;
        let lack = |why| Lack::of(Cause::NoQueue, why);
        if matches!(asked, Asked::Upload(_)) {
            let not_yet = || Err("upload limits have not been put up yet".to_owned());
            let limited = self.uploads.serves(ifindex).unwrap_or_else(not_yet);
            return Some(limited.map_err(lack));
        }
        let link = match served {
            Ok(link) => link,
            Err(why) => return Some(Err(lack(why))),
        };
        // A stream goes before other local traffic.
        let is_behind = asked == Asked::Class(Class::Background);
        if is_behind && self.links.spares(ifindex, tracked.flow.remote.ip()) {
            let why =
                format!("it stays in the own subnets of {link}, whose traffic `local = \"unlimited\"` leaves out");
            return Some(Err(Lack::of(Cause::Local, why)));
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

    /// The same of what it receives.
    fn found_received(&self, tracked: &Tracked) -> Option<Result<String, Lack>> {
        if let Some(why) = self.shortfall_of_all() {
            return Some(Err(why));
        }
        let Tracked { flow, trace, .. } = tracked;
        let is_told = self.classes.is_told(flow.cookie);
        if !is_told {
            return Some(Err(Lack::of(Cause::TableFull, TABLE_IS_FULL)));
        }
        if let Some(served) = self.downloads.serves(flow.ifindex) {
            let served = served.map_err(|why| Lack::of(Cause::NoQueue, why));
            return Some(match trace.passes_by() {
                true => served.and(Err(Lack::of(Cause::PassesBy, PASSES_BY))),
                false => served,
            });
        }
        let device = self.classes.devices().get(&flow.ifindex);
        if let Some(tunnel) = device.filter(|device| device.is_tunnel()) {
            let how = self.links.how_to_manage(&tunnel.name);
            let why = format!("it arrives within {}, which is not managed ({how})", tunnel.shown());
            return Some(Err(Lack::of(Cause::NotManaged, why)));
        }
        if let Some(on) = trace.seen_on {
            let served = self.downloads.serves(on)?;
            return Some(served.map_err(|why| Lack::of(Cause::NoQueue, why)));
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

    pub(super) fn limits_view(&self, tracked: &Tracked) -> Option<LimitsView> {
        let limits = tracked.judged.verdict.limits;
        let rates = |number| self.classes.limit(number).map(|limit| limit.rates);
        let view = |rate: u64, asked, way: Way| LimitView {
            mbit: mbit(rate),
            enforcement: self.enforcement(asked, tracked, way),
        };
        let upload = limits.up.and_then(rates).and_then(|rates| rates.up);
        let download = limits.down.and_then(rates).and_then(|rates| rates.down);
        (upload.is_some() || download.is_some()).then(|| LimitsView {
            upload: limits
                .up
                .zip(upload)
                .map(|(number, rate)| view(rate, Asked::Upload(number), Way::Sent)),
            download: limits
                .down
                .zip(download)
                .map(|(number, rate)| view(rate, Asked::Download(number), Way::Received)),
        })
    }

    /// Of a class that is an order of packets, and that somebody asked for.
    pub(super) fn order_view(&self, tracked: &Tracked) -> Option<Enforcement> {
        let verdict = Verdict {
            limits: LimitNumbers::NONE,
            ..tracked.judged.verdict.clone()
        };
        Asked::of(&verdict).map(|asked| self.enforcement(asked, tracked, Way::Sent))
    }

    /// Of bulk and background.
    pub(super) fn download_order(&self, tracked: &Tracked) -> Option<DownloadOrder> {
        let (interface, order) = self.ordered_by(tracked)?;
        let rate = order.rate();
        Some(DownloadOrder {
            interface: interface.to_owned(),
            most_mbit: mbit(rate.most()),
            why: rate.shown(),
            passes_by: tracked.trace.passes_by(),
            rate_too_high: order.is_too_high(),
        })
    }

    /// By which link.
    pub(super) fn ordered_by(&self, tracked: &Tracked) -> Option<(&str, &Order)> {
        let gives_way = tracked.class > Class::Standard && tracked.judged.verdict.limits.down.is_none();
        let order = gives_way.then(|| self.downloads.orders(tracked.flow.ifindex)).flatten();
        order.filter(|_| !self.links.spares(tracked.flow.ifindex, tracked.flow.remote.ip()))
    }

    /// Says of these flows what has changed.
    pub(super) fn enforce(&mut self, now: Duration, cookies: &[Cookie]) {
        let ways = [Way::Sent, Way::Received];
        for (cookie, way) in cookies.iter().flat_map(|cookie| ways.map(|way| (cookie, way))) {
            let Some(tracked) = self.flows.get(*cookie) else {
                continue;
            };
            let key = Asked::of_way(&tracked.judged.verdict, way).map(|asked| (asked, tracked.flow.ifindex));
            let found = key.and_then(|(asked, _)| self.found_way(asked, tracked, way));
            let is_short = matches!(found, Some(Err(_)));
            let rule = tracked.judged.verdict.rule.clone();
            if let Some(tracked) = self.flows.get_mut(*cookie) {
                let since = tracked.trace.short_since[way as usize].filter(|_| is_short);
                tracked.trace.short_since[way as usize] = is_short.then_some(since.unwrap_or(now));
                let settles = match tracked.flow.protocol {
                    Protocol::Tcp => SHORT_FOR,
                    Protocol::Udp => Duration::ZERO,
                };
                if is_short && now.saturating_sub(since.unwrap_or(now)) < settles {
                    continue;
                }
            }
            let change = match (key, found) {
                // Nobody waits for what stays here.
                (Some((_, ifindex)), _) if self.is_loopback(ifindex) => None,
                (Some(key), Some(Err(why))) => {
                    let is_news = self.shortfalls.note(now, (*cookie, way), key, &rule, &why);
                    is_news
                        .then(|| self.shortfall_change(*cookie, key, Err(why.reason)))
                        .flatten()
                }
                (Some(_), Some(Ok(link))) => {
                    let was = self.shortfalls.of_flows.get(&(*cookie, way)).copied();
                    self.shortfalls.end_way(*cookie, way);
                    let is_over = |key: &Key| {
                        let shortfall = self.shortfalls.known.get(key);
                        shortfall.is_some_and(|shortfall| shortfall.flows.is_empty())
                    };
                    let over = was.filter(is_over);
                    if let Some(key) = over {
                        self.shortfalls.known.remove(&key);
                    }
                    over.and_then(|key| self.shortfall_change(*cookie, key, Ok(link)))
                }
                (Some(_), None) => None,
                (None, _) => {
                    self.shortfalls.end_way(*cookie, way);
                    None
                }
            };
            if let Some(change) = change {
                self.note(now, change);
            }
        }
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

    fn shortfall_change(&self, cookie: Cookie, (asked, ifindex): Key, now: Result<String, String>) -> Option<Change> {
        let tracked = self.flows.get(cookie)?;
        let (setting, shown) = self.shown(asked);
        let device = self.classes.devices().get(&ifindex);
        let subject = match (asked, device) {
            (Asked::Class(_), Some(device)) => Subject::Interface {
                name: device.name.clone(),
            },
            _ => Subject::Socket { cookie },
        };
        let (old, new, why) = match now {
            Ok(link) => {
                let how = match asked {
                    Asked::Upload(_) => "it leaves by",
                    Asked::Class(_) => "it is in the queue of",
                    Asked::Download(_) => "it arrives by",
                };
                (NOT_ENFORCED.to_owned(), shown, format!("{how} {link}"))
            }
            Err(reason) => (shown, NOT_ENFORCED.to_owned(), reason),
        };
        Some(Change {
            subject,
            name: name_of(&tracked.flow),
            setting,
            old: old.into(),
            new: new.into(),
            rule: tracked.judged.verdict.rule.clone(),
            why,
            made: true,
        })
    }

    pub(super) fn shortfall_views(&self) -> Vec<ShortfallView> {
        let known = self.shortfalls.known.iter();
        let known = known.filter(|(_, shortfall)| !shortfall.flows.is_empty());
        let view = |((asked, ifindex), shortfall): (&Key, &Shortfall)| {
            let (setting, shown) = self.shown(*asked);
            let device = self.classes.devices().get(ifindex);
            ShortfallView {
                what: format!("{setting} {shown}"),
                class: match *asked {
                    Asked::Class(class) => Some(class),
                    _ => None,
                },
                upload_limit_mbit: match *asked {
                    Asked::Upload(number) => self.rate_mbit(number, |rates| rates.up),
                    _ => None,
                },
                download_limit_mbit: match *asked {
                    Asked::Download(number) => self.rate_mbit(number, |rates| rates.down),
                    _ => None,
                },
                rule: shortfall.rule.clone(),
                interface: device.map(|device| device.name.clone()).unwrap_or_default(),
                flows: shortfall.flows.len(),
                reason: shortfall.why.reason.clone(),
                cause: shortfall.why.cause,
            }
        };
        known.map(view).collect()
    }

    pub(super) fn note_elsewhere(&mut self, now: Duration, elsewhere: Vec<Elsewhere>) {
        let (news, gone) = self.shortfalls.keep_elsewhere(now, elsewhere);
        for process in news {
            let change = Change {
                subject: Subject::Process { id: process.id },
                name: process.command,
                setting: Setting::Class,
                old: Value::from("chosen"),
                new: Value::from(NOT_ENFORCED),
                rule: "giveway exec".to_owned(),
                why: why_elsewhere(process.netns_inum),
                made: true,
            };
            self.note(now, change);
        }
        for id in gone {
            self.changes.ended(&Subject::Process { id });
        }
    }

    pub(super) fn elsewhere_views(&self) -> Vec<ElsewhereView> {
        let view = |process: &Elsewhere| ElsewhereView {
            pid: process.id.pid,
            command: process.command.clone(),
            netns_inum: process.netns_inum,
            reason: why_elsewhere(process.netns_inum),
        };
        self.shortfalls.elsewhere.values().map(view).collect()
    }
}

/// Whether it says that something that was asked for is not enforced.
pub fn is_shortfall(change: &Change) -> bool {
    change.new == Value::from(NOT_ENFORCED)
}

/// What was chosen for a command holds for what it sends from here.
fn why_elsewhere(netns_inum: u32) -> String {
    format!(
        "it is in another network namespace (net:[{netns_inum}]), whose traffic this giveway does not see: start giveway and \
         the command there"
    )
}

impl Network {
    /// Why what is about to be chosen for a command will not be enforced wherever the routes of this host lead, as far as
    /// that is known before it sends anything.
    pub fn shortfalls_of(&self, class: Option<Class>, rates: Rates) -> Vec<String> {
        let verdict = Verdict {
            class: class.unwrap_or_default(),
            by: By::Choice,
            limits: rates.numbered(0),
            ..Verdict::default()
        };
        if Asked::of(&verdict).is_none() && rates.down.is_none() {
            return Vec::new();
        }
        if let Some(why) = self.shortfall_of_all() {
            return vec![why.reason];
        }
        // A limit holds without a queue, too.
        let order = Asked::of(&Verdict {
            limits: LimitNumbers::NONE,
            ..verdict
        });
        let mut managed = match order.is_some() || self.links.is_none_managed() {
            true => self.links.shortfalls(),
            false => Vec::new(),
        };
        if rates.up.is_some() {
            managed.extend(self.uploads.hindrances());
        }
        if rates.down.is_some() {
            managed.extend(self.downloads.hindrances());
        }
        let others = self.unmanaged().into_iter().map(|device| {
            let how = self.links.how_to_manage(&device.name);
            format!("{} has routes and is not managed ({how})", device.shown())
        });
        managed.into_iter().chain(others).collect()
    }

    /// The links that order what is sent.
    pub fn enforcing(&self) -> Vec<String> {
        match self.shortfall_of_all() {
            Some(_) => Vec::new(),
            None => self.links.enforcing().map(str::to_owned).collect(),
        }
    }

    /// The links on which limits hold for what is sent.
    pub fn limiting_sent(&self) -> Vec<String> {
        self.uploads.limiting().map(str::to_owned).collect()
    }

    /// The links on which limits hold for what arrives.
    pub fn limiting_received(&self) -> Vec<String> {
        self.downloads.limiting().map(str::to_owned).collect()
    }

    /// The links on which bulk and background give way as they arrive.
    pub fn ordering_received(&self) -> Vec<String> {
        self.downloads.ordering().map(str::to_owned).collect()
    }

    /// Says once of each such device that deadlines are not promised there, where any are configured.
    pub(super) fn note_past_deadlines(&mut self, now: Duration) {
        if !self.shortfalls.has_deadlines || self.links.is_none_managed() {
            return;
        }
        let unmanaged = self.unmanaged().into_iter();
        let unmanaged: BTreeMap<String, String> =
            unmanaged.map(|device| (device.name.clone(), device.shown())).collect();
        let before = std::mem::replace(&mut self.shortfalls.past_deadlines, unmanaged.keys().cloned().collect());
        for (name, shown) in unmanaged.into_iter().filter(|(name, _)| !before.contains(name)) {
            let how = self.links.how_to_manage(&name);
            let why = format!("{shown} has routes and is not managed ({how})");
            let change = Change {
                subject: Subject::Interface { name },
                name: String::new(),
                setting: Setting::Deadlines,
                old: Value::from("promised"),
                new: Value::from(NOT_ENFORCED),
                rule: "[[deadline]]".to_owned(),
                why,
                made: true,
            };
            self.note(now, change);
        }
    }

    /// Devices that routes of this host lead to, and that are not managed.
    pub fn unmanaged(&self) -> Vec<&Device> {
        let is_managed = |ifindex: &u32| self.links.serves(*ifindex).is_some();
        let devices = self.classes.devices().iter();
        let others = devices.filter(|(ifindex, device)| device.is_routed && !is_managed(ifindex));
        others.map(|(_, device)| device).collect()
    }

    /// What makes a device of this name managed, beside those that are.
    pub fn how_to_manage(&self, name: &str) -> String {
        self.links.how_to_manage(name)
    }

    /// Managed links whose packets leave once more by another one.
    pub fn managed_tunnels(&self) -> Vec<&Device> {
        let devices = self.classes.devices().iter();
        let managed = devices.filter(|(ifindex, device)| device.is_tunnel() && self.links.serves(**ifindex).is_some());
        managed.map(|(_, device)| device).collect()
    }
}
