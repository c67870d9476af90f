// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The use of each limit, for `status`; likewise the rate of bulk and background downloads on a link that orders them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Overview;
use crate::downlink::{DownlinkView, OrderView, Passing};
use crate::model::{Class, Limit, LimitNumber, LimitNumbers, RateLimit};
use crate::rate::mbit;
use crate::sockets::flows::Tracked;

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitedBy {
    Rule,
    /// `giveway exec`.
    Command,
    /// `giveway limit set`.
    Hand,
    /// The download rate of a link: the present rate of bulk or background.
    Order,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct LimitUse {
    pub limited_by: LimitedBy,
    /// Its source, for people.
    pub of: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub upload: Option<WayUse>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub download: Option<WayUse>,
}

/// The same in one direction.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct WayUse {
    pub limit_mbit: f64,
    pub flows: usize,
    /// What its queue has sent, where any link enforces it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queue: Option<Passing>,
}

impl LimitUse {
    /// The directions with a limit.
    pub fn ways(&self) -> impl Iterator<Item = (&'static str, &WayUse)> {
        let upload = self.upload.as_ref().map(|way| ("upload", way));
        let download = self.download.as_ref().map(|way| ("download", way));
        upload.into_iter().chain(download)
    }
}

type Number = fn(LimitNumbers) -> Option<LimitNumber>;

impl Overview<'_> {
    pub fn limits_in_use(&self, downloads: &DownlinkView, uploads: &DownlinkView) -> Vec<LimitUse> {
        let up = (self.held(|limits| limits.up), passing(uploads));
        let down = (self.held(|limits| limits.down), passing(downloads));
        let way_use = |limit: RateLimit, (held, passing): &(BTreeMap<_, _>, BTreeMap<_, _>)| WayUse {
            limit_mbit: mbit(limit.bytes_per_s),
            flows: held.get(&limit.number).copied().unwrap_or_default(),
            queue: passing.get(&limit.number).copied(),
        };
        let in_use = |limit: Limit| {
            let (limited_by, of) = self.holder_of_limit(limit.number);
            LimitUse {
                limited_by,
                of,
                upload: limit.up().map(|limit| way_use(limit, &up)),
                download: limit.down().map(|limit| way_use(limit, &down)),
            }
        };
        let limits = self.classes.limits().into_iter().map(in_use);
        limits.chain(self.orders_in_use(downloads)).collect()
    }

    fn orders_in_use(&self, downloads: &DownlinkView) -> impl Iterator<Item = LimitUse> {
        let of_link = move |order: &OrderView| {
            [(Class::Bulk, order.bulk), (Class::Background, order.background)].map(|(class, queue)| {
                let is_held = |tracked: &&Tracked| {
                    let order_of_it = (tracked.class == class).then(|| self.ordered_by(tracked)).flatten();
                    order_of_it.is_some_and(|(interface, _)| interface == order.interface)
                };
                LimitUse {
                    limited_by: LimitedBy::Order,
                    of: format!("{} by {}", class.name(), order.interface),
                    upload: None,
                    download: Some(WayUse {
                        limit_mbit: order.available_mbit,
                        flows: self.flows.iter().filter(is_held).count(),
                        queue: Some(queue),
                    }),
                }
            })
        };
        downloads.orders.iter().flat_map(of_link)
    }

    /// The number of flows under each limit.
    fn held(&self, number: Number) -> BTreeMap<LimitNumber, usize> {
        let mut all = BTreeMap::new();
        for tracked in self.flows.iter() {
            if let Some(number) = number(tracked.judged.verdict.limits) {
                *all.entry(number).or_default() += 1;
            }
        }
        all
    }

    fn holder_of_limit(&self, number: LimitNumber) -> (LimitedBy, String) {
        if let Some(place) = self.classes.rule_of_limit(number) {
            return (LimitedBy::Rule, format!("rule {place}"));
        }
        match self.classes.target_of_limit(number) {
            Some(target) => (LimitedBy::Hand, target.shown()),
            None => (LimitedBy::Command, self.command_of_limit(number)),
        }
    }

    /// Of several processes the one that started first.
    fn command_of_limit(&self, number: LimitNumber) -> String {
        let has = |tracked: &&Tracked| tracked.judged.verdict.limits.iter().any(|of| of == number);
        let owners = self
            .flows
            .iter()
            .filter(has)
            .filter_map(|tracked| tracked.flow.owner.as_ref());
        match owners.min_by_key(|owner| owner.start_ns) {
            Some(owner) => format!("`giveway exec` ({}, process {})", owner.command, owner.pid),
            None => "a command of `giveway exec`".to_owned(),
        }
    }
}

/// By limit, where any link enforces them.
pub fn passing(view: &DownlinkView) -> BTreeMap<LimitNumber, Passing> {
    let held = view.limits.iter().filter(|_| !view.links.is_empty());
    held.map(|limit| (limit.number, limit.passing)).collect()
}
