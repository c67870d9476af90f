// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of the engine that limits connections: asks the policy, requests what differs, and takes in what became
//! of the requests.

use std::time::Duration;

use super::action::{Action, Outcome};
use super::pause::PAUSE;
use super::{Network, control, link, name_of};
use crate::change::{Change, Setting, Subject, Value};
use crate::model::Cookie;
use crate::share::{Limits, Link, Member};
use crate::sockets::limits::{Doubt, Grounds, SETTINGS, Terms, Wanted, shown_by};

/// Why a limit was lifted that a policy would have kept.
pub(super) const ELSEWHERE: &str = "the connection no longer leaves by the managed interface";

impl Network {
    pub(super) fn limit_senders(&mut self, now: Duration, is_pass: bool) {
        if self.paused.is_some() {
            return;
        }
        let members: Vec<Member> = self.own_senders().filter_map(|tracked| tracked.member()).collect();
        let link = link(&self.neighbourhood, self.sharing, &self.links, self.ifindex());
        let limits = self.policy.allot(now, &link, &members);
        let terms = Terms {
            sharing: self.sharing,
            settled_within: self.policy.settled_within(),
            may_raise: is_pass,
            lifts_at_once: self.policy.lifts_at_once(),
        };
        let mut wanted: Vec<Wanted> = Vec::new();
        for (member, limits) in members.iter().zip(limits) {
            let Some(tracked) = self.flows.get_mut(member.cookie) else {
                continue;
            };
            if limits == Limits::default() && tracked.held.is_empty() {
                continue;
            }
            let mut next = Vec::new();
            for setting in SETTINGS {
                let value = limits.of(&setting);
                if value == Value::default() && !tracked.held.contains_key(&setting) {
                    continue;
                }
                let held = tracked.held.entry(setting.clone()).or_default();
                if let Some(value) = held.next(&setting, terms, value, &tracked.flow) {
                    next.push((setting, value));
                }
            }
            wanted.push((member.cookie, next));
        }
        self.ask(now, wanted);
    }

    /// Limits that are left over from busier times: of connections that no longer leave by the managed interface they
    /// are lifted, of those that have nothing to send now they are raised to what a new one would get.
    pub(super) fn limit_idle(&mut self, now: Duration) {
        if self.paused.is_some() {
            return;
        }
        let ifindex = self.ifindex();
        let link = link(&self.neighbourhood, self.sharing, &self.links, self.ifindex());
        let newcomer = self.policy.newcomer(&link);
        let mut wanted: Vec<Wanted> = Vec::new();
        for tracked in self.flows.iter_mut().filter(|tracked| !tracked.held.is_empty()) {
            let Some(rtt) = tracked.rtt() else { continue };
            // 0: no route is chosen at the moment, which is no evidence.
            let is_elsewhere = ![Some(0), ifindex].contains(&Some(tracked.flow.ifindex));
            let limits = match is_elsewhere {
                true => Limits::default(),
                false => newcomer(rtt),
            };
            let mut next = Vec::new();
            for (setting, held) in tracked
                .held
                .iter_mut()
                .filter(|(setting, _)| SETTINGS.contains(setting))
            {
                let wish = limits.of(setting);
                let raises = match (&held.in_force, &wish) {
                    (Value::Unset(()), _) => continue,
                    (Value::Number(now), Value::Number(wish)) => wish > now,
                    (now, wish) => now != wish,
                };
                if held.may_change() && (is_elsewhere || (!tracked.sending && raises)) {
                    held.asked = Some(wish.clone());
                    next.push((setting.clone(), wish));
                }
            }
            wanted.push((tracked.flow.cookie, next));
        }
        drop(newcomer);
        self.ask(now, wanted);
    }

    /// The table for connections yet to come.
    pub(super) fn limit_new_connections(&mut self) {
        let caps: Vec<u32> = match self.interface {
            Some(_) if self.paused.is_none() => {
                let newcomer = self.policy.newcomer(&self.link());
                let rtts = self.rtt_resolution.iter();
                rtts.map(|rtt| newcomer(*rtt).cwnd.unwrap_or(0)).collect()
            }
            _ => vec![0; self.rtt_resolution.len()],
        };
        let is_empty = caps.iter().all(|cap| *cap == 0);
        let table = (self.ifindex().filter(|_| !is_empty).unwrap_or(0), caps);
        if table != self.cap_new && !self.dry_run {
            self.cap_new.clone_from(&table);
            let (ifindex, caps) = table;
            self.actions.push(Action::CapNew { ifindex, caps });
        }
    }

    /// Values were seen that giveway did not set.
    pub(super) fn resolve_doubts(&mut self, now: Duration, doubtful: Vec<(Cookie, Setting, Doubt)>) {
        for (cookie, setting, doubt) in doubtful {
            if let Doubt::Written { before } = doubt {
                let grounds = self.grounds(cookie, &setting);
                let written = self.flows.get(cookie).map(|tracked| tracked.in_force(&setting));
                self.note_limit(
                    now,
                    cookie,
                    &setting,
                    (before, written.unwrap_or_default()),
                    grounds,
                    true,
                );
                continue;
            }
            let Some(tracked) = self.flows.get_mut(cookie) else {
                continue;
            };
            let shown = shown_by(&tracked.flow).into_iter().find(|(shown, _)| *shown == setting);
            let found = shown.map(|(_, found)| found).unwrap_or_default();
            let held = tracked.held.entry(setting.clone()).or_default();
            if found == Value::default() {
                self.step_back(now, cookie, &setting, found);
            } else if !held.deferred {
                // Only the kernel knows whether giveway has set this; it refuses if not.
                let wanted = held.wanted.as_ref().map(|(_, wanted)| wanted);
                let wish = wanted.unwrap_or(&held.in_force).clone();
                held.asked = Some(wish.clone());
                self.ask(now, vec![(cookie, vec![(setting, wish)])]);
            }
        }
    }

    pub(super) fn note_capped(&mut self, now: Duration, new: Vec<(Cookie, u32)>) {
        for (cookie, cap) in new {
            self.flows.capped_at_connect(cookie, cap);
            let link = Link {
                sharing: self.sharing.with_one_more(),
                ..self.link()
            };
            let rtt = self.flows.get(cookie).and_then(|tracked| tracked.rtt());
            let reason = self.policy.reason(&link, rtt.unwrap_or_default());
            let grounds = Grounds {
                rule: self.policy.name().to_owned(),
                why: format!("a new connection; {reason}"),
            };
            let values = (Value::default(), Some(cap).into());
            self.note_limit(now, cookie, &Setting::Cap, values, grounds, !self.dry_run);
        }
    }

    pub(super) fn ask(&mut self, now: Duration, wanted: Vec<Wanted>) {
        for (cookie, limits) in wanted.into_iter().filter(|(_, limits)| !limits.is_empty()) {
            if self.dry_run {
                let settings = limits.iter().map(|(setting, _)| setting);
                settings.for_each(|setting| self.conclude(now, cookie, setting, Outcome::Applied));
            } else {
                self.actions.push(Action::Limit { cookie, limits });
            }
        }
    }

    pub(super) fn conclude(&mut self, now: Duration, cookie: Cookie, setting: &Setting, outcome: Outcome) {
        let grounds = self.grounds(cookie, setting);
        let Some(tracked) = self.flows.get_mut(cookie) else {
            return;
        };
        let Some(held) = tracked.held.get_mut(setting) else {
            return;
        };
        let Some(asked) = held.asked.take() else { return };
        let old = held.in_force.clone();
        match outcome {
            Outcome::Applied => {
                held.unanswered = None;
                held.in_force = asked.clone();
                self.note_limit(now, cookie, setting, (old, asked), grounds, !self.dry_run);
            }
            Outcome::Deferred => held.deferred = true,
            Outcome::Unknown => (held.deferred, held.unanswered) = (true, Some(asked)),
            Outcome::Gone => {
                self.flows.forget(cookie);
                self.end(cookie);
            }
            Outcome::Foreign { found } => self.step_back(now, cookie, setting, found),
            Outcome::Failed { errno } => {
                held.stepped_back = true;
                let why = format!("the kernel refused it ({errno}); this setting is left alone from now on");
                self.note_limit(now, cookie, setting, (old, asked), Grounds { why, ..grounds }, false);
            }
            Outcome::Unable => {
                held.stepped_back = true;
                let why = "giveway does not set this here: `giveway status` says why, under degraded".to_owned();
                self.note_limit(now, cookie, setting, (old, asked), Grounds { why, ..grounds }, false);
            }
        }
    }

    pub(super) fn step_back(&mut self, now: Duration, cookie: Cookie, setting: &Setting, found: Value) {
        let grounds = self.grounds(cookie, setting);
        let tracked = self.flows.get_mut(cookie);
        let Some(held) = tracked.and_then(|tracked| tracked.held.get_mut(setting)) else {
            return;
        };
        held.stepped_back = true;
        let values = (std::mem::take(&mut held.in_force), found);
        let why = "another tool has set it; giveway leaves it alone from now on".to_owned();
        self.note_limit(now, cookie, setting, values, Grounds { why, ..grounds }, !self.dry_run);
    }

    fn grounds(&self, cookie: Cookie, setting: &Setting) -> Grounds {
        if let Some(why) = &self.paused {
            return Grounds {
                rule: PAUSE.to_owned(),
                why: why.clone(),
            };
        }
        let tracked = self.flows.get(cookie);
        if let (Setting::CongestionControl | Setting::ReceiveWindow, Some(tracked)) = (setting, tracked) {
            return control::grounds(tracked);
        }
        let is_elsewhere = tracked.is_some_and(|tracked| Some(tracked.flow.ifindex) != self.ifindex());
        let rtt = tracked.and_then(|tracked| tracked.rtt());
        Grounds {
            rule: self.policy.name().to_owned(),
            why: match is_elsewhere {
                true => ELSEWHERE.to_owned(),
                false => self.policy.reason(&self.link(), rtt.unwrap_or_default()),
            },
        }
    }

    fn note_limit(
        &mut self,
        now: Duration,
        cookie: Cookie,
        setting: &Setting,
        (old, new): (Value, Value),
        Grounds { rule, why }: Grounds,
        made: bool,
    ) {
        let tracked = self.flows.get(cookie);
        let held = tracked.and_then(|tracked| tracked.held.get(setting));
        let before = held.map(|held| held.before.clone()).unwrap_or_default();
        let shown = |value: Value| {
            if value == Value::default() {
                before.clone()
            } else {
                value
            }
        };
        let change = Change {
            subject: Subject::Socket { cookie },
            name: tracked.map(|tracked| name_of(&tracked.flow)).unwrap_or_default(),
            setting: setting.clone(),
            old: shown(old),
            new: shown(new),
            rule,
            why,
            made,
        };
        self.note(now, change);
    }
}
