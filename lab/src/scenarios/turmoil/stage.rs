// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the turmoil happens: two network namespaces, a veth pair that comes and goes, senders of hostile traffic.
//! Input: what to make or take away. Output: whether the kernel let it. Gone when dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::channel::STATION_DEVICE;
use crate::namespace::Namespace;
use crate::network::{End, add_pair};
use crate::outcome::Metrics;
use crate::process::{Process, run};
use crate::role::Role;
use crate::traffic::hostile::sender::{FAR_MAC, FAR_V4, FAR_V6, NEAR_MAC, NEAR_V4, NEAR_V6};
use crate::traffic::stream::start_sink;

/// How the senders are started; one of them is background by its owner (P0).
const NICENESS: [&str; 3] = ["10", "10", "19"];

/// Of giveway's qdiscs.
const OUR_PREFIX: &str = "gw";

pub struct TurmoilTestbed {
    /// Gone before the near namespace, which they hold.
    senders: Vec<Process>,
    _sink: Role,
    pub near: Namespace,
    pub far: Namespace,
    raw: PathBuf,
    /// Distinguished by their number, for a namespace may outlive its name.
    number: u32,
    reports: Vec<PathBuf>,
}

impl TurmoilTestbed {
    pub fn create(raw: &Path, queues: u64) -> Result<Self> {
        let (near, far) = (Namespace::create("near0")?, Namespace::create("far")?);
        near.allow_ipv6(true)?;
        far.allow_ipv6(true)?;
        let stage = Self {
            senders: Vec::new(),
            _sink: start_sink(&far)?,
            near,
            far,
            raw: raw.to_owned(),
            number: 0,
            reports: Vec::new(),
        };
        stage.add_device(queues)?;
        Ok(stage)
    }

    pub fn add_device(&self, queues: u64) -> Result<()> {
        let [near_mac, far_mac] = [text(NEAR_MAC), text(FAR_MAC)];
        let ends = [(&self.near, &near_mac), (&self.far, &far_mac)];
        let ends = ends.map(|(at, mac)| End::new(at, STATION_DEVICE, mac, &[]));
        add_pair(ends, queues)?;
        ends.into_iter().try_for_each(|end| end.set_up(&[]))?;
        self.know_addresses();
        Ok(())
    }

    /// Sets what a link loses that was down, or had too small an MTU for IPv6. What it has already is refused.
    pub fn know_addresses(&self) {
        let device = STATION_DEVICE;
        for (end, v4, v6) in [(&self.near, NEAR_V4, NEAR_V6), (&self.far, FAR_V4, FAR_V6)] {
            let _ = end.ip(&format!("address replace {v4}/24 dev {device}"));
            let _ = end.ip(&format!("address replace {v6}/64 dev {device} nodad"));
        }
        for address in [FAR_V4.to_string(), FAR_V6.to_string()] {
            // A packet that waits for its peer never comes to the queue.
            let mac = text(FAR_MAC);
            let _ = self.near.ip(&format!(
                "neighbour replace {address} lladdr {mac} dev {device} nud permanent"
            ));
        }
    }

    pub fn start_senders(&mut self, seed: u64) -> Result<()> {
        for (number, niceness) in NICENESS.iter().enumerate() {
            let report = self.raw.join(format!("hostile-{}.jsonl", self.reports.len()));
            let mut command = self.near.command("nice")?;
            command.args(["-n", niceness]).arg(std::env::current_exe()?);
            let description = (seed.wrapping_add(number as u64), STATION_DEVICE);
            command.args(["role", "hostile", &serde_json::to_string(&description)?]);
            command.stdin(Stdio::null()).stdout(File::create(&report)?);
            self.senders.push(Process::spawn(command)?);
            self.reports.push(report);
        }
        Ok(())
    }

    pub fn stop_senders(&mut self) {
        self.senders.clear();
    }

    /// SIGSTOP or SIGCONT to every sender.
    pub fn signal_senders(&self, signal: Signal) -> Result<()> {
        self.senders.iter().try_for_each(|sender| sender.signal(signal))
    }

    /// Whether every sender still runs.
    pub fn is_sending(&mut self) -> Result<bool> {
        let mut all = !self.senders.is_empty();
        for sender in &mut self.senders {
            all &= sender.exit()?.is_none();
        }
        Ok(all)
    }

    /// Deletes the near namespace, whatever still runs in it, and makes another.
    pub fn recreate_near(&mut self, queues: u64) -> Result<()> {
        self.number += 1;
        let other = Namespace::create(&format!("near{}", self.number))?;
        other.allow_ipv6(true)?;
        drop(std::mem::replace(&mut self.near, other));
        // The remote host vanishes with the near one, as soon as the last process has left the old namespace.
        let _ = self.far.ip(&format!("link delete {STATION_DEVICE}"));
        self.add_device(queues)
    }

    /// Whether `program` did it, in the near namespace.
    pub fn near_does(&self, program: &str, line: &str) -> Result<bool> {
        let mut command = self.near.command(program)?;
        command.args(line.split_whitespace());
        Ok(run(command).is_ok())
    }

    /// Packets that wait in giveway's qdiscs, as the kernel itself has it.
    pub fn queued(&self) -> Result<u64> {
        let all = self.near.tc("-s -j qdisc show")?;
        let all: Vec<Value> = serde_json::from_slice(&all).context("tc's list is not readable")?;
        let is_ours = |qdisc: &&Value| qdisc["kind"].as_str().is_some_and(|kind| kind.starts_with(OUR_PREFIX));
        Ok(all
            .iter()
            .filter(is_ours)
            .filter_map(|qdisc| qdisc["qlen"].as_u64())
            .sum())
    }

    /// The name of giveway's qdisc, where it is at the root.
    pub fn our_qdisc(&self) -> Option<String> {
        let said = self.near.tc(&format!("qdisc show dev {STATION_DEVICE} root")).ok()?;
        let said = String::from_utf8_lossy(&said);
        let kind = said.split_whitespace().nth(1)?;
        kind.starts_with(OUR_PREFIX).then(|| kind.to_owned())
    }

    /// What all senders together said that they sent, by outcome and kind.
    pub fn sent(&self) -> Result<Metrics> {
        let mut sum = Metrics::new();
        for report in &self.reports {
            let text = std::fs::read_to_string(report).with_context(|| format!("no {}", report.display()))?;
            // Each line repeats the earlier ones; the last may have been cut short by a kill.
            let last = text
                .lines()
                .rev()
                .find_map(|line| serde_json::from_str::<Metrics>(line).ok());
            for (name, count) in last.unwrap_or_default() {
                *sum.entry(name).or_default() += count;
            }
        }
        Ok(sum)
    }
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
