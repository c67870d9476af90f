// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory this process keeps. By libc: no crate sets what its allocator gives back.

use nix::sys::prctl::set_thp_disable;

/// What a request needs goes back when it is answered: without it the allocator keeps megabytes once it had them, and a huge
/// page is two at once. Call this before the first thread.
pub fn hold_little_memory() {
    const KEPT_BYTES: i32 = 512 * 1024;
    let _ = set_thp_disable(true);
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers. Either stops the allocator from raising both by itself.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES);
    }
}

/// Loading takes several megabytes for the kernel's types, for a moment. Call this when everything is loaded.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
