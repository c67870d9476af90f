// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What others ask about the present state, each question answered by its subject.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Network;
use crate::class::by_hand::SetByHand;
use crate::enforcement::Overview;
use crate::enforcement::by_hand::HandView;
use crate::model::{Class, Cookie, Device, LimitNumber, Process, Rates};
use crate::queue::BackgroundFlow;

impl Network {
    pub(super) fn overview(&self) -> Overview<'_> {
        Overview {
            flows: &self.flows,
            classes: &self.classes,
            forwarded: &self.forwarded,
            links: &self.links,
            uploads: &self.uploads,
            downloads: &self.downloads,
            paused: self.paused.as_deref(),
        }
    }

    /// Why nothing is in force for a while.
    pub fn paused(&self) -> Option<&str> {
        self.paused.as_deref()
    }

    /// Whether the managed links' ways are to be looked at: now and then, and at once.
    pub fn wants_arrivals(&self) -> bool {
        self.downloads.is_wanted() || self.uploads.is_wanted()
    }

    pub fn misses_arrivals(&self) -> bool {
        self.downloads.misses_arrivals() || self.uploads.misses_arrivals()
    }

    /// When what has come by links is to be looked at.
    pub fn next_look_at_arrived(&self) -> Option<Duration> {
        self.downloads.next_look()
    }

    /// The links that another tool has taken giveway's queue off.
    pub fn contested_links(&self) -> Vec<u32> {
        self.links.contested().collect()
    }

    /// On these a queue comes when there is something to hold.
    pub fn links_without_queue(&self) -> Vec<u32> {
        self.links.without_queue()
    }

    /// The numbers of the rate limits that flows have: one of a command is a flow's beyond the end of that command, where
    /// it is handed on or still has something to send.
    pub fn limits_of_flows(&self) -> BTreeSet<LimitNumber> {
        self.flows
            .iter()
            .flat_map(|tracked| tracked.judged.verdict.limits.iter())
            .collect()
    }

    /// The numbers of limits that were set by hand.
    pub fn limits_by_hand(&self) -> BTreeSet<LimitNumber> {
        let limits = self.classes.hand().all().iter().filter_map(|set| set.limit);
        limits.map(|limit| limit.number).collect()
    }

    pub fn flows_to(&self, destination: &BackgroundFlow, uid: u32) -> usize {
        self.overview().flows_to(destination, uid)
    }

    pub fn class_by_hand(&self, set: &SetByHand) -> Class {
        self.overview().class_by_hand(set)
    }

    pub fn by_hand_views(&self) -> Vec<HandView> {
        self.overview().by_hand_views()
    }

    pub fn rules_that_bind(&self, process: &Process, rates: Rates) -> Vec<String> {
        self.overview().rules_that_bind(process, rates)
    }

    pub fn ports_of_datagrams_held(&self) -> BTreeSet<u16> {
        self.overview().ports_of_datagrams_held()
    }

    pub fn to_be_traced(&self) -> Vec<Cookie> {
        self.overview().to_be_traced()
    }

    pub fn shortfalls_of(&self, class: Option<Class>, rates: Rates) -> Vec<String> {
        self.overview().shortfalls_of(class, rates)
    }

    pub fn enforcing(&self) -> Vec<String> {
        self.overview().enforcing()
    }

    pub fn limiting_sent(&self) -> Vec<String> {
        self.uploads.limiting().map(str::to_owned).collect()
    }

    pub fn limiting_received(&self) -> Vec<String> {
        self.downloads.limiting().map(str::to_owned).collect()
    }

    pub fn ordering_received(&self) -> Vec<String> {
        self.downloads.ordering().map(str::to_owned).collect()
    }

    pub fn unmanaged(&self) -> Vec<&Device> {
        self.overview().unmanaged()
    }

    pub fn how_to_manage(&self, name: &str) -> String {
        self.links.how_to_manage(name)
    }

    pub fn managed_tunnels(&self) -> Vec<&Device> {
        self.overview().managed_tunnels()
    }
}
