// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway key`: makes the group's key. It is written to a file of mode 0600 and never shown.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use giveway_engine::wire::{Key, Keyring};

use crate::cli::KeyCommand;

pub fn run(command: &KeyCommand) -> Result<()> {
    let KeyCommand::New { file } = command;
    let old = match fs::read_to_string(file) {
        Ok(text) => Some(Keyring::parse(&text).with_context(|| format!("{} is not a key file, and is left alone", file.display()))?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let mut random = [0; 32];
    fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut random)).context("no randomness from /dev/urandom")?;
    let mut text = format!("{}\n", Key::from(random).to_text().as_str());
    if let Some(old) = &old {
        text += &format!("{}\n", old.sealing().to_text().as_str());
    }
    replace(file, text.as_bytes())?;
    println!("{}: a new key, readable by its owner only; copy it to the group's other devices", file.display());
    if old.is_some() {
        println!("the key that was there stays valid as the second one until you delete its line");
    }
    Ok(())
}

/// Writes beside the file and renames: a device never reads half a key.
fn replace(file: &Path, contents: &[u8]) -> Result<()> {
    if let Some(parent) = file.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    let beside = file.with_extension(format!("new-{}", std::process::id()));
    let mut new = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .with_context(|| format!("cannot write {}", beside.display()))?;
    new.write_all(contents).and_then(|()| new.sync_all()).and_then(|()| fs::rename(&beside, file)).with_context(|| format!("cannot write {}", file.display()))
}
