// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bpf(2) does and libbpf-rs does not: a program at the tracepoint that it names itself, a run of a program now, and the
//! memory of a map that the kernel goes on writing. It decides nothing.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;

use anyhow::{Result, ensure};
use libbpf_rs::{MapCore, libbpf_sys};
use memmap2::{MmapOptions, MmapRaw};

use super::records::Record;
use super::tcx::answered;

/// Until the descriptor is closed.
pub fn attach_to_tracepoint(program: impl AsFd) -> nix::Result<OwnedFd> {
    // SAFETY: no pointer but the null one, which stands for what the program says itself; the result is checked.
    let link = unsafe { libbpf_sys::bpf_raw_tracepoint_open(ptr::null(), program.as_fd().as_raw_fd()) };
    let link = answered(link)?;
    // SAFETY: a descriptor that was just made and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Runs a program with this context, in the calling thread. Its answer.
pub fn run(program: impl AsFd, context: &impl Record) -> nix::Result<u32> {
    let mut run = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: ptr::from_ref(context).cast(),
        ctx_size_in: size_of_val(context) as u32,
        ..Default::default()
    };
    // SAFETY: `run` and what it points to live until the call returns, and state their sizes.
    answered(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_fd().as_raw_fd(), &mut run) })?;
    Ok(run.retval)
}

/// A map of the kernel's in this process's memory: an array of `T`, which only the kernel writes.
#[derive(Debug)]
pub struct Mapping<T> {
    memory: MmapRaw,
    count: usize,
    of: PhantomData<T>,
}

impl<T> Mapping<T> {
    pub fn of(map: &impl MapCore) -> Result<Self> {
        let count = map.max_entries() as usize;
        let stride = (map.value_size() as usize).next_multiple_of(8);
        ensure!(stride == size_of::<T>(), "a map has values of {stride} bytes");
        let memory = MmapOptions::new().len(count * stride).map_raw_read_only(&map.as_fd())?;
        Ok(Self {
            memory,
            count,
            of: PhantomData,
        })
    }

    /// What is there now, so many bytes into this value; None where that is beyond it, or no place of such a record.
    pub fn read<P: Record>(&self, index: usize, offset: usize) -> Option<P> {
        let is_inside = index < self.count && offset.checked_add(size_of::<P>())? <= size_of::<T>();
        let is_place = is_inside && offset.is_multiple_of(align_of::<P>());
        // SAFETY: inside the mapping and aligned, as values are. The kernel writes there, so it is read as something that
        // changes; any bytes are a record.
        is_place.then(|| unsafe {
            let value = self.memory.as_ptr().cast::<T>().add(index);
            ptr::read_volatile(value.byte_add(offset).cast::<P>())
        })
    }
}
