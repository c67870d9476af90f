// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the receiving side has changed, written down before it is: threads and files, a JSON object a line. In comes a
//! change, out goes what has to be put back, in this process or after its death.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::settings;
use super::thread::Raised;

/// Something that was changed, and what it was.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Changed {
    Thread(Raised),
    File {
        path: PathBuf,
        before: String,
        ours: String,
    },
}

pub struct Journal {
    file: File,
}

impl Journal {
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path);
        Ok(Self {
            file: file.with_context(|| format!("cannot open the journal {}", path.display()))?,
        })
    }

    pub fn add(&mut self, changed: &Changed) -> Result<()> {
        let line = format!("{}\n", serde_json::to_string(changed)?);
        self.file
            .write_all(line.as_bytes())
            .context("cannot write down what it was, so it is not changed")
    }
}

/// Puts back what the journal tells of, the last change first, or in a dry run only finds it; a line each. What
/// somebody else has changed since is his.
pub fn undo(path: &Path, dry_run: bool) -> Result<Vec<String>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    // A line cut short by a crash was never put to use.
    let changes: Vec<Changed> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let mut lines = Vec::new();
    let mut failed = None;
    for changed in changes.iter().rev() {
        match changed.put_back(dry_run) {
            Ok(line) => lines.extend(line.filter(|line| !lines.contains(line))),
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if !dry_run {
        fs::remove_file(path).context("cannot clear the journal")?;
    }
    Ok(lines)
}

impl Changed {
    fn put_back(&self, dry_run: bool) -> Result<Option<String>> {
        match self {
            Self::Thread(raised) => {
                let is_ours = if dry_run { raised.is_still() } else { raised.lower()? };
                Ok(is_ours.then(|| raised.shown()))
            }
            Self::File { path, before, ours } => settings::put_back(path, before, ours, dry_run),
        }
    }
}
