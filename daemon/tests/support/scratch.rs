// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Temporary files, each in a folder of its own that every user can enter. Removed at the end of the test.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use super::lab::run;

const READABLE: u32 = 0o755;
/// Debian's `nobody` and `nogroup`.
pub const NOBODY: u32 = 65_534;

pub struct Scratch(pub PathBuf, TempDir);

impl Scratch {
    pub fn new(name: &str, contents: &str) -> Self {
        let scratch = Self::named(name);
        fs::write(&scratch.0, contents).unwrap();
        scratch
    }

    /// A program that everybody can run, as a file that nobody else runs.
    pub fn copy_of(program: &str, name: &str) -> Self {
        let scratch = Self::named(name);
        // By a child: what this process has open for writing may be open in another test's child, and cannot run.
        run(&format!("cp {program} {}", scratch.path()));
        fs::set_permissions(&scratch.0, Permissions::from_mode(READABLE)).unwrap();
        scratch
    }

    fn named(name: &str) -> Self {
        let mut builder = tempfile::Builder::new();
        let builder = builder
            .prefix("giveway-test-")
            .permissions(Permissions::from_mode(READABLE));
        let directory = builder.tempdir().unwrap();
        Self(directory.path().join(name), directory)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}
