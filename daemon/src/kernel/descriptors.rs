// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of descriptors as a whole: what is open from the start, and what a thread or a child leaves closed. By libc: nix
//! has no close_range(2), and asks about no descriptor that may be closed. None of it allocates.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use tokio::io::unix::AsyncFd;

/// Nothing that is opened takes the place of a standard file. One that was closed stays useless, as it was, so that who reads
/// or writes it has an error, and is closed in what is executed.
pub fn open_standard_files() {
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

/// Leaves the calling thread a table of its own with this one descriptor. It uses no other from now on.
pub fn keep_only(own: RawFd) -> nix::Result<()> {
    let own = own.cast_unsigned();
    close_range(own + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if own > 0 {
        close_range(0, own - 1, 0)?;
    }
    Ok(())
}

/// Leaves the calling thread an empty table of its own. It uses no descriptor from now on.
pub fn keep_none() -> nix::Result<()> {
    close_range(0, u32::MAX, libc::CLOSE_RANGE_UNSHARE)
}

/// Closes all of this process's but one: for a child that has nothing else to do with its parent's. It may be called after a
/// fork.
pub fn close_others(own: RawFd) {
    let own = own.cast_unsigned();
    let _ = close_range(own + 1, u32::MAX, 0);
    if own > 0 {
        let _ = close_range(0, own - 1, 0);
    }
}

fn close_range(from: u32, to: u32, flags: u32) -> nix::Result<()> {
    // SAFETY: takes no pointers; nobody uses what is closed, as every caller here asks of its own.
    let done = unsafe { libc::syscall(libc::SYS_close_range, from, to, flags) };
    Errno::result(done).map(drop)
}

/// An owned file that the runtime waits for. Tokio's own function is unsafe for those that do not own theirs.
pub fn awaited<T: AsRawFd + Into<OwnedFd>>(file: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: an owned descriptor, which AsyncFd keeps open for as long as it is registered.
    Ok(unsafe { AsyncFd::register(file) }?)
}
