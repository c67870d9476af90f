// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which interface is managed, and what the kernel shows of it now. Looked up every second: interfaces
//! come and go, and the default route moves from Wi-Fi to a cable.

use std::fmt::{self, Display, Formatter};
use std::{fs, io};

pub use giveway_engine::model::Interface;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};

/// How the managed interface was chosen.
#[derive(Clone, Debug)]
pub enum Choice {
    Named(String),
    DefaultRoute,
}

/// What is waited for where there is none.
impl Display for Choice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => write!(f, "waiting for {name} to come up"),
            Self::DefaultRoute => write!(
                f,
                "waiting for a default route (--interface names a device without one)"
            ),
        }
    }
}

impl Choice {
    /// The interface, where it exists, is up and is not the loopback.
    ///
    /// # Errors
    /// Where that cannot be told now.
    pub fn find(&self) -> io::Result<Option<Interface>> {
        let name = match self {
            Self::Named(name) => Some(name.clone()),
            Self::DefaultRoute => default_route_interface()?,
        };
        let Some(name) = name else { return Ok(None) };
        let index = match if_nametoindex(name.as_str()) {
            Err(Errno::ENODEV) => return Ok(None),
            index => index?,
        };
        let addresses: Vec<_> = getifaddrs()?.filter(|a| a.interface_name == name).collect();
        let is_managed = |flags: InterfaceFlags| flags & UP_OR_LOOPBACK == InterfaceFlags::IFF_UP;
        if !addresses.first().is_some_and(|first| is_managed(first.flags)) {
            return Ok(None);
        }
        let ipv4 = addresses
            .iter()
            .find_map(|a| Some(a.address.as_ref()?.as_sockaddr_in()?.ip()));
        Ok(Some(Interface { name, index, ipv4 }))
    }
}

const UP_OR_LOOPBACK: InterfaceFlags = InterfaceFlags::IFF_UP.union(InterfaceFlags::IFF_LOOPBACK);

fn default_route_interface() -> io::Result<Option<String>> {
    let v4 = default_v4(&table("/proc/net/route")?);
    Ok(match v4 {
        Some(name) => Some(name),
        None => default_v6(&table("/proc/net/ipv6_route")?),
    })
}

/// Empty on a kernel without this protocol.
fn table(path: &str) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        table => table,
    }
}

/// The default route with the lowest metric in the format of /proc/net/route.
fn default_v4(table: &str) -> Option<String> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (name, destination, metric, mask) = (fields.first()?, fields.get(1)?, fields.get(6)?, fields.get(7)?);
            let metric: u64 = metric.parse().ok()?;
            (*destination == "00000000" && *mask == "00000000").then(|| (metric, (*name).to_owned()))
        })
        .min()
        .map(|(_, name)| name)
}

/// The same for /proc/net/ipv6_route, whose metrics are hexadecimal and whose unreachable default is on `lo`.
fn default_v6(table: &str) -> Option<String> {
    table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (prefix, metric, name) = (fields.get(1)?, fields.get(5)?, fields.get(9)?);
            let metric = u64::from_str_radix(metric, 16).ok()?;
            let destination_is_any = fields.first()?.bytes().all(|b| b == b'0');
            (destination_is_any && *prefix == "00" && *name != "lo").then(|| (metric, (*name).to_owned()))
        })
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_route_with_the_lowest_metric_wins() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
            eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(default_v4(table).as_deref(), Some("eth0"));
    }

    #[test]
    fn garbage_has_no_default_route() {
        assert_eq!(default_v4("x\ny\n00000000 00000000\n"), None);
        assert_eq!(default_v6("00 00 zz\n"), None);
    }
}
