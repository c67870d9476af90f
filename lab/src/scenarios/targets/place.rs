// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device behind a modem with the same rate in both directions, a container behind the device, and a remote host. Input: what is
//! transferred, and giveway's commands. Output: what its receiver has read, and what giveway says and shows.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::target::{Target, TargetKind, USER};
use super::transfer::{FAR_ADDRESS, ReceivedBytes};
use super::views::Web;
use crate::channel::STATION_DEVICE;
use crate::experiment::Run;
use crate::giveway::{Daemon, answers, binary};
use crate::interrupt::wait_until;
use crate::namespace::Namespace;
use crate::network::pair;
use crate::process::say;
use crate::role::Role;
use crate::traffic::Direction;

const LINK_MBIT: f64 = 24.0;
const RULES: &str = "50-user.toml";
/// Starts the rest of the line as that user, and ends it with its parent.
const AS_USER: [&str; 7] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--pdeathsig",
    "KILL",
    "--",
];
/// Longer than anything here should take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Fields go in this order: what runs, then where it runs.
pub struct LimitedDevice {
    pub web: Option<Web>,
    target: Option<Target>,
    remote_host: Role,
    daemon: Option<Daemon>,
    pub device: Namespace,
    container: Namespace,
    _modem: Namespace,
    _far: Namespace,
    rules: PathBuf,
    stem: PathBuf,
    way: Direction,
}

impl LimitedDevice {
    pub fn raise(way: Direction, run: &Run) -> Result<Self> {
        let rules = run.file(".rules");
        fs::create_dir_all(&rules).context("cannot make a folder")?;
        let file = rules.join(RULES);
        if file.exists() {
            fs::remove_file(file)?;
        }
        let [device, modem, far, container] = ["device", "modem", "far", "container"].map(Namespace::create);
        let (device, modem, far, container) = (device?, modem?, far?, container?);
        pair(
            (&device, STATION_DEVICE, "10.79.1.2/24"),
            (&modem, "lan", "10.79.1.1/24"),
        )?;
        pair((&far, STATION_DEVICE, "10.79.2.2/24"), (&modem, "wan", "10.79.2.1/24"))?;
        pair((&container, "eth0", "10.79.3.2/24"), (&device, "veth0", "10.79.3.1/24"))?;
        for end in ["lan", "wan"] {
            modem.tc(&format!(
                "qdisc add dev {end} root tbf rate {LINK_MBIT}mbit burst 20k latency 50ms"
            ))?;
        }
        for router in [&device, &modem] {
            router.run("sysctl", "-qw net.ipv4.ip_forward=1")?;
        }
        for (at, gateway) in [(&device, "10.79.1.1"), (&far, "10.79.2.1"), (&container, "10.79.3.1")] {
            at.ip(&format!("route add default via {gateway}"))?;
        }
        modem.ip("route add 10.79.3.0/24 via 10.79.1.2")?;
        Ok(Self {
            web: None,
            target: None,
            remote_host: Role::start(&far, "targets-far", &way)?,
            daemon: None,
            device,
            container,
            _modem: modem,
            _far: far,
            rules,
            stem: run.file(""),
            way,
        })
    }

    /// It answers when this returns. No rate of the link is known to it.
    pub fn start_daemon(&mut self) -> Result<()> {
        let rules = self.rules.display().to_string();
        let configuration = json!({"cap": {"policy": "none"}});
        self.daemon = Some(Daemon::raise_with_rules(
            &rules,
            &self.device,
            &configuration,
            &self.stem,
        )?);
        Ok(())
    }

    pub fn stop_daemon(&mut self) -> Result<()> {
        self.daemon.take().map_or(Ok(()), |mut daemon| daemon.stop())
    }

    pub fn kill_daemon(&mut self) -> Result<()> {
        self.daemon.take().map_or(Ok(()), |mut daemon| daemon.process.kill())
    }

    /// A process that will transfer, where it is to be named as such a target.
    pub fn prepare(&mut self, kind: TargetKind) -> Result<()> {
        let at = if kind == TargetKind::Container {
            &self.container
        } else {
            &self.device
        };
        let starter: &[&str] = if kind.is_users() { &AS_USER } else { &[] };
        let near = Role::spawn_through(starter, at, "targets-near", &(self.way, FAR_ADDRESS))?;
        self.target = Some(Target::around(kind, near)?);
        Ok(())
    }

    pub fn target(&self) -> Result<&Target> {
        self.target.as_ref().context("there is no target")
    }

    /// It is connected when this returns.
    pub fn begin_transfer(&mut self) -> Result<()> {
        self.target.as_mut().context("there is no target")?.begin()
    }

    pub fn end_target(&mut self) {
        drop(self.target.take());
    }

    pub fn received(&mut self) -> Result<ReceivedBytes> {
        let arrivals = match self.way {
            Direction::Up => self.remote_host.ask("")?,
            Direction::Down => self.target.as_mut().context("there is no target")?.near.ask("")?,
        };
        Ok(ReceivedBytes::of(arrivals))
    }

    pub fn wait_until_transferring(&mut self) -> Result<()> {
        wait_until("the transfer to move something", PATIENCE, || {
            Ok(self.received()?.total() > 0)
        })
    }

    /// `giveway` with these words, as root: what it says, and whether it succeeds.
    pub fn giveway(&self, words: &[&str]) -> Result<(String, bool)> {
        say(self.device.command(binary()?)?.args(words))
    }

    /// The same as an ordinary user.
    pub fn giveway_as_user(&self, words: &[&str]) -> Result<(String, bool)> {
        let mut command = self.device.command(AS_USER[0])?;
        command.args(&AS_USER[1..]).arg(binary()?);
        say(command.args(words))
    }

    /// Gives back what was said of it.
    pub fn limit(&self, mbit: f64) -> Result<String> {
        let option = match self.way {
            Direction::Up => "--up",
            Direction::Down => "--down",
        };
        let rate = format!("{mbit}mbit");
        let target = self.target()?;
        let (said, is_well) = match target.kind {
            TargetKind::UserByRule => self.write_rule(Some(mbit))?,
            _ => self.giveway(&["limit", "set", &target.name, option, &rate])?,
        };
        ensure!(is_well, "no limit is set: {said}");
        Ok(said)
    }

    pub fn clear(&self) -> Result<(String, bool)> {
        let target = self.target()?;
        if target.kind == TargetKind::UserByRule {
            return self.write_rule(None);
        }
        self.giveway(&["limit", "clear", &target.name])
    }

    /// A user has a rule, since `limit set` takes none.
    pub fn write_rule(&self, mbit: Option<f64>) -> Result<(String, bool)> {
        let key = match self.way {
            Direction::Up => "upload_limit_mbit",
            Direction::Down => "download_limit_mbit",
        };
        let rule = mbit.map(|mbit| format!("[[rule]]\nuser = \"{USER}\"\nclass = \"standard\"\n{key} = {mbit:.1}\n"));
        fs::write(self.rules.join(RULES), rule.unwrap_or_default())?;
        self.giveway(&["reload"])
    }

    /// How long until giveway knows of no limit any more; none where it goes on to list one.
    pub fn limits_end_s(&self) -> Result<Option<f64>> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE / 2 {
            if self.lists_nothing()? {
                return Ok(Some(began.elapsed().as_secs_f64()));
            }
            crate::experiment::pause(0.05)?;
        }
        Ok(None)
    }

    fn lists_nothing(&self) -> Result<bool> {
        let listed = self.giveway(&["limit", "list", "--json"])?.0;
        let listed: Value = serde_json::from_str(&listed).with_context(|| format!("`limit list` says {listed}"))?;
        let by_hand = listed["by_hand"].as_array().context("no list")?;
        Ok(by_hand.is_empty() && answers::status(&self.device)?.network.limits.is_empty())
    }
}
