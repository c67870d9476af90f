// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each limit allows, and what its flows have of it, for `status`; so, too, what bulk and background may have of what a link
//! receives, where that is ordered.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Network;
use super::flows::Tracked;
use crate::class::{Class, Limit, LimitNumber, LimitNumbers, RateLimit};
use crate::downlink::{DownlinkView, OrderView, Passed};
use crate::rate::mbit;

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitedBy {
    Rule,
    /// `giveway exec`.
    Command,
    /// `giveway limit set`.
    Hand,
    /// The rate of what a link receives: what bulk or background may have of it now.
    Order,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LimitUse {
    pub limited_by: LimitedBy,
    /// Whose it is, for people.
    pub of: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub upload: Option<WayUse>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub download: Option<WayUse>,
}

/// The same in one direction.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct WayUse {
    pub limit_mbit: f64,
    pub flows: usize,
    /// Payload that these had over TCP in the last second.
    pub tcp_mbit: f64,
    /// What its queue has counted, where it holds on any link.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queue: Option<Passed>,
}

impl LimitUse {
    /// In each direction that has one.
    pub fn ways(&self) -> impl Iterator<Item = (&'static str, &WayUse)> {
        let upload = self.upload.as_ref().map(|way| ("upload", way));
        let download = self.download.as_ref().map(|way| ("download", way));
        upload.into_iter().chain(download)
    }
}

/// One of both directions.
struct Way {
    number: fn(LimitNumbers) -> Option<LimitNumber>,
    mbit: fn(&Tracked, Duration) -> f64,
}

const UP: Way = Way {
    number: |limits| limits.up,
    mbit: |tracked, now| tracked.goodput.rates(now).sent_mbit,
};
const DOWN: Way = Way {
    number: |limits| limits.down,
    mbit: |tracked, now| tracked.goodput.rates(now).received_mbit,
};

impl Network {
    pub fn limits_in_use(&self, now: Duration, downloads: &DownlinkView, uploads: &DownlinkView) -> Vec<LimitUse> {
        let passed = |view: &DownlinkView| -> BTreeMap<LimitNumber, Passed> {
            let of_links = view.limits.iter().filter(|_| !view.links.is_empty());
            of_links.map(|limit| (limit.number, limit.passed)).collect()
        };
        let [passed_up, passed_down] = [uploads, downloads].map(passed);
        let [held_up, held_down] = [&UP, &DOWN].map(|way| self.held_by_all(now, way));
        let way_use = |limit: RateLimit, held: &BTreeMap<_, (usize, f64)>, passed: &BTreeMap<_, Passed>| {
            let (flows, tcp_mbit) = held.get(&limit.number).copied().unwrap_or_default();
            WayUse {
                limit_mbit: mbit(limit.bytes_per_s),
                flows,
                tcp_mbit,
                queue: passed.get(&limit.number).copied(),
            }
        };
        let in_use = |limit: Limit| {
            let (limited_by, of) = self.holder_of_limit(limit.number);
            LimitUse {
                limited_by,
                of,
                upload: limit.up().map(|limit| way_use(limit, &held_up, &passed_up)),
                download: limit.down().map(|limit| way_use(limit, &held_down, &passed_down)),
            }
        };
        let limits = self.classes.limits().into_iter().map(in_use);
        limits.chain(self.orders_in_use(now, downloads)).collect()
    }

    fn orders_in_use(&self, now: Duration, downloads: &DownlinkView) -> impl Iterator<Item = LimitUse> {
        let of_link = move |order: &OrderView| {
            [(Class::Bulk, order.bulk), (Class::Background, order.background)].map(|(class, passed)| {
                let is_held = |tracked: &&Tracked| {
                    let order_of_it = (tracked.class == class).then(|| self.ordered_by(tracked)).flatten();
                    order_of_it.is_some_and(|(interface, _)| interface == order.interface)
                };
                let (flows, tcp_mbit) = used(now, &DOWN, self.flows.iter().filter(is_held));
                LimitUse {
                    limited_by: LimitedBy::Order,
                    of: format!("{} by {}", class.name(), order.interface),
                    upload: None,
                    download: Some(WayUse {
                        limit_mbit: order.available_mbit,
                        flows,
                        tcp_mbit,
                        queue: Some(passed),
                    }),
                }
            })
        };
        downloads.orders.iter().flat_map(of_link)
    }

    /// Mbit/s that its flows send and receive over TCP.
    pub fn tcp_of_limit(&self, now: Duration, number: LimitNumber) -> [f64; 2] {
        [&UP, &DOWN].map(|way| self.held_by(now, number, way).1)
    }

    /// How many flows have each limit, and what they have of it.
    fn held_by_all(&self, now: Duration, way: &Way) -> BTreeMap<LimitNumber, (usize, f64)> {
        let mut all = BTreeMap::new();
        for tracked in self.flows.iter() {
            if let Some(number) = (way.number)(tracked.judged.verdict.limits) {
                let (flows, mbit): &mut (usize, f64) = all.entry(number).or_default();
                *flows += 1;
                *mbit += (way.mbit)(tracked, now);
            }
        }
        all
    }

    /// How many flows have this limit, and what they have of it.
    fn held_by(&self, now: Duration, number: LimitNumber, way: &Way) -> (usize, f64) {
        let is_held = |tracked: &&Tracked| (way.number)(tracked.judged.verdict.limits) == Some(number);
        used(now, way, self.flows.iter().filter(is_held))
    }

    fn holder_of_limit(&self, number: LimitNumber) -> (LimitedBy, String) {
        if let Some(place) = self.classes.rule_of_limit(number) {
            return (LimitedBy::Rule, format!("rule {place}"));
        }
        match self.classes.target_of_limit(number) {
            Some(target) => (LimitedBy::Hand, target.shown()),
            None => (LimitedBy::Command, "a command of `giveway exec`".to_owned()),
        }
    }
}

/// How many there are, and what they have together.
fn used<'a>(now: Duration, way: &Way, flows: impl Iterator<Item = &'a Tracked>) -> (usize, f64) {
    flows.fold((0, 0.0), |(flows, mbit), tracked| {
        (flows + 1, mbit + (way.mbit)(tracked, now))
    })
}
