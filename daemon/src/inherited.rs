// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a process has from whoever starts it: the mask of new files' modes, signals that are blocked or ignored, descriptors
//! that are closed, limits. Input: the caller's. Output: a known state, before anything else happens; and the caller's again,
//! for the command that `giveway exec` becomes.

use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// What a shell ignores so that the terminal does not reach a command: nohup(1), a job in the background.
const OF_THE_TERMINAL: [libc::c_int; 6] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];
/// A write that fails is an error, and no signal.
const OF_WRITES: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=64;
/// Nobody else may write what this process makes; what it is to be for root alone is made so (`files`).
const UMASK: libc::mode_t = 0o022;

struct Caller {
    umask: libc::mode_t,
    blocked: libc::sigset_t,
    /// Of those that were changed.
    ignored: Vec<libc::c_int>,
}

static CALLER: OnceLock<Caller> = OnceLock::new();

/// First of all, in the only thread.
pub fn leave_behind() {
    open_standard_files();
    let mut ignored = Vec::new();
    for signal in SIGNALS.filter(|signal| !OF_THE_TERMINAL.contains(signal)) {
        // SAFETY: sets no handler but the two that run no code; a signal that cannot be set is left alone.
        let before = unsafe {
            libc::signal(
                signal,
                if OF_WRITES.contains(&signal) {
                    libc::SIG_IGN
                } else {
                    libc::SIG_DFL
                },
            )
        };
        if before == libc::SIG_IGN {
            ignored.push(signal);
        }
    }
    // SAFETY: both sets are this function's own, and written before they are read.
    let (umask, blocked) = unsafe {
        let (mut none, mut blocked) = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigemptyset(&raw mut blocked);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, &raw mut blocked);
        (libc::umask(UMASK), blocked)
    };
    let _ = CALLER.set(Caller {
        umask,
        blocked,
        ignored,
    });
}

/// For the program that this process becomes. What was closed is closed by the execution.
pub fn give_back() {
    let Some(caller) = CALLER.get() else { return };
    // SAFETY: sets no handler but the two that run no code; the set is as the kernel gave it.
    unsafe {
        for signal in OF_WRITES {
            libc::signal(signal, libc::SIG_DFL);
        }
        for signal in &caller.ignored {
            libc::signal(*signal, libc::SIG_IGN);
        }
        libc::umask(caller.umask);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const caller.blocked, std::ptr::null_mut());
    }
}

/// The bits that the caller wants no new file to have.
pub fn umask() -> u32 {
    CALLER.get().map_or(UMASK, |caller| caller.umask)
}

/// For what changes the machine and undoes it: no limit of the caller's, as far as it can be raised, keeps it from writing
/// down what it does or from living on.
pub fn raise_limits() {
    let limits = [
        // A descriptor for each process that is held; the usual 1,024 are few.
        Resource::RLIMIT_NOFILE,
        Resource::RLIMIT_FSIZE,
        Resource::RLIMIT_CPU,
        Resource::RLIMIT_AS,
        Resource::RLIMIT_DATA,
    ];
    for limit in limits {
        if let Ok((_, hard)) = getrlimit(limit) {
            let _ = setrlimit(limit, hard, hard);
        }
    }
}

/// Nothing that is opened takes the place of a standard file. One that was closed stays useless, as it was, so that who reads
/// or writes it has an error, and is closed in what is executed.
fn open_standard_files() {
    for (standard, useless) in [(0, libc::O_WRONLY), (1, libc::O_RDONLY), (2, libc::O_RDONLY)] {
        // SAFETY: takes no pointers but a path that ends with a zero; the first free descriptor is the one that is closed.
        unsafe {
            if libc::fcntl(standard, libc::F_GETFD) < 0 {
                let opened = libc::open(c"/dev/null".as_ptr(), useless | libc::O_CLOEXEC);
                if opened < 0 {
                    libc::abort()
                }
            }
        }
    }
}
