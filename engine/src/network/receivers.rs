// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The downlink: how much may be under way to each connection that receives in bulk. Input: flows, and what neighbours
//! tell of theirs. Output: the sizes of receive windows, and what neighbours are told. The policy is that of senders, with
//! what this end sees; the far ends need to know nothing of it.
//!
//! Background gives way by a rule of its own, where it can: it is neither counted nor told.

use std::collections::BTreeSet;
use std::time::Duration;

use super::allotment::{self, Allotment, HEADER_BYTES, Member, Sharing};
use super::flows::Tracked;
use super::limiting::{ELSEWHERE, Grounds, Wanted};
use super::limits::Terms;
use super::{Network, link};
use crate::change::{Setting, Value};
use crate::config::Cap;
use crate::model::Cookie;
use crate::status::ReceivingView;
use crate::wire::{CaState, Class, Direction, Sender, UNLIMITED_KBIT};

/// A window is what holds a connection that has more than this part of it under way.
const FULL: f64 = 0.7;
/// Who has offered, or has under way, more than so many times the window, is not yet held by it.
const DRAINING: f64 = 1.25;
const NO_LONGER: &str = "it no longer receives in bulk";

pub(super) struct Downlink {
    policy: Box<dyn Allotment>,
    /// Of a segment, as the policy counts them: what the far end takes for its own says nothing of what it sends.
    payload_bytes: u32,
    sharing: Sharing,
    /// Whose windows may be ours.
    held: BTreeSet<Cookie>,
}

impl Downlink {
    /// None where nothing of what is received is limited.
    pub fn new(cap: &Cap, holds_windows: bool) -> Option<Self> {
        let policy = allotment::of_receivers(cap).filter(|_| holds_windows)?;
        Some(Self {
            policy,
            payload_bytes: cap.segment_bytes.saturating_sub(HEADER_BYTES).max(1),
            sharing: Sharing::default(),
            held: BTreeSet::new(),
        })
    }
}

impl Network {
    fn own_receivers(&self) -> impl Iterator<Item = &Tracked> {
        let gives_way = self.slows_background_downloads();
        let ifindex = self.downlink.as_ref().and_then(|_| self.ifindex());
        let receivers = ifindex.into_iter().flat_map(|ifindex| self.flows.receivers(ifindex));
        receivers.filter(move |tracked| !(gives_way && tracked.class == Class::Background))
    }

    /// This device with so many connections, and the others.
    fn receiving_devices(&self, connections: u32) -> u32 {
        self.neighbourhood.devices(Direction::Down) as u32 + u32::from(connections > 0)
    }

    pub(super) fn receiving_has_changed(&self) -> bool {
        let of = |downlink: &Downlink| self.receiving_devices(downlink.sharing.connections) != downlink.sharing.devices;
        self.downlink.as_ref().is_some_and(of)
    }

    pub(super) fn count_receivers(&mut self, now: Duration) {
        let connections = self.own_receivers().count() as u32;
        let devices = self.receiving_devices(connections);
        let Some(downlink) = &mut self.downlink else { return };
        let before = std::mem::replace(&mut downlink.sharing, Sharing { devices, connections });
        if connections > before.connections {
            self.neighbourhood.sender_started(now);
        } else if connections == 0 && before.connections > 0 {
            self.neighbourhood.sender_stopped(now);
        }
    }

    fn receiving_members(&self, now: Duration) -> impl Iterator<Item = Member> {
        let downlink = self.downlink.as_ref();
        let is_tight = downlink.is_some_and(|downlink| downlink.policy.is_tight());
        let payload_bytes = downlink.map_or(1, |downlink| downlink.payload_bytes);
        self.own_receivers()
            .filter_map(move |tracked| member(tracked, now, payload_bytes, is_tight))
    }

    pub(super) fn limit_receivers(&mut self, now: Duration, is_pass: bool) {
        if self.paused.is_some() {
            return;
        }
        let members: Vec<Member> = self.receiving_members(now).collect();
        let ifindex = self.ifindex();
        let Some(downlink) = &mut self.downlink else { return };
        let link = link(&self.neighbourhood, downlink.sharing, &self.links, ifindex);
        let limits = downlink.policy.allot(now, &link, &members);
        let terms = Terms {
            sharing: downlink.sharing,
            settled_within: downlink.policy.settled_within(),
            may_raise: is_pass,
        };
        let mut wanted: Vec<Wanted> = Vec::new();
        for (member, limits) in members.iter().zip(limits) {
            let Some(tracked) = self.flows.get_mut(member.cookie) else {
                continue;
            };
            let value = limits.of(&Setting::ReceiveWindow);
            let held = tracked.held.get(&Setting::ReceiveWindow);
            let is_free = held.is_none_or(|held| held.in_force == Value::default() && held.asked.is_none());
            if is_free && value == Value::default() {
                continue;
            }
            let held = tracked.held.entry(Setting::ReceiveWindow).or_default();
            // Until its class has given it back.
            if matches!(held.in_force, Value::Text(_)) {
                continue;
            }
            downlink.held.insert(member.cookie);
            if let Some(value) = held.next(&Setting::ReceiveWindow, terms, value, &tracked.flow) {
                wanted.push((member.cookie, vec![(Setting::ReceiveWindow, value)]));
            }
        }
        let still: BTreeSet<Cookie> = members.iter().map(|member| member.cookie).collect();
        wanted.extend(self.set_free(&still));
        self.ask(now, wanted);
    }

    /// The windows of all but these.
    fn set_free(&mut self, still: &BTreeSet<Cookie>) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        let Some(downlink) = &mut self.downlink else {
            return wanted;
        };
        downlink.held.retain(|cookie| {
            if still.contains(cookie) {
                return true;
            }
            let tracked = self.flows.get_mut(*cookie);
            let Some(held) = tracked.and_then(|tracked| tracked.held.get_mut(&Setting::ReceiveWindow)) else {
                return false;
            };
            let is_ours = matches!(held.in_force, Value::Number(_));
            if is_ours && held.may_change() {
                (held.asked, held.wanted) = (Some(Value::default()), None);
                wanted.push((*cookie, vec![(Setting::ReceiveWindow, Value::default())]));
            }
            is_ours || held.asked.is_some()
        });
        wanted
    }

    /// What neighbours are told of what is received.
    pub(super) fn receivers_told(&self, now: Duration) -> impl Iterator<Item = Sender> {
        let demand = self.downlink.as_ref().and_then(|downlink| downlink.policy.demand());
        self.receiving_members(now).map(move |member| describe(&member, demand))
    }

    pub(super) fn receiving_view(&self) -> Option<ReceivingView> {
        let downlink = self.downlink.as_ref()?;
        let link = link(&self.neighbourhood, downlink.sharing, &self.links, self.ifindex());
        Some(ReceivingView {
            devices: downlink.sharing.devices,
            connections: downlink.sharing.connections,
            doing: downlink.policy.doing(&link),
        })
    }

    /// None where its window is, or becomes, no share.
    pub(super) fn grounds_of_window(&self, tracked: &Tracked) -> Option<Grounds> {
        let downlink = self.downlink.as_ref()?;
        let held = tracked.held.get(&Setting::ReceiveWindow)?;
        let decides = held.asked.as_ref().filter(|asked| **asked != Value::default());
        if !matches!(decides.unwrap_or(&held.in_force), Value::Number(_)) {
            return None;
        }
        let link = link(&self.neighbourhood, downlink.sharing, &self.links, self.ifindex());
        let why = match () {
            () if Some(tracked.flow.ifindex) != self.ifindex() => ELSEWHERE.to_owned(),
            () if !tracked.receiving.is_bulk() => NO_LONGER.to_owned(),
            () => downlink.policy.reason(&link, Duration::ZERO),
        };
        Some(Grounds {
            rule: downlink.policy.name().to_owned(),
            why,
        })
    }

    pub(super) fn forget_downlink(&mut self) {
        if let Some(downlink) = &mut self.downlink {
            downlink.policy.forget();
        }
    }
}

/// For the policy; None where nothing tells how long a round trip takes.
fn member(tracked: &Tracked, now: Duration, payload_bytes: u32, is_tight: bool) -> Option<Member> {
    let (rtt, min_rtt) = tracked.receiving.rtts()?;
    let rate = tracked.receiving.rate(now);
    let under_way = rate * rtt.as_secs_f64();
    let window = match tracked.in_force(&Setting::ReceiveWindow) {
        Value::Number(bytes) if is_tight => Some(bytes as f64),
        _ => None,
    };
    // Whoever has no such window of ours is taken to want all that it can get: its sender is held by the queue.
    let is_held = window.is_none_or(|window| under_way > FULL * window);
    // More is under way while what was offered before still arrives.
    let is_full = |window: &f64| (FULL..DRAINING).contains(&(under_way / window));
    let bytes = window.filter(is_full).unwrap_or(under_way);
    Some(Member {
        cookie: tracked.flow.cookie,
        class: tracked.class,
        weight: 1,
        rtt,
        min_rtt,
        latest_rtt: rtt,
        cwnd: ((bytes / f64::from(payload_bytes)) as u32).max(1),
        delivery_rate_bytes_per_s: rate as u64,
        delivered_segments: (tracked.flow.received_bytes / u64::from(payload_bytes)) as u32,
        mss_bytes: payload_bytes,
        unsent_bytes: u64::from(is_held),
        is_repeating: false,
        is_draining: window.is_some_and(|window| tracked.flow.offered_bytes as f64 > DRAINING * window),
    })
}

/// As a connection that sends is: its window is the one that it offers. What is queued at its sender is not known: that
/// there is more than the window, where that is what holds it.
fn describe(member: &Member, demand: Option<f64>) -> Sender {
    let small = |number: u128| u32::try_from(number).unwrap_or(u32::MAX);
    let window_bytes = u128::from(member.cwnd) * u128::from(member.mss_bytes);
    let queue_bytes = if member.unsent_bytes > 0 {
        2 * window_bytes
    } else {
        window_bytes
    };
    Sender {
        cwnd_segments: member.cwnd,
        min_rtt_us: small(member.min_rtt.as_micros()),
        srtt_us: small(member.rtt.as_micros()),
        queue_bytes: small(queue_bytes),
        ca_state: CaState::Open,
        delivery_rate_kbit: small(u128::from(member.delivery_rate_bytes_per_s / 125)),
        retransmits: 0,
        direction: Direction::Down,
        class: member.class,
        demand_kbit: demand.map_or(UNLIMITED_KBIT, |rate| (rate / 125.0) as u32),
    }
}

#[cfg(test)]
mod tests;
