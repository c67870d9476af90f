// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fate of requested settings. Input: the outcome of each request, settings that another tool has changed, and
//! those with unexpected values. Output: the changes, each with the reason of its request, and what to request again.

use crate::change::{Change, Reason, Setting, Subject, Value};
use crate::model::Cookie;
use crate::sockets::flows::{Flows, Tracked};
use crate::sockets::setting::{Doubt, Outcome, Request, shown_by};

/// The meaning of an outcome.
#[derive(Debug)]
pub enum Conclusion {
    Nothing,
    Changed(Change),
    /// The socket is closed.
    Gone,
}

impl From<Option<Change>> for Conclusion {
    fn from(change: Option<Change>) -> Self {
        change.map_or(Self::Nothing, Self::Changed)
    }
}

impl Flows {
    /// `made`: false in a dry run.
    pub fn conclude(&mut self, cookie: Cookie, setting: &Setting, outcome: Outcome, made: bool) -> Conclusion {
        let state = self
            .get_mut(cookie)
            .and_then(|tracked| tracked.settings.get_mut(setting));
        let Some((state, (asked, reason))) = state.and_then(|state| state.asked.take().map(|asked| (state, asked)))
        else {
            return Conclusion::Nothing;
        };
        let old = state.installed.clone();
        let refused = |text: String| Reason {
            reason: text,
            rule: reason.rule.clone(),
        };
        let (values, reason, made) = match outcome {
            Outcome::Applied => {
                state.unanswered = None;
                state.installed = asked.clone();
                // The reason for clearing explains nothing that is active.
                state.reason = match asked == Value::default() {
                    true => Reason::default(),
                    false => reason.clone(),
                };
                ((old, asked), reason, made)
            }
            Outcome::Deferred => {
                state.deferred = true;
                return Conclusion::Nothing;
            }
            Outcome::Unknown => {
                (state.deferred, state.unanswered) = (true, Some((asked, reason)));
                return Conclusion::Nothing;
            }
            Outcome::Gone => {
                self.forget(cookie);
                return Conclusion::Gone;
            }
            Outcome::Foreign { found } => {
                return self.report_conflict(cookie, setting, found, &reason.rule, made).into();
            }
            Outcome::Failed { errno } => {
                state.conflict = true;
                let reason = format!("the kernel refused it ({errno}); not set again on this socket");
                ((old, asked), refused(reason), false)
            }
            Outcome::Unable => {
                state.conflict = true;
                let reason = "giveway does not set this here: `giveway status` says why, under warnings".to_owned();
                ((old, asked), refused(reason), false)
            }
        };
        Conclusion::Changed(change(self.get(cookie), cookie, setting, values, reason, made))
    }

    /// Another tool has set this. `rule`: giveway's rule for it, if it never set it.
    pub fn report_conflict(
        &mut self,
        cookie: Cookie,
        setting: &Setting,
        found: Value,
        rule: &str,
        made: bool,
    ) -> Option<Change> {
        let state = self.get_mut(cookie)?.settings.get_mut(setting)?;
        state.conflict = true;
        let values = (std::mem::take(&mut state.installed), found);
        let by = std::mem::take(&mut state.reason).rule;
        let reason = Reason {
            rule: if by.is_empty() { rule.to_owned() } else { by },
            reason: "conflict: another tool set it, and giveway does not override it".to_owned(),
        };
        Some(change(self.get(cookie), cookie, setting, values, reason, made))
    }

    /// Values were seen that giveway did not set. `otherwise`: the reason, if giveway has none.
    pub fn resolve(
        &mut self,
        doubtful: Vec<(Cookie, Setting, Doubt)>,
        otherwise: &Reason,
    ) -> (Vec<Change>, Vec<Request>) {
        let (mut changes, mut requests) = (Vec::new(), Vec::new());
        for (cookie, setting, doubt) in doubtful {
            let Some(tracked) = self.get_mut(cookie) else { continue };
            let shown = shown_by(&tracked.flow).into_iter().find(|(shown, _)| *shown == setting);
            let found = shown.map(|(_, found)| found).unwrap_or_default();
            let state = tracked.settings.entry(setting.clone()).or_default();
            if let Doubt::Written { before } = doubt {
                let (values, reason) = ((before, state.installed.clone()), state.reason.clone());
                changes.push(change(Some(tracked), cookie, &setting, values, reason, true));
            } else if found == Value::default() {
                changes.extend(self.report_conflict(cookie, &setting, found, &otherwise.rule, true));
            } else if !state.deferred {
                // Only the kernel knows whether giveway has set this; it refuses if not.
                let wanted = state.wanted.as_ref().map(|(_, wanted)| wanted);
                let wish = wanted.unwrap_or(&state.installed).clone();
                let is_ours = state.reason != Reason::default();
                let reason = if is_ours { &state.reason } else { otherwise }.clone();
                let settings = vec![state.ask(&setting, wish, reason)];
                requests.push(Request { cookie, settings });
            }
        }
        (changes, requests)
    }

    /// Every setting of every socket is restored.
    pub fn suspend(&mut self, reason: &Reason) -> Vec<Request> {
        let of_socket = |tracked: &mut Tracked| {
            let installed = tracked
                .settings
                .iter_mut()
                .filter(|(_, state)| state.installed != Value::default() && state.may_change());
            let settings = installed.map(|(setting, state)| {
                state.wanted = None;
                state.ask(setting, Value::default(), reason.clone())
            });
            Request {
                settings: settings.collect(),
                cookie: tracked.flow.cookie,
            }
        };
        self.iter_mut().map(of_socket).collect()
    }

    /// The kernel set this cap as it opened.
    pub fn note_capped(&mut self, cookie: Cookie, cap: u32, reason: Reason, made: bool) -> Change {
        self.capped_at_connect(cookie, cap, reason.clone());
        let values = (Value::default(), Some(cap).into());
        change(self.get(cookie), cookie, &Setting::Cap, values, reason, made)
    }
}

fn change(
    tracked: Option<&Tracked>,
    cookie: Cookie,
    setting: &Setting,
    (old, new): (Value, Value),
    Reason { rule, reason }: Reason,
    made: bool,
) -> Change {
    let state = tracked.and_then(|tracked| tracked.settings.get(setting));
    let before = state.map(|state| state.before.clone()).unwrap_or_default();
    let shown = |value: Value| {
        if value == Value::default() {
            before.clone()
        } else {
            value
        }
    };
    Change {
        subject: Subject::Socket { cookie },
        name: tracked.map(|tracked| tracked.flow.shown()).unwrap_or_default(),
        setting: setting.clone(),
        old: shown(old),
        new: shown(new),
        rule,
        reason,
        made,
    }
}
