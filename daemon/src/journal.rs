// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What giveway has changed, a JSON object a line, written before the change is made. Input: entries. Output: what was
//! put back from them, in this process or after its death. An entry that fails, and a line that cannot be read, stay
//! written and keep no other from being put back. Each writer has a file of its own, so that no thread waits for another.

use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::private;

/// From so many lines on, those that are no longer in force are thrown away.
const LINES_KEPT: usize = 256;

/// A change, with what was there before.
pub trait Entry: Serialize + DeserializeOwned {
    /// Puts back what is still ours, or in a dry run only finds it; a line for each thing. What another tool has changed
    /// since stays as it is.
    fn put_back(&self, dry_run: bool) -> Result<Vec<String>>;

    /// The same for a whole journal, the latest change first; an outcome for each.
    fn put_back_all(entries: &[Self], dry_run: bool) -> Vec<Result<Vec<String>>> {
        entries.iter().map(|entry| entry.put_back(dry_run)).collect()
    }
}

/// What it takes to put something back is gone: nothing can be done about it any more, so it is reported once.
#[derive(Debug, thiserror::Error)]
#[error("nothing can undo that any more")]
pub struct Lost;

/// The file of one writer.
#[derive(Debug)]
pub struct Journal<E> {
    path: PathBuf,
    /// None until something is written.
    file: Option<File>,
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
        if self.file.as_ref().is_some_and(|file| !is_there(file)) {
            self.forget();
        }
        new.retain(|line| !self.written.contains(line));
        if new.is_empty() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(private().append(true).create(true).open(&self.path)?),
        };
        let length = file.metadata()?.len();
        file.write_all(text_of(new).as_bytes()).inspect_err(|_| {
            // Half a line would spoil the next one.
            let _ = file.set_len(length);
        })?;
        self.written.extend(new.drain(..));
        Ok(())
    }

    /// Whether far more is written down than is in force.
    pub fn is_long(&self, in_force: usize) -> bool {
        self.written.len() > LINES_KEPT.max(4 * in_force)
    }

    /// Keeps these alone. At no moment is any of them not written down.
    pub fn replace<'a>(&mut self, kept: impl IntoIterator<Item = &'a E>) -> Result<()>
    where
        E: 'a,
    {
        let kept = lines_of(kept)?;
        write(&self.path, &kept).with_context(|| format!("cannot shorten {}", self.path.display()))?;
        self.file = None;
        self.written = kept.into_iter().collect();
        Ok(())
    }

    /// Forgets everything, once nothing of it is in force.
    pub fn clear(&mut self) -> Result<()> {
        self.forget();
        remove(&self.path).with_context(|| format!("cannot clear {}", self.path.display()))
    }

    /// Puts everything back.
    pub fn undo(&mut self) -> Undone {
        self.forget();
        undo::<E>(&self.path, false)
    }

    fn forget(&mut self) {
        self.file = None;
        self.written.clear();
    }
}

/// What was put back, or in a dry run found, and what could not be and stays journalled; a line each.
#[derive(Debug, Default)]
pub struct Undone {
    /// Changes of sockets among the lines.
    pub sockets: usize,
    pub lines: Vec<String>,
    pub failed: Vec<String>,
    /// Something has not come to its end in time, and may still act.
    pub goes_on: bool,
}

impl Undone {
    pub fn is_nothing(&self) -> bool {
        self.lines.is_empty() && self.failed.is_empty()
    }

    pub fn extend(&mut self, more: Self) {
        self.sockets += more.sockets;
        self.lines.extend(more.lines);
        self.goes_on |= more.goes_on;
        self.failed.extend(more.failed);
    }

    pub fn fail(&mut self, why: String) {
        if !self.failed.contains(&why) {
            self.failed.push(why);
        }
    }
}

impl Display for Undone {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} sockets", self.sockets)?;
        self.lines.iter().try_for_each(|line| write!(f, ", {line}"))?;
        self.failed
            .iter()
            .try_for_each(|line| write!(f, "; not undone: {line}"))
    }
}

/// Puts back what a journal holds, or in a dry run only finds it. The caller makes sure that nothing else writes to it.
pub fn undo<E: Entry>(path: &Path, dry_run: bool) -> Undone {
    let (mut undone, left) = Written::read(path.to_owned()).put_back::<E>(dry_run);
    if !dry_run {
        undone.extend(left.keep());
    }
    undone
}

/// What a journal held when it was read.
pub struct Written {
    path: PathBuf,
    lines: Vec<String>,
    unread: Undone,
}

/// What could not be put back, and is to be kept for the next time.
pub struct Left {
    path: PathBuf,
    lines: Vec<(usize, String)>,
    /// Everything was read: what is not left may be thrown away.
    is_whole: bool,
}

impl Written {
    pub fn read(path: PathBuf) -> Self {
        let mut written = Self {
            path,
            lines: Vec::new(),
            unread: Undone::default(),
        };
        // What could not be put back is kept beside the journal, so that the next writer starts with an empty one.
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
    pub fn put_back<E: Entry>(self, dry_run: bool) -> (Undone, Left) {
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
                    "{} held a line that cannot be read, so that what it was about stays as it is: {line:.120}",
                    path.display()
                )),
            }
        }
        let mut counted: Vec<(String, usize)> = Vec::new();
        for (outcome, source) in E::put_back_all(&entries, dry_run).into_iter().zip(sources) {
            match outcome {
                Ok(lines) => lines.into_iter().for_each(|line| count(&mut counted, line)),
                Err(error) => {
                    undone.fail(format!("{error:#}"));
                    if !error.is::<Lost>() {
                        left.push(source);
                    }
                }
            }
        }
        undone.lines = counted.into_iter().map(shown).collect();
        (
            undone,
            Left {
                path,
                lines: left,
                is_whole,
            },
        )
    }
}

impl Left {
    /// The journal is empty from now on. Returns what failed.
    pub fn keep(self) -> Undone {
        let Self { path, lines, is_whole } = self;
        let mut undone = Undone::default();
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
    remove(path)
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
    let mut file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
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
    let line = |entry| serde_json::to_string(entry).context("cannot put an entry into words");
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

/// Removes a file, if it is there.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
