// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file without a name, written from beginning to end and flushed, again and again. Its size is the bound.

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use nix::fcntl::OFlag;
use nix::sys::statvfs::statvfs;

const FILE_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: usize = 1 << 20;
/// The load takes no more than this part of what is free.
const FREE_SHARE: u64 = 4;

pub fn write() -> Result<()> {
    let folder = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let mut file =
        open(&folder).with_context(|| format!("in {} (the variable TMPDIR names another)", folder.display()))?;
    let block = vec![0x5a; BLOCK_BYTES];
    file.write_all(&block)?;
    super::ready()?;
    loop {
        file.rewind()?;
        for _ in 0..FILE_BYTES / BLOCK_BYTES as u64 {
            file.write_all(&block).context("cannot write")?;
        }
        file.sync_data().context("cannot flush")?;
    }
}

fn open(folder: &Path) -> Result<File> {
    let space = statvfs(folder).context("cannot ask for the room")?;
    let free_bytes = space.blocks_available() * space.fragment_size();
    ensure!(
        free_bytes / FREE_SHARE >= FILE_BYTES,
        "there are no {} MB free",
        (FILE_BYTES * FREE_SHARE) >> 20
    );
    OpenOptions::new()
        .write(true)
        .custom_flags(OFlag::O_TMPFILE.bits())
        .mode(0o600)
        .open(folder)
        .context("cannot make a file")
}
