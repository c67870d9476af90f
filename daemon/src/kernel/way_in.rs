// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands at the way in of a device behind the programs of tcx: filters of tc, programs that were attached after ours, and
//! nftables' chains of the device. None of them sees a packet that a program before it sends elsewhere. Reads only.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use libbpf_rs::libbpf_sys::{
    BPF_TCX_EGRESS, BPF_TCX_INGRESS, bpf_prog_get_fd_by_id, bpf_prog_info, bpf_prog_query_opts,
};
use nix::errno::Errno;

use super::netlink::{Body, Netlink, attribute, attributes, refused, text, u32_at};
use super::qdisc::{KIND, tcmsg};
use super::tcx::{TcxHook, answered};

/// Bytes of a message before its attributes: struct tcmsg, struct nfgenmsg.
const TCMSG_BYTES: usize = 20;
const NFGENMSG_BYTES: usize = 4;
/// The parent of what stands at the way in, and of its filters: of clsact, and of the older kind (pkt_sched.h).
const INGRESS: u32 = 0xffff_fff1;
const FILTERS: [(&str, u32); 2] = [("clsact", 0xffff_fff2), ("ingress", 0xffff_0000)];
const INGRESS_BLOCK: u16 = 13;
/// include/uapi/linux/netfilter/nf_tables.h and nfnetlink.h.
const GET_CHAIN: u16 = 10 << 8 | 4;
const CHAIN_HOOK: u16 = 4;
const HOOK_NUMBER: u16 = 1;
const HOOK_DEVICE: u16 = 3;
const HOOK_DEVICES: u16 = 4;
const DEVICE_NAME: u16 = 1;
const DEVICE_PREFIX: u16 = 2;
/// The family, and the number of the hook at the way in.
const NETDEV: (u8, u32) = (5, 0);
const INET: (u8, u32) = (1, 5);
/// As many programs as are listed.
const MOST_PROGRAMS: usize = 64;
/// What the names of giveway's programs begin with.
const OURS: &[u8] = b"gw_";

/// The devices at whose way in a chain of nftables stands; the last letter of a beginning is `*`.
pub fn filtered() -> Result<BTreeSet<String>> {
    let mut netlink = Netlink::open_netfilter()?;
    let chains = match netlink.dump(GET_CHAIN, &Body::new(&[0; NFGENMSG_BYTES])) {
        // This kernel has no nftables, or its module is not there.
        Err(error) if is_absent(&error) => return Ok(BTreeSet::new()),
        chains => chains.context("cannot list nftables' chains")?,
    };
    let mut devices = BTreeSet::new();
    for chain in &chains {
        let Some(hook) = attribute(chain, NFGENMSG_BYTES, CHAIN_HOOK) else {
            continue;
        };
        let number = attribute(hook, 0, HOOK_NUMBER).and_then(|value| value.first_chunk());
        let family = chain.first().copied().unwrap_or(0);
        let at = number.map(|number| (family, u32::from_be_bytes(*number)));
        if at != Some(NETDEV) && at != Some(INET) {
            continue;
        }
        devices.extend(attribute(hook, 0, HOOK_DEVICE).and_then(text));
        for (kind, name) in attribute(hook, 0, HOOK_DEVICES)
            .iter()
            .flat_map(|all| attributes(all, 0))
        {
            match kind {
                DEVICE_NAME => devices.extend(text(name)),
                DEVICE_PREFIX => devices.extend(text(name).map(|name| name + "*")),
                _ => {}
            }
        }
    }
    Ok(devices)
}

fn is_absent(error: &anyhow::Error) -> bool {
    matches!(
        refused(error),
        Some(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EPERM | Errno::ENOENT)
    ) || error
        .chain()
        .any(|cause| cause.downcast_ref() == Some(&Errno::EPROTONOSUPPORT))
}

/// What would be bypassed on this device; `chains`: of [`filtered`].
pub fn hindrance(netlink: &mut Netlink, ifindex: u32, name: &str, chains: &BTreeSet<String>) -> Result<Option<String>> {
    let is_of_it = |chain: &String| match chain.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => chain == name,
    };
    if chains.iter().any(is_of_it) {
        return Ok(Some(format!(
            "an nftables chain at the ingress of {name} (`nft list ruleset`) would not see limited packets"
        )));
    }
    let filters = || {
        Some(format!(
            "tc filters at the ingress of {name} (`tc filter show dev {name} ingress`) would not see \
             limited packets"
        ))
    };
    let all = netlink
        .dump(libc::RTM_GETQDISC, &tcmsg(ifindex, 0, 0))
        .context("cannot list the qdiscs")?;
    let is_here = |m: &&Vec<u8>| u32_at(m, 4).ok() == Some(ifindex) && u32_at(m, 12).ok() == Some(INGRESS);
    let Some(ingress) = all.iter().find(is_here) else {
        return Ok(None);
    };
    if attribute(ingress, TCMSG_BYTES, INGRESS_BLOCK).is_some() {
        return Ok(filters());
    }
    let kind = attribute(ingress, TCMSG_BYTES, KIND).and_then(text).unwrap_or_default();
    let Some((_, parent)) = FILTERS.into_iter().find(|(known, _)| *known == kind) else {
        return Ok(None);
    };
    let found = netlink
        .dump(libc::RTM_GETTFILTER, &tcmsg(ifindex, 0, parent))
        .context("cannot list the filters of an ingress")?;
    Ok(if found.is_empty() { None } else { filters() })
}

/// Whether this program is the last one at the way in of the device.
pub fn is_last(ifindex: u32, program: BorrowedFd<'_>) -> Result<bool> {
    Ok(programs(ifindex, TcxHook::Ingress)?.last() == Some(&id_of(program)?))
}

/// How many programs of others are asked there before this one.
pub fn others_before(ifindex: u32, program: BorrowedFd<'_>) -> Result<u32> {
    let own = id_of(program)?;
    let programs = programs(ifindex, TcxHook::Ingress)?;
    let before = programs.into_iter().take_while(|id| *id != own);
    let others = before.filter(|id| !is_ours(*id));
    Ok(u32::try_from(others.count())?)
}

/// How many programs of others are at the egress. No filter sees a packet that one of them decides on, before giveway's or after it.
pub fn others_at_egress(ifindex: u32) -> Result<u32> {
    let others = programs(ifindex, TcxHook::Egress)?
        .into_iter()
        .filter(|id| !is_ours(*id));
    Ok(u32::try_from(others.count())?)
}

/// By its name.
fn is_ours(id: u32) -> bool {
    // SAFETY: takes an integer.
    let Ok(program) = answered(unsafe { bpf_prog_get_fd_by_id(id) }) else {
        return false;
    };
    // SAFETY: the call succeeded, so this is a descriptor that nothing else owns.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    let name = info_of(program.as_fd()).map(|info| info.name.map(|letter| letter as u8));
    name.is_ok_and(|name| name.starts_with(OURS))
}

/// What stands there, by number, in the order in which it is asked.
fn programs(ifindex: u32, way: TcxHook) -> Result<Vec<u32>> {
    let kind = match way {
        TcxHook::Ingress => BPF_TCX_INGRESS,
        TcxHook::Egress => BPF_TCX_EGRESS,
    };
    let mut ids = [0u32; MOST_PROGRAMS];
    // SAFETY: integers and pointers, for which all zero is valid: none.
    let mut options: bpf_prog_query_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of_val(&options) as _;
    options.prog_ids = ids.as_mut_ptr();
    options.__bindgen_anon_1.count = MOST_PROGRAMS as u32;
    // SAFETY: the options, and what they point to, are valid for the call.
    let returned = unsafe { libbpf_rs::libbpf_sys::bpf_prog_query_opts(ifindex.cast_signed(), kind, &mut options) };
    answered(returned).context("cannot list the programs of tcx")?;
    // SAFETY: the kernel has filled it in; any number is valid.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    Ok(ids.get(..count).unwrap_or(&ids).to_vec())
}

fn id_of(program: BorrowedFd<'_>) -> Result<u32> {
    info_of(program).map(|info| info.id)
}

fn info_of(program: BorrowedFd<'_>) -> Result<bpf_prog_info> {
    // SAFETY: integers and pointers, for which all zero is valid.
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut size = u32::try_from(size_of_val(&info))?;
    // SAFETY: the descriptor is open, and both are valid for the call.
    let returned = unsafe { libbpf_rs::libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut size) };
    answered(returned).context("cannot tell a program's number")?;
    Ok(info)
}

/// The devices on which clsact stands.
pub fn with_clsact(netlink: &mut Netlink) -> Result<BTreeSet<u32>> {
    let all = netlink
        .dump(libc::RTM_GETQDISC, &tcmsg(0, 0, 0))
        .context("cannot list the qdiscs")?;
    let is_clsact = |m: &&Vec<u8>| attribute(m, TCMSG_BYTES, KIND).and_then(text).as_deref() == Some("clsact");
    let devices = all.iter().filter(is_clsact);
    Ok(devices.filter_map(|m| u32_at(m, 4).ok()).collect())
}

/// And nobody has a filter there.
pub fn is_clsact_free(netlink: &mut Netlink, ifindex: u32) -> Result<bool> {
    if !with_clsact(netlink)?.contains(&ifindex) {
        return Ok(false);
    }
    for parent in [0xffff_fff2, 0xffff_fff3] {
        let found = netlink.dump(libc::RTM_GETTFILTER, &tcmsg(ifindex, 0, parent));
        if !found.context("cannot list the filters of clsact")?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Of the filters of clsact, which stands on these devices.
pub fn preferences(
    netlink: &mut Netlink,
    with_clsact: &BTreeSet<u32>,
    ifindex: u32,
    parent: u32,
) -> Result<BTreeSet<u32>> {
    if !with_clsact.contains(&ifindex) {
        return Ok(BTreeSet::new());
    }
    let all = netlink
        .dump(libc::RTM_GETTFILTER, &tcmsg(ifindex, 0, parent))
        .context("cannot list the filters of clsact")?;
    // struct tcmsg: the preference and the protocol in its last word.
    Ok(all.iter().filter_map(|m| Some(u32_at(m, 16).ok()? >> 16)).collect())
}
