// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queries of the present state, each answered by its subject.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Network;
use crate::enforcement::Overview;
use crate::model::LimitNumber;

impl Network {
    /// The requests and their enforcement.
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

    /// Why everything is suspended.
    pub fn paused(&self) -> Option<&str> {
        self.paused.as_deref()
    }

    /// Whether to inspect the managed links' ingress or egress: regularly, and at once.
    pub fn wants_arrivals(&self) -> bool {
        self.downloads.is_wanted() || self.uploads.is_wanted()
    }

    pub fn misses_arrivals(&self) -> bool {
        self.downloads.misses_arrivals() || self.uploads.misses_arrivals()
    }

    /// When to read the counters of received traffic.
    pub fn next_look_at_arrived(&self) -> Option<Duration> {
        self.downloads.next_look()
    }

    /// The links whose queue another tool has removed.
    pub fn contested_links(&self) -> Vec<u32> {
        self.links.contested().collect()
    }

    /// The links that get a queue once traffic needs one.
    pub fn links_without_queue(&self) -> Vec<u32> {
        self.links.without_queue()
    }

    /// The limit numbers in use by flows: a command's limit outlives the command in a child process or in data still to
    /// be sent.
    pub fn limits_of_flows(&self) -> BTreeSet<LimitNumber> {
        self.flows
            .iter()
            .flat_map(|tracked| tracked.judged.verdict.limits.iter())
            .collect()
    }

    /// The limit numbers set by hand.
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
