// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What giveway has changed, a JSON object a line, written before the change is made. Input: entries. Output: what was
//! put back from them, in this process or after its death. An entry that fails, and a line that cannot be read, stay
//! written and keep no other from being put back. Each writer has a file of its own, so that no thread waits for another.
//!
//! A journal whose file is removed by another is written anew from the file, which the writer has open. The watchdog has it
//! open too ([`crate::undo::OpenJournals`]). A writer that takes entries out, or clears the journal, empties the file that it leaves.
//! No crate's: those keep a log for the process that writes it, and here another one undoes from the open file.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use anyhow::{Context as _, Result};
use nix::fcntl::OFlag;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::{FOLDER_MODE, private};

pub mod register;

/// From so many lines on, those that are no longer active are thrown away.
const LINES_KEPT: usize = 256;

/// A change, with what was there before.
pub trait Entry: Serialize + DeserializeOwned {
    /// Puts back what is still ours, or in a dry run only finds it; a line for each thing. What another tool has changed
    /// since stays as it is.
    fn restore(&self, dry_run: bool) -> Result<Vec<String>>;

    /// The same for a whole journal, the latest change first; an outcome for each.
    fn restore_all(entries: &[Self], dry_run: bool) -> Vec<Result<Vec<String>>> {
        entries.iter().map(|entry| entry.restore(dry_run)).collect()
    }
}

/// What it takes to put something back is gone: nothing can be done about it any more, so it is reported once.
#[derive(Debug, thiserror::Error)]
#[error("nothing can undo that any more")]
pub struct Irreversible;

/// A file that a journal writes to. One thread at a time has it, so nobody waits for the lock.
#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: Mutex<File>,
}

thread_local! {
    /// Of the journals to which this thread writes.
    static OPEN: RefCell<Vec<Weak<Open>>> = const { RefCell::new(Vec::new()) };
}

/// Writes those journals of the calling thread anew whose files were removed by another. Call it now and then.
pub fn restore_removed() {
    OPEN.with_borrow_mut(|all| {
        all.retain(|open| open.strong_count() > 0);
        for open in all.iter().filter_map(Weak::upgrade) {
            if let Err(error) = open.restore() {
                let path = open.path.display();
                tracing::warn!("{path} was removed while giveway runs, and cannot be written anew: {error}");
            }
        }
    });
}

impl Open {
    fn at(path: &Path) -> io::Result<Arc<Self>> {
        let open = Arc::new(Self {
            path: path.to_owned(),
            file: Mutex::new(for_appending().create(true).open(path)?),
        });
        OPEN.with_borrow_mut(|all| all.push(Arc::downgrade(&open)));
        Ok(open)
    }

    fn file(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what it holds to a new file, where another has removed it. Several writers of one thread may have the same file:
    /// the first of them does it for all.
    fn restore(&self) -> io::Result<()> {
        let mut file = self.file();
        if is_there(&file) {
            return Ok(());
        }
        let held = contents(&file)?;
        if held.is_empty() {
            // Cleared, or written anew by another of its writers.
            return match for_appending().open(&self.path) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                opened => opened.map(|opened| *file = opened),
            };
        }
        if let Some(folder) = self.path.parent() {
            DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
        }
        let mut new = for_appending().create(true).open(&self.path)?;
        new.write_all(&held)?;
        tracing::warn!(
            "{} was removed while giveway runs and has been rewritten: giveway needs it to undo its changes",
            self.path.display()
        );
        file.set_len(0)?;
        *file = new;
        Ok(())
    }
}

/// Of a file that is open, whether or not it still has a name.
pub fn contents(file: &File) -> io::Result<Vec<u8>> {
    let mut held = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut held, 0)?;
    Ok(held)
}

/// The file of one writer.
#[derive(Debug)]
pub struct Journal<E> {
    path: PathBuf,
    /// None until something is written.
    file: Option<Arc<Open>>,
    /// Nothing is written twice.
    written: HashSet<String>,
    entries: PhantomData<fn(E)>,
}

impl<E: Entry> Journal<E> {
    /// Writes nothing yet.
    pub fn at(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            written: HashSet::new(),
            entries: PhantomData,
        }
    }

    /// Makes sure that the entries are written down.
    pub fn add<'a>(&mut self, entries: impl IntoIterator<Item = &'a E>) -> Result<()>
    where
        E: 'a,
    {
        let mut new = lines_of(entries)?;
        self.append(&mut new)
            .with_context(|| format!("cannot write to {}, so nothing is changed", self.path.display()))
    }

    fn append(&mut self, new: &mut Vec<String>) -> io::Result<()> {
        if let Some(open) = &self.file
            && !is_there(&open.file())
        {
            open.restore()?;
            let lines: HashSet<String> = whole_lines(&contents(&open.file())?).into_iter().collect();
            self.written.retain(|line| lines.contains(line));
        }
        if self.file.as_ref().is_some_and(|open| !is_there(&open.file())) {
            self.forget();
        }
        new.retain(|line| !self.written.contains(line));
        if new.is_empty() {
            return Ok(());
        }
        let open = match &self.file {
            Some(open) => open,
            None => self.file.insert(Open::at(&self.path)?),
        };
        let mut file = open.file();
        let length = file.metadata()?.len();
        file.write_all(text_of(new).as_bytes()).inspect_err(|_| {
            // Half a line would spoil the next one.
            let _ = file.set_len(length);
        })?;
        self.written.extend(new.drain(..));
        Ok(())
    }

    /// Whether far more is written down than is active.
    pub fn is_long(&self, installed: usize) -> bool {
        self.written.len() > LINES_KEPT.max(4 * installed)
    }

    /// Keeps these alone. At no moment is any of them not written down.
    pub fn replace<'a>(&mut self, kept: impl IntoIterator<Item = &'a E>) -> Result<()>
    where
        E: 'a,
    {
        let kept = lines_of(kept)?;
        let context = || format!("cannot shorten {}", self.path.display());
        let before = File::options().write(true).open(&self.path).ok();
        write(&self.path, &kept).with_context(context)?;
        // What was taken out must not be found in a file that somebody has open; nor in one that was removed.
        let own = self.file.take();
        if let Some(open) = own {
            open.file().set_len(0).with_context(context)?;
        }
        if let Some(before) = before {
            before.set_len(0).with_context(context)?;
        }
        self.written = kept.into_iter().collect();
        Ok(())
    }

    /// Forgets everything, once nothing of it is active.
    pub fn clear(&mut self) -> Result<()> {
        if let Some(open) = &self.file {
            let _ = open.file().set_len(0);
        }
        self.forget();
        discard(&self.path).with_context(|| format!("cannot clear {}", self.path.display()))
    }

    /// Restores everything.
    pub fn undo(&mut self) -> UndoReport {
        restore_removed();
        self.forget();
        undo(&self.path, JournalContents::restore::<E>, false)
    }

    fn forget(&mut self) {
        self.file = None;
        self.written.clear();
    }
}

/// What was restored, or in a dry run found, and what could not be and stays journalled; a line each.
#[derive(Debug, Default)]
pub struct UndoReport {
    /// Changes of sockets among the lines.
    pub sockets: usize,
    pub lines: Vec<String>,
    pub failed: Vec<String>,
    /// Something has not come to its end in time, and may still act.
    pub goes_on: bool,
}

impl UndoReport {
    pub fn is_nothing(&self) -> bool {
        self.lines.is_empty() && self.failed.is_empty()
    }

    pub fn extend(&mut self, more: Self) {
        self.sockets += more.sockets;
        self.lines.extend(more.lines);
        self.goes_on |= more.goes_on;
        self.failed.extend(more.failed);
    }

    pub fn fail(&mut self, reason: String) {
        if !self.failed.contains(&reason) {
            self.failed.push(reason);
        }
    }
}

impl Display for UndoReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} sockets", self.sockets)?;
        self.lines.iter().try_for_each(|line| write!(f, ", {line}"))?;
        self.failed
            .iter()
            .try_for_each(|line| write!(f, "; not undone: {line}"))
    }
}

/// Puts back what a journal holds, or in a dry run only finds it. The caller makes sure that nothing else writes to it.
pub fn undo(path: &Path, restore: UndoFn, dry_run: bool) -> UndoReport {
    let (mut undone, left) = restore(JournalContents::read(path.to_owned()), dry_run);
    if !dry_run {
        undone.extend(left.keep());
    }
    undone
}

/// [`JournalContents::restore`] of a journal's entries.
pub type UndoFn = fn(JournalContents, bool) -> (UndoReport, UnrestoredEntries);

/// What a journal held when it was read.
pub struct JournalContents {
    path: PathBuf,
    lines: Vec<String>,
    unread: UndoReport,
}

impl JournalContents {
    pub fn empty(path: PathBuf) -> Self {
        Self {
            path,
            lines: Vec::new(),
            unread: UndoReport::default(),
        }
    }

    /// Adds what stood in a file of the journal's that was removed, which is older than what is there now.
    pub fn add_removed(&mut self, bytes: &[u8]) {
        let mut all = whole_lines(bytes);
        let is_new = |line: &String| !all.contains(line);
        let newer: Vec<String> = std::mem::take(&mut self.lines).into_iter().filter(is_new).collect();
        all.extend(newer);
        self.lines = all;
    }
}

/// What could not be restored, and is to be kept for the next time.
pub struct UnrestoredEntries {
    path: PathBuf,
    lines: Vec<(usize, String)>,
    /// Everything was read: what is not left may be thrown away.
    is_whole: bool,
}

impl JournalContents {
    pub fn read(path: PathBuf) -> Self {
        let mut written = Self::empty(path);
        // What could not be restored is kept beside the journal, so that the next writer starts with an empty one.
        for file in [&left_of(&written.path), &written.path] {
            match read(file) {
                Ok(found) => written.lines.extend(found),
                Err(error) => written
                    .unread
                    .fail(format!("cannot read {}: {error}; try again", file.display())),
            }
        }
        written
    }

    /// Touches no file of the journal's.
    pub fn restore<E: Entry>(self, dry_run: bool) -> (UndoReport, UnrestoredEntries) {
        let Self {
            path,
            lines,
            unread: mut undone,
        } = self;
        let is_whole = undone.failed.is_empty();
        let (mut entries, mut sources, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for (place, line) in lines.into_iter().enumerate().rev() {
            match serde_json::from_str::<E>(&line) {
                Ok(entry) => {
                    entries.push(entry);
                    sources.push((place, line));
                }
                // Reported once: it would never become readable.
                Err(_) => undone.fail(format!(
                    "{} has an unreadable line, whose change cannot be undone: {line:.120}",
                    path.display()
                )),
            }
        }
        let mut counted: Vec<(String, usize)> = Vec::new();
        for (outcome, source) in E::restore_all(&entries, dry_run).into_iter().zip(sources) {
            match outcome {
                Ok(lines) => lines.into_iter().for_each(|line| count(&mut counted, line)),
                Err(error) => {
                    undone.fail(format!("{error:#}"));
                    if !error.is::<Irreversible>() {
                        left.push(source);
                    }
                }
            }
        }
        undone.lines = counted.into_iter().map(shown).collect();
        (
            undone,
            UnrestoredEntries {
                path,
                lines: left,
                is_whole,
            },
        )
    }
}

impl UnrestoredEntries {
    /// The journal is empty from now on. Returns what failed.
    pub fn keep(self) -> UndoReport {
        let Self { path, lines, is_whole } = self;
        let mut undone = UndoReport::default();
        if is_whole && let Err(error) = keep(&path, &left_of(&path), lines) {
            undone.fail(format!("cannot clear {}: {error}", path.display()));
        }
        undone
    }
}

/// The oldest first, as it was.
fn keep(path: &Path, left_path: &Path, mut left: Vec<(usize, String)>) -> io::Result<()> {
    if left.is_empty() {
        remove(left_path)?;
    } else {
        left.sort_unstable();
        let left: Vec<String> = left.into_iter().map(|(_, line)| line).collect();
        write(left_path, &left)?;
    }
    discard(path)
}

fn count(counted: &mut Vec<(String, usize)>, line: String) {
    match counted.iter_mut().find(|(known, _)| *known == line) {
        Some((_, times)) => *times += 1,
        None => counted.push((line, 1)),
    }
}

fn shown((line, times): (String, usize)) -> String {
    if times == 1 {
        line
    } else {
        format!("{line} ({times} times)")
    }
}

pub fn left_of(path: &Path) -> PathBuf {
    path.with_extension("left")
}

fn is_there(file: &File) -> bool {
    file.metadata().is_ok_and(|about| about.nlink() > 0)
}

fn read(path: &Path) -> io::Result<Vec<String>> {
    let mut file = match OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
    {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(whole_lines(&bytes))
}

fn for_appending() -> OpenOptions {
    let mut options = private();
    options.append(true).read(true);
    options
}

/// Each once. A last line without its end was cut short before it was put to use.
fn whole_lines(bytes: &[u8]) -> Vec<String> {
    let mut seen = HashSet::new();
    let text = String::from_utf8_lossy(bytes);
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let lines = whole.filter(|line| !line.trim().is_empty() && seen.insert(line.to_owned()));
    lines.map(str::to_owned).collect()
}

/// A journal's lines, with the entry that each holds; None: it cannot be read.
pub fn parse<E: DeserializeOwned>(bytes: &[u8]) -> Vec<(String, Option<E>)> {
    let entry = |line: String| {
        let entry = serde_json::from_str(&line).ok();
        (line, entry)
    };
    whole_lines(bytes).into_iter().map(entry).collect()
}

fn lines_of<'a, E: Entry + 'a>(entries: impl IntoIterator<Item = &'a E>) -> Result<Vec<String>> {
    let line = |entry| serde_json::to_string(entry).context("cannot serialize an entry");
    entries.into_iter().map(line).collect()
}

fn text_of(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

/// As a whole or not at all.
fn write(path: &Path, lines: &[String]) -> io::Result<()> {
    let new = path.with_extension("new");
    remove(&new)?;
    let mut file = private().write(true).create_new(true).open(&new)?;
    file.write_all(text_of(lines).as_bytes())?;
    fs::rename(&new, path)
}

/// Removes a journal that says nothing any more, not even to those who have it open.
fn discard(path: &Path) -> io::Result<()> {
    if let Ok(file) = private().write(true).open(path) {
        // What is no file has no length; to remove it fails, or does not.
        let _ = file.set_len(0);
    }
    remove(path)
}

/// Removes a file, if it is there.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
