// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The congestion control of connections by their class: background gives way, and has its own back when it is background
//! no longer. Input: flows with their classes. Output: requests, each with its grounds.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Network;
use super::flows::Tracked;
use super::limiting::{Grounds, Wanted};
use crate::change::{Setting, Value};
use crate::class::Class;
use crate::config::Protocol;
use crate::model::Cookie;

/// The kernel numbers it so in every network namespace. There is nobody on it to give way to.
const LOOPBACK: u32 = 1;
/// None is chosen at the moment, which is no evidence.
const NO_ROUTE: u32 = 0;

/// Whatever is asked for takes one walk over all sockets of the machine (3 ms on 24 GB): one change is made at once, many
/// that come one after another are made together.
const GAP: Duration = Duration::from_millis(500);

/// What there is to give, and who waits for it.
#[derive(Default)]
pub(super) struct Control {
    /// As the kernel calls it; None: background keeps its own.
    gives_way: Option<String>,
    next: Duration,
    waiting: BTreeSet<Cookie>,
}

impl Control {
    pub fn new(gives_way: Option<String>) -> Self {
        Self {
            gives_way,
            ..Self::default()
        }
    }
}

impl Network {
    /// Asks for what these flows lack.
    pub(super) fn control(&mut self, now: Duration, cookies: &[Cookie]) {
        let Some(gives_way) = self.control.gives_way.as_deref() else {
            return;
        };
        if now < self.control.next {
            self.control.waiting.extend(cookies);
            return;
        }
        let waiting = std::mem::take(&mut self.control.waiting);
        let mut wanted: Vec<Wanted> = Vec::new();
        for cookie in waiting.iter().chain(cookies) {
            let next = self.flows.get_mut(*cookie).and_then(|tracked| next(tracked, gives_way));
            wanted.extend(next.map(|value| (*cookie, vec![(Setting::CongestionControl, value)])));
        }
        if !wanted.is_empty() {
            self.control.next = now + GAP;
        }
        self.ask(now, wanted);
    }
}

/// What to ask for, if anything.
fn next(tracked: &mut Tracked, gives_way: &str) -> Option<Value> {
    let setting = Setting::CongestionControl;
    let wanted = match (tracked.class, tracked.flow.ifindex) {
        _ if tracked.flow.protocol != Protocol::Tcp => return None,
        (Class::Background, NO_ROUTE) => return None,
        (Class::Background, ifindex) if ifindex != LOOPBACK => Value::from(gives_way),
        _ => Value::default(),
    };
    if wanted == tracked.in_force(&setting) {
        return None;
    }
    let present = Value::from(tracked.flow.congestion_control.as_str());
    let held = tracked.held.entry(setting).or_default();
    if !held.may_change() {
        return None;
    }
    if held.in_force == Value::default() {
        held.before = present;
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
