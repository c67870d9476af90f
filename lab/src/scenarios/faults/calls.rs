// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls as a reader distinguishes them: by name and subject, without numbers that vary between runs. Input: a
//! stopped call. Output: its name and subject, and the error that it is failed with.

use std::io::IoSliceMut;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// What distinguishes one call from another of the same name.
#[derive(Clone, Copy)]
enum About {
    Nothing,
    /// The descriptor in the first argument.
    Descriptor,
    /// The path in this argument.
    Path(usize),
    /// The number in this argument.
    Number(usize),
    /// The descriptor in the first argument, and the number in this one.
    DescriptorAnd(usize),
    /// The first two arguments.
    Pair,
    /// bpf(2): its command, and the name of the new object.
    Bpf,
}

struct CallKind {
    number: libc::c_long,
    name: &'static str,
    about: About,
    error: Errno,
}

macro_rules! kinds {
    ($($error:ident: $($call:ident $about:expr),+;)+) => {
        &[$($(CallKind { number: libc::$call, name: stringify!($call), about: $about, error: Errno::$error }),+),+]
    };
}

use About::{Bpf, Descriptor, DescriptorAnd, Nothing, Number, Pair, Path};

/// Any other call fails with ENOMEM.
const KINDS: &[CallKind] = kinds! {
    EMFILE: SYS_openat Path(1), SYS_socket Pair, SYS_pipe2 Nothing, SYS_dup3 Nothing, SYS_accept4 Descriptor,
        SYS_epoll_create1 Nothing, SYS_eventfd2 Nothing, SYS_memfd_create Nothing, SYS_pidfd_open Nothing,
        SYS_perf_event_open Nothing, SYS_timerfd_create Nothing, SYS_fcntl DescriptorAnd(1), SYS_socketpair Nothing,
        SYS_signalfd4 Nothing;
    EIO: SYS_read Descriptor, SYS_write Descriptor, SYS_pread64 Descriptor, SYS_fsync Descriptor,
        SYS_fdatasync Descriptor, SYS_getdents64 Descriptor, SYS_statx Path(1), SYS_newfstatat Path(1),
        SYS_readlinkat Path(1), SYS_unlinkat Path(1), SYS_mount Path(1), SYS_umount2 Path(0), SYS_ftruncate Descriptor,
        SYS_lseek Descriptor, SYS_fstat Descriptor, SYS_statfs Path(0), SYS_fstatfs Descriptor, SYS_chdir Path(0),
        SYS_faccessat Path(1), SYS_faccessat2 Path(1), SYS_writev Descriptor;
    ENOSPC: SYS_mkdirat Path(1), SYS_renameat2 Path(1), SYS_linkat Path(1), SYS_fchmod Descriptor,
        SYS_fchmodat Path(1), SYS_fchown Descriptor, SYS_fchownat Path(1), SYS_fallocate Descriptor;
    ENOBUFS: SYS_sendto DescriptorAnd(3), SYS_sendmsg Descriptor, SYS_recvfrom Descriptor, SYS_recvmsg Descriptor,
        SYS_connect Descriptor, SYS_bind Descriptor, SYS_listen Descriptor, SYS_setsockopt Pair,
        SYS_getsockopt Pair, SYS_getsockname Descriptor, SYS_shutdown Descriptor, SYS_getpeername Descriptor;
    EPERM: SYS_kill Number(1), SYS_tgkill Number(2), SYS_sched_setscheduler Number(1), SYS_sched_setattr Nothing,
        SYS_sched_setaffinity Nothing, SYS_sched_setparam Nothing, SYS_setpriority Nothing, SYS_prctl Number(0),
        SYS_prlimit64 Number(1), SYS_pidfd_send_signal Number(1), SYS_unshare Number(0), SYS_setns Number(1);
    EAGAIN: SYS_clone3 Nothing, SYS_clone Nothing;
    EINTR: SYS_futex Number(1), SYS_epoll_pwait Descriptor, SYS_ppoll Nothing, SYS_wait4 Nothing, SYS_waitid Nothing,
        SYS_clock_nanosleep Nothing, SYS_pselect6 Nothing;
    ENOMEM: SYS_bpf Bpf, SYS_ioctl DescriptorAnd(1), SYS_mmap Number(3), SYS_munmap Nothing, SYS_mprotect Nothing,
        SYS_madvise Number(2), SYS_brk Nothing, SYS_mremap Nothing, SYS_epoll_ctl DescriptorAnd(1),
        SYS_rt_sigaction Number(0), SYS_rt_sigprocmask Nothing, SYS_sigaltstack Nothing, SYS_getrandom Nothing,
        SYS_execve Path(0), SYS_set_tid_address Nothing, SYS_set_robust_list Nothing,
        SYS_sched_getaffinity Nothing, SYS_sched_getscheduler Nothing, SYS_sched_getattr Nothing, SYS_flock Descriptor,
        SYS_close_range Number(0), SYS_process_vm_readv Nothing, SYS_getrusage Nothing, SYS_membarrier Nothing,
        SYS_uname Nothing, SYS_getpriority Nothing, SYS_kcmp Nothing, SYS_mlockall Nothing, SYS_capget Nothing, SYS_fsmount Descriptor,
        SYS_fsopen Nothing, SYS_fsconfig Nothing, SYS_move_mount Nothing, SYS_open_tree Nothing, SYS_mincore Nothing,
        SYS_sched_getparam Nothing, SYS_sched_get_priority_max Nothing, SYS_sysinfo Nothing;
};

/// Calls that an older architecture has under other names.
#[cfg(target_arch = "x86_64")]
const OLD_KINDS: &[CallKind] = kinds! {
    EMFILE: SYS_open Path(0), SYS_dup2 Nothing;
    EIO: SYS_stat Path(0), SYS_lstat Path(0), SYS_readlink Path(0), SYS_unlink Path(0), SYS_access Path(0),
        SYS_rmdir Path(0);
    ENOSPC: SYS_mkdir Path(0), SYS_rename Path(0), SYS_chmod Path(0);
    EAGAIN: SYS_vfork Nothing;
    EINTR: SYS_epoll_wait Descriptor, SYS_poll Nothing;
    ENOMEM: SYS_arch_prctl Number(0);
};
#[cfg(not(target_arch = "x86_64"))]
const OLD_KINDS: &[CallKind] = &[];

/// Calls without an error (close(2) has closed the descriptor whatever it returns), or without a possible reaction: the
/// C library aborts where a thread cannot have rseq(2).
pub const NEVER_FAIL: &[libc::c_long] = &[
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_close,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_sched_yield,
    libc::SYS_umask,
    libc::SYS_clock_gettime,
];

/// Waking others fails only with a bad address, and nobody checks it.
pub fn never_fails(call: &libc::seccomp_data) -> bool {
    let [wake, wake_some] = [libc::FUTEX_WAKE, libc::FUTEX_WAKE_BITSET].map(|operation| operation as u64);
    let operation = call.args[1] & !(libc::FUTEX_PRIVATE_FLAG as u64);
    libc::c_long::from(call.nr) == libc::SYS_futex && [wake, wake_some].contains(&operation)
}

fn kind(number: libc::c_long) -> Option<&'static CallKind> {
    KINDS.iter().chain(OLD_KINDS).find(|kind| kind.number == number)
}

/// A description of this call of that thread, for people and to find it again.
pub fn describe(thread: i32, call: &libc::seccomp_data) -> String {
    let number = libc::c_long::from(call.nr);
    let Some(kind) = kind(number) else {
        return format!("call {number}");
    };
    let argument = |place: usize| call.args[place];
    let descriptor = || link_of(thread, argument(0) as i32);
    let about = match kind.about {
        Nothing => String::new(),
        Descriptor => descriptor(),
        Path(place) => match text(thread, argument(place)) {
            // A descriptor's own.
            path if path.is_empty() => descriptor(),
            path => path,
        },
        Number(place) => format!("{:#x}", argument(place) as u32),
        DescriptorAnd(place) => format!("{}, {:#x}", descriptor(), argument(place) as u32),
        Pair => match number {
            libc::SYS_socket => format!("{}, {:#x}", argument(0), argument(1) as u32),
            _ => format!("{}, {}, {}", descriptor(), argument(1), argument(2)),
        },
        Bpf => bpf(thread, argument(0), argument(1)),
    };
    let name = kind.name.trim_start_matches("SYS_");
    format!("{name}({})", without_numbers(&about))
}

/// The error that it is failed with.
pub fn error_of(number: libc::c_long) -> Errno {
    kind(number).map_or(Errno::ENOMEM, |kind| kind.error)
}

/// bpf(2): the names of the commands in use, and where their `union bpf_attr` has a name.
fn bpf(thread: i32, command: u64, attributes: u64) -> String {
    let (name, name_at) = match command {
        0 => ("MAP_CREATE", Some(28)),
        1 => ("MAP_LOOKUP_ELEM", None),
        2 => ("MAP_UPDATE_ELEM", None),
        3 => ("MAP_DELETE_ELEM", None),
        5 => ("PROG_LOAD", Some(48)),
        28 => ("LINK_CREATE", None),
        other => return format!("command {other:#x}"),
    };
    let made = name_at.map(|at| text(thread, attributes + at)).unwrap_or_default();
    format!("{name} {made}")
}

/// The text at an address of another process; empty if unreadable.
fn text(thread: i32, address: u64) -> String {
    let mut bytes = [0; 256];
    // A text that ends before the next page may be complete.
    let to_page_end = 4_096 - address as usize % 4_096;
    let mut read = 0;
    for length in [bytes.len(), to_page_end.min(bytes.len())] {
        let remote = [RemoteIoVec {
            base: address as usize,
            len: length,
        }];
        let mut local = [IoSliceMut::new(&mut bytes[..length])];
        read = process_vm_readv(Pid::from_raw(thread), &mut local, &remote).unwrap_or(0);
        if read > 0 {
            break;
        }
    }
    let text = bytes[..read].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn link_of(thread: i32, descriptor: i32) -> String {
    let link = std::fs::read_link(format!("/proc/{thread}/fd/{descriptor}"));
    link.map_or_else(|_| "none".to_owned(), |link| link.to_string_lossy().into_owned())
}

/// Replaces digits by one N, except in hexadecimal constants.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut words = text.split(' ').peekable();
    while let Some(word) = words.next() {
        if word.starts_with("0x") {
            out.push_str(word);
        } else {
            let mut previous = ' ';
            for c in word.chars().map(|c| if c.is_ascii_digit() { 'N' } else { c }) {
                if c != 'N' || previous != 'N' {
                    out.push(c);
                }
                previous = c;
            }
        }
        if words.peek().is_some() {
            out.push(' ');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_leave_out_numbers_that_vary() {
        assert_eq!(
            without_numbers("/run/giveway/netns-4026532/x"),
            "/run/giveway/netns-N/x"
        );
        assert_eq!(without_numbers("socket:[123], 0x10"), "socket:[N], 0x10");
    }

    #[test]
    fn no_call_is_listed_twice() {
        let mut numbers: Vec<_> = KINDS.iter().chain(OLD_KINDS).map(|kind| kind.number).collect();
        numbers.extend(NEVER_FAIL);
        let all = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all);
    }
}
