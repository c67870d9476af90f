// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One access point with its stations and the server behind it, standing: namespaces, medium and,
//! where the variant has them, a giveway daemon on every station.
//! In: what it is to be. Out: the place in which its experiment happens, taken down when dropped.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::air::Air;
use crate::giveway::{self, Daemon, Status};
use crate::namespace::Namespace;
use crate::scenario::{AccessPoint, Cap};
use crate::topology::Topology;

/// Fields go in this order: daemons revert while their namespaces still stand.
pub struct Cell {
    daemons: Vec<Option<Daemon>>,
    pub air: Air,
    topology: Topology,
    /// What the daemons do.
    pub cap: Option<Cap>,
    /// Where logs and raw results of this variant are kept, and what their names begin with.
    raw: PathBuf,
    label: String,
}

impl Cell {
    /// `name` is the variant's.
    pub fn raise(access_point: &AccessPoint, name: &str, seed: u64, raw: &Path) -> Result<Self> {
        let topology = Topology::create(access_point.stations)?;
        let air = Air::start(
            &topology.stations,
            &topology.server,
            access_point.medium,
            access_point.rtt_ms,
            seed,
        )?;
        topology.connect()?;
        let daemons = (0..access_point.stations).map(|_| None).collect();
        let label = name.replace('/', "-");
        let mut cell = Self {
            daemons,
            air,
            topology,
            cap: access_point.giveway,
            raw: raw.into(),
            label,
        };
        if let Some(cap) = access_point.giveway {
            let key = giveway::new_key(raw)?;
            giveway::write_configuration(&cell.configuration(), cap, &key)?;
            for station in 0..access_point.stations {
                cell.start_daemon(station)?;
            }
            for station in 0..access_point.stations {
                cell.wait_for_daemon(station)?;
            }
        }
        Ok(cell)
    }

    pub fn station(&self, station: usize) -> &Namespace {
        &self.topology.stations[station]
    }

    pub fn stations(&self) -> usize {
        self.topology.stations.len()
    }

    pub fn server(&self) -> &Namespace {
        &self.topology.server
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
        daemon.wait_until_up(&self.topology.stations[station])
    }

    pub fn has_daemons(&self) -> bool {
        self.daemons.iter().any(Option::is_some)
    }

    /// Hands the daemon over to an experiment that kills it.
    pub fn take_daemon(&mut self, station: usize) -> Result<Daemon> {
        self.daemons[station]
            .take()
            .with_context(|| format!("station {} has no daemon", station + 1))
    }

    pub fn statuses(&self) -> Result<Vec<Status>> {
        self.topology.stations.iter().map(giveway::status).collect()
    }

    /// Ends the daemons in order, so that one that ends badly is noticed.
    pub fn stop_daemons(&mut self) -> Result<()> {
        for daemon in self.daemons.iter_mut().filter_map(Option::take) {
            let mut daemon = daemon;
            daemon.stop()?;
        }
        Ok(())
    }

    /// Leaves everything standing (KEEP=1) and says how to remove it.
    pub fn stay(mut self) -> Result<String> {
        let mut pids: Vec<i32> = self.daemons.iter_mut().flatten().map(Daemon::stay).collect();
        pids.extend(self.air.stay()?);
        let namespaces = self.topology.stations.iter_mut().chain([&mut self.topology.server]);
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
