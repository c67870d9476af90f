// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program that rules are tried on (`c/applicant.c`), static, so that it starts as fast as a program can and runs
//! in any guest.
//! In: a folder and a name. Out: the program there, as an executable of its own that a rule can name.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/applicant"));

/// Gives back its whole path.
pub fn install(folder: &Path, name: &str) -> Result<PathBuf> {
    let folder = folder.canonicalize()?;
    let file = folder.join(name);
    // A new inode: one that still runs cannot be written to.
    if file.exists() {
        fs::remove_file(&file)?;
    }
    fs::write(&file, PROGRAM).with_context(|| format!("cannot write {}", file.display()))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    Ok(file)
}
