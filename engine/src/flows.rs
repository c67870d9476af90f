// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sockets of this device as the monitor shows them over time: which are senders, and what cap each
//! of them carries. In: samples and events. Out: facts; the policy is elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::{Cookie, Flow, FlowEvent};
use crate::policy::Sharing;

/// A socket sends when data was queued in this many successive passes ...
const SENDING_AFTER_PASSES: u32 = 2;
/// ... and no longer when none was for this long.
const STOPPED_AFTER: Duration = Duration::from_secs(1);
/// A clamp that is not ours must be seen in this many successive passes: a pass may fall between the
/// kernel's write for a new connection and the news of it.
const FOREIGN_AFTER_PASSES: u32 = 2;

/// One socket, with what its history says.
#[derive(Clone, Debug)]
pub struct Tracked {
    pub flow: Flow,
    pub sending: bool,
    /// The cap that we put on it, segments.
    pub cap: Option<u32>,
    /// Asked for and not yet answered.
    pub asked: Option<Option<u32>>,
    /// The kernel put the last cap off: nothing is asked before a pass has shown the socket anew.
    pub deferred: bool,
    /// What the policy last wanted for it, and for which sharing.
    pub wanted: Option<(Sharing, Option<u32>)>,
    /// Somebody else holds its cwnd: hands off.
    pub stepped_back: bool,
    queued_passes: u32,
    last_queued: Duration,
    foreign_passes: u32,
}

impl Tracked {
    fn new(flow: Flow, cap: Option<u32>) -> Self {
        Self {
            flow,
            sending: false,
            cap,
            asked: None,
            deferred: false,
            wanted: None,
            stepped_back: false,
            queued_passes: 0,
            last_queued: Duration::ZERO,
            foreign_passes: 0,
        }
    }

    fn observe(&mut self, now: Duration, flow: Flow) {
        if flow.unsent_bytes > 0 {
            self.queued_passes = self.queued_passes.saturating_add(1);
            self.last_queued = now;
            self.sending |= self.queued_passes >= SENDING_AFTER_PASSES;
        } else {
            self.queued_passes = 0;
            self.sending &= !flow.state.application_has_finished();
        }
        self.flow = flow;
        self.deferred = false;
        self.expire(now);
    }

    fn expire(&mut self, now: Duration) {
        self.sending &= now.saturating_sub(self.last_queued) < STOPPED_AFTER;
    }

    /// The round-trip time that this connection's share is computed from.
    pub fn rtt(&self) -> Option<Duration> {
        let us = self.flow.min_rtt_us.unwrap_or(self.flow.srtt_us);
        (us > 0).then(|| Duration::from_micros(us.into()))
    }

    /// Whether the clamp on the socket has stopped being what we think that we left there.
    fn is_doubtful(&mut self) -> bool {
        let ours = self.asked.is_some() || self.flow.clamp == self.cap;
        self.foreign_passes = if ours { 0 } else { self.foreign_passes + 1 };
        self.foreign_passes >= FOREIGN_AFTER_PASSES
    }
}

/// All sockets that the monitor has shown and that are still there.
#[derive(Debug, Default)]
pub struct Flows {
    tracked: BTreeMap<Cookie, Tracked>,
    /// Those of them that send: few, where the sockets may be many.
    sending: BTreeSet<Cookie>,
    /// Caps of connections that the kernel capped as they were made and no pass has shown yet; and whether they are
    /// older than the last complete pass.
    capped_at_connect: BTreeMap<Cookie, (u32, bool)>,
}

impl Flows {
    /// Takes in a pass. Returns the sockets whose clamp is not the one that giveway thinks it left there: only the
    /// kernel knows whether another tool has set it, or a report of giveway's own got lost.
    pub fn observe(&mut self, now: Duration, flows: Vec<Flow>, complete: bool) -> Vec<Cookie> {
        if complete {
            let present: BTreeSet<Cookie> = flows.iter().map(|f| f.cookie).collect();
            self.tracked.retain(|cookie, _| present.contains(cookie));
            self.sending.retain(|cookie| present.contains(cookie));
            // One that opened while this pass was read is not in it.
            self.capped_at_connect
                .retain(|cookie, (_, old)| present.contains(cookie) || !std::mem::replace(old, true));
        }
        let mut doubtful = Vec::new();
        for flow in flows {
            let cookie = flow.cookie;
            let at_connect = &mut self.capped_at_connect;
            let tracked = self
                .tracked
                .entry(cookie)
                .or_insert_with(|| Tracked::new(flow.clone(), at_connect.remove(&cookie).map(|(cap, _)| cap)));
            tracked.observe(now, flow);
            if tracked.sending {
                self.sending.insert(cookie);
            }
            if !tracked.stepped_back && tracked.is_doubtful() {
                doubtful.push(cookie);
            }
        }
        self.expire(now);
        doubtful
    }

    /// Sockets that no pass shows any more (they have gone quiet) stop being senders by the clock.
    pub fn expire(&mut self, now: Duration) {
        let tracked = &mut self.tracked;
        self.sending.retain(|cookie| {
            tracked.get_mut(cookie).is_some_and(|t| {
                t.expire(now);
                t.sending
            })
        });
    }

    pub fn event(&mut self, cookie: Cookie, event: FlowEvent) {
        match event {
            FlowEvent::Close => self.forget(cookie),
            FlowEvent::State { to, .. } => {
                if let Some(tracked) = self.tracked.get_mut(&cookie) {
                    tracked.flow.state = to;
                }
            }
            FlowEvent::CaState { to } => {
                if let Some(tracked) = self.tracked.get_mut(&cookie) {
                    tracked.flow.ca_state = to;
                }
            }
            FlowEvent::Open | FlowEvent::Retransmit => {}
        }
    }

    pub fn forget(&mut self, cookie: Cookie) {
        self.tracked.remove(&cookie);
        self.sending.remove(&cookie);
        self.capped_at_connect.remove(&cookie);
    }

    pub fn capped_at_connect(&mut self, cookie: Cookie, cap: u32) {
        match self.tracked.get_mut(&cookie) {
            Some(tracked) => tracked.cap = Some(cap),
            None => {
                self.capped_at_connect.insert(cookie, (cap, false));
            }
        }
    }

    pub fn get(&self, cookie: Cookie) -> Option<&Tracked> {
        self.tracked.get(&cookie)
    }

    pub fn get_mut(&mut self, cookie: Cookie) -> Option<&mut Tracked> {
        self.tracked.get_mut(&cookie)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Tracked> {
        self.tracked.values()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tracked> {
        self.tracked.values_mut()
    }

    /// The senders whose packets leave by `ifindex`.
    pub fn senders(&self, ifindex: u32) -> impl Iterator<Item = &Tracked> {
        self.sending
            .iter()
            .filter_map(|cookie| self.tracked.get(cookie))
            .filter(move |t| t.flow.ifindex == ifindex)
    }
}
