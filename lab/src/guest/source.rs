// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source of a guest's programs: this machine, or for another architecture Debian's packages and a build for it.
//! Input: names of programs. Output: their files, and the libraries that they need. Installs nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::architecture::Architecture;
use super::kernel::mirror;
use crate::giveway;
use crate::process::run;

/// The release that compiles for it here: its C library is the one that this build's programs were linked to.
const SUITE: &str = "bookworm";
const PACKAGES: &str = "bash,busybox-static,coreutils,dash,ethtool,iperf3,iproute2,libgcc-s1,procps,util-linux";
const GNU: &str = "aarch64-linux-gnu";
const INTERPRETER: &str = "ld-linux-aarch64.so.1";
/// At the guest's root, links to folders below /usr.
pub const MERGED: &[&str] = &["bin", "sbin", "lib", "lib64"];
/// Below the build: what `packaging/need` has unpacked, not installed.
const UNPACKED: &str = "../need/usr/sbin";

/// A file here, and where the guest has it, without a leading slash.
pub type Placed = (PathBuf, String);

pub enum ProgramSource {
    Here,
    /// A root of arm64's packages, and the folder of this build for it.
    Elsewhere {
        root: PathBuf,
        build: PathBuf,
    },
}

impl ProgramSource {
    pub fn new(architecture: Architecture, cache: &Path) -> Result<Self> {
        if architecture.is_this() {
            return Ok(Self::Here);
        }
        ensure!(
            architecture == Architecture::Arm64,
            "a guest for amd64 needs an amd64 machine, and this is none"
        );
        let build = architecture.build()?;
        let root = cache.join(format!("root-{SUITE}-{}", architecture.debian()));
        if !root.exists() {
            make_root(architecture, &root)?;
        }
        Ok(Self::Elsewhere { root, build })
    }

    /// Where names of tables and the like are.
    pub fn root(&self) -> &Path {
        match self {
            Self::Here => Path::new("/"),
            Self::Elsewhere { root, .. } => root,
        }
    }

    pub fn find(&self, program: &str) -> Result<PathBuf> {
        let Self::Elsewhere { root, .. } = self else {
            return find(program);
        };
        let files = ["usr/bin", "usr/sbin"].map(|folder| root.join(folder).join(program));
        let found = files.into_iter().find(|file| file.is_file());
        found.with_context(|| format!("{} has no `{program}`", root.display()))
    }

    /// A requested program, by its path or, in the guest's own root, by its name.
    pub fn asked_for(&self, program: &Path) -> Result<PathBuf> {
        match program.to_str() {
            Some(name) if !name.contains('/') && !program.exists() => self.find(name),
            _ => Ok(program.to_owned()),
        }
    }

    /// This build's own, by their names.
    pub fn own(&self) -> Result<[(&'static str, PathBuf); 2]> {
        let (lab, daemon) = match self {
            Self::Here => (std::env::current_exe()?, giveway::binary()?),
            Self::Elsewhere { build, .. } => (build.join("giveway-lab"), build.join("giveway")),
        };
        Ok([("giveway-lab", lab), ("giveway", daemon)])
    }

    /// Every library that the program names, their own libraries, and the loader.
    pub fn libraries(&self, program: &Path) -> Result<Vec<Placed>> {
        match self {
            Self::Here => libraries_here(program),
            Self::Elsewhere { root, .. } => libraries_below(root, program),
        }
    }
}

/// A program of this machine.
pub fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let unpacked = std::env::current_exe()?.with_file_name(UNPACKED);
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into(), unpacked]);
    let found = folders.map(|folder| folder.join(program)).find(|file| file.is_file());
    found.with_context(|| format!("`{program}` is missing, which the guest needs: packaging/need installs it"))
}

/// The real place of a file of `/lib` or `/bin`.
pub fn merged(path: &str) -> String {
    let top = path.split('/').next().unwrap_or(path);
    if MERGED.contains(&top) {
        format!("usr/{path}")
    } else {
        path.into()
    }
}

fn libraries_here(program: &Path) -> Result<Vec<Placed>> {
    let said = Command::new("ldd")
        .arg(program)
        .output()
        .context("cannot start `ldd`")?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    if let Some(missing) = said.lines().find(|line| line.contains("not found")) {
        bail!("{} lacks a library: {}", program.display(), missing.trim());
    }
    // `name => /path (address)` or `/path (address)`; a script or a static program has neither.
    let path = |line: &str| {
        let mut words = line.split_whitespace();
        let path = words.find(|word| word.starts_with('/'))?;
        Some((PathBuf::from(path), merged(path.trim_start_matches('/'))))
    };
    let is_library = |line: &&str| line.trim_end().ends_with(')');
    Ok(said.lines().filter(is_library).filter_map(path).collect())
}

/// Nothing here can load them, so their headers are read.
fn libraries_below(root: &Path, program: &Path) -> Result<Vec<Placed>> {
    let mut open = vec![program.to_owned()];
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    while let Some(file) = open.pop() {
        let mut read = Command::new("readelf");
        read.args(["-dW"]).arg(&file);
        let said = run(read)?.stdout;
        for name in needed(&String::from_utf8_lossy(&said)) {
            if !known.insert(name.clone()) {
                continue;
            }
            let (folder, place) = match name.as_str() {
                INTERPRETER => (root.join("usr/lib"), "usr/lib".to_owned()),
                _ => (root.join("usr/lib").join(GNU), format!("usr/lib/{GNU}")),
            };
            let inside = [folder.join(&name), root.join("usr/lib").join(GNU).join(&name)];
            let library = inside.into_iter().find(|file| file.is_file());
            let library = library.with_context(|| format!("{} needs {name}, which is missing", file.display()))?;
            found.push((library.clone(), format!("{place}/{name}")));
            open.push(library);
        }
    }
    Ok(found)
}

/// ` 0x...  (NEEDED)  Shared library: [libc.so.6]`
fn needed(said: &str) -> Vec<String> {
    let name = |line: &str| {
        let (_, name) = line.split_once("(NEEDED)")?.1.split_once('[')?;
        Some(name.split_once(']')?.0.to_owned())
    };
    said.lines().filter_map(name).collect()
}

/// Unpacked only: nothing of it runs here.
fn make_root(architecture: Architecture, root: &Path) -> Result<()> {
    eprintln!("guest: fetching programs for {}", architecture.debian());
    let begun = root.with_extension("begun");
    if begun.exists() {
        fs::remove_dir_all(&begun)?;
    }
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=extract", "--mode=root"]);
    // As in every Debian: /bin is /usr/bin.
    make.arg("--setup-hook=/usr/share/mmdebstrap/hooks/merged-usr/setup00.sh");
    make.arg(format!("--architectures={}", architecture.debian()));
    make.arg(format!("--include={PACKAGES}"));
    make.arg(SUITE).arg(&begun).arg(mirror()?);
    run(make)
        .context("programs for another architecture come through mmdebstrap (apt-get install mmdebstrap, as root)")?;
    fs::rename(&begun, root)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_that_a_program_names_are_read() {
        let said = " 0x0000000000000001 (NEEDED)             Shared library: [libelf.so.1]\n \
                    0x000000000000000c (INIT)               0x8c000\n \
                    0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n";
        assert_eq!(needed(said), ["libelf.so.1", "libc.so.6"]);
    }

    #[test]
    fn a_library_is_where_the_merged_file_system_has_it() {
        assert_eq!(
            merged("lib/x86_64-linux-gnu/libc.so.6"),
            "usr/lib/x86_64-linux-gnu/libc.so.6"
        );
        assert_eq!(merged("etc/iproute2/group"), "etc/iproute2/group");
    }
}
