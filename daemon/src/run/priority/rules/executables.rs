// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Of the thread of rules: the executables that rules name, looked up by `lookup`, and who waits for one.

use std::time::Duration;

use anyhow::Context as _;
use giveway_engine::priority::{PriorityRule, watched};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{PendingRule, RulesLoop};
use crate::kernel::now;
use crate::kernel::process::{Executable, ProcessCriteria, Target};
use crate::lookup::{self, LookUps, PathTarget};
use crate::run::priority::ThreadRequest;

/// A start waits so long for the executables of the configuration.
const FIRST_LOOK: Duration = Duration::from_secs(2);

impl RulesLoop {
    pub(super) fn await_executables(&mut self) {
        let until = now() + FIRST_LOOK;
        let paths = watched(&self.rules).0;
        while paths.iter().any(|key| !self.files.contains_key(key))
            && let Some(look_ups) = &self.tools.look_ups
            && let Some(left) = until.checked_sub(now()).filter(|left| !left.is_zero())
        {
            self.heartbeat.beat();
            let mut source = [PollFd::new(look_ups.fd(), PollFlags::POLLIN)];
            let timeout = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
            let _ = poll(&mut source, PollTimeout::from(timeout));
            self.take_looked_up();
        }
    }

    /// Watches for what rules want now. True where that is something else than before.
    pub(super) fn follow_rules(&mut self) -> bool {
        let (paths, uids) = watched(&self.rules);
        self.files.retain(|key, _| paths.contains(key));
        match &mut self.tools.look_ups {
            Some(look_ups) => look_ups.want(&paths),
            None if !paths.is_empty() => self.start_look_ups(),
            None => {}
        }
        let known = self.files.iter().filter_map(|((_, path), looked)| match looked {
            PathTarget::File(target) => Some(Executable {
                path: path.clone(),
                target: target.clone(),
            }),
            PathTarget::Missing | PathTarget::Silent => None,
        });
        let mut executables: Vec<Executable> = known.collect();
        // Two users may name the same.
        executables.sort_by(|a, b| a.path.cmp(&b.path));
        executables.dedup_by(|a, b| a.path == b.path);
        let wanted = ProcessCriteria { executables, uids };
        if wanted == self.wanted {
            return false;
        }
        let watched = self.tools.watch.watch(wanted.inodes(), wanted.uids.clone());
        // Where that failed, the next try sees the difference still.
        if self.tolerate(watched).is_some() {
            self.wanted = wanted;
        }
        true
    }

    /// By a thread that waits in place of this one: a process is started by a path. It is back soon, as a request.
    pub(super) fn start_look_ups(&mut self) {
        if std::mem::replace(&mut self.is_starting, true) {
            return;
        }
        let (client, death) = (self.client.clone(), self.tools.death.clone());
        let start = move || client.send(ThreadRequest::LookUps(LookUps::start(death.as_deref()).map(Box::new)));
        let started = std::thread::Builder::new().name("gw-starter".to_owned()).spawn(start);
        if self.tolerate(started.context("cannot start a thread")).is_none() {
            self.is_starting = false;
        }
    }

    /// What is known now of executables, and of arguments that were asked for.
    pub(super) fn take_looked_up(&mut self) {
        let Some(look_ups) = &mut self.tools.look_ups else {
            return;
        };
        let answers = look_ups.answers();
        if answers.is_err() {
            // Another one is started when the rules are looked at next.
            self.tools.look_ups = None;
            self.unread.values_mut().for_each(|unread| unread.is_asked = false);
        }
        for answer in self.tolerate(answers).into_iter().flatten() {
            match answer {
                lookup::LookupAnswer::Path { uid, path, found } => self.take_path((uid, path), found),
                lookup::LookupAnswer::Arguments { id, image, text } => self.take_arguments(id, image, text),
                // The main loop's.
                lookup::LookupAnswer::Sessions(_) => {}
            }
            self.keep_pace();
        }
    }

    pub(super) fn take_path(&mut self, key: (u32, String), found: PathTarget) {
        if !watched(&self.rules).0.contains(&key) {
            return;
        }
        let is_known = found != PathTarget::Silent;
        self.files.insert(key.clone(), found);
        if self.follow_rules() {
            self.scan_processes();
        }
        self.answer_waiting(|waiting| waiting.key == key, is_known);
    }

    /// Those that wait for this; unless it is known, the rule goes again.
    pub(super) fn answer_waiting(&mut self, is_it: impl Fn(&PendingRule) -> bool, is_known: bool) {
        let answered: Vec<PendingRule> = self.waiting.extract_if(.., |waiting| is_it(waiting)).collect();
        for PendingRule { name, key, back, .. } in answered {
            let outcome = if is_known {
                Ok(())
            } else {
                // What it gave, if anything, goes with it.
                let _ = self.remove(&name, key.0);
                Err(format!(
                    "cannot read {} (its file system, or a directory on the way, does not answer): rule not added",
                    key.1
                ))
            };
            // The client may have gone meanwhile.
            let _ = back.send(outcome);
        }
    }

    /// Why rules wait, or match nothing.
    pub(super) fn unusable_executables(&self) -> impl Iterator<Item = String> {
        self.files.iter().filter_map(|((_, path), looked)| match looked {
            PathTarget::Silent => Some(format!(
                "cannot read {path} (its file system, or a directory on the way, does not answer): its rule \
                 waits"
            )),
            PathTarget::File(Target { is_roots: false, .. })
                if self.rules.iter().any(|rule| is_for_all(rule, path)) =>
            {
                Some(format!(
                    "others than root may write to {path}, or decide where it leads: a rule for it must name the user"
                ))
            }
            _ => None,
        })
    }
}

/// Whether a rule that names no user asks for this executable.
fn is_for_all(rule: &PriorityRule, path: &str) -> bool {
    rule.matcher.uid.is_none() && rule.matcher.exe.as_deref() == Some(path)
}
