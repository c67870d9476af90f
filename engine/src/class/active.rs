// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What somebody does now, by the cgroup that it is in: bulk elsewhere counts as background meanwhile. Input: what is
//! active and who says so; a verdict, with the user and the cgroup of its flow. Output: the verdict that holds.
//!
//! Root's word and the sessions at the seats hold for all. A user's own word holds for that user's flows alone, beside
//! those; at a seat in place of those, as it says more exactly what the session does.

use crate::model::{Class, ROOT};
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Verdict;

/// In a reason; the others are counted.
const NAMED: usize = 2;

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Activity {
    /// Who has said so, or whose session it is.
    pub uid: u32,
    /// Where that session is; None: by `giveway focus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seat: Option<String>,
    pub cgroup: String,
}

impl Activity {
    pub fn is_for_all(&self) -> bool {
        self.uid == ROOT || self.seat.is_some()
    }

    pub fn shown(&self) -> String {
        // Whoever makes a cgroup chooses its name, which must not choose what a terminal does.
        let cgroup = self.cgroup.replace(char::is_control, "?");
        match &self.seat {
            Some(seat) => format!("{cgroup} (session of uid {} at {seat})", self.uid),
            None => format!("{cgroup} (giveway focus by uid {})", self.uid),
        }
    }
}

/// All of it, ready for the flows of each user.
#[derive(Debug, Default)]
pub struct Active {
    activities: Vec<Activity>,
    for_others: Arc<Meant>,
    /// Of users who have said something themselves.
    own: BTreeMap<u32, Arc<Meant>>,
}

/// What is meant for one user's flows: who is outside of all parts of any of these is outside.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct Meant(Vec<Vec<Activity>>);

impl Active {
    /// From now on this is active. What is meant for a user stays the same object where it says the same.
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
    /// `cgroup`: of the flow; empty where it is not known, and then nothing follows.
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
            "{}; bulk outside of what is active counts as background: {}{more}",
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

/// A cgroup is in itself. What is in a background.slice below is not: nobody looks at it.
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
    fn bulk_outside_is_background_and_inside_it_is_bulk() {
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
    fn only_bulk_is_lowered() {
        for class in Class::ALL.into_iter().filter(|class| *class != Class::Bulk) {
            for cgroup in ["/a", "/b"] {
                assert_eq!(class_of(class, &[said(0, "/a")], USER, cgroup), class, "{cgroup}");
            }
        }
    }

    #[test]
    fn where_the_cgroup_is_not_known_nothing_follows() {
        assert_bulk(&[said(0, "/a")], (USER, ""), true);
    }

    #[test]
    fn what_is_in_a_background_slice_below_is_outside_unless_it_was_named_itself() {
        let slice = "/u/app.slice/background.slice";
        assert_bulk(&[session(USER, "/u/app.slice")], (USER, slice), false);
        assert_bulk(&[said(USER, slice)], (USER, &format!("{slice}/a.service")), true);
    }

    #[test]
    fn several_that_hold_for_all_are_active_together() {
        let active = [said(0, "/robot"), session(USER, "/desk")];
        for (cgroup, stays) in [("/robot", true), ("/desk", true), ("/else", false)] {
            assert_bulk(&active, (OTHER, cgroup), stays);
        }
    }

    #[test]
    fn a_users_word_is_for_that_users_flows_alone() {
        let active = [said(USER, "/a")];
        assert_bulk(&active, (USER, "/b"), false);
        assert_bulk(&active, (OTHER, "/b"), true);
        assert_bulk(&active, (0, "/b"), true);
    }

    #[test]
    fn a_users_word_lifts_nothing_that_holds_for_all_but_at_a_seat_it_stands_for_the_session() {
        assert_bulk(&[said(0, "/a"), said(USER, "/b")], (USER, "/b"), false);
        assert_bulk(&[session(OTHER, "/a"), said(USER, "/b")], (USER, "/b"), false);
        let at_seat = [session(USER, "/a"), said(USER, "/b")];
        assert_bulk(&at_seat, (USER, "/b"), true);
        assert_bulk(&at_seat, (USER, "/a"), false);
        assert_bulk(&at_seat, (OTHER, "/a"), true);
        assert_bulk(&at_seat, (OTHER, "/b"), false);
    }

    #[test]
    fn the_reason_names_the_class_before_and_who_says_what_is_active_without_control_characters() {
        let mut all = Active::default();
        all.follow(vec![said(0, "/a\u{1b}"), session(USER, "/b"), session(USER, "/c")]);
        let verdict = Verdict {
            class: Class::Bulk,
            reason: "a rule".to_owned(),
            ..Verdict::default()
        };
        assert_eq!(
            all.meant(OTHER).judge(verdict, "/d").reason,
            "a rule; bulk outside of what is active counts as background: /a? (giveway focus by uid 0), \
             /b (session of uid 1000 at seat0) and 1 more"
        );
    }

    #[test]
    fn what_one_user_says_is_no_news_for_another() {
        let mut all = Active::default();
        all.follow(vec![said(USER, "/a"), said(OTHER, "/b")]);
        let before = [USER, OTHER, 0].map(|uid| Arc::clone(all.meant(uid)));
        all.follow(vec![said(USER, "/c"), said(OTHER, "/b")]);
        let is_same = [USER, OTHER, 0].map(|uid| before.iter().any(|before| Arc::ptr_eq(before, all.meant(uid))));
        assert_eq!(is_same, [false, true, true]);
    }
}
