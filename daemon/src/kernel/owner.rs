// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose a socket is. Input: a process and the id of a cgroup, as sockets name them; what rules ask about. Output: what
//! is known of the process now, and the cgroup's path. The engine decides when to ask.
//!
//! What a user may keep from ever answering (the executables that rules name, arguments, sessions) is looked up by processes apart
//! ([`crate::lookup`]), which are there only while a rule needs them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::PipeReader;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use giveway_engine::class::{CommandLimits, Rules};
use giveway_engine::enforcement::elsewhere::Elsewhere;
use giveway_engine::model::{Choice, ChosenLimit, Class, Limit, LimitNumber, Process, ProcessId, Rates, RuleId};

use super::inherit::{EarlierRecords, Inheritance, InheritingProcess, left};
use super::is_shortage;
use super::libbpf_log::one_line;
use super::process::{ExecHistory, Executable, Handle, ProcessCriteria, forget_most};
use super::tasks::{ProcessFacts, Tasks};
use crate::lookup::{LookUps, LookupAnswer, PathTarget, Sessions};
use crate::pins::Pins;

/// Processes whose arguments are kept; when there are more, those of the user who has most are forgotten.
const KEPT: usize = 4096;
/// So often is one asked about that does not answer.
const TRIES: u32 = 3;

pub struct OwnerReader {
    tasks: Tasks,
    wanted: ProcessCriteria,
    executed: ExecHistory,
    /// Another file is known of an executable than before.
    pub has_news: bool,
    paths: BTreeSet<(u32, String)>,
    need_arguments: bool,
    /// Of systemd, whose sessions are followed.
    folder: Option<String>,
    sessions: Option<Sessions>,
    look_ups: Option<LookUps>,
    arguments: BTreeMap<ProcessId, ImageArguments>,
    netns_inum: u32,
    /// None in a dry run.
    pins: Option<Pins>,
    /// From the first choice on, or the first rule that is inherited.
    inheritance: Option<Inheritance>,
    /// By which rule what runs an executable hands its class on.
    inherited_by: BTreeMap<String, RuleId>,
    rules_are_inherited: bool,
    /// Why nothing is inherited.
    not_inherited: Option<String>,
    limits: CommandLimits,
}

/// Of one image of a process.
struct ImageArguments {
    uid: u32,
    image: u64,
    text: Option<String>,
    is_asked: bool,
    tries: u32,
}

impl OwnerReader {
    /// With what processes have chosen and inherited before. `pins`: None in a dry run.
    pub fn open(netns_inum: u32, pins: Option<Pins>) -> Result<Self> {
        let left = pins.as_ref().map(left).transpose();
        let records = match left {
            Ok(Some(EarlierRecords::Records(map))) => Some(map),
            Ok(Some(EarlierRecords::Another(name))) => {
                tracing::warn!(
                    "what running commands have chosen with `giveway exec`, and processes inherited, was written by another \
                     version ({name}) and is forgotten: start such a command again"
                );
                if let Some(Err(error)) = pins.as_ref().map(Pins::remove_records) {
                    tracing::warn!("{error:#}");
                }
                None
            }
            Ok(_) => None,
            Err(error) => {
                tracing::warn!("what running commands have chosen with `giveway exec` is not known: {error:#}");
                None
            }
        };
        let mut owners = Self::with(Tasks::load_with(netns_inum, records.as_ref())?, netns_inum, pins);
        if records.is_some() {
            let found = owners.inheritance().and_then(Inheritance::limits);
            match found {
                Ok(found) => owners
                    .limits
                    .restore(found.into_values().map(|found| (found.uid, found.limit))),
                Err(error) => owners.note_inheritance(Err(error)),
            }
        }
        Ok(owners)
    }

    fn with(tasks: Tasks, netns_inum: u32, pins: Option<Pins>) -> Self {
        Self {
            tasks,
            wanted: ProcessCriteria::default(),
            executed: ExecHistory::default(),
            has_news: false,
            paths: BTreeSet::new(),
            need_arguments: false,
            folder: None,
            sessions: None,
            look_ups: None,
            arguments: BTreeMap::new(),
            netns_inum,
            pins,
            inheritance: None,
            inherited_by: BTreeMap::new(),
            rules_are_inherited: false,
            not_inherited: None,
            limits: CommandLimits::default(),
        }
    }

    /// From now on these rules are asked about.
    pub fn follow(&mut self, rules: &Rules) {
        self.paths = rules
            .executables()
            .into_iter()
            .map(|path| (0, path.to_owned()))
            .collect();
        self.need_arguments = rules.need_arguments();
        self.rules_are_inherited = rules.are_inherited();
        let inherited_by = rules.inherited_by_executable().into_iter();
        self.inherited_by = inherited_by.map(|(exe, rule)| (exe.to_owned(), rule)).collect();
        let paths = &self.paths;
        let is_named = |known: &Executable| paths.contains(&(0, known.path.clone()));
        self.wanted.executables.retain(is_named);
        self.set_rule_files();
    }

    pub fn rules_are_inherited(&self) -> bool {
        self.rules_are_inherited
    }

    /// What does not work.
    pub fn missing(&self) -> impl Iterator<Item = &String> {
        let unpinned = self
            .inheritance
            .as_ref()
            .and_then(|inheritance| inheritance.unpinned.as_ref());
        self.not_inherited.iter().chain(unpinned)
    }

    /// The kernel decides at an exec for rules that ask for nothing but the executable.
    fn set_rule_files(&mut self) {
        if !self.rules_are_inherited && self.inheritance.is_none() {
            return;
        }
        let rule_of = |known: &Executable| Some((known.target.file, *self.inherited_by.get(&known.path)?));
        let files: Vec<_> = self.wanted.executables.iter().filter_map(rule_of).collect();
        let outcome = self.inheritance().and_then(|inheritance| inheritance.set_files(&files));
        self.note_inheritance(outcome);
    }

    /// Writes down what processes hand on by rule, and what follows for those that they have started.
    ///
    /// # Errors
    /// Where something is short; what does not work for good, [`Self::missing`] says.
    pub fn hand_down(&mut self, named: &[InheritingProcess]) -> Result<()> {
        let done = self.inheritance().and_then(|inheritance| inheritance.hand_down(named));
        match done {
            Err(error) if is_shortage(&error) => Err(error),
            done => {
                self.note_inheritance(done);
                Ok(())
            }
        }
    }

    fn note_inheritance(&mut self, done: Result<()>) {
        let reason = done.err().map(|error| {
            let reason = one_line(&error);
            format!("what a program starts does not belong to its class: {reason}; trying again each second")
        });
        if let Some(reason) = reason
            .as_ref()
            .filter(|reason| self.not_inherited.as_ref() != Some(reason))
        {
            tracing::warn!("{reason}");
        }
        self.not_inherited = reason;
    }

    /// How many processes keep what they have chosen or inherited for the next daemon; where that is none, nothing is kept.
    pub fn leave(&mut self) -> Result<usize> {
        let (Some(pins), Some(inheritance)) = (&self.pins, &self.inheritance) else {
            return Ok(0);
        };
        let kept = inheritance.inheriting()?;
        if kept == 0 {
            pins.remove_records()?;
        }
        Ok(kept)
    }

    /// From now on the sessions that this folder of systemd's tells of are looked up.
    pub fn follow_sessions(&mut self, folder: String) {
        self.folder = Some(folder);
    }

    /// Those at the seats, where that is news.
    pub fn sessions(&mut self) -> Option<Sessions> {
        self.sessions.take()
    }

    /// Brings what is looked up up to date. `death`: of the daemon.
    pub fn look_up(&mut self, death: Option<PipeReader>) -> Result<()> {
        if self.paths.is_empty() && !self.need_arguments && self.folder.is_none() {
            self.look_ups = None;
            return Ok(());
        }
        if self.look_ups.is_none() {
            self.look_ups = Some(LookUps::start(death.as_ref())?);
        }
        if let Some(look_ups) = &mut self.look_ups {
            look_ups.want(&self.paths);
            if let Some(folder) = &self.folder {
                look_ups.follow_sessions(folder);
            }
        }
        Ok(())
    }

    /// Takes what was looked up meanwhile; returns the processes whose arguments are known now.
    pub fn looked_up(&mut self) -> Vec<ProcessId> {
        let Some(look_ups) = &mut self.look_ups else {
            return Vec::new();
        };
        let Ok(answers) = look_ups.answers() else {
            // Another one is started within a second.
            self.look_ups = None;
            self.arguments
                .values_mut()
                .for_each(|arguments| arguments.is_asked = false);
            return Vec::new();
        };
        let mut known = Vec::new();
        for answer in answers {
            match answer {
                LookupAnswer::Path { path, found, .. } => self.take_path(path, found),
                LookupAnswer::Sessions(sessions) => self.sessions = Some(sessions),
                LookupAnswer::Arguments { id, image, text } => {
                    if let Some(arguments) = self.arguments.get_mut(&id)
                        && arguments.image == image
                    {
                        (arguments.is_asked, arguments.tries) = (false, arguments.tries + 1);
                        arguments.text = text;
                        known.push(id);
                    }
                }
            }
        }
        known
    }

    fn take_path(&mut self, path: String, found: PathTarget) {
        let before = self.wanted.executables.clone();
        self.wanted.executables.retain(|known| known.path != path);
        if let (PathTarget::File(target), true) = (found, self.paths.contains(&(0, path.clone()))) {
            self.wanted.executables.push(Executable { path, target });
        }
        let is_more = self.wanted.executables.iter().any(|known| !before.contains(known));
        self.has_news |= is_more;
        if is_more || self.wanted.executables.len() != before.len() {
            self.set_rule_files();
        }
    }

    /// None where it has ended, or its number is another's now.
    pub fn process(&mut self, id: ProcessId) -> Option<Arc<Process>> {
        let mut found = Handle::open(id.pid)
            .ok()?
            .read_any_thread(&self.tasks, &self.wanted)
            .ok()?;
        if found.started.id != id {
            return None;
        }
        self.executed.recall(&mut found);
        let mut process = found.started.process;
        if self.need_arguments {
            process.cmdline = self.arguments(id, found.image, process.uid);
        }
        Some(Arc::new(process))
    }

    /// Empty until they are known.
    fn arguments(&mut self, id: ProcessId, image: u64, uid: u32) -> String {
        if self.arguments.len() >= KEPT && !self.arguments.contains_key(&id) {
            forget_most(&mut self.arguments, |arguments| arguments.uid);
        }
        let unknown = || ImageArguments {
            uid,
            image,
            text: None,
            is_asked: false,
            tries: 0,
        };
        let known = self.arguments.entry(id).or_insert_with(unknown);
        if known.image != image {
            *known = unknown();
        }
        if known.text.is_none() && !known.is_asked && known.tries < TRIES {
            let look_ups = self.look_ups.as_ref();
            known.is_asked = look_ups.is_some_and(|look_ups| look_ups.arguments(uid, id, image));
        }
        known.text.clone().unwrap_or_default()
    }

    /// A rate limit for a command of this user's, which is about to be chosen. `of_flows`: numbers of limits that flows
    /// still have, whatever has become of their processes.
    pub fn limit_command(
        &mut self,
        uid: u32,
        rates: Rates,
        class: Option<Class>,
        of_flows: &BTreeSet<LimitNumber>,
    ) -> Result<ChosenLimit> {
        let in_use = &self.inheritance()?.limits_in_use()? | of_flows;
        let given = self.limits.give(uid, rates, class.unwrap_or(Class::Standard), &in_use);
        given.map_err(|reason| anyhow!(reason))
    }

    /// Forgets the limits of commands that have ended, with their flows. Whether there were any.
    ///
    /// # Errors
    /// Where the kernel does not tell which processes have one.
    pub fn forget_limits(&mut self, of_flows: &BTreeSet<LimitNumber>) -> Result<bool> {
        if self.limits.all().next().is_none() {
            return Ok(false);
        }
        let in_use = &self.inheritance()?.limits_in_use()? | of_flows;
        Ok(self.limits.keep(&in_use))
    }

    /// The same limit, with these rates from now on.
    pub fn change_limit(&mut self, limit: Limit) {
        self.limits.change(limit);
    }

    /// Limits that were given by the daemon before.
    pub fn restore_limits(&mut self, given: impl Iterator<Item = (u32, Limit)>) {
        self.limits.restore(given);
    }

    pub fn command_limits(&self) -> Vec<Limit> {
        self.limits.all().collect()
    }

    /// From now on this class is chosen for this process of that user, and for what it starts.
    ///
    /// # Errors
    /// Where it has ended, root has limited it, or the kernel cannot.
    pub fn choose(&mut self, pid: u32, choice: Choice) -> Result<ProcessId> {
        let handle = Handle::open(pid)?;
        let found = handle.read(&self.tasks, &ProcessCriteria::default())?;
        ensure!(
            found.started.process.uid == choice.uid,
            "its number has gone to another"
        );
        let is_roots = |before: Choice| before.uid == 0 && before.limit.is_some();
        ensure!(
            choice.uid == 0 || !found.started.process.chosen.is_some_and(is_roots),
            "root has chosen a rate limit for it, which only root clears"
        );
        self.inheritance()?;
        let inheritance = self.inheritance.as_ref().context("no class can be chosen")?;
        inheritance.choose(&self.tasks, handle.fd(), choice)?;
        Ok(found.started.id)
    }

    /// This very process, held by its pidfd.
    ///
    /// # Errors
    /// Where it has ended, or its number is another's.
    pub fn hold(&self, id: ProcessId) -> Result<(Handle, ProcessFacts)> {
        let gone = || format!("there is no process {} any more, or another has its number", id.pid);
        let handle = Handle::of(id, &self.tasks).with_context(gone)?;
        let facts = self.tasks.process(id.pid)?.filter(|facts| facts.id == id);
        let facts = facts.with_context(gone)?;
        ensure!(handle.is_alive(), gone());
        Ok((handle, facts))
    }

    /// From now on the setting by hand of this number is for this process and what it has started.
    pub fn set_by_hand(
        &mut self,
        id: ProcessId,
        number: u8,
        uid: Option<u32>,
        treatment: u32,
    ) -> Result<BTreeSet<ProcessId>> {
        self.inheritance()?.set_by_hand(id, number, uid, treatment)
    }

    pub fn clear_by_hand(&mut self, number: u8) -> Result<BTreeSet<ProcessId>> {
        self.inheritance()?.clear_by_hand(number)
    }

    /// A bit for each number that any task has.
    pub fn set_by_hand_in_use(&mut self) -> Result<u64> {
        self.inheritance()?.set_by_hand_in_use()
    }

    /// Processes that something was chosen for, and that are in another network namespace by now.
    ///
    /// # Errors
    /// Where that cannot be told now.
    pub fn elsewhere(&self) -> Result<Vec<Elsewhere>> {
        self.inheritance
            .as_ref()
            .map_or(Ok(Vec::new()), |_| self.tasks.elsewhere())
    }

    fn inheritance(&mut self) -> Result<&Inheritance> {
        let inheritance = match self.inheritance.take() {
            Some(inheritance) => inheritance,
            None => Inheritance::open(&self.tasks, self.netns_inum, self.pins.as_ref())?,
        };
        Ok(self.inheritance.insert(inheritance))
    }

    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Of a process of this user.
    pub fn is_in(&self, pid: u32, uid: u32, cgroup: &str) -> bool {
        let read = |handle: Handle| handle.read(&self.tasks, &ProcessCriteria::default()).ok();
        let process = Handle::open(pid).ok().and_then(read).map(|found| found.started.process);
        let is_below = |path: &str| {
            path.strip_prefix(cgroup)
                .is_some_and(|below| below.is_empty() || below.starts_with('/'))
        };
        process.is_some_and(|process| process.uid == uid && is_below(&process.cgroup))
    }

    pub fn cgroup(&self, id: u64) -> Option<Arc<str>> {
        self.tasks.cgroup(id).map(|cgroup| cgroup.path.into())
    }
}
