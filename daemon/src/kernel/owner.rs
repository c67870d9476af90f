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
use giveway_engine::class::{Class, CommandLimits, LimitNumber, RateLimit, Rules};
use giveway_engine::matcher::{Choice, ChosenLimit, Process, ProcessId};

use super::choices::Choices;
use super::process::{Executable, Executed, Handle, Wanted, forget_most};
use super::tasks::Tasks;
use crate::lookup::{Answer, LookUps, Looked, Sessions};

/// Processes whose arguments are kept; when there are more, those of the user who has most are forgotten.
const KEPT: usize = 4096;
/// So often is one asked about that does not answer.
const TRIES: u32 = 3;

pub struct OwnerReader {
    tasks: Tasks,
    wanted: Wanted,
    executed: Executed,
    /// Another file is known of an executable than before.
    pub has_news: bool,
    paths: BTreeSet<(u32, String)>,
    need_arguments: bool,
    /// Of systemd, whose sessions are followed.
    folder: Option<String>,
    sessions: Option<Sessions>,
    look_ups: Option<LookUps>,
    arguments: BTreeMap<ProcessId, Arguments>,
    /// From the first choice on.
    choices: Option<Choices>,
    limits: CommandLimits,
}

/// Of one image of a process.
struct Arguments {
    uid: u32,
    image: u64,
    text: Option<String>,
    is_asked: bool,
    tries: u32,
}

impl OwnerReader {
    pub fn open(netns_inum: u32) -> Result<Self> {
        Ok(Self {
            tasks: Tasks::load(netns_inum)?,
            wanted: Wanted::default(),
            executed: Executed::default(),
            has_news: false,
            paths: BTreeSet::new(),
            need_arguments: false,
            folder: None,
            sessions: None,
            look_ups: None,
            arguments: BTreeMap::new(),
            choices: None,
            limits: CommandLimits::default(),
        })
    }

    /// From now on these rules are asked about.
    pub fn follow(&mut self, rules: &Rules) {
        self.paths = rules
            .executables()
            .into_iter()
            .map(|path| (0, path.to_owned()))
            .collect();
        self.need_arguments = rules.need_arguments();
        let paths = &self.paths;
        let is_named = |known: &Executable| paths.contains(&(0, known.path.clone()));
        self.wanted.executables.retain(is_named);
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
                Answer::Path { path, found, .. } => self.take_path(path, found),
                Answer::Sessions(sessions) => self.sessions = Some(sessions),
                Answer::Arguments { id, image, text } => {
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

    fn take_path(&mut self, path: String, found: Looked) {
        let before = self.wanted.executables.clone();
        self.wanted.executables.retain(|known| known.path != path);
        if let (Looked::File(target), true) = (found, self.paths.contains(&(0, path.clone()))) {
            self.wanted.executables.push(Executable { path, target });
        }
        self.has_news |= self.wanted.executables.iter().any(|known| !before.contains(known));
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
        let unknown = || Arguments {
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
        bytes_per_s: u64,
        class: Class,
        of_flows: &BTreeSet<LimitNumber>,
    ) -> Result<ChosenLimit> {
        let in_use = &self.choices()?.limits()? | of_flows;
        let given = self.limits.give(uid, bytes_per_s, class, &in_use);
        given.map_err(|why| anyhow!(why))
    }

    /// Forgets the limits of commands that have ended, with their flows. Whether there were any.
    ///
    /// # Errors
    /// Where the kernel does not tell which processes have one.
    pub fn forget_limits(&mut self, of_flows: &BTreeSet<LimitNumber>) -> Result<bool> {
        if self.limits.all().next().is_none() {
            return Ok(false);
        }
        let in_use = &self.choices()?.limits()? | of_flows;
        Ok(self.limits.keep(&in_use))
    }

    pub fn command_limits(&self) -> Vec<RateLimit> {
        self.limits.all().collect()
    }

    /// From now on this class is chosen for this process of that user, and for what it starts.
    ///
    /// # Errors
    /// Where it has ended, root has limited it, or the kernel cannot.
    pub fn choose(&mut self, pid: u32, choice: Choice) -> Result<ProcessId> {
        let handle = Handle::open(pid)?;
        let found = handle.read(&self.tasks, &Wanted::default())?;
        ensure!(
            found.started.process.uid == choice.uid,
            "its number has gone to another"
        );
        let is_roots = |before: Choice| before.uid == 0 && before.limit.is_some();
        ensure!(
            choice.uid == 0 || !found.started.process.chosen.is_some_and(is_roots),
            "root has chosen a rate limit for it, which only root lifts"
        );
        self.choices()?;
        let choices = self.choices.as_ref().context("no class can be chosen")?;
        choices.choose(&self.tasks, handle.fd(), choice)?;
        Ok(found.started.id)
    }

    fn choices(&mut self) -> Result<&Choices> {
        let choices = match self.choices.take() {
            Some(choices) => choices,
            None => Choices::open(&self.tasks)?,
        };
        Ok(self.choices.insert(choices))
    }

    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Of a process of this user.
    pub fn is_in(&self, pid: u32, uid: u32, cgroup: &str) -> bool {
        let read = |handle: Handle| handle.read(&self.tasks, &Wanted::default()).ok();
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
