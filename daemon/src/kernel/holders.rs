// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/holders.bpf.c: which processes hold Unix sockets of a network namespace, of those that are root's and of this very
//! program. Where the kernel has no such iterator, /proc tells it, and whoever may list a folder there can keep that waiting.
//! It changes nothing.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::libbpf_log::explain;
use super::skeletons::holders as skeleton;
use super::tasks::run_over_all;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use skeleton::types;

/// As /proc shows the flags of a file, whose numbers are the kernel's own: O_CLOEXEC.
const CLOSED_ON_EXEC: u32 = 0o2_000_000;

/// A socket that a process has opened.
#[derive(Clone, Copy, Debug)]
pub struct SocketHolder {
    /// None where only its inode is known.
    pub cookie: Option<u64>,
    pub inode: u64,
    /// Its number here.
    pub pid: u32,
}

/// Those whose sockets and processes are of this network namespace; of the processes that this one can see.
pub fn all(netns_inum: u32) -> Result<Vec<SocketHolder>> {
    match by_kernel(netns_inum) {
        Ok(found) => Ok(found),
        Err(error) => {
            tracing::warn!("{error:#}; the holders of giveway's sockets are read from /proc instead");
            by_proc(netns_inum).context("cannot find the holders of giveway's sockets")
        }
    }
}

fn by_kernel(netns_inum: u32) -> Result<Vec<SocketHolder>> {
    let mut storage = MaybeUninit::uninit();
    let builder = skeleton::HoldersSkelBuilder::default();
    let mut open = explain("open the list of holders", || builder.open(&mut storage))?;
    open.maps
        .rodata_data
        .as_deref_mut()
        .context("the list of holders has no constants")?
        .netns_inum = netns_inum;
    let skeleton = explain("load the list of holders", || open.load())?;
    let program: OwnedFd = skeleton.progs.gw_list_holders.as_fd().try_clone_to_owned()?;
    let found = run_over_all::<types::gw_holder>(&program).context("cannot list holders of sockets")?;
    let holding = |found: types::gw_holder| SocketHolder {
        cookie: (found.cookie > 0).then_some(found.cookie),
        inode: found.inode,
        pid: found.pid,
    };
    Ok(found.into_iter().map(holding).collect())
}

fn by_proc(netns_inum: u32) -> Result<Vec<SocketHolder>> {
    let own = fs::read_link("/proc/self/exe")?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // One that ends meanwhile holds nothing.
        found.extend(held_by(pid, &own, netns_inum).unwrap_or_default());
    }
    Ok(found)
}

/// Nothing where it is not root's, of this program and in this network namespace.
fn held_by(pid: u32, own: &Path, netns_inum: u32) -> Result<Vec<SocketHolder>> {
    let of = Path::new("/proc").join(pid.to_string());
    let status = fs::read_to_string(of.join("status"))?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let is_roots = uids.is_some_and(|uids| uids.split_whitespace().take(2).all(|uid| uid == "0"));
    let is_here = pid == std::process::id() || fs::metadata(of.join("ns/net"))?.ino() == u64::from(netns_inum);
    if !is_roots || !is_here || program(&fs::read_link(of.join("exe"))?) != program(own) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(of.join("fd"))?.flatten() {
        let (Ok(link), Ok(about)) = (
            fs::read_link(entry.path()),
            fs::read_to_string(of.join("fdinfo").join(entry.file_name())),
        ) else {
            continue;
        };
        let link = link.to_string_lossy();
        let inode = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        if let Some(inode) = inode.and_then(|inode| inode.parse().ok())
            && flags.is_some_and(|flags| flags & CLOSED_ON_EXEC != 0)
        {
            found.push(SocketHolder {
                cookie: None,
                inode,
                pid,
            });
        }
    }
    Ok(found)
}

/// The name of its file, which may have been replaced since.
fn program(exe: &Path) -> String {
    let name = exe.file_name().unwrap_or_default().to_string_lossy();
    name.trim_end_matches(" (deleted)").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::kernel::own_netns;

    #[test]
    fn the_kernel_and_proc_tell_of_what_this_process_has_opened_and_not_of_what_an_exec_leaves_open() {
        let socket = UnixDatagram::unbound().unwrap();
        let inode = |socket: &UnixDatagram| {
            let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
            let link = link.to_string_lossy().into_owned();
            link["socket:[".len()..link.len() - 1].parse::<u64>().unwrap()
        };
        let wanted = inode(&socket);
        let netns = own_netns().unwrap();
        let is_told = |found: Vec<SocketHolder>| {
            let mut found = found.into_iter().filter(|holding| holding.inode == wanted);
            found.any(|holding| holding.pid == std::process::id())
        };
        assert!(is_told(by_kernel(netns).unwrap()) && is_told(by_proc(netns).unwrap()));
        nix::fcntl::fcntl(&socket, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
        assert!(!is_told(by_kernel(netns).unwrap()) && !is_told(by_proc(netns).unwrap()));
    }
}
