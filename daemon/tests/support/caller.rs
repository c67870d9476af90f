// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What whoever runs the tests has set of their own processes, and each child would inherit: the mask of new files' modes, the
//! nice value, the I/O class. Tests of what giveway does with these begin with what a login gives.

use nix::errno::Errno;
use nix::sys::stat::{Mode, umask};

const OTHERS_READ: Mode = Mode::S_IWGRP.union(Mode::S_IWOTH);
// include/uapi/linux/ioprio.h
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
const IOPRIO_NONE: libc::c_int = 0;

/// The calling thread and whatever it starts are as after a login.
pub fn forget() {
    umask(OTHERS_READ);
    // SAFETY: takes no pointers.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) }).unwrap();
    // SAFETY: takes no pointers.
    Errno::result(unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_NONE) }).unwrap();
}
