// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings by hand, with their flows, the counters of their queues, and why some are not enforced; for `status`
//! and the lists.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Overview;
use super::limit_use::passing as passing_of;
use super::view::LimitsView;
use crate::class::by_hand::{SetByHand, Target, is_in};
use crate::class::hand::holds_for_flow;
use crate::downlink::Passing;
use crate::model::{ChosenLimit, Class, LimitNumber, Process, ROOT, Rates};
use crate::queue::BackgroundFlow;
use crate::rate;
use crate::sockets::flows::Tracked;

/// The most reasons for one setting.
const MOST_REASONS: usize = 4;

/// A setting, and its effect.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, JsonSchema)]
pub struct HandView {
    #[serde(flatten)]
    pub set: SetByHand,
    /// Flows that it applies to now.
    pub flows: usize,
    /// Its limit for what is sent and received, and the throughput of its queues, headers included; None without a
    /// limit, or if no link enforces it.
    pub upload_limit_mbit: Option<f64>,
    pub download_limit_mbit: Option<f64>,
    pub upload_mbit: Option<f64>,
    pub download_mbit: Option<f64>,
    /// Why its limit or class does not apply to some of these flows, or to forwarded traffic.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub not_enforced: BTreeSet<String>,
}

impl Overview<'_> {
    /// Flows to this destination: this user's, or for root anybody's.
    pub fn flows_to(&self, destination: &BackgroundFlow, uid: u32) -> usize {
        let is_it = |tracked: &&Tracked| {
            let is_own = uid == ROOT || tracked.known().2 == uid;
            is_own && destination.matches(&tracked.flow)
        };
        self.flows.iter().filter(is_it).count()
    }

    /// The lowest present class of its flows: its limit is in that band.
    pub fn class_by_hand(&self, set: &SetByHand) -> Class {
        let flows = self.flows.iter().filter(|tracked| holds_for_flow(set, tracked));
        let of_flows = flows.map(|tracked| tracked.class).max();
        set.class.or(of_flows).unwrap_or(Class::Standard)
    }

    /// Those that `is_wanted`: each is compared with all flows.
    pub fn by_hand_views(&self, is_wanted: impl Fn(&SetByHand) -> bool) -> Vec<HandView> {
        let [uploads, downloads] = [&self.uploads, &self.downloads].map(|way| passing_of(&way.view()));
        let view = |set: &SetByHand| {
            let rates = set.limit.map(|limit| limit.rates).unwrap_or_default();
            let passing = |of: &BTreeMap<LimitNumber, Passing>| Some(of.get(&set.limit?.number)?.throughput_mbit);
            let flows: Vec<&Tracked> = self
                .flows
                .iter()
                .filter(|tracked| holds_for_flow(set, tracked))
                .collect();
            let lacks = flows.iter().filter_map(|tracked| self.limits_view(tracked));
            HandView {
                set: set.clone(),
                flows: flows.len(),
                not_enforced: {
                    let of_limit = set
                        .limit
                        .map(|_| lacks.flat_map(LimitsView::reasons).collect::<BTreeSet<_>>());
                    let of_limit = of_limit.unwrap_or_default().into_iter().take(MOST_REASONS);
                    let others: BTreeSet<String> = flows
                        .iter()
                        .flat_map(|tracked| self.in_place_of(set, tracked))
                        .collect();
                    of_limit
                        .chain(others.into_iter().take(MOST_REASONS))
                        .chain(self.unordered(set))
                        .collect()
                },
                upload_limit_mbit: rates.up.map(rate::mbit),
                download_limit_mbit: rates.down.map(rate::mbit),
                upload_mbit: rates.up.and_then(|_| passing(&uploads)),
                download_mbit: rates.down.and_then(|_| passing(&downloads)),
            }
        };
        let wanted = self.classes.hand().all().iter().filter(|set| is_wanted(set));
        wanted.map(view).collect()
    }

    /// The limits that apply to the flow instead of this one.
    fn in_place_of(&self, set: &SetByHand, tracked: &Tracked) -> Vec<String> {
        let Some(ChosenLimit { number, rates }) = set.limit else {
            return Vec::new();
        };
        let limits = tracked.judged.verdict.limits;
        let ways = [(rates.up, limits.up), (rates.down, limits.down)];
        let others = ways.into_iter().filter(|(rate, _)| rate.is_some());
        let others = others.filter_map(|(_, holds)| holds.filter(|holds| *holds != number));
        others
            .map(|other| format!("{} applies instead", self.limit_shown(other)))
            .collect()
    }

    fn limit_shown(&self, number: LimitNumber) -> String {
        if let Some(place) = self.classes.rule_of_limit(number) {
            return format!("the limit of the rule at {place}, shared by all its flows,");
        }
        match self.classes.target_of_limit(number) {
            Some(target) => format!("the limit set for {}", target.shown()),
            None => "the limit of its command (`giveway exec`)".to_owned(),
        }
    }

    /// The rules' limits that bind this process, whatever limit a user other than root chooses for it.
    pub fn rules_that_bind(&self, process: &Process, rates: Rates) -> Vec<String> {
        let limits = self.classes.limits_by_rules(process);
        let ways = [(rates.up, limits.up), (rates.down, limits.down)];
        let bound: BTreeSet<LimitNumber> = ways.into_iter().filter_map(|(rate, holds)| rate.and(holds)).collect();
        bound
            .into_iter()
            .map(|number| format!("{} applies instead", self.limit_shown(number)))
            .collect()
    }

    /// Downloads of a container have no class here.
    fn unordered(&self, set: &SetByHand) -> Option<String> {
        let Target::Cgroup { path, .. } = &set.target else {
            return None;
        };
        let is_limited = set.limit.is_some_and(|limit| limit.rates.down.is_some());
        let yields = !is_limited && set.class.is_some_and(|class| class > Class::Standard);
        let is_ordered = self.downloads.ordering().next().is_some();
        let is_container = yields && is_ordered && self.forwarded.paths().any(|of| is_in(of, path));
        is_container.then(|| {
            "downloads of a container with its own network namespace are not ordered by class: set a download limit for it"
                .to_owned()
        })
    }
}
