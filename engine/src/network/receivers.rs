// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The downlink: how much may be under way to each connection that receives in bulk. Input: flows, and what neighbours
//! tell of theirs. Output: the sizes of receive windows, and what neighbours are told. The policy is that of senders, with
//! what this end sees; the far ends need to know nothing of it.
//!
//! Background gives way by a rule of its own, where it can: it is neither counted nor told.

use std::collections::BTreeSet;
use std::time::Duration;

use super::limiting::ELSEWHERE;
use super::{Network, link};
use crate::change::{Setting, Value};
use crate::config::Config;
use crate::model::{CaState, Class, Cookie};
use crate::peers::{Direction, Sender, UNLIMITED_KBIT};
use crate::share::{Allotment, HEADER_BYTES, Member, Sharing};
use crate::sockets::flows::Tracked;
use crate::sockets::limits::{Grounds, Terms, Wanted};
use crate::status::ReceivingView;

/// A window is what holds a connection that has more than this part of it under way.
const FULL: f64 = 0.7;
/// Who has offered, or has under way, more than so many times the window, is not yet held by it.
const DRAINING: f64 = 1.25;
/// Each change is a walk over all sockets of the machine. A window that differs by less than one part in so many is left, unless
/// nothing was changed for so long.
const MATTERS: u64 = 8;
const GAP: Duration = Duration::from_millis(500);
const NO_LONGER: &str = "it no longer receives in bulk";

pub(super) struct Downlink {
    policy: Box<dyn Allotment>,
    /// Of a segment, as the policy counts them: what the far end takes for its own says nothing of what it sends.
    payload_bytes: u32,
    sharing: Sharing,
    /// Whose windows may be ours.
    held: BTreeSet<Cookie>,
    /// From when on changes that matter little may be made again.
    next: Duration,
}

impl Downlink {
    /// None where nothing of what is received is limited.
    pub fn new(config: &Config, holds_windows: bool) -> Option<Self> {
        let policy = crate::share::of_receivers(config).filter(|_| holds_windows)?;
        Some(Self {
            policy,
            payload_bytes: config.cap.segment_bytes.saturating_sub(HEADER_BYTES).max(1),
            sharing: Sharing::default(),
            held: BTreeSet::new(),
            next: Duration::ZERO,
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

    fn note_held(&mut self, now: Duration) {
        let is_tight = self
            .downlink
            .as_ref()
            .is_some_and(|downlink| downlink.policy.is_tight());
        let held = self.own_receivers().filter(|tracked| is_held(tracked, now, is_tight));
        let held: Vec<Cookie> = held.map(|tracked| tracked.flow.cookie).collect();
        for cookie in held {
            if let Some(tracked) = self.flows.get_mut(cookie) {
                tracked.receiving.note_full(now);
            }
        }
    }

    pub(super) fn limit_receivers(&mut self, now: Duration, is_pass: bool) {
        if self.paused.is_some() {
            return;
        }
        self.note_held(now);
        let members: Vec<Member> = self.receiving_members(now).collect();
        let ifindex = self.ifindex();
        let Some(downlink) = &mut self.downlink else { return };
        let link = link(&self.neighbourhood, downlink.sharing, &self.links, ifindex);
        let limits = downlink.policy.allot(now, &link, &members);
        let terms = Terms {
            sharing: downlink.sharing,
            settled_within: downlink.policy.settled_within(),
            may_raise: is_pass,
            lifts_at_once: false,
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
            // What comes of a larger window shows at a pass.
            let is_early = !is_pass && is_larger(&held.in_force, &value);
            if is_early || now < downlink.next && is_near(&held.in_force, &value) {
                continue;
            }
            if let Some(value) = held.next(&Setting::ReceiveWindow, terms, value, &tracked.flow) {
                wanted.push((member.cookie, vec![(Setting::ReceiveWindow, value)]));
            }
        }
        let still: BTreeSet<Cookie> = members.iter().map(|member| member.cookie).collect();
        if let (Some(downlink), false) = (&mut self.downlink, wanted.is_empty()) {
            downlink.next = now + GAP;
        }
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

    /// What neighbours are told of what is received, in so many places: where these are too few it is told as one connection, for
    /// a part of them would stand for another share.
    pub(super) fn receivers_told(&self, now: Duration, places: usize) -> Vec<Sender> {
        let demand = self.downlink.as_ref().and_then(|downlink| downlink.policy.demand());
        let all: Vec<Sender> = self
            .receiving_members(now)
            .map(|member| describe(&member, demand))
            .collect();
        match all.len() <= places {
            true => all,
            false => together(&all).into_iter().collect(),
        }
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

fn is_larger(in_force: &Value, wanted: &Value) -> bool {
    matches!((in_force, wanted), (Value::Number(before), Value::Number(now)) if now > before)
}

/// That a window changes from one to the other matters little.
fn is_near(in_force: &Value, wanted: &Value) -> bool {
    match (in_force, wanted) {
        (Value::Number(before), Value::Number(now)) => before.abs_diff(*now) < before / MATTERS,
        _ => false,
    }
}

fn window(tracked: &Tracked, is_tight: bool) -> Option<f64> {
    match tracked.in_force(&Setting::ReceiveWindow) {
        Value::Number(bytes) if is_tight => Some(bytes as f64),
        _ => None,
    }
}

/// Whoever has no such window of ours is taken to want all that it can get: its sender is held by the queue.
fn is_held(tracked: &Tracked, now: Duration, is_tight: bool) -> bool {
    let rtt = tracked.receiving.rtts().map_or(0.0, |(rtt, _)| rtt.as_secs_f64());
    let under_way = tracked.receiving.rate(now) * rtt;
    window(tracked, is_tight).is_none_or(|window| under_way > FULL * window)
}

/// For the policy; None where nothing tells how long a round trip takes.
fn member(tracked: &Tracked, now: Duration, payload_bytes: u32, is_tight: bool) -> Option<Member> {
    let (rtt, min_rtt) = tracked.receiving.rtts()?;
    let rate = tracked.receiving.rate(now);
    let under_way = rate * rtt.as_secs_f64();
    let window = window(tracked, is_tight);
    let is_held = is_held(tracked, now, is_tight) || tracked.receiving.was_full(now);
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

/// As one connection: of the class and the round trips of the one with the largest window.
fn together(all: &[Sender]) -> Option<Sender> {
    let largest = all.iter().max_by_key(|one| one.cwnd_segments)?;
    let sum = |of: fn(&Sender) -> u32| all.iter().map(of).fold(0, u32::saturating_add);
    Some(Sender {
        cwnd_segments: sum(|one| one.cwnd_segments),
        queue_bytes: sum(|one| one.queue_bytes),
        delivery_rate_kbit: sum(|one| one.delivery_rate_kbit),
        ..*largest
    })
}

#[cfg(test)]
mod tests;
