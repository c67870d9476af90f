// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is active, and by whose word: root and users say it of a cgroup, the sessions at the seats follow systemd-logind.
//! Whose a cgroup is, and who is in it, the kernel says; no file is opened here.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use giveway_engine::class;
use giveway_engine::class::Activity;
use giveway_engine::network::action::Input;

use super::Running;
use crate::control::server::Asker;
use crate::control::{FocusNow, FocusView, Request};
use crate::kernel::now;
use crate::kernel::owner::OwnerReader;
use crate::kernel::tasks::shown;
use crate::lookup::Sessions;

/// Who have said something, beside root: each is looked at once a second.
const USERS: usize = 64;

#[derive(Default)]
pub(super) struct FocusClaims {
    said: BTreeMap<u32, Claim>,
    sessions: Vec<Activity>,
    /// What is wrong with the files of sessions.
    pub problem: Option<String>,
    fed: Vec<Activity>,
}

/// Of a user.
struct Claim {
    /// The cgroup's.
    id: u64,
    cgroup: String,
    until: Option<Duration>,
}

impl Claim {
    fn holds(&self, owners: &OwnerReader) -> bool {
        self.until.is_none_or(|until| until > now()) && owners.cgroup(self.id).as_deref() == Some(&self.cgroup)
    }
}

impl FocusClaims {
    fn claim(&mut self, owners: &OwnerReader, asker: Asker, id: u64, for_s: Option<u32>) -> Result<(), String> {
        let users = self.said.keys().filter(|uid| **uid != 0).count();
        let uid = asker.uid;
        if uid != 0 && users >= USERS && !self.said.contains_key(&uid) {
            return Err(format!("{USERS} users have set a focus already, which is the maximum"));
        }
        let found = owners.tasks().cgroup(id).ok_or("there is no such cgroup (any more)")?;
        let path = shown(&found.path);
        if found.path.ends_with("/...") {
            return Err(format!("{path}: it is nested too deep"));
        }
        let is_in = |pid| owners.is_in(pid, uid, &found.path);
        if uid != 0 && found.uid != uid && !asker.pid.is_some_and(is_in) {
            return Err(format!(
                "{path} belongs to uid {}: users name cgroups of their own, or those that they are in",
                found.uid
            ));
        }
        let claim = Claim {
            id,
            cgroup: found.path,
            until: for_s.map(|s| now() + Duration::from_secs(s.into())),
        };
        self.said.insert(uid, claim);
        Ok(())
    }

    fn follow(&mut self, Sessions { active, problem }: Sessions) {
        let shown: Vec<String> = active.iter().map(Activity::shown).collect();
        if active != self.sessions {
            tracing::info!(
                "active by the seats: {}",
                if shown.is_empty() {
                    "nothing".to_owned()
                } else {
                    shown.join(", ")
                }
            );
        }
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.problem) {
            tracing::warn!("{problem}");
        }
        (self.sessions, self.problem) = (active, problem);
    }

    fn all(&self) -> Vec<Activity> {
        let said = self.said.iter().map(|(uid, claim)| Activity {
            uid: *uid,
            seat: None,
            cgroup: claim.cgroup.clone(),
        });
        said.chain(self.sessions.iter().cloned()).collect()
    }

    fn shown_to(&self, asker: Asker, changed: bool) -> FocusNow {
        let left_s = |activity: &Activity| {
            let until = self
                .said
                .get(&activity.uid)?
                .until
                .filter(|_| activity.seat.is_none())?;
            Some(until.saturating_sub(now()).as_secs_f64().ceil() as u64)
        };
        let is_for_asker = |activity: &Activity| asker.is_reader || activity.is_for_all() || activity.uid == asker.uid;
        let active = self.all().into_iter().filter(is_for_asker);
        FocusNow {
            focus: active
                .map(|activity| FocusView {
                    left_s: left_s(&activity),
                    activity,
                })
                .collect(),
            changed,
        }
    }
}

impl Running {
    pub(super) fn answer_focus(&mut self, request: &Request, asker: Asker) -> Result<Result<FocusNow, String>> {
        let done = match request {
            Request::Focus { cgroup, for_s } => {
                let claimed = self.active.claim(&self.daemon.owners, asker, *cgroup, *for_s);
                claimed.map(|()| true)
            }
            Request::FocusClear => Ok(self.active.said.remove(&asker.uid).is_some()),
            _ => Ok(false),
        };
        self.feed_active()?;
        Ok(done.map(|changed| self.active.shown_to(asker, changed)))
    }

    pub(super) fn follow_sessions(&mut self) -> Result<()> {
        let Some(sessions) = self.daemon.owners.sessions() else {
            return Ok(());
        };
        self.active.follow(sessions);
        self.feed_active()
    }

    /// Cgroups end, and time runs out.
    pub(super) fn expire_active(&mut self) -> Result<()> {
        let owners = &self.daemon.owners;
        self.active.said.retain(|_, claim| claim.holds(owners));
        self.feed_active()
    }

    fn feed_active(&mut self) -> Result<()> {
        let all = self.active.all();
        if all == self.active.fed {
            return Ok(());
        }
        self.active.fed.clone_from(&all);
        self.step(Input::Class(class::Input::Active(all)))
    }
}
