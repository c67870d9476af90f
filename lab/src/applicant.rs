// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program that rules are tried on (`c/applicant.c`), static, so that it starts as fast as a program can and runs
//! in any guest.
//! Input: a folder and a name. Output: the program there, as an executable of its own that a rule can name; gone when
//! dropped.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/applicant"));

pub struct Applicant {
    /// Its whole path.
    pub exe: PathBuf,
}

pub fn install(folder: &Path, name: &str) -> Result<Applicant> {
    let exe = folder.canonicalize()?.join(name);
    // A new inode: one that still runs cannot be written to.
    if exe.exists() {
        fs::remove_file(&exe)?;
    }
    fs::write(&exe, PROGRAM).with_context(|| format!("cannot write {}", exe.display()))?;
    fs::set_permissions(&exe, fs::Permissions::from_mode(0o755))?;
    Ok(Applicant { exe })
}

impl Drop for Applicant {
    fn drop(&mut self) {
        // What cannot be removed is in nobody's way.
        let _ = fs::remove_file(&self.exe);
    }
}
