// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the goodput of connections with the counters of their download queues. Input: flows, and the latest
//! counters. Output: the flows that bypass their queue, and the links whose rate seems too high.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Overview;
use crate::downlink::WAITS;
use crate::model::{Class, Cookie, Protocol};
use crate::sockets::flows::Tracked;

/// A lower goodput, Mbit/s, shows nothing.
const LEAST_MBIT: f64 = 0.5;
/// At least this part of a flow is seen in its queue, given the time between two polls.
const SEEN: f64 = 0.5;

impl Overview<'_> {
    /// For each download, after the counters were read: whether it bypasses its queue.
    pub fn bypasses(self, now: Duration) -> Vec<(Cookie, bool)> {
        let receiving = self.flows.iter().filter(|tracked| tracked.receiving.is_bulk());
        let bypass = |tracked: &Tracked| Some((tracked.flow.cookie, self.is_bypass(tracked, now)?));
        receiving.filter_map(bypass).collect()
    }

    /// The local ports of UDP sockets whose downloads are limited or ordered, as they may only receive.
    pub fn ports_of_datagrams_held(&self) -> BTreeSet<u16> {
        let is_held = |tracked: &&Tracked| {
            let is_limited = tracked.judged.verdict.limits.down.is_some();
            tracked.flow.protocol == Protocol::Udp && (is_limited || self.ordered_by(tracked).is_some())
        };
        let held = self.flows.iter().filter(is_held);
        held.map(|tracked| tracked.flow.local.port()).collect()
    }

    /// More arrives than its queue sends; None: it has no queue.
    fn is_bypass(&self, tracked: &Tracked, now: Duration) -> Option<bool> {
        let throughput_mbit = match tracked.judged.verdict.limits.down {
            Some(number) => self.downloads.throughput_mbit(number)?,
            None => {
                let (_, order) = self.ordered_by(tracked)?;
                order.queues[usize::from(tracked.class == Class::Background)].throughput_mbit
            }
        };
        let download_mbit = tracked.goodput.rates(now).download_mbit;
        Some(download_mbit >= LEAST_MBIT && throughput_mbit < SEEN * download_mbit)
    }
}

/// Of bulk or background, with a queue before the link.
pub fn is_late(tracked: &Tracked) -> bool {
    let waits = |(rtt, least): (Duration, Duration)| rtt.saturating_sub(least) >= WAITS;
    tracked.class > Class::Standard && tracked.receiving.rtts().is_some_and(waits)
}
