// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sockets of this device as the monitor shows them over time: which are senders or receivers, and what limits
//! each of them. Input: samples and events. Output: facts; the policy is elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::change::{Reason, Setting, Value};
use crate::model::{CaState, Class, Cookie, Flow, FlowEvent, Process, Protocol};
use crate::share::Member;
use crate::sockets::goodput::Goodput;
use crate::sockets::judgement::{Judgement, uid_of};
use crate::sockets::receiving::Receiving;
use crate::sockets::setting::{Doubt, SettingState, shown_by};
use crate::sockets::trace::Trace;

/// A socket sends when data was queued in this many successive polls ...
const SENDING_AFTER_POLLS: u32 = 2;
/// ... and no longer when none was for this long, ...
const STOPPED_AFTER: Duration = Duration::from_secs(1);
/// ... unless it repeats what was lost. And neither does who delivers nothing, and sends nothing again, for so long: its remote host
/// takes nothing, or is gone.
const MOVES_WITHIN: Duration = Duration::from_secs(10);
/// A window with this much room is no longer full: by less it changes with every acknowledgement.
const SPARE_SEGMENTS: u32 = 2;

/// One socket, with its history.
#[derive(Clone, Debug)]
pub struct Tracked {
    pub flow: Flow,
    pub sending: bool,
    /// It has more to send than its window takes.
    pub wants_more: bool,
    pub receiving: Receiving,
    pub goodput: Goodput,
    pub class: Class,
    pub judged: Judgement,
    /// Whether a queue has it, where its device does not tell.
    pub trace: Trace,
    /// What limits it, or once did.
    pub settings: BTreeMap<Setting, SettingState>,
    queued_polls: u32,
    last_queued: Duration,
    /// When something was last delivered, or sent again.
    last_moved: Duration,
}

impl Tracked {
    /// What it was last judged by: its process, its cgroup and its user.
    pub fn known(&self) -> (Option<&Process>, &str, u32) {
        let by = self.judged.by.as_ref();
        let process = by.and_then(|by| by.process.as_deref());
        let cgroup = by.map(|by| by.cgroup()).unwrap_or_default();
        (process, cgroup, uid_of(&self.flow, process))
    }

    fn new(now: Duration, flow: Flow) -> Self {
        Self {
            flow,
            sending: false,
            wants_more: false,
            receiving: Receiving::default(),
            goodput: Goodput::default(),
            class: Class::Standard,
            judged: Judgement::default(),
            trace: Trace::default(),
            settings: BTreeMap::new(),
            queued_polls: 0,
            last_queued: Duration::ZERO,
            last_moved: now,
        }
    }

    fn observe(&mut self, now: Duration, flow: Flow) {
        // Nagle's algorithm keeps less than a segment back, whatever the window.
        let queued_bytes = flow.unsent_bytes.saturating_add(flow.unacked_bytes);
        let fills = |segments: u32| queued_bytes >= u64::from(segments) * u64::from(flow.mss_bytes);
        self.wants_more &= fills(flow.cwnd.saturating_sub(SPARE_SEGMENTS));
        if flow.unsent_bytes > 0 {
            self.queued_polls = self.queued_polls.saturating_add(1);
            self.last_queued = now;
            let is_queued = self.queued_polls >= SENDING_AFTER_POLLS;
            self.sending |= is_queued;
            self.wants_more |= is_queued && fills(flow.cwnd);
        } else {
            self.queued_polls = 0;
            self.sending &= !flow.state.application_has_finished();
        }
        let moved = |flow: &Flow| (flow.delivered_segments, flow.retransmits);
        if moved(&flow) != moved(&self.flow) {
            self.last_moved = now;
        }
        self.receiving.observe(now, &flow);
        self.goodput.observe(now, &flow);
        if flow.ifindex != self.flow.ifindex {
            self.trace = Trace::default();
        }
        self.flow = flow;
        self.settings.values_mut().for_each(|state| state.deferred = false);
        self.expire(now);
    }

    fn expire(&mut self, now: Duration) {
        let is_queued = now.saturating_sub(self.last_queued) < STOPPED_AFTER;
        let moves = now.saturating_sub(self.last_moved) < MOVES_WITHIN;
        self.sending &= moves && (is_queued || self.is_repeating());
    }

    fn has_cap(&mut self, cap: u32, reason: Reason) {
        let state = self.settings.entry(Setting::Cap).or_default();
        (state.installed, state.reason) = (Some(cap).into(), reason);
    }

    fn is_repeating(&self) -> bool {
        matches!(self.flow.ca_state, CaState::Recovery | CaState::Loss)
    }

    /// The round-trip time that this connection's share is computed from.
    pub fn rtt(&self) -> Option<Duration> {
        let us = self.flow.min_rtt_us.unwrap_or(self.flow.srtt_us);
        (us > 0).then(|| Duration::from_micros(us.into()))
    }

    /// What giveway put there; `Unset` where it put nothing.
    pub fn installed(&self, setting: &Setting) -> Value {
        self.settings
            .get(setting)
            .map_or(Value::default(), |state| state.installed.clone())
    }

    /// For the policy; None without a round-trip time, from which shares are computed.
    pub fn member(&self) -> Option<Member> {
        Some(Member {
            cookie: self.flow.cookie,
            class: self.class,
            weight: 1,
            rtt: Duration::from_micros(self.flow.srtt_us.into()),
            min_rtt: self.rtt()?,
            latest_rtt: Duration::from_micros(self.flow.latest_rtt_us.into()),
            cwnd: self.flow.cwnd,
            delivery_rate_bytes_per_s: self.flow.delivery_rate_bytes_per_s,
            delivered_segments: self.flow.delivered_segments,
            mss_bytes: self.flow.mss_bytes,
            unsent_bytes: self.flow.unsent_bytes,
            is_repeating: self.is_repeating(),
        })
    }

    /// The settings whose values on the socket are not those that giveway thinks it left there.
    fn doubtful(&mut self) -> impl Iterator<Item = (Setting, Doubt)> {
        let shown = shown_by(&self.flow).into_iter();
        shown.filter_map(|(setting, found)| {
            let is_looked_at = match setting {
                // Every connection has one; what counts is whether ours is still there.
                Setting::CongestionControl => self.installed(&setting) != Value::default(),
                _ => found != Value::default() || self.settings.contains_key(&setting),
            };
            if !is_looked_at {
                return None;
            }
            let state = self.settings.entry(setting.clone()).or_default();
            state.doubt(&found).map(|doubt| (setting, doubt))
        })
    }
}

/// What a poll has shown.
#[derive(Debug, Default)]
pub struct Observed {
    /// Settings whose values are not those that giveway thinks it left there: only the kernel knows whether another
    /// tool has set them, or a report of giveway's own got lost.
    pub doubtful: Vec<(Cookie, Setting, Doubt)>,
    /// Sockets that are no longer there.
    pub ended: Vec<Cookie>,
}

/// All sockets that the monitor has shown and that are still there.
#[derive(Debug, Default)]
pub struct Flows {
    tracked: BTreeMap<Cookie, Tracked>,
    /// Those of them that send: few, where the sockets may be many.
    sending: BTreeSet<Cookie>,
    /// And those that receive in bulk.
    receiving: BTreeSet<Cookie>,
    /// Caps of connections that the kernel capped as they were made and no poll has shown yet; and whether they are
    /// older than the last complete poll.
    capped_at_connect: BTreeMap<Cookie, (u32, Reason, bool)>,
}

impl Flows {
    /// `all_of`: these are all sockets of that protocol.
    pub fn observe(&mut self, now: Duration, flows: Vec<Flow>, all_of: Option<Protocol>) -> Observed {
        let mut seen = Observed::default();
        if let Some(protocol) = all_of {
            let present: BTreeSet<Cookie> = flows.iter().map(|f| f.cookie).collect();
            let known = self.tracked.values().map(|tracked| &tracked.flow);
            let gone = known.filter(|flow| flow.protocol == protocol && !present.contains(&flow.cookie));
            seen.ended = gone.map(|flow| flow.cookie).collect();
            seen.ended.iter().for_each(|cookie| self.forget(*cookie));
            if protocol == Protocol::Tcp {
                // One that opened while this poll was read is not in it.
                self.capped_at_connect
                    .retain(|cookie, (.., old)| present.contains(cookie) || !std::mem::replace(old, true));
            }
        }
        for flow in flows {
            let cookie = flow.cookie;
            let at_connect = &mut self.capped_at_connect;
            let tracked = self.tracked.entry(cookie).or_insert_with(|| {
                let mut tracked = Tracked::new(now, flow.clone());
                if let Some((cap, reason, _)) = at_connect.remove(&cookie) {
                    tracked.has_cap(cap, reason);
                }
                tracked
            });
            tracked.observe(now, flow);
            if tracked.sending {
                self.sending.insert(cookie);
            }
            if tracked.receiving.is_bulk() {
                self.receiving.insert(cookie);
            }
            seen.doubtful
                .extend(tracked.doubtful().map(|(setting, doubt)| (cookie, setting, doubt)));
        }
        self.expire(now);
        seen
    }

    /// Sockets that no poll shows any more (they have gone quiet) stop being senders by the clock.
    fn expire(&mut self, now: Duration) {
        let tracked = &mut self.tracked;
        self.sending.retain(|cookie| {
            tracked.get_mut(cookie).is_some_and(|t| {
                t.expire(now);
                t.sending
            })
        });
        self.receiving.retain(|cookie| {
            tracked.get_mut(cookie).is_some_and(|t| {
                t.receiving.expire(now);
                t.receiving.is_bulk()
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
        self.receiving.remove(&cookie);
        self.capped_at_connect.remove(&cookie);
    }

    pub(super) fn capped_at_connect(&mut self, cookie: Cookie, cap: u32, reason: Reason) {
        match self.tracked.get_mut(&cookie) {
            Some(tracked) => tracked.has_cap(cap, reason),
            None => {
                self.capped_at_connect.insert(cookie, (cap, reason, false));
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

    /// Those that receive in bulk, and whose answers leave by `ifindex`.
    pub fn receivers(&self, ifindex: u32) -> impl Iterator<Item = &Tracked> {
        self.receiving
            .iter()
            .filter_map(|cookie| self.tracked.get(cookie))
            .filter(move |t| t.flow.ifindex == ifindex)
    }
}
