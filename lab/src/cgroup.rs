// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cgroup of v2, for processes that rules match by cgroup.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::interrupt::wait_until;

const EMPTY_WITHIN: Duration = Duration::from_secs(5);

/// With the parents that were created for it; removed when dropped.
pub struct Cgroup {
    pub folder: PathBuf,
    made: Vec<PathBuf>,
}

impl Cgroup {
    /// Below the root.
    pub fn make(path: &str) -> Result<Self> {
        let folder = root()?.join(path);
        let missing = folder.ancestors().take_while(|above| !above.exists());
        let made: Vec<PathBuf> = missing.map(Path::to_owned).collect();
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { folder, made })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for folder in &self.made {
            let removed = wait_until("a cgroup to be empty", EMPTY_WITHIN, || {
                Ok(fs::remove_dir(folder).is_ok())
            });
            if let Err(error) = removed {
                eprintln!("cannot remove {}: {error:#}", folder.display());
            }
        }
    }
}

fn root() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let mut rows = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let row = rows.find(|row| row.get(2) == Some(&"cgroup2"));
    Ok(row.context("no cgroup2 is mounted here")?[1].into())
}
