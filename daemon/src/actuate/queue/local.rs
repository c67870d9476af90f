// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The own subnets of links, by the addresses that these have now; with what never leaves a link: link-local multicast and
//! broadcast. Reads only.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};
use giveway_engine::model::Prefix;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

use super::admission::{Admission, LocalNetwork};
use super::{ManagedLink, QueueActuator};

/// Never routed (RFC 5771, RFC 4291).
const OF_EVERY_LINK: [(IpAddr, u8); 3] = [
    (IpAddr::V4(Ipv4Addr::BROADCAST), 32),
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 24),
    (IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0)), 16),
];

impl QueueActuator {
    /// The subnets of links whose rates are not for these, as their addresses are now.
    pub fn follow_networks(&mut self) -> Result<()> {
        let Some(admission) = &mut self.admission else {
            return Ok(());
        };
        let spares = |link: &&ManagedLink| link.plan.tuning.spares_local;
        let links: Vec<(u32, String)> = self
            .links
            .values()
            .filter(spares)
            .map(|link| (link.number, link.name.clone()))
            .collect();
        admission.follow_networks(&networks(&links)?)
    }

    /// The subnets that admission knows, by the links' interfaces.
    pub fn subnets(&self) -> BTreeMap<u32, Vec<Prefix>> {
        let networks = self.admission.iter().flat_map(Admission::networks);
        let mut subnets: BTreeMap<u32, Vec<Prefix>> = BTreeMap::new();
        for network in networks {
            let of_it = self.links.iter().find(|(_, link)| link.number == network.link);
            if let (Some((ifindex, _)), Some(subnet)) = (of_it, Prefix::new(network.address, network.bits)) {
                subnets.entry(*ifindex).or_default().push(subnet);
            }
        }
        subnets
    }
}

/// Those of the links of these numbers and names.
fn networks(links: &[(u32, String)]) -> Result<BTreeSet<LocalNetwork>> {
    if links.is_empty() {
        return Ok(BTreeSet::new());
    }
    let of_every = links
        .iter()
        .flat_map(|(link, _)| OF_EVERY_LINK.map(|(address, bits)| (*link, address, bits)));
    let mut found: BTreeSet<LocalNetwork> = of_every
        .map(|(link, address, bits)| LocalNetwork { link, address, bits })
        .collect();
    for one in getifaddrs().context("cannot list the addresses")? {
        let Some((link, _)) = links.iter().find(|(_, name)| *name == one.interface_name) else {
            continue;
        };
        let (address, mask) = (one.address.as_ref().and_then(ip), one.netmask.as_ref().and_then(ip));
        if let (Some(address), Some(mask)) = (address, mask)
            && let Some((address, bits)) = network(address, mask)
        {
            let link = *link;
            found.insert(LocalNetwork { link, address, bits });
        }
    }
    Ok(found)
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

/// None of what is all addresses, or one.
fn network(address: IpAddr, mask: IpAddr) -> Option<(IpAddr, u8)> {
    let (address, bits, most) = match (address, mask) {
        (IpAddr::V4(address), IpAddr::V4(mask)) => {
            let bits = mask.to_bits().leading_ones();
            (
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask.to_bits())),
                bits,
                32,
            )
        }
        (IpAddr::V6(address), IpAddr::V6(mask)) => {
            let bits = mask.to_bits().leading_ones();
            (
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask.to_bits())),
                bits,
                128,
            )
        }
        _ => return None,
    };
    let bits = u8::try_from(bits).ok()?;
    (1..most).contains(&bits).then_some((address, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_is_told_by_an_address_and_its_mask() {
        let told = |address: &str, mask: &str| {
            let network = network(address.parse().unwrap(), mask.parse().unwrap())?;
            Some(format!("{}/{}", network.0, network.1))
        };
        assert_eq!(told("192.168.7.9", "255.255.252.0").unwrap(), "192.168.4.0/22");
        assert_eq!(told("fe80::1234", "ffff:ffff:ffff:ffff::").unwrap(), "fe80::/64");
        assert_eq!(told("10.1.2.3", "255.255.255.255"), None, "nobody else is there");
        assert_eq!(told("10.1.2.3", "0.0.0.0"), None);
        assert_eq!(told("10.1.2.3", "ffff::"), None);
    }
}
