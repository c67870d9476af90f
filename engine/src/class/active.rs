// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The focus: what somebody does now, by its cgroup. Bulk elsewhere is demoted to background meanwhile. Input: the
//! focus with its users; a verdict, with the user and the cgroup of its flow. Output: the final verdict.
//!
//! Root's focus and the sessions at the seats apply to everybody. A user's own focus applies to that user's flows
//! alone, beside those; at a seat it replaces the session, being more specific.

use crate::model::{Class, ROOT};
use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Verdict;

/// Named in a reason; the rest is counted.
const NAMED: usize = 2;

#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Activity {
    /// Who set it, or whose session it is.
    pub uid: u32,
    /// The session's seat; None: set by `giveway focus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seat: Option<String>,
    pub cgroup: String,
}

impl Activity {
    pub fn is_for_all(&self) -> bool {
        self.uid == ROOT || self.seat.is_some()
    }

    pub fn shown(&self) -> String {
        // The creator of a cgroup chooses its name, which must not control a terminal.
        let cgroup = self.cgroup.replace(char::is_control, "?");
        match &self.seat {
            Some(seat) => format!("{cgroup} (session of uid {} at {seat})", self.uid),
            None => format!("{cgroup} (giveway focus by uid {})", self.uid),
        }
    }
}

/// The whole focus, prepared for the flows of each user.
#[derive(Debug, Default)]
pub struct Active {
    activities: Vec<Activity>,
    for_others: Arc<Meant>,
    /// Users with an own focus.
    own: BTreeMap<u32, Arc<Meant>>,
}

/// The focus for one user's flows: a flow is outside if it is in no part of any of these.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct Meant(Vec<Vec<Activity>>);

impl Active {
    /// Sets the focus. The object of a user whose focus is unchanged stays the same.
    pub fn follow(&mut self, activities: Vec<Activity>) {
        let (for_all, own): (Vec<_>, Vec<_>) = activities.iter().cloned().partition(Activity::is_for_all);
        let meant = |own: Option<&Activity>| {
            let at_seat = |own: &Activity| for_all.iter().any(|all| all.seat.is_some() && all.uid == own.uid);
            let others = Some(for_all.clone()).filter(|all| !all.is_empty() && !own.is_some_and(at_seat));
            Meant(own.map(|own| vec![own.clone()]).into_iter().chain(others).collect())
        };
        let same = |before: Option<&Arc<Meant>>, now: Meant| match before {
            Some(before) if **before == now => Arc::clone(before),
            _ => Arc::new(now),
        };
        self.own = own
            .iter()
            .map(|own| (own.uid, same(self.own.get(&own.uid), meant(Some(own)))))
            .collect();
        self.for_others = same(Some(&self.for_others), meant(None));
        self.activities = activities;
    }

    pub fn activities(&self) -> &[Activity] {
        &self.activities
    }

    pub(crate) fn meant(&self, uid: u32) -> &Arc<Meant> {
        self.own.get(&uid).unwrap_or(&self.for_others)
    }
}

impl Meant {
    /// `cgroup`: the flow's; empty if unknown, which changes nothing.
    pub(crate) fn judge(&self, verdict: Verdict, cgroup: &str) -> Verdict {
        if verdict.class != Class::Bulk || cgroup.is_empty() {
            return verdict;
        }
        let is_outside = |part: &&Vec<Activity>| !part.iter().any(|active| is_in(cgroup, &active.cgroup));
        let Some(active) = self.0.iter().find(is_outside) else {
            return verdict;
        };
        let shown: Vec<String> = active.iter().take(NAMED).map(Activity::shown).collect();
        let more = match active.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let reason = format!(
            "{}; bulk outside of the focus is demoted to background: {}{more}",
            verdict.reason,
            shown.join(", ")
        );
        Verdict {
            class: Class::Background,
            reason,
            ..verdict
        }
    }
}

/// A cgroup contains itself. A background.slice below it is excluded: nobody looks at it.
fn is_in(cgroup: &str, active: &str) -> bool {
    let below = cgroup.strip_prefix(active.trim_end_matches('/'));
    below.is_some_and(|below| (below.is_empty() || below.starts_with('/')) && !is_in_background_slice(below))
}

pub(super) fn is_in_background_slice(cgroup: &str) -> bool {
    cgroup.split('/').any(|name| name == "background.slice")
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 1000;
    const OTHER: u32 = 1001;

    fn said(uid: u32, cgroup: &str) -> Activity {
        Activity {
            uid,
            seat: None,
            cgroup: cgroup.to_owned(),
        }
    }

    fn session(uid: u32, cgroup: &str) -> Activity {
        Activity {
            seat: Some("seat0".to_owned()),
            ..said(uid, cgroup)
        }
    }

    fn class_of(class: Class, active: &[Activity], uid: u32, cgroup: &str) -> Class {
        let verdict = Verdict {
            class,
            ..Verdict::default()
        };
        let mut all = Active::default();
        all.follow(active.to_vec());
        all.meant(uid).judge(verdict, cgroup).class
    }

    #[track_caller]
    fn assert_bulk(active: &[Activity], (uid, cgroup): (u32, &str), stays: bool) {
        let expected = if stays { Class::Bulk } else { Class::Background };
        assert_eq!(class_of(Class::Bulk, active, uid, cgroup), expected);
    }

    #[test]
    fn bulk_outside_of_the_focus_is_demoted() {
        let active = [said(0, "/a/b")];
        for (cgroup, stays) in [
            ("/a/b", true),
            ("/a/b/c", true),
            ("/a", false),
            ("/a/bc", false),
            ("/", false),
        ] {
            assert_bulk(&active, (USER, cgroup), stays);
        }
        assert_bulk(&[said(0, "/")], (USER, "/anything"), true);
        assert_bulk(&[], (USER, "/a"), true);
    }

    #[test]
    fn the_focus_demotes_only_bulk() {
        for class in Class::ALL.into_iter().filter(|class| *class != Class::Bulk) {
            for cgroup in ["/a", "/b"] {
                assert_eq!(class_of(class, &[said(0, "/a")], USER, cgroup), class, "{cgroup}");
            }
        }
    }

    #[test]
    fn the_focus_ignores_unknown_cgroups() {
        assert_bulk(&[said(0, "/a")], (USER, ""), true);
    }

    #[test]
    fn a_background_slice_is_outside_of_the_focus_unless_named() {
        let slice = "/u/app.slice/background.slice";
        assert_bulk(&[session(USER, "/u/app.slice")], (USER, slice), false);
        assert_bulk(&[said(USER, slice)], (USER, &format!("{slice}/a.service")), true);
    }

    #[test]
    fn several_common_focuses_apply_together() {
        let active = [said(0, "/robot"), session(USER, "/desk")];
        for (cgroup, stays) in [("/robot", true), ("/desk", true), ("/else", false)] {
            assert_bulk(&active, (OTHER, cgroup), stays);
        }
    }

    #[test]
    fn a_users_focus_applies_to_that_users_flows_alone() {
        let active = [said(USER, "/a")];
        assert_bulk(&active, (USER, "/b"), false);
        assert_bulk(&active, (OTHER, "/b"), true);
        assert_bulk(&active, (0, "/b"), true);
    }

    #[test]
    fn a_users_focus_adds_to_the_common_one_and_replaces_the_own_session() {
        assert_bulk(&[said(0, "/a"), said(USER, "/b")], (USER, "/b"), false);
        assert_bulk(&[session(OTHER, "/a"), said(USER, "/b")], (USER, "/b"), false);
        let at_seat = [session(USER, "/a"), said(USER, "/b")];
        assert_bulk(&at_seat, (USER, "/b"), true);
        assert_bulk(&at_seat, (USER, "/a"), false);
        assert_bulk(&at_seat, (OTHER, "/a"), true);
        assert_bulk(&at_seat, (OTHER, "/b"), false);
    }

    #[test]
    fn the_reason_names_the_former_class_and_the_focus_without_control_characters() {
        let mut all = Active::default();
        all.follow(vec![said(0, "/a\u{1b}"), session(USER, "/b"), session(USER, "/c")]);
        let verdict = Verdict {
            class: Class::Bulk,
            reason: "a rule".to_owned(),
            ..Verdict::default()
        };
        assert_eq!(
            all.meant(OTHER).judge(verdict, "/d").reason,
            "a rule; bulk outside of the focus is demoted to background: /a? (giveway focus by uid 0), \
             /b (session of uid 1000 at seat0) and 1 more"
        );
    }

    #[test]
    fn one_users_focus_does_not_reclassify_anothers_flows() {
        let mut all = Active::default();
        all.follow(vec![said(USER, "/a"), said(OTHER, "/b")]);
        let before = [USER, OTHER, 0].map(|uid| Arc::clone(all.meant(uid)));
        all.follow(vec![said(USER, "/c"), said(OTHER, "/b")]);
        let is_same = [USER, OTHER, 0].map(|uid| before.iter().any(|before| Arc::ptr_eq(before, all.meant(uid))));
        assert_eq!(is_same, [false, true, true]);
    }
}
