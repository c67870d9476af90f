// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A running access point with its stations and the server behind it: namespaces, medium and, where the variant has
//! them, a giveway daemon on every station. Input: its description. Output: the testbed of an experiment, taken down
//! when dropped.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::access_point::AccessPoint;
pub use crate::channel::SERVER_ADDRESS;
use crate::channel::{Channel, SERVER_DEVICE, STATION_DEVICE};
use crate::experiment::Run;
use crate::giveway::answers::{self, Status};
use crate::giveway::{self, Daemon};
use crate::interrupt::wait_for;
use crate::meter;
use crate::namespace::Namespace;
use crate::network::{End, OFFLOADS_OFF};
use crate::outcome::Outcome;
use crate::process::keep;
use crate::role::Role;
use crate::traffic::stream::{TcpSource, start_sink};

const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Field order matters: daemons revert while their namespaces still exist.
pub struct Cell {
    daemons: Vec<Option<Daemon>>,
    pub channel: Channel,
    stations: Vec<Namespace>,
    server: Namespace,
    /// Folder of this variant's logs and raw results, and the prefix of their names.
    raw: PathBuf,
    label: String,
}

impl Cell {
    /// Creates it, runs the experiment on it, and takes it down; with KEEP=1 the last one, or one that failed, stays.
    pub fn with(
        access_point: &AccessPoint,
        run: &Run,
        act: impl FnOnce(&mut Cell) -> Result<Outcome>,
    ) -> Result<Outcome> {
        let mut cell = Self::raise(access_point, run)?;
        let outcome = act(&mut cell);
        if keep() && (run.is_last || outcome.is_err()) {
            eprintln!("{}", cell.stay()?);
        } else {
            let stopped = cell.stop_daemons();
            if outcome.is_ok() {
                stopped?;
            }
        }
        outcome
    }

    fn raise(access_point: &AccessPoint, run: &Run) -> Result<Self> {
        let role = |number| Namespace::create_small(&format!("sta{number}"));
        let stations: Vec<_> = (1..=access_point.stations).map(role).collect::<Result<_>>()?;
        let server = Namespace::create("server")?;
        let channel = Channel::start(&stations, &server, access_point, run.seed)?;
        connect(&stations, &server)?;
        let mut cell = Self {
            daemons: (0..access_point.stations).map(|_| None).collect(),
            channel,
            stations,
            server,
            raw: run.raw.into(),
            label: run.label(),
        };
        let managed = || (0..access_point.stations).filter(|station| access_point.has_daemon(*station));
        if managed().next().is_some() {
            let key = giveway::new_key(run.raw)?;
            let configuration = giveway::configuration(access_point.giveway, access_point.background, &key);
            giveway::write(&cell.configuration(), &configuration)?;
            managed().try_for_each(|station| cell.start_daemon(station))?;
            managed().try_for_each(|station| cell.wait_for_daemon(station))?;
        }
        if access_point.background.is_some_and(|background| background.is_marked) {
            managed().try_for_each(|station| giveway::wait_until_marking(cell.station(station)))?;
        }
        Ok(cell)
    }

    pub fn station(&self, station: usize) -> &Namespace {
        &self.stations[station]
    }

    pub fn stations(&self) -> usize {
        self.stations.len()
    }

    pub fn server(&self) -> &Namespace {
        &self.server
    }

    /// A file of this variant: `RAW/VARIANT-staN.WHAT`.
    pub fn file(&self, station: usize, what: &str) -> PathBuf {
        self.raw.join(format!("{}-sta{}.{what}", self.label, station + 1))
    }

    fn configuration(&self) -> PathBuf {
        self.raw.join(format!("{}.toml", self.label))
    }

    pub fn start_daemon(&mut self, station: usize) -> Result<()> {
        let log = self.file(station, "giveway.log");
        let daemon = Daemon::start(self.station(station), &self.configuration(), log)?;
        self.daemons[station] = Some(daemon);
        Ok(())
    }

    pub fn wait_for_daemon(&mut self, station: usize) -> Result<()> {
        let daemon = self.daemons[station].as_mut().context("no daemon was started")?;
        daemon.wait_until_up(&self.stations[station])
    }

    pub fn has_daemons(&self) -> bool {
        self.daemons.iter().any(Option::is_some)
    }

    /// How long each daemon has waited for a processor until now, in ns.
    pub fn daemons_waited_ns(&self) -> Result<Vec<f64>> {
        let daemons = self.daemons.iter().flatten();
        daemons
            .map(|daemon| meter::daemon_waited_ns(daemon.process.id()))
            .collect()
    }

    /// Hands the daemon over to an experiment that kills it.
    pub fn take_daemon(&mut self, station: usize) -> Result<Daemon> {
        self.daemons[station]
            .take()
            .with_context(|| format!("station {} has no daemon", station + 1))
    }

    /// Every station sends to the server without end, until the returned handles are dropped.
    pub fn saturate(&self) -> Result<(Vec<TcpSource>, Role)> {
        let sink = start_sink(&self.server)?;
        let mut sources: Vec<_> = self.stations.iter().map(TcpSource::connect).collect::<Result<_>>()?;
        for source in &mut sources {
            source.start()?;
        }
        Ok((sources, sink))
    }

    /// Of every daemon.
    pub fn statuses(&self) -> Result<Vec<Status>> {
        let managed = self
            .stations
            .iter()
            .zip(&self.daemons)
            .filter(|(_, daemon)| daemon.is_some());
        // Beside several labs at once a daemon may answer late.
        let answer = |station| {
            wait_for(
                "a daemon's status",
                ANSWERS_WITHIN,
                || Ok(answers::status(station).ok()),
            )
        };
        managed.map(|(station, _)| answer(station)).collect()
    }

    /// Ends the daemons in order, so that a bad end is noticed.
    pub fn stop_daemons(&mut self) -> Result<()> {
        for daemon in self.daemons.iter_mut().filter_map(Option::take) {
            let mut daemon = daemon;
            daemon.stop()?;
        }
        Ok(())
    }

    /// Leaves everything running (KEEP=1) and says how to remove it.
    pub fn stay(mut self) -> Result<String> {
        let mut pids: Vec<i32> = self
            .daemons
            .iter_mut()
            .flatten()
            .map(|daemon| daemon.process.stay())
            .collect();
        pids.extend(self.channel.stay()?);
        let namespaces = self.stations.iter_mut().chain([&mut self.server]);
        let names: Vec<_> = namespaces.map(|namespace| namespace.stay().to_owned()).collect();
        let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
        Ok(format!(
            "KEEP=1: it still stands; look with `ip netns exec {} ...`, remove it with\n  kill {}; for n in {}; do ip netns delete $n; done",
            names[0],
            pids.join(" "),
            names.join(" "),
        ))
    }
}

/// The last byte of the server's addresses, of both kinds.
const SERVER_NUMBER: u8 = 254;

pub fn station_address(station: usize) -> String {
    address(station as u8 + 1)
}

/// A station's connections to the server, as `ss` shows them.
pub fn connections(station: &Namespace) -> Result<String> {
    let shown = station.run("ss", &format!("-tinOH dst {SERVER_ADDRESS}"))?.stdout;
    Ok(String::from_utf8_lossy(&shown).into_owned())
}

fn address(number: u8) -> String {
    format!("10.77.0.{number}")
}

/// Once the medium has created the devices.
fn connect(stations: &[Namespace], server: &Namespace) -> Result<()> {
    let numbers = (1..).zip(stations.iter().map(|station| (station, STATION_DEVICE)));
    let ends: Vec<(u8, _)> = numbers.chain([(SERVER_NUMBER, (server, SERVER_DEVICE))]).collect();
    for (number, (at, device)) in &ends {
        at.run("ethtool", &format!("-K {device} {OFFLOADS_OFF}"))?;
        at.tc(&format!("qdisc replace dev {device} root pfifo"))?;
        let others = ends.iter().filter(|(other, _)| other != number);
        let peers = others.map(|(other, _)| (address(*other), format!("02:00:00:00:00:{other:02x}")));
        let peers: Vec<_> = peers.collect();
        let peers: Vec<_> = peers.iter().map(|(address, mac)| (&address[..], &mac[..])).collect();
        End::new(at, device, "", &[&format!("{}/24", address(*number))]).set_up(&peers)?;
    }
    Ok(())
}
