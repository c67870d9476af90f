// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway key new`: makes a key for a group of devices. Input: a file. Output: the file with a new key, of mode 0600. Never
//! shows a key.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use giveway_engine::peers::{Key, Keyring};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::args::{Json, after};
use crate::commands::print_output;
use crate::files::private;
use crate::kernel::random;

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
                "{} already holds two keys and was not changed: finish the earlier key change first, then \
                 delete the old key's line on every device",
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
