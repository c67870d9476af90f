// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All managed links, each with its own queue. Input: the links' present state, those to manage in the order of
//! preference. Output: the request for each, and changes without a request. Never lets one link wait for another: a
//! failure is retried on its link alone.
//!
//! A removed link takes its queue along. A link that is no longer to be managed (its default route has moved) keeps its
//! queue for a while, since routes come back. A flapping link waits before it gets its next queue.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::contest::Contest;
use super::measured::Socket;
use super::traffic::QueueCounters;
use super::{Backends, Plan, Queue, QueueRequest, QueueView, Uplink};
use crate::back_off::BackOff;
use crate::change::Change;
use crate::class::PacketRule;
use crate::config::{Config, LinkSection, LocalTraffic, MOST_LINKS, RateMbit, UplinkSection};
use crate::downlink::DownloadRate;
use crate::model::{Class, Dscp, Flow, Prefix, Protocol};

/// How long a link keeps its queue after it is no longer to be managed.
const LINGERS: Duration = Duration::from_secs(10);
/// A link that was present for less is flapping.
const STEADY: Duration = Duration::from_secs(10);
/// The source of a rate that was set at run time.
const BY_HAND: &str = "giveway link set";
/// How many link names and interface numbers are remembered.
const REMEMBERED: usize = 64;

/// A link's rate and its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    pub mbit: Option<RateMbit>,
    /// The download rate.
    pub download_mbit: Option<f64>,
    pub overhead_bytes: Option<u32>,
    pub driver_bytes: Option<u32>,
    /// Local traffic is not counted.
    pub spares_local: bool,
    pub configured_in: &'static str,
    pub download_configured_in: &'static str,
}

impl Default for Rate {
    fn default() -> Self {
        Self {
            mbit: None,
            download_mbit: None,
            overhead_bytes: None,
            driver_bytes: None,
            spares_local: false,
            configured_in: "[link]",
            download_configured_in: "[link]",
        }
    }
}

/// Set for a link at run time, overriding the configuration.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize, JsonSchema)]
pub struct LinkRates {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<RateMbit>,
    /// Mbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<f64>,
}

impl LinkRates {
    /// # Errors
    /// Where no link may have such a rate.
    pub fn check(self) -> Result<(), String> {
        let up = match self.up {
            Some(RateMbit::Fixed(mbit)) => Some(mbit),
            Some(RateMbit::Estimated) | None => None,
        };
        let rates = up.into_iter().chain(self.down);
        rates.map(crate::rate::bytes_per_s).try_for_each(|rate| rate.map(drop))
    }
}

/// A link and its queue, for `status`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
pub struct LinkView {
    pub interface: String,
    pub ifindex: u32,
    #[serde(flatten)]
    pub queue: QueueView,
    /// Its rate and the source; None: not set.
    #[serde(default)]
    pub rate_mbit: Option<RateMbit>,
    #[serde(default)]
    pub rate_configured_in: Option<String>,
    /// The same for downloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download_rate_mbit: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download_rate_configured_in: Option<String>,
}

/// A request about one link's queue.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkRequest {
    pub ifindex: u32,
    pub name: String,
    pub request: QueueRequest,
}

/// The requests, and changes without one.
pub type Outcome = (Vec<Change>, Vec<LinkRequest>);

pub struct Links {
    link: LinkSection,
    own: Vec<UplinkSection>,
    /// By link name, overriding the configuration.
    by_hand: BTreeMap<String, LinkRates>,
    /// The initial state of a new link.
    blank: Queue,
    /// `[link]` sets the rate of this one: the preferred link, as far as is known.
    first: Option<u32>,
    links: BTreeMap<u32, ManagedLink>,
    order: Vec<u32>,
    /// Conflicts over the root qdiscs of links that were removed since, with their carrier losses then.
    contests: BTreeMap<u32, (Contest, u32)>,
    /// Flapping links, by name.
    unsteady: BTreeMap<String, BackOff>,
    /// The local subnets of links whose rates exclude local traffic.
    subnets: BTreeMap<u32, Vec<Prefix>>,
}

struct ManagedLink {
    queue: Queue,
    name: String,
    came: Duration,
    /// When it was no longer to be managed.
    left: Option<Duration>,
    /// It was flapping: it gets its queue then.
    waits: Option<(Duration, Uplink)>,
}

impl Links {
    pub fn new(config: &Config, backends: Backends) -> Self {
        Self {
            link: config.link.clone(),
            own: config.uplink.clone(),
            by_hand: BTreeMap::new(),
            blank: Queue::new(config, backends),
            first: None,
            links: BTreeMap::new(),
            order: Vec::new(),
            contests: BTreeMap::new(),
            unsteady: BTreeMap::new(),
            subnets: BTreeMap::new(),
        }
    }

    pub fn dry_run(&self) -> bool {
        self.blank.dry_run()
    }

    /// Takes in the links, those to manage in the order of preference; `first` has the group's cap.
    pub fn observe(&mut self, now: Duration, uplinks: Vec<Uplink>, first: Option<u32>) -> Outcome {
        self.first = first.or(self.first);
        self.order = uplinks.iter().map(|uplink| uplink.ifindex).collect();
        let (changes, mut actions) = self.forget_gone(now);
        let order = &self.order;
        self.contests.retain(|ifindex, _| order.contains(ifindex));
        for uplink in uplinks.iter().filter(|uplink| !uplink.up) {
            self.contests.remove(&uplink.ifindex);
            if let Some(link) = self.links.get_mut(&uplink.ifindex) {
                link.queue.contest = Contest::default();
            }
        }
        let (chosen, left): (Vec<_>, Vec<_>) = uplinks.into_iter().partition(|uplink| uplink.chosen);
        let new = chosen.iter().filter(|uplink| !self.links.contains_key(&uplink.ifindex));
        let mut too_many = (self.links.len() + new.count()).saturating_sub(MOST_LINKS);
        for uplink in left {
            let rate = self.rate(&uplink);
            let Some(link) = self.links.get_mut(&uplink.ifindex) else {
                self.contests
                    .retain(|ifindex, _| *ifindex != uplink.ifindex || uplink.up);
                continue;
            };
            let left = *link.left.get_or_insert(now);
            let request = if too_many > 0 || now.saturating_sub(left) >= LINGERS || link.queue.is_gone() {
                too_many = too_many.saturating_sub(1);
                link.queue.leave()
            } else {
                link.queue.observe(now, Some(uplink.clone()), rate)
            };
            actions.extend(request.map(|request| ask(uplink.ifindex, &uplink.name, request)));
            self.forget_left(uplink.ifindex);
        }
        for uplink in chosen {
            actions.extend(self.manage(now, uplink));
        }
        (changes, actions)
    }

    fn manage(&mut self, now: Duration, uplink: Uplink) -> Option<LinkRequest> {
        let (ifindex, name) = (uplink.ifindex, uplink.name.clone());
        let rate = self.rate(&uplink);
        let stays = self.links.values().filter(|link| !link.queue.leaves).count();
        if !self.links.contains_key(&ifindex) {
            if stays >= MOST_LINKS {
                return None;
            }
            let link = self.begin(now, &uplink);
            self.links.insert(ifindex, link);
        }
        let link = self.links.get_mut(&ifindex)?;
        (link.left, link.name) = (None, name.clone());
        if let Some((_, waiting)) = link.waits.as_mut().filter(|(until, _)| *until > now) {
            *waiting = uplink;
            return None;
        }
        link.waits = None;
        let request = link.queue.observe(now, Some(uplink), rate);
        request.map(|request| ask(ifindex, &name, request))
    }

    fn begin(&mut self, now: Duration, uplink: &Uplink) -> ManagedLink {
        let mut queue = self.blank.clone();
        if let Some((contest, losses)) = self.contests.remove(&uplink.ifindex)
            && losses == uplink.carrier_losses
        {
            queue.contest = contest;
        }
        let until = self.unsteady.get(&uplink.name).and_then(BackOff::next);
        let until = until.filter(|until| *until > now);
        if until.is_some() {
            queue.view.reason = format!("{} is flapping; each new queue waits longer", uplink.name);
        }
        ManagedLink {
            queue,
            name: uplink.name.clone(),
            came: now,
            left: None,
            waits: until.map(|until| (until, uplink.clone())),
        }
    }

    fn forget_gone(&mut self, now: Duration) -> Outcome {
        let (mut changes, mut actions) = Outcome::default();
        let order = &self.order;
        for (ifindex, mut link) in self.links.extract_if(.., |ifindex, _| !order.contains(ifindex)) {
            if now.saturating_sub(link.came) < STEADY {
                if self.unsteady.len() >= REMEMBERED {
                    self.unsteady.pop_first();
                }
                self.unsteady.entry(link.name.clone()).or_default().failed(now);
            } else {
                self.unsteady.remove(&link.name);
            }
            if let Some(change) = link.queue.vanish() {
                changes.push(change);
                actions.push(ask(ifindex, &link.name, QueueRequest::Set(None)));
            }
        }
        (changes, actions)
    }

    /// It is no longer managed, and giveway's queue is removed.
    fn forget_left(&mut self, ifindex: u32) {
        let has_left = |link: &ManagedLink| link.queue.leaves && link.queue.is_gone();
        if !self.links.get(&ifindex).is_some_and(has_left) {
            return;
        }
        let Some(ManagedLink { queue, .. }) = self.links.remove(&ifindex) else {
            return;
        };
        if let (true, Some(uplink)) = (queue.contest.began, queue.uplink) {
            if self.contests.len() >= REMEMBERED {
                self.contests.pop_first();
            }
            self.contests.insert(ifindex, (queue.contest, uplink.carrier_losses));
        }
    }

    /// The links whose queue another tool has removed, managed or not: their root qdisc has to be inspected.
    pub fn contested(&self) -> impl Iterator<Item = u32> {
        let present = self.links.iter().filter(|(_, link)| link.queue.contest.began);
        present
            .map(|(ifindex, _)| *ifindex)
            .chain(self.contests.keys().copied())
    }

    /// The precedence of rates: set at run time (`link set`), then its `[[uplink]]`, then `[link]`, which applies to
    /// the first link alone. ([`Queue::rate`] applies it.)
    fn rate(&self, uplink: &Uplink) -> Rate {
        let all = &self.link;
        let own = self.own.iter().find(|own| own.interface.as_ref() == Some(&uplink.name));
        let is_first = self.first.is_none_or(|first| first == uplink.ifindex);
        let configured = Rate {
            mbit: match own {
                Some(own) => own.rate_mbit,
                None => all.rate_mbit.filter(|_| is_first),
            },
            download_mbit: match own {
                Some(own) => own.download_rate_mbit,
                None => all.download_rate_mbit.filter(|_| is_first),
            },
            overhead_bytes: own.and_then(|own| own.overhead_bytes).or(all.overhead_bytes),
            driver_bytes: own.and_then(|own| own.driver_bytes).or(all.driver_bytes),
            spares_local: own.and_then(|own| own.local).unwrap_or(all.local) == LocalTraffic::Unlimited,
            configured_in: match own.is_some() || !is_first {
                true => "[[uplink]]",
                false => "[link]",
            },
            download_configured_in: "",
        };
        let by_hand = self.by_hand.get(&uplink.name).copied().unwrap_or_default();
        Rate {
            mbit: by_hand.up.or(configured.mbit),
            download_mbit: by_hand.down.or(configured.download_mbit),
            download_configured_in: if by_hand.down.is_some() {
                BY_HAND
            } else {
                configured.configured_in
            },
            configured_in: if by_hand.up.is_some() {
                BY_HAND
            } else {
                configured.configured_in
            },
            ..configured
        }
    }

    /// The links with a known download rate.
    pub fn download_rates(&self) -> Vec<DownloadRate> {
        let managed = self.links.iter().filter(|(_, link)| link.left.is_none());
        managed
            .filter_map(|(ifindex, link)| {
                let rate = &link.queue.rate;
                Some(DownloadRate {
                    ifindex: *ifindex,
                    mbit: rate.download_mbit?,
                    configured_in: rate.download_configured_in,
                })
            })
            .collect()
    }

    /// Sets the rates of these links at run time, overriding the configuration (`giveway link set`).
    pub fn set_rates(&mut self, now: Duration, by_hand: BTreeMap<String, LinkRates>) -> Vec<LinkRequest> {
        self.by_hand = by_hand;
        let known = self.links.iter();
        let known: Vec<(u32, Uplink)> = known
            .filter(|(_, link)| link.left.is_none() && link.waits.is_none())
            .filter_map(|(ifindex, link)| Some((*ifindex, link.queue.uplink.clone()?)))
            .collect();
        let mut actions = Vec::new();
        for (ifindex, uplink) in known {
            let rate = self.rate(&uplink);
            let Some(link) = self.links.get_mut(&ifindex) else {
                continue;
            };
            let request = link.queue.observe(now, Some(uplink), rate);
            actions.extend(request.map(|request| ask(ifindex, &link.name, request)));
        }
        actions
    }

    /// Takes in the rules.
    pub fn follow(&mut self, is_limited: bool, packet_rules: &[PacketRule]) -> Vec<LinkRequest> {
        self.blank.follow(is_limited, packet_rules.to_vec());
        let all = self.links.iter_mut().filter_map(|(ifindex, link)| {
            let request = link.queue.follow(is_limited, packet_rules.to_vec())?;
            Some(ask(*ifindex, &link.name, request))
        });
        all.collect()
    }

    /// Removes everything of giveway's from all links for this reason; None resumes.
    pub fn pause(&mut self, reason: Option<&String>) -> Vec<LinkRequest> {
        self.blank.pause(reason);
        let all = self.links.iter_mut().filter_map(|(ifindex, link)| {
            let request = link.queue.pause(reason)?;
            Some(ask(*ifindex, &link.name, request))
        });
        all.collect()
    }

    /// When [`Self::try_again`] is next worth calling.
    pub fn next_try(&self) -> Option<Duration> {
        let of = |link: &ManagedLink| {
            let left = link.left.filter(|_| !link.queue.leaves).map(|left| left + LINGERS);
            let waits = link.waits.as_ref().map(|(until, _)| *until);
            [left, waits, link.queue.next_try()].into_iter().flatten().min()
        };
        self.links.values().filter_map(of).min()
    }

    /// The requests that are due.
    pub fn try_again(&mut self, now: Duration) -> Vec<LinkRequest> {
        let mut actions = Vec::new();
        let due: Vec<u32> = self.links.keys().copied().collect();
        for ifindex in due {
            let Some(link) = self.links.get_mut(&ifindex) else {
                continue;
            };
            if let Some((_, uplink)) = link.waits.take_if(|(until, _)| *until <= now) {
                actions.extend(self.manage(now, uplink));
                continue;
            }
            let is_over = |left: Duration| now.saturating_sub(left) >= LINGERS;
            let request = match link.left {
                Some(left) if is_over(left) && !link.queue.leaves => link.queue.leave(),
                _ => link.queue.try_again(now),
            };
            actions.extend(request.map(|request| ask(ifindex, &link.name, request)));
            self.forget_left(ifindex);
        }
        actions
    }

    /// Takes in the outcome of the last request for this link. Returns the change, and the next request.
    pub fn conclude(
        &mut self,
        now: Duration,
        ifindex: u32,
        outcome: Result<(), String>,
    ) -> (Option<Change>, Option<LinkRequest>) {
        // The link was removed meanwhile.
        let Some(link) = self.links.get_mut(&ifindex) else {
            return (None, None);
        };
        let (change, next) = link.queue.conclude(now, outcome);
        let next = next.map(|request| ask(ifindex, &link.name, request));
        self.forget_left(ifindex);
        (change, next)
    }

    /// Takes in the counters. Returns the next requests.
    pub fn count(&mut self, now: Duration, mut counted: BTreeMap<u32, QueueCounters>) -> Vec<LinkRequest> {
        let all = self.links.iter_mut().filter_map(|(ifindex, link)| {
            let request = link.queue.count(now, counted.remove(ifindex))?;
            Some(ask(*ifindex, &link.name, request))
        });
        all.collect()
    }

    /// Packets that need an order were sent on these links, with this backlog. Returns the next requests.
    pub fn demand(&mut self, now: Duration, on: &BTreeMap<u32, u32>) -> Vec<LinkRequest> {
        let all = self.links.iter_mut().filter_map(|(ifindex, link)| {
            let request = link.queue.demand(now, *on.get(ifindex)?)?;
            Some(ask(*ifindex, &link.name, request))
        });
        all.collect()
    }

    /// The links that get a queue once traffic needs one.
    pub fn without_queue(&self) -> Vec<u32> {
        let links = self.links.iter().filter(|(_, link)| link.queue.is_without());
        links.map(|(ifindex, _)| *ifindex).collect()
    }

    /// Takes in the sockets of a poll. Returns the next requests.
    pub fn measure(&mut self, now: Duration, flows: &[Flow]) -> Vec<LinkRequest> {
        let measured = self.links.iter_mut().filter(|(_, link)| link.queue.is_measured());
        let measured = measured.filter_map(|(ifindex, link)| {
            let own = flows
                .iter()
                .filter(|flow| flow.ifindex == *ifindex && flow.protocol == Protocol::Tcp);
            let sockets: Vec<Socket> = own.map(Socket::from).collect();
            let request = link.queue.measure(now, &sockets)?;
            Some(ask(*ifindex, &link.name, request))
        });
        measured.collect()
    }

    pub fn counters(&self, ifindex: u32) -> Option<&QueueCounters> {
        self.links.get(&ifindex)?.queue.counters()
    }

    /// The mark for packets of this class on this interface.
    pub fn mark(&self, ifindex: u32, class: Class) -> Option<Dscp> {
        self.links.get(&ifindex)?.queue.mark(class)
    }

    /// The link whose queue serves this interface, or why none does. None: not managed.
    pub fn serves(&self, ifindex: u32) -> Option<Result<String, String>> {
        let link = self.links.get(&ifindex)?;
        let reason = || format!("{} has no giveway queue: {}", link.name, link.queue.view.reason);
        Some(link.queue.standing().map(|_| link.name.clone()).ok_or_else(reason))
    }

    /// The local subnets of links whose rates exclude local traffic; complete.
    pub fn follow_subnets(&mut self, subnets: BTreeMap<u32, Vec<Prefix>>) {
        self.subnets = subnets;
    }

    /// Whether packets to this address bypass the link's queue.
    pub fn spares(&self, ifindex: u32, to: IpAddr) -> bool {
        let subnets = self.subnets.get(&ifindex).into_iter().flatten();
        subnets.into_iter().any(|subnet| subnet.contains(to))
    }

    /// Those with a queue, in the order of preference.
    pub fn enforcing(&self) -> impl Iterator<Item = &str> {
        let links = self.order.iter().filter_map(|ifindex| self.links.get(ifindex));
        links
            .filter(|link| link.queue.standing().is_some())
            .map(|link| link.name.as_str())
    }

    pub fn is_none_managed(&self) -> bool {
        self.links.is_empty()
    }

    /// How to manage this one too: `interfaces` names all managed links, so the present ones are included.
    pub fn how_to_manage(&self, name: &str) -> String {
        let present = self.order.iter().filter_map(|ifindex| self.links.get(ifindex));
        let all = present.map(|link| link.name.as_str()).chain([name]);
        let all: Vec<String> = all.map(|name| format!("\"{name}\"")).collect();
        format!("set `interfaces = [{}]`", all.join(", "))
    }

    /// Why managed links have no queue, except those that get one once traffic needs it.
    pub fn shortfalls(&self) -> Vec<String> {
        if self.links.is_empty() {
            return vec!["no interface is managed".to_owned()];
        }
        let lacking = self.links.iter().filter(|(_, link)| !link.queue.is_without());
        lacking
            .filter_map(|(ifindex, _)| self.serves(*ifindex)?.err())
            .collect()
    }

    /// In the order of preference.
    pub fn views(&self, now: Duration) -> Vec<LinkView> {
        let view = |ifindex: &u32| {
            let link = self.links.get(ifindex)?;
            let rate = link
                .queue
                .uplink
                .as_ref()
                .map(|uplink| self.rate(uplink))
                .unwrap_or_default();
            Some(LinkView {
                interface: link.name.clone(),
                ifindex: *ifindex,
                queue: link.queue.view(now),
                rate_mbit: rate.mbit,
                rate_configured_in: rate.mbit.map(|_| rate.configured_in.to_owned()),
                download_rate_mbit: rate.download_mbit,
                download_rate_configured_in: rate.download_mbit.map(|_| rate.download_configured_in.to_owned()),
            })
        };
        self.order.iter().filter_map(view).collect()
    }

    /// The installed queues, by interface.
    pub fn installed(&self) -> impl Iterator<Item = &Plan> {
        self.links.values().filter_map(|link| link.queue.standing())
    }
}

fn ask(ifindex: u32, name: &str, request: QueueRequest) -> LinkRequest {
    LinkRequest {
        ifindex,
        name: name.to_owned(),
        request,
    }
}

#[cfg(test)]
mod tests;
