// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The network devices of this namespace, managed or not, as rtnetlink tells them now: name, kind, and whether routes of this
//! host lead to them. Reads only.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use giveway_engine::model::Device;

use super::netlink::{Body, Netlink, attribute, text, u32_at};
use super::uplink::ifinfomsg;

/// Bytes of a message before its attributes (struct ifinfomsg, struct ifaddrmsg), and include/uapi/linux/if_link.h.
const IFINFOMSG_BYTES: usize = 16;
const IFADDRMSG_BYTES: usize = 8;
const IFLA_INFO_KIND: u16 = 1;
/// Of a bridge: what only connects containers and virtual machines with this host.
const GUESTS: [&str; 2] = ["veth", "tun"];

/// All devices, by their numbers.
///
/// # Errors
/// Where that cannot be told now.
pub fn devices(netlink: &mut Netlink) -> Result<BTreeMap<u32, Device>> {
    let links = netlink
        .dump(libc::RTM_GETLINK, &ifinfomsg(0))
        .context("cannot list the interfaces")?;
    let addressed = addressed(netlink)?;
    let mut devices = BTreeMap::new();
    // Bridges with a port that leads out of this host.
    let mut leads_out = BTreeSet::new();
    for message in &links {
        let get = |kind| attribute(message, IFINFOMSG_BYTES, kind);
        let (ifindex, flags) = (u32_at(message, 4)?, u32_at(message, 8)?.cast_signed());
        let Some(name) = get(libc::IFLA_IFNAME).and_then(text) else {
            continue;
        };
        let about = get(libc::IFLA_LINKINFO);
        let kind = about.and_then(|about| text(attribute(about, 0, IFLA_INFO_KIND)?));
        let is_guests = kind.as_deref().is_some_and(|kind| GUESTS.contains(&kind));
        let master = get(libc::IFLA_MASTER).and_then(|value| u32_at(value, 0).ok());
        leads_out.extend(master.filter(|_| !is_guests));
        let is_up = flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0;
        let is_loopback = flags & libc::IFF_LOOPBACK != 0;
        let device = Device {
            name,
            kind,
            is_loopback,
            is_routed: is_up && !is_loopback && addressed.contains(&ifindex),
        };
        devices.insert(ifindex, device);
    }
    for (ifindex, device) in &mut devices {
        let is_bridge = device.kind.as_deref() == Some("bridge");
        device.is_routed &= !is_bridge || leads_out.contains(ifindex);
    }
    Ok(devices)
}

/// Those with an address that is good beyond the link: a route comes with each.
fn addressed(netlink: &mut Netlink) -> Result<BTreeSet<u32>> {
    let addresses = netlink
        .dump(libc::RTM_GETADDR, &Body::new(&[0; IFADDRMSG_BYTES]))
        .context("cannot list the addresses")?;
    let far = addresses
        .iter()
        .filter(|message| message.get(3).is_some_and(|scope| *scope < libc::RT_SCOPE_LINK));
    far.map(|message| u32_at(message, 4)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    fn ip(arguments: &str) {
        let done = Command::new("ip").args(arguments.split(' ')).status().unwrap();
        assert!(done.success(), "ip {arguments}");
    }

    #[test]
    fn devices_with_routes_are_told_from_loopback_and_from_bridges_of_containers() {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        ip("link add gwd-out type veth peer name gwd-far");
        ip("link add gwd-br type bridge");
        ip("link add gwd-c type veth peer name gwd-c-far");
        ip("link set gwd-c master gwd-br");
        for name in ["gwd-out", "gwd-far", "gwd-br", "gwd-c", "gwd-c-far"] {
            ip(&format!("link set {name} up"));
        }
        ip("address add 10.78.1.1/24 dev gwd-out");
        ip("address add 10.78.2.1/24 dev gwd-br");
        let found = devices(&mut Netlink::open().unwrap()).unwrap();
        let of = |name: &str| found.values().find(|device| device.name == name).unwrap();
        assert_eq!(of("gwd-out").kind.as_deref(), Some("veth"));
        let routed: Vec<&str> = found
            .values()
            .filter(|device| device.is_routed)
            .map(|device| device.name.as_str())
            .collect();
        assert_eq!(routed, ["gwd-out"]);
        assert!(of("lo").is_loopback && !of("gwd-out").is_loopback);
    }
}
