// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's file system: busybox, this build's own binaries, the programs that the lab runs with their libraries,
//! and the command. Input: what is installed here, or was unpacked for another architecture. Output: a file tree. Of
//! this machine's configuration it has only iproute2's names.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::archive::{FILE, FOLDER, FileTree, LINK, PROGRAM};
use super::source::{MERGED, ProgramSource, find, merged};
use crate::process::run;

const INIT: &str = include_str!("init.sh");
/// As installed here. The shell and other launchers are included because busybox's own would start busybox's `ip` and
/// `tc`, whatever the path says.
const PROGRAMS: &[&str] = &[
    "chrt", "dash", "env", "ethtool", "ip", "iperf3", "nice", "ss", "sysctl", "taskset", "tc", "timeout",
];
/// Loaded by name at run time, so no list of libraries has it: `pthread_cancel` needs it.
const LIBRARY_BY_NAME: &str = "libgcc_s.so.1";
const MOUNT_POINTS: &[&str] = &["proc", "sys", "dev", "run", "tmp", "root", "out", "etc"];

/// `added` are further programs, which have their own names in the guest's path.
pub fn tree(command: &[OsString], added: &[PathBuf], source: &ProgramSource) -> Result<FileTree> {
    let mut tree = FileTree::default();
    for folder in MOUNT_POINTS {
        tree.add(folder, FOLDER, "");
    }
    for folder in MERGED {
        tree.add(&format!("usr/{folder}"), FOLDER, "");
        tree.add(folder, LINK, format!("usr/{folder}"));
    }
    tree.add("init", PROGRAM, INIT);
    tree.add("command", FILE, shell_line(command));
    let users = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n";
    tree.add("etc/passwd", FILE, users);
    tree.add("etc/group", FILE, "root:x:0:\nnogroup:x:65534:\n");
    let mut programs: Vec<PathBuf> = PROGRAMS.iter().map(|name| source.find(name)).collect::<Result<_>>()?;
    for program in added {
        programs.push(source.asked_for(program)?);
    }
    for program in &programs {
        let name = program.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{} has no plain name", program.display()))?;
        add_copy(&mut tree, &format!("usr/bin/{name}"), PROGRAM, program)?;
    }
    for (name, ours) in source.own()? {
        add_copy(&mut tree, &format!("usr/bin/{name}"), PROGRAM, &ours)?;
        programs.push(ours);
    }
    tree.add("usr/bin/sh", LINK, "dash");
    add_libraries(&mut tree, &programs, source)?;
    add_busybox(&mut tree, source)?;
    add_data(&mut tree, source)?;
    Ok(tree)
}

/// A line that a shell parses back into these words.
fn shell_line(words: &[OsString]) -> Vec<u8> {
    let mut line = b"exec".to_vec();
    for word in words {
        line.extend(b" '");
        for byte in word.as_bytes() {
            match byte {
                b'\'' => line.extend(b"'\\''"),
                other => line.push(*other),
            }
        }
        line.push(b'\'');
    }
    line.push(b'\n');
    line
}

fn add_copy(tree: &mut FileTree, path: &str, mode: u32, of: &Path) -> Result<()> {
    let content = fs::read(of).with_context(|| format!("cannot read {}", of.display()))?;
    tree.add(path, mode, content);
    Ok(())
}

fn add_libraries(tree: &mut FileTree, programs: &[PathBuf], source: &ProgramSource) -> Result<()> {
    let mut libc = None;
    for program in programs {
        for (library, path) in source.libraries(program)? {
            if path.ends_with("libc.so.6") {
                libc = Some((library.clone(), path.clone()));
            }
            add_library(tree, &library, &path)?;
        }
    }
    let (library, path) = libc.context("no program of the guest uses the C library")?;
    let beside = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    add_library(
        tree,
        &library.with_file_name(LIBRARY_BY_NAME),
        &format!("{beside}/{LIBRARY_BY_NAME}"),
    )
}

fn add_library(tree: &mut FileTree, library: &Path, path: &str) -> Result<()> {
    if tree.has(path) {
        return Ok(());
    }
    add_copy(tree, path, PROGRAM, library)
}

fn add_busybox(tree: &mut FileTree, source: &ProgramSource) -> Result<()> {
    let busybox = source.find("busybox")?;
    ensure!(
        source.libraries(&busybox)?.is_empty(),
        "`busybox` is not the static one: apt-get install busybox-static"
    );
    // For another architecture's busybox this one's list is used: it is the same source.
    let mut list = Command::new(find("busybox")?);
    list.arg("--list");
    let applets = run(list)?.stdout;
    add_copy(tree, "usr/bin/busybox", PROGRAM, &busybox)?;
    for applet in String::from_utf8_lossy(&applets).lines() {
        let path = format!("usr/bin/{applet}");
        if !tree.has(&path) {
            tree.add(&path, LINK, "busybox");
        }
    }
    // The kernel runs it when it misses a module.
    tree.add("usr/sbin/modprobe", LINK, "../bin/busybox");
    Ok(())
}

/// Names of tables and the delay distributions, which `ip` and `tc` read.
fn add_data(tree: &mut FileTree, source: &ProgramSource) -> Result<()> {
    let libraries = source.libraries(&source.find("tc")?)?;
    let beside = libraries.iter().filter_map(|(_, path)| Some(path.rsplit_once('/')?.0));
    let mut folders: Vec<String> = beside.map(|folder| format!("{folder}/tc")).collect();
    folders.extend(["etc/iproute2", "usr/share/iproute2", "usr/lib/tc"].map(Into::into));
    folders.sort();
    folders.dedup();
    for folder in folders {
        let here = source.root().join(&folder);
        for entry in fs::read_dir(here).into_iter().flatten() {
            let file = entry?.path();
            if let (true, Some(name)) = (file.is_file(), file.file_name().and_then(|name| name.to_str())) {
                add_copy(tree, &merged(&format!("{folder}/{name}")), FILE, &file)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_line_preserves_words() {
        let words = ["echo", "it's $HOME", "", "a\nb"].map(OsString::from);
        let line = shell_line(&words);
        let said = Command::new("sh")
            .arg("-c")
            .arg(std::ffi::OsStr::from_bytes(&line))
            .output();
        assert_eq!(said.unwrap().stdout, b"it's $HOME  a\nb\n");
    }
}
