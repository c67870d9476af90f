// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The context of a variant during one run: its name, a seed, a folder for raw results.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::guest::{Clock, Guest};
use crate::interrupt::pause_until;
use crate::progress::Progress;

pub struct Run<'a> {
    /// Of the variant; its metrics are points of this name, or below it.
    pub name: &'a str,
    /// The guest that it requested.
    pub guest: Option<Guest>,
    pub seed: u64,
    pub progress: &'a Progress,
    /// The folder of the raw results.
    pub raw: &'a Path,
    /// With KEEP=1 its testbed stays.
    pub is_last: bool,
}

impl Run<'_> {
    /// The variant's name as part of a file's name.
    pub fn label(&self) -> String {
        self.name.replace('/', "-")
    }

    /// `RAW/VARIANT` followed by these words.
    pub fn file(&self, what: &str) -> PathBuf {
        self.raw.join(self.label() + what)
    }

    /// For temporary files, in the machine's folder for these.
    pub fn temporary_folder(&self) -> Result<TemporaryFolder> {
        let name = format!("gwlab-{}-{}", std::process::id(), self.label());
        let folder = TemporaryFolder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0).context("cannot make a folder")?;
        Ok(folder)
    }

    /// Keeps every single measurement beside the results.
    pub fn keep(&self, measured: &impl Serialize) -> Result<()> {
        let file = self.file(".json");
        std::fs::write(&file, serde_json::to_string(measured)?)
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Instructions are nanoseconds only where the clock is virtual.
    pub fn has_virtual_time(&self) -> bool {
        self.guest.is_some_and(|guest| guest.clock == Clock::Virtual)
    }
}

/// Gone when dropped.
pub struct TemporaryFolder(pub PathBuf);

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // What cannot be removed is in nobody's way.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits for so long.
pub fn pause(seconds: f64) -> Result<()> {
    pause_until(Instant::now() + Duration::from_secs_f64(seconds))
}
