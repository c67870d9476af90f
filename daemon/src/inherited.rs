// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a process has from whoever starts it: the mask of new files' modes, signals that are blocked or ignored, descriptors
//! that are closed, limits. Input: the caller's. Output: a known state, before anything else happens; and the caller's again,
//! for the command that `giveway exec` becomes.

use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use nix::sys::stat::{self, Mode};

use crate::kernel::descriptors::open_standard_files;
use crate::kernel::signals;

/// What a shell ignores so that the terminal does not reach a command: nohup(1), a job in the background.
const OF_THE_TERMINAL: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];
/// A write that fails is an error, and no signal.
const OF_WRITES: [Signal; 2] = [Signal::SIGPIPE, Signal::SIGXFSZ];
/// Nobody else may write what this process makes; what it is to be for root alone is made so (`files`).
const UMASK: Mode = Mode::from_bits_truncate(0o022);

struct Caller {
    umask: Mode,
    blocked: SigSet,
    /// Of those that were changed.
    ignored: Vec<i32>,
}

static CALLER: OnceLock<Caller> = OnceLock::new();

/// First of all, in the only thread.
pub fn leave_behind() {
    open_standard_files();
    let mut ignored = Vec::new();
    let is_in = |all: &[Signal], signal: i32| all.iter().any(|one| *one as i32 == signal);
    for signal in signals::ALL.filter(|signal| !is_in(&OF_THE_TERMINAL, *signal)) {
        let before = if is_in(&OF_WRITES, signal) {
            signals::ignore(signal)
        } else {
            signals::set_default(signal)
        };
        // One that cannot be set is left alone.
        if before == Ok(true) {
            ignored.push(signal);
        }
    }
    let mut blocked = SigSet::empty();
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), Some(&mut blocked));
    let _ = CALLER.set(Caller {
        umask: stat::umask(UMASK),
        blocked,
        ignored,
    });
}

/// For the program that this process becomes. What was closed is closed by the execution.
pub fn give_back() {
    let Some(caller) = CALLER.get() else { return };
    for signal in OF_WRITES {
        let _ = signals::set_default(signal as i32);
    }
    for signal in &caller.ignored {
        let _ = signals::ignore(*signal);
    }
    stat::umask(caller.umask);
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&caller.blocked), None);
}

/// The bits that the caller wants no new file to have.
pub fn umask() -> u32 {
    CALLER.get().map_or(UMASK, |caller| caller.umask).bits()
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
