// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One network namespace under /run/netns. Input: a name. Output: commands that run inside it (network only: files,
//! /run and /proc are shared). Removed when dropped. No thread of the lab itself ever enters a namespace.

use std::fs::File;
use std::os::linux::fs::MetadataExt;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::calls::start_in;
use crate::interrupt::wait_until;
use crate::process::{keep, run};

const LISTEN_LIMIT: Duration = Duration::from_secs(10);
const PREFIX: &str = "gwlab-";
/// Of namespaces that KEEP=1 leaves, so that no later run removes them.
const KEPT_PREFIX: &str = "gwkept-";

pub struct Namespace {
    name: String,
    handle: File,
    stays: bool,
}

impl Namespace {
    /// Creates `gwlab-PID-ROLE`, with IPv6 off and no memory of earlier connections.
    pub fn create(role: &str) -> Result<Self> {
        let name = name(role);
        run(ip(&["netns", "add", &name]))?;
        Self::open(name)
    }

    /// The same with tables for few sockets, as a small device has them. Other namespaces share the machine's tables,
    /// and a scan over the sockets of a machine with 24 GB takes 3 ms: fifty daemons side by side would leave no time
    /// for each other. Before Linux 6.1, which lacks such tables, it is an ordinary namespace.
    pub fn create_small(role: &str) -> Result<Self> {
        let name = name(role);
        let tables = "sysctl -qw net.ipv4.tcp_child_ehash_entries=1024 net.ipv4.udp_child_hash_entries=256";
        // A new namespace takes the sizes from the one that it is created in.
        let mut command = Command::new("unshare");
        command.args([
            "--net",
            "sh",
            "-c",
            &format!("{tables} 2> /dev/null; exec ip netns add {name}"),
        ]);
        run(command)?;
        Self::open(name)
    }

    fn open(name: String) -> Result<Self> {
        let handle =
            File::open(format!("/run/netns/{name}")).with_context(|| format!("cannot open namespace {name}"))?;
        let namespace = Self {
            name,
            handle,
            stays: false,
        };
        namespace.allow_ipv6(false)?;
        namespace.run("sysctl", "-qw net.ipv4.tcp_no_metrics_save=1")?;
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in BPF programs.
    pub fn number(&self) -> Result<u32> {
        Ok(u32::try_from(self.handle.metadata()?.st_ino())?)
    }

    /// A command whose process will be in this namespace.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let handle = self.handle.try_clone()?;
        let mut command = Command::new(program);
        start_in(&mut command, handle.into());
        Ok(command)
    }

    /// Runs a program in this namespace to its end, with the words of this line.
    pub fn run(&self, program: &str, line: &str) -> Result<Output> {
        let mut command = self.command(program)?;
        command.args(line.split_whitespace());
        run(command)
    }

    /// `ip` with the words of this line.
    pub fn ip(&self, line: &str) -> Result<()> {
        let words = ["-n", &self.name].into_iter().chain(line.split_whitespace());
        run(ip(&words.collect::<Vec<_>>())).map(drop)
    }

    /// `tc` with the words of this line; gives back what it printed.
    pub fn tc(&self, line: &str) -> Result<Vec<u8>> {
        let mut tc = Command::new("tc");
        tc.args(["-n", &self.name]).args(line.split_whitespace());
        Ok(run(tc)?.stdout)
    }

    /// Until a TCP port is listened on.
    pub fn wait_until_listening(&self, port: u16) -> Result<()> {
        wait_until(&format!("port {port} to be listened on"), LISTEN_LIMIT, || {
            let listening = self.run("ss", &format!("-Hltn sport = :{port}"))?.stdout;
            Ok(!listening.is_empty())
        })
    }

    pub fn allow_ipv6(&self, is_allowed: bool) -> Result<()> {
        let off = u8::from(!is_allowed);
        let all = ["all", "default"].map(|which| format!("net.ipv6.conf.{which}.disable_ipv6={off}"));
        self.run("sysctl", &format!("-qw {}", all.join(" "))).map(drop)
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

fn name(role: &str) -> String {
    let prefix = if keep() { KEPT_PREFIX } else { PREFIX };
    format!("{prefix}{}-{role}", std::process::id())
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

pub fn ip(words: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(words);
    command
}
