// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A topology, standing: hosts that send, and one at the remote host.
//! Input: which topology. Output: its hosts by namespace and address, whatever is between them; taken down in the end.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::access_point::AccessPoint;
use crate::cell::{Cell, station_address};
use crate::channel::SERVER_ADDRESS;
use crate::experiment::Run;
use crate::giveway::Daemon;
use crate::link::wire::{self, NOBODY_ADDRESS, RECEIVER_ADDRESS, SENDER_ADDRESS, Wire, queue_configuration};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::traffic::http::RemoteHost;
use crate::uplink::{self, DEVICE_ADDRESS, FAR_ADDRESS, Shape, Uplink};

#[derive(Clone, Debug)]
pub enum Topology {
    /// Stations that share the air, with a server behind it.
    AccessPoint(AccessPoint),
    /// One device behind a narrow uplink.
    Uplink(Shape),
    /// A sender with this queue and a receiver; the wire is as fast as the machine, and `link` models a slower one.
    Wire { rate_mbit: u64, queue: wire::WireQueue },
}

/// Fields are dropped in this order: processes before their namespace.
pub struct Place<'a> {
    remote_host: Option<RemoteHost>,
    pub network: Network<'a>,
}

pub enum Network<'a> {
    AccessPoint(&'a mut Cell),
    Uplink(&'a Uplink),
    Wire(&'a Wire),
}

/// A host by its namespace and address.
#[derive(Clone, Copy)]
pub struct Host<'a> {
    pub at: &'a Namespace,
    pub address: Ipv4Addr,
}

impl Topology {
    /// Raises it with its daemons, does this on it, and takes it down.
    pub fn with(&self, run: &Run, act: impl FnOnce(&mut Place) -> Result<Outcome>) -> Result<Outcome> {
        match self {
            Topology::AccessPoint(access_point) => Cell::with(access_point, run, |cell| {
                act(&mut Place::of(Network::AccessPoint(cell)))
            }),
            Topology::Uplink(shape) => {
                let uplink = Uplink::raise(shape)?;
                let configuration = match shape.queue {
                    uplink::UplinkQueue::Giveway { cpu_gate, short } => Some(json!({
                        "cap": {"policy": "none"},
                        "link": {"rate_mbit": shape.up_kbit as f64 / 1e3, "driver_bytes": shape.driver_bytes},
                        "queue": {"cpu_gate": cpu_gate, "short_segments": short},
                        // These scenarios are about the queue.
                        "classes": {"congestion_control": false},
                    })),
                    _ => None,
                };
                beside_daemon(&uplink.device, configuration, run, || {
                    act(&mut Place::of(Network::Uplink(&uplink)))
                })
            }
            Topology::Wire { rate_mbit, queue } => {
                let wire = Wire::create()?;
                let configuration = match queue {
                    wire::WireQueue::Kernel { lines, .. } => {
                        wire.set_queue(lines)?;
                        None
                    }
                    wire::WireQueue::Giveway { admission } => Some(queue_configuration(*rate_mbit, *admission)),
                };
                beside_daemon(&wire.sender, configuration, run, || {
                    act(&mut Place::of(Network::Wire(&wire)))
                })
            }
        }
    }
}

/// With giveway's queue active, where it has a configuration.
fn beside_daemon(
    at: &Namespace,
    configuration: Option<serde_json::Value>,
    run: &Run,
    act: impl FnOnce() -> Result<Outcome>,
) -> Result<Outcome> {
    let Some(configuration) = configuration else {
        return act();
    };
    let mut daemon = Daemon::launch(at, &configuration, &run.file(""))?;
    daemon.wait_until_queueing(at)?;
    let outcome = act()?;
    daemon.stop()?;
    Ok(outcome)
}

impl<'a> Place<'a> {
    pub fn of(network: Network<'a>) -> Self {
        Self {
            remote_host: None,
            network,
        }
    }

    /// How many hosts there are that send.
    pub fn senders(&self) -> usize {
        match &self.network {
            Network::AccessPoint(cell) => cell.stations(),
            _ => 1,
        }
    }

    pub fn sender(&self, number: usize) -> Result<Host<'_>> {
        if number >= self.senders() {
            bail!(
                "the topology has {} senders, and none of number {number}",
                self.senders()
            );
        }
        let (at, address) = match &self.network {
            Network::AccessPoint(cell) => (cell.station(number), station_address(number)),
            Network::Uplink(uplink) => (&uplink.device, DEVICE_ADDRESS.into()),
            Network::Wire(wire) => (&wire.sender, SENDER_ADDRESS.into()),
        };
        Ok(Host {
            at,
            address: address.parse()?,
        })
    }

    pub fn far(&self) -> Result<Host<'_>> {
        let (at, address) = match &self.network {
            Network::AccessPoint(cell) => (cell.server(), SERVER_ADDRESS),
            Network::Uplink(uplink) => (&uplink.far, FAR_ADDRESS),
            Network::Wire(wire) => (&wire.receiver, RECEIVER_ADDRESS),
        };
        Ok(Host {
            at,
            address: address.parse()?,
        })
    }

    /// Where packets go that only have to be sent: an address that nobody has, where the topology has one.
    pub fn nobody(&self) -> Result<Ipv4Addr> {
        match &self.network {
            Network::Wire(_) => Ok(NOBODY_ADDRESS.parse()?),
            _ => Ok(self.far()?.address),
        }
    }

    /// The HTTP server and sink of uploads at the remote host, from its first use on.
    pub fn remote_host(&mut self) -> Result<&mut RemoteHost> {
        if self.remote_host.is_none() {
            self.remote_host = Some(RemoteHost::start(self.far()?.at)?);
        }
        self.remote_host.as_mut().context("there is no remote host")
    }
}
