// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Of the thread of rules: what the main loop asks for, on behalf of those who ask it.

use std::sync::Arc;
use std::time::Duration;

use giveway_engine::model::ProcessId;
use giveway_engine::priority::{self, PriorityRule, PriorityStatus, Schedule, StartedProcess};

use super::{PendingRule, RulesLoop};
use crate::kernel::now;
use crate::kernel::process::Handle;
use crate::run::priority::ThreadRequest;

/// Who adds a rule waits so long for its executable: a client gives up after 2 s.
const RULE_WAITS: Duration = Duration::from_millis(1200);

impl RulesLoop {
    pub(super) fn answer(&mut self, request: ThreadRequest) {
        // The client may have gone meanwhile, here and below.
        match request {
            ThreadRequest::Status(back) => drop(back.send(self.status())),
            ThreadRequest::Add(rule, uid, gids, back) => {
                let (name, exe) = (rule.name.clone(), rule.matcher.exe.clone());
                let added = self.engine.lock().add_rule(*rule, uid, &gids);
                self.rules = self.engine.lock().rules();
                let outcome = added.map(|actions| drop(self.carry_out(actions, None)));
                let key = exe.map(|exe| (uid, exe)).filter(|key| !self.files.contains_key(key));
                match (key, &outcome) {
                    (Some(key), Ok(())) => self.waiting.push(PendingRule {
                        name,
                        key,
                        back,
                        until: now() + RULE_WAITS,
                    }),
                    _ => drop(back.send(outcome)),
                }
            }
            ThreadRequest::Remove(name, uid, back) => drop(back.send(self.remove(&name, uid))),
            ThreadRequest::LookUps(started) => {
                self.is_starting = false;
                self.tools.look_ups = self.tolerate(started).map(|look_ups| *look_ups);
                if self.tools.look_ups.is_some() {
                    self.follow_rules();
                } else {
                    self.answer_waiting(|_| true, false);
                }
            }
            ThreadRequest::Launch(pid, schedule, uid, gids, back) => {
                drop(back.send(self.launch(pid, schedule, uid, &gids)));
            }
            ThreadRequest::NapiThreads(threads, priority) => {
                self.feed(priority::Input::NapiThreads { threads, priority }, None)
            }
            ThreadRequest::Pause(reason, done) => {
                // What was used until now counts for who used it.
                self.account();
                let actions = self.engine.lock().pause(now(), reason);
                self.carry_out(actions, None);
                let _ = done.send(());
            }
            ThreadRequest::Resume => {
                let actions = self.engine.lock().resume(now());
                self.carry_out(actions, None);
            }
            ThreadRequest::CarryOut(actions) => drop(self.carry_out(actions, None)),
            ThreadRequest::Report(line) => self.chains_failing = Some(line),
            ThreadRequest::Stop => {}
        }
    }

    pub(super) fn remove(&mut self, name: &str, uid: u32) -> Result<(), String> {
        // What it gave has been used until now: a rule that comes and goes is no way out of a budget.
        self.account();
        let removed = self.engine.lock().remove_rule(now(), name, uid);
        self.rules = self.engine.lock().rules();
        let actions = removed?;
        let has = |waiting: &PendingRule| {
            let is_it = |rule: &Arc<PriorityRule>| rule.name == waiting.name && rule.added_by == Some(waiting.key.0);
            self.rules.iter().any(is_it)
        };
        for waiting in self.waiting.extract_if(.., |waiting| !has(waiting)) {
            let _ = waiting.back.send(Err("the rule was removed meanwhile".to_owned()));
        }
        self.follow_removal(actions);
        Ok(())
    }

    pub(super) fn follow_removal(&mut self, actions: Vec<priority::Action>) {
        self.carry_out(actions, None);
        let held: Vec<ProcessId> = self.held.values().copied().collect();
        held.into_iter().for_each(|id| self.release_unless_held(id));
        self.follow_rules();
        // Another rule may match what this one matched.
        self.scan_processes();
    }

    /// Holds the process that asks, and gives it what it asks for.
    pub(super) fn launch(&mut self, pid: u32, schedule: Schedule, uid: u32, gids: &[u32]) -> Result<(), String> {
        let was_held = self.held.contains_key(&pid);
        self.tools.watch.hold(pid).map_err(|error| format!("{error:#}"))?;
        let asking = self.read_asking(pid, uid);
        let outcome = asking.and_then(|(handle, started)| self.give_asking(handle, started, schedule, gids));
        if !was_held && !self.held.contains_key(&pid) {
            self.tools.watch.release(pid);
        }
        outcome
    }

    pub(super) fn read_asking(&mut self, pid: u32, uid: u32) -> Result<(Handle, StartedProcess), String> {
        let unread = |reason: String| format!("process {pid} asks and cannot be read: {reason}");
        let handle = Handle::open(pid).map_err(|error| unread(error.to_string()))?;
        let found = handle
            .read(&self.tools.tasks, &self.wanted)
            .map_err(|error| unread(format!("{error:#}")))?;
        if found.started.process.uid != uid {
            return Err(unread("its number has gone to another".to_owned()));
        }
        Ok((handle, found.started))
    }

    pub(super) fn give_asking(
        &mut self,
        handle: Handle,
        started: StartedProcess,
        schedule: Schedule,
        gids: &[u32],
    ) -> Result<(), String> {
        let id = started.id;
        let actions = self.engine.lock().launch(now(), started, schedule, gids)?;
        self.held.insert(id.pid, id);
        let refused = self.carry_out(actions, Some(handle));
        self.release_unless_held(id);
        match refused {
            Some(reason) => Err(reason),
            None if self.engine.lock().is_dry_run() => Err("--dry-run changes nothing".to_owned()),
            None => Ok(()),
        }
    }

    pub(super) fn status(&self) -> PriorityStatus {
        let mut status = self.engine.lock().status(now());
        status.changes.extend(self.changes.to_vec());
        status.changes.sort_by_key(|latest| latest.t_ns);
        status.warnings.extend(self.failing.clone());
        status.warnings.extend(self.short_of.clone());
        status.warnings.extend(self.tools.donation.missing());
        status.warnings.extend(self.chains_failing.clone());
        status.warnings.extend(self.unusable_executables());
        if self.lost_events > 0 {
            status.warnings.push(format!(
                "{} process events were lost because they came too fast; all processes have been scanned again",
                self.lost_events
            ));
        }
        status
    }
}
