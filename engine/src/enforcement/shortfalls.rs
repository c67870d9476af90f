// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that are not enforced, by device: one change when that begins, and one when it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Asked, Cause, Lack, NOT_ENFORCED, Overview, REMEMBERED};
use crate::change::{Change, Subject};
use crate::downlink::Way;
use crate::model::{Class, Cookie, Protocol};
use crate::sockets::flows::Flows;

/// A queue may be about to be installed.
const SHORT_FOR: Duration = Duration::from_millis(300);
/// The most limits and classes on devices that are reported.
const MOST_SHORTFALLS: usize = 256;

/// A request that is not enforced on a device, for `status`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, JsonSchema)]
pub struct ShortfallView {
    /// Such as `rate limit 2 Mbit/s` or `class background`.
    pub what: String,
    /// The same for programs: one of these.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub class: Option<Class>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub upload_limit_mbit: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub download_limit_mbit: Option<f64>,
    /// Its source.
    pub rule: String,
    /// Empty without a route.
    pub interface: String,
    pub flows: usize,
    pub reason: String,
    /// The same for programs.
    #[serde(default)]
    pub cause: Cause,
}

type AskedOn = (Asked, u32);

#[derive(Debug, Default)]
pub struct Shortfalls {
    known: BTreeMap<AskedOn, Shortfall>,
    of_flows: BTreeMap<(Cookie, Way), AskedOn>,
}

#[derive(Debug)]
struct Shortfall {
    flows: BTreeSet<Cookie>,
    rule: String,
    reason: Lack,
    /// Since when there is no such flow.
    empty: Option<Duration>,
}

/// The state of one direction of a flow.
#[derive(Debug)]
pub struct WayEnforcement {
    cookie: Cookie,
    way: Way,
    key: Option<AskedOn>,
    /// None: unknown yet.
    enforced: Option<Result<String, Lack>>,
    rule: String,
}

impl Shortfalls {
    /// The flow has ended.
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

    /// Whether it is new.
    fn note(&mut self, now: Duration, (cookie, way): (Cookie, Way), key: AskedOn, rule: &str, reason: &Lack) -> bool {
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
                reason: Lack::default(),
                empty: None,
            }
        });
        reason.clone_into(&mut shortfall.reason);
        shortfall.flows.insert(cookie);
        self.of_flows.insert((cookie, way), key);
        is_news
    }

    /// Takes in these states. Returns the changes.
    pub fn follow(&mut self, now: Duration, found: Vec<WayEnforcement>, overview: Overview<'_>) -> Vec<Change> {
        let mut changes = Vec::new();
        for WayEnforcement {
            cookie,
            way,
            key,
            enforced,
            rule,
        } in found
        {
            let change = match (key, enforced) {
                // Loopback traffic is not reported.
                (Some((_, ifindex)), _) if overview.is_loopback(ifindex) => None,
                (Some(key), Some(Err(reason))) => {
                    let is_news = self.note(now, (cookie, way), key, &rule, &reason);
                    is_news
                        .then(|| overview.shortfall_change(cookie, key, Err(reason.reason)))
                        .flatten()
                }
                (Some(_), Some(Ok(link))) => {
                    let was = self.of_flows.get(&(cookie, way)).copied();
                    self.end_way(cookie, way);
                    let is_over = |key: &AskedOn| {
                        let shortfall = self.known.get(key);
                        shortfall.is_some_and(|shortfall| shortfall.flows.is_empty())
                    };
                    let over = was.filter(is_over);
                    if let Some(key) = over {
                        self.known.remove(&key);
                    }
                    over.and_then(|key| overview.shortfall_change(cookie, key, Ok(link)))
                }
                (Some(_), None) => None,
                (None, _) => {
                    self.end_way(cookie, way);
                    None
                }
            };
            changes.extend(change);
        }
        changes
    }

    /// Those with flows now.
    pub fn views(&self, overview: Overview<'_>) -> Vec<ShortfallView> {
        let known = self.known.iter();
        let known = known.filter(|(_, shortfall)| !shortfall.flows.is_empty());
        let view = |((asked, ifindex), shortfall): (&AskedOn, &Shortfall)| {
            let (setting, shown) = overview.shown(*asked);
            let device = overview.classes.devices().get(ifindex);
            ShortfallView {
                what: format!("{setting} {shown}"),
                class: match *asked {
                    Asked::Class(class) => Some(class),
                    _ => None,
                },
                upload_limit_mbit: match *asked {
                    Asked::Upload(number) => overview.rate_mbit(number, |rates| rates.up),
                    _ => None,
                },
                download_limit_mbit: match *asked {
                    Asked::Download(number) => overview.rate_mbit(number, |rates| rates.down),
                    _ => None,
                },
                rule: shortfall.rule.clone(),
                interface: device.map(|device| device.name.clone()).unwrap_or_default(),
                flows: shortfall.flows.len(),
                reason: shortfall.reason.reason.clone(),
                cause: shortfall.reason.cause,
            }
        };
        known.map(view).collect()
    }
}

impl Overview<'_> {
    /// Each direction of these flows; undecided ones are left out.
    pub fn found_of(self, cookies: &[Cookie]) -> Vec<WayEnforcement> {
        let ways = cookies
            .iter()
            .flat_map(|cookie| [Way::Sent, Way::Received].map(|way| (*cookie, way)));
        let found = |(cookie, way): (Cookie, Way)| {
            let tracked = self.flows.get(cookie)?;
            let key = Asked::of_way(&tracked.judged.verdict, way).map(|asked| (asked, tracked.flow.ifindex));
            Some(WayEnforcement {
                cookie,
                way,
                key,
                enforced: key.and_then(|(asked, _)| self.found_way(asked, tracked, way)),
                rule: tracked.judged.verdict.rule.clone(),
            })
        };
        ways.filter_map(found).collect()
    }

    fn shortfall_change(
        &self,
        cookie: Cookie,
        (asked, ifindex): AskedOn,
        now: Result<String, String>,
    ) -> Option<Change> {
        let tracked = self.flows.get(cookie)?;
        let (setting, shown) = self.shown(asked);
        let device = self.classes.devices().get(&ifindex);
        let subject = match (asked, device) {
            (Asked::Class(_), Some(device)) => Subject::Interface {
                name: device.name.clone(),
            },
            _ => Subject::Socket { cookie },
        };
        let (old, new, reason) = match now {
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
            name: tracked.flow.shown(),
            setting,
            old: old.into(),
            new: new.into(),
            rule: tracked.judged.verdict.rule.clone(),
            reason,
            made: true,
        })
    }
}

/// Leaves out those that are not enforced only for a short time.
pub fn settled(now: Duration, flows: &mut Flows, mut found: Vec<WayEnforcement>) -> Vec<WayEnforcement> {
    found.retain(|one| {
        let is_short = matches!(one.enforced, Some(Err(_)));
        let Some(tracked) = flows.get_mut(one.cookie) else {
            return true;
        };
        let since = tracked.trace.short_since[one.way as usize].filter(|_| is_short);
        tracked.trace.short_since[one.way as usize] = is_short.then_some(since.unwrap_or(now));
        let settles = match tracked.flow.protocol {
            Protocol::Tcp => SHORT_FOR,
            Protocol::Udp => Duration::ZERO,
        };
        !is_short || now.saturating_sub(since.unwrap_or(now)) >= settles
    });
    found
}
