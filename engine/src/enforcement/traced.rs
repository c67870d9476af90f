// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flows that leave by an unmanaged device: whether their packets were seen in a managed link's queue all the same.

use std::time::Duration;

use super::{Asked, Overview};
use crate::class::flows::Classes;
use crate::model::Cookie;
use crate::sockets::flows::{Flows, Tracked};

/// Flows to look up in the queues in one poll.
const TRACED_AT_ONCE: usize = 64;
/// A packet seen in a queue this lately shows the flow's present path.
pub const TRACED_WITHIN: Duration = Duration::from_millis(1500);

impl Overview<'_> {
    /// Flows whose queue only admission can tell, those first of which least is known.
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
}

/// The link in whose queue a packet of each was seen; None: in none.
pub fn note_traced(flows: &mut Flows, classes: &Classes, traced: &[(Cookie, Option<u32>)]) {
    for (cookie, seen_on) in traced {
        let is_told = classes.is_told(*cookie);
        let Some(tracked) = flows.get_mut(*cookie) else {
            continue;
        };
        let delivered = tracked.flow.delivered_segments;
        let trace = &mut tracked.trace;
        let moves = std::mem::replace(&mut trace.delivered, delivered) != delivered;
        if seen_on.is_some() {
            (trace.seen_on, trace.unseen_looks) = (*seen_on, 0);
        } else if moves && is_told {
            trace.unseen_looks = trace.unseen_looks.saturating_add(1);
            if tracked.is_unseen() {
                tracked.trace.seen_on = None;
            }
        }
    }
}
