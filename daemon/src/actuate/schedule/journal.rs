// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What threads were before they were given real time, written down before they are. In comes a line a thread, out go
//! the lines again, in this process or after its death. It changes no thread.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::PathBuf;

use giveway_engine::matcher::ProcessId;
use serde::{Deserialize, Serialize};

use super::attributes::Attributes;

/// From so many lines on, those of threads that have ended are thrown away.
const LINES_KEPT: usize = 1024;

/// A thread that carries what giveway gave, or is about to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Changed {
    pub process: ProcessId,
    pub tid: u32,
    /// Of the thread: its number is used again, both together are not.
    pub start_ns: u64,
    pub old: Attributes,
    pub given: Attributes,
    /// Where CPUs are given: those that it had, and those that it gets.
    pub cpus: Option<(Vec<u32>, Vec<u32>)>,
}

#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// None until something is written.
    file: Option<File>,
    lines: usize,
}

impl Journal {
    pub fn at(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            lines: 0,
        }
    }

    /// What is written down.
    pub fn read(&self) -> io::Result<Vec<Changed>> {
        match fs::read_to_string(&self.path) {
            // A line cut short by a crash was never put to use.
            Ok(text) => Ok(text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    pub fn add(&mut self, changed: &[Changed]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(OpenOptions::new().append(true).create(true).open(&self.path)?),
        };
        file.write_all(lines_of(changed)?.as_bytes())?;
        self.lines += changed.len();
        Ok(())
    }

    /// Whether far more is written down than is in force.
    pub fn is_long(&self, in_force: usize) -> bool {
        self.lines > LINES_KEPT.max(4 * in_force)
    }

    /// Keeps these alone. At no moment is any of them not written down.
    pub fn replace<'a>(&mut self, kept: impl Iterator<Item = &'a Changed>) -> io::Result<()> {
        let kept: Vec<Changed> = kept.cloned().collect();
        let new = self.path.with_extension("new");
        fs::write(&new, lines_of(&kept)?)?;
        fs::rename(&new, &self.path)?;
        self.file = None;
        self.lines = kept.len();
        Ok(())
    }

    /// Forgets everything, once nothing of it is in force.
    pub fn clear(&mut self) -> io::Result<()> {
        self.file = None;
        self.lines = 0;
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn lines_of(changed: &[Changed]) -> io::Result<String> {
    let mut lines = String::new();
    for one in changed {
        lines.push_str(&serde_json::to_string(one)?);
        lines.push('\n');
    }
    Ok(lines)
}
