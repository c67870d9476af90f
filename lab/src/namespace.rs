// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One network namespace under /run/netns.
//! In: a name. Out: commands that run inside it (network only: files, /run and /proc are shared).
//! Removed when dropped. Never enters a namespace with a thread of the lab itself.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::linux::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};

use crate::process::run;

const PREFIX: &str = "gwlab-";
/// Of those that KEEP=1 leaves standing, so that no later run sweeps them away.
const KEPT_PREFIX: &str = "gwkept-";

pub struct Namespace {
    name: String,
    handle: File,
    stays: bool,
}

impl Namespace {
    /// Creates `gwlab-PID-ROLE`, with IPv6 off and no memory of earlier connections.
    pub fn create(role: &str) -> Result<Self> {
        let prefix = if keep() { KEPT_PREFIX } else { PREFIX };
        let name = format!("{prefix}{}-{role}", std::process::id());
        run(ip(&["netns", "add", &name]))?;
        let handle =
            File::open(format!("/run/netns/{name}")).with_context(|| format!("cannot open namespace {name}"))?;
        let namespace = Self {
            name,
            handle,
            stays: false,
        };
        let mut settings = namespace.command("sysctl")?;
        settings.args([
            "-qw",
            "net.ipv6.conf.all.disable_ipv6=1",
            "net.ipv6.conf.default.disable_ipv6=1",
            "net.ipv4.tcp_no_metrics_save=1",
        ]);
        run(settings)?;
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// By which BPF programs know it.
    pub fn number(&self) -> Result<u32> {
        Ok(u32::try_from(self.handle.metadata()?.st_ino())?)
    }

    /// A command whose process will be in this namespace.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let handle = self.handle.try_clone()?;
        let mut command = Command::new(program);
        // SAFETY: setns is async-signal-safe; the descriptor lives in the closure.
        unsafe {
            command.pre_exec(move || setns(handle.as_fd(), CloneFlags::CLONE_NEWNET).map_err(Into::into));
        }
        Ok(command)
    }

    pub fn stay(&mut self) -> &str {
        self.stays = true;
        &self.name
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if !self.stays
            && let Err(error) = run(ip(&["netns", "delete", &self.name]))
        {
            eprintln!("cannot remove namespace {}: {error:#}", self.name);
        }
    }
}

/// Removes namespaces of labs that were killed before they could.
pub fn sweep() -> Result<()> {
    let Ok(entries) = std::fs::read_dir("/run/netns") else {
        return Ok(()); // no namespace was ever made on this machine
    };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let Some(pid) = owner.and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
            run(ip(&["netns", "delete", &name]))?;
        }
    }
    Ok(())
}

/// The user wants to look at what stands after the run.
pub fn keep() -> bool {
    std::env::var_os("KEEP").is_some_and(|value| value == "1")
}

pub fn ip(words: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(words);
    command
}
