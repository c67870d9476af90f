// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a BPF program reports through a ring buffer. Input: the buffer's map. Output: its records, oldest first; bytes that
//! are none are left out.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};

use super::libbpf_log::explain;
use super::records::{Record, record};

/// A ring buffer of one kind of record.
pub struct Ring<T> {
    /// In words, for errors.
    of: &'static str,
    buffer: RingBuffer<'static>,
    arrived: Arc<Mutex<Vec<T>>>,
}

impl<T: Record + Send + 'static> Ring<T> {
    pub fn open(of: &'static str, map: &impl MapCore) -> Result<Self> {
        Self::parsed_by(record::<T>, of, map)
    }
}

impl<T: Send + 'static> Ring<T> {
    /// For records of more than one size.
    pub fn parsed_by(parse: fn(&[u8]) -> Option<T>, of: &'static str, map: &impl MapCore) -> Result<Self> {
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&arrived);
        let buffer = explain(&format!("open the ring buffer of {of}"), || {
            let mut builder = RingBufferBuilder::new();
            builder.add(map, move |bytes| {
                into.lock().unwrap_or_else(PoisonError::into_inner).extend(parse(bytes));
                0
            })?;
            builder.build()
        })?;
        Ok(Self { of, buffer, arrived })
    }

    /// Readable when records wait, unless the program wakes no reader for them.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring buffer owns this descriptor and lives as long as self.
        unsafe { BorrowedFd::borrow_raw(self.buffer.epoll_fd()) }
    }

    /// The records that wait, up to so many: a flood of them must not keep everything else waiting.
    pub fn take(&self, at_most: usize) -> Result<Vec<T>> {
        let consumed = self.buffer.consume_raw_n(at_most);
        if consumed < 0 {
            let error = std::io::Error::from_raw_os_error(-consumed);
            return Err(error).with_context(|| format!("cannot read the ring buffer of {}", self.of));
        }
        Ok(std::mem::take(
            &mut *self.arrived.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }
}
