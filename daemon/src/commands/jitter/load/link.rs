// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network namespace of this process's own and a veth pair to the one where it was started, with an address at either
//! end. Both go when the process ends: nothing else holds the namespace, and a veth goes with its peer.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::thread;

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::AddressFamily;

use crate::kernel::netlink::{
    Body, IFA_ADDRESS, IFA_LOCAL, IFF_UP, IFLA_IFNAME, IFLA_LINKINFO, IFLA_NET_NS_FD, NLM_F_CREATE, NLM_F_EXCL,
    Netlink, RTM_GETLINK, RTM_NEWADDR, RTM_NEWLINK, u32_at,
};
use crate::kernel::uplink::ifinfomsg;

/// include/uapi/linux/if_link.h and veth.h.
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
/// 198.18.0.0/15 is for measuring devices (RFC 2544): no other network has it. Each process takes four of its addresses.
const NETWORK: u32 = 0xc612_0000;
const SUBNETS: u32 = 1 << 15;
const PREFIX_BITS: u8 = 30;

pub struct LoadLink {
    outside: File,
    /// Of the end where this process was started: what is loaded.
    pub outer: Ipv4Addr,
}

impl LoadLink {
    /// Moves the calling thread into the new namespace, for good.
    pub fn make() -> Result<Self> {
        let outside = File::open("/proc/thread-self/ns/net").context("cannot open this network namespace")?;
        let mut outer_side = Netlink::open()?;
        unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace (it takes root)")?;
        let mut inner_side = Netlink::open()?;
        let name = format!("gwj{}", std::process::id());
        let base = NETWORK + 4 * (std::process::id() % SUBNETS);
        let (outer, inner) = (Ipv4Addr::from_bits(base + 1), Ipv4Addr::from_bits(base + 2));
        make_pair(&mut inner_side, &name, &outside).context("cannot make a veth pair")?;
        bring_up(&mut inner_side, &name, inner).context("cannot bring up the inner end of a veth pair")?;
        bring_up(&mut outer_side, &name, outer).context("cannot bring up the outer end of a veth pair")?;
        Ok(Self { outside, outer })
    }

    /// Does something where this process was started.
    pub fn outside<T: Send>(&self, what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            let visit = scope.spawn(|| {
                setns(self.outside.as_fd(), CloneFlags::CLONE_NEWNET).context("cannot go back")?;
                what()
            });
            match visit.join() {
                Ok(outcome) => outcome,
                Err(_) => bail!("a visit to the first namespace broke off"),
            }
        })
    }
}

/// struct ifinfomsg, with the flags that are to be set.
fn up(index: u32) -> Body {
    let flag = IFF_UP as u32;
    Body::new(&[0, index, flag, flag].map(u32::to_ne_bytes).concat())
}

fn make_pair(netlink: &mut Netlink, name: &str, outside: &File) -> Result<()> {
    let peer = ifinfomsg(0)
        .text(IFLA_IFNAME, name)
        .attribute(IFLA_NET_NS_FD, &outside.as_raw_fd().to_ne_bytes());
    let data = Body::default().nested(VETH_INFO_PEER, peer);
    let information = Body::default()
        .text(IFLA_INFO_KIND, "veth")
        .nested(IFLA_INFO_DATA, data);
    let body = ifinfomsg(0).text(IFLA_IFNAME, name).nested(IFLA_LINKINFO, information);
    netlink.change(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &body)
}

fn bring_up(netlink: &mut Netlink, name: &str, address: Ipv4Addr) -> Result<()> {
    let by_name = ifinfomsg(0).text(IFLA_IFNAME, name);
    let index = u32_at(&netlink.get(RTM_GETLINK, &by_name)?, 4)?;
    let mut ifaddrmsg = [AddressFamily::Inet as u8, PREFIX_BITS, 0, 0, 0, 0, 0, 0];
    ifaddrmsg[4..].copy_from_slice(&index.to_ne_bytes());
    let local = Body::new(&ifaddrmsg)
        .attribute(IFA_LOCAL, &address.octets())
        .attribute(IFA_ADDRESS, &address.octets());
    netlink.change(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &local)?;
    netlink.change(RTM_NEWLINK, 0, &up(index))
}
