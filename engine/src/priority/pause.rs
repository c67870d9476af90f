// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pause of all real-time priority, for an A/B test. Processes that had it, or would have got it meanwhile, are
//! requested again at the end, within the same limits. No budget pays for it.

use std::collections::BTreeSet;
use std::time::Duration;

#[cfg(feature = "corpus")]
use super::call::Call;
use super::matched::Standing;
use super::{Action, Priority};
use crate::model::ProcessId;

/// Longer than any pause, whose end is reported.
const LONGEST: Duration = Duration::from_secs(3600);
const WHY: &str = "giveway is paused";

#[derive(Debug)]
pub(super) struct Pause {
    pub reason: String,
    /// Processes that get it at the end.
    pub had: BTreeSet<ProcessId>,
}

impl Priority {
    /// Revokes everything, for this reason.
    pub fn pause(&mut self, now: Duration, reason: String) -> Vec<Action> {
        #[cfg(feature = "corpus")]
        self.note(now, &Call::Pause);
        let had = self.having.clone();
        for id in &had {
            let Some(old) = self.held.get(id).map(|held| held.old.clone()) else {
                continue;
            };
            self.record_loss(*id, old, reason.clone());
            self.set_standing(*id, Standing::Without);
            self.after_chains(now, Action::Revoke { id: *id });
        }
        self.paused = Some(Pause { reason, had });
        self.napi.lower(now, LONGEST, WHY, &mut self.actions);
        self.chains.bar_all(now, LONGEST, WHY, &mut self.actions);
        self.release();
        self.take_actions()
    }

    pub fn resume(&mut self, now: Duration) -> Vec<Action> {
        #[cfg(feature = "corpus")]
        self.note(now, &Call::Resume);
        let Some(pause) = self.paused.take() else {
            return Vec::new();
        };
        for id in pause.had {
            self.give_again(now, id);
        }
        self.napi.end_wait(now);
        self.chains.unbar_all(now, &mut self.actions);
        self.release();
        // Processes started meanwhile for which there was no room.
        self.actions.push(Action::ScanProcesses);
        self.take_actions()
    }

    fn give_again(&mut self, now: Duration, id: ProcessId) {
        let Some(held) = self.held.get(&id).filter(|held| held.standing == Standing::Without) else {
            return;
        };
        let (schedule, tasks) = (held.schedule.clone(), held.tasks);
        match self.may_grant(now, &held.as_rule(), tasks) {
            Ok(()) => {
                self.set_standing(id, Standing::Asked);
                self.after_chains(now, Action::Grant { id, schedule });
            }
            Err(reason) => {
                self.counters.refused += 1;
                self.record_gain(id, format!("no real-time priority: {reason}"), false);
            }
        }
    }
}
