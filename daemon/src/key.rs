// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The group's key: made by `giveway key new`, read by the daemon, in a file of mode 0600; never shown.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Subcommand;
use giveway_engine::peers::{Key, Keyring};
use nix::fcntl::OFlag;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::args::{Json, after};
use crate::commands::print_output;
use crate::files::{not_the_callers, private};
use crate::kernel::{is_shortage, random};

/// A key file is a few lines.
const LONGEST_KEY_FILE: u64 = 4096;

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Make a new key
    ///
    /// A file that holds one already gets the new one as its second, for the change of key.
    #[command(after_help = after("0 done; 1 failed; 2 usage", &["sudo giveway key new", "giveway key new ./group.key"]))]
    New {
        #[arg(default_value = "/etc/giveway/group.key")]
        file: PathBuf,
        #[command(flatten)]
        output: Json,
    },
}

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

/// `giveway key new`. A file that holds a key gets the new one as its second: valid, but not yet used to seal.
/// The first key seals. So the lines change places on every device before any deletes the old one: a device without it
/// does not hear one that still seals with it.
pub fn run(command: &KeyCommand) -> Result<()> {
    let KeyCommand::New { file, output } = command;
    let old = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    if !old.is_empty() {
        let keys = Keyring::parse(&old)
            .with_context(|| format!("{} is not a key file and was not changed", file.display()))?;
        if keys.ids().count() > 1 {
            bail!(
                "{} already holds two keys, and was left alone: finish the earlier change first, and then delete the old \
                 key's line on every device",
                file.display()
            );
        }
    }
    let old = if old.is_empty() || old.ends_with('\n') {
        old
    } else {
        old + "\n"
    };
    let new_folder = replace(
        file,
        format!("{old}{}\n", Key::from_secret(random()?).reveal()).as_bytes(),
    )?;
    let report = NewKey {
        file: file.display().to_string(),
        is_second: !old.is_empty(),
    };
    print_output(output.json, &report, || {
        let folder = new_folder.map(|folder| format!("{}: folder created\n", folder.display()));
        let key = match report.is_second {
            false => format!(
                "{}: new key, readable by its owner only; copy the file to the group's other devices\n",
                report.file
            ),
            true => second_key(file),
        };
        folder.unwrap_or_default() + &key
    })
}

/// The key itself is never shown.
#[derive(Debug, JsonSchema, Serialize)]
pub struct NewKey {
    file: String,
    /// The file held one already, which counts until the group has changed.
    is_second: bool,
}

/// How a group changes its key; each step on every device before the next one.
fn second_key(file: &Path) -> String {
    format!(
        "{}: a second key, valid but not yet used.\n\
         Finish each step on every device of the group before the next one, or some will\n\
         not hear others meanwhile:\n\
         \x20 1. copy this file to it\n\
         \x20 2. swap the two lines: it sends with the new key, and still reads the old one\n\
         \x20 3. delete the second line, the old key\n\
         Daemons notice; no restart is needed.\n",
        file.display()
    )
}

/// Writes beside the file and renames: a device never reads half a key. Returns the folder, where it was missing.
fn replace<'a>(file: &'a Path, contents: &[u8]) -> Result<Option<&'a Path>> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let missing = folder.filter(|folder| !folder.exists());
    if let Some(folder) = missing {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let beside = file.with_extension(format!("new-{}", std::process::id()));
    let mut new = private()
        .write(true)
        .create_new(true)
        .open(&beside)
        .with_context(|| format!("cannot write {}", beside.display()))?;
    new.write_all(contents)
        .and_then(|()| new.sync_all())
        .and_then(|()| fs::rename(&beside, file))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `engine/tests/wire.rs` and `docs/reference/protocol.md` have the same steps: without the second the group splits.
    #[test]
    fn a_change_of_key_swaps_the_lines_before_it_deletes_one() {
        let told = second_key(Path::new("/etc/giveway/group.key"));
        let at = |word| told.find(word).unwrap_or_else(|| panic!("{word}: {told}"));
        assert!(at("1. copy") < at("2. swap") && at("2. swap") < at("3. delete the second line"));
        assert!(told.lines().all(|line| line.len() <= 80), "{told}");
    }
}
