// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device and a remote host on a wire without a rate. Input: how packets leave and arrive, a running daemon. Output:
//! the device's traffic, giveway's attachments on the packets' path, and its programs' run time.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use crate::bpf_objects::{ObjectKind, Runs, attached_links, held_by, runs_of};
use crate::channel::STATION_DEVICE;
use crate::giveway::Daemon;
use crate::meter::is_iterator;
use crate::namespace::Namespace;
use crate::network::raise_pair;
use crate::proc::numbers;
use crate::traffic::Direction;
use crate::uplink::PACKET_BYTES;

/// The programs that exist for limits alone.
const OF_LIMITS: [&str; 5] = ["gw_admit", "gw_return", "gw_redirect", "gw_leaves", "gw_to_class"];

pub struct LoadedDevice {
    pub device: Namespace,
    pub peer: Namespace,
}

/// Without a queue of giveway's: uploads are redirected to an ifb for their limit, as where no rate is known. And
/// without marks, for which admission would process unlimited packets, too.
pub fn configuration() -> Value {
    let classes = ["realtime", "stream", "standard", "bulk", "background"];
    let marks: BTreeMap<_, _> = classes.map(|class| (class, "keep")).into();
    json!({"cap": {"policy": "none"}, "queue": {"backend": "none"}, "marks": marks})
}

/// Totals; the difference of two is a period.
pub struct UsageTotals {
    at: Instant,
    bytes: f64,
    programs: BTreeMap<String, Runs>,
}

impl LoadedDevice {
    pub fn raise() -> Result<Self> {
        let (device, peer) = raise_pair()?;
        Ok(Self { device, peer })
    }

    /// Packets cross the wire one by one, and those with data are aggregated on arrival, or not. With `gro` the device
    /// sends them whole, as to hardware that segments them.
    pub fn set_offloads(&self, way: Direction, gro: bool) -> Result<()> {
        let ethtool = |at: &Namespace, features: &str| at.run("ethtool", &format!("-K {STATION_DEVICE} {features}"));
        let one_by_one = |at: &Namespace| {
            ethtool(at, "tso off gso off")?;
            // Otherwise the kernel segments TCP's packets only after tcx and the queue.
            at.ip(&format!("link set dev {STATION_DEVICE} gso_max_segs 1"))
        };
        match (way, gro) {
            (Direction::Up, true) => ethtool(&self.peer, "gro on").map(drop),
            (Direction::Up, false) => {
                ethtool(&self.peer, "gro off")?;
                one_by_one(&self.device)
            }
            (Direction::Down, _) => {
                ethtool(&self.device, if gro { "gro on" } else { "gro off" })?;
                one_by_one(&self.peer)
            }
        }
    }

    /// What giveway has attached or created in the device's namespace.
    pub fn attached(&self, daemon: &Daemon) -> Result<[(&'static str, usize); 3]> {
        let links = attached_links(&held_by(daemon.process.id(), ObjectKind::Link));
        let qdiscs = self.device.tc("qdisc show")?;
        let ifbs = self.device.run("ip", "-oneline link show type ifb")?.stdout;
        let lines = |said: &[u8], word: &str| {
            let said = String::from_utf8_lossy(said);
            said.lines().filter(|line| line.contains(word)).count()
        };
        Ok([
            (
                "tcx_programs",
                links.iter().filter(|link| link.name.starts_with("Tcx")).count(),
            ),
            ("clsact_qdiscs", lines(&qdiscs, "qdisc clsact")),
            ("ifb_devices", lines(&ifbs, "giveway-")),
        ])
    }
}

impl UsageTotals {
    /// The daemon is in the device's namespace.
    pub fn read(daemon: &Daemon, way: Direction) -> Result<Self> {
        let pid = daemon.process.id();
        let counted = numbers(&format!("/proc/{pid}/net/dev"), &format!("{STATION_DEVICE}:"))?;
        // Received bytes come first, sent bytes ninth.
        let column = if way == Direction::Down { 0 } else { 8 };
        Ok(Self {
            at: Instant::now(),
            bytes: counted.get(column).copied().unwrap_or_default(),
            programs: runs_of(&held_by(pid, ObjectKind::Program)),
        })
    }

    pub fn since(&self, before: &Self) -> UsageInterval {
        let gone = |(name, after): (&String, &Runs)| {
            let before = before.programs.get(name).copied().unwrap_or_default();
            (name.clone(), *after - before)
        };
        UsageInterval {
            seconds: (self.at - before.at).as_secs_f64(),
            bytes: self.bytes - before.bytes,
            programs: self.programs.iter().map(gone).collect(),
        }
    }
}

pub struct UsageInterval {
    seconds: f64,
    bytes: f64,
    programs: BTreeMap<String, Runs>,
}

impl UsageInterval {
    pub fn mbit(&self) -> f64 {
        self.bytes * 8e-6 / self.seconds
    }

    /// The bytes as full packets.
    fn packets(&self) -> f64 {
        self.bytes / PACKET_BYTES as f64
    }

    /// Programs of limits that have run, each with nanoseconds and runs.
    pub fn of_limits(&self) -> impl Iterator<Item = (&'static str, Runs)> {
        let ran = |name: &&'static str| Some((*name, *self.programs.get(*name)?));
        let of_limits = OF_LIMITS.iter().filter_map(ran);
        of_limits.filter(|(_, runs)| runs.count > 0)
    }

    /// Of all programs of limits, without what the kernel's clock takes for each run.
    pub fn limits_ns_per_packet(&self, clock_ns: f64) -> f64 {
        // A sum of nothing is -0.
        let net = self
            .of_limits()
            .map(|(_, runs)| runs.net_ns(clock_ns))
            .fold(0.0, |a, b| a + b);
        net / self.packets()
    }

    pub fn limits_runs_per_packet(&self) -> f64 {
        self.of_limits().map(|(_, runs)| runs.count as f64).sum::<f64>() / self.packets()
    }

    /// The same of all programs of the daemon, except those that run in its own reads.
    pub fn all_ns_per_packet(&self, clock_ns: f64) -> f64 {
        let elsewhere = self.programs.iter().filter(|(name, _)| !is_iterator(name));
        elsewhere.map(|(_, runs)| runs.net_ns(clock_ns)).sum::<f64>() / self.packets()
    }
}
