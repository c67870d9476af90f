// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The namespaces and their addresses: stations, and a server behind the access point.
//! In: how many stations. Out: namespaces that the medium can join and that are connected once it
//! has. Goes away when dropped. Decides nothing about traffic.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::air::{SERVER_DEVICE, STATION_DEVICE};
use crate::namespace::Namespace;
use crate::process::run;

pub const SERVER_ADDRESS: &str = "10.77.0.254";
/// The last byte of the server's addresses, of both kinds.
const SERVER_NUMBER: u8 = 254;

pub struct Topology {
    pub stations: Vec<Namespace>,
    pub server: Namespace,
}

impl Topology {
    pub fn create(stations: usize) -> Result<Self> {
        let role = |number| Namespace::create(&format!("sta{number}"));
        Ok(Self {
            stations: (1..=stations).map(role).collect::<Result<_>>()?,
            server: Namespace::create("server")?,
        })
    }

    /// Addresses, neighbours and queues, once the medium has created the devices.
    pub fn connect(&self) -> Result<()> {
        let numbers: Vec<u8> = (1..=self.stations.len() as u8).chain([SERVER_NUMBER]).collect();
        let ends = self.stations.iter().map(|namespace| (namespace, STATION_DEVICE));
        for (&number, (namespace, device)) in numbers.iter().zip(ends.chain([(&self.server, SERVER_DEVICE)])) {
            let others = numbers.iter().filter(|&&other| other != number);
            attach(namespace, device, number, others.copied())?;
        }
        Ok(())
    }
}

pub fn station_address(station: usize) -> String {
    address(station as u8 + 1)
}

fn address(number: u8) -> String {
    format!("10.77.0.{number}")
}

fn attach(namespace: &Namespace, device: &str, number: u8, others: impl Iterator<Item = u8>) -> Result<()> {
    let mut offloads = namespace.command("ethtool")?;
    // Without this one model frame would stand for many packets.
    offloads.args(["-K", device, "gso", "off", "tso", "off", "gro", "off"]);
    run(offloads)?;
    let mut queue = Command::new("tc");
    queue.args([
        "-n",
        namespace.name(),
        "qdisc",
        "replace",
        "dev",
        device,
        "root",
        "pfifo",
    ]);
    run(queue)?;
    let mut batch = format!(
        "address add {}/24 broadcast 10.77.0.255 dev {device}\nlink set lo up\nlink set {device} up\n",
        address(number),
    );
    for other in others {
        batch += &format!(
            "neighbour replace {} lladdr 02:00:00:00:00:{other:02x} dev {device} nud permanent\n",
            address(other),
        );
    }
    ip_batch(namespace, &batch)
}

fn ip_batch(namespace: &Namespace, lines: &str) -> Result<()> {
    let mut ip = Command::new("ip")
        .args(["-n", namespace.name(), "-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot start `ip`: is iproute2 installed?")?;
    ip.stdin
        .take()
        .context("ip has no input")?
        .write_all(lines.as_bytes())?;
    if !ip.wait()?.success() {
        bail!(
            "cannot set the addresses of namespace {}; ip's reason is above",
            namespace.name()
        );
    }
    Ok(())
}
