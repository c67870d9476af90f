// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processes a rule means. In come a process as it looks now and the conditions of a rule, out goes whether all
//! of them hold. Built once for every kind of rule; it reads nothing by itself.
//!
//! An executable is matched by its file, never by its name: whoever reads the process says which of the executables
//! that rules name it runs, by device and inode in the daemon's own mount namespace. So a file of the same name in
//! another root, or a renamed process, is never taken for it.

use serde::{Deserialize, Serialize};
use wildmatch::WildMatch;

/// A process, held by a pidfd where it is named so.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ProcessId {
    /// The thread group's id, as the initial pid namespace counts.
    pub pid: u32,
    /// When it was started, since boot: a pid is used again, both together are not.
    pub start_ns: u64,
}

/// What a process is, at the moment at which it is judged.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Process {
    /// As /proc shows it; for people only.
    pub exe: String,
    /// Those of the rules' executables that are this very file, in the words of the rules.
    pub executables: Vec<String>,
    /// Owned by root, and nobody else may write to it.
    pub exe_is_roots: bool,
    /// Arguments with blanks between them, cut at 4096 bytes.
    pub cmdline: String,
    /// The real and the effective user.
    pub uid: u32,
    pub euid: u32,
    /// Below the mount of the hierarchy: `/system.slice/camera.service`.
    pub cgroup: String,
}

/// The conditions of a rule; all that are given must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matcher {
    /// An absolute path.
    pub exe: Option<String>,
    /// `*` is any text, `?` any character, here and below.
    pub cmdline: Option<WildMatch>,
    /// Must be the real and the effective user, so that no setuid program lends its own.
    pub uid: Option<u32>,
    pub unit: Option<WildMatch>,
    pub cgroup: Option<WildMatch>,
}

impl Matcher {
    pub fn matches(&self, process: &Process) -> bool {
        let text = |pattern: &Option<WildMatch>, text: &str| pattern.as_ref().is_none_or(|p| p.matches(text));
        self.exe.as_ref().is_none_or(|exe| process.executables.contains(exe))
            && self.uid.is_none_or(|uid| process.uid == uid && process.euid == uid)
            && text(&self.cmdline, &process.cmdline)
            && text(&self.unit, unit_of(&process.cgroup).unwrap_or_default())
            && text(&self.cgroup, &process.cgroup)
    }

    /// Whether what it matches can be trusted with more than others have: a user is named, or only root decides what
    /// the executable does.
    pub fn is_trusted(&self, process: &Process) -> bool {
        self.uid.is_some() || (self.exe.is_some() && process.exe_is_roots)
    }

    /// In words.
    pub fn shown(&self) -> String {
        let pattern = |name, p: &Option<WildMatch>| p.as_ref().map(|p| format!("{name} {p}"));
        let conditions = [
            self.exe.as_ref().map(|exe| format!("exe {exe}")),
            pattern("cmdline", &self.cmdline),
            self.uid.map(|uid| format!("uid {uid}")),
            pattern("unit", &self.unit),
            pattern("cgroup", &self.cgroup),
        ];
        conditions.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The innermost systemd unit of a cgroup's path: systemd makes a cgroup for each, named like the unit. Below a user's own
/// manager the user chooses the names, so these are all `user@UID.service`.
pub fn unit_of(cgroup: &str) -> Option<&str> {
    let users = cgroup.split('/').find(|name| name.starts_with("user@"));
    if users.is_some() {
        return users;
    }
    let is_unit = |name: &&str| [".service", ".scope", ".slice"].iter().any(|kind| name.ends_with(kind));
    cgroup.rsplit('/').find(is_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn camera() -> Process {
        Process {
            exe: "/usr/bin/python3.11".to_owned(),
            executables: vec!["/usr/bin/python3".to_owned()],
            exe_is_roots: true,
            cmdline: "python3 camera.py --fast".to_owned(),
            uid: 1000,
            euid: 1000,
            cgroup: "/system.slice/camera@1.service/worker".to_owned(),
        }
    }

    #[test]
    fn all_conditions_that_are_given_must_hold() {
        let all = Matcher {
            exe: Some("/usr/bin/python3".to_owned()),
            cmdline: Some(WildMatch::new("*camera.py*")),
            uid: Some(1000),
            unit: Some(WildMatch::new("camera@*.service")),
            cgroup: Some(WildMatch::new("/system.slice/*")),
        };
        assert!(all.matches(&camera()));
        let others = [
            Process {
                executables: Vec::new(),
                ..camera()
            },
            Process {
                cmdline: "python3 other.py".to_owned(),
                ..camera()
            },
            Process { uid: 1001, ..camera() },
            Process {
                cgroup: "/system.slice/other.service".to_owned(),
                ..camera()
            },
            Process {
                cgroup: "/user.slice/camera@1.service".to_owned(),
                ..camera()
            },
        ];
        for other in others {
            assert!(!all.matches(&other), "{other:?}");
        }
    }

    #[test]
    fn a_setuid_program_is_neither_its_owners_nor_its_callers() {
        let passwd = Process { euid: 0, ..camera() };
        for uid in [0, 1000] {
            assert!(
                !Matcher {
                    uid: Some(uid),
                    ..Matcher::default()
                }
                .matches(&passwd)
            );
        }
    }

    #[test]
    fn only_a_user_or_an_executable_of_roots_is_trusted() {
        let by_exe = Matcher {
            exe: Some("/usr/bin/python3".to_owned()),
            ..Matcher::default()
        };
        assert!(by_exe.is_trusted(&camera()));
        assert!(!by_exe.is_trusted(&Process {
            exe_is_roots: false,
            ..camera()
        }));
        assert!(
            Matcher {
                uid: Some(1000),
                ..Matcher::default()
            }
            .is_trusted(&camera())
        );
        assert!(
            !Matcher {
                cmdline: Some(WildMatch::new("*")),
                ..Matcher::default()
            }
            .is_trusted(&camera())
        );
    }

    #[test]
    fn the_unit_is_the_innermost_one() {
        assert_eq!(
            unit_of("/user.slice/user-1000.slice/session-2.scope"),
            Some("session-2.scope")
        );
        assert_eq!(
            unit_of("/system.slice/camera@1.service/worker"),
            Some("camera@1.service")
        );
        let own = "/user.slice/user-1000.slice/user@1000.service/app.slice/camera.service";
        assert_eq!(
            unit_of(own),
            Some("user@1000.service"),
            "a user's own unit of that name"
        );
        assert_eq!(unit_of("/docker/0123"), None);
        assert_eq!(unit_of("/"), None);
    }
}
