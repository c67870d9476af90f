// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The congestion control of connections by their class: background gives way, and has its own back when it is background
//! no longer. Input: flows with their classes. Output: requests, each with its grounds.

use std::time::Duration;

use super::Network;
use super::flows::Tracked;
use super::limiting::{Grounds, Wanted};
use crate::change::{Setting, Value};
use crate::class::Class;
use crate::model::Cookie;

/// The kernel numbers it so in every network namespace. There is nobody on it to give way to.
const LOOPBACK: u32 = 1;
/// None is chosen at the moment, which is no evidence.
const NO_ROUTE: u32 = 0;

impl Network {
    /// Asks for what these flows lack.
    pub(super) fn control(&mut self, now: Duration, cookies: &[Cookie]) {
        let Some(gives_way) = self.background_control.as_deref() else {
            return;
        };
        let mut wanted: Vec<Wanted> = Vec::new();
        for cookie in cookies {
            let next = self.flows.get_mut(*cookie).and_then(|tracked| next(tracked, gives_way));
            wanted.extend(next.map(|value| (*cookie, vec![(Setting::CongestionControl, value)])));
        }
        self.ask(now, wanted);
    }
}

/// What to ask for, if anything.
fn next(tracked: &mut Tracked, gives_way: &str) -> Option<Value> {
    let setting = Setting::CongestionControl;
    let wanted = match (tracked.class, tracked.flow.ifindex) {
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
