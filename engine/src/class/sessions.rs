// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The seats and sessions of systemd-logind in `/run/systemd`. Input: its files as hostile texts. Output: the active
//! session, by its cgroups, or what is wrong.

use super::Activity;

/// Longer than any name of logind's.
const LONGEST: usize = 128;

/// A user's session; greeters have none.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LoginSession {
    uid: u32,
    scope: Option<String>,
}

/// Whether this can be a seat's file: temporary files are beside them.
pub fn is_seat(name: &str) -> bool {
    name.starts_with("seat") && is_name(name)
}

/// The active session of a seat, from its file.
///
/// # Errors
/// What is wrong, here and below.
pub fn active_session(seat: &str) -> Result<Option<&str>, String> {
    match value(seat, "ACTIVE") {
        None => Ok(None),
        Some(name) if is_name(name) => Ok(Some(name)),
        Some(_) => Err("ACTIVE names no session".to_owned()),
    }
}

impl LoginSession {
    /// From its file; None unless it is active and a user works in it.
    pub fn read(text: &str) -> Result<Option<Self>, String> {
        let is_users = value(text, "CLASS").is_some_and(|class| class.starts_with("user"));
        if value(text, "ACTIVE") != Some("1") || !is_users {
            return Ok(None);
        }
        let uid = value(text, "UID").and_then(|uid| uid.parse().ok());
        let scope = value(text, "SCOPE").map(|name| match name.strip_suffix(".scope") {
            Some(stem) if is_name(stem) => Ok(name.to_owned()),
            _ => Err("SCOPE names none".to_owned()),
        });
        Ok(Some(Self {
            uid: uid.ok_or("UID is no number of a user")?,
            scope: scope.transpose()?,
        }))
    }

    /// Its own cgroup, and the one of the user's programs.
    pub fn activities(&self, seat: &str) -> Vec<Activity> {
        let uid = self.uid;
        let app = format!("user@{uid}.service/app.slice");
        let activity = |name: &String| Activity {
            uid,
            seat: Some(seat.to_owned()),
            cgroup: format!("/user.slice/user-{uid}.slice/{name}"),
        };
        self.scope.iter().chain([&app]).map(activity).collect()
    }
}

/// The first value of this key.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once('='));
    let (_, value) = pairs.find(|(name, _)| *name == key)?;
    Some(value).filter(|value| !value.is_empty())
}

/// It is safe as a path component.
fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    !text.is_empty() && text.len() <= LONGEST && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SESSION: &str = "# This is private data.\nUID=1000\nUSER=ann\nACTIVE=1\nCLASS=user\nSCOPE=session-2.scope\n";

    #[test]
    fn a_session_consists_of_its_scope_and_its_users_programs() {
        let session = LoginSession::read(SESSION).unwrap().unwrap();
        let cgroups: Vec<_> = session.activities("seat0").into_iter().map(|a| a.cgroup).collect();
        assert_eq!(
            cgroups,
            [
                "/user.slice/user-1000.slice/session-2.scope",
                "/user.slice/user-1000.slice/user@1000.service/app.slice"
            ]
        );
    }

    #[test]
    fn greeters_and_inactive_sessions_are_ignored() {
        for (from, to) in [("user\n", "greeter\n"), ("ACTIVE=1", "ACTIVE=0"), ("CLASS=user\n", "")] {
            assert_eq!(LoginSession::read(&SESSION.replace(from, to)), Ok(None), "{to}");
        }
    }

    #[test]
    fn a_name_with_path_components_is_refused() {
        for scope in [
            "../../system.slice/a.scope",
            ".scope",
            "a/b.scope",
            "a.service",
            "a\u{1b}.scope",
        ] {
            let text = SESSION.replace("session-2.scope", scope);
            assert!(LoginSession::read(&text).is_err(), "{scope}");
        }
        assert!(LoginSession::read(&SESSION.replace("1000", "-1")).is_err());
        assert_eq!(active_session("ACTIVE=c2\n"), Ok(Some("c2")));
        assert_eq!(active_session("IS_SEAT0=1\nACTIVE=\n"), Ok(None));
        for name in ["..", "a/b", &"a".repeat(200)] {
            assert!(active_session(&format!("ACTIVE={name}")).is_err(), "{name}");
        }
        let seats = ["seat0", "seat-usb_1", ".#seat0aXb", "seat/0", "other"].map(is_seat);
        assert_eq!(seats, [true, true, false, false, false]);
    }

    proptest! {
        #[test]
        fn for_any_file_the_cgroups_stay_below_the_users(
            text in "((UID|ACTIVE|CLASS|SCOPE|X)=(1|user|[0-9]{1,12}|[./a-z\u{1b}]{0,9}\\.scope|.{0,9})\n){0,9}|.{0,99}",
        ) {
            let _ = active_session(&text);
            if let Ok(Some(session)) = LoginSession::read(&text) {
                for Activity { uid, cgroup, .. } in session.activities("seat0") {
                    let below = format!("/user.slice/user-{uid}.slice/");
                    prop_assert!(cgroup.starts_with(&below) && !cgroup.contains("..") && !cgroup.contains("//"));
                }
            }
        }
    }
}
