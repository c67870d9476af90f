// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The testbed of the capability tests: a device and a remote host, traffic between them that began before giveway did,
//! and the real daemon on the device. Input: a folder for logs. Output: the namespaces, the two ends of the traffic,
//! programs for rules, and the kernel's state before the daemon. Removed when dropped.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::ends::{BACKGROUND, DOWNLOAD, MARKED, UPLOAD};
use super::sockets::socket;
use crate::channel::STATION_DEVICE;
use crate::experiment::pause;
use crate::giveway::{Daemon, answers};
use crate::guest::find;
use crate::interrupt::wait_until;
use crate::namespace::Namespace;
use crate::network::{PEER_ADDRESS, raise_pair};
use crate::process::Process;
use crate::role::Role;
use crate::scenarios::fails_open::changes::PORT as REQUESTS;

const DEVICE_ADDRESS: &str = "10.77.1.1";
pub const RATE_MBIT: f64 = 20.0;
/// Less than a connection's initial window.
pub const CAP_SEGMENTS: u32 = 6;
pub const PRIORITY: u32 = 40;
const HANDLER_PRIORITY: u32 = 39;
/// The qdisc that delays the download.
const NARROW: &str = "tbf rate 20mbit burst 5000 limit 200000";
/// Some 190 acknowledgements a second: the uploads wait for them, and not in the device's own queue, where a cap would
/// not be the limit.
const SLOW: &str = "tbf rate 100kbit burst 1600 limit 100000";
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// Field order matters: the processes before their namespaces.
pub struct ProbedDevice {
    pub daemon: Option<Daemon>,
    pub near: Role,
    pub far: Role,
    pub handler: Process,
    _requests: Process,
    /// Started by a probe; must live until the watchdog is judged.
    pub granted: Option<Process>,
    pub nice: Option<Process>,
    pub device: Namespace,
    pub peer: Namespace,
    pub before: Before,
    is_peer_shaped: bool,
    raw: PathBuf,
}

/// The state without giveway.
#[derive(Debug)]
pub struct Before {
    pub queue: String,
    /// The window offered to the download's sender.
    pub window_bytes: u64,
}

impl ProbedDevice {
    pub fn raise(raw: &Path) -> Result<Self> {
        std::fs::create_dir_all(raw)?;
        let raw = raw.canonicalize()?;
        for name in ["granted", "nice"] {
            std::fs::copy(find("dash")?, raw.join(name)).context("cannot copy a program for a rule")?;
        }
        let (device, peer) = raise_pair()?;
        peer.tc(&format!("qdisc add dev {STATION_DEVICE} root {NARROW}"))?;
        let far = Role::start(&peer, "kernels-far", &())?;
        let near = Role::start(&device, "kernels-near", &PEER_ADDRESS)?;
        let handler = Role::start(&device, "request-handler", &DEVICE_ADDRESS)?.into_process()?;
        let requests = Role::spawn(&peer, "request-sender", &(DEVICE_ADDRESS, REQUESTS))?.into_process()?;
        // So that the kernel's own autotuning has settled the download's window.
        pause(3.0)?;
        let before = Before {
            queue: queue(&device)?,
            window_bytes: socket(&peer, "sport", DOWNLOAD)?.window_bytes,
        };
        Ok(Self {
            daemon: None,
            near,
            far,
            handler,
            _requests: requests,
            granted: None,
            nice: None,
            device,
            peer,
            before,
            is_peer_shaped: true,
            raw,
        })
    }

    /// Starts the daemon with this backend and waits until it answers.
    pub fn start(&mut self, backend: &str) -> Result<()> {
        if let Some(mut before) = self.daemon.take() {
            before.stop()?;
        }
        self.daemon = Some(Daemon::raise(
            &self.device,
            &self.configuration(backend),
            &self.raw.join(backend),
        )?);
        Ok(())
    }

    fn configuration(&self, backend: &str) -> Value {
        json!({
            "cap": {"policy": "fixed", "capacity_mbit": RATE_MBIT, "fixed_segments": CAP_SEGMENTS},
            "link": {"rate_mbit": RATE_MBIT},
            "queue": {"backend": backend},
            "priority": [{"exe": self.raw.join("granted"), "priority": PRIORITY}],
            "chain": [{"local_port": REQUESTS, "budget_ms": 10.0, "priority": HANDLER_PRIORITY}],
            "rule": [
                {"port": BACKGROUND, "class": "background"},
                {"port": DOWNLOAD, "class": "background"},
                {"port": MARKED, "class": "background"},
                {"exe": self.raw.join("nice"), "class": "background"},
            ],
        })
    }

    /// A program that a rule names; it waits for its input.
    pub fn start_program(&self, name: &str) -> Result<Process> {
        let mut command = self.device.command(self.raw.join(name))?;
        command.args(["-c", "read line"]).stdin(Stdio::piped());
        Process::spawn(command)
    }

    pub fn ask_near(&mut self, word: &str) -> Result<bool> {
        self.near.ask(word)
    }

    /// Ends both uploads, and waits until nothing of them is left.
    pub fn quiet(&mut self) -> Result<()> {
        self.ask_near("quiet")?;
        self.answer_at_once(true)?;
        wait_until("what was sent to arrive", DRAIN_LIMIT, || {
            let sockets = [UPLOAD, BACKGROUND].map(|port| socket(&self.device, "dport", port));
            let mut queued = 0;
            for one in sockets {
                queued += one?.queued_bytes;
            }
            Ok(queued == 0)
        })
    }

    /// Or delays the remote host's acknowledgements.
    pub fn answer_at_once(&mut self, at_once: bool) -> Result<()> {
        if self.is_peer_shaped {
            self.peer.tc(&format!("qdisc del dev {STATION_DEVICE} root"))?;
        }
        if !at_once {
            self.peer.tc(&format!("qdisc add dev {STATION_DEVICE} root {SLOW}"))?;
        }
        self.is_peer_shaped = !at_once;
        Ok(())
    }

    pub fn queue(&self) -> Result<String> {
        queue(&self.device)
    }

    /// The output of a command of giveway's, kept with the results.
    pub fn keep(&self, name: &str, words: &[&str]) -> Result<Vec<u8>> {
        let said = answers::ask(&self.device, words)?;
        std::fs::write(self.raw.join(name), &said)?;
        Ok(said)
    }
}

/// The root qdisc as `tc` shows it.
fn queue(at: &Namespace) -> Result<String> {
    let shown = at.tc(&format!("qdisc show dev {STATION_DEVICE}"))?;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    Ok(shown.lines().next().unwrap_or_default().trim().into())
}
