// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules for classes: read at the start, and again on SIGHUP and `giveway reload`. A file system or a name service
//! may keep the reader waiting, so that is another thread. Where anything is wrong, all rules stay as they were.

use std::future::pending;
use std::sync::Arc;

use anyhow::Result;
use giveway_engine::class;
use giveway_engine::class::Rules;
use giveway_engine::config::Located;
use giveway_engine::network::action::Input;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Running;
use crate::control::ReloadSummary;
use crate::rules::RuleFiles;
use crate::watchdog::guarded::GuardedDaemon;

const LATE: &str = "a folder of rules or units, or the user database, does not answer: no class rule is active \
                    until it does";
const KEPT: &str = "the rules read before stay active";

type ReadRules = (Rules, Vec<Located>);
type ReloadReply = oneshot::Sender<Result<ReloadSummary, String>>;

/// What is known of rules, and who waits for what.
pub struct ClassRules {
    files: RuleFiles,
    installed: Arc<Rules>,
    /// What is wrong with the files as they were read last, and what holds instead.
    problems: Vec<String>,
    /// What of the rules active does nothing, or less than it says.
    remarks: Vec<String>,
    /// Why executables and arguments are not looked up.
    blind: Option<String>,
    /// They were not read at the start.
    is_late: bool,
    reading: Option<JoinHandle<(ReadRules, Vec<String>)>>,
    waiting: Vec<ReloadReply>,
    /// Asked while the files were being read, which may have changed since.
    again: Option<Vec<ReloadReply>>,
}

impl ClassRules {
    pub fn new(files: RuleFiles, (rules, problems): ReadRules) -> Self {
        Self {
            files,
            remarks: remarks_of(&rules),
            installed: Arc::new(rules),
            problems: shown(&problems, "none of its rules is active"),
            blind: None,
            is_late: false,
            reading: None,
            waiting: Vec::new(),
            again: None,
        }
    }

    /// Not read yet: that begins once more with the daemon's loop.
    pub fn late(files: RuleFiles) -> Self {
        Self {
            problems: vec![LATE.to_owned()],
            is_late: true,
            ..Self::new(files, (Rules::default(), Vec::new()))
        }
    }

    pub fn len(&self) -> usize {
        self.installed.len()
    }

    /// What does not work, where limits are or are not held on some link.
    pub fn missing(&self, is_held: bool) -> impl Iterator<Item = String> {
        let limits = !is_held && self.installed.limits().iter().any(|limit| limit.up().is_some());
        let limits = limits
            .then(|| "upload limits of rules are not enforced on any link (`giveway status` says why)".to_owned());
        let said = self.problems.iter().chain(&self.remarks).cloned();
        said.chain(self.blind.clone()).chain(limits)
    }

    /// Waits for ever where nothing is being read.
    pub async fn read(&mut self) -> Option<(ReadRules, Vec<String>)> {
        match &mut self.reading {
            Some(reading) => reading.await.ok(),
            None => pending().await,
        }
    }

    fn begin(&mut self) {
        let files = self.files.clone();
        self.reading = Some(spawn_blocking(move || (files.read(), files.unread())));
    }
}

impl Running {
    pub(super) fn apply_rules(&mut self) -> Result<()> {
        let rules = self.daemon.rules.installed.clone();
        self.daemon.owners.follow(&rules);
        if std::mem::take(&mut self.daemon.rules.is_late) {
            self.begin_reload(None);
        }
        self.refresh_rules()?;
        self.step(Input::Class(class::Input::Rules(rules)))
    }

    /// What rules ask about may change at any time.
    pub(super) fn refresh_rules(&mut self) -> Result<()> {
        let daemon = &mut self.daemon;
        let death = daemon
            .guarded
            .as_ref()
            .and_then(|guarded| GuardedDaemon::death(guarded).ok());
        let looked = daemon.owners.look_up(death);
        let blind = |error: anyhow::Error| {
            format!("rules with `exe` or `cmdline` match nothing, no session is followed: {error:#}")
        };
        daemon.rules.blind = looked.err().map(blind);
        Ok(())
    }

    /// Arguments that were asked for.
    pub(super) fn take_looked_up(&mut self) -> Result<()> {
        let owners = &mut self.daemon.owners;
        let known = owners.looked_up();
        let is_more_known = std::mem::take(&mut owners.has_news);
        if known.is_empty() && !is_more_known {
            return Ok(());
        }
        let processes = known.into_iter().map(|id| (id, owners.process(id))).collect();
        if is_more_known {
            self.step(Input::Class(class::Input::ReadAgain))?;
        }
        self.step(Input::Identified {
            processes,
            cgroups: Vec::new(),
        })
    }

    pub(super) fn begin_reload(&mut self, waiting: Option<ReloadReply>) {
        let rules = &mut self.daemon.rules;
        if rules.reading.is_some() {
            rules.again.get_or_insert_default().extend(waiting);
            return;
        }
        rules.waiting.extend(waiting);
        rules.begin();
    }

    /// Returns whether there are new rules to apply.
    pub(super) fn end_reload(&mut self, read: Option<(ReadRules, Vec<String>)>) -> bool {
        let rules = &mut self.daemon.rules;
        rules.reading = None;
        let Some(((new, problems), unread)) = read else {
            return false;
        };
        rules.problems = shown(&problems, KEPT);
        let outcome = if problems.is_empty() {
            tracing::info!("class rules read: {}", new.len());
            if !unread.is_empty() {
                tracing::warn!(
                    "changed since the start, and read only at the next one: {}",
                    unread.join(", ")
                );
            }
            let reloaded = ReloadSummary {
                rules: new.len(),
                unread,
            };
            rules.remarks = remarks_of(&new);
            rules.installed = Arc::new(new);
            Ok(reloaded)
        } else {
            for problem in &rules.problems {
                tracing::warn!("{problem}");
            }
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            Err(format!("{}; {KEPT}", problems.join("; ")))
        };
        for waiting in std::mem::take(&mut rules.waiting) {
            // The client may have gone meanwhile.
            let _ = waiting.send(outcome.clone());
        }
        if let Some(again) = rules.again.take() {
            rules.waiting = again;
            rules.begin();
        }
        outcome.is_ok()
    }
}

/// With a line of the log for each.
fn remarks_of(rules: &Rules) -> Vec<String> {
    let remarks = rules.remarks();
    let lines: Vec<String> = remarks
        .iter()
        .map(|(place, reason)| format!("{place}: {reason}"))
        .collect();
    lines.iter().for_each(|line| tracing::warn!("{line}"));
    lines
}

fn shown(problems: &[Located], instead: &str) -> Vec<String> {
    problems.iter().map(|problem| format!("{problem}; {instead}")).collect()
}
