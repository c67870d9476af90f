// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The least of an io_uring that can send: one submission at a time, waited for. Input: a socket and bytes. Output: they
//! were handed to the kernel by its ring, and not by a system call of a socket's.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use nix::errno::Errno;

const ENTRIES: u32 = 1;
const OFFSET_SUBMISSIONS: libc::off_t = 0;
const OFFSET_COMPLETIONS: libc::off_t = 0x0800_0000;
const OFFSET_ENTRIES: libc::off_t = 0x1000_0000;
const RING_BYTES: usize = 4096;
const OP_SEND: u8 = 26;
const ENTER_GETEVENTS: libc::c_ulong = 1;

/// As `linux/io_uring.h` has them.
#[repr(C)]
#[derive(Default)]
struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    /// Flags, dropped and the array of the submissions; overflow and the completions of the others.
    more: [u32; 3],
    reserved: u32,
    address: u64,
}

#[repr(C)]
#[derive(Default)]
struct Setup {
    entries: u32,
    completions: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    queue_of: u32,
    reserved: [u32; 3],
    submission: Offsets,
    completion: Offsets,
}

#[repr(C)]
#[derive(Default)]
struct Submission {
    op: u8,
    flags: u8,
    priority: u16,
    descriptor: i32,
    offset: u64,
    address: u64,
    length: u32,
    more: [u32; 7],
}

pub struct Ring {
    descriptor: OwnedFd,
    submissions: *mut u8,
    completions: *mut u8,
    entries: *mut u8,
    setup: Setup,
}

impl Ring {
    pub fn new() -> Result<Self> {
        let mut setup = Setup::default();
        // SAFETY: the kernel writes the parameters, which are valid for the call.
        let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &raw mut setup) };
        let made = Errno::result(made).context("cannot make an io_uring")?;
        // SAFETY: it is new, and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(i32::try_from(made)?) };
        let map = |offset| {
            // SAFETY: maps new memory of the ring's, wherever the kernel finds room.
            let memory = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    RING_BYTES,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED,
                    descriptor.as_raw_fd(),
                    offset,
                )
            };
            match memory {
                libc::MAP_FAILED => Err(Errno::last()).context("cannot map an io_uring"),
                memory => Ok(memory.cast::<u8>()),
            }
        };
        Ok(Self {
            submissions: map(OFFSET_SUBMISSIONS)?,
            completions: map(OFFSET_COMPLETIONS)?,
            entries: map(OFFSET_ENTRIES)?,
            setup,
            descriptor,
        })
    }

    /// Returns when the kernel has taken it. What a socket refuses is lost.
    pub fn send(&mut self, socket: i32, bytes: &[u8]) -> Result<()> {
        let submission = Submission {
            op: OP_SEND,
            descriptor: socket,
            address: bytes.as_ptr() as u64,
            length: u32::try_from(bytes.len())?,
            ..Submission::default()
        };
        // SAFETY: the mapping has room for one, and the kernel reads none before the tail says so.
        unsafe { self.entries.cast::<Submission>().write(submission) };
        let array = self.setup.submission.more[2] as usize;
        // SAFETY: the array lies in the mapping, and has one place.
        unsafe { self.submissions.add(array).cast::<u32>().write(0) };
        // SAFETY: the offsets are the kernel's, inside the mapping and aligned.
        let tail = unsafe {
            &*self
                .submissions
                .add(self.setup.submission.tail as usize)
                .cast::<AtomicU32>()
        };
        tail.fetch_add(1, Ordering::Release);
        // SAFETY: takes no pointers but none.
        let entered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.descriptor.as_raw_fd(),
                1_u32,
                1_u32,
                ENTER_GETEVENTS,
                std::ptr::null::<u8>(),
                0_usize,
            )
        };
        Errno::result(entered).context("the io_uring takes nothing")?;
        // SAFETY: as above.
        let head = unsafe {
            &*self
                .completions
                .add(self.setup.completion.head as usize)
                .cast::<AtomicU32>()
        };
        head.fetch_add(1, Ordering::Release);
        Ok(())
    }
}
