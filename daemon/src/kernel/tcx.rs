// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaches a program at tcx (Linux 6.6). In come a program and an interface, out goes a descriptor that keeps it
//! there. What else is attached stays.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use libbpf_rs::libbpf_sys::{BPF_F_AFTER, BPF_TCX_EGRESS, BPF_TCX_INGRESS, bpf_link_create, bpf_link_create_opts};
use nix::errno::Errno;

#[derive(Clone, Copy, Debug)]
pub enum Way {
    In,
    Out,
}

/// Behind whatever is attached there. Until the descriptor is closed.
pub fn attach(program: BorrowedFd<'_>, ifindex: u32, way: Way) -> Result<OwnedFd> {
    let (kind, name) = match way {
        Way::In => (BPF_TCX_INGRESS, "ingress"),
        Way::Out => (BPF_TCX_EGRESS, "egress"),
    };
    // SAFETY: integers and pointers, for which all zero is valid: none.
    let mut options: bpf_link_create_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of_val(&options) as _;
    options.flags = BPF_F_AFTER;
    // SAFETY: the descriptor is open, and the options are valid for the call.
    let link = unsafe { bpf_link_create(program.as_raw_fd(), ifindex.cast_signed(), kind, &options) };
    let link = Errno::result(link).with_context(|| format!("cannot attach a program (tcx {name}, Linux 6.6)"))?;
    // SAFETY: the call succeeded, so this is a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}
