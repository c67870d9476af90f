// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a signal does to this process: nothing, or what it does by default. No handler is ever set, so that nothing runs in a
//! signal's context. By libc: nix knows no real-time signals, and its `signal` is unsafe for the sake of handlers.

use nix::errno::Errno;

/// All that there are, real-time ones included.
pub const ALL: std::ops::RangeInclusive<i32> = 1..=64;

/// Whether it was ignored before.
///
/// # Errors
/// Where it is none, or one that can be neither ignored nor caught.
pub fn ignore(signal: i32) -> nix::Result<bool> {
    set(signal, libc::SIG_IGN)
}

/// The same.
///
/// # Errors
/// The same.
pub fn set_default(signal: i32) -> nix::Result<bool> {
    set(signal, libc::SIG_DFL)
}

fn set(signal: i32, to: libc::sighandler_t) -> nix::Result<bool> {
    // SAFETY: no handler but the two that run no code.
    let before = unsafe { libc::signal(signal, to) };
    match before {
        libc::SIG_ERR => Err(Errno::last()),
        before => Ok(before == libc::SIG_IGN),
    }
}
