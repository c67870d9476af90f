// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Congestion control and receive windows of connections by their class: background yields, and gets its own back when
//! it is background no longer. Input: flows with their classes. Output: requests, each with its reason. The CPU and
//! disk priority of background processes belongs to [`nice`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::change::{Reason, Setting, Value};
use crate::model::{Class, Cookie, Protocol};
use crate::sockets::flows::{Flows, Tracked};
use crate::sockets::setting::{Request, Wish, shown_by};

pub mod nice;

/// The kernel numbers it so in every network namespace. There is nobody to yield to on it.
const LOOPBACK: u32 = 1;
/// No route at the moment, which proves nothing.
const NO_ROUTE: u32 = 0;

/// Every request takes a scan over all sockets of the machine (3 ms on 24 GB): a single change is made at once, a
/// series of changes together.
const GAP: Duration = Duration::from_millis(500);

/// As the value of a receive window; the kernel part chooses its size.
pub const YIELDS: &str = "yields";

/// The means of yielding on this machine.
#[derive(Default)]
pub struct Means {
    /// The scavenger congestion control, by its kernel name; None: connections keep theirs.
    pub control: Option<String>,
    /// Whether receive windows can be reduced.
    pub receive_window: bool,
}

/// The means, and the flows that wait for them.
#[derive(Default)]
pub struct Background {
    /// For sending and for receiving; a setting that is absent stays unchanged.
    settings: BTreeMap<Setting, Value>,
    next: Duration,
    waiting: BTreeSet<Cookie>,
}

impl Background {
    pub fn new(means: Means) -> Self {
        let control = means.control.map(|name| (Setting::CongestionControl, name.into()));
        let window = means
            .receive_window
            .then(|| (Setting::ReceiveWindow, Value::from(YIELDS)));
        Self {
            settings: control.into_iter().chain(window).collect(),
            ..Self::default()
        }
    }

    /// Takes in flows whose settings are to follow. `is_ordered`: whether a queue holds back background downloads on a
    /// link.
    pub fn follow(
        &mut self,
        now: Duration,
        flows: &mut Flows,
        cookies: &[Cookie],
        is_ordered: impl Fn(u32) -> bool,
    ) -> Vec<Request> {
        if self.settings.is_empty() {
            return Vec::new();
        }
        if now < self.next {
            self.waiting.extend(cookies);
            return Vec::new();
        }
        let waiting = std::mem::take(&mut self.waiting);
        let mut requests = Vec::new();
        for cookie in waiting.iter().chain(cookies) {
            let Some(tracked) = flows.get_mut(*cookie) else {
                continue;
            };
            // Both together would starve it.
            let is_ordered = is_ordered(tracked.flow.ifindex);
            let of_background = self.settings.iter().map(|(setting, value)| {
                let keeps = is_ordered && *setting == Setting::ReceiveWindow;
                (setting, if keeps { &Value::Unset(()) } else { value })
            });
            let settings: Vec<Wish> = of_background
                .filter_map(|(setting, value)| next(tracked, setting, value))
                .collect();
            if !settings.is_empty() {
                let cookie = *cookie;
                requests.push(Request { cookie, settings });
            }
        }
        if !requests.is_empty() {
            self.next = now + GAP;
        }
        requests
    }
}

/// The request, if any.
fn next(tracked: &mut Tracked, setting: &Setting, of_background: &Value) -> Option<Wish> {
    let wanted = match (tracked.class, tracked.flow.ifindex) {
        _ if tracked.flow.protocol != Protocol::Tcp => return None,
        (Class::Background, NO_ROUTE) => return None,
        (Class::Background, ifindex) if ifindex != LOOPBACK => of_background.clone(),
        _ => Value::default(),
    };
    if wanted == tracked.installed(setting) {
        return None;
    }
    let shown = shown_by(&tracked.flow).into_iter().find(|(shown, _)| shown == setting);
    let reason = reason(tracked);
    let state = tracked.settings.entry(setting.clone()).or_default();
    if !state.may_change() {
        return None;
    }
    if state.installed == Value::default() {
        state.before = shown.map(|(_, value)| value).unwrap_or_default();
    }
    Some(state.ask(setting, wanted, reason))
}

fn reason(tracked: &Tracked) -> Reason {
    let verdict = &tracked.judged.verdict;
    Reason {
        rule: verdict.rule.clone(),
        reason: format!("it is {}: {}", verdict.class.name(), verdict.reason),
    }
}
