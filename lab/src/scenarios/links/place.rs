// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device with two uplinks, a remote host at each, and behind both the same server. Input: routes, and offered
//! traffic. Output: arrivals by link, how long until they match the link's rate, and giveway's reports.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{RATES_MBIT, SETTLED};
use crate::channel::STATION_DEVICE;
use crate::experiment::{Run, pause};
use crate::giveway::{Daemon, answers};
use crate::interrupt::wait_until;
use crate::namespace::Namespace;
use crate::network::{End, add_pair};
use crate::role::Role;
use crate::scenarios::reach::sender::Offer;
use crate::traffic::arrivals::{self, ArrivalCounter};

pub const DEVICES: [&str; 2] = [STATION_DEVICE, "wwan0"];
pub const NEAR: [&str; 2] = ["10.81.1.1", "10.81.2.1"];
pub const FAR: [&str; 2] = ["10.81.1.2", "10.81.2.2"];
pub const NEAR_IPV6: [&str; 2] = ["fd81:1::1", "fd81:2::1"];
pub const FAR_IPV6: [&str; 2] = ["fd81:1::2", "fd81:2::2"];
/// Behind either link.
pub const SERVER: &str = "10.88.0.1";
pub const SERVER_IPV6: &str = "fd88::1";
pub const PORT: u16 = 5_550;

const QUEUE_LIMIT: Duration = Duration::from_secs(30);
/// More than any bound on it.
const SETTLE_LIMIT: Duration = Duration::from_secs(40);
const WINDOW_S: f64 = 0.2;
/// So many windows that follow each other.
const WINDOWS: usize = 3;

/// Fields go in this order: what runs, then where it runs.
pub struct MultihomedDevice {
    senders: Vec<Role>,
    daemon: Option<Daemon>,
    arrivals: [ArrivalCounter; 2],
    pub device: Namespace,
    _far: [Namespace; 2],
    log: PathBuf,
}

impl MultihomedDevice {
    pub fn raise(run: &Run, is_ipv6_alone: bool) -> Result<Self> {
        let (near, far, prefix, server) = match is_ipv6_alone {
            true => (NEAR_IPV6, FAR_IPV6, 64, SERVER_IPV6),
            false => (NEAR, FAR, 24, SERVER),
        };
        let device = Namespace::create("device")?;
        let ends = [Namespace::create("first")?, Namespace::create("second")?];
        for at in [&device, &ends[0], &ends[1]] {
            at.allow_ipv6(server.contains(':'))?;
            at.ip("link set lo up")?;
        }
        for n in [0, 1] {
            let macs = ["1", "2"].map(|end| format!("02:00:00:00:0{}:0{end}", 4 + n));
            let sides = [(&device, &macs[0]), (&ends[n], &macs[1])].map(|(at, mac)| End::new(at, DEVICES[n], mac, &[]));
            add_pair(sides, 1)?;
            for (at, address) in [(&device, near[n]), (&ends[n], far[n])] {
                give(at, DEVICES[n], &format!("{address}/{prefix}"))?;
                at.ip(&format!("link set {} up", DEVICES[n]))?;
            }
            let length = if server.contains(':') { 128 } else { 32 };
            give(&ends[n], "lo", &format!("{server}/{length}"))?;
        }
        Ok(Self {
            senders: Vec::new(),
            daemon: None,
            arrivals: [ArrivalCounter::count(&ends[0])?, ArrivalCounter::count(&ends[1])?],
            device,
            _far: ends,
            log: run.file(""),
        })
    }

    /// `ip` on the device, a line each.
    pub fn ip(&self, lines: &[String]) -> Result<()> {
        lines.iter().try_for_each(|line| self.device.ip(line))
    }

    /// The links that giveway selects by their routes, unless named; each has its queue when this returns.
    pub fn start_daemon(&mut self, named: Option<&[&str]>, with_queue: &[usize], more: &Value) -> Result<()> {
        let uplink = |n: usize| json!({"interface": DEVICES[n], "rate_mbit": RATES_MBIT[n]});
        let mut configuration = json!({"cap": {"policy": "none"}, "uplink": [uplink(0), uplink(1)]});
        if let Some(named) = named {
            configuration["interfaces"] = json!(named);
        }
        for (key, value) in more.as_object().into_iter().flatten() {
            configuration["uplink"][0][key] = value.clone();
        }
        self.daemon = Some(Daemon::raise_with(&[], &self.device, &configuration, &self.log)?);
        for link in with_queue {
            wait_until("giveway's queue", QUEUE_LIMIT, || self.has_queue(*link))?;
        }
        Ok(())
    }

    pub fn stop_daemon(&mut self) -> Result<()> {
        self.daemon.take().map_or(Ok(()), |mut daemon| daemon.stop())
    }

    /// Unmodified UDP, until the senders are ended; it sends when this returns.
    pub fn send(&mut self, to: &str, port: u16, from: Option<&str>, mbit: f64) -> Result<()> {
        let sender = sender(&self.device, to, port, from, mbit)?;
        self.senders.push(sender);
        Ok(())
    }

    pub fn end_senders(&mut self) {
        self.senders.clear();
    }

    /// By the kernel's root qdisc and giveway's status.
    pub fn has_queue(&self, link: usize) -> Result<bool> {
        let status = answers::status(&self.device)?;
        let mut links = status.network.links.iter();
        let is_installed = links.any(|shown| shown.interface == DEVICES[link] && shown.queue.installed.is_some());
        Ok(is_installed && self.stands(link)?)
    }

    pub fn stands(&self, link: usize) -> Result<bool> {
        let shown = self.device.tc(&format!("qdisc show dev {}", DEVICES[link]))?;
        Ok(String::from_utf8_lossy(&shown).contains(" 6777: root"))
    }

    /// The reason in the status of a link's queue.
    pub fn reason(&self, link: usize) -> Result<String> {
        let status = answers::status(&self.device)?;
        let shown = status
            .network
            .links
            .into_iter()
            .find(|shown| shown.interface == DEVICES[link]);
        Ok(shown.map(|shown| shown.queue.reason).unwrap_or_default())
    }

    /// Another tool removes giveway's root qdisc.
    pub fn reset(&self, link: usize) -> Result<()> {
        self.device
            .tc(&format!("qdisc del dev {} root", DEVICES[link]))
            .map(drop)
    }

    /// How often its queue was changed.
    pub fn queue_changes(&self, link: usize) -> Result<f64> {
        let shown = serde_json::to_value(answers::status(&self.device)?.changes)?;
        let changes = shown.as_array().context("the status has no changes")?.iter();
        let of_it = changes.filter(|change| change["setting"] == "queue" && change["interface"] == DEVICES[link]);
        Ok(of_it.filter_map(|change| change["times"].as_f64()).sum())
    }

    /// Bytes that went to this port, by the link they came on.
    fn arrived(&mut self, port: u16) -> Result<[u64; 2]> {
        let key = format!("udp:{port}");
        let mut arrived = [0; 2];
        for (count, at) in arrived.iter_mut().zip(&mut self.arrivals) {
            *count = arrivals::of(&at.read()?, &key);
        }
        Ok(arrived)
    }

    /// Mbit/s to each of these ports, by link.
    pub fn measure<const N: usize>(&mut self, ports: [u16; N], seconds: f64) -> Result<[[f64; 2]; N]> {
        let read =
            |place: &mut Self| -> Result<Vec<[u64; 2]>> { ports.iter().map(|port| place.arrived(*port)).collect() };
        let (before, began) = (read(self)?, Instant::now());
        pause(seconds)?;
        let (after, seconds) = (read(self)?, began.elapsed().as_secs_f64());
        Ok(std::array::from_fn(|n| {
            [0, 1].map(|link| (after[n][link] - before[n][link]) as f64 * 8e-6 / seconds)
        }))
    }

    /// How long, since `began`, until arrivals by each of these links match its rate, for some windows in a row.
    pub fn settle(&mut self, port: u16, links: &[usize], began: Instant) -> Result<Vec<f64>> {
        let mut settled = vec![None; links.len()];
        let mut good = vec![0; links.len()];
        while settled.iter().any(Option::is_none) {
            let from_s = began.elapsed().as_secs_f64();
            let mbit = self.measure([port], WINDOW_S)?[0];
            ensure!(
                began.elapsed() < SETTLE_LIMIT,
                "{mbit:.2?} of {RATES_MBIT:?} Mbit/s arrive after {} s",
                SETTLE_LIMIT.as_secs()
            );
            for (n, link) in links.iter().enumerate() {
                let is_good = SETTLED.contains(&(mbit[*link] / RATES_MBIT[*link]));
                good[n] = if is_good { good[n] + 1 } else { 0 };
                if good[n] == WINDOWS && settled[n].is_none() {
                    settled[n] = Some(from_s - (WINDOWS - 1) as f64 * WINDOW_S);
                }
            }
        }
        Ok(settled.into_iter().flatten().map(|at: f64| at.max(0.0)).collect())
    }

    /// The most that arrived by a link in any window, of its rate.
    pub fn most_of_rate(&mut self, port: u16, link: usize, seconds: f64) -> Result<f64> {
        let (began, mut most) = (Instant::now(), 0.0_f64);
        while began.elapsed().as_secs_f64() < seconds {
            most = most.max(self.measure([port], WINDOW_S)?[0][link] / RATES_MBIT[link]);
        }
        Ok(most)
    }
}

pub fn sender(at: &Namespace, to: &str, port: u16, from: Option<&str>, mbit: f64) -> Result<Role> {
    let offer = Offer {
        from: from.map(str::parse).transpose()?,
        ..Offer::udp((to.parse::<std::net::IpAddr>()?, port).into(), mbit)
    };
    Role::start(at, "reach-sender", &offer)
}

/// An address without duplicate address detection.
pub fn give(at: &Namespace, device: &str, address: &str) -> Result<()> {
    let nodad = if address.contains(':') { " nodad" } else { "" };
    at.ip(&format!("address add {address} dev {device}{nodad}"))
}

/// As the kernel shows it.
pub fn gso_max_segs(at: &Namespace, device: &str) -> Result<String> {
    let shown = at.run("ip", &format!("-details link show dev {device}"))?.stdout;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    let mut words = shown.split_whitespace().skip_while(|word| *word != "gso_max_segs");
    let value = words.nth(1).context("`ip` shows no gso_max_segs")?;
    Ok(value.to_owned())
}
