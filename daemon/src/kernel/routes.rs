// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which devices this host's routing can choose for a packet to anywhere, as rtnetlink tells it: the default routes of every
//! table that a rule of `ip rule` leads to, with all their next hops. A look into /proc could be kept waiting for good by
//! whoever may list a folder there. Of a table of whatever size so much is read as is bounded here.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use nix::errno::Errno;
use nix::net::if_::if_indextoname;

use super::netlink::{Body, Netlink, NetlinkError, attribute, u16_at, u32_at};
use super::uplink;

mod rules;

use nix::sys::socket::AddressFamily;
use rules::TableLookup;

/// Bytes of a message before its attributes (struct rtmsg, struct nhmsg), and of a next hop before its own (struct
/// rtnexthop).
const RTMSG_BYTES: usize = 12;
const NHMSG_BYTES: usize = 8;
const NEXTHOP_BYTES: usize = 8;
/// The kernel lists IPv6's default route behind all others. With more routes only the preferred one is asked for.
const MOST_ROUTES: usize = 16_384;
/// Next hops of a route, and default routes of a table.
const MOST_HOPS: usize = 64;
/// A list that changes while it is read is read again.
const TRIES: usize = 3;
/// include/uapi/linux/rtnetlink.h and nexthop.h
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTM_GETNEXTHOP: u16 = 106;
const RTA_NH_ID: u16 = 30;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_OIF: u16 = 5;
/// struct nexthop_grp
const GROUP_MEMBER_BYTES: usize = 8;
const IPV4: u8 = AddressFamily::Inet as u8;
const IPV6: u8 = AddressFamily::Inet6 as u8;
/// What VPN software sets in place of a default route, since it wins over one without replacing it: one half of all
/// addresses, or of those that are in use.
const HALVES_OF_IPV6: [(u8, u8); 3] = [(1, 0), (3, 0x20), (4, 0x20)];
/// Devices whose packets leave by another device, in a packet of its own.
const TUNNELS: [&str; 18] = [
    "tun",
    "wireguard",
    "ovpn",
    "ipip",
    "sit",
    "ip6tnl",
    "gre",
    "gretap",
    "ip6gre",
    "ip6gretap",
    "erspan",
    "ip6erspan",
    "vti",
    "vti6",
    "xfrm",
    "vxlan",
    "geneve",
    "l2tpeth",
];

#[derive(Clone, Debug, Eq, PartialEq)]
struct DefaultRoute {
    metric: u32,
    /// Of the addresses that it is for; what a rule ignores has few.
    bits: u8,
    hop: usize,
    ifindex: u32,
}

/// The interfaces that routing can choose.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Defaults {
    /// In the order of preference.
    pub names: Vec<String>,
    /// Tables that rules lead to, beyond those that are read.
    pub unread_tables: usize,
}

/// Where a device comes in the order of preference. A tunnel is last: what it sends queues up on the link that carries it.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
struct Preference {
    is_tunnel: bool,
    family: u8,
    way: TableLookup,
    metric: u32,
    hop: usize,
    /// Where all else is the same.
    name: String,
}

/// The interfaces of default routes: links before tunnels, IPv4's before IPv6's, those of rules for all packets before those
/// for some, each in the order of the rules and of the routes' metrics.
///
/// # Errors
/// Where that cannot be told now.
pub fn default_interfaces() -> Result<Defaults> {
    let (mut ordered, mut unread_tables) = (BTreeSet::new(), 0);
    let mut devices = BTreeMap::new();
    for family in [IPV4, IPV6] {
        let (ways, unread) = rules::ways(family)?;
        unread_tables += unread;
        let mut tables: BTreeMap<u32, Vec<DefaultRoute>> = BTreeMap::new();
        for way in ways {
            let routes = match tables.get(&way.table) {
                Some(routes) => routes,
                None => {
                    let routes = defaults(family, way.table)?;
                    tables.entry(way.table).or_insert(routes)
                }
            };
            for route in routes.iter().filter(|route| way.uses(route.bits)) {
                let device = devices.entry(route.ifindex).or_insert_with(|| device(route.ifindex));
                // One that has gone meanwhile has no name.
                let Some((name, is_tunnel)) = device.clone() else {
                    continue;
                };
                ordered.insert(Preference {
                    is_tunnel,
                    family,
                    way: way.clone(),
                    metric: route.metric,
                    hop: route.hop,
                    name,
                });
            }
        }
    }
    let mut names: Vec<String> = ordered.into_iter().map(|preference| preference.name).collect();
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(Defaults { names, unread_tables })
}

/// Its name, and whether it is a tunnel.
fn device(ifindex: u32) -> Option<(String, bool)> {
    let name = if_indextoname(ifindex).ok()?.into_string().ok()?;
    let kind = uplink::kind(&mut Netlink::open().ok()?, ifindex).ok()?;
    Some((name, kind.is_some_and(|kind| TUNNELS.contains(&kind.as_str()))))
}

/// None on a kernel without this protocol, and of a table that is not there (yet).
fn defaults(family: u8, table: u32) -> Result<Vec<DefaultRoute>> {
    again(|| match listed(family, table)? {
        Some(found) => Ok(found),
        None => preferred(family),
    })
}

/// What the kernel lists, or nothing where there is no such thing.
fn again<T: Default>(list: impl Fn() -> Result<T>) -> Result<T> {
    let mut tries = 1;
    loop {
        match list() {
            Err(error) if error.downcast_ref().is_some_and(|NetlinkError(errno)| is_none(*errno)) => {
                return Ok(T::default());
            }
            Err(_) if tries < TRIES => tries += 1,
            listed => return listed,
        }
    }
}

fn is_none(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT)
}

/// None where there are too many routes to read them all.
fn listed(family: u8, table: u32) -> Result<Option<Vec<DefaultRoute>>> {
    // What is left unread ends with the socket.
    let mut netlink = Netlink::open_strict()?;
    let (mut found, mut read, mut is_cut) = (Vec::new(), 0, false);
    let request = rtmsg(family, 0).attribute(libc::RTA_TABLE, &table.to_ne_bytes());
    netlink.dump_while(libc::RTM_GETROUTE, &request, |message| {
        read += 1;
        is_cut = read > MOST_ROUTES;
        if message.first() != Some(&family) {
            return !is_cut;
        }
        found.extend(default_of(message));
        // The kernel lists IPv4's by their first address, 0.0.0.0 before all others.
        let may_follow = family != IPV4 || attribute(message, RTMSG_BYTES, libc::RTA_DST).is_none_or(is_zero);
        !is_cut && may_follow && found.len() < MOST_HOPS
    })?;
    Ok((!is_cut).then_some(found))
}

/// The one that a packet to an address without a route of its own takes, by whatever table.
fn preferred(family: u8) -> Result<Vec<DefaultRoute>> {
    let any: &[u8] = if family == IPV4 { &[0; 4] } else { &[0; 16] };
    let message = rtmsg(family, RTM_F_FIB_MATCH).attribute(libc::RTA_DST, any);
    match Netlink::open()?.get(libc::RTM_GETROUTE, &message) {
        Ok(message) => Ok(default_of(&message)),
        Err(error) if error.is::<NetlinkError>() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn rtmsg(family: u8, flags: u32) -> Body {
    let mut fixed = [0; RTMSG_BYTES];
    fixed[0] = family;
    fixed[8..].copy_from_slice(&flags.to_ne_bytes());
    Body::new(&fixed)
}

fn is_zero(address: &[u8]) -> bool {
    address.iter().all(|byte| *byte == 0)
}

/// Whether a route to these addresses is for packets to anywhere.
fn is_default(family: u8, bits: u8, to: &[u8]) -> bool {
    let rest_is_zero = is_zero(to.get(1..).unwrap_or_default());
    let first = to.first().copied().unwrap_or(0);
    match family {
        IPV4 => bits <= 1 && first == 0 && rest_is_zero,
        _ => rest_is_zero && (bits == 0 && first == 0 || HALVES_OF_IPV6.contains(&(bits, first))),
    }
}

/// One for each device that it leads to; none where it is another route.
fn default_of(message: &[u8]) -> Vec<DefaultRoute> {
    let Some(&[family, bits, .., kind, _, _, _, _]) = message.first_chunk::<RTMSG_BYTES>() else {
        return Vec::new();
    };
    let get = |kind| attribute(message, RTMSG_BYTES, kind);
    if kind != libc::RTN_UNICAST || !is_default(family, bits, get(libc::RTA_DST).unwrap_or_default()) {
        return Vec::new();
    }
    let number = |kind| get(kind).and_then(|value| u32_at(value, 0).ok());
    let metric = number(libc::RTA_PRIORITY).unwrap_or(0);
    let several = get(libc::RTA_MULTIPATH).map(hops).unwrap_or_default();
    let mut devices: Vec<u32> = number(libc::RTA_OIF).into_iter().chain(several).collect();
    if let (true, Some(object)) = (devices.is_empty(), number(RTA_NH_ID)) {
        // The kernel was told not to show what is behind it (sysctl nexthop_compat_mode).
        devices = devices_of_object(object);
    }
    let route = |(hop, ifindex)| DefaultRoute {
        metric,
        bits,
        hop,
        ifindex,
    };
    devices.into_iter().take(MOST_HOPS).enumerate().map(route).collect()
}

/// The devices of a route's next hops.
fn hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut devices = Vec::new();
    while let (Ok(length), Ok(device), true) = (u16_at(bytes, 0), u32_at(bytes, 4), devices.len() < MOST_HOPS) {
        devices.push(device);
        let next = usize::from(length).next_multiple_of(4);
        if next < NEXTHOP_BYTES {
            break;
        }
        bytes = bytes.get(next..).unwrap_or_default();
    }
    devices
}

/// Those of a nexthop object, or of the members of its group. None of one that has gone meanwhile.
fn devices_of_object(object: u32) -> Vec<u32> {
    let ask = |object: u32| {
        let request = Body::new(&[0; NHMSG_BYTES]).attribute(NHA_ID, &object.to_ne_bytes());
        Netlink::open()?.get(RTM_GETNEXTHOP, &request)
    };
    let device = |message: &Vec<u8>| u32_at(attribute(message, NHMSG_BYTES, NHA_OIF)?, 0).ok();
    let Ok(message) = ask(object) else { return Vec::new() };
    let Some(group) = attribute(&message, NHMSG_BYTES, NHA_GROUP) else {
        return device(&message).into_iter().collect();
    };
    let members = group.chunks_exact(GROUP_MEMBER_BYTES).take(MOST_HOPS);
    let members = members.filter_map(|member| u32_at(member, 0).ok());
    members.filter_map(|member| device(&ask(member).ok()?)).collect()
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

    const MAIN: u32 = libc::RT_TABLE_MAIN as u32;

    fn names() -> Vec<String> {
        default_interfaces().unwrap().names
    }

    #[test]
    fn the_default_route_with_the_lowest_metric_comes_first() {
        three_links();
        assert!(names().is_empty());
        ip("-6 route add default dev gwr-a metric 9 table 77");
        assert!(names().is_empty(), "no rule leads to that table");
        ip("-6 rule add lookup 77");
        assert_eq!(names(), ["gwr-a"]);
        ip("route add default via 10.77.1.2 metric 600");
        ip("route add default via 10.77.2.2 metric 100");
        ip("route add 0.0.0.0/8 via 10.77.2.2");
        ip("route add unreachable default metric 5");
        assert_eq!(names(), ["gwr-b", "gwr-a"]);
        ip("route del default via 10.77.2.2 metric 100");
        ip("-6 route add default metric 50 dev gwr-b");
        ip("-6 route append default metric 50 dev gwr-c");
        assert_eq!(names(), ["gwr-a", "gwr-b", "gwr-c"]);
        ip("route del default metric 600");
        ip("route add default nexthop via 10.77.2.2 nexthop via 10.77.1.2");
        assert_eq!(names(), ["gwr-b", "gwr-a", "gwr-c"], "in the order of its hops");
    }

    #[test]
    fn every_table_that_a_rule_leads_to_counts() {
        three_links();
        ip("route add default via 10.77.2.2 table 1234567 metric 1");
        ip("route add default via 10.77.3.2 table 101");
        ip("route add default via 10.77.1.2 metric 900");
        assert_eq!(names(), ["gwr-a"]);
        ip("rule add from 10.77.2.1 lookup 1234567 pref 1000");
        assert_eq!(names(), ["gwr-a", "gwr-b"], "what all packets take comes first");
        ip("rule add fwmark 7 lookup 101 pref 900");
        assert_eq!(names(), ["gwr-a", "gwr-c", "gwr-b"]);
        ip("rule add lookup 101 suppress_prefixlength 0 pref 10");
        assert_eq!(
            names(),
            ["gwr-a", "gwr-c", "gwr-b"],
            "that rule ignores a default route"
        );
        ip("rule add lookup 101 pref 20");
        assert_eq!(names(), ["gwr-c", "gwr-a", "gwr-b"]);
    }

    #[test]
    fn the_devices_of_nexthop_objects_count_whether_the_kernel_shows_them_or_not() {
        three_links();
        ip("nexthop add id 1 via 10.77.1.2 dev gwr-a");
        ip("nexthop add id 2 via 10.77.2.2 dev gwr-b");
        ip("nexthop add id 9 group 2/1");
        ip("route add default nhid 9");
        for compatible in ["1", "0"] {
            std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", compatible).unwrap();
            assert_eq!(names(), ["gwr-b", "gwr-a"], "with nexthop_compat_mode = {compatible}");
        }
        ip("route replace default nhid 1");
        assert_eq!(names(), ["gwr-a"]);
    }

    #[test]
    fn half_of_all_addresses_is_a_default_route_and_a_tunnel_comes_last() {
        three_links();
        ip("tuntap add gwr-t mode tun");
        ip("link set gwr-t up");
        ip("route add 0.0.0.0/1 dev gwr-t");
        ip("route add 128.0.0.0/1 dev gwr-t");
        ip("-6 route add 2000::/3 dev gwr-c");
        ip("-6 route add 2001::/16 dev gwr-b");
        assert_eq!(names(), ["gwr-c", "gwr-t"]);
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
        assert_eq!(listed(IPV4, MAIN).unwrap().map(|found| found.len()), Some(1));
        assert_eq!(listed(IPV6, MAIN).unwrap(), None);
        assert_eq!(names(), ["gwr-a", "gwr-b"]);
    }

    #[test]
    fn what_is_cut_short_is_no_default_route() {
        assert!(default_of(&[]).is_empty() && default_of(&[IPV4; RTMSG_BYTES]).is_empty());
        let mut whole = [0u8; RTMSG_BYTES + 16];
        (whole[0], whole[7]) = (IPV6, libc::RTN_UNICAST);
        whole[RTMSG_BYTES..][..4].copy_from_slice(&[16, 0, libc::RTA_MULTIPATH as u8, 0]);
        assert_eq!(
            default_of(&whole),
            [DefaultRoute {
                metric: 0,
                bits: 0,
                hop: 0,
                ifindex: 0
            }],
            "a hop of no length is the last"
        );
        (0..whole.len()).for_each(|length| assert!(default_of(&whole[..length]).is_empty()));
    }
}
