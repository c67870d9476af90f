// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processor of the emulated machine. Input: a name. Output: its names in Debian, QEMU and compilers.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::ValueEnum;

/// Names the folder of the build for arm64, in place of the one that `packaging/build-arm64` makes.
const ARM64_BUILD: &str = "GIVEWAY_LAB_ARM64";

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, ValueEnum)]
pub enum Architecture {
    Amd64,
    /// With this build's programs compiled for it (`packaging/build-arm64`)
    Arm64,
}

impl Architecture {
    pub fn debian(self) -> &'static str {
        match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        }
    }

    pub fn qemu(self) -> &'static str {
        match self {
            Architecture::Amd64 => "qemu-system-x86_64",
            Architecture::Arm64 => "qemu-system-aarch64",
        }
    }

    pub fn is_this(self) -> bool {
        match self {
            Architecture::Amd64 => cfg!(target_arch = "x86_64"),
            Architecture::Arm64 => cfg!(target_arch = "aarch64"),
        }
    }

    /// Where this build's programs for it are.
    pub fn build(self) -> Result<PathBuf> {
        let own = std::env::current_exe()?;
        let target = own.ancestors().nth(2).unwrap_or(&own);
        let folder = match std::env::var_os(ARM64_BUILD) {
            Some(folder) => folder.into(),
            None => target.join("arm64/aarch64-unknown-linux-gnu/release"),
        };
        ensure!(
            folder.join("giveway").is_file(),
            "{} has no giveway for arm64, which such a guest needs: packaging/build-arm64 makes it, {ARM64_BUILD} names another folder",
            folder.display()
        );
        Ok(folder)
    }
}
