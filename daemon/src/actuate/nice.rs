// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nice 19 and the idle I/O class for processes that are background (bpf/nice.bpf.c). Input: processes, each with the cause
//! for which it is reniced, and which causes are active. Output: what each had before; which threads somebody else has
//! set since. It never decides.
//!
//! A thread's values are saved in its own storage before they are changed. The map of saved state and the program that copies it
//! are pinned, so that both outlive the daemon; the journal `nice` names the map. So this restores too what a dead daemon
//! reniced, by the same scan. Nothing here opens a file of /proc.
//!
//! Loaded with the first process. Where that fails, the next process is another try.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use giveway_engine::background::nice::Reniced;
use giveway_engine::model::ProcessId;
use libbpf_rs::{MapCore as _, MapHandle};
use serde::{Deserialize, Serialize};

use crate::journal::register::{JournalFile, UndoHandler};
use crate::journal::{self, Entry, Irreversible, Journal, UndoReport};
use crate::life::Life;
use crate::pins::{NICE_LINKS, Pins, SAVED_TASKS, UNSAVED_TASKS};
use crate::place::Place;
use saved::{SavedTasks, Task, count_of, is_saved_tasks, unsaved_of};
use thread::{ThreadSetting, renice, shown};

mod saved;
mod thread;

pub use saved::probe;

/// Threads of a user that are set or put back in a second.
const OF_A_USER: u32 = 2048;
/// What was started while the scan went on is found by the next one.
const ROUNDS: u32 = 4;
/// Who undoes looks until nothing is found for so long: a fork that began before may make its task known later.
const QUIET: Duration = Duration::from_millis(100);
/// And no longer than this.
const PATIENCE: Duration = Duration::from_secs(4);
const BETWEEN_SCANS: Duration = Duration::from_millis(10);

pub struct NiceActuator {
    place: Place,
    life: Life,
    journal: Journal<NiceEntry>,
    /// The map of saved state.
    map: MapHandle,
    saved: Option<SavedTasks>,
    causes: BTreeSet<u32>,
    /// Why the latest process was not reniced.
    refused: Option<String>,
    /// Why something waits to be done.
    unsettled: Option<String>,
    /// Puts back what an earlier daemon has left, which takes as long as users like: nothing else waits for it.
    earlier: Option<JoinHandle<UndoReport>>,
}

pub const UNDO: UndoHandler = UndoHandler::of::<NiceEntry>(JournalFile::Nice);

/// Written down before the first process is reniced.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct NiceEntry {
    map_id: u32,
    /// The count of tasks without saved state; 0 as an earlier version wrote it.
    #[serde(default)]
    unsaved_id: u32,
}

impl NiceActuator {
    /// `map`: of saved state, by which tasks are listed. Loads nothing.
    pub fn new(place: &Place, life: Life, map: &MapHandle) -> Result<Self> {
        Ok(Self {
            journal: Journal::at(place.journal(UNDO.file)),
            place: place.clone(),
            life,
            map: MapHandle::try_from(map).context("cannot share the saved state of reniced tasks")?,
            saved: None,
            causes: BTreeSet::new(),
            refused: None,
            unsettled: None,
            earlier: None,
        })
    }

    /// What does not work.
    pub fn missing(&self) -> impl Iterator<Item = String> {
        self.refused.iter().chain(&self.unsettled).cloned()
    }

    /// What was reniced by another cause gets back what it had, in the next [`Self::settle`].
    pub fn set_causes(&mut self, causes: BTreeSet<u32>) -> Result<()> {
        self.causes = causes;
        self.saved
            .as_ref()
            .map_or(Ok(()), |saved| saved.set_causes(&self.causes))
    }

    /// Notes what is to become of all threads of a process; [`Self::settle`] does it.
    ///
    /// # Errors
    /// Where nothing has changed.
    pub fn apply(&mut self, process: ProcessId, cause: Option<u32>) -> Result<Reniced> {
        if cause.is_none() && self.saved.is_none() {
            return Ok(Reniced::default());
        }
        let outcome = self.open().and_then(|saved| saved.order(process, cause));
        self.refused = outcome
            .as_ref()
            .err()
            .map(|error| format!("background processes are not reniced: {error:#}"));
        let threads = outcome?;
        let main = threads
            .iter()
            .find(|thread| thread.tid == thread.tgid)
            .or(threads.first());
        let news = threads.iter().filter(|thread| thread.is_news > 0).count();
        let has_any = threads.iter().any(|thread| thread.is_news | thread.has > 0);
        Ok(Reniced {
            threads: u32::try_from(news)?,
            before: main.map(|main| shown(main.nice, main.ioprio)).unwrap_or_default(),
            left: main
                .filter(|_| cause.is_some() && !has_any)
                .map(|main| thread::why_left(main.policy)),
        })
    }

    /// Sets and restores what is to be restored; returns the threads that somebody else has set
    /// meanwhile. What cannot be done now is done by a later one.
    pub fn settle(&mut self) -> Vec<(ProcessId, u32, String)> {
        let mut taken = Vec::new();
        let Some(saved) = &self.saved else {
            return taken;
        };
        let mut settle = || {
            for _ in 0..ROUNDS {
                let tasks = saved.scan()?;
                taken.extend(tasks.iter().filter_map(Task::taken));
                if !renice_all(&self.map, &tasks)? {
                    break;
                }
            }
            anyhow::Ok(())
        };
        self.unsettled = settle()
            .err()
            .map(|error| format!("not every background process is nice yet, or back: {error:#}; trying again"));
        taken
    }

    fn open(&mut self) -> Result<&SavedTasks> {
        let saved = match self.saved.take() {
            Some(saved) => saved,
            None => self.load()?,
        };
        Ok(self.saved.insert(saved))
    }

    /// Pinned and journalled before anything is changed.
    fn load(&mut self) -> Result<SavedTasks> {
        // What an earlier daemon has left must not be forgotten by pinning our own map in the place of its.
        self.restore_earlier()?;
        let mut saved = SavedTasks::load(&self.map, OF_A_USER)?;
        saved.set_causes(&self.causes)?;
        let map_id = self.map.info().context("cannot query the saved state")?.info.id;
        let unsaved_id = saved.unsaved.info().context("cannot query the saved state")?.info.id;
        let (map, unsaved) = (&mut self.map, &mut saved.unsaved);
        self.place
            .pins()
            .make(|folder| {
                pin(&folder.join(SAVED_TASKS), |path| Ok(map.pin(path)?))?;
                pin(&folder.join(UNSAVED_TASKS), |path| Ok(unsaved.pin(path)?))?;
                let mut links = NICE_LINKS.into_iter().zip(&mut saved.inherit);
                links.try_for_each(|(name, link)| pin(&folder.join(name), |path| Ok(link.pin(path)?)))
            })
            .context("what is reniced must be known when the daemon has died")?;
        self.life.hold_saved_tasks(map_id);
        self.journal.add([&NiceEntry { map_id, unsaved_id }])?;
        Ok(saved)
    }
}

impl NiceActuator {
    /// Ok: there is nothing of an earlier daemon any more.
    fn restore_earlier(&mut self) -> Result<()> {
        let journal = self.place.journal(UNDO.file);
        match self.earlier.take() {
            Some(undoing) if undoing.is_finished() => {
                let left = undoing.join().map_err(|_| anyhow!("what restores it has died"))?;
                ensure!(left.failed.is_empty(), "{}", left.failed.join("; "));
                return Ok(());
            }
            Some(undoing) => self.earlier = Some(undoing),
            None if fs::metadata(&journal).is_ok_and(|file| file.len() > 0) => {
                let undo = move || journal::undo(&journal, UNDO.restore, false);
                self.earlier = Some(Builder::new().spawn(undo)?);
            }
            None => return Ok(()),
        }
        bail!("what an earlier daemon has reniced is restored first")
    }
}

fn pin(path: &Path, pin: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let _ = fs::remove_file(path);
    pin(path).with_context(|| format!("cannot pin {}", path.display()))
}

/// Whether there was anything to do. One that fails keeps no other waiting.
fn renice_all(map: &MapHandle, tasks: &[Task]) -> Result<bool> {
    let mut failed = None;
    let mut is_any = false;
    for task in tasks.iter().filter(|task| task.set | task.back > 0) {
        is_any = true;
        failed = renice(map, task).err().or(failed);
    }
    failed.map_or(Ok(is_any), Err)
}

/// The saved state of a daemon, as long as anybody holds it.
pub fn saved_of(pins: &Pins, map_id: u32) -> Result<Option<MapHandle>> {
    Ok(pins.map(map_id, SAVED_TASKS)?.filter(is_saved_tasks))
}

/// How many tasks a daemon has left without saved state, for who outlives it.
pub struct UnsavedCount(MapHandle);

impl UnsavedCount {
    /// None where nothing was reniced.
    pub fn of(place: &Place) -> Option<Self> {
        let written = fs::read_to_string(place.journal(UNDO.file)).ok()?;
        let made: NiceEntry = serde_json::from_str(written.lines().last()?).ok()?;
        unsaved_of(&place.pins(), made.unsaved_id).ok().flatten().map(Self)
    }

    /// What nobody can put back.
    pub fn doubt(&self) -> Option<String> {
        let tasks = count_of(&self.0);
        (tasks > 0)
            .then(|| format!("{tasks} tasks were started at nice 19 without saved state, so they may stay at nice 19"))
    }
}

impl Entry for NiceEntry {
    fn restore(&self, dry_run: bool) -> Result<Vec<String>> {
        let pins = Place::here()?.pins();
        let found = saved_of(&pins, self.map_id).context("cannot open the saved state of reniced tasks")?;
        let map = found.ok_or_else(|| {
            anyhow!(Irreversible)
                .context("the saved state of reniced tasks is gone, so background processes may stay at nice 19")
        })?;
        let saved = SavedTasks::load_to_end(&map, dry_run)?;
        let mut restore = BTreeSet::new();
        let (begun, mut quiet_since) = (Instant::now(), Instant::now());
        loop {
            let tasks = saved.scan()?;
            restore.extend(tasks.iter().filter(|task| task.back > 0).map(|task| task.tgid));
            if dry_run {
                break;
            }
            if renice_all(&map, &tasks)? {
                quiet_since = Instant::now();
            } else if quiet_since.elapsed() >= QUIET {
                break;
            } else {
                sleep(BETWEEN_SCANS);
            }
            if begun.elapsed() > PATIENCE {
                bail!(
                    "more processes are started at nice 19 than can be restored in {} s; try `giveway revert` again",
                    PATIENCE.as_secs()
                );
            }
        }
        let line = match restore.len() {
            0 => None,
            1 => Some("1 background process back at its own nice value and I/O class".to_owned()),
            many => Some(format!(
                "{many} background processes back at their own nice value and I/O class"
            )),
        };
        let unsaved =
            unsaved_of(&pins, self.unsaved_id).context("cannot open the count of tasks without saved state")?;
        let doubt = unsaved.and_then(|count| UnsavedCount(count).doubt());
        match doubt.filter(|_| !dry_run) {
            Some(doubt) => Err(anyhow!(Irreversible).context([line.unwrap_or_default(), doubt].join("; but "))),
            None => Ok(line.into_iter().collect()),
        }
    }
}

impl Task {
    fn taken(&self) -> Option<(ProcessId, u32, String)> {
        (self.taken > 0).then(|| (self.process(), self.tid, shown(self.nice_now, self.ioprio_now)))
    }

    fn wanted(&self) -> ThreadSetting {
        ThreadSetting {
            set: self.set,
            back: self.back,
            nice: self.nice,
            ioprio: self.ioprio,
        }
    }
}
