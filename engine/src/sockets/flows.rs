// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sockets of this device over the monitor's polls: which send or receive, and their limits. Input: samples and
//! events. Output: facts; the policy is elsewhere.

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

/// A socket is sending after data was queued in this many successive polls ...
const SENDING_AFTER_POLLS: u32 = 2;
/// ... and no longer after none was queued for this long, ...
const STOPPED_AFTER: Duration = Duration::from_secs(1);
/// ... unless it retransmits. Nor is one that neither delivers nor retransmits for this long: its remote host takes
/// nothing, or is gone.
const MOVES_WITHIN: Duration = Duration::from_secs(10);
/// A window with this much room is not full: smaller amounts vary with every acknowledgement.
const SPARE_SEGMENTS: u32 = 2;

/// One socket, with its history.
#[derive(Clone, Debug)]
pub struct Tracked {
    pub flow: Flow,
    pub sending: bool,
    /// It could send more than its window.
    pub wants_more: bool,
    pub receiving: Receiving,
    pub goodput: Goodput,
    pub class: Class,
    pub judged: Judgement,
    /// Whether a queue has it, if its device does not show that.
    pub trace: Trace,
    /// Its present and former limits.
    pub settings: BTreeMap<Setting, SettingState>,
    queued_polls: u32,
    last_queued: Duration,
    /// The latest delivery or retransmission.
    last_moved: Duration,
}

impl Tracked {
    /// The basis of its latest verdict: process, cgroup and user.
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
        // Nagle's algorithm holds less than a segment back, whatever the window.
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

    /// The RTT from which this connection's share is computed.
    pub fn rtt(&self) -> Option<Duration> {
        let us = self.flow.min_rtt_us.unwrap_or(self.flow.srtt_us);
        (us > 0).then(|| Duration::from_micros(us.into()))
    }

    /// What giveway has set; `Unset` if nothing.
    pub fn installed(&self, setting: &Setting) -> Value {
        self.settings
            .get(setting)
            .map_or(Value::default(), |state| state.installed.clone())
    }

    /// For the policy; None without an RTT, from which shares are computed.
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

    /// The settings whose values differ from what giveway set.
    fn doubtful(&mut self) -> impl Iterator<Item = (Setting, Doubt)> {
        let shown = shown_by(&self.flow).into_iter();
        shown.filter_map(|(setting, found)| {
            let is_looked_at = match setting {
                // Every connection has one; what counts is whether giveway's is still set.
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

/// The findings of a poll.
#[derive(Debug, Default)]
pub struct Observed {
    /// Settings whose values differ from what giveway set: only the kernel knows whether another tool has set them, or
    /// a report of giveway's own was lost.
    pub doubtful: Vec<(Cookie, Setting, Doubt)>,
    /// Sockets that were closed.
    pub ended: Vec<Cookie>,
}

/// All sockets that the monitor has shown and that are still open.
#[derive(Debug, Default)]
pub struct Flows {
    tracked: BTreeMap<Cookie, Tracked>,
    /// Those that send: few, where the sockets may be many.
    sending: BTreeSet<Cookie>,
    /// And those that receive in bulk.
    receiving: BTreeSet<Cookie>,
    /// Caps of connections that the kernel capped at connect and no poll has shown yet; and whether they are older than
    /// the last full scan.
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
                // It opened while this poll was read, and is not in it.
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

    /// Quiet sockets, which no poll shows, stop being senders by the clock.
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

    /// Those that receive in bulk, and whose acknowledgements leave by `ifindex`.
    pub fn receivers(&self, ifindex: u32) -> impl Iterator<Item = &Tracked> {
        self.receiving
            .iter()
            .filter_map(|cookie| self.tracked.get(cookie))
            .filter(move |t| t.flow.ifindex == ifindex)
    }
}
