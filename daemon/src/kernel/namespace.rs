// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The namespaces that the caller is in, by their numbers. The kernel is asked by descriptors and not by /proc: whoever may
//! list a folder there can hold its lock, and who looks a name up in it then waits for them, beyond SIGKILL. Where an older
//! kernel tells it nowhere else, a process of its own looks (`apart`).

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::linux::fs::MetadataExt as _;
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::{getpid, gettid};

use super::apart;

// include/uapi/linux/pidfd.h, Linux 6.9 and 6.11
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;
const PIDFD_GET_NET_NAMESPACE: libc::c_ulong = 0xff04;
const PIDFD_GET_PID_NAMESPACE: libc::c_ulong = 0xff05;
/// include/linux/proc_ns.h: PROC_PID_INIT_INO.
const INITIAL_PID: u64 = 0xefff_fffc;
/// include/uapi/linux/sockios.h
const SIOCGSKNS: libc::c_ulong = 0x894c;

/// The calling thread's network namespace, by the number that BPF programs see.
pub fn net() -> Result<u32> {
    let inode = match open_net() {
        Ok(namespace) => inode(namespace)?,
        Err(_) => apart::inode(c"/proc/self/ns/net").context("cannot tell the own network namespace")?,
    };
    u32::try_from(inode).with_context(|| format!("a network namespace has the impossible number {inode}"))
}

/// The calling thread's network namespace. Before Linux 6.11 that takes CAP_NET_ADMIN there.
pub fn open_net() -> Result<OwnedFd> {
    if let Ok(namespace) = of_pidfd(gettid().as_raw(), PIDFD_THREAD, PIDFD_GET_NET_NAMESPACE) {
        return Ok(namespace);
    }
    let any = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    Ok(asked(&any, SIOCGSKNS)?)
}

/// The pid namespace of this process, which is in one for life.
pub fn pid() -> Result<u64> {
    static OWN: OnceLock<u64> = OnceLock::new();
    if let Some(known) = OWN.get() {
        return Ok(*known);
    }
    let inode = match of_pidfd(getpid().as_raw(), 0, PIDFD_GET_PID_NAMESPACE) {
        Ok(namespace) => inode(namespace)?,
        Err(_) => apart::inode(c"/proc/self/ns/pid").context("cannot tell the own pid namespace")?,
    };
    Ok(*OWN.get_or_init(|| inode))
}

/// Whether all processes are seen from the own pid namespace.
pub fn is_initial_pid() -> Result<bool> {
    Ok(pid()? == INITIAL_PID)
}

fn of_pidfd(id: i32, flags: libc::c_int, question: libc::c_ulong) -> nix::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let opened = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, id, flags) })?;
    // SAFETY: just opened, and nobody else's.
    asked(&unsafe { OwnedFd::from_raw_fd(opened as i32) }, question)
}

fn asked(of: &OwnedFd, question: libc::c_ulong) -> nix::Result<OwnedFd> {
    // SAFETY: neither question has an argument, so nothing is read or written.
    let namespace = Errno::result(unsafe { libc::ioctl(of.as_raw_fd(), question as _, 0) })?;
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
}

fn inode(namespace: OwnedFd) -> Result<u64> {
    Ok(File::from(namespace).metadata()?.st_ino())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_numbers_are_those_of_proc() {
        let of = |name: &str| fs::metadata(format!("/proc/thread-self/ns/{name}")).unwrap().st_ino();
        assert_eq!(u64::from(net().unwrap()), of("net"));
        assert_eq!(pid().unwrap(), of("pid"));
        assert_eq!(
            apart::inode(c"/proc/self/ns/net").unwrap(),
            of("net"),
            "on older kernels"
        );
        assert!(apart::inode(c"/proc/self/ns/none").is_err());
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        assert_eq!(u64::from(net().unwrap()), of("net"), "a thread may have its own");
        assert_eq!(inode(asked_by_socket()).unwrap(), of("net"));
    }

    fn asked_by_socket() -> OwnedFd {
        let any = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).unwrap();
        asked(&any, SIOCGSKNS).unwrap()
    }
}
