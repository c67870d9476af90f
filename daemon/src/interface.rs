// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which interfaces are managed, and what the kernel shows of them now. Looked up every second: interfaces
//! come and go, and the default route moves from Wi-Fi to a cable.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::{fs, io};

pub use giveway_engine::model::Interface;
use giveway_engine::network::queue::links::MOST_LINKS;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};

/// How the managed interfaces were chosen.
#[derive(Clone, Debug)]
pub enum Choice {
    Named(Vec<String>),
    /// All that have one.
    DefaultRoute,
}

/// What is waited for where there is none.
impl Display for Choice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(names) => write!(f, "waiting for {} to come up", names.join(" or ")),
            Self::DefaultRoute => write!(
                f,
                "waiting for a default route (--interface names a device without one)"
            ),
        }
    }
}

/// What is to be managed now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The one of the access point: the first that was named, else the preferred default route's; None while it is not
    /// up.
    pub first: Option<Interface>,
    /// All, by number and name, in the order of preference.
    pub links: Vec<(u32, String)>,
    /// So many more have a default route.
    pub left_out: usize,
}

impl Choice {
    /// The interfaces that exist, are up and are not the loopback.
    ///
    /// # Errors
    /// Where that cannot be told now.
    pub fn find(&self) -> io::Result<Found> {
        let names = match self {
            Self::Named(names) => names.clone(),
            Self::DefaultRoute => default_route_interfaces()?,
        };
        let addresses: Vec<_> = getifaddrs()?.collect();
        let is_managed = |flags: InterfaceFlags| flags & UP_OR_LOOPBACK == InterfaceFlags::IFF_UP;
        let mut found = Found::default();
        for (place, name) in names.into_iter().enumerate() {
            let mut of_it = addresses.iter().filter(|a| a.interface_name == name);
            let index = match if_nametoindex(name.as_str()) {
                Err(Errno::ENODEV) => continue,
                index => index?,
            };
            if !of_it.clone().next().is_some_and(|first| is_managed(first.flags)) {
                continue;
            }
            let ipv4 = of_it.find_map(|a| Some(a.address.as_ref()?.as_sockaddr_in()?.ip()));
            let is_first = match self {
                Self::Named(_) => place == 0,
                Self::DefaultRoute => found.first.is_none(),
            };
            if found.links.len() == MOST_LINKS {
                found.left_out += 1;
                continue;
            }
            found.links.push((index, name.clone()));
            if is_first {
                found.first = Some(Interface { name, index, ipv4 });
            }
        }
        Ok(found)
    }
}

const UP_OR_LOOPBACK: InterfaceFlags = InterfaceFlags::IFF_UP.union(InterfaceFlags::IFF_LOOPBACK);

/// IPv4's before IPv6's, each in the order of their metrics.
fn default_route_interfaces() -> io::Result<Vec<String>> {
    let mut names = default_v4(&table("/proc/net/route")?);
    names.extend(default_v6(&table("/proc/net/ipv6_route")?));
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(names)
}

/// Empty on a kernel without this protocol.
fn table(path: &str) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        table => table,
    }
}

/// The interfaces of default routes, lowest metric first, in the format of /proc/net/route.
fn default_v4(table: &str) -> Vec<String> {
    let routes = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (name, destination, metric, mask) = (fields.first()?, fields.get(1)?, fields.get(6)?, fields.get(7)?);
        let metric: u64 = metric.parse().ok()?;
        (*destination == "00000000" && *mask == "00000000").then(|| (metric, (*name).to_owned()))
    });
    by_metric(routes)
}

/// The same for /proc/net/ipv6_route, whose metrics are hexadecimal and whose unreachable default is on `lo`.
fn default_v6(table: &str) -> Vec<String> {
    let routes = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (prefix, metric, name) = (fields.get(1)?, fields.get(5)?, fields.get(9)?);
        let metric = u64::from_str_radix(metric, 16).ok()?;
        let destination_is_any = fields.first()?.bytes().all(|b| b == b'0');
        (destination_is_any && *prefix == "00" && *name != "lo").then(|| (metric, (*name).to_owned()))
    });
    by_metric(routes)
}

fn by_metric(routes: impl Iterator<Item = (u64, String)>) -> Vec<String> {
    let ordered: BTreeSet<(u64, String)> = routes.collect();
    ordered.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_route_with_the_lowest_metric_comes_first() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
            eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(default_v4(table), ["eth0", "wlan0"]);
    }

    #[test]
    fn garbage_has_no_default_route() {
        assert!(default_v4("x\ny\n00000000 00000000\n").is_empty());
        assert!(default_v6("00 00 zz\n").is_empty());
    }
}
