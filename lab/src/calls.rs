// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Safe wrappers of the system calls that nix lacks or has only as unsafe functions. Input and output are nix's errors
//! and types of std. Decides nothing. Calls of a single scenario (seccomp, io_uring, frames) are in that scenario.

use std::os::fd::{AsFd, AsRawFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libbpf_rs::libbpf_sys::{BPF_STATS_RUN_TIME, bpf_enable_stats, bpf_prog_get_info_by_fd, bpf_prog_info};
/// nix has no scheduling policies, no numbers of options that are set wrongly on purpose, and of SO_TXTIME only the call.
pub use libc::{
    ETH_P_ALL, IP_OPTIONS, IP_RECVERR, IP_TOS, IPPROTO_IP, IPPROTO_IPV6, IPV6_DSTOPTS, IPV6_RECVERR, IPV6_TCLASS,
    PACKET_OUTGOING, PACKET_VNET_HDR, SCHED_DEADLINE, SCHED_FIFO, SCHED_IDLE, SCHED_RESET_ON_FORK, SCHED_RR,
    SO_MAX_PACING_RATE, SO_PRIORITY, SO_TXTIME, SOF_TXTIME_DEADLINE_MODE, SOL_PACKET, SOL_SOCKET, SOL_UDP, UDP_SEGMENT,
    sock_txtime, tcp_info as TcpInfo,
};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

nix::ioctl_read_bad!(siocoutqnsd, libc::SIOCOUTQNSD, libc::c_int);

/// sched_setscheduler(2): nix knows affinity and no policy. 0 is the calling thread.
pub fn set_policy(thread: i32, policy: i32, priority: i32) -> nix::Result<()> {
    let wanted = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the call only reads its argument, which is valid for it.
    Errno::result(unsafe { libc::sched_setscheduler(thread, policy, &raw const wanted) }).map(drop)
}

/// sched_getscheduler(2): the same.
pub fn policy(thread: i32) -> nix::Result<i32> {
    // SAFETY: takes no pointers.
    Errno::result(unsafe { libc::sched_getscheduler(thread) })
}

/// setpriority(2), which nix lacks: the nice value of a thread; 0 is the calling one.
pub fn set_nice(thread: u32, nice: i32) -> nix::Result<()> {
    // SAFETY: takes no pointers.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, nice) }).map(drop)
}

/// getpriority(2): the same.
pub fn nice(thread: u32) -> nix::Result<i32> {
    Errno::clear();
    // SAFETY: takes no pointers.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, thread) };
    // A nice of -1 is no failure.
    match Errno::last_raw() {
        errno if nice == -1 && errno != 0 => Err(Errno::from_raw(errno)),
        _ => Ok(nice),
    }
}

/// ioprio_get(2), which no crate has: the I/O class and level of a thread.
pub fn io_priority(thread: i32) -> nix::Result<i64> {
    const WHO_PROCESS: libc::c_int = 1;
    // SAFETY: takes no pointers.
    Errno::result(unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, thread) })
}

/// TCP_INFO of tcp(7), which is none of nix's options.
pub fn tcp_info(socket: impl AsFd) -> nix::Result<TcpInfo> {
    // SAFETY: plain integers, of which zero is a valid value.
    let mut info: TcpInfo = unsafe { std::mem::zeroed() };
    let mut bytes = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` into the struct, whose every value is valid.
    let told = unsafe {
        let (socket, to) = (socket.as_fd().as_raw_fd(), (&raw mut info).cast());
        libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut bytes)
    };
    Errno::result(told).map(|_| info)
}

/// setsockopt(2) with any option and any bytes, also such as the kernel refuses.
pub fn set_option(socket: &impl AsRawFd, level: i32, name: i32, value: &[u8]) -> nix::Result<()> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: the pointer is good for `length` bytes, which the kernel only reads.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    Errno::result(set).map(drop)
}

/// bind(2) of a packet socket to a device: nix has no address for one.
pub fn bind_to_device(socket: impl AsFd, device: u32) -> nix::Result<()> {
    // SAFETY: integers only, for which all zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = device.cast_signed();
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: a sockaddr_ll of this length, which the kernel only reads.
    let bound = unsafe { libc::bind(socket.as_fd().as_raw_fd(), (&raw const address).cast(), length) };
    Errno::result(bound).map(drop)
}

/// SIOCOUTQNSD of tcp(7): bytes that were not sent yet. nix makes unsafe functions of ioctls.
pub fn unsent_bytes(socket: impl AsFd) -> nix::Result<i32> {
    let mut bytes = 0;
    // SAFETY: the request writes one int to the pointer, which is valid for it.
    unsafe { siocoutqnsd(socket.as_fd().as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes)
}

/// TUNSETIFF: the open file of /dev/net/tun becomes a TAP device of this name, whose frames have nothing before them.
pub fn become_tap(tun: impl AsFd, name: &str) -> nix::Result<()> {
    // SAFETY: ifreq is plain data; all zeroes is a valid value of every member of its union.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, and `request` is one that outlives the call.
    let done = unsafe { libc::ioctl(tun.as_fd().as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    Errno::result(done).map(drop)
}

/// sigaction(2) with a handler, which nix leaves to its caller: it may do nothing but store to an atomic.
pub fn handle(signal: Signal, handler: extern "C" fn(i32)) -> nix::Result<()> {
    let action = SigAction::new(SigHandler::Handler(handler), SaFlags::empty(), SigSet::empty());
    // SAFETY: storing to an atomic is async-signal-safe.
    unsafe { sigaction(signal, &action) }.map(drop)
}

/// The command's process starts in the network namespace of this file.
pub fn start_in(command: &mut Command, namespace: OwnedFd) {
    // SAFETY: setns is async-signal-safe; the descriptor lives in the closure.
    unsafe { command.pre_exec(move || setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).map_err(Into::into)) };
}

/// The command's process is killed when the thread that starts it ends.
pub fn end_with_this_thread(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe and touches only the new child.
    unsafe { command.pre_exec(|| set_pdeathsig(Signal::SIGKILL).map_err(Into::into)) };
}

/// BPF_ENABLE_STATS of bpf(2): the kernel counts run times for as long as the descriptor is open.
pub fn count_run_times() -> nix::Result<OwnedFd> {
    // SAFETY: the call takes a number and opens a descriptor.
    let fd = Errno::result(unsafe { bpf_enable_stats(BPF_STATS_RUN_TIME) })?;
    // SAFETY: the kernel has just opened this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// BPF_OBJ_GET_INFO_BY_FD of bpf(2), for one program.
pub fn program_info(program: impl AsFd) -> nix::Result<bpf_prog_info> {
    let mut info = bpf_prog_info::default();
    let mut bytes = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `bytes` into the struct, whose every value is valid.
    let done = unsafe { bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &raw mut info, &raw mut bytes) };
    Errno::result(done).map(|_| info)
}
