// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaches a program to an interface: tcx (Linux 6.6). Input: a program and an interface. Output: a descriptor
//! that keeps it there. What else is attached at tcx stays.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use libbpf_rs::libbpf_sys::{
    BPF_F_AFTER, BPF_TCX_EGRESS, BPF_TCX_INGRESS, bpf_link_create, bpf_link_create_opts, bpf_link_detach,
    bpf_link_get_info_by_fd, bpf_link_info,
};
use nix::errno::Errno;

#[derive(Clone, Copy, Debug)]
pub enum TcxHook {
    Ingress,
    Egress,
}

/// At tcx behind whatever is attached there. Until the descriptor is closed.
pub fn attach(program: BorrowedFd<'_>, ifindex: u32, hook: TcxHook) -> Result<OwnedFd> {
    let (kind, flags, name) = match hook {
        TcxHook::Ingress => (BPF_TCX_INGRESS, BPF_F_AFTER, "tcx ingress, Linux 6.6"),
        TcxHook::Egress => (BPF_TCX_EGRESS, BPF_F_AFTER, "tcx egress, Linux 6.6"),
    };
    // SAFETY: integers and pointers, for which all zero is valid: none.
    let mut options: bpf_link_create_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of_val(&options) as _;
    options.flags = flags;
    // SAFETY: the descriptor is open, and the options are valid for the call.
    let link = unsafe { bpf_link_create(program.as_raw_fd(), ifindex.cast_signed(), kind, &options) };
    let link = answered(link).with_context(|| format!("cannot attach a program ({name})"))?;
    // SAFETY: the call succeeded, so this is a descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// From now on the descriptor keeps nothing there.
pub fn detach(link: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the descriptor is open.
    let detached = unsafe { bpf_link_detach(link.as_raw_fd()) };
    answered(detached).context("cannot detach a program").map(drop)
}

/// Whether what was attached at tcx still is. It ends with its device: another one may have the same number by now.
pub fn is_attached(link: BorrowedFd<'_>) -> Result<bool> {
    // SAFETY: integers, for which all zero is valid.
    let mut info: bpf_link_info = unsafe { std::mem::zeroed() };
    let mut size = u32::try_from(size_of_val(&info))?;
    // SAFETY: the descriptor is open, and both are valid for the call.
    let returned = unsafe { bpf_link_get_info_by_fd(link.as_raw_fd(), &mut info, &mut size) };
    answered(returned).context("cannot tell whether a program is attached")?;
    // SAFETY: the kernel has filled in this part for a link of tcx, and it is an integer in any case.
    Ok(unsafe { info.__bindgen_anon_1.tcx.ifindex } != 0)
}

/// libbpf answers with the error itself, below 0, and not with -1.
pub fn answered(answer: i32) -> nix::Result<i32> {
    match answer {
        0.. => Ok(answer),
        error => Err(Errno::from_raw(error.wrapping_neg())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn what_is_not_attached_is_an_error_and_no_descriptor() {
        let no_program = File::open("/dev/null").unwrap();
        let attached = attach(no_program.as_fd(), 1, TcxHook::Egress);
        assert!(attached.is_err(), "{attached:?}");
        assert!(is_attached(no_program.as_fd()).is_err());
    }
}
