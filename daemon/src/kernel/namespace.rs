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
use super::calls::{netns_cookie, pidfd_of_process, pidfd_of_thread};

// include/uapi/linux/pidfd.h, Linux 6.11
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
    let own = pidfd_of_thread(gettid().as_raw().cast_unsigned());
    if let Ok(namespace) = own.and_then(|own| asked(&own, PIDFD_GET_NET_NAMESPACE)) {
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
    let own = pidfd_of_process(getpid().as_raw().cast_unsigned());
    let inode = match own.and_then(|own| asked(&own, PIDFD_GET_PID_NAMESPACE)) {
        Ok(namespace) => inode(namespace)?,
        Err(_) => apart::inode(c"/proc/self/ns/pid").context("cannot tell the own pid namespace")?,
    };
    Ok(*OWN.get_or_init(|| inode))
}

/// Whether all processes are seen from the own pid namespace.
pub fn is_initial_pid() -> Result<bool> {
    Ok(pid()? == INITIAL_PID)
}

/// The calling thread's network namespace, by a number that no later one gets (kernel 5.14 or newer).
pub fn own_netns_cookie() -> Result<u64> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    netns_cookie(&socket).context("the kernel tells no cookie of a network namespace")
}

/// Whether no network namespace of this number and cookie is left. False where the kernel cannot tell (before Linux
/// 6.18, whose handles of namespaces hold both).
pub fn is_netns_gone(inum: u32, cookie: u64) -> bool {
    /// `struct file_handle` with a `struct nsfs_file_handle` (include/uapi/linux/nsfs.h).
    #[repr(C)]
    struct FileHandle {
        bytes: u32,
        kind: i32,
        cookie: u64,
        of: u32,
        inum: u32,
    }
    let mut handle = FileHandle {
        bytes: 16,
        kind: 0,
        cookie: 0,
        of: 0,
        inum: 0,
    };
    let (Ok(own), Ok(own_cookie)) = (open_net(), own_netns_cookie()) else {
        return false;
    };
    // By libc: nix knows no handles of files.
    let (fd, mut mount) = (own.as_raw_fd(), 0);
    let at = (&raw mut handle).cast::<libc::file_handle>();
    // SAFETY: the kernel fills as many bytes after the two first fields as the first one says, which the struct has.
    let named = unsafe { libc::name_to_handle_at(fd, c"".as_ptr(), at, &raw mut mount, libc::AT_EMPTY_PATH) };
    if named != 0 || (handle.bytes, handle.cookie) != (16, own_cookie) {
        return false;
    }
    (handle.cookie, handle.inum) = (cookie, inum);
    // SAFETY: the handle is as long as it says.
    let opened = unsafe { libc::open_by_handle_at(fd, (&raw mut handle).cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if opened >= 0 {
        // SAFETY: just opened, and nobody else's.
        drop(unsafe { OwnedFd::from_raw_fd(opened) });
        return false;
    }
    Errno::last() == Errno::ESTALE
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
