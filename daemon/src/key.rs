// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The group's key as the daemon reads it, from a file of mode 0600; never shown. `giveway key new` makes it.

use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use giveway_engine::peers::Keyring;
use nix::fcntl::OFlag;

use crate::files::not_the_callers;
use crate::kernel::is_shortage;

/// A key file is a few lines.
const LONGEST_KEY_FILE: u64 = 4096;

/// A key file that a daemon follows.
#[derive(Debug)]
pub struct KeyFile {
    path: PathBuf,
    /// Inode and time of change when it was last looked at.
    seen: Option<(u64, i64, i64)>,
}

impl KeyFile {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            seen: None,
        }
    }

    /// Reads the keys.
    ///
    /// # Errors
    /// When the file is missing, is no regular file, may be read or replaced by others, or holds no valid keys.
    pub fn read(&mut self) -> Result<Keyring> {
        self.seen = self.file_stamp();
        let keys = self.load();
        if keys.as_ref().is_err_and(is_shortage) {
            // It was not the file's fault.
            self.seen = None;
        }
        keys.with_context(|| format!("cannot use the group key {}", self.path.display()))
    }

    /// The keys, read anew where the file is not the one seen last.
    pub fn changed(&mut self) -> Option<Result<Keyring>> {
        (self.file_stamp() != self.seen).then(|| self.read())
    }

    fn file_stamp(&self) -> Option<(u64, i64, i64)> {
        let about = fs::metadata(&self.path).ok()?;
        Some((about.ino(), about.ctime(), about.ctime_nsec()))
    }

    fn load(&self) -> Result<Keyring> {
        // O_NONBLOCK: a FIFO put there must not hold the daemon up.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&self.path);
        let file = file.map_err(|error| anyhow!("{error}: make one with `giveway key new {}`", self.path.display()))?;
        let about = file.metadata()?;
        if !about.is_file() {
            bail!("not a regular file");
        }
        if about.mode() & 0o077 != 0 {
            bail!("others may read it (mode {:04o}): chmod 600", about.mode() & 0o7777);
        }
        if let Some(reason) = not_the_callers(&self.path, &about) {
            bail!("{reason}");
        }
        let mut text = String::new();
        file.take(LONGEST_KEY_FILE).read_to_string(&mut text)?;
        Ok(Keyring::parse(&text)?)
    }
}
