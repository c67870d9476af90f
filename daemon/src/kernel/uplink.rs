// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A link's way out, as the kernel tells it now: MTU, kind, speed, root qdisc. Reads only, and asks the
//! namespace itself: /sys may show another one's devices.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result};
use giveway_engine::queue::{RootQdisc, Uplink};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::netlink::{Body, Netlink, attribute, text, u16_at, u32_at};
use super::qdisc;

/// Bytes of a message before its attributes (struct ifinfomsg).
pub const IFINFOMSG_BYTES: usize = 16;
const ETHERNET_HEADER_BYTES: u32 = 14;
/// include/uapi/linux/if_link.h
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_CARRIER_DOWN_COUNT: u16 = 48;

/// A device, as far as queueing asks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NetDevice {
    pub ifindex: u32,
    pub mtu_bytes: u32,
    pub ethernet: bool,
    /// There is hardware behind it.
    pub physical: bool,
    /// Segments that TCP may put into one packet for it.
    pub gso_max_segments: u32,
    /// As `ip link set group` numbers them.
    pub group: u32,
    /// It is switched on.
    pub up: bool,
    pub carrier_losses: u32,
}

/// The link of this name and what stands at its root; `is_ours` knows our own qdisc.
pub fn read(
    netlink: &mut Netlink,
    ifindex: u32,
    name: &str,
    is_ours: impl Fn(&qdisc::Qdisc) -> bool,
) -> Result<Uplink> {
    let device = device(netlink, ifindex)?;
    let root = qdisc::root(netlink, ifindex)?;
    // What a virtual device says of its speed is an invention: there is no wire.
    let speed_mbit = speed_mbit(name)?.filter(|_| device.physical && device.ethernet);
    Ok(Uplink {
        ifindex,
        name: name.to_owned(),
        mtu_bytes: device.mtu_bytes,
        header_bytes: if device.ethernet { ETHERNET_HEADER_BYTES } else { 0 },
        wired: speed_mbit.is_some(),
        speed_mbit,
        root: RootQdisc {
            ours: is_ours(&root.qdisc),
            kind: root.qdisc.kind,
            handle: root.qdisc.handle,
            entangled: root.entangled,
        },
        up: device.up,
        carrier_losses: device.carrier_losses,
        chosen: true,
    })
}

/// The device of this index.
pub fn device(netlink: &mut Netlink, ifindex: u32) -> Result<NetDevice> {
    let message = netlink
        .get(libc::RTM_GETLINK, &ifinfomsg(ifindex))
        .context("cannot read the interface")?;
    let number = |kind| attribute(&message, IFINFOMSG_BYTES, kind).and_then(|value| u32_at(value, 0).ok());
    Ok(NetDevice {
        ifindex,
        mtu_bytes: number(libc::IFLA_MTU).context("the kernel tells no MTU")?,
        ethernet: u16_at(&message, 2)? == libc::ARPHRD_ETHER,
        physical: attribute(&message, IFINFOMSG_BYTES, libc::IFLA_PARENT_DEV_NAME).is_some(),
        gso_max_segments: number(libc::IFLA_GSO_MAX_SEGS).context("the kernel tells no gso_max_segs")?,
        group: number(libc::IFLA_GROUP).unwrap_or(0),
        up: u32_at(&message, 8)? & libc::IFF_UP.cast_unsigned() != 0,
        carrier_losses: number(IFLA_CARRIER_DOWN_COUNT).unwrap_or(0),
    })
}

/// One end of a pair of devices.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Veth {
    pub name: String,
    /// Where the other end is, as this network namespace numbers it; None: here.
    pub netns: Option<u32>,
}

/// The veth devices of this namespace, by interface.
pub fn veths(netlink: &mut Netlink) -> Result<BTreeMap<u32, Veth>> {
    let devices = devices(netlink)?;
    let found = devices
        .iter()
        .filter(|message| kind_of(message).is_some_and(|kind| kind == "veth"));
    let veth = |message: &Vec<u8>| {
        let of = |kind| attribute(message, IFINFOMSG_BYTES, kind);
        let veth = Veth {
            name: of(libc::IFLA_IFNAME).and_then(text).unwrap_or_default(),
            netns: of(libc::IFLA_LINK_NETNSID).and_then(|number| u32_at(number, 0).ok()),
        };
        Ok((u32_at(message, 4)?, veth))
    };
    found.map(veth).collect()
}

/// The tables of this namespace's VRFs.
pub fn vrf_tables(netlink: &mut Netlink) -> Result<Vec<u32>> {
    const IFLA_VRF_TABLE: u16 = 1;
    let table = |message: &Vec<u8>| {
        kind_of(message).filter(|kind| kind == "vrf")?;
        let about = attribute(message, IFINFOMSG_BYTES, libc::IFLA_LINKINFO)?;
        u32_at(attribute(attribute(about, 0, IFLA_INFO_DATA)?, 0, IFLA_VRF_TABLE)?, 0).ok()
    };
    Ok(devices(netlink)?.iter().filter_map(table).collect())
}

fn devices(netlink: &mut Netlink) -> Result<Vec<Vec<u8>>> {
    netlink
        .dump(libc::RTM_GETLINK, &ifinfomsg(0))
        .context("cannot list the interfaces")
}

/// What kind of virtual device it is; None: hardware.
pub fn kind(netlink: &mut Netlink, ifindex: u32) -> Result<Option<String>> {
    let message = netlink.get(libc::RTM_GETLINK, &ifinfomsg(ifindex));
    Ok(kind_of(&message.context("cannot read the interface")?))
}

/// The kind of the virtual device that a message is about.
pub fn kind_of(message: &[u8]) -> Option<String> {
    let about = attribute(message, IFINFOMSG_BYTES, libc::IFLA_LINKINFO)?;
    text(attribute(about, 0, IFLA_INFO_KIND)?)
}

/// The fixed part of a message about a device.
pub fn ifinfomsg(ifindex: u32) -> Body {
    Body::new(&[0, ifindex, 0, 0].map(u32::to_ne_bytes).concat())
}

/// As ethtool tells it; None for what has no wire, or no link on it.
fn speed_mbit(name: &str) -> Result<Option<u32>> {
    // struct ethtool_cmd (include/uapi/linux/ethtool.h), by its words: the command, and the speed in two halves.
    const ETHTOOL_GSET: u32 = 1;
    let mut settings = [0u32; 11];
    settings[0] = ETHTOOL_GSET;
    // SAFETY: all zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Ok(None);
    }
    for (to, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        // Signed or not, as the architecture has it.
        *to = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = settings.as_mut_ptr().cast();
    let any = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
    let any = any.context("cannot ask for the interface's speed")?;
    // SAFETY: the request and what it points to are valid, and as large as ETHTOOL_GSET fills them.
    let answer = unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    let first_half = |word: u32| {
        let [a, b, ..] = word.to_ne_bytes();
        u32::from(u16::from_ne_bytes([a, b]))
    };
    let speed = first_half(settings[3]) | first_half(settings[7]) << 16;
    // 0 and all bits mean that there is none to tell.
    Ok((answer == 0 && !matches!(speed, 0 | 0xffff | u32::MAX)).then_some(speed))
}
