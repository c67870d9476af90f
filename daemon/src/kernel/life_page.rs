// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page of memory that the daemon and its watchdog share ([`crate::life`]): made by one, and mapped by both for as long as
//! they live. All of it is atomics, for which every content is valid.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use anyhow::{Context as _, Result, ensure};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mlock, mmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

/// Threads that are watched, the watchdog's included.
pub const SLOTS: usize = 4;
const BYTES: NonZeroUsize = NonZeroUsize::new(size_of::<Page>()).expect("it is not empty");

/// All zero: nobody is watched.
#[repr(C)]
pub struct Page {
    pub daemon: [AtomicU64; 4],
    /// The number of the program that lists threads; 0: not loaded yet.
    pub threads: AtomicU32,
    /// The number of the map with the saved state of sockets; 0: none yet.
    pub saved_sockets: AtomicU32,
    /// The same of the saved state of reniced tasks.
    pub saved_tasks: AtomicU32,
    pub is_over: AtomicBool,
    pub slots: [Slot; SLOTS],
}

#[repr(C)]
pub struct Slot {
    /// 0: not watched.
    pub tid: AtomicU32,
    /// CLOCK_MONOTONIC.
    pub due_ns: AtomicU64,
}

/// The file of a new one.
pub fn new_file() -> nix::Result<OwnedFd> {
    let file = memfd_create(c"giveway-life", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    ftruncate(&file, BYTES.get() as i64)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

/// The page of this file. It stays mapped for as long as the process lives.
pub fn of(file: impl AsFd) -> Result<&'static Page> {
    let found = fstat(&file).context("there is no page of signs of life")?;
    ensure!(
        found.st_size == BYTES.get() as i64,
        "this is not a page of signs of life"
    );
    let flags = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping that is never removed, as long as the file, which is sealed and cannot become shorter.
    let page = unsafe { mmap(None, BYTES, flags, MapFlags::MAP_SHARED, &file, 0) };
    let page = page.context("cannot map the page of signs of life")?;
    // What computes above everything must not wait for a disk. Where locking is refused, nothing else changes.
    // SAFETY: the mapping is as long as that.
    let _ = unsafe { mlock(page, BYTES.get()) };
    // SAFETY: mapped for good, page-aligned, and made of atomics, for which every content is valid.
    Ok(unsafe { page.cast::<Page>().as_ref() })
}
