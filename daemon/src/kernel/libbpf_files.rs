// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files that libbpf looks at by itself, in folders whose lock any user can hold: what it needs is kept open, so that the
//! kernel remembers the names, and what it does not need is not looked at.

use std::ffi::{CStr, c_char, c_int};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Of Ubuntu's: the patch level, which no kernel after 5.0 asks for. It is looked for whenever an object is opened.
const NOT_NEEDED: &CStr = c"/proc/version_signature";
const NEEDED: [&str; 2] = ["/sys/kernel/btf/vmlinux", "/sys/devices/system/cpu/possible"];

/// For as long as this process lives. Who may have to load a program when somebody holds a folder calls this before.
pub fn keep() {
    let open = |path| File::options().read(true).custom_flags(OFlag::O_PATH.bits()).open(path);
    NEEDED
        .into_iter()
        .filter_map(|path| open(path).ok())
        .for_each(std::mem::forget);
}

/// In place of the C library's, for libbpf, which is linked into this program. As that one is since Linux 5.8, but for the
/// one file.
///
/// # Safety
/// `path` is a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn faccessat(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { CStr::from_ptr(path) } == NOT_NEEDED {
        Errno::ENOENT.set();
        return -1;
    }
    // SAFETY: the caller's promise; nothing is written.
    unsafe { libc::syscall(libc::SYS_faccessat2, folder, path, mode, flags) as c_int }
}
