// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Congestion control and receive windows of connections by their class: background gives way, and has its own back when it
//! is background no longer. Input: flows with their classes. Output: requests, each with its grounds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Background, Network};
use crate::change::{Setting, Value};
use crate::model::{Class, Cookie, Protocol};
use crate::sockets::flows::Tracked;
use crate::sockets::limits::{Grounds, Wanted, shown_by};

/// The kernel numbers it so in every network namespace. There is nobody on it to give way to.
const LOOPBACK: u32 = 1;
/// None is chosen at the moment, which is no evidence.
const NO_ROUTE: u32 = 0;

/// Whatever is asked for takes one walk over all sockets of the machine (3 ms on 24 GB): one change is made at once, many
/// that come one after another are made together.
const GAP: Duration = Duration::from_millis(500);

/// As a value of a receive window: the kernel's side says how large it is.
pub const GIVES_WAY: &str = "gives way";

/// What there is to give, and who waits for it.
#[derive(Default)]
pub(super) struct Control {
    /// To what a background connection sends, and to what it receives; a setting that is not here stays as it is.
    gives_way: BTreeMap<Setting, Value>,
    next: Duration,
    waiting: BTreeSet<Cookie>,
}

impl Control {
    pub fn new(background: Background) -> Self {
        let control = background.control.map(|name| (Setting::CongestionControl, name.into()));
        let window = background
            .receive_window
            .then(|| (Setting::ReceiveWindow, Value::from(GIVES_WAY)));
        Self {
            gives_way: control.into_iter().chain(window).collect(),
            ..Self::default()
        }
    }
}

impl Network {
    /// Asks for what these flows lack.
    pub(super) fn control(&mut self, now: Duration, cookies: &[Cookie]) {
        if self.control.gives_way.is_empty() || self.paused.is_some() {
            return;
        }
        if now < self.control.next {
            self.control.waiting.extend(cookies);
            return;
        }
        let waiting = std::mem::take(&mut self.control.waiting);
        let mut wanted: Vec<Wanted> = Vec::new();
        for cookie in waiting.iter().chain(cookies) {
            let Some(tracked) = self.flows.get_mut(*cookie) else {
                continue;
            };
            // Both together starve it. An order that lets more through than the link carries does nothing.
            let order = self.downloads.orders(tracked.flow.ifindex);
            let is_ordered = order.is_some_and(|(_, order)| !order.is_too_high());
            let all = self.control.gives_way.iter();
            let next: Vec<_> = all
                .filter_map(|(setting, value)| {
                    let keeps = is_ordered && *setting == Setting::ReceiveWindow;
                    let value = if keeps { &Value::Unset(()) } else { value };
                    Some((setting.clone(), next(tracked, setting, value)?))
                })
                .collect();
            if !next.is_empty() {
                wanted.push((*cookie, next));
            }
        }
        if !wanted.is_empty() {
            self.control.next = now + GAP;
        }
        self.ask(now, wanted);
    }

    /// Somebody else has set these.
    pub(super) fn note_taken_over(&mut self, now: Duration, taken: Vec<(Cookie, Setting, Value)>) {
        for (cookie, setting, found) in taken {
            self.step_back(now, cookie, &setting, found);
        }
    }
}

/// What to ask for, if anything.
fn next(tracked: &mut Tracked, setting: &Setting, gives_way: &Value) -> Option<Value> {
    let wanted = match (tracked.class, tracked.flow.ifindex) {
        _ if tracked.flow.protocol != Protocol::Tcp => return None,
        (Class::Background, NO_ROUTE) => return None,
        (Class::Background, ifindex) if ifindex != LOOPBACK => gives_way.clone(),
        _ => Value::default(),
    };
    let in_force = tracked.in_force(setting);
    if wanted == in_force {
        return None;
    }
    let shown = shown_by(&tracked.flow).into_iter().find(|(shown, _)| shown == setting);
    let held = tracked.held.entry(setting.clone()).or_default();
    if !held.may_change() {
        return None;
    }
    if held.in_force == Value::default() {
        held.before = shown.map(|(_, value)| value).unwrap_or_default();
    }
    held.asked = Some(wanted.clone());
    Some(wanted)
}

pub(super) fn grounds(tracked: &Tracked) -> Grounds {
    let verdict = &tracked.judged.verdict;
    Grounds {
        rule: verdict.rule.clone(),
        why: format!("it is {}: {}", verdict.class.name(), verdict.why),
    }
}
