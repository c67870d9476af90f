// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system calls that nix lacks, by rustix where it has them, which nothing else names, and by libc where neither has. Input
//! and output are nix's errors and types of std. It decides nothing.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

pub use libc::{
    SCHED_BATCH, SCHED_DEADLINE, SCHED_FIFO, SCHED_IDLE, SCHED_OTHER, SCHED_RR, sched_attr as SchedulingAttributes,
};
use nix::errno::Errno;
use nix::sys::stat::SFlag;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Pid, PidfdFlags};
use rustix::rand::GetRandomFlags;
pub use rustix::thread::CapabilitySet;

// include/uapi/linux/ioprio.h
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
/// pidfd_open(2): of one thread, not of its whole process.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());

fn errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// A number that none can have is that of none.
fn pid(number: u32) -> nix::Result<Pid> {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    pid.ok_or(Errno::ESRCH)
}

/// pidfd_open(2): nix has no pidfds.
pub fn pidfd_of_process(number: u32) -> nix::Result<OwnedFd> {
    rustix::process::pidfd_open(pid(number)?, PidfdFlags::empty()).map_err(errno)
}

/// The same of one thread (Linux 6.9; EINVAL before).
pub fn pidfd_of_thread(number: u32) -> nix::Result<OwnedFd> {
    rustix::process::pidfd_open(pid(number)?, PIDFD_THREAD).map_err(errno)
}

/// pidfd_send_signal(2), with SIGKILL: the same.
pub fn kill_by_pidfd(pidfd: impl AsFd) -> nix::Result<()> {
    rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL).map_err(errno)
}

/// getpriority(2), which nix lacks: the nice value of a thread; 0 is the calling one.
pub fn nice(thread: u32) -> nix::Result<i32> {
    rustix::process::getpriority_process(thread_or_own(thread)?).map_err(errno)
}

/// setpriority(2): the same.
pub fn set_nice(thread: u32, nice: i32) -> nix::Result<()> {
    rustix::process::setpriority_process(thread_or_own(thread)?, nice).map_err(errno)
}

fn thread_or_own(thread: u32) -> nix::Result<Option<Pid>> {
    if thread == 0 { Ok(None) } else { pid(thread).map(Some) }
}

/// ioprio_get(2), which no crate has: the I/O class and level of a thread.
pub fn io_priority(thread: u32) -> nix::Result<u32> {
    // SAFETY: takes no pointers.
    let found = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, thread) };
    Ok(u32::try_from(Errno::result(found)?).unwrap_or_default())
}

/// ioprio_set(2): the same.
pub fn set_io_priority(thread: u32, to: u32) -> nix::Result<()> {
    // SAFETY: takes no pointers.
    Errno::result(unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, thread, to) }).map(drop)
}

/// For those fields that nothing is to be set to.
pub const NO_SCHEDULING: SchedulingAttributes = SchedulingAttributes {
    size: size_of::<SchedulingAttributes>() as u32,
    sched_policy: 0,
    sched_flags: 0,
    sched_nice: 0,
    sched_priority: 0,
    sched_runtime: 0,
    sched_deadline: 0,
    sched_period: 0,
};

/// sched_getattr(2), which no crate has: nix knows affinity and no policy. 0 is the calling thread.
pub fn scheduling(thread: u32) -> nix::Result<SchedulingAttributes> {
    let mut found = NO_SCHEDULING;
    // SAFETY: the kernel writes at most the size that is told, which is that of the struct.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut found, NO_SCHEDULING.size, 0) };
    Errno::result(done)?;
    Ok(found)
}

/// sched_setattr(2): the same.
pub fn set_scheduling(thread: u32, wanted: &SchedulingAttributes) -> nix::Result<()> {
    // SAFETY: the kernel reads as much as the struct's own size field says.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, std::ptr::from_ref(wanted), 0) };
    Errno::result(done).map(drop)
}

/// capget(2), which nix lacks: what the calling thread may do now.
pub fn effective_capabilities() -> nix::Result<CapabilitySet> {
    let held = rustix::thread::capabilities(None).map_err(errno)?;
    Ok(held.effective)
}

/// getrandom(2), which nix lacks. As many bytes as it gave.
pub fn random(bytes: &mut [u8]) -> nix::Result<usize> {
    rustix::rand::getrandom(bytes, GetRandomFlags::empty()).map_err(errno)
}

/// fsopen(2), fsconfig(2) and fsmount(2), which nix lacks: a mount that no other process sees, and no path leads to.
pub fn mount_apart(kind: &str) -> nix::Result<OwnedFd> {
    let mount = || {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    };
    mount().map_err(errno)
}

/// What statx(2) tells of a file, which nix lacks: the number of its mount is in no `stat`.
pub struct Status {
    pub kind: SFlag,
    pub mode: u32,
    pub owner: u32,
    pub inode: u64,
    pub mount: u64,
}

pub fn status(file: impl AsFd) -> nix::Result<Status> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, mask).map_err(errno)?;
    let mode = u32::from(found.stx_mode);
    Ok(Status {
        kind: SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()),
        mode,
        owner: found.stx_uid,
        inode: found.stx_ino,
        mount: found.stx_mnt_id,
    })
}

/// TIOCGWINSZ of ioctl_tty(2), for which nix has only macros that make unsafe functions. Columns and lines.
pub fn terminal_size(terminal: impl AsFd) -> nix::Result<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(terminal).map_err(errno)?;
    Ok((size.ws_col, size.ws_row))
}

/// TCP_INFO of tcp(7), which is none of nix's options of sockets.
pub fn tcp_info(socket: impl AsFd) -> nix::Result<libc::tcp_info> {
    // SAFETY: plain integers, of which zero is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut bytes = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` into the struct, whose every value is valid.
    let returned = unsafe {
        let (socket, to) = (socket.as_fd().as_raw_fd(), (&raw mut info).cast());
        libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut bytes)
    };
    Errno::result(returned).map(|_| info)
}

/// SO_NETNS_COOKIE of socket(7): the same.
pub fn netns_cookie(socket: impl AsFd) -> nix::Result<u64> {
    let (mut cookie, mut bytes) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `bytes`, which is the size of what the pointer is to.
    let returned = unsafe {
        let (socket, to) = (socket.as_fd().as_raw_fd(), (&raw mut cookie).cast());
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, to, &raw mut bytes)
    };
    Errno::result(returned).map(|_| cookie)
}

/// setsockopt(2), by the numbers of an option that nix does not have.
pub fn set_option(socket: impl AsFd, level: i32, name: i32, value: i32) -> nix::Result<()> {
    // SAFETY: the kernel reads as many bytes as the integer has.
    let set = unsafe {
        let (socket, value) = (socket.as_fd().as_raw_fd(), (&raw const value).cast());
        libc::setsockopt(socket, level, name, value, size_of::<i32>() as libc::socklen_t)
    };
    Errno::result(set).map(drop)
}

/// capset(2), which nix lacks: from now on the calling thread may do nothing more than any user.
#[cfg(test)]
pub fn drop_capabilities() -> nix::Result<()> {
    let none = CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    rustix::thread::set_capabilities(None, sets).map_err(errno)
}

/// setresuid(2) of the calling thread alone: nix's is of all threads of the process.
#[cfg(test)]
pub fn become_user(uid: u32) -> nix::Result<()> {
    let uid = rustix::process::Uid::from_raw(uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(errno)
}
