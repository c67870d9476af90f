// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual wires between network namespaces: pairs of devices with addresses, whose ends know each other's hardware
//! addresses. Input: the two ends. Output: connected devices, which go with their namespaces. Limits and delays
//! nothing.

use anyhow::Result;

use crate::channel::STATION_DEVICE;
use crate::namespace::Namespace;

/// With offloads, one packet of a model would stand for many.
pub const OFFLOADS_OFF: &str = "gso off tso off gro off";

/// One end of a pair of devices, or any other device.
#[derive(Clone, Copy)]
pub struct End<'a> {
    pub at: &'a Namespace,
    pub device: &'a str,
    /// Its hardware address.
    pub mac: &'a str,
    /// With the length of the prefix; further arguments of `ip address` may follow.
    pub addresses: &'a [&'a str],
}

/// A pair of devices with so many queues each; not set up yet.
pub fn add_pair([a, b]: [End; 2], queues: u64) -> Result<()> {
    let count = format!("numtxqueues {queues} numrxqueues {queues}");
    let end = |end: End| format!("netns {} address {} {count}", end.at.name(), end.mac);
    let (first, second) = (end(a), end(b));
    a.at.ip(&format!(
        "link add {} {first} type veth peer name {} {second}",
        a.device, b.device
    ))
}

/// A pair without offloads, up; each end knows the other.
pub fn join(ends: [End; 2]) -> Result<()> {
    add_pair(ends, 1)?;
    for (end, other) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        end.at.run("ethtool", &format!("-K {} {OFFLOADS_OFF}", end.device))?;
        let addresses = other.addresses.iter().filter_map(|address| address.split('/').next());
        let peers: Vec<_> = addresses.map(|address| (address, other.mac)).collect();
        end.set_up(&peers)?;
    }
    Ok(())
}

/// A wire of 10.79.NUMBER.0/24 from a router's device, which has the first address, to an end with its default route
/// there.
pub fn join_router(router: &Namespace, number: u8, end: &Namespace, device: &str) -> Result<()> {
    let mac = |host: u8| format!("02:00:00:00:{number:02}:{host:02}");
    let address = |host: u8| format!("10.79.{number}.{host}/24");
    join([
        End::new(end, STATION_DEVICE, &mac(2), &[&address(2)]),
        End::new(router, device, &mac(1), &[&address(1)]),
    ])?;
    end.ip(&format!("route add default via 10.79.{number}.1"))
}

impl<'a> End<'a> {
    pub fn new(at: &'a Namespace, device: &'a str, mac: &'a str, addresses: &'a [&'a str]) -> Self {
        Self {
            at,
            device,
            mac,
            addresses,
        }
    }

    /// Addresses, the device up, and its neighbours (address, hardware address).
    pub fn set_up(&self, peers: &[(&str, &str)]) -> Result<()> {
        let device = self.device;
        let mut lines: Vec<String> = Vec::new();
        lines.extend(
            self.addresses
                .iter()
                .map(|address| format!("address add {address} broadcast + dev {device}")),
        );
        lines.extend(["link set lo up".into(), format!("link set {device} up")]);
        let known = |(address, mac): &(&str, &str)| {
            format!("neighbour replace {address} lladdr {mac} dev {device} nud permanent")
        };
        lines.extend(peers.iter().map(known));
        lines.iter().try_for_each(|line| self.at.ip(line))
    }
}

pub const PEER_ADDRESS: &str = "10.77.1.2";

/// A device, and the peer at the other end of its wire.
pub fn raise_pair() -> Result<(Namespace, Namespace)> {
    let (device, peer) = (Namespace::create("device")?, Namespace::create("peer")?);
    let address = format!("{PEER_ADDRESS}/24");
    let addresses = [["10.77.1.1/24"], [address.as_str()]];
    let ends = [
        End::new(&device, STATION_DEVICE, "02:00:00:00:03:01", &addresses[0]),
        End::new(&peer, STATION_DEVICE, "02:00:00:00:03:02", &addresses[1]),
    ];
    add_pair(ends, 1)?;
    ends.into_iter().try_for_each(|end| end.set_up(&[]))?;
    Ok((device, peer))
}

/// Two devices, each at its namespace by its name, with an address and its prefix; neighbours are resolved, and routes
/// are the caller's.
pub fn pair(a: (&Namespace, &str, &str), b: (&Namespace, &str, &str)) -> Result<()> {
    let (at, device, _) = a;
    at.ip(&format!(
        "link add {device} type veth peer name {} netns {}",
        b.1,
        b.0.name()
    ))?;
    for (at, device, address) in [a, b] {
        at.ip("link set lo up")?;
        at.ip(&format!("address add {address} dev {device}"))?;
        at.ip(&format!("link set {device} up"))?;
    }
    Ok(())
}
