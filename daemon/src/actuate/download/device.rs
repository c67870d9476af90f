// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The intermediate device (ifb), one in each network namespace: made, switched on, found again and removed. Known by its
//! kind and alias; nobody else's device is touched.

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::socket::AddressFamily;

use crate::kernel::netlink::{
    Body, IFF_UP, IFLA_AF_SPEC, IFLA_IFALIAS, IFLA_IFNAME, IFLA_LINKINFO, IFLA_MASTER, IFLA_NUM_RX_QUEUES,
    IFLA_NUM_TX_QUEUES, IFLA_TXQLEN, NLM_F_CREATE, NLM_F_EXCL, Netlink, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK,
    attribute, refused, text, u32_at,
};
use crate::kernel::uplink::{ifinfomsg, kind_of};

/// Which of both.
#[derive(Clone, Copy, Debug)]
pub struct IfbDevice {
    /// As it is made; somebody may call it otherwise.
    pub name: &'static str,
    alias: &'static str,
}

pub const DOWN: IfbDevice = IfbDevice {
    name: "giveway-down",
    alias: "giveway: holds what arrives to its limits",
};
pub const UP: IfbDevice = IfbDevice {
    name: "giveway-up",
    alias: "giveway: shapes limited uploads",
};
const KIND: &str = "ifb";
/// Bytes of a message before its attributes (struct ifinfomsg), and include/uapi/linux/if_link.h.
const IFINFOMSG_BYTES: usize = 16;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const WITHOUT_ADDRESS: u8 = 1;
/// Of htb's queue for what names no class of it, which is sent at once.
const QUEUE_PACKETS: u32 = 1000;

/// Its number. It is switched off.
pub fn make(netlink: &mut Netlink, IfbDevice { name, alias }: IfbDevice) -> Result<u32> {
    let message = ifinfomsg(0)
        .text(IFLA_IFNAME, name)
        .attribute(IFLA_TXQLEN, &QUEUE_PACKETS.to_ne_bytes())
        .attribute(IFLA_NUM_TX_QUEUES, &1u32.to_ne_bytes())
        .attribute(IFLA_NUM_RX_QUEUES, &1u32.to_ne_bytes())
        .nested(IFLA_LINKINFO, Body::default().text(IFLA_INFO_KIND, KIND));
    let made = netlink.change(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &message);
    made.map_err(|error| match refused(&error) {
        Some(Errno::EOPNOTSUPP) => error.context("this kernel has no ifb (CONFIG_IFB), which such limits take"),
        Some(Errno::EEXIST) => error.context(format!("there is an interface {name} that is not giveway's")),
        _ => error.context("cannot make the intermediate device"),
    })?;
    let named = Body::new(&[0; IFINFOMSG_BYTES]).text(IFLA_IFNAME, name);
    let found = netlink
        .get(RTM_GETLINK, &named)
        .context("the intermediate device is not there")?;
    let ifindex = u32_at(&found, 4)?;
    // The kernel takes no alias for what it only makes.
    netlink
        .change(RTM_NEWLINK, 0, &ifinfomsg(ifindex).text(IFLA_IFALIAS, alias))
        .context("cannot mark the intermediate device")?;
    // Nor an order to give itself no address of IPv6; where there is none, it has none.
    let of_ipv6 = Body::default().attribute(IFLA_INET6_ADDR_GEN_MODE, &[WITHOUT_ADDRESS]);
    let family = AddressFamily::Inet6 as u16;
    let without = ifinfomsg(ifindex).nested(IFLA_AF_SPEC, Body::default().nested(family, of_ipv6));
    let _ = netlink.change(RTM_NEWLINK, 0, &without);
    Ok(ifindex)
}

pub fn switch_on(netlink: &mut Netlink, ifindex: u32) -> Result<()> {
    let up = IFF_UP.cast_unsigned();
    let message = Body::new(&[0, ifindex, up, up].map(u32::to_ne_bytes).concat());
    netlink
        .change(RTM_NEWLINK, 0, &message)
        .context("cannot switch the intermediate device on")
}

/// Those of giveway's in this namespace, by number and name.
pub fn ours(netlink: &mut Netlink, IfbDevice { name, alias: mark }: IfbDevice) -> Result<Vec<(u32, String)>> {
    let all = netlink
        .dump(RTM_GETLINK, &ifinfomsg(0))
        .context("cannot list the interfaces")?;
    let get = |message: &[u8], kind| attribute(message, IFINFOMSG_BYTES, kind).and_then(text);
    // One that was made and not yet marked has the name alone.
    let is_ours = |message: &&Vec<u8>| {
        let alias = get(message, IFLA_IFALIAS);
        let is_named = alias.is_none() && get(message, IFLA_IFNAME).as_deref() == Some(name);
        kind_of(message).as_deref() == Some(KIND) && (is_named || alias.as_deref() == Some(mark))
    };
    let found = all.iter().filter(is_ours);
    found
        .map(|message| Ok((u32_at(message, 4)?, get(message, IFLA_IFNAME).unwrap_or_default())))
        .collect()
}

pub fn remove(netlink: &mut Netlink, device: IfbDevice) -> Result<()> {
    for (ifindex, name) in ours(netlink, device)? {
        match netlink.change(RTM_DELLINK, 0, &ifinfomsg(ifindex)) {
            Err(error) if refused(&error) == Some(Errno::ENODEV) => {}
            removed => {
                removed.with_context(|| format!("cannot remove the intermediate device: `ip link del {name}`"))?;
            }
        }
    }
    Ok(())
}

/// The bridge that this device is a port of.
pub fn bridge_of(netlink: &mut Netlink, ifindex: u32) -> Result<Option<u32>> {
    let look = |netlink: &mut Netlink, ifindex| netlink.get(RTM_GETLINK, &ifinfomsg(ifindex));
    let message = look(netlink, ifindex).context("cannot read the interface")?;
    let master = attribute(&message, IFINFOMSG_BYTES, IFLA_MASTER);
    let Some(master) = master.and_then(|value| u32_at(value, 0).ok()) else {
        return Ok(None);
    };
    let message = look(netlink, master).context("cannot read the interface")?;
    Ok((kind_of(&message).as_deref() == Some("bridge")).then_some(master))
}
