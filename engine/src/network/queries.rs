// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What others ask about the present state, each question answered by its subject.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Network;
use crate::enforcement::Overview;
use crate::model::LimitNumber;

impl Network {
    /// What is asked for, by whom, and whether it is enforced.
    pub fn overview(&self) -> Overview<'_> {
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

    /// Why nothing is active for a while.
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

    pub fn limiting_sent(&self) -> Vec<String> {
        self.uploads.limiting().map(str::to_owned).collect()
    }

    pub fn limiting_received(&self) -> Vec<String> {
        self.downloads.limiting().map(str::to_owned).collect()
    }

    pub fn ordering_received(&self) -> Vec<String> {
        self.downloads.ordering().map(str::to_owned).collect()
    }
}
