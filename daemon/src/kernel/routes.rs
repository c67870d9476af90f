// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which devices have default routes, as rtnetlink tells it: a look into /proc could be kept waiting for good by whoever may
//! list a folder there. Of a table of whatever size so much is read as is bounded here.

use std::collections::BTreeSet;

use anyhow::Result;
use nix::errno::Errno;
use nix::net::if_::if_indextoname;

use super::netlink::{Body, Netlink, Refused, attribute, u16_at, u32_at};

/// Bytes of a message before its attributes (struct rtmsg), and of a next hop before its own (struct rtnexthop).
const RTMSG_BYTES: usize = 12;
const NEXTHOP_BYTES: usize = 8;
/// The kernel lists IPv6's default route behind all others. With more routes only the preferred one is asked for.
const MOST_ROUTES: usize = 16_384;
/// A list that changes while it is read is read again.
const TRIES: usize = 3;
/// include/uapi/linux/rtnetlink.h
const RTM_F_FIB_MATCH: u32 = 0x2000;
const IPV4: u8 = libc::AF_INET as u8;
const IPV6: u8 = libc::AF_INET6 as u8;

#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct DefaultRoute {
    metric: u32,
    ifindex: u32,
}

/// The interfaces of default routes, IPv4's before IPv6's, each in the order of their metrics.
///
/// # Errors
/// Where that cannot be told now.
pub fn default_interfaces() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for family in [IPV4, IPV6] {
        // By name where metrics are the same. A device that has gone meanwhile has no name.
        let name = |route: DefaultRoute| Some((route.metric, if_indextoname(route.ifindex).ok()?.into_string().ok()?));
        let ordered: BTreeSet<(u32, String)> = defaults(family)?.into_iter().filter_map(name).collect();
        names.extend(ordered.into_iter().map(|(_, name)| name));
    }
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(names)
}

/// None on a kernel without this protocol.
fn defaults(family: u8) -> Result<Vec<DefaultRoute>> {
    let mut tries = 1;
    loop {
        match listed(family) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => return preferred(family),
            Err(error) if error.downcast_ref().is_some_and(|Refused(errno)| is_none(*errno)) => return Ok(Vec::new()),
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => tries += 1,
        }
    }
}

/// No such table yet, or no such protocol.
fn is_none(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT)
}

/// None where there are too many routes to read them all.
fn listed(family: u8) -> Result<Option<Vec<DefaultRoute>>> {
    // What is left unread ends with the socket.
    let mut netlink = Netlink::open_strict()?;
    let (mut found, mut read, mut is_cut) = (Vec::new(), 0, false);
    netlink.dump_while(libc::RTM_GETROUTE, &rtmsg(family, 0), |message| {
        read += 1;
        is_cut = read > MOST_ROUTES;
        if message.first() != Some(&family) {
            return !is_cut;
        }
        found.extend(default_of(message));
        // The kernel lists IPv4's by their first address, 0.0.0.0 before all others.
        !is_cut && (family != IPV4 || attribute(message, RTMSG_BYTES, libc::RTA_DST).is_none_or(is_zero))
    })?;
    Ok((!is_cut).then_some(found))
}

/// The one that a packet to an address without a route of its own takes.
fn preferred(family: u8) -> Result<Vec<DefaultRoute>> {
    let any: &[u8] = if family == IPV4 { &[0; 4] } else { &[0; 16] };
    let message = rtmsg(family, RTM_F_FIB_MATCH).attribute(libc::RTA_DST, any);
    match Netlink::open()?.get(libc::RTM_GETROUTE, &message) {
        Ok(message) => Ok(default_of(&message)),
        Err(error) if error.is::<Refused>() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// IPv4's of the main table, IPv6's of any.
fn rtmsg(family: u8, flags: u32) -> Body {
    let table = if family == IPV4 && flags == 0 {
        libc::RT_TABLE_MAIN
    } else {
        libc::RT_TABLE_UNSPEC
    };
    let mut fixed = [0; RTMSG_BYTES];
    (fixed[0], fixed[4]) = (family, table);
    fixed[8..].copy_from_slice(&flags.to_ne_bytes());
    Body::new(&fixed)
}

fn is_zero(address: &[u8]) -> bool {
    address.iter().all(|byte| *byte == 0)
}

/// One for each device that it leads to; none where it is another route.
fn default_of(message: &[u8]) -> Vec<DefaultRoute> {
    let Some(&[family, bits, ..]) = message.first_chunk::<RTMSG_BYTES>() else {
        return Vec::new();
    };
    let get = |kind| attribute(message, RTMSG_BYTES, kind);
    if bits != 0 || get(libc::RTA_DST).is_some_and(|to| !is_zero(to)) {
        return Vec::new();
    }
    let number = |kind| get(kind).and_then(|value| u32_at(value, 0).ok());
    let metric = number(libc::RTA_PRIORITY).unwrap_or(0);
    let several = get(libc::RTA_MULTIPATH).map(hops).unwrap_or_default();
    // Of IPv4's next hops the first stands for the route.
    let several = several.into_iter().take(if family == IPV4 { 1 } else { usize::MAX });
    let devices = number(libc::RTA_OIF).into_iter().chain(several);
    devices.map(|ifindex| DefaultRoute { metric, ifindex }).collect()
}

/// The devices of a route's next hops.
fn hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut devices = Vec::new();
    while let (Ok(length), Ok(device)) = (u16_at(bytes, 0), u32_at(bytes, 4)) {
        devices.push(device);
        let next = usize::from(length).next_multiple_of(4);
        if next < NEXTHOP_BYTES {
            break;
        }
        bytes = bytes.get(next..).unwrap_or_default();
    }
    devices
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

    fn batch(family: &str, lines: impl Iterator<Item = String>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines.collect::<String>()).unwrap();
        ip(&format!("{family} -batch {}", file.path().display()));
    }

    /// A namespace with three links and no route.
    fn three_links() {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        for (number, name) in [(1, "gwr-a"), (2, "gwr-b"), (3, "gwr-c")] {
            ip(&format!("link add {name} type veth peer name {name}-far"));
            ip(&format!("addr add 10.77.{number}.1/24 dev {name}"));
            ip(&format!("link set {name} up"));
            ip(&format!("link set {name}-far up"));
        }
    }

    #[test]
    fn the_default_route_with_the_lowest_metric_comes_first() {
        three_links();
        assert!(default_interfaces().unwrap().is_empty());
        ip("-6 route add default dev gwr-a metric 9 table 77");
        assert_eq!(default_interfaces().unwrap(), ["gwr-a"]);
        ip("route add default via 10.77.1.2 metric 600");
        ip("route add default via 10.77.2.2 metric 100");
        ip("route add 0.0.0.0/8 via 10.77.2.2");
        ip("route add unreachable default metric 5");
        assert_eq!(default_interfaces().unwrap(), ["gwr-b", "gwr-a"]);
        ip("route del default via 10.77.2.2 metric 100");
        ip("-6 route add default metric 50 dev gwr-b");
        ip("-6 route append default metric 50 dev gwr-c");
        assert_eq!(default_interfaces().unwrap(), ["gwr-a", "gwr-b", "gwr-c"]);
        ip("route del default metric 600");
        ip("route add default nexthop via 10.77.2.2 nexthop via 10.77.1.2");
        assert_eq!(default_interfaces().unwrap()[0], "gwr-b");
        assert_eq!(defaults(IPV4).unwrap().len(), 1, "its first next hop");
    }

    #[test]
    fn of_a_full_table_no_more_is_read_than_is_bounded() {
        three_links();
        ip("route add default via 10.77.1.2 metric 7");
        ip("-6 route add default dev gwr-b metric 8");
        let routes = 0..MOST_ROUTES + 1;
        batch(
            "-4",
            routes
                .clone()
                .map(|n| format!("route add 100.{}.{}.0/24 dev gwr-a\n", n >> 8 & 255, n & 255)),
        );
        batch(
            "-6",
            routes.map(|n| format!("route add 2001:db8:{n:x}::/48 dev gwr-a\n")),
        );
        assert_eq!(listed(IPV4).unwrap().map(|found| found.len()), Some(1));
        assert_eq!(listed(IPV6).unwrap(), None);
        assert_eq!(default_interfaces().unwrap(), ["gwr-a", "gwr-b"]);
    }

    #[test]
    fn what_is_cut_short_is_no_default_route() {
        assert!(default_of(&[]).is_empty() && default_of(&[IPV4; RTMSG_BYTES]).is_empty());
        let mut whole = [0u8; RTMSG_BYTES + 16];
        whole[0] = IPV6;
        whole[RTMSG_BYTES..][..4].copy_from_slice(&[16, 0, libc::RTA_MULTIPATH as u8, 0]);
        assert_eq!(
            default_of(&whole),
            [DefaultRoute { metric: 0, ifindex: 0 }],
            "a hop of no length is the last"
        );
        (0..whole.len()).for_each(|length| assert!(default_of(&whole[..length]).is_empty()));
    }
}
